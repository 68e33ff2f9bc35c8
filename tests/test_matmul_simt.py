"""The SIMT kernels of dsd and sdd by their own ``launch``, without the public API.

What the public functions never ask for is here too: constants of all kinds, one head
of several, sums over a leading axis inside of a kernel, a cut at any place.
"""

import numpy as np
import pytest
from bounds import assert_within, widened
from patterns import (
    BLOCKSIZES,
    FLOATS,
    INTEGERS,
    MASKS,
    label,
    stored,
    strided,
    values,
)

import numba_bs as bs
from numba_bs import arrays
from numba_bs import plan as plans
from numba_bs.choose import simt
from numba_bs.choose.simt import SimtConfig
from numba_bs.dtypes import accumulator, bfloat16

pytest.importorskip("numba.cuda")

from backends import DEVICES, HAVE_GPU, SIMULATED, device_copy, host_copy

from numba_bs.cuda import (
    elementwise_simt,
    gather_blocks_simt,
    matmul_dsd_simt,
    matmul_sdd_simt,
    sum_partials_simt,
)

pytestmark = pytest.mark.skipif(
    not (SIMULATED or HAVE_GPU), reason="no GPU, and no simulator"
)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture(params=DEVICES)
def device(request):
    """Run the test on the GPU, or under each schedule of the simulator."""
    with request.param.computing():
        yield request.param


# --------------------------------------------------------------------------- helpers


class OnDevice:
    """Arrays on the device as Operands; ``held`` keeps them alive."""

    def __init__(self):
        self.held = []

    def put(self, x):
        copy = device_copy(x)
        self.held.append(copy)
        return arrays.describe("test", "x", copy)

    def put_plan(self, plan):
        return type(plan)(*map(self.put, plan))


def sums_of(*operands):
    """Return the accumulation dtype of a product of these with a result."""
    *inputs, out = (np.dtype(each.dtype) for each in operands)
    return np.result_type(accumulator(np.result_type(*inputs)), accumulator(out))


def run_dsd(config, plan, a, b, out, alpha=1, beta=0, conj=(False, False)):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    operands = [here.put(x)._replace(conj=c) for x, c in zip((a, b), conj, strict=True)]
    target = here.put(out)
    R, N = a.shape[-2], b.shape[-1]
    slots = plans.slots(plan)
    partial = here.put(np.zeros((out.shape[0], slots, R, N), config.accumulator))
    tables = here.put_plan(plan)
    alpha, beta = (
        np.asarray(each).astype(config.accumulator)[()] for each in (alpha, beta)
    )
    matmul_dsd_simt.launch(config, tables, *operands, target, partial, alpha, beta, 0)
    return host_copy(target.owner)


def run_sdd(config, plan, x, y, out, alpha=1, beta=0, conj=(False, False)):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    operands = [here.put(x)._replace(conj=c) for x, c in zip((x, y), conj, strict=True)]
    target = here.put(out)
    batch, *block_shape = out.shape
    splits = config.splits if config.splits > 1 else 0
    partial = here.put(np.zeros((batch, splits, *block_shape), config.accumulator))
    tables = here.put_plan(plan)
    alpha, beta = (
        np.asarray(each).astype(config.accumulator)[()] for each in (alpha, beta)
    )
    matmul_sdd_simt.launch(config, tables, *operands, target, partial, alpha, beta, 0)
    return host_copy(target.owner)


def exact_dsd(layout, a, b, result):
    """Return the product with nothing but NumPy, block by block; no alpha, no beta."""
    a, b = widened(a, result), widened(b, result)
    batch, _, heads, _, N = b.shape
    R, C = layout.blocksize
    out = np.zeros((batch, heads, layout.shape[0], N), np.result_type(a, b))
    for block, (head, row, col) in enumerate(stored(layout)):
        rows = b[:, :, head, col * C : (col + 1) * C]
        terms = (a[:, :, block] @ rows).sum(axis=1)
        out[:, head, row * R : (row + 1) * R] += terms
    return out


