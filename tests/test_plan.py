"""Plans: which work item does what, by invariants and by walking them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numba_bs import Layout, LayoutStack, patterns
from numba_bs.plan import (
    SEGMENT_DEPTH,
    SEGMENT_MEANS,
    BlockPlan,
    RowPlan,
    segment_limit,
    slots,
)

# A block of so many columns may be cut off alone, so that small layouts have long rows.
DEEP = SEGMENT_DEPTH

sides = st.integers(0, 9)
shallow = st.sampled_from([(1, 1), (2, 3)])
blocksizes = st.one_of(shallow, st.sampled_from([(1, DEEP), (DEEP, 1), (DEEP, DEEP)]))
examples = settings(max_examples=120, deadline=None)


@st.composite
def masks(draw, heads=None):
    """Masks (rows, cols) or (heads, rows, cols) with empty, short and full rows."""
    rows, cols = draw(sides), draw(sides)
    lead = () if heads is None else (draw(heads),)
    mask = draw(hnp.arrays(bool, (*lead, rows, cols)))
    # Full and empty rows and columns would be rare.
    for axis, size in ((-2, rows), (-1, cols)):
        for value in (True, False):
            chosen = draw(hnp.arrays(bool, size)) & draw(hnp.arrays(bool, size))
            place = [slice(None)] * mask.ndim
            place[axis] = chosen
            mask[tuple(place)] = value
    return mask


stacks = masks(heads=st.integers(1, 3))


def skewed(rows=40, cols=60):
    """Return a mask with one full row, one full column, and little else."""
    mask = np.eye(rows, cols, dtype=bool)
    mask[3] = True
    mask[:, 5] = True
    mask[7:9] = False
    return mask


def check_items(plan, counts):
    """Check the invariants of a plan over rows with ``counts[head][row]`` entries."""
    counts = np.asarray(counts)
    heads, rows = counts.shape
    entries = counts.sum()
    first = np.concatenate([[0], np.cumsum(counts)])[:-1].reshape(counts.shape)

    # Longest first.
    assert (np.diff(plan.item_count) <= 0).all()

    # Every entry belongs to exactly one item.
    times = np.zeros(entries, int)
    for begin, count in zip(plan.item_first, plan.item_count, strict=True):
        times[begin : begin + count] += 1
    assert (times == 1).all()

    # Every row is made, also one without entries, and items stay in their row.
    made = {}
    items = zip(
        plan.item_head,
        plan.item_row,
        plan.item_first,
        plan.item_count,
        plan.item_slot,
        strict=True,
    )
    for head, row, begin, count, slot in items:
        assert 0 <= head < heads
        assert 0 <= row < rows
        assert begin >= first[head, row]
        assert begin + count <= first[head, row] + counts[head, row]
        made.setdefault((head, row), []).append((begin, count, slot))
    assert len(made) == heads * rows

    splits = {}
    table = plan.split_head, plan.split_row, plan.split_first, plan.split_count
    for head, row, at, count in zip(*table, strict=True):
        assert (head, row) not in splits
        splits[head, row] = range(at, at + count)
    taken = [slot for run in splits.values() for slot in run]
    assert sorted(taken) == list(range(slots(plan)))  # contiguous, none twice
    assert slots(plan) == (plan.item_slot >= 0).sum()

    for place, parts in made.items():
        parts.sort()
        if len(parts) == 1:  # writes the result itself
            assert place not in splits
            assert parts[0][1:] == (counts[place], -1)
            continue
        # In order of their entries the segments of a row fill its slots in order.
        assert [slot for _, _, slot in parts] == list(splits[place])
        assert all(count > 0 for _, count, _ in parts)
        lengths = [count for _, count, _ in parts]
        assert max(lengths) - min(lengths) <= 1


def check_types(plan):
    for name, array in plan._asdict().items():
        assert array.dtype == np.int32, name
        assert array.ndim == 1, name
        assert array.flags.c_contiguous, name
    if isinstance(plan, RowPlan):
        for kind in ("item", "entry", "split"):
            fields = [x for name, x in plan._asdict().items() if name.startswith(kind)]
            assert len({len(x) for x in fields}) == 1, kind


def walk(plan, data, b, out):
    """Do what the kernels do: ``out[head, block_row] = sum of data @ b[head]``.

    data (blocks, R, C), b (heads, block_cols, C, N), out (heads, block_rows, R, N).
    """
    partial = np.full((slots(plan), *out.shape[2:]), np.nan)
    for item in range(len(plan.item_row)):
        head, row = plan.item_head[item], plan.item_row[item]
        begin, count = plan.item_first[item], plan.item_count[item]
        acc = np.zeros(out.shape[2:])
        for entry in range(begin, begin + count):
            acc += data[plan.entry_block[entry]] @ b[head, plan.entry_col[entry]]
        if plan.item_slot[item] < 0:
            out[head, row] = acc
        else:
            partial[plan.item_slot[item]] = acc
    for split in range(len(plan.split_row)):
        at, count = plan.split_first[split], plan.split_count[split]
        head, row = plan.split_head[split], plan.split_row[split]
        out[head, row] = partial[at : at + count].sum(axis=0)
    return out


# ---------------------------------------------------------------- invariants


@given(masks(), blocksizes)
@examples
def test_row_plan(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    plan = layout.plan
    check_types(plan)
    check_items(plan, mask.sum(axis=1)[None])
    np.testing.assert_array_equal(plan.entry_col, layout.indices)
    np.testing.assert_array_equal(plan.entry_block, np.arange(layout.blocks))


@given(masks(), blocksizes)
@examples
def test_column_plan_is_the_plan_of_the_transposed_layout(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    plan, transposed = layout.column_plan, layout.T.plan
    check_types(plan)
    check_items(plan, mask.sum(axis=0)[None])
    for name in RowPlan._fields:
        if name != "entry_block":
            np.testing.assert_array_equal(
                getattr(plan, name), getattr(transposed, name), err_msg=name
            )
    # Entry by entry, down the block columns: the block that lies there in data.
    place = np.full(mask.shape, -1)
    place[layout.coordinates()] = np.arange(layout.blocks)
    cols, rows = np.nonzero(mask.T)
    np.testing.assert_array_equal(plan.entry_col, rows)
    np.testing.assert_array_equal(plan.entry_block, place[rows, cols])


@given(stacks, blocksizes)
@examples
def test_plans_of_a_stack(mask, blocksize):
    stack = LayoutStack.from_mask(mask, blocksize)
    check_types(stack.plan)
    check_items(stack.plan, mask.sum(axis=2))
    _, _, cols = np.nonzero(mask)
    np.testing.assert_array_equal(stack.plan.entry_col, cols)
    np.testing.assert_array_equal(stack.plan.entry_block, np.arange(stack.blocks))

    check_types(stack.column_plan)
    check_items(stack.column_plan, mask.sum(axis=1))
    place = np.full(mask.shape, -1)
    place[stack.coordinates()] = np.arange(stack.blocks)
    head, cols, rows = np.nonzero(mask.swapaxes(1, 2))
    np.testing.assert_array_equal(stack.column_plan.entry_col, rows)
    np.testing.assert_array_equal(
        stack.column_plan.entry_block, place[head, rows, cols]
    )


@given(stacks, blocksizes)
@examples
def test_block_plan(mask, blocksize):
    stack = LayoutStack.from_mask(mask, blocksize)
    check_types(stack.block_plan)
    head, row, col = np.nonzero(mask)
    expected = BlockPlan(block_row=row, block_col=col, block_head=head)
    for found, due in zip(stack.block_plan, expected, strict=True):
        np.testing.assert_array_equal(found, due)
    first = stack.layouts[0]
    check_types(first.block_plan)
    rows, cols = np.nonzero(mask[0])
    np.testing.assert_array_equal(first.block_plan.block_row, rows)
    np.testing.assert_array_equal(first.block_plan.block_col, cols)
    assert not first.block_plan.block_head.any()


@given(stacks, st.sampled_from([(1, 1), (2, 3), (3, 2)]), st.integers(0, 2**32))
@examples
def test_walking_the_plans_is_the_product(mask, blocksize, seed):
    # The tables of a deep block, so that rows are cut, walked with blocks of (R, C).
    deep = LayoutStack.from_mask(mask, (DEEP, DEEP))
    heads, rows, cols = mask.shape
    R, C = blocksize
    rng = np.random.default_rng(seed)
    # Small integers: sums are exact in any order.
    data = rng.integers(-4, 5, (deep.blocks, R, C)).astype(float)
    tiles = np.zeros((heads, rows, cols, R, C))
    tiles[deep.coordinates()] = data

    b = rng.integers(-4, 5, (heads, cols, C, 2)).astype(float)
    out = walk(deep.plan, data, b, np.full((heads, rows, R, 2), np.nan))
    np.testing.assert_array_equal(out, np.einsum("hijrc,hjcn->hirn", tiles, b))

    b = rng.integers(-4, 5, (heads, rows, R, 2)).astype(float)
    out = np.full((heads, cols, C, 2), np.nan)
    out = walk(deep.column_plan, data.swapaxes(1, 2), b, out)
    np.testing.assert_array_equal(out, np.einsum("hijrc,hirn->hjcn", tiles, b))


# --------------------------------------------------------------- small ones


def test_plan_written_out():
    layout = Layout.from_mask([[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1]], (2, 4))
    plan = layout.plan
    assert plan.item_row.tolist() == [2, 3, 0, 1]
    assert plan.item_first.tolist() == [1, 4, 0, 1]
    assert plan.item_count.tolist() == [3, 2, 1, 0]
    assert plan.item_slot.tolist() == [-1, -1, -1, -1]
    assert plan.entry_col.tolist() == [0, 0, 1, 2, 1, 2]
    assert plan.split_row.tolist() == []

    plan = layout.column_plan  # columns: rows {0, 2}, {2, 3}, {2, 3}
    assert plan.item_row.tolist() == [0, 1, 2]
    assert plan.item_first.tolist() == [0, 2, 4]
    assert plan.entry_col.tolist() == [0, 2, 2, 3, 2, 3]
    assert plan.entry_block.tolist() == [0, 1, 2, 4, 3, 5]


def test_long_row_is_cut():
    # Two blocks a row on average, one row of 16: with blocks of 1024 columns a work
    # item takes at most max(2048 / 1024, 2 * 2.x rounded up) = 6 of them.
    mask = np.zeros((16, 16), bool)
    mask[5] = True
    mask[:5, :2] = mask[6:, 2:4] = True
    mask[15] = False
    layout = Layout.from_mask(mask, (1, DEEP // 2))
    mean = -(-(16 + 14 * 2) // 15)
    assert segment_limit(mask.sum(axis=1), DEEP // 2) == max(2, SEGMENT_MEANS * mean)
    plan = layout.plan
    assert plan.split_row.tolist() == [5]
    assert plan.split_first.tolist() == [0]
    assert plan.split_count.tolist() == [3]
    cut = plan.item_row == 5
    assert sorted(plan.item_count[cut].tolist()) == [5, 5, 6]
    assert plan.item_slot[cut][np.argsort(plan.item_first[cut])].tolist() == [0, 1, 2]
    assert (plan.item_slot[~cut] == -1).all()
    assert slots(plan) == 3


@pytest.mark.parametrize("blocksize", [(1, 1), (32, 32), (16, DEEP)])
def test_even_rows_are_not_cut(blocksize):
    plan = patterns.banded(64, 64, blocksize, lower=3, upper=3).plan
    assert slots(plan) == 0


def test_cut_depends_on_the_layout_alone():
    layout = Layout.from_mask(skewed(), (1, DEEP))
    again = Layout(layout.indptr, layout.indices, layout.shape, layout.blocksize)
    assert slots(layout.plan) > 0
    for one, other in zip(layout.plan, again.plan, strict=True):
        np.testing.assert_array_equal(one, other)


def test_heads_do_not_change_how_their_rows_are_numbered():
    one = Layout.from_mask(skewed(), (1, DEEP))
    stack = LayoutStack([one, one])
    plan, single = stack.plan, one.plan
    for head in (0, 1):
        mine = plan.item_head == head
        np.testing.assert_array_equal(plan.item_row[mine], single.item_row)
        np.testing.assert_array_equal(plan.item_count[mine], single.item_count)
        first = plan.item_first[mine] - head * one.blocks
        np.testing.assert_array_equal(first, single.item_first)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_nothing_stored(shape):
    layout = Layout.from_mask(np.zeros(shape, bool), (2, 3))
    for plan, rows in ((layout.plan, shape[0]), (layout.column_plan, shape[1])):
        check_types(plan)
        assert plan.item_row.tolist() == list(range(rows))
        assert not plan.item_count.any()
        assert slots(plan) == 0
    assert len(layout.block_plan.block_row) == 0


def test_tables_are_read_only():
    # Whoever wrote into them would send a kernel out of bounds.
    layout = Layout.from_mask(skewed(), (1, DEEP))
    stack = LayoutStack([layout, layout])
    for thing in (layout, layout.T, stack):
        for plan in (thing.plan, thing.column_plan, thing.block_plan):
            for name, array in plan._asdict().items():
                assert not array.flags.writeable, name


def test_plans_are_made_once():
    layout = Layout.from_mask(skewed(), 2)
    assert layout.plan is layout.plan
    assert layout.column_plan is layout.column_plan
    assert layout.block_plan is layout.block_plan
    assert layout.T.plan is layout.T.plan


@pytest.mark.parametrize(
    ("lengths", "depth", "limit"),
    [
        ([], 1, SEGMENT_DEPTH),
        ([0, 0], SEGMENT_DEPTH, 2),  # nothing filled: a mean of 1
        ([1, 1, 4], SEGMENT_DEPTH, 4),  # twice the mean of 2
        ([1, 1, 5], SEGMENT_DEPTH, 6),  # the mean rounded up
        ([0, 0, 0, 4], SEGMENT_DEPTH, 8),  # empty rows do not lower it
        ([1], 3, -(-SEGMENT_DEPTH // 3)),
        ([1], 10 * SEGMENT_DEPTH, 2),
    ],
)
def test_segment_limit(lengths, depth, limit):
    assert segment_limit(np.array(lengths, int), depth) == limit
