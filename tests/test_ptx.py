"""Each instruction of ptx.py in a small kernel: the same in the simulator and on a GPU.

Products are of small integers, so that every sum is exact and results must be equal.
The planted faults at the end are edits of kernel source that the simulator must catch.
"""

import inspect
import itertools

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from backends import device_copy, host_copy
from compile_child import Job, compile_all
from conftest import CAPABILITY, SCHEDULES

from numba_bs.arrays import describe
from numba_bs.cuda import fragments, launch, ptx
from numba_bs.cuda.compiler import (
    SIMULATED,
    cuda,
    device,
    f64,
    float32,
    jit,
    maker,
    u32,
    uint8,
    uint32,
    uint64,
)
from numba_bs.cuda.tensor_map import TensorMap

if SIMULATED:
    from numba_bs.cuda import simulator
    from numba_bs.cuda.simulator import SimulatedError

on_ampere = pytest.mark.simulator if SIMULATED else pytest.mark.gpu
AMPERE, HOPPER = (8, 0), (9, 0)

smem_addr, gmem_addr = ptx.smem_addr, ptx.gmem_addr
load_shared, store_shared = ptx.load_shared, ptx.store_shared
named_barrier, fence_async = ptx.named_barrier, ptx.fence_async
cp_async16, cp_async8, cp_async4 = ptx.cp_async16, ptx.cp_async8, ptx.cp_async4
cp_commit, mbar_init, mbar_fence = ptx.cp_commit, ptx.mbar_init, ptx.mbar_fence
mbar_arrive, mbar_expect, mbar_wait = ptx.mbar_arrive, ptx.mbar_expect, ptx.mbar_wait
tma_load_3d, tma_store_3d = ptx.tma_load_3d, ptx.tma_store_3d
tma_load_3d_multicast = ptx.tma_load_3d_multicast
cluster_arrive, cluster_wait = ptx.cluster_arrive, ptx.cluster_wait
cluster_rank, map_shared = ptx.cluster_rank, ptx.map_shared
mbar_arrive_cluster = ptx.mbar_arrive_cluster
bulk_commit, float_as_uint = ptx.bulk_commit, ptx.float_as_uint
swizzled, descriptor = device(fragments.swizzled), device(fragments.descriptor)
wgmma_sum = device(fragments.wgmma_sum)


def on_hopper(test):
    """Mark a test that needs compute capability 9.0, or the simulator."""
    return on_ampere(test if SIMULATED else pytest.mark.sm90(test))


class Tiles:
    """An argument that a kernel gets as a tensor map."""

    def __init__(self, array, box, swizzle):
        self.array, self.box, self.swizzle = array, box, swizzle


def start(kernel, *arguments, grid=1):
    """Run a kernel on copies of the arrays; return the last one as it is then."""
    copies, operands = [], []
    for each in arguments:
        if isinstance(each, int):
            operands.append(each)
            continue
        copies.append(device_copy(getattr(each, "array", each)))
        operand = describe("test", "array", copies[-1])
        if isinstance(each, Tiles):
            operand = TensorMap(operand, each.box, each.swizzle)
        operands.append(operand)
    launch.run(kernel, grid, 0, *operands)
    return host_copy(copies[-1])


def integers(rng, *shape):
    """Return small integers in float32: sums of their products are exact."""
    return rng.integers(-8, 9, shape).astype(np.float32)


def stored(values, dtype):
    """Return float32 values as a kernel stores them: words of the dtype's width."""
    if dtype == "bf16":
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return values.view(np.uint32)


# ------------------------------------------------------------ conversion, addresses


@maker
def make_conversions():
    pack_f16, pack_bf16 = ptx.make_pack("f16"), ptx.make_pack("bf16")

    @jit(32)
    def conversions(x, y, out):
        tid = cuda.threadIdx.x
        out[0, tid] = ptx.float_as_uint(ptx.uint_as_float(ptx.float_as_uint(x[tid])))
        out[1, tid] = ptx.round_tf32(x[tid])
        out[2, tid] = pack_f16(x[tid], y[tid])
        out[3, tid] = pack_bf16(x[tid], y[tid])

    return conversions


def _values():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 32, np.uint32)
    # Zeros, ties and their neighbours, infinities, the smallest number.
    bits[:6] = [0, 1 << 31, 0x3F801000, 0xBF801000, 0x3F800FFF, 0x3F803000]
    bits[6:11] = [0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 1]
    return np.where(np.isnan(bits.view(np.float32)), 0x40490FDB, bits).view(np.float32)


@on_ampere
def test_conversions():
    x = _values()
    y = x[::-1].copy()
    bits, tf32, halves, bfloats = start(
        make_conversions(), x, y, np.zeros((4, 32), np.uint32)
    )
    np.testing.assert_array_equal(bits, x.view(np.uint32))
    # In float64, ties are away from zero: add half of the last place, cut the rest.
    mantissa, exponent = np.frexp(x.astype(np.float64))
    nearest = np.ldexp(np.trunc(mantissa * 2**11 + np.copysign(0.5, x)), exponent - 11)
    with np.errstate(over="ignore"):
        normal = np.isfinite(x) & (abs(x) >= np.finfo(np.float32).tiny)
        expected = np.where(normal, nearest, x).astype(np.float32)
        pairs = np.stack([x, y], -1)
        as_halves = pairs.astype(np.float16).view(np.uint32)[:, 0]
        as_bfloats = pairs.astype(ml_dtypes.bfloat16).view(np.uint32)[:, 0]
    whole = normal | ~np.isfinite(x) | (x == 0)
    np.testing.assert_array_equal(tf32[whole], expected[whole].view(np.uint32))
    np.testing.assert_array_equal(halves, as_halves)
    np.testing.assert_array_equal(bfloats, as_bfloats)


@on_ampere
def test_nan_stays_nan():
    x = np.array([np.nan] * 32, np.float32)
    x.view(np.uint32)[::2] = 0xFF801001  # its mantissa is more than its low 12 bits
    out = start(make_conversions(), x, x, np.zeros((4, 32), np.uint32))
    np.testing.assert_array_equal(out[0], x.view(np.uint32))
    assert np.isnan(out[1].view(np.float32)).all()
    assert np.isnan(out[2].view(np.float16)).all()
    assert np.isnan(out[3].view(ml_dtypes.bfloat16).astype(np.float32)).all()


