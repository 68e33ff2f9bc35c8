"""sdd on Hopper by its own ``launch``, its plan, and what it compiles to."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
from bounds import assert_within, widened
from patterns import MASKS, make, strided, values
from products import check_matmul_backward, check_sddmm

import numba_bs as bs
from numba_bs import choose
from numba_bs.choose.wgmma_sdd import SampleConfig, of_sdd, wgmma_sdd
from numba_bs.plan import Strips

pytest.importorskip("numba.cuda")

from backends import HAVE_GPU, SIMULATED, Device, host_copy
from compile_child import Job, compile_all
from test_compile import HOPPER, array
from test_matmul_simt import OnDevice, exact_sdd, sdd_case

from numba_bs.cuda import matmul_sdd_wgmma
from numba_bs.cuda.launch import capability

runs = pytest.mark.skipif(
    not (SIMULATED or (HAVE_GPU and capability(0) == (9, 0))),
    reason="no GPU of compute capability 9.0, and no simulator",
)
F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)

# Of each SIDE: warpgroups side by side and one below the other, one part and several.
CONFIGS = {
    16: SampleConfig(16, 1, 64, 2, 1, 1, 3, 3),
    32: SampleConfig(32, 1, 64, 2, 1, 2, 3, 2),
    64: SampleConfig(64, 1, 128, 1, 1, 2, 2, 2),
    128: SampleConfig(64, 1, 256, 1, 2, 1, 2, 2),
}
ORDERS = list(itertools.product((True, False), repeat=2))


def run(config, plan, x, y, out, alpha=1, beta=0):
    """Return what ``launch`` makes of host arrays."""
    here = OnDevice()
    target = here.put(out)
    splits = config.splits if config.splits > 1 else 0
    partial = here.put(np.full((len(out), splits, *out.shape[1:]), np.nan, F32))
    operands = here.put(x), here.put(y), target, partial
    tables = here.put_plan(plan)
    matmul_sdd_wgmma.launch(config, tables, *operands, alpha, beta, 0)
    return host_copy(target.owner)


def check(config, layout, x, y, out, alpha=1, beta=0):
    """Run the product and require that it is right."""
    exact = exact_sdd(layout, x, y, F64) * alpha
    magnitude = exact_sdd(layout, *(np.abs(widened(each)) for each in (x, y)), F64)
    magnitude = magnitude * abs(alpha)
    if beta != 0:
        exact = exact + beta * widened(out)
        magnitude = magnitude + abs(beta) * np.abs(widened(out))
    result = run(config, layout.strip_plan(config.strips), x, y, out, alpha, beta)
    assert_within(result, exact, magnitude, x.shape[1] * x.shape[-1] + 2, F32)
    return result


def along_n(x, y, x_along_n, y_along_n):
    """Return both with neighbours in memory along N, or across."""
    x = x if x_along_n else strided(x, "transposed")
    return x, strided(y, "transposed") if y_along_n else y


def small(blocksize, name="random"):
    mask = MASKS[name]
    return bs.Layout.from_mask(mask[:2] if blocksize[0] > 64 else mask, blocksize)


# ---------------------------------------------------------------------- orders, sizes


@runs
@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("size", CONFIGS)
def test_orders(schedule, rng, size, orders):
    layout = small((size, size))
    x, y, out = sdd_case(rng, layout, 136, BF16)
    check(CONFIGS[size], layout, *along_n(x, y, *orders), out)


RECTANGLES = {
    (48, 16): CONFIGS[16],
    (16, 64): CONFIGS[16]._replace(wide=4),
    (32, 96): CONFIGS[32],
    (96, 64): CONFIGS[32]._replace(wide=2),
    (64, 128): CONFIGS[64],
    (128, 64): CONFIGS[128],
    (192, 64): CONFIGS[128],  # a tile of rows ends within a block
}


@runs
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("blocksize", RECTANGLES, ids="{0[0]}x{0[1]}".format)
def test_rectangles(schedule, rng, blocksize, orders):
    layout = small(blocksize)
    x, y, out = sdd_case(rng, layout, 72, F16)
    check(RECTANGLES[blocksize], layout, *along_n(x, y, *orders), out)


@runs
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("N", [8, 64, 104])
def test_any_inner_dimension(schedule, rng, N, orders):
    layout = small((16, 16))
    x, y, out = sdd_case(rng, layout, N, BF16)
    check(CONFIGS[16], layout, *along_n(x, y, *orders), out)


@runs
def test_strips_of_several_blocks(schedule, rng):
    # Wider than a block, and past the last column.
    layout = bs.Layout.from_mask(rng.random((5, 7)) < 0.4, (16, 16))
    x, y, out = sdd_case(rng, layout, 72, BF16)
    check(CONFIGS[16]._replace(wide=4), layout, x, y, out)


@runs
@pytest.mark.parametrize("size", [16, 64, 128])
def test_what_choose_picks(schedule, rng, size):
    layout = small((size, size))
    x, y, out = sdd_case(rng, layout, 1096, BF16)
    config = wgmma_sdd(size, size, layout.blocks, *layout.shape, 1096)
    assert config.splits > 1
    check(config, layout, x, y, out)


# ---------------------------------------------------------------------------- layouts


@runs
@pytest.mark.parametrize("mask", [name for name in MASKS if name != "no_blocks"])
@pytest.mark.parametrize("size", [16, 64])
def test_layouts(schedule, rng, size, mask):
    layout = small((size, size), mask)
    check(CONFIGS[size], layout, *sdd_case(rng, layout, 64, BF16))


@runs
def test_several_tiles_of_a_cta(schedule, rng, monkeypatch):
    monkeypatch.setattr(matmul_sdd_wgmma, "multiprocessors", lambda device: 2)
    layout = bs.Layout.from_mask(rng.random((13, 30)) < 0.4, (16, 16))
    config = CONFIGS[16]
    assert len(layout.strip_plan(config.strips).item_row) > 6
    check(config, layout, *sdd_case(rng, layout, 136, BF16))


# ------------------------------------------------------------ through the operations

BLOCKSIZES = [(16, 16), (32, 32), (64, 64), (128, 128), (48, 16), (32, 96), (128, 64)]


@runs
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_sddmm(schedule, rng, blocksize, orders):
    layout = small(blocksize)
    x = values(rng, (layout.shape[0], 72), BF16)
    y = values(rng, (72, layout.shape[1]), BF16)
    x, y = along_n(x, y, *orders)
    check_sddmm(Device(), x, y, layout, variant="wgmma", alpha=-2)


@runs
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradient_of_the_values(schedule, rng, transposed, lead):
    a = make(rng, MASKS["random"], (32, 32), BF16)
    a = a.T if transposed else a
    x = values(rng, (*lead, a.shape[1], 64), BF16)
    grad = values(rng, (*lead, a.shape[0], 64), BF16)
    check_matmul_backward(Device(), grad, a, x, needs=("a",), variant="wgmma")


# ------------------------------------------------- types, factors, sums, what is unread


@runs
@pytest.mark.parametrize("result", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_dtypes(schedule, rng, dtype, result):
    layout = small((32, 32))
    x, y, out = sdd_case(rng, layout, 64, dtype)
    check(CONFIGS[32], layout, x, y, out.astype(result))


@runs
@pytest.mark.parametrize("splits", [1, 2])
def test_alpha_and_beta(schedule, rng, splits):
    layout = small((16, 16))
    x, y, out = sdd_case(rng, layout, 136, BF16)
    out = strided(values(rng, out.shape, BF16), "transposed")
    config = CONFIGS[16]._replace(splits=splits)
    check(config, layout, x, y, out, alpha=0.5, beta=-2)


@runs
@pytest.mark.parametrize("splits", [3, 5])
@pytest.mark.parametrize("size", [32, 128])
def test_splits(schedule, rng, size, splits):
    # Three chunks: with five splits, two have none.
    layout = small((size, size))
    config = CONFIGS[size]._replace(splits=splits)
    check(config, layout, *sdd_case(rng, layout, 136, BF16))


@runs
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("batch", "summed"), [(1, 3), (3, 1), (2, 2)])
def test_leading_axes(schedule, rng, batch, summed, splits):
    layout = small((16, 16))
    x, y, out = sdd_case(rng, layout, 72, BF16, batch, summed)
    config = CONFIGS[16]._replace(splits=splits)
    check(config, layout, x, y, out)
    # Broadcast: the same x for all products, the same y for all that is summed.
    x, y = np.broadcast_to(x[:1], x.shape), np.broadcast_to(y[:, :1], y.shape)
    check(config, layout, x, y, out)


@runs
@pytest.mark.parametrize("orders", [ORDERS[0], ORDERS[3]], ids=str)
@pytest.mark.parametrize("size", CONFIGS)
def test_what_no_block_needs_does_not_matter(schedule, rng, size, orders):
    layout = small((size, size), "empty_row_and_column")
    x, y, out = sdd_case(rng, layout, 72, BF16)
    mask = layout.mask()
    without = np.repeat(~mask.any(axis=1), size), np.repeat(~mask.any(axis=0), size)
    assert all(each.any() for each in without) or size == 128
    config = CONFIGS[size]
    clean = check(config, layout, *along_n(x, y, *orders), out)
    x[..., without[0], :], y[..., without[1]] = np.nan, np.nan
    plan = layout.strip_plan(config.strips)
    again = run(config, plan, *along_n(x, y, *orders), out)
    np.testing.assert_array_equal(again.view(np.uint16), clean.view(np.uint16))


@runs
def test_nan_stays_in_its_square(schedule, rng):
    layout = bs.Layout.from_mask(np.ones((4, 4), bool), (16, 16))
    x, y, out = sdd_case(rng, layout, 72, BF16)
    x[..., 21, 5] = y[..., 9, 40] = np.nan
    result = run(CONFIGS[16], layout.strip_plan(CONFIGS[16].strips), x, y, out)
    expected = np.zeros((64, 64), bool)
    expected[21], expected[:, 40] = True, True
    row, col = layout.coordinates()
    blocks = expected.reshape(4, 16, 4, 16)[row, :, col]
    np.testing.assert_array_equal(np.isnan(result[0].astype(F32)), blocks)


@runs
@pytest.mark.simulator
def test_the_same_bits_whatever_runs_first(rng):
    from numba_bs.cuda.simulator import schedule

    layout = small((32, 32))
    case = sdd_case(rng, layout, 200, BF16)
    config = CONFIGS[32]._replace(splits=2)
    results = set()
    for order in ("first", "last", 7):
        with schedule(order=order):
            results.add(run(config, layout.strip_plan(config.strips), *case).tobytes())
    assert len(results) == 1


# --------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("wide", [1, 2])
@pytest.mark.parametrize("ctas", [1, 5, 132])
@pytest.mark.parametrize("density", [0.02, 0.4, 1])
def test_plan_has_every_square_once(rng, density, ctas, wide, by_place):
    layout = bs.Layout.from_mask(rng.random((13, 11)) < density, (32, 48))
    plan = layout.strip_plan(Strips(64, 16, wide, 2, 6, ctas, by_place))
    covered = np.zeros(len(plan.strip_col), int)
    squares = set()
    row, col = layout.coordinates()
    for first_row, first, count in zip(*plan[:3], strict=True):
        assert 0 < count <= 6
        covered[first : first + count] += 1
        for strip in range(first, first + count):
            for place, block in enumerate(plan.strip_block[strip].tolist()):
                if block < 0:
                    continue
                m = first_row + place // wide * 16 - row[block] * 32
                n = plan.strip_col[strip] + place % wide * 16 - col[block] * 48
                assert 0 <= m < 32
                assert 0 <= n < 48
                squares.add((block, int(m), int(n)))
    assert (covered == 1).all()
    assert len(squares) == (plan.strip_block >= 0).sum() == layout.blocks * 6
    # Rounds of CTAs, the longest items first or the first runs of all tiles.
    whole = len(plan.item_count) // ctas * ctas
    units = -(-plan.item_count // 2)
    assert (np.diff(units[whole:]) <= 0).all()
    if by_place:
        first = {r: plan.item_first[plan.item_row == r].min() for r in plan.item_row}
        place = plan.item_first - [first[row] for row in plan.item_row]
        assert (np.diff(place[:whole]) >= 0).all()
    else:
        assert (np.diff(units[:whole]) <= 0).all()


def test_the_last_round_is_shared():
    layout = bs.Layout.from_mask(np.ones((5, 8), bool), (64, 64))
    plan = layout.strip_plan(Strips(64, 64, 1, 2, 8, 4, False))
    assert plan.item_count.tolist() == [8, 8, 8, 8, 2, 2, 2, 2]


def test_constants_fit():
    for R, C in itertools.product(range(16, 273, 16), repeat=2):
        for blocks, N in ((1, 64), (7, 5000), (100_000, 8192)):
            config = wgmma_sdd(R, C, blocks, 60 * R, 70 * C, N)
            assert R % config.side == C % config.side == 0
            assert C % (config.side * config.wide) == 0
            assert config.width * config.parts <= 384
            assert config.strips.most <= 32
            assert 2 <= config.loaders <= config.stages
            assert 1 <= config.splits <= -(-N // 64)


def product(layout, x, y, out, capability=(9, 0)):
    """Return what choose is asked."""
    operands = [bs.arrays.describe("test", "x", each) for each in (x, y, out)]
    return choose.Sdd([tuple(operands)], 0, F32, None, capability, 227 * 1024)


def test_served_and_refused(rng):
    layout = small((16, 16))
    x, y, out = sdd_case(rng, layout, 64, BF16, batch=2, summed=4)
    assert isinstance(of_sdd(product(layout, x, y, out)), SampleConfig)
    broadcast = np.broadcast_to(x[:1], x.shape)
    assert isinstance(of_sdd(product(layout, broadcast, y, out)), SampleConfig)
    unaligned = sdd_case(rng, layout, 66, BF16)
    refused = {
        "capability 9.0": product(layout, x, y, out, (8, 0)),
        "float16 or bfloat16": product(layout, x.astype(F32), y, out),
        "multiples of 16$": product(layout, x, y, np.zeros((2, 9, 24, 8), BF16)),
        "dimension of 64": product(layout, x[..., :40], y[..., :40, :], out),
        "16 bytes": product(layout, *unaligned),
        "leading axes": product(layout, x[:, :3], y[:, :3], out),
        "no heads": product(layout, *sdd_case(rng, layout, 64, BF16, heads=2)),
    }
    for words, each in refused.items():
        reason = of_sdd(each)
        assert isinstance(reason, str), words
        assert re.search(words, reason), (words, reason)


# -------------------------------------------------------------------------- compiling


def job(size, *, orders=(True, True), dtype="bf16", out=BF16, split=False):
    """Return the job of the constants that choose picks."""
    config = wgmma_sdd(size, size, 10_000, 8192, 8192, 8192)
    constants = config[: config._fields.index("splits")]
    ints = array(np.int32, 1)
    signature = ["TensorMap"] * 2 + [ints] * 4 + [array(np.int32, 2)]
    signature += [array(out, 4), array(F32, 5), *["int64"] * 8, "float32", "float32"]
    args = (dtype, out, *constants, *orders, split)
    return Job(matmul_sdd_wgmma._make_kernel, args, tuple(signature), HOPPER)


@pytest.mark.compile
def test_compiles_without_spills():
    jobs = [job(size) for size in (16, 32, 64, 128)]
    jobs += [job(size, orders=(False, False)) for size in (16, 128)]
    jobs += [job(32, orders=(False, True), dtype="f16", out=F16)]
    jobs += [job(64, orders=(True, False), out=F32), job(128, split=True)]
    for each, facts in zip(jobs, compile_all(jobs), strict=True):
        assert facts.count("wgmma.mma_async") > 0
        assert facts.count("cp.async.bulk.tensor") > 0
        assert (facts.spill_bytes, facts.stack_bytes) == (0, 0), each
        assert facts.registers <= 168, each  # of 384 threads
        assert not facts.local, each
        assert not facts.serialized, each
