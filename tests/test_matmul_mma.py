"""The mma kernels of dsd and sdd by their own ``launch``, and what they compile to.

Small tiles of one or two warps: the simulator lets threads take turns.
"""

import numpy as np
import pytest
from bounds import assert_within, widened
from patterns import MASKS, strided, values

import numba_bs as bs
from numba_bs import plan as plans
from numba_bs.choose.mma import (
    MmaConfig,
    mma_dsd,
    mma_kind,
    mma_sdd,
    serves_mma_dsd,
    serves_mma_sdd,
)
from numba_bs.dtypes import unit_roundoff

pytest.importorskip("numba.cuda")

from backends import HAVE_GPU, SIMULATED, Device, host_copy
from compile_child import Job, compile_all
from test_compile import AMPERE, ATX, AX, HOPPER, XA, array
from test_matmul_simt import (
    OnDevice,
    dsd_case,
    exact_dsd,
    exact_sdd,
    sdd_case,
    small,
    unread,
)

from numba_bs.cuda import matmul_dsd_mma, matmul_sdd_mma
from numba_bs.cuda.tiles_mma import KINDS

kernels = pytest.mark.skipif(
    not (SIMULATED or HAVE_GPU), reason="no GPU, and no simulator"
)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)

# What an operand may lose relative to itself before it is multiplied. tf32: rounded to
# 11 bits. tf32x3: the second part is rounded to 11 bits of what the first left, 2^-22;
# and 2^-22 is as much as the product of the second parts, which is left out: half of
# it for each operand.
LOST = {"tf32": 2.0**-11, "tf32x3": 1.5 * 2.0**-22}


# --------------------------------------------------------------------------- helpers


def run_dsd(config, plan, a, b, out, alpha=1, beta=0):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    target = here.put(out)
    sums = config.accumulator
    shape = out.shape[0], plans.slots(plan), a.shape[-2], b.shape[-1]
    operands = [here.put(x) for x in (a, b)]
    operands += [target, here.put(np.zeros(shape, sums))]
    factors = sums.type(alpha), sums.type(beta)
    matmul_dsd_mma.launch(config, here.put_plan(plan), *operands, *factors, 0)
    return host_copy(target.owner)


def run_sdd(config, plan, x, y, out, alpha=1, beta=0):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    target = here.put(out)
    sums = config.accumulator
    batch, *block_shape = out.shape
    splits = config.splits if config.splits > 1 else 0
    operands = [here.put(each) for each in (x, y)]
    operands += [target, here.put(np.zeros((batch, splits, *block_shape), sums))]
    factors = sums.type(alpha), sums.type(beta)
    matmul_sdd_mma.launch(config, here.put_plan(plan), *operands, *factors, 0)
    return host_copy(target.owner)


def check(exact_of, run, plan, config, layout, left, right, out, alpha=1, beta=0):
    """Run a product and require that it is right."""
    exact = exact_of(layout, left, right, F64) * alpha
    magnitude = exact_of(layout, *(np.abs(widened(x)) for x in (left, right)), F64)
    magnitude = magnitude * abs(alpha)
    if beta != 0:
        exact = exact + beta * widened(out)
        magnitude = magnitude + abs(beta) * np.abs(widened(out))
    result = run(config, plan, left, right, out, alpha, beta)
    inner = left.shape[1] * left.shape[-1]
    if exact_of is exact_dsd:
        inner *= layout.block_cols
    inner *= 3 if config.kind == "tf32x3" else 1
    # Rounding of operands, as more terms of rounding of the sums.
    lost = (1 + LOST.get(config.kind, 0)) ** 2 - 1
    inner += lost / unit_roundoff(config.accumulator)
    assert_within(result, exact, magnitude, inner + 2, config.accumulator)


def check_dsd(kind, layout, a, b, out, tiles=(16, 16, 16, 16, 16, 3), **more):
    """Run dsd and require that it is right."""
    config = MmaConfig(kind, *tiles)
    check(exact_dsd, run_dsd, layout.plan, config, layout, a, b, out, **more)


def check_sdd(kind, layout, x, y, out, tiles=(16, 16, 32, 16, 16, 3, 2), **more):
    """Run sdd and require that it is right."""
    config = MmaConfig(kind, *tiles)
    check(exact_sdd, run_sdd, layout.block_plan, config, layout, x, y, out, **more)