def exact_sdd(layout, x, y, result):
    """Return the sampled product with nothing but NumPy, block by block."""
    x, y = widened(x, result), widened(y, result)
    R, C = layout.blocksize
    blocks = []
    for head, row, col in stored(layout):
        rows = x[:, :, head, row * R : (row + 1) * R]
        cols = y[:, :, head, :, col * C : (col + 1) * C]
        blocks.append((rows @ cols).sum(axis=1))
    return np.stack(blocks, axis=1)


def check(exact_of, run, plan, config, layout, left, right, out, **more):
    """Run a product and require that it is right; return it."""
    alpha, beta = more.get("alpha", 1), more.get("beta", 0)
    conj_left, conj_right = more.get("conj", (False, False))
    exact_left = left.conj() if conj_left else left
    exact_right = right.conj() if conj_right else right
    exact = exact_of(layout, exact_left, exact_right, out.dtype) * alpha
    magnitude = exact_of(layout, *(np.abs(widened(x)) for x in (left, right)), F64)
    magnitude = magnitude * abs(alpha)
    if beta != 0:
        exact = exact + beta * widened(out)
        magnitude = magnitude + abs(beta) * np.abs(widened(out))
    result = run(config, plan, left, right, out, **more)
    inner = left.shape[1] * (left.shape[-1] * layout.block_cols)
    inner = left.shape[1] * left.shape[-1] if exact_of is exact_sdd else inner
    if result.dtype.kind in "iu":
        exact = exact.astype(result.dtype)
    assert_within(result, exact, magnitude, inner + 2, config.accumulator)
    return result


def check_dsd(layout, a, b, out, config=None, plan=None, **more):
    """Run dsd and require that it is right; return it."""
    if config is None:
        config = simt.simt_dsd(*layout.blocksize, b.shape[-1], sums_of(a, b, out))
    plan = plan or layout.plan
    return check(exact_dsd, run_dsd, plan, config, layout, a, b, out, **more)


def check_sdd(layout, x, y, out, config=None, **more):
    """Run sdd and require that it is right; return it."""
    if config is None:
        sizes = (*layout.blocksize, layout.blocks, x.shape[-1])
        config = simt.simt_sdd(*sizes, sums_of(x, y, out))
    plan = layout.block_plan
    return check(exact_sdd, run_sdd, plan, config, layout, x, y, out, **more)


def dsd_case(rng, layout, N, dtype=F32, batch=1, summed=1, heads=1):
    """Return a, b and an out full of what must not be read."""
    a = values(rng, (batch, summed, layout.blocks, *layout.blocksize), dtype)
    b = values(rng, (batch, summed, heads, layout.shape[1], N), dtype)
    return a, b, unread((batch, heads, layout.shape[0], N), dtype)


def sdd_case(rng, layout, N, dtype=F32, batch=1, summed=1, heads=1):
    """Return x, y and an out full of what must not be read."""
    x = values(rng, (batch, summed, heads, layout.shape[0], N), dtype)
    y = values(rng, (batch, summed, heads, N, layout.shape[1]), dtype)
    return x, y, unread((batch, layout.blocks, *layout.blocksize), dtype)


def unread(shape, dtype):
    """Return an array of NaN, or of the largest integer."""
    dtype = np.dtype(dtype)
    bad = np.iinfo(dtype).max if dtype.kind in "iu" else np.nan
    return np.full(shape, bad, dtype)


def small(blocksize, mask="random"):
    return bs.Layout.from_mask(MASKS[mask], blocksize)


# --------------------------------------------------------------------- dtypes, blocks


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_dtypes(device, rng, dtype):
    layout = small((3, 2))
    check_dsd(layout, *dsd_case(rng, layout, 5, dtype))
    check_sdd(layout, *sdd_case(rng, layout, 5, dtype))


UNLIKE = [
    (np.float16, np.float32, np.float32),
    (np.float32, bfloat16, bfloat16),
    (np.float32, np.float64, np.float16),
    (np.int8, np.float32, np.float32),
    (np.float64, np.complex64, np.complex128),
    (np.int8, np.uint16, np.int64),
]


