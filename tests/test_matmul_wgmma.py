"""dsd on Hopper, through the operation (``variant="wgmma"``); what it compiles to."""

import itertools

import numpy as np
import pytest
from patterns import MASKS, make, strided, values
from products import check_matmul

import numba_bs as bs
from numba_bs.choose import tables, wgmma
from numba_bs.plan import Squares

pytest.importorskip("numba.cuda")

from backends import HAVE_GPU, SIMULATED, Device
from compile_child import Job, compile_all
from test_compile import HOPPER, array

from numba_bs.cuda import matmul_dsd_wgmma
from numba_bs.cuda.launch import capability

runs = pytest.mark.skipif(
    not (SIMULATED or (HAVE_GPU and capability(0) == (9, 0))),
    reason="no GPU of compute capability 9.0, and no simulator",
)
F16, BF16 = np.dtype(np.float16), bs.dtypes.bfloat16
F32 = np.dtype(np.float32)

# One of each SIDE; both rows of squares of a block; rectangular blocks.
BLOCKSIZES = [(16, 16), (32, 32), (64, 64), (128, 128), (48, 16), (32, 64), (64, 128)]


def check(a, b, **more):
    """Require that the product is right, on this rung."""
    return check_matmul(Device(), a, b, variant="wgmma", **more)


def small(rng, blocksize, mask="random", dtype=BF16):
    """Return a sparse operand of few blocks."""
    mask = MASKS[mask]
    mask = mask[:2, :3] if max(blocksize) > 64 else mask
    return make(rng, mask, blocksize, dtype)


# -------------------------------------------------------------------------- orders


@runs
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_left(schedule, rng, blocksize):
    a = small(rng, blocksize)
    check(a, values(rng, (a.shape[1], 72), BF16))


@runs
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_transposed(schedule, rng, blocksize):
    a = small(rng, blocksize)
    check(a.T, values(rng, (a.shape[0], 72), BF16))


@runs
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_right(schedule, rng, blocksize):
    a = small(rng, blocksize)
    check(values(rng, (72, a.shape[0]), BF16), a)


@runs
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_right_transposed(schedule, rng, blocksize):
    a = small(rng, blocksize)
    check(values(rng, (72, a.shape[1]), BF16), a.T)


@runs
@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("out_along_m", [False, True])
def test_every_order_of_operand_and_result(schedule, rng, along_k, out_along_m):
    a = small(rng, (32, 32))
    x = values(rng, (a.shape[1], 72), BF16)
    out = np.zeros((a.shape[0], 72), BF16)
    x = strided(x, "transposed") if along_k else x
    out = strided(out, "transposed") if out_along_m else out
    check(a, x, out=out)


@runs
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids="{0[0]}x{0[1]}".format)
def test_values_whose_columns_are_contiguous(schedule, rng, blocksize, transposed):
    a = small(rng, blocksize)
    a = bs.bsr_array((strided(a.data, "transposed"), a.layout))
    a = a.T if transposed else a
    check(a, values(rng, (a.shape[1], 72), BF16))


# ------------------------------------------------------------------------ layouts


@runs
@pytest.mark.parametrize("mask", [name for name in MASKS if name != "no_blocks"])
@pytest.mark.parametrize("blocksize", [(16, 16), (64, 64)], ids=str)
def test_layouts(schedule, rng, mask, blocksize):
    a = make(rng, MASKS[mask], blocksize, BF16)
    check(a, values(rng, (a.shape[1], 64), BF16))


@runs
def test_groups_that_fill_more_than_one_cta_and_several_tiles(schedule, rng):
    a = make(rng, rng.random((26, 9)) < 0.4, (16, 16), BF16)
    check(a, values(rng, (a.shape[1], 264), BF16))


@runs
@pytest.mark.parametrize("out", [BF16, F32], ids=str)
def test_a_long_row_is_cut_and_summed_in_order(schedule, rng, out):
    mask = np.zeros((36, 160), bool)
    mask[2] = True
    mask[:, 7] = True
    a = make(rng, mask, (16, 16), BF16)
    config = wgmma.wgmma_dsd(16, 16, a.layout.density, False, True, True)
    squares = config.squares
    assert plan_slots(a.layout, squares) > 1
    check(a, values(rng, (a.shape[1], 64), BF16), dtype=out)


def plan_slots(layout, squares):
    return layout.group_plan(squares, False, False).split_count.sum()


# ------------------------------------------------------------ types, factors, results


@runs
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("result", [F16, F32], ids=str)
def test_dtypes(schedule, rng, dtype, result):
    result = dtype if result == F16 else result
    a = small(rng, (16, 32), dtype=dtype)
    check(a, values(rng, (a.shape[1], 64), dtype), dtype=result)


@runs
@pytest.mark.parametrize("factors", [(2, 0), (-1, 1), (0.5, 0.25)], ids=str)
def test_alpha_and_beta(schedule, rng, factors):
    a = small(rng, (32, 32))
    x, out = values(rng, (a.shape[1], 64), BF16), values(rng, (a.shape[0], 64), BF16)
    check(a, x, out=out, alpha=factors[0], beta=factors[1])


@runs
def test_beta_zero_does_not_read_out(schedule, rng):
    a = small(rng, (32, 32))
    out = np.full((a.shape[0], 64), np.nan, BF16)
    check(a, values(rng, (a.shape[1], 64), BF16), out=out)