def along(x, first):
    """Return ``x`` with neighbours in memory along its last axis, or the one before."""
    return x if first else strided(x, "transposed")


ORDERS = [(True, True), (True, False), (False, True), (False, False)]


# ------------------------------------------------------------------- kinds and orders


@kernels
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_dsd(schedule, rng, kind, orders):
    layout = small((16, 16), "empty_row_and_column")
    a, b, out = dsd_case(rng, layout, 17, KINDS[kind].storage)
    check_dsd(kind, layout, along(a, orders[0]), along(b, orders[1]), out)


@kernels
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sdd(schedule, rng, kind, orders):
    layout = small((16, 16), "last_corner")
    x, y, out = sdd_case(rng, layout, 40, KINDS[kind].storage)
    check_sdd(kind, layout, along(x, orders[0]), along(y, orders[1]), out)


RESULTS = [("f16", np.float32), ("bf16", np.float32), ("tf32", np.float16)]


@kernels
@pytest.mark.parametrize(("kind", "result"), RESULTS)
def test_result_of_another_dtype(schedule, rng, kind, result):
    layout = small((16, 16), "last_corner")
    a, b, out = dsd_case(rng, layout, 16, KINDS[kind].storage)
    check_dsd(kind, layout, a, b, strided(out.astype(result), "transposed"))
    x, y, out = sdd_case(rng, layout, 16, KINDS[kind].storage)
    check_sdd(kind, layout, x, y, strided(out.astype(result), "transposed"))


# -------------------------------------------------------------------- blocks, constants

# Block size, columns, tiles.
DSD = {
    "two row tiles": ((32, 16), 16, (16, 16, 16, 16, 16, 2)),
    "two warps down": ((32, 16), 16, (32, 16, 16, 16, 16, 2)),
    "two warps across": ((16, 16), 33, (16, 32, 16, 16, 16, 4)),
    "warps of several fragments": ((32, 16), 32, (32, 32, 16, 32, 32, 2)),
    "a step of two blocks": ((16, 16), 16, (16, 16, 32, 16, 16, 3)),
    "a step of two blocks of 8": ((16, 8), 16, (16, 16, 16, 16, 16, 3)),
    "a step of two blocks and padding": ((16, 24), 16, (16, 16, 64, 16, 16, 3)),
    "a block of three steps": ((16, 48), 16, (16, 16, 16, 16, 16, 5)),
    "a step of three fragments": ((48, 48), 16, (48, 16, 48, 48, 16, 2)),
    "the last step of a block ragged": ((16, 48), 16, (16, 16, 32, 16, 16, 3)),
}


@kernels
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("name", DSD)
def test_dsd_constants(schedule, rng, name, orders):
    blocksize, N, tiles = DSD[name]
    layout = small(blocksize, "one_full_row")
    a, b, out = dsd_case(rng, layout, N, np.float16)
    check_dsd("f16", layout, along(a, orders[0]), along(b, orders[1]), out, tiles)


SDD = {
    "two tiles": ((32, 16), 20, (16, 16, 16, 16, 16, 2, 1)),
    "four warps": ((32, 32), 16, (32, 32, 16, 16, 16, 3, 1)),
    "four groups": ((16, 16), 70, (16, 16, 64, 16, 16, 3, 4)),
    "three fragments": ((16, 48), 33, (16, 48, 16, 16, 48, 2, 1)),
    "cut in three": ((16, 16), 40, (16, 16, 16, 16, 16, 3, 1, 3)),
    "cut in more parts than there are": ((16, 16), 20, (16, 16, 16, 16, 16, 3, 1, 4)),
    "no inner dimension": ((16, 16), 0, (16, 16, 16, 16, 16, 3, 1)),
}


@kernels
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("name", SDD)
def test_sdd_constants(schedule, rng, name, orders):
    blocksize, N, tiles = SDD[name]
    layout = small(blocksize, "tall")
    x, y, out = sdd_case(rng, layout, N, np.float16)
    check_sdd("f16", layout, along(x, orders[0]), along(y, orders[1]), out, tiles)