@pytest.mark.parametrize(("first", "second", "result"), UNLIKE)
def test_operands_of_unlike_dtypes(device, rng, first, second, result):
    layout = small((2, 3))
    a, _, _ = dsd_case(rng, layout, 3, first)
    _, b, _ = dsd_case(rng, layout, 3, second)
    check_dsd(layout, a, b, unread((1, 1, layout.shape[0], 3), result))
    x, _, _ = sdd_case(rng, layout, 3, first)
    _, y, out = sdd_case(rng, layout, 3, second)
    check_sdd(layout, x, y, unread(out.shape, result))


@pytest.mark.parametrize("N", [1, 6])
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=label)
def test_blocksizes(device, rng, blocksize, N):
    layout = small(blocksize, "empty_row_and_column")
    check_dsd(layout, *dsd_case(rng, layout, N))
    check_sdd(layout, *sdd_case(rng, layout, N))


@pytest.mark.parametrize("mask", MASKS)
def test_masks(device, rng, mask):
    layout = small((2, 3), mask)
    check_dsd(layout, *dsd_case(rng, layout, 4))
    if layout.blocks:
        check_sdd(layout, *sdd_case(rng, layout, 4))


def test_the_transposed_product(device, rng):
    layout = small((2, 3))
    transposed = layout.T
    order = layout.transpose_order
    a, b, out = dsd_case(rng, transposed, 4)
    kept = np.empty((1, 1, layout.blocks, *layout.blocksize), F32)
    kept[:, :, order] = a.mT
    config = simt.simt_dsd(*transposed.blocksize, 4, F32)
    result = run_dsd(config, layout.column_plan, kept.mT, b, out)
    exact = exact_dsd(transposed, a, b, F32)
    magnitude = exact_dsd(transposed, np.abs(a), np.abs(b), F32)
    assert_within(result, exact, magnitude, layout.shape[0], F32)


# -------------------------------------------------------------------------- constants

DSD_CONFIGS = {
    "several row tiles": SimtConfig(4, 4, 8, 2, 2, 1, F32),
    "last row tile ragged": SimtConfig(6, 4, 8, 3, 2, 2, F32),
    "a step of half a block": SimtConfig(10, 4, 4, 5, 1, 1, F32),
    "a step of a ragged part": SimtConfig(10, 4, 5, 5, 4, 1, F32),
    "a step of two blocks and padding": SimtConfig(10, 2, 16, 5, 2, 2, F32),
    "more groups than steps": SimtConfig(10, 1, 16, 5, 1, 16, F32),
    "one tile over all": SimtConfig(10, 8, 8, 5, 8, 4, F32),
    "four steps at once": SimtConfig(10, 4, 8, 5, 4, 2, F32, k_run=4),
    "two steps at once": SimtConfig(10, 8, 12, 5, 4, 2, F32, k_run=2),
}


@pytest.mark.parametrize("name", DSD_CONFIGS)
def test_dsd_constants(device, rng, name):
    # C = 7 divides nothing; N = 11 ends within a tile; a row of four, empty ones.
    layout = small((10, 7), "one_full_row")
    check_dsd(layout, *dsd_case(rng, layout, 11), DSD_CONFIGS[name])


SDD_CONFIGS = {
    "several tiles": SimtConfig(4, 4, 8, 2, 2, 1, F32),
    "last tiles ragged": SimtConfig(6, 4, 4, 3, 2, 1, F32),
    "rows and columns to spare": SimtConfig(12, 8, 8, 3, 2, 2, F32),
    "more groups than steps": SimtConfig(10, 8, 8, 5, 4, 16, F32),
    "cut in three": SimtConfig(10, 8, 4, 5, 4, 1, F32, splits=3),
    "four steps at once": SimtConfig(10, 8, 8, 5, 4, 2, F32, k_run=4),
    "two steps at once, cut": SimtConfig(10, 8, 4, 5, 4, 2, F32, splits=2, k_run=2),
    "cut in more parts than there are": SimtConfig(10, 8, 8, 5, 4, 2, F32, splits=4),
}


@pytest.mark.parametrize("name", SDD_CONFIGS)
def test_sdd_constants(device, rng, name):
    layout = small((10, 7))
    check_sdd(layout, *sdd_case(rng, layout, 11), SDD_CONFIGS[name])