@maker
def make_reverse():
    """Reverse within each half of 128 threads, by address, with a barrier of each."""

    @jit(128)
    def reverse(x, out):
        tid = cuda.threadIdx.x
        words = cuda.shared.array(128, uint32)
        base = smem_addr(words)
        store_shared(base + 4 * tid, x[tid])
        named_barrier(1 + tid // 64, 64)  # the half is whole
        out[tid] = load_shared(base + 4 * (tid // 64 * 64 + 63 - tid % 64))

    return reverse


@on_ampere
def test_shared_memory_by_address_and_named_barriers(schedule):
    x = np.arange(128, dtype=np.uint32) + (1 << 31)
    out = start(make_reverse(), x, np.zeros(128, np.uint32))
    np.testing.assert_array_equal(out, x.reshape(2, 64)[:, ::-1].ravel())


# --------------------------------------------------------------- cp.async, matrices


@maker
def make_gather(width):
    """Thread t copies its width's first t % (width + 1) bytes, and zeros."""
    copy = {16: cp_async16, 8: cp_async8, 4: cp_async4}[width]
    wait = ptx.make_cp_wait(0)
    WORDS = width // 4
    ITEMS = 32 * WORDS

    @jit(32)
    def gather(x, out):
        tid = cuda.threadIdx.x
        words = cuda.shared.array(ITEMS, uint32)
        to = smem_addr(words) + width * tid
        copy(to, gmem_addr(x) + width * tid, tid % (width + 1))
        cp_commit()
        wait()
        for i in range(WORDS):
            out[tid, i] = words[WORDS * tid + i]

    return gather


@on_ampere
@pytest.mark.parametrize("width", [16, 8, 4])
def test_cp_async(schedule, width):
    x = np.arange(1, 32 * width + 1, dtype=np.uint8).reshape(32, width)
    out = start(make_gather(width), x, np.zeros((32, width // 4), np.uint32))
    size = np.arange(32)[:, None] % (width + 1)
    expected = np.where(np.arange(width) < size, x, 0).astype(np.uint8)
    np.testing.assert_array_equal(out.view(np.uint8), expected)


@maker
def make_two_groups():
    """Sum of two halves; the first is read while the second may be under way."""
    wait1, wait0 = ptx.make_cp_wait(1), ptx.make_cp_wait(0)

    @jit(32)
    def two_groups(x, out):
        tid = cuda.threadIdx.x
        words = cuda.shared.array(64, float32)
        for half in range(2):
            place = 4 * (32 * half + tid)
            cp_async4(smem_addr(words) + place, gmem_addr(x) + place, 4)
            cp_commit()
        wait1()
        first = words[tid]
        wait0()
        out[tid] = first + words[32 + tid]

    return two_groups


@on_ampere
def test_groups_of_cp_async(schedule, rng):
    x = integers(rng, 64)
    out = start(make_two_groups(), x, np.zeros(32, np.float32))
    np.testing.assert_array_equal(out, x[:32] + x[32:])


@maker
def make_through_matrices(count, transposed_in, transposed_out):
    """Load ``count`` matrices by ldmatrix; write words, and matrices by stmatrix."""
    ldmatrix = ptx.make_ldmatrix(count, transposed_in)
    stmatrix = ptx.make_stmatrix(count, transposed_out)
    WORDS = 32 * count

    @jit(32)
    def through_matrices(x, words, out):
        tid = cuda.threadIdx.x
        a_smem = cuda.shared.array(WORDS, uint32)
        b_smem = cuda.shared.array(WORDS, uint32)
        for i in range(tid, WORDS, 32):
            a_smem[i] = x[i]
        cuda.syncthreads()  # x is staged
        row = 16 * (tid % (8 * count))
        held = ldmatrix(smem_addr(a_smem) + row)
        stmatrix(smem_addr(b_smem) + row, held)
        cuda.syncthreads()  # the matrices are written
        for i in range(count):
            words[tid, i] = held[i]
        for i in range(tid, WORDS, 32):
            out[i] = b_smem[i]

    return through_matrices


BOTH = [(False, False), (False, True), (True, False), (True, True)]


@maker
def make_ldmatrix_only(count, transposed):
    ldmatrix = ptx.make_ldmatrix(count, transposed)
    WORDS = 32 * count

    @jit(32)
    def ldmatrix_only(x, words):
        tid = cuda.threadIdx.x
        a_smem = cuda.shared.array(WORDS, uint32)
        for i in range(tid, WORDS, 32):
            a_smem[i] = x[i]
        cuda.syncthreads()  # x is staged
        held = ldmatrix(smem_addr(a_smem) + 16 * (tid % (8 * count)))
        for i in range(count):
            words[tid, i] = held[i]

    return ldmatrix_only


@on_ampere
@pytest.mark.parametrize("transposed", [False, True], ids=["straight", "transposed"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(schedule, rng, count, transposed):
    x = rng.integers(0, 1 << 16, (count, 8, 8), np.uint16)
    words = np.zeros((32, count), np.uint32)
    held = start(
        make_ldmatrix_only(count, transposed), x.view(np.uint32).ravel(), words
    )
    matrices = x.swapaxes(1, 2) if transposed else x
    expected = matrices.reshape(count, 32, 2).swapaxes(0, 1)  # lane: row, pair of it
    np.testing.assert_array_equal(held.view(np.uint16).reshape(32, count, 2), expected)


@on_hopper
@pytest.mark.parametrize("both", BOTH, ids=str)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(schedule, rng, count, both):
    x = rng.integers(0, 1 << 16, (count, 8, 8), np.uint16)
    words, out = np.zeros((32, count), np.uint32), np.zeros(32 * count, np.uint32)
    kernel = make_through_matrices(count, *both)
    out = start(kernel, x.view(np.uint32).ravel(), words, out)
    expected = x if both[0] == both[1] else x.swapaxes(1, 2)
    np.testing.assert_array_equal(out.view(np.uint16).reshape(count, 8, 8), expected)


@maker
def make_mma_of_halves(dtype):
    mma = ptx.make_mma(dtype)
    place_a, place_b, place_c = map(device, fragments.MMA[dtype][3:])

    @device
    def pair(x, first, second):
        return u32(x[first]) | u32(x[second]) << 16

    @jit(32)
    def mma_of_halves(a, b, c, out):
        lane = cuda.threadIdx.x
        a_reg = (
            pair(a, place_a(lane, 0), place_a(lane, 1)),
            pair(a, place_a(lane, 2), place_a(lane, 3)),
            pair(a, place_a(lane, 4), place_a(lane, 5)),
            pair(a, place_a(lane, 6), place_a(lane, 7)),
        )
        b_reg = (
            pair(b, place_b(lane, 0), place_b(lane, 1)),
            pair(b, place_b(lane, 2), place_b(lane, 3)),
        )
        c_reg = (
            c[place_c(lane, 0)],
            c[place_c(lane, 1)],
            c[place_c(lane, 2)],
            c[place_c(lane, 3)],
        )
        d_reg = mma(a_reg, b_reg, c_reg)
        for i in range(4):
            out[place_c(lane, i)] = d_reg[i]

    return mma_of_halves


@maker
def make_mma_of_16x8x8(dtype):
    mma = ptx.make_mma(dtype)
    place_a, place_b, place_c = map(device, fragments.MMA[dtype][3:])
    register = ptx.round_tf32 if dtype == "tf32" else f64

    @jit(32)
    def mma_of_16x8x8(a, b, c, out):
        lane = cuda.threadIdx.x
        a_reg = (
            register(a[place_a(lane, 0)]),
            register(a[place_a(lane, 1)]),
            register(a[place_a(lane, 2)]),
            register(a[place_a(lane, 3)]),
        )
        b_reg = (
            register(b[place_b(lane, 0)]),
            register(b[place_b(lane, 1)]),
        )
        c_reg = (
            c[place_c(lane, 0)],
            c[place_c(lane, 1)],
            c[place_c(lane, 2)],
            c[place_c(lane, 3)],
        )
        d_reg = mma(a_reg, b_reg, c_reg)
        for i in range(4):
            out[place_c(lane, i)] = d_reg[i]

    return mma_of_16x8x8


@maker
def make_mma_of_f64():
    mma = ptx.make_mma("f64")
    place_a, place_b, place_c = map(device, fragments.MMA["f64"][3:])

    @jit(32)
    def mma_of_f64(a, b, c, out):
        lane = cuda.threadIdx.x
        a_reg = (f64(a[place_a(lane, 0)]),)
        b_reg = (f64(b[place_b(lane, 0)]),)
        c_reg = (c[place_c(lane, 0)], c[place_c(lane, 1)])
        d_reg = mma(a_reg, b_reg, c_reg)
        for i in range(2):
            out[place_c(lane, i)] = d_reg[i]

    return mma_of_f64


@on_ampere
@pytest.mark.parametrize("dtype", fragments.MMA)
def test_mma(schedule, rng, dtype):
    M, N, K = fragments.MMA[dtype][:3]
    a, b, c = integers(rng, M, K), integers(rng, K, N), integers(rng, M, N)
    expected = c + a @ b
    if dtype == "f64wide" and CAPABILITY and CAPABILITY < (9, 0):
        pytest.skip(f"compute capability must be 9.0, got {CAPABILITY}")
    if dtype.startswith("f64"):  # exact, but not in float32
        a, b, c = (each.astype(np.float64) * (2**20 + 1) for each in (a, b, c))
        expected = c + a @ b
        kernel = make_mma_of_f64() if dtype == "f64" else make_mma_of_16x8x8(dtype)
    elif dtype == "tf32":
        kernel = make_mma_of_16x8x8(dtype)
    else:
        a, b = stored(a, dtype), stored(b, dtype)
        kernel = make_mma_of_halves(dtype)
    out = start(kernel, a, b, c, np.zeros_like(c))
    np.testing.assert_array_equal(out, expected)


# ------------------------------------------------------------------ copies of tiles


@maker
def make_tile_in(BYTES, SWIZZLE):
    """Copy a tile to shared memory, and from there to ``out``, without the swizzle."""

    @jit(128, BYTES + 1024)
    def tile_in(x, x0, y0, z0, out):
        tid = cuda.threadIdx.x
        barriers = cuda.shared.array(1, uint64)
        full = smem_addr(barriers)
        base = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        if tid == 0:
            mbar_init(full, 1)
            mbar_fence()
            mbar_expect(full, BYTES)
            tma_load_3d(base, x, full, x0, y0, z0)
        cuda.syncthreads()  # the barrier is there
        mbar_wait(full, 0)
        for i in range(tid, BYTES // 4, 128):
            out[i] = load_shared(swizzled(base + 4 * i & ~15, SWIZZLE) + 4 * i % 16)

    return tile_in


@maker
def make_tile_out(BYTES, SWIZZLE):
    """Write a tile to shared memory, swizzled, and copy it from there to ``out``."""
    wait = ptx.make_bulk_wait(0, True)

    @jit(128, BYTES + 1024)
    def tile_out(x, x0, y0, z0, out):
        tid = cuda.threadIdx.x
        base = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        for i in range(tid, BYTES // 4, 128):
            store_shared(swizzled(base + 4 * i & ~15, SWIZZLE) + 4 * i % 16, x[i])
        fence_async()
        cuda.syncthreads()  # the tile is whole
        if tid == 0:
            tma_store_3d(out, base, x0, y0, z0)
            bulk_commit()
            wait()

    return tile_out


# Shape and box (outermost first), swizzle, corner (outermost first).
BOXES = {
    "inside": ((2, 40, 64), (1, 8, 32), 64, (1, 16, 32)),
    "no-swizzle": ((1, 20, 72), (1, 16, 40), 0, (0, 0, 8)),
    "32-bytes": ((1, 40, 16), (1, 32, 16), 32, (0, 4, 0)),
    "64-bytes": ((1, 40, 32), (1, 32, 32), 64, (0, 4, 0)),
    "128-bytes": ((1, 40, 64), (1, 32, 64), 128, (0, 4, 0)),
    "past-the-end": ((3, 20, 56), (2, 16, 64), 128, (2, 10, 16)),
    "before-the-start": ((3, 20, 56), (2, 16, 32), 64, (-1, -3, -8)),
    "all-outside": ((1, 8, 16), (1, 8, 16), 32, (0, 8, 0)),
    "larger-than-all": ((1, 3, 8), (1, 8, 16), 32, (0, 0, 0)),
}


def _meeting(shape, box, corner):
    """Return slices of the array and of the box: where they meet."""
    low = np.maximum(corner, 0)
    high = np.maximum(np.minimum(np.add(corner, box), shape), low)
    inside = tuple(map(slice, low, high))
    return inside, tuple(map(slice, low - corner, high - np.array(corner)))


@on_hopper
@pytest.mark.parametrize("name", BOXES)
def test_tile_to_shared_memory(schedule, rng, name):
    shape, box, swizzle, corner = BOXES[name]
    x = rng.integers(1, 1 << 16, shape, np.uint16)
    kernel = make_tile_in(2 * np.prod(box).item(), swizzle)
    out = np.zeros(np.prod(box) // 2, np.uint32)
    out = start(kernel, Tiles(x, box, swizzle), *corner[::-1], out)
    expected = np.zeros(box, np.uint16)
    inside, of_box = _meeting(shape, box, corner)
    expected[of_box] = x[inside]
    np.testing.assert_array_equal(out.view(np.uint16).reshape(box), expected)


@on_hopper
@pytest.mark.parametrize("name", [name for name in BOXES if name != "before-the-start"])
def test_tile_from_shared_memory(schedule, rng, name):
    shape, box, swizzle, corner = BOXES[name]
    tile = rng.integers(1, 1 << 16, box, np.uint16)
    kernel = make_tile_out(tile.nbytes, swizzle)
    out = Tiles(np.zeros(shape, np.uint16), box, swizzle)
    out = start(kernel, tile.view(np.uint32).ravel(), *corner[::-1], out)
    expected = np.zeros(shape, np.uint16)
    inside, of_box = _meeting(shape, box, corner)
    expected[inside] = tile[of_box]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.simulator
def test_a_store_does_not_begin_before_the_start(rng):
    shape, box, swizzle, corner = BOXES["before-the-start"]
    tile = rng.integers(1, 1 << 16, box, np.uint16)
    out = Tiles(np.zeros(shape, np.uint16), box, swizzle)
    words = tile.view(np.uint32).ravel()
    with pytest.raises(SimulatedError, match="must not be negative"):
        start(make_tile_out(tile.nbytes, swizzle), words, *corner[::-1], out)


@pytest.mark.simulator
@pytest.mark.parametrize("out", [False, True])
def test_a_tile_begins_at_a_multiple_of_16_bytes(out):
    make, x = (make_tile_out if out else make_tile_in), np.zeros(16, np.uint32)
    tiles = Tiles(np.zeros((1, 8, 64), np.uint16), (1, 1, 32), 0)
    given = (x, 1, 0, 0, tiles) if out else (tiles, 1, 0, 0, x)
    with pytest.raises(SimulatedError, match="multiple of 16 bytes, got 1 elements"):
        start(make(64, 0), *given)


# -------------------------------------------------------------------------- wgmma


@maker
def make_layout(n, majors, dtype, swizzle, of_a, of_b):
    """One wgmma, of operands that lie as copies of tiles leave them.

    ``of_a``, ``of_b``: leading and stride of the descriptor; how many tiles, bytes of
    each, from one to the next along its innermost axis.
    """
    A_LEADING, A_STRIDE, A_TILES, A_BYTES, A_STEP = of_a
    B_LEADING, B_STRIDE, B_TILES, B_BYTES, B_STEP = of_b
    A_ROOM = -(-A_TILES * A_BYTES // 1024) * 1024
    BYTES = A_TILES * A_BYTES + B_TILES * B_BYTES
    ITEMS = n // 2
    wgmma = ptx.make_wgmma(n, ((0, 0, 0),), 1, 0, *majors, dtype)
    zeros, spread = ptx.make_zeros(ITEMS), ptx.make_spread(ITEMS)
    wait = ptx.make_wgmma_wait(0)

    @jit(128, A_ROOM + B_TILES * B_BYTES + 1024)
    def layout(a, b, out):
        tid = cuda.threadIdx.x
        barriers = cuda.shared.array(1, uint64)
        full = smem_addr(barriers)
        a_smem = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        b_smem = a_smem + A_ROOM
        if tid == 0:
            mbar_init(full, 1)
            mbar_fence()
            mbar_expect(full, BYTES)
            for i in range(A_TILES):
                tma_load_3d(a_smem + i * A_BYTES, a, full, i * A_STEP, 0, 0)
            for i in range(B_TILES):
                tma_load_3d(b_smem + i * B_BYTES, b, full, i * B_STEP, 0, 0)
        cuda.syncthreads()  # the barrier is there
        mbar_wait(full, 0)
        acc = wgmma(
            zeros(),
            0,
            descriptor(a_smem, A_LEADING, A_STRIDE, swizzle),
            descriptor(b_smem, B_LEADING, B_STRIDE, swizzle),
        )
        wait()
        acc_reg = cuda.local.array(ITEMS, float32)
        spread(acc, acc_reg)
        for i in range(ITEMS):
            out[wgmma_sum(tid, i)] = acc_reg[i]

    return layout


def _operand(values, k, major, dtype, swizzle):
    """Return an operand (rows, k or more) as tiles, and what make_layout needs."""
    words = stored(values, dtype)
    size, item_bytes = len(words), words.itemsize
    cols = (swizzle or 16) // item_bytes  # of a tile
    if major == 0:
        box, tiles = (1, size, cols), max(k // cols, 1)
        strides = (16, 8 * swizzle) if swizzle else (16 * size, 128)
    else:
        words = words[:, :k].T
        box, tiles = (1, k, cols), size // cols
        strides = (16 * swizzle, 8 * swizzle) if swizzle else (128, 256)
    array = np.ascontiguousarray(words)[None]
    size_bytes = np.prod(box).item() * item_bytes
    return Tiles(array, box, swizzle), (*strides, tiles, size_bytes, cols)


LAYOUTS = [
    (*majors, swizzle, "bf16")
    for majors in itertools.product((0, 1), (0, 1))
    for swizzle in (0, 32, 64, 128)
]
LAYOUTS += [(0, 1, 128, "f16")] + [
    (0, 0, swizzle, "tf32") for swizzle in (0, 32, 64, 128)
]


def _layout_case(rng, a_major, b_major, swizzle, dtype, n=64):
    """Return the maker's arguments, operands and the product."""
    k = 8 if dtype == "tf32" else 16
    # Beyond k lies what must not count.
    a, b = integers(rng, 64, 64), integers(rng, n, 64)
    a_tiles, of_a = _operand(a, k, a_major, dtype, swizzle)
    b_tiles, of_b = _operand(b, k, b_major, dtype, swizzle)
    args = n, (a_major, b_major), dtype, swizzle, of_a, of_b
    return args, a_tiles, b_tiles, a[:, :k] @ b[:, :k].T


@on_hopper
@pytest.mark.parametrize("case", LAYOUTS, ids="{0[0]}-{0[1]}-{0[2]}-{0[3]}".format)
def test_wgmma_operands(rng, case):
    args, a, b, expected = _layout_case(rng, *case)
    out = start(make_layout(*args), a, b, np.full(expected.shape, np.nan, np.float32))
    np.testing.assert_array_equal(out, expected)


@on_hopper
@pytest.mark.parametrize("n", [8, 128, 256])
def test_wgmma_columns(schedule, rng, n):
    args, a, b, expected = _layout_case(rng, 0, 0, 32, "bf16", n)
    out = start(make_layout(*args), a, b, np.full(expected.shape, np.nan, np.float32))
    np.testing.assert_array_equal(out, expected)


@maker
def make_rows():
    """Rows of two tiles of sums: of the order of rows the kernel learns at run time."""
    wgmma = ptx.make_wgmma(16, ((0, 0, 0), (1, 0, 32)), 2, 2, 0, 0, "bf16")
    zeros, spread = ptx.make_zeros(32), ptx.make_spread(32)
    wait = ptx.make_wgmma_wait(0)

    @jit(128, 2 * 2048 + 1024 + 1024)
    def rows(a, b, order, out):
        tid = cuda.threadIdx.x
        barriers = cuda.shared.array(1, uint64)
        full = smem_addr(barriers)
        a_smem = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        b_smem = a_smem + 2 * 2048
        if tid == 0:
            mbar_init(full, 1)
            mbar_fence()
            mbar_expect(full, 2 * 2048 + 1024)
            tma_load_3d(a_smem, a, full, 0, 0, 0)
            tma_load_3d(b_smem, b, full, 0, 0, 0)
        cuda.syncthreads()  # the barrier is there
        mbar_wait(full, 0)
        acc = zeros()
        for i in range(order.shape[0]):
            row = order[i]
            a_place = descriptor(a_smem + 2048 * row, 16, 256, 32)
            acc = wgmma(acc, row, a_place, descriptor(b_smem, 16, 256, 32))
        wait()
        acc_reg = cuda.local.array(32, float32)
        spread(acc, acc_reg)
        for tile in range(4):
            for i in range(8):
                row, col = wgmma_sum(tid, i)
                out[tile // 2, row, 16 * (tile % 2) + col] = acc_reg[8 * tile + i]

    return rows


@on_hopper
def test_wgmma_of_rows_by_index(schedule, rng):
    a, b = integers(rng, 2, 64, 16), integers(rng, 1, 32, 16)
    order = np.array([1, 0, 1], np.int32)
    out = start(
        make_rows(),
        Tiles(stored(a, "bf16"), (2, 64, 16), 32),
        Tiles(stored(b, "bf16"), (1, 32, 16), 32),
        order,
        np.full((2, 64, 32), np.nan, np.float32),
    )
    times = np.bincount(order).astype(np.float32)
    np.testing.assert_array_equal(out, times[:, None, None] * (a @ b[0].T))


@maker
def make_registers():
    """One warpgroup gives registers to the two others."""
    give, take = ptx.make_setmaxnreg("dec", 40), ptx.make_setmaxnreg("inc", 232)

    @jit(384)
    def registers(out):
        tid = cuda.threadIdx.x
        if tid < 128:
            give()
            out[tid] = 40
        else:
            take()
            out[tid] = 232

    return registers


@on_hopper
def test_setmaxnreg():
    out = start(make_registers(), np.zeros(384, np.int32))
    np.testing.assert_array_equal(out, np.repeat([40, 232, 232], 128))


@maker
def make_by_cp_async():
    """Multiply a (64, 16) by b.T (16, 64), staged by cp.async and swizzled by hand."""
    wgmma = ptx.make_wgmma(64, ((0, 0, 0),), 1, 0, 0, 0, "bf16")
    zeros, spread = ptx.make_zeros(32), ptx.make_spread(32)
    wait, cp_wait = ptx.make_wgmma_wait(0), ptx.make_cp_wait(0)

    @jit(128, 2 * 2048 + 1024)
    def by_cp_async(a, b, out):
        tid = cuda.threadIdx.x
        a_smem = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        b_smem = a_smem + 2048
        row, half = tid // 2, tid % 2 * 16
        place = swizzled(row * 32 + half, 32)
        cp_async16(a_smem + place, gmem_addr(a) + row * 32 + half, 16)
        cp_async16(b_smem + place, gmem_addr(b) + row * 32 + half, 16)
        cp_commit()
        cp_wait()
        fence_async()
        cuda.syncthreads()  # both tiles are whole
        a_place = descriptor(a_smem, 16, 256, 32)
        acc = wgmma(zeros(), 0, a_place, descriptor(b_smem, 16, 256, 32))
        wait()
        acc_reg = cuda.local.array(32, float32)
        spread(acc, acc_reg)
        for i in range(32):
            out[wgmma_sum(tid, i)] = acc_reg[i]

    return by_cp_async


def run_by_cp_async(make=make_by_cp_async):
    """Return what the kernel gives, and what it must."""
    rng = np.random.default_rng(1)
    a, b = integers(rng, 64, 16), integers(rng, 64, 16)
    out = np.full((64, 64), np.nan, np.float32)
    out = start(make(), stored(a, "bf16"), stored(b, "bf16"), out)
    return out, a @ b.T


@maker
def make_pipeline(STEPS, STAGES):
    """Multiply a by b.T, by tiles of 64 x 64 that pass through ``STAGES`` buffers.

    Thread 128 copies tiles, threads 0 to 127 multiply and write 64 rows of ``out``.
    """
    TILE = 64 * 128  # bytes: 64 rows of 64 bfloat16
    STAGE = 2 * TILE
    OUT = 64 * 64 * 4
    wgmma = ptx.make_wgmma(
        64, ((0, 0, 0), (0, 2, 2), (0, 4, 4), (0, 6, 6)), 1, 0, 0, 0, "bf16"
    )
    zeros, spread = ptx.make_zeros(32), ptx.make_spread(32)
    wgmma_wait, bulk_wait = ptx.make_wgmma_wait(0), ptx.make_bulk_wait(0, True)

    @jit(160, STAGES * STAGE + OUT + 16 * STAGES + 1024)
    def pipeline(a, b, out):
        tid, row0 = cuda.threadIdx.x, 64 * cuda.blockIdx.x
        base = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        sums = base + STAGES * STAGE
        full = sums + OUT
        empty = full + 8 * STAGES
        if tid == 128:
            for stage in range(STAGES):
                mbar_init(full + 8 * stage, 1)
                mbar_init(empty + 8 * stage, 128)
            mbar_fence()
        cuda.syncthreads()  # the barriers are there

        if tid == 128:
            for step in range(STEPS):
                stage, phase = step % STAGES, step // STAGES % 2
                tile = base + stage * STAGE
                mbar_wait(empty + 8 * stage, phase ^ 1)
                mbar_expect(full + 8 * stage, STAGE)
                tma_load_3d(tile, a, full + 8 * stage, 64 * step, row0, 0)
                tma_load_3d(tile + TILE, b, full + 8 * stage, 64 * step, 0, 0)

        if tid < 128:
            acc = zeros()
            for step in range(STEPS):
                stage, phase = step % STAGES, step // STAGES % 2
                tile = base + stage * STAGE
                mbar_wait(full + 8 * stage, phase)
                a_place = descriptor(tile, 16, 1024, 128)
                acc = wgmma(acc, 0, a_place, descriptor(tile + TILE, 16, 1024, 128))
                wgmma_wait()
                mbar_arrive(empty + 8 * stage)

            acc_reg = cuda.local.array(32, float32)
            spread(acc, acc_reg)
            for i in range(32):
                row, col = wgmma_sum(tid, i)
                store_shared(sums + 256 * row + 4 * col, float_as_uint(acc_reg[i]))
            fence_async()
            named_barrier(1, 128)  # the sums are whole
            if tid == 0:
                tma_store_3d(out, sums, 0, row0, 0)
                bulk_commit()
                bulk_wait()

    return pipeline


def run_pipeline(make=make_pipeline, steps=3, rows=64, swizzle=128):
    """Return what the kernel gives, and what it must."""
    rng = np.random.default_rng(1)
    a, b = integers(rng, rows, 64 * steps), integers(rng, 64, 64 * steps)
    out = start(
        make(steps, 2),
        Tiles(stored(a, "bf16")[None], (1, 64, 64), swizzle),
        Tiles(stored(b, "bf16")[None], (1, 64, 64), swizzle),
        Tiles(np.full((1, rows, 64), np.nan, np.float32), (1, 64, 64), 0),
        grid=-(-rows // 64),
    )
    return out[0], a @ b.T


@on_hopper
def test_wgmma_after_cp_async(schedule):
    np.testing.assert_array_equal(*run_by_cp_async())


@on_hopper
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rows", [64, 100])
def test_pipeline(schedule, steps, rows):
    np.testing.assert_array_equal(*run_pipeline(steps=steps, rows=rows))


@pytest.mark.simulator
@pytest.mark.parametrize("seed", range(3))
def test_pipeline_in_drawn_schedules(seed):
    with simulator.schedule(order=seed):
        np.testing.assert_array_equal(*run_pipeline(rows=100))


# ------------------------------------------------------------------------- clusters


@maker
def make_multicast(STEPS):
    """Let each of two CTAs copy its half of a tile to both, step by step."""
    HALF = 1024  # bytes: 8 rows of 32 words

    @jit(32, 2 * HALF + 1024, cluster=2)
    def multicast(x, out):
        tid, rank = cuda.threadIdx.x, cluster_rank()
        barriers = cuda.shared.array(2, uint64)
        full, empty = smem_addr(barriers), smem_addr(barriers) + 8
        tile = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        if tid == 0:
            mbar_init(full, 1)
            mbar_init(empty, 2)
            mbar_fence()
        cluster_arrive()
        cluster_wait()  # the barriers of both CTAs are there
        for step in range(STEPS):
            if tid == 0:
                mbar_wait(empty, step % 2 ^ 1)  # both CTAs have read the last tile
                mbar_expect(full, 2 * HALF)
                half = tile + HALF * rank
                tma_load_3d_multicast(half, x, full, 0, 0, 2 * step + rank, 3)
            mbar_wait(full, step % 2)
            for i in range(tid, 2 * HALF // 4, 32):
                out[cuda.blockIdx.x, step, i] = load_shared(tile + 4 * i)
            cuda.syncthreads()  # the tile was read
            if tid < 2:
                mbar_arrive_cluster(map_shared(empty, tid))
        cluster_arrive()
        cluster_wait()  # nobody arrives here any more

    return multicast


def run_multicast(make=make_multicast, steps=3, grid=4):
    """Return what the kernel gives, and what it must."""
    x = np.random.default_rng(1).integers(0, 1 << 32, (2 * steps, 8, 32), np.uint32)
    out = np.zeros((grid, steps, 512), np.uint32)
    out = start(make(steps), Tiles(x, (1, 8, 32), 0), out, grid=grid)
    return out, np.broadcast_to(x.reshape(steps, 512), out.shape)


@on_hopper
def test_multicast(schedule):
    np.testing.assert_array_equal(*run_multicast())


@pytest.mark.simulator
@pytest.mark.parametrize("seed", range(3))
def test_multicast_in_drawn_schedules(seed):
    with simulator.schedule(order=seed):
        np.testing.assert_array_equal(*run_multicast())


@maker
def make_addresses():
    """Write each CTA's rank and where an array lies: its own, those of the others."""

    @jit(32, cluster=4)
    def addresses(out):
        here = smem_addr(cuda.shared.array(4, uint32))
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x, 0] = cluster_rank()
            out[cuda.blockIdx.x, 1] = here
            for rank in range(4):
                out[cuda.blockIdx.x, 2 + rank] = map_shared(here, rank)
        cluster_arrive()
        cluster_wait()  # no CTA ends before the others have named it

    return addresses


@on_hopper
def test_an_address_in_a_cluster_holds_the_rank(schedule):
    out = start(make_addresses(), np.zeros((8, 6), np.uint32), grid=8)
    assert out[:, 0].tolist() == [0, 1, 2, 3] * 2
    assert len(set((out[:, 1] & 0xFFFFFF).tolist())) == 1
    np.testing.assert_array_equal(out[:, 1] >> 24, out[:, 0])
    np.testing.assert_array_equal(out[:, 2:], np.broadcast_to(out[:4, 1], (8, 4)))


@on_hopper
def test_grid_of_half_a_cluster_is_refused():
    with pytest.raises(ValueError, match="whole clusters of 2 CTAs, got 3"):
        run_multicast(grid=3)


# ----------------------------------------------------------------- planted faults


def edited(make, old, new):
    """Return the maker with one edit of its source."""
    source = inspect.getsource(make)
    assert source.count(old) == 1, f"{source.count(old)} times in the source: {old!r}"
    names = dict(globals())
    # The lines stay, for messages; the maker's cache is its own.
    text = "\n" * (inspect.getsourcelines(make)[1] - 1) + source.replace(old, new)
    exec(compile(text, __file__, "exec"), names)
    return names[make.__name__]


WAIT = "wgmma_wait()\n"
ARRIVE = "mbar_arrive(empty + 8 * stage)\n"
FULL = "mbar_wait(full + 8 * stage, phase)"
EXPECT = "mbar_expect(full + 8 * stage, STAGE)"
EMPTY = "mbar_init(empty + 8 * stage, 128)"
A_PLACE = "a_place = descriptor(tile, 16, 1024, 128)"
INDENT = " " * 16
PIPELINE_FAULTS = {
    "swizzle of 64 bytes in a descriptor": (A_PLACE, A_PLACE.replace("128", "64")),
    "stride of 512 bytes in a descriptor": (A_PLACE, A_PLACE.replace("1024", "512")),
    "k-step too far": ("(0, 6, 6)", "(0, 6, 7)"),
    "b along n": ('0, 0, 0, "bf16"', '0, 0, 1, "bf16"'),
    "no wait for a full stage": (FULL, "pass"),
    "wait for the other parity": (FULL, FULL.replace("phase", "phase ^ 1")),
    "no wait for an empty stage": ("mbar_wait(empty + 8 * stage, phase ^ 1)", "pass"),
    "no arrival": (ARRIVE, "pass\n"),
    "arrival of one thread": (ARRIVE, "if tid == 0: " + ARRIVE),
    "arrival before the wait": (WAIT + INDENT + ARRIVE, ARRIVE + INDENT + WAIT),
    "no bytes expected": (EXPECT, "pass"),
    "too few bytes expected": (EXPECT, EXPECT.replace("STAGE", "TILE")),
    "too many bytes expected": (EXPECT, EXPECT.replace("STAGE", "STAGE + 16")),
    "one arrival too many": (EMPTY, EMPTY.replace("128", "129")),
    "half of the arrivals": (EMPTY, EMPTY.replace("128", "64")),
    "no fence of the barriers": ("mbar_fence()", "pass"),
    "no syncthreads": ("cuda.syncthreads()", "pass"),
    "no wait for wgmma": (WAIT, "pass\n"),
    "a group still under way": ("make_wgmma_wait(0)", "make_wgmma_wait(1)"),
    "a warp leaves one out": ("acc = wgmma", "if tid // 32 != 2: acc = wgmma"),
    "a warp leaves the last one out": (
        "acc = wgmma",
        "if tid // 32 != 2 or step < STEPS - 1: acc = wgmma",
    ),
    "descriptors differ": (A_PLACE, A_PLACE.replace("tile", "tile + 32 * (tid == 7)")),
    "tiles not aligned": ("& ~1023", "& ~127"),
    "tiles overlap": ("TILE = 64 * 128", "TILE = 64 * 128 - 1024"),
    "tiles over the barriers": ("full = sums + OUT", "full = sums - 16"),
    "rows r and r + 8": ("256 * row", "256 * (row ^ 8)"),
    "no fence before the store": ("fence_async()", "pass"),
    "no barrier before the store": ("named_barrier(1, 128)", "pass"),
    "barrier of too many": ("named_barrier(1, 128)", "named_barrier(1, 160)"),
    "barrier of half a warp": (
        "named_barrier(1, 128)",
        "if tid >= 16: named_barrier(1, 96)",
    ),
    "no commit of the store": ("bulk_commit()", "pass"),
    "no wait for the store": ("bulk_wait()\n", "pass\n"),
    "store one tile down": ("out, sums, 0, row0", "out, sums, 0, row0 + 64"),
    "exception in one thread": ("acc = zeros()", "acc = zeros()[: 1 // (tid - 5)]"),
    "endless loop in one thread": (
        "acc = zeros()",
        "acc = zeros()\n" + INDENT[4:] + "while tid == 7: pass",
    ),
}
CP_ASYNC_FAULTS = {
    "no wait": ("cp_wait()", "pass"),
    "no commit": ("cp_commit()", "pass"),
    "no fence": ("fence_async()", "pass"),
    "no syncthreads": ("cuda.syncthreads()", "pass"),
    "not swizzled": ("swizzled(row * 32 + half, 32)", "row * 32 + half"),
    "half of the bytes": (
        "gmem_addr(b) + row * 32 + half, 16",
        "gmem_addr(b) + row * 32 + half, 8",
    ),
}


def outcomes(run):
    """Whether a run gives the right numbers, under each schedule."""
    for each in SCHEDULES.values():
        with simulator.schedule(**each):
            try:
                actual, expected = run()
            except Exception:
                yield False
            else:
                yield np.array_equal(actual, expected)


MULTICAST_FAULTS = {
    "no meeting at the start": (
        "cluster_arrive()\n        cluster_wait()  # the barriers",
        "pass  # the barriers",
    ),
    "no meeting at the end": (
        "cluster_arrive()\n        cluster_wait()  # nobody",
        "pass  # nobody",
    ),
    "no wait at the end": ("cluster_wait()  # nobody", "pass  # nobody"),
    "wait without an arrival": (
        "cluster_arrive()\n        cluster_wait()  # nobody",
        "cluster_wait()  # nobody",
    ),
    "copied to itself only": ("2 * step + rank, 3)", "2 * step + rank, 1 << rank)"),
    "copied to a third": ("2 * step + rank, 3)", "2 * step + rank, 7)"),
    "the same half twice": ("tile + HALF * rank", "tile"),
    "half of the bytes": ("mbar_expect(full, 2 * HALF)", "mbar_expect(full, HALF)"),
    "no arrival at the other CTA": ("map_shared(empty, tid)", "empty"),
    "arrival of one CTA": ("if tid < 2:", "if tid < 1:"),
    "no wait for both": ("mbar_wait(empty, step % 2 ^ 1)", "pass"),
    "no wait for the reading": ("cuda.syncthreads()", "pass"),
}


@pytest.mark.simulator
@pytest.mark.parametrize("name", MULTICAST_FAULTS)
def test_fault_in_multicast_is_caught(name):
    make = edited(make_multicast, *MULTICAST_FAULTS[name])
    assert not all(outcomes(lambda: run_multicast(make)))


@pytest.mark.simulator
@pytest.mark.parametrize("name", PIPELINE_FAULTS)
def test_fault_in_the_pipeline_is_caught(monkeypatch, name):
    monkeypatch.setattr(simulator, "PATIENCE", 0.5)
    make = edited(make_pipeline, *PIPELINE_FAULTS[name])
    assert not all(outcomes(lambda: run_pipeline(make)))


@pytest.mark.simulator
@pytest.mark.parametrize("name", CP_ASYNC_FAULTS)
def test_fault_in_cp_async_is_caught(name):
    make = edited(make_by_cp_async, *CP_ASYNC_FAULTS[name])
    assert not all(outcomes(lambda: run_by_cp_async(make)))


@pytest.mark.simulator
def test_tiles_copied_without_their_swizzle_are_caught():
    assert not all(outcomes(lambda: run_pipeline(swizzle=0)))


@pytest.mark.simulator
def test_edits_are_what_makes_the_faults():
    make = edited(make_pipeline, "TILE =", "TILE =")
    assert all(outcomes(lambda: run_pipeline(make)))


# ------------------------------------------------------------------ what is refused


def run_body(body, threads=32, shared=2048):
    """Run a kernel of no arguments but one array."""
    start(jit(threads, shared)(body), np.zeros(64, np.uint32))


def _smem():
    return smem_addr(cuda.shared.array(0, uint8))


def _arrive_too_often(x):
    if cuda.threadIdx.x == 0:
        mbar_init(_smem(), 1)
        mbar_expect(_smem(), 16)
        mbar_arrive(_smem())


def _initialise_twice(x):
    if cuda.threadIdx.x < 2:
        mbar_init(_smem(), 1)


REFUSED = {
    "ld.shared: .* must be a multiple of 4": lambda x: load_shared(_smem() + 2),
    "st.shared: shared addresses must be within": lambda x: store_shared(0, 1),
    "must be taken of an array in shared memory": lambda x: smem_addr(x),
    "a barrier of 1 to 15": lambda x: named_barrier(0, 32),
    "and whole warps are needed": lambda x: named_barrier(1, 16),
    "cp.async: .* must be a multiple of 16": lambda x: cp_async16(
        _smem() + 8, gmem_addr(x), 16
    ),
    "cp.async: a global .* multiple of 16 .* got 16 bytes": lambda x: cp_async16(
        _smem(), gmem_addr(x) + 8, 16
    ),
    "as many bytes are needed, got 17": lambda x: cp_async16(_smem(), gmem_addr(x), 17),
    "an array whose address was taken": lambda x: cp_async16(
        _smem(), gmem_addr(x) + 256, 16
    ),
    "ldmatrix: .* must be a multiple of 16": lambda x: ptx.make_ldmatrix(1)(
        _smem() + 4
    ),
    "initialised before it is used": lambda x: mbar_arrive(_smem()),
    "a new address and a count are needed": _initialise_twice,
    "an arrival more than the 1": _arrive_too_often,
    "a multiple of 8 from 24": lambda x: ptx.make_setmaxnreg("inc", 260)(),
    "wgmma of tf32: both operands must lie along k": lambda x: ptx.make_wgmma(
        8, ((0, 0, 0),), 1, 0, 0, 1, "tf32"
    )(ptx.make_zeros(4)(), 0, 0, 0),
    "wgmma: row 2 must lie in the 2 tiles": lambda x: ptx.make_wgmma(
        8, ((0, 0, 0),), 2, 1, 0, 0, "bf16"
    )(ptx.make_zeros(8)(), 2, 0, 0),
    "wgmma: shared addresses must be within": lambda x: ptx.make_wgmma(
        8, ((0, 0, 0),), 1, 0, 0, 0, "bf16"
    )(ptx.make_zeros(4)(), 0, 0, 0),
    "an arrival must precede a wait": lambda x: cluster_wait(),
    "a wait must follow an arrival": lambda x: (cluster_arrive(), cluster_arrive()),
    "mapa: the rank must be that of one of the 1 CTAs": lambda x: map_shared(0, 1),
    "a tensor map of 3 axes is needed": lambda x: tma_store_3d(x, 2048, 0, 0, 0),
}


@pytest.mark.simulator
@pytest.mark.parametrize("match", REFUSED)
def test_misuse_is_refused(match):
    error = TypeError if "tensor map" in match else SimulatedError
    with pytest.raises(error, match=match):
        run_body(REFUSED[match])


@pytest.mark.simulator
def test_named_barrier_of_two_counts_is_refused():
    def body(x):
        named_barrier(1, 64 if cuda.threadIdx.x < 32 else 96)

    match = "barrier 1 of 64 threads: 32 of 64 .* and one that counts 96"
    with pytest.raises(SimulatedError, match=match):
        run_body(body, 96)


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("box", "swizzle", "match"),
    [
        ((1, 8, 12), 0, "a multiple of 16 bytes, .* got 24 and 0"),
        ((1, 8, 16), 64, "as many as the swizzle if there is one, got 32 and 64"),
        ((1, 257, 16), 32, r"1 to 256 elements along each of 3 axes, got \(1, 257"),
        ((8, 16), 32, r"1 to 256 elements along each of 3 axes, got \(8, 16"),
    ],
)
def test_box_that_hardware_would_refuse(box, swizzle, match):
    tiles = Tiles(np.zeros((2, 8, 16), np.uint16), box, swizzle)
    with pytest.raises(ValueError, match=match):
        start(make_tile_in(256, swizzle), tiles, 0, 0, 0, np.zeros(64, np.uint32))


@pytest.mark.simulator
def test_tensor_map_of_rows_that_are_not_aligned_is_refused():
    tiles = Tiles(np.zeros((2, 8, 12), np.uint16), (1, 8, 8), 0)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        start(make_tile_in(128, 0), tiles, 0, 0, 0, np.zeros(64, np.uint32))


@maker
def make_reuse(read):
    """Overwrite a tile that is being stored once it was read, or written."""
    wait = ptx.make_bulk_wait(0, read)

    @jit(32, 128 + 1024)
    def reuse(out):
        tid = cuda.threadIdx.x
        base = (smem_addr(cuda.shared.array(0, uint8)) + 1023) & ~1023
        store_shared(base + 4 * tid, tid)
        fence_async()
        cuda.syncthreads()  # the tile is whole
        if tid == 0:
            tma_store_3d(out, base, 0, 0, 0)
            bulk_commit()
            wait()
        cuda.syncthreads()  # the tile was read
        store_shared(base + 4 * tid, 99)

    return reuse


@on_hopper
@pytest.mark.parametrize("read", [True, False])
def test_tile_may_be_overwritten_when_it_was_read(schedule, read):
    out = Tiles(np.full((1, 8, 4), -1, np.int32), (1, 8, 4), 0)
    out = start(make_reuse(read), out)
    np.testing.assert_array_equal(out.ravel(), np.arange(32))


@pytest.mark.simulator
def test_tile_that_is_overwritten_too_early():
    make = edited(make_reuse, "            wait()\n", "")
    out = Tiles(np.full((1, 8, 4), -1, np.int32), (1, 8, 4), 0)
    match = "the store of a tile at test_ptx.py:.* must not be written"
    with pytest.raises(SimulatedError, match=match):
        start(make(True), out)


# ----------------------------------------------------------------------- compiling

WORDS, FLOATS, TILES = "uint32[:]", "float32[:, :]", "TensorMap"
HALVES, PAIRS, CORNER = "uint16[:, :]", "uint32[:, :]", ("int64",) * 3


def _layout_job(*case):
    args, *_ = _layout_case(np.random.default_rng(0), *case)
    return Job(make_layout, args, (TILES, TILES, FLOATS))


# A kernel, and instructions that its PTX must hold.
JOBS = {
    "conversions": (
        Job(make_conversions, (), ("float32[:]", "float32[:]", PAIRS), AMPERE),
        ("mov.b32", "cvt.rna.tf32", "cvt.rn.f16x2", "cvt.rn.bf16x2"),
    ),
    "reverse": (
        Job(make_reverse, (), (WORDS, WORDS), AMPERE),
        ("st.shared.u32", "bar.sync", "ld.shared.u32"),
    ),
    "two-groups": (
        Job(make_two_groups, (), ("float32[:]", "float32[:]"), AMPERE),
        ("cp.async.wait_group", "cp.async.commit_group"),
    ),
    "mma-f16": (
        Job(make_mma_of_halves, ("f16",), (HALVES, HALVES, FLOATS, FLOATS), AMPERE),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16",),
    ),
    "mma-bf16": (
        Job(make_mma_of_halves, ("bf16",), (HALVES, HALVES, FLOATS, FLOATS), AMPERE),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16",),
    ),
    "mma-tf32": (
        Job(make_mma_of_16x8x8, ("tf32",), (FLOATS,) * 4, AMPERE),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32",),
    ),
    "mma-f64": (
        Job(make_mma_of_f64, (), ("float64[:, :]",) * 4, AMPERE),
        ("mma.sync.aligned.m8n8k4.row.col.f64",),
    ),
    "tile-in": (
        Job(make_tile_in, (2048, 64), (TILES, *CORNER, WORDS)),
        ("cp.async.bulk.tensor.3d.shared", "mbarrier.init", "fence.mbarrier_init"),
    ),
    "tile-out": (
        Job(make_tile_out, (2048, 64), (WORDS, *CORNER, TILES)),
        (
            "fence.proxy.async",
            "cp.async.bulk.tensor.3d.global",
            "cp.async.bulk.commit_group",
            "cp.async.bulk.wait_group.read",
        ),
    ),
    "reuse": (Job(make_reuse, (False,), (TILES,)), ("cp.async.bulk.wait_group",)),
    "along-k": (
        _layout_job(0, 0, 0, "bf16"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16",),
    ),
    "along-m-and-n": (
        _layout_job(1, 1, 128, "f16"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16", "wgmma.wait_group"),
    ),
    "tf32": (
        _layout_job(0, 0, 32, "tf32"),
        ("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32", "wgmma.commit_group"),
    ),
    "rows": (
        Job(make_rows, (), (TILES, TILES, "int32[:]", "float32[:, :, :]")),
        ("brx.idx.uni", "wgmma.fence"),
    ),
    "registers": (
        Job(make_registers, (), ("int32[:]",)),
        ("setmaxnreg.dec", "setmaxnreg.inc"),
    ),
    "by-cp.async": (
        Job(make_by_cp_async, (), (HALVES, HALVES, FLOATS)),
        ("cp.async.cg.shared", "fence.proxy.async", "wgmma.mma_async"),
    ),
    "multicast": (
        Job(make_multicast, (2,), (TILES, "uint32[:, :, :]")),
        (
            "mov.u32",
            "barrier.cluster.arrive",
            "barrier.cluster.wait",
            "mapa.shared::cluster",
            "mbarrier.arrive.shared::cluster",
            "cp.async.bulk.tensor.3d",
        ),
    ),
    "pipeline": (
        Job(make_pipeline, (8, 2), (TILES, TILES, TILES)),
        ("mbarrier.arrive.expect_tx", "mbarrier.arrive.shared", "wgmma.mma_async"),
    ),
}
for _width in (16, 8, 4):
    JOBS[f"cp.async-{_width}"] = (
        Job(make_gather, (_width,), ("uint8[:, :]", PAIRS), AMPERE),
        (f"cp.async.c{'g' if _width == 16 else 'a'}.shared.global",),
    )
for _count in (1, 2, 4):
    JOBS[f"ldmatrix-{_count}"] = (
        Job(make_ldmatrix_only, (_count, False), (WORDS, PAIRS), AMPERE),
        (f"ldmatrix.sync.aligned.m8n8.x{_count}.shared",),
    )
    JOBS[f"stmatrix-{_count}"] = (
        Job(make_through_matrices, (_count, True, True), (WORDS, PAIRS, WORDS)),
        (
            f"ldmatrix.sync.aligned.m8n8.x{_count}.trans",
            f"stmatrix.sync.aligned.m8n8.x{_count}.trans",
        ),
    )


@pytest.fixture(scope="module")
def facts():
    """Return what the compiler says of every kernel: one child process for all."""
    found = compile_all([job for job, _ in JOBS.values()], errors=True)
    return dict(zip(JOBS, found, strict=True))


@pytest.mark.compile
@pytest.mark.parametrize("name", JOBS)
def test_compiles(facts, name):
    job, instructions = JOBS[name]
    found = facts[name]
    assert found.error is None, found.error
    assert found.target == ("sm_80" if job.capability == AMPERE else "sm_90a")
    assert [each for each in instructions if not found.count(each)] == []
    assert not found.local
    assert found.spill_bytes == found.stack_bytes == 0