@kernels
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_what_choose_picks(schedule, rng, kind):
    layout = bs.Layout.from_mask([[True]], (64, 64))
    a, b, out = dsd_case(rng, layout, 66, KINDS[kind].storage)
    config = mma_dsd(64, 64, 66, kind)
    check_dsd(kind, layout, a, b, out, config[1:])
    x, y, out = sdd_case(rng, layout, 66, KINDS[kind].storage)
    config = mma_sdd(64, 64, layout.blocks, 66, kind)
    check_sdd(kind, layout, x, y, out, config[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_constants_fit(kind):
    step, item = KINDS[kind].k_step, KINDS[kind].storage.itemsize
    for R in range(16, 257, 16):
        for C in range(8, 257, 8):
            for N in (16, 17, 100, 8192):
                assert serves_mma_dsd(R, C, N)
                config = mma_dsd(R, C, N, kind)
                assert R % config.tile_m == 0
                assert config.tile_n <= N
                check_constants(config, step, item)
            for N in (0, 1, 100, 8192):
                assert serves_mma_sdd(R, C) == (C % 16 == 0)
                if C % 16:
                    continue
                config = mma_sdd(R, C, 5, N, kind)
                assert R % config.tile_m == C % config.tile_n == 0
                check_constants(config, step, item)
    assert not serves_mma_dsd(8, 16, 64)
    assert not serves_mma_dsd(16, 16, 15)
    assert not serves_mma_sdd(16, 8)


def check_constants(config, step, item):
    """Require what the kernels take for granted."""
    assert config.tile_m % config.warp_m == config.tile_n % config.warp_n == 0
    assert config.warp_m % 16 == config.warp_n % 16 == 0
    assert config.tile_k % (step * config.groups) == 0
    warps = config.tile_m // config.warp_m * (config.tile_n // config.warp_n)
    assert warps * config.groups in (1, 2, 4, 8)
    assert config.warp_m * config.warp_n * max(item, 4) <= 128 * 128
    assert 2 <= config.stages <= 4
    lines = config.tile_m + config.tile_n
    assert config.stages * lines * config.tile_k * item <= 99 * 1024


def test_kinds():
    f16, bf16 = np.dtype(np.float16), bs.dtypes.bfloat16
    assert mma_kind(f16, f16, F32, None) == "f16"
    assert mma_kind(bf16, bf16, F32, "ieee") == "bf16"
    assert mma_kind(F32, F32, F32, "tf32") == "tf32"
    assert mma_kind(F32, F32, F32, "ieee") is None
    assert mma_kind(F64, F64, F64, "tf32") == "f64"
    assert mma_kind(F64, F64, F64, None, (9, 0)) == "f64wide"
    assert mma_kind(f16, F32, F32, "tf32") is None
    assert mma_kind(f16, f16, F64, None) is None
    assert mma_kind(np.dtype("c8"), np.dtype("c8"), np.dtype("c8"), "tf32") is None


# ---------------------------------------------------------------------------- strides


@kernels
@pytest.mark.parametrize("name", ["reversed", "every_second", "broadcast_columns"])
@pytest.mark.parametrize("kind", ["bf16", "tf32", "f64"])
def test_strides(schedule, rng, kind, name):
    layout = small((16, 16), "tall")
    a, b, out = dsd_case(rng, layout, 16, KINDS[kind].storage)
    check_dsd(kind, layout, strided(a, name), strided(b, name), out)
    x, y, out = sdd_case(rng, layout, 16, KINDS[kind].storage)
    tiles = 16, 16, 16, 16, 16, 2
    check_sdd(kind, layout, strided(x, name), strided(y, name), out, tiles)


@kernels
@pytest.mark.parametrize("N", [16, 18, 19, 20])
@pytest.mark.parametrize("kind", ["bf16", "tf32", "f64"])
def test_rows_of_any_alignment(schedule, rng, kind, N):
    # The widest copy depends on N, and on where the first element lies.
    layout = small((16, 16), "last_corner")
    a, b, out = dsd_case(rng, layout, N, KINDS[kind].storage)
    check_dsd(kind, layout, a, b, out)
    x, y, out = sdd_case(rng, layout, N, KINDS[kind].storage)
    check_sdd(kind, layout, x, along(y, N % 2), out)


@kernels
def test_what_lies_beside_an_operand_is_not_read(schedule, rng):
    layout = small((16, 16), "last_corner")

    def beside_nan(x):
        wide = unread([size + 3 for size in x.shape], x.dtype)
        inside = tuple(slice(1, size + 1) for size in x.shape)
        wide[inside] = x
        return wide[inside]

    for orders in (ORDERS[0], ORDERS[3]):
        a, b, out = dsd_case(rng, layout, 21, np.float16)
        a, b = along(a, orders[0]), along(b, orders[1])
        check_dsd("f16", layout, *map(beside_nan, (a, b, out)))
        x, y, out = sdd_case(rng, layout, 21, np.float16)
        x, y = along(x, orders[0]), along(y, orders[1])
        check_sdd("f16", layout, *map(beside_nan, (x, y, out)))


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_stored_does_not_leak(schedule, rng, kind):
    # Block row 1 stores blocks 1 and 3 only, so rows of b under 0 and 2 are not its.
    # A step of three blocks is not full.
    layout = small((16, 8))
    a, b, out = dsd_case(rng, layout, 16, KINDS[kind].storage)
    b[..., :8, :] = np.nan
    b[..., 16:24, :] = np.nan
    config = MmaConfig(kind, 16, 16, 48, 16, 16, 2)
    result = run_dsd(config, layout.plan, a, b, out)
    assert np.isnan(result[..., :16, :]).all()
    assert np.isfinite(result[..., 16:32, :]).all()


# ---------------------------------------------- leading axes, alpha, beta, two passes


@kernels
@pytest.mark.parametrize("kind", ["f16", "f64"])
def test_leading_axes(schedule, rng, kind):
    dtype = KINDS[kind].storage
    stack = bs.LayoutStack.from_mask(
        np.stack([MASKS["tall"], MASKS["tall"][::-1]]), (16, 16)
    )
    check_dsd(kind, stack, *dsd_case(rng, stack, 16, dtype, heads=2))
    check_sdd(kind, stack, *sdd_case(rng, stack, 16, dtype, heads=2))
    layout = small((16, 16), "last_corner")
    check_dsd(kind, layout, *dsd_case(rng, layout, 16, dtype, batch=2, summed=3))
    check_sdd(kind, layout, *sdd_case(rng, layout, 16, dtype, batch=2, summed=3))


@kernels
@pytest.mark.parametrize("kind", ["bf16", "f64"])
def test_alpha_and_beta(schedule, rng, kind):
    dtype = KINDS[kind].storage
    layout = small((16, 16), "empty_row_and_column")
    a, b, out = dsd_case(rng, layout, 16, dtype)
    out = values(rng, out.shape, dtype)
    check_dsd(kind, layout, a, b, out, alpha=0.5, beta=-1.5)
    x, y, out = sdd_case(rng, layout, 16, dtype)
    out = values(rng, out.shape, dtype)
    check_sdd(kind, layout, x, y, out, alpha=0.5, beta=-1.5)


@kernels
def test_rows_in_segments(schedule, rng, monkeypatch):
    monkeypatch.setattr(plans, "segment_limit", lambda lengths, depth: 2)
    layout = small((16, 16), "one_full_row")
    assert plans.slots(layout.plan) == 2
    a, b, out = dsd_case(rng, layout, 17, np.float16)
    out = values(rng, out.shape, np.float16)
    check_dsd("f16", layout, a, b, out, alpha=3, beta=2)


@kernels
@pytest.mark.simulator
def test_the_same_bits_whatever_runs_first(rng):
    layout = small((16, 16), "tall")
    a, b, out = dsd_case(rng, layout, 32)
    x, y, sampled = sdd_case(rng, layout, 40)
    from numba_bs.cuda.simulator import schedule

    dsd = MmaConfig("tf32", 16, 32, 16, 16, 16, 3)
    sdd = MmaConfig("tf32", 16, 16, 16, 16, 16, 3, 2)
    results = []
    for order in ("first", "last", 7):
        with schedule(order=order):
            results.append(
                run_dsd(dsd, layout.plan, a, b, out).tobytes()
                + run_sdd(sdd, layout.block_plan, x, y, sampled).tobytes()
            )
    assert len(set(results)) == 1


# --------------------------------------------------------------------------- compiled


def dsd_job(kind, blocksize, lie=AX, capability=HOPPER, vectors=(16, 16), out=None):
    """Return the job of dsd with the constants that choose picks."""
    storage, sums = KINDS[kind].storage, KINDS[kind].sums
    config = mma_dsd(*blocksize, 8192, kind)
    args = (*blocksize, *config.tiles, kind, out or storage, *lie, *vectors)
    signature = [array(np.int32, 1)] * 7
    signature += [array(storage, 5)] * 2 + [array(out or storage, 4), array(sums, 4)]
    signature += [str(sums)] * 2
    return Job(matmul_dsd_mma._make_kernel, args, tuple(signature), capability)


def sdd_job(kind, blocksize, lie=XA, capability=HOPPER, vectors=(16, 16)):
    """Return the job of sdd with the constants that choose picks."""
    storage, sums = KINDS[kind].storage, KINDS[kind].sums
    config = mma_sdd(*blocksize, 1000, 8192, kind)
    args = (*blocksize, *config.tiles, config.groups, kind, storage, *lie, *vectors)
    signature = [array(np.int32, 1)] * 3
    signature += [array(storage, 5)] * 2 + [array(storage, 4), array(sums, 5), "int64"]
    signature += [str(sums)] * 2
    return Job(matmul_sdd_mma._make_kernel, args, tuple(signature), capability)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["A @ x", "dW"])
def test_tf32x3_is_as_exact_as_float32_in_a_long_sum(rng, order):
    x, y = (values(rng, shape, F32) for shape in ((64, 8192), (8192, 64)))
    if order == "dW":
        layout = bs.Layout.from_mask(np.ones((1, 1), bool), (64, 64))
        result = Device().run(bs.sddmm, x, y, layout, precision="tf32x3").data[0]
    else:
        a = bs.bsr_array(x, blocksize=(64, 64))
        result = Device().run(bs.matmul, a, y, precision="tf32x3")
    exact = x.astype(F64) @ y.astype(F64)
    # 64 sums in a row would lose 1e-5 in the tensor cores themselves; float32 on its
    # own has 2e-6.
    assert np.linalg.norm(result - exact) < 4e-6 * np.linalg.norm(exact)


# Every second pair of kind and size: all 48 would take minutes.
LIES = (AX, XA, ATX)
COMPILED = {}
for i, kind in enumerate(KINDS):
    for j, size in enumerate((16, 32, 64, 128)):
        if (i + j // 2) % 2:
            continue
        capability = HOPPER if kind == "f64wide" else (HOPPER, AMPERE)[(i + j) % 2]
        for name, job in (("dsd", dsd_job), ("sdd", sdd_job)):
            lie = LIES[(i + j) % 3]
            COMPILED[f"{name}-{kind}-{size}"] = job(kind, (size,) * 2, lie, capability)
COMPILED |= {
    "dsd-f16-48": dsd_job("f16", (48, 48), ATX),
    "dsd-bf16-16x8": dsd_job("bf16", (16, 8), AX, AMPERE, out=F32),
    "dsd-bf16-64-narrow": dsd_job("bf16", (64, 64), XA, HOPPER, (2, 2)),
    "dsd-tf32-32-narrow": dsd_job("tf32", (32, 32), AX, AMPERE, (4, 8)),
    "dsd-f64-64-narrow": dsd_job("f64", (64, 64), ATX, HOPPER, (8, 8)),
    "sdd-bf16-96x48": sdd_job("bf16", (96, 48), AX),
    "sdd-tf32x3-64-narrow": sdd_job("tf32x3", (64, 64), XA, HOPPER, (4, 8)),
}


@pytest.fixture(scope="module")
def facts():
    """Return what the compiler says of every case: one child process for all."""
    return dict(zip(COMPILED, compile_all(list(COMPILED.values())), strict=True))


@pytest.mark.compile
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(facts, name):
    found = facts[name]
    assert found.spill_bytes == found.stack_bytes == 0
    assert not found.local
    assert 0 < found.registers < 256
    assert found.count("mma.sync") > 0
    *_, kind, _, left_along_k, right_along_k, _, _, _ = COMPILED[name].args
    by_matrix = {16: True, 8: left_along_k or right_along_k}[KINDS[kind].k_step]
    assert (found.count("ldmatrix") > 0) == (by_matrix and "f64" not in kind)
    assert (found.count("cp.async.cg") > 0) == ("narrow" not in name)