@pytest.mark.parametrize("splits", [1, 3])
def test_sdd_without_an_inner_dimension(device, rng, splits):
    layout = small((2, 3))
    config = SimtConfig(2, 4, 4, 2, 4, 1, F32, splits)
    check_sdd(layout, *sdd_case(rng, layout, 0), config)


@pytest.mark.parametrize("sums", [F32, F64, np.dtype(np.complex128)], ids=str)
def test_what_choose_picks_fits_shared_memory(sums):
    sizes = [*range(1, 41), 48, 63, 64, 65, 96, 100, 127, 128, 200, 512]
    for R in sizes:
        for C in sizes:
            for N in (1, 3, 8, 17, 64, 100, 8192):
                config = simt.simt_dsd(R, C, N, sums)
                assert config.tile_n <= N
                check_constants(config, config.tile_m, R)
            for N in (0, 1, 100, 8192):
                config = simt.simt_sdd(R, C, 5, N, sums)
                check_constants(config, config.tile_m, R)
                check_constants(config, config.tile_n, C)
                assert (config.splits - 1) * config.tile_k < max(N, 1)


def check_constants(config, tile, size):
    """Require what the kernels take for granted."""
    threads = config.tile_m // config.thread_m * (config.tile_n // config.thread_n)
    threads *= config.groups
    assert threads & (threads - 1) == 0
    assert threads <= 128
    assert config.tile_k % config.groups == 0
    assert config.tile_m % config.thread_m == config.tile_n % config.thread_n == 0
    assert config.thread_m * config.thread_n * config.accumulator.itemsize <= 256
    # The last tile has work.
    assert (-(-size // tile) - 1) * tile < size


def test_a_long_sum_is_cut_by_its_shape_alone():
    config = simt.simt_sdd(16, 16, 1, 100_000, F32)
    assert config.splits > 100
    assert simt.simt_sdd(16, 16, 100_000, 100_000, F32).splits == 1


# -------------------------------------------------------------------- leading axes


def test_heads(device, rng):
    stack = bs.LayoutStack.from_mask(
        np.stack([MASKS["random"], MASKS["last_corner"]]), (2, 3)
    )
    check_dsd(stack, *dsd_case(rng, stack, 4, heads=2))
    check_sdd(stack, *sdd_case(rng, stack, 4, heads=2))


def test_batched_and_summed_axes(device, rng):
    layout = small((2, 3))
    check_dsd(layout, *dsd_case(rng, layout, 4, batch=2, summed=3))
    check_sdd(layout, *sdd_case(rng, layout, 4, batch=2, summed=3))


def test_broadcast_axes(device, rng):
    layout = small((2, 3))
    a, b, out = dsd_case(rng, layout, 4, batch=2, summed=3)
    a = np.broadcast_to(a[:1, :1], a.shape)
    check_dsd(layout, a, b, out)
    x, y, out = sdd_case(rng, layout, 4, batch=2, summed=3)
    y = np.broadcast_to(y[:, :1], y.shape)
    check_sdd(layout, x, y, out)


# --------------------------------------------------------------------------- strides


STRIDES = ["transposed", "reversed", "every_second", "broadcast_columns"]


@pytest.mark.parametrize("kind", STRIDES)
def test_strides(device, rng, kind):
    layout = small((5, 3))
    a, b, out = dsd_case(rng, layout, 6)
    check_dsd(layout, strided(a, kind), strided(b, kind), out)
    x, y, sampled = sdd_case(rng, layout, 6)
    check_sdd(layout, strided(x, kind), strided(y, kind), sampled)
    if kind != "broadcast_columns":
        check_dsd(layout, a, b, strided(out, kind))
        check_sdd(layout, x, y, strided(sampled, kind))


@pytest.mark.parametrize("N", [1, 5, 16])
def test_what_lies_beside_an_operand_is_not_read(device, rng, N):
    layout = small((5, 3))

    def beside_nan(x):
        wide = unread([size + 3 for size in x.shape], x.dtype)
        inside = tuple(slice(1, size + 1) for size in x.shape)
        wide[inside] = x
        return wide[inside]

    check_dsd(layout, *map(beside_nan, dsd_case(rng, layout, N)))
    check_sdd(layout, *map(beside_nan, sdd_case(rng, layout, N)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_stored_does_not_leak(device, rng, bad):
    # Block row 1 stores blocks 1 and 3 only, so rows of b under 0 and 2 are not its.
    layout = small((2, 3))
    a, b, out = dsd_case(rng, layout, 4)
    b[..., :3, :] = bad
    config = simt.simt_dsd(2, 3, 4, F32)
    result = run_dsd(config, layout.plan, a, b, out)
    assert not np.isfinite(result[..., :2, :]).any()
    assert np.isfinite(result[..., 2:4, :]).all()


# --------------------------------------------------------------- alpha, beta, conj


@pytest.mark.parametrize(
    "dtype", [F32, bfloat16, np.complex64, np.int8, np.uint8], ids=str
)
def test_alpha_and_beta(device, rng, dtype):
    layout = small((2, 3), "empty_row_and_column")
    alpha, beta = (3, -2) if np.dtype(dtype).kind in "iu" else (0.5, -1.5)
    a, b, _ = dsd_case(rng, layout, 4, dtype)
    out = values(rng, (1, 1, layout.shape[0], 4), dtype)
    check_dsd(layout, a, b, out, alpha=alpha, beta=beta)
    x, y, sampled = sdd_case(rng, layout, 4, dtype)
    sampled = values(rng, sampled.shape, dtype)
    check_sdd(layout, x, y, sampled, alpha=alpha, beta=beta)


def test_complex_alpha(device, rng):
    layout = small((2, 3))
    check_dsd(layout, *dsd_case(rng, layout, 4, np.complex64), alpha=0.5 - 2j)


@pytest.mark.parametrize("conj", [(True, False), (False, True)])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.float32], ids=str)
def test_conjugated_operands(device, rng, conj, dtype):
    layout = small((2, 3))
    check_dsd(layout, *dsd_case(rng, layout, 4, dtype), conj=conj)
    check_sdd(layout, *sdd_case(rng, layout, 4, dtype), conj=conj)


# -------------------------------------------------------------------------- two passes


@pytest.fixture
def cut_rows(monkeypatch):
    """Cut every row of more than two entries."""
    monkeypatch.setattr(plans, "segment_limit", lambda lengths, depth: 2)


@pytest.mark.parametrize("dtype", [F32, np.float16, np.complex64, np.uint8], ids=str)
@pytest.mark.parametrize("mask", ["one_full_row", "power_law"])
def test_rows_in_segments(device, rng, cut_rows, mask, dtype):
    layout = small((2, 3), mask)
    assert plans.slots(layout.plan) >= 2
    a, b, out = dsd_case(rng, layout, 5, dtype, batch=2)
    check_dsd(layout, a, b, out)
    out = values(rng, out.shape, dtype)
    check_dsd(layout, a, b, out, alpha=3, beta=2)


def test_segments_of_heads(device, rng, cut_rows):
    stack = bs.LayoutStack.from_mask(
        np.stack([MASKS["random"], MASKS["one_full_row"]]), (2, 3)
    )
    check_dsd(stack, *dsd_case(rng, stack, 4, heads=2))


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int8], ids=str)
def test_a_cut_inner_dimension(device, rng, dtype):
    layout = small((2, 3))
    sums = accumulator(np.dtype(dtype))
    config = SimtConfig(2, 4, 4, 2, 2, 2, sums, splits=3)
    x, y, out = sdd_case(rng, layout, 11, dtype, batch=2, summed=2)
    check_sdd(layout, x, y, out, config)
    out = values(rng, out.shape, dtype)
    check_sdd(layout, x, y, out, config, alpha=2, beta=3)