@runs
@pytest.mark.parametrize("N", [65, 71])
def test_result_of_any_row_length(schedule, rng, N):
    a = small(rng, (32, 32))
    x = strided(values(rng, (a.shape[1], N), BF16), "transposed")
    check(a, x, out=np.zeros((a.shape[0], N), BF16))


@runs
def test_batches(schedule, rng):
    a = make(rng, MASKS["random"], (16, 16), BF16, lead=(2,))
    x = values(rng, (2, a.shape[1], 64), BF16)
    check(a, x)
    check(a, x[0])
    check(small(rng, (16, 16)), x)


@runs
def test_nan_outside_of_the_layout_stays_there(schedule, rng):
    a = make(rng, MASKS["empty_row_and_column"], (16, 16), BF16)
    x = values(rng, (a.shape[1], 64), BF16)
    x[16:48] = np.nan  # the first row has no block there, the others share a tile
    clean = np.where(np.isnan(x.astype(F32)), 0, x.astype(F32)).astype(BF16)
    with_nan = Device().run(bs.matmul, a, x, variant="wgmma")
    without = Device().run(bs.matmul, a, clean, variant="wgmma")
    first = slice(0, 32)
    np.testing.assert_array_equal(
        with_nan[first].view(np.uint16), without[first].view(np.uint16)
    )
    assert np.isnan(with_nan[32:].astype(F32)).all()


@runs
def test_the_same_bits_again(schedule, rng):
    a = small(rng, (64, 64))
    x = values(rng, (a.shape[1], 64), BF16)
    first, second = (Device().run(bs.matmul, a, x, variant="wgmma") for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


# ------------------------------------------------------------------- what it refuses

REFUSED = {
    "blocks": ((8, 8), BF16, 64, "blocks of multiples of 16"),
    "type": ((16, 16), F32, 64, "float16 or bfloat16"),
    "columns": ((16, 16), BF16, 8, "64 columns"),
    "alignment": ((16, 16), BF16, 65, "multiples of 16 bytes"),
}


@runs
@pytest.mark.parametrize("case", REFUSED)
def test_refused(rng, case):
    blocksize, dtype, N, words = REFUSED[case]
    a = small(rng, blocksize, dtype=dtype)
    x = values(rng, (a.shape[1], N), dtype)
    with pytest.raises(NotImplementedError, match=words):
        Device().run(bs.matmul, a, x, variant="wgmma")
    check_matmul(Device(), a, x)  # another rung serves it


# ---------------------------------------------------------------------- the plan


def test_plan_covers_every_square_once(rng):
    mask = rng.random((13, 11)) < 0.4
    mask[3:6] = False
    layout = bs.Layout.from_mask(mask, (32, 48))
    for transposed, turned in itertools.product((False, True), repeat=2):
        squares = Squares(16, 2, 3, 1, 4, 10)
        plan = layout.group_plan(squares, transposed, turned)
        at = set(zip(plan.square_x.tolist(), plan.square_y.tolist(), strict=True))
        assert len(at) == len(plan.square_x) == layout.blocks * 6
        load = np.diff(plan.stage_first)
        assert load.max() <= squares.cap
        first, parts = plan.stage_part & 0xFF, plan.stage_part >> 8 & 0xFF
        assert parts.sum(axis=1).tolist() == load.tolist()
        assert (first == np.cumsum(parts, axis=1) - parts).all()
        # Each item's last stage says so; rows without a block walk an empty stage.
        assert plan.item_count.min() == 1 or transposed
        last = set((plan.item_first + plan.item_count - 1).tolist())
        said = [
            set(np.flatnonzero(part).tolist()) for part in (plan.stage_part >> 16).T
        ]
        assert said == [last] * squares.parts
        assert load[-1] == 0
        assert (plan.stage_col[-1] == -1).all()
        assert np.sort(plan.item_count)[::-1].tolist() == plan.item_count.tolist()


# ------------------------------------------------------------------------ compiling


def job(block, *, density=0.1, lie=(True, False, False), whole=True, split=False):
    """Return the job of the constants that choose picks."""
    _, b_along_k, _ = lie
    config = wgmma.wgmma_dsd(block, block, density, b_along_k, whole, split)
    args = ("bf16", BF16, *config, *lie, split)
    ints, pairs = array(np.int32, 1), array(np.int32, 2)
    signature = ["TensorMap"] * 3 + [ints] * 6 + [pairs] * 2 + [ints] * 3
    signature += [array(BF16, 4), array(F32, 4), *["int64"] * 4, "float32", "float32"]
    return Job(matmul_dsd_wgmma._make_kernel, args, tuple(signature), HOPPER)


@pytest.mark.compile
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_compiles_without_spills(block):
    # All constants that the tables have for this size, in one order of the operands or
    # another; with rows that are cut where sums are stored one by one.
    jobs = [
        job(
            block,
            density=tables.DENSE if dense else 0.1,
            lie=(along_k == whole, along_k, along_k),
            whole=whole,
            split=not whole,
        )
        for size, dense, along_k, whole in tables.DSD
        if size == block
    ]
    orders_and_split = 4
    jobs = list({each.args[:-orders_and_split]: each for each in jobs}.values())
    for each, facts in zip(jobs, compile_all(jobs), strict=True):
        assert facts.count("wgmma.mma_async") > 0
        assert facts.count("cp.async.bulk.tensor") > 0
        assert (facts.spill_bytes, facts.stack_bytes) == (0, 0), each
        assert not facts.local, each
        assert not facts.serialized, each