def test_more_elements_than_a_cta_of_the_second_pass(device, rng):
    here = OnDevice()
    parts = values(rng, (2, 3, 2, 17, 19), F32)
    out = here.put(unread((2, 2, 17, 19), F32))
    assert sum_partials_simt.THREADS < 17 * 19
    partial = here.put(parts)
    sum_partials_simt.launch_blocks(partial, out, F32.type(1), F32.type(0), 0)
    in_order = parts[:, 0] + parts[:, 1] + parts[:, 2]
    np.testing.assert_array_equal(host_copy(out.owner), in_order)


# ------------------------------------------------------------------------ determinism


@pytest.mark.simulator
def test_the_same_bits_whatever_runs_first(rng):
    layout = small((8, 5))
    a, b, out = dsd_case(rng, layout, 7)
    x, y, sampled = sdd_case(rng, layout, 40)
    dsd = simt.simt_dsd(8, 5, 7, F32)
    sdd = SimtConfig(8, 8, 8, 4, 4, 4, F32, splits=3)
    from numba_bs.cuda.simulator import schedule

    results = []
    for order in ("first", "last", 7):
        with schedule(order=order):
            results.append(
                run_dsd(dsd, layout.plan, a, b, out).tobytes()
                + run_sdd(sdd, layout.block_plan, x, y, sampled).tobytes()
            )
    assert len(set(results)) == 1


# ----------------------------------------------------------------------- elementwise


def run_elementwise(operation, x, y, out, alpha, beta=0, conj=False):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    source, target = here.put(x)._replace(conj=conj), here.put(out)
    other = None if y is None else here.put(y)
    elementwise_simt.launch(operation, source, other, target, alpha, beta, 0)
    return host_copy(target.owner)


@pytest.mark.parametrize("shape", [(7,), (300,), (5, 3), (2, 3, 5), (0, 3)], ids=str)
@pytest.mark.parametrize("operation", elementwise_simt.OPERATIONS)
def test_elementwise(device, rng, operation, shape):
    x, y, out = values(rng, shape, F32), values(rng, shape, F32), unread(shape, F32)
    alpha, beta = F32.type(3), F32.type(-2)
    second = None if operation == "scale" else y
    result = run_elementwise(operation, x, second, out, alpha, beta)
    x, y = widened(x), widened(y)
    exact = {"scale": 3 * x, "multiply": 3 * x * y, "axpby": 3 * x - 2 * y}[operation]
    magnitude = np.abs(3 * x) + np.abs(2 * y) if operation == "axpby" else np.abs(exact)
    assert_within(result, exact, magnitude, 2, F32)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_elementwise_dtypes(device, rng, dtype):
    x = strided(values(rng, (3, 4), dtype), "transposed")
    sums = accumulator(dtype)
    out = unread((3, 4), dtype)
    result = run_elementwise("multiply", x, x[::-1], out, sums.type(2))
    with np.errstate(over="ignore"):
        exact = 2 * widened(x) * widened(x[::-1])
    if dtype.kind in "iu":
        exact = exact.astype(dtype)
    assert_within(result, exact, np.abs(exact), 3, sums)


@pytest.mark.parametrize("target", [np.complex64, np.complex128], ids=str)
def test_elementwise_conjugates_and_casts(device, rng, target):
    x = values(rng, (5,), np.complex64)
    sums = np.dtype(target)
    result = run_elementwise("scale", x, None, unread(5, target), sums.type(1), 0, True)
    np.testing.assert_array_equal(result, x.conj().astype(target))


def test_bfloat16_is_rounded_to_nearest_even(device):
    # Halves between neighbours, a carry into the exponent, overflow, NaN, subnormals.
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3FFFFFFF, 0x7F7FFFFF, 0x7FC00001, 0x80000001, 0],
        np.uint32,
    )
    x = bits.view(np.float32)
    result = run_elementwise("scale", x, None, unread(7, bfloat16), F32.type(1))
    np.testing.assert_array_equal(
        result.astype(np.float32), x.astype(bfloat16).astype(np.float32)
    )


# ----------------------------------------------------------------------------- gather


@pytest.mark.parametrize("dtype", [np.float64, bfloat16, np.complex64], ids=str)
def test_gather_blocks(device, rng, dtype):
    here = OnDevice()
    x = values(rng, (2, 5, 8, 7), dtype).mT
    order = rng.permutation(5).astype(np.int32)
    out = here.put(unread(x.shape, dtype))
    gather_blocks_simt.launch(here.put(order), here.put(x), out, 0)
    np.testing.assert_array_equal(host_copy(out.owner), x[:, order])
