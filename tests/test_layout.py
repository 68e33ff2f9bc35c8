"""Layouts and stacks of layouts: construction, identity, immutability, errors."""

import copy
import pickle
import time

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numba_bs as bs
from numba_bs import Layout, LayoutStack, canonicalise, patterns

INDEX_TYPES = ["int16", "int32", "int64", "uint8", "uint32", "uint64"]

# Without block rows, without block columns, with empty ones, with no block at all.
masks = hnp.arrays(bool, st.tuples(st.integers(0, 7), st.integers(0, 7)))
stacks = hnp.arrays(
    bool, st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 5))
)
sides = st.integers(1, 5)
blocksizes = st.tuples(sides, sides)
examples = settings(max_examples=100, deadline=None)


def values(shape):
    """Eighths that repeat: sums of products of them are exact."""
    r, c = np.indices(shape)
    return ((7 * r + 3 * c) % 11 - 5) / 8


def small_layout():
    return Layout.from_mask([[1, 0, 1], [0, 0, 0], [0, 1, 1]], (2, 3))


# ------------------------------------------------------------ construction


@given(masks, blocksizes)
@examples
def test_from_mask(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    rows, cols = mask.shape
    R, C = blocksize
    assert layout.shape == (rows * R, cols * C)
    assert layout.blocksize == (R, C)
    assert (layout.block_rows, layout.block_cols) == (rows, cols)
    assert layout.blocks == mask.sum()
    assert layout.density == (mask.mean() if mask.size else 0)
    assert layout.indptr.dtype == layout.indices.dtype == np.int32
    np.testing.assert_array_equal(layout.mask(), mask)
    np.testing.assert_array_equal(layout.coordinates(), np.nonzero(mask))
    csr = scipy.sparse.csr_array(mask)
    np.testing.assert_array_equal(layout.indptr, csr.indptr)
    np.testing.assert_array_equal(layout.indices, csr.indices)


@given(masks, blocksizes)
@examples
def test_constructor_takes_back_its_own_arrays(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    again = Layout(layout.indptr, layout.indices, layout.shape, layout.blocksize)
    assert again == layout


def test_blocksize_may_be_one_int():
    assert Layout.from_mask([[1]], 4) == Layout.from_mask([[1]], (4, 4))
    assert Layout([0, 1], [0], (4, 4), np.int64(4)).blocksize == (4, 4)


def test_arrays_are_copied():
    indptr, indices = np.array([0, 1, 2], np.int32), np.array([1, 0], np.int32)
    layout = Layout(indptr, indices, (2, 2), 1)
    indices[0] = 7
    indptr[1] = 9
    assert layout.indices.tolist() == [1, 0]
    assert layout.indptr.tolist() == [0, 1, 2]
    assert indices.flags.writeable
    assert indptr.flags.writeable


@given(masks, blocksizes)
@examples
def test_from_scipy(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    data = np.ones((layout.blocks, *blocksize))
    arrays = data, layout.indices, layout.indptr
    a = scipy.sparse.bsr_array(arrays, shape=layout.shape)
    assert Layout.from_scipy(a) == layout


def test_from_scipy_sorts_and_merges_and_leaves_the_input():
    data = np.arange(12.0).reshape(3, 2, 2)
    a = scipy.sparse.bsr_array((data, [1, 0, 1], [0, 3]), shape=(2, 4))
    layout = Layout.from_scipy(a)
    assert layout.indices.tolist() == [0, 1]
    assert a.indices.tolist() == [1, 0, 1]


@given(masks, blocksizes)
@examples
def test_transposed(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    assert Layout.from_mask(mask.T, blocksize[::-1]) == layout.T
    assert layout.T.T is layout
    # Block b of the transposed layout lies at transpose_order[b] in the values.
    place = np.full(mask.shape, -1)
    place[layout.coordinates()] = np.arange(layout.blocks)
    rows, cols = layout.T.coordinates()
    np.testing.assert_array_equal(layout.transpose_order, place[cols, rows])


def test_repr_says_what_it_is():
    expected = "Layout(shape=(6, 9), blocksize=(2, 3), blocks=4, density=0.444)"
    assert repr(small_layout()) == expected
    stack = LayoutStack([small_layout(), small_layout()])
    assert "heads=2" in repr(stack)
    assert "blocks=8" in repr(stack)


# ------------------------------------------------------------ canonical form


@given(masks, blocksizes, st.data())
@examples
def test_canonicalise_adds_up_what_is_given_twice(mask, blocksize, data):
    rows, cols = mask.shape
    given_ = [
        data.draw(st.lists(st.integers(0, cols - 1), max_size=6)) if cols else []
        for _ in range(rows)
    ]
    indptr = np.cumsum([0] + [len(row) for row in given_])
    indices = np.array([col for row in given_ for col in row], np.int64)
    shape = rows * blocksize[0], cols * blocksize[1]
    before = indices.copy()
    layout, order = canonicalise(indptr, indices, shape, blocksize)
    np.testing.assert_array_equal(indices, before)

    weights = 2.0 ** np.arange(len(indices))  # so that no two sums are the same
    summed = np.zeros(layout.blocks)
    np.add.at(summed, order, weights)
    dense = np.zeros((rows, cols))
    row = np.repeat(np.arange(rows), np.diff(indptr))
    np.add.at(dense, (row, indices), weights)
    np.testing.assert_array_equal(layout.mask(), dense > 0)
    np.testing.assert_array_equal(summed, dense[dense > 0])


@given(masks, blocksizes)
@examples
def test_canonicalise_keeps_what_is_canonical(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    again, order = canonicalise(layout.indptr, layout.indices, layout.shape, blocksize)
    assert again == layout
    np.testing.assert_array_equal(order, np.arange(layout.blocks))


@pytest.mark.parametrize("indices", [[1, 0, 1], [0, 0, 1], [1, 0, 0]])
def test_layout_wants_canonical_input(indices):
    rule = r"Layout: block columns of a row must be sorted and unique.*canonicalise\(\)"
    with pytest.raises(ValueError, match=rule):
        Layout([0, 2, 2, 3], indices[:3], (6, 4), 2)


def test_rows_may_start_where_the_one_before_ended_or_lower():
    # Sorted within each row only, with empty rows first, between and last.
    layout = Layout([0, 0, 2, 2, 4, 5, 5], [1, 2, 0, 2, 2], (6, 3), 1)
    rows, cols = layout.coordinates()
    assert rows.tolist() == [1, 1, 3, 3, 4]
    assert cols.tolist() == [1, 2, 0, 2, 2]


# -------------------------------------------------------------------- stacks


@given(stacks, blocksizes)
@examples
def test_stack_of_masks(mask, blocksize):
    stack = LayoutStack.from_mask(mask, blocksize)
    heads, rows, cols = mask.shape
    assert stack.heads == heads
    assert stack.shape == (rows * blocksize[0], cols * blocksize[1])
    assert (stack.block_rows, stack.block_cols) == (rows, cols)
    assert stack.blocks == mask.sum()
    assert stack.density == (mask.mean() if mask.size else 0)
    np.testing.assert_array_equal(stack.mask(), mask)
    np.testing.assert_array_equal(stack.coordinates(), np.nonzero(mask))
    counts = mask.sum(axis=(1, 2))
    np.testing.assert_array_equal(stack.head_ptr, np.cumsum([0, *counts]))


@given(stacks, blocksizes)
@examples
def test_stack_transposed(mask, blocksize):
    stack = LayoutStack.from_mask(mask, blocksize)
    expected = LayoutStack.from_mask(mask.swapaxes(1, 2), blocksize[::-1])
    assert expected == stack.T
    assert stack.T.T is stack
    place = np.full(mask.shape, -1)
    place[stack.coordinates()] = np.arange(stack.blocks)
    head, rows, cols = stack.T.coordinates()
    np.testing.assert_array_equal(stack.transpose_order, place[head, cols, rows])


@pytest.mark.parametrize(
    ("layouts", "error", "rule"),
    [
        ([], TypeError, "layouts must be one or more Layout objects"),
        ([np.ones((2, 2))], TypeError, "layouts must be one or more Layout objects"),
        (
            [patterns.dense(2, 2, 2), patterns.dense(2, 3, 2)],
            ValueError,
            r"layouts must share shape and blocksize, got .* for head 0 .* for head 1",
        ),
        (
            [patterns.dense(2, 2, 2), patterns.dense(4, 4, 1)],
            ValueError,
            "layouts must share shape and blocksize",
        ),
    ],
)
def test_stack_errors(layouts, error, rule):
    with pytest.raises(error, match=f"LayoutStack: {rule}"):
        LayoutStack(layouts)


# ------------------------------------------------------------------ identity


@given(masks, masks, blocksizes)
@examples
def test_equal_layouts_are_those_of_equal_content(one, other, blocksize):
    a, b = Layout.from_mask(one, blocksize), Layout.from_mask(other, blocksize)
    same = one.shape == other.shape and (one == other).all()
    assert (a == b) == same
    assert (a != b) != same
    copied = Layout.from_mask(one, blocksize)
    assert copied == a
    assert hash(copied) == hash(a)
    assert len({a, copied}) == 1


def test_equality_looks_at_shape_and_blocksize():
    mask = [[1, 0], [0, 1]]
    assert Layout.from_mask(mask, 2) != Layout.from_mask(mask, (2, 1))
    assert Layout.from_mask(mask, 2) != Layout.from_mask(mask, 4)
    # The same arrays in another width.
    assert Layout([0, 1], [0], (2, 4), 2) != Layout([0, 1], [0], (2, 6), 2)


def test_equality_with_other_things():
    layout = small_layout()
    assert layout != "layout"
    assert layout != LayoutStack([layout])
    assert LayoutStack([layout]) != LayoutStack([layout, layout])
    assert LayoutStack([layout]) == LayoutStack([small_layout()])
    assert hash(LayoutStack([layout])) == hash(LayoutStack([small_layout()]))


def test_stacks_of_the_same_blocks_split_otherwise_differ():
    # Head pointers, not only rows of one tall matrix, tell the heads apart.
    two = LayoutStack.from_mask(np.ones((2, 1, 1), bool), 1)
    assert two != LayoutStack.from_mask(np.ones((1, 2, 1), bool), 1)


@given(masks, blocksizes)
@examples
def test_pickled(mask, blocksize):
    layout = Layout.from_mask(mask, blocksize)
    _ = layout.plan, layout.column_plan, layout.T, layout.block_plan
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert not again.indices.flags.writeable
    stack = LayoutStack([layout, layout])
    assert pickle.loads(pickle.dumps(stack)) == stack


def test_plans_are_not_pickled():
    layout = patterns.random(60, 60, 4, density=0.3)
    before = len(pickle.dumps(layout))
    _ = layout.plan, layout.column_plan, layout.T.plan, layout.block_plan
    assert len(pickle.dumps(layout)) == before
    again = pickle.loads(pickle.dumps(layout))
    assert set(vars(again)) == set(vars(Layout.from_mask(layout.mask(), 4)))


def test_copies():
    layout = small_layout()
    assert copy.copy(layout) == layout
    assert copy.deepcopy(layout) == layout


# -------------------------------------------------------------- immutability


@pytest.mark.parametrize("name", ["shape", "blocksize", "indptr", "indices", "new"])
def test_attributes_cannot_be_set(name):
    for thing in (small_layout(), LayoutStack([small_layout()])):
        with pytest.raises(AttributeError, match="is immutable, cannot set"):
            setattr(thing, name, None)


def test_attributes_cannot_be_deleted():
    with pytest.raises(AttributeError, match="is immutable, cannot delete shape"):
        del small_layout().shape


def test_arrays_are_read_only():
    layout = small_layout()
    stack = LayoutStack([layout, layout])
    for thing in (layout, layout.T, stack, stack.T):
        for array in (thing.indptr, thing.indices):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        stack.head_ptr[0] = 1


def test_coordinates_are_read_only():
    # They are tables that kernels walk: whoever wrote into them would send a kernel
    # out of bounds.
    for array in small_layout().coordinates():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_mask_is_the_callers_own():
    layout = small_layout()
    layout.mask()[:] = True
    assert layout.mask().sum() == 4


# --------------------------------------------------------------------- speed


def test_tables_of_a_million_blocks_take_no_python_loop():
    # 50 ms on a fast machine; a loop over the blocks takes several times this bound.
    layout = patterns.random(10_000, 10_000, 16, density=0.01)
    start = time.perf_counter()
    again = Layout(layout.indptr, layout.indices, layout.shape, layout.blocksize)
    _ = again.plan, again.column_plan, again.block_plan
    elapsed = time.perf_counter() - start
    assert again.blocks == 1_000_000
    assert elapsed < 1


def test_equality_of_one_object_reads_nothing():
    layout = patterns.random(10_000, 10_000, 16, density=0.01)
    assert hash(layout) == hash(layout)
    start = time.perf_counter()
    for _ in range(1000):
        assert layout == layout
        hash(layout)
    assert time.perf_counter() - start < 0.1


# ---------------------------------------------------------------------- plot


def test_plot_draws_the_stored_blocks():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    layout = small_layout()
    axes = layout.plot()
    drawn = axes.images[0].get_array()
    np.testing.assert_array_equal(drawn > 0, layout.mask())
    _, own = pyplot.subplots()
    assert layout.plot(own) is own
    assert patterns.random(2000, 900, 3, density=0.01).plot().images
    pyplot.close("all")


@pytest.mark.parametrize("sizes", [(0, 0), (0, 2), (2, 0)])
def test_plot_of_a_layout_without_rows_or_columns(sizes):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    assert patterns.dense(*sizes, 3).plot()  # warnings are errors here
    pyplot.close("all")


# ------------------------------------------------------------- field reports


def test_g01_duplicate_and_unsorted_block_columns():
    data = np.arange(1, 17.0).reshape(4, 2, 2)
    x = np.arange(1, 5.0)
    for dtype in (np.float32, np.float64):
        given_ = data.astype(dtype)
        indices, indptr = np.array([1, 0, 1, 0]), np.array([0, 3, 4])
        before = given_.copy(), indices.copy(), indptr.copy()
        a = bs.bsr_array((given_, indices, indptr), shape=(4, 4))
        np.testing.assert_array_equal(a @ x.astype(dtype), [95, 129, 41, 47])
        np.testing.assert_array_equal(a.T @ x.astype(dtype), [118, 128, 38, 44])
        assert a.layout.indices.tolist() == [0, 1, 0]
        after = given_, indices, indptr
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new)
    layout, order = canonicalise(indptr, indices, (4, 4), 2)
    assert layout == a.layout
    assert order.tolist() == [1, 0, 1, 2]
    with pytest.raises(ValueError, match="sorted and unique"):
        Layout(indptr, indices, (4, 4), 2)


def test_g02_storage_past_the_last_row_pointer():
    data = np.full((6, 2, 2), np.nan)
    data[:3] = np.arange(1, 13.0).reshape(3, 2, 2)
    indptr, indices = [0, 1, 3], [1, 0, 1, 0, 0, 0]
    layout = Layout(indptr, indices, (4, 4), 2)
    assert layout.blocks == 3
    assert layout.indices.tolist() == [1, 0, 1]
    # What is spare need not make sense: it is not looked at.
    assert Layout(indptr, [1, 0, 1, -9, 99, 99], (4, 4), 2) == layout
    a = bs.bsr_array((data, indices, indptr), shape=(4, 4))
    assert a.layout == layout
    assert a.data.shape == (3, 2, 2)
    assert a.nnz == 12
    x = np.arange(1, 5.0)
    np.testing.assert_array_equal(a @ x, [11, 25, 84, 104])
    np.testing.assert_array_equal(a.T @ x, [43, 50, 78, 88])
    grad_a, _ = bs.matmul_backward(np.ones(4), a, x)
    assert grad_a.data.shape == (3, 2, 2)


def test_g04_shape_and_blocksize_contract():
    block = np.ones((1, 2, 2))
    with pytest.raises(ValueError, match="shape must be a multiple of blocksize"):
        bs.bsr_array((5, 4), blocksize=(2, 2))
    with pytest.raises(ValueError, match="shape must be a multiple of blocksize"):
        Layout([0, 0, 0], [], (5, 4), (2, 2))
    with pytest.raises(ValueError, match="data must be 3-dimensional"):
        bs.bsr_array((np.ones((4, 4)), [0], [0, 1, 1]), shape=(4, 4), blocksize=(2, 2))
    with pytest.raises(ValueError, match="mismatching"):
        bs.bsr_array((block, [0], [0, 1, 1]), shape=(4, 4), blocksize=(4, 1))
    with pytest.raises(ValueError, match="blocksize must be at least"):
        bs.bsr_array((4, 4), blocksize=(0, 2))
    with pytest.raises(ValueError, match="blocksize must be at least"):
        Layout([0], [], (0, 2), (0, 2))
    with pytest.raises(ValueError, match=r"block columns must be in 0 \.\.\. 1"):
        bs.bsr_array((block, [5], [0, 1, 1]), shape=(4, 4))
    with pytest.raises(ValueError, match=r"block columns must be in 0 \.\.\. 1"):
        Layout([0, 1, 1], [5], (4, 4), 2)


def test_g04_layer_width_that_the_block_does_not_divide(cases):
    lines = (
        (cases / "files" / "dlmc_rn50_mp95_initial_conv.smtx").read_text().split("\n")
    )
    indptr, indices = (np.array(line.split(), np.int32) for line in lines[1:3])
    ones = np.ones(len(indices), np.float32)
    a = scipy.sparse.csr_array((ones, indices, indptr), shape=(64, 147))
    with pytest.raises(
        ValueError, match=r"shape must be a multiple of blocksize.*\(64, 147\)"
    ):
        bs.bsr_array(a, blocksize=(8, 8))
    assert bs.bsr_array(a, blocksize=(8, 7)).layout.blocks == 119


def test_g13_index_arrays_of_any_integer_type():
    dense = values((4, 6)) * np.kron([[1, 0, 1], [0, 1, 1]], np.ones((2, 2)))
    data = np.stack(
        [dense[0:2, 0:2], dense[0:2, 4:6], dense[2:4, 2:4], dense[2:4, 4:6]]
    )
    x = np.arange(1, 7.0)
    expected = Layout.from_mask([[1, 0, 1], [0, 1, 1]], 2)
    for index in INDEX_TYPES:
        for pointer in INDEX_TYPES:
            indices = np.array([0, 2, 1, 2], index)
            indptr = np.array([0, 2, 4], pointer)
            layout = Layout(indptr, indices, (4, 6), 2)
            assert layout == expected
            assert hash(layout) == hash(expected)
            assert layout.indices.dtype == layout.indptr.dtype == np.int32
            a = bs.bsr_array((data, indices, indptr), shape=(4, 6))
            np.testing.assert_array_equal(a @ x, [-4.375, -0.375, 0.375, -3.125])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bool"])
def test_g13_indices_that_are_no_integers(dtype):
    good, bad = np.array([0, 1]), np.array([0, 1]).astype(dtype)
    for build in (Layout, canonicalise):
        with pytest.raises(TypeError, match=f"indices must hold integers, got {dtype}"):
            build(good, bad[:1], (2, 2), 2)
        with pytest.raises(TypeError, match=f"indptr must hold integers, got {dtype}"):
            build(bad, good[:1], (2, 2), 2)
    with pytest.raises(TypeError, match="indices must hold integers"):
        bs.bsr_array((np.ones((1, 2, 2)), bad[:1], good), shape=(2, 2))


def test_g13_unsigned_indices_do_not_wrap():
    # 0 - 1 of an unsigned type is large: rows that shrink must still be seen.
    with pytest.raises(ValueError, match="indptr must not decrease"):
        Layout(np.array([0, 2, 1], "uint32"), np.array([0, 1], "uint32"), (4, 4), 2)
    with pytest.raises(ValueError, match="sorted and unique"):
        Layout(np.array([0, 2], "uint64"), np.array([1, 0], "uint64"), (2, 4), 2)


def test_g13_indices_past_32_bits_are_not_cut():
    # 2^32 + 1 read as 32 bits is 1, a block column that exists.
    with pytest.raises(ValueError, match="block columns must be in"):
        Layout([0, 1], np.array([2**32 + 1]), (2, 4), 2)
    with pytest.raises(ValueError, match="indptr must end within indices"):
        Layout(np.array([0, 2**32 + 1]), [1], (2, 4), 2)


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float32"])
def test_g24_mask_of_any_type(dtype):
    mask = np.array([[1, 0], [1, 1]]).astype(dtype)
    layout = Layout.from_mask(mask, 2)
    assert layout.indptr.tolist() == [0, 1, 3]
    assert layout.indices.tolist() == [0, 0, 1]
    elements = np.kron(layout.mask(), np.ones((2, 2)))
    a = bs.bsr_array((np.ones((3, 2, 2)), layout))
    np.testing.assert_array_equal(a.toarray(), elements)


def test_g24_any_number_but_zero_marks_a_block():
    mask = np.array([[-1.5, 0.0], [0.25, 7]])
    assert Layout.from_mask(mask, 2) == Layout.from_mask([[1, 0], [1, 1]], 2)
    assert Layout.from_mask([[True, False], [True, True]], 2).blocks == 3


def test_g24_head_axis():
    mask = np.array([[1, 0], [1, 1]])
    one_for_all = Layout.from_mask(mask, 2)
    for heads in (1, 3):
        stacked = np.broadcast_to(mask, (heads, 2, 2))
        stack = LayoutStack.from_mask(stacked, 2)
        assert stack == LayoutStack([one_for_all] * heads)
        with pytest.raises(ValueError, match=r"2-D.*LayoutStack\.from_mask"):
            Layout.from_mask(stacked, 2)
    with pytest.raises(ValueError, match=r"LayoutStack\.from_mask: mask must be 3-D"):
        LayoutStack.from_mask(mask, 2)


def test_g24_element_mask_where_a_block_mask_is_due():
    elements = np.kron([[1, 0], [1, 1]], np.ones((2, 2)))
    rule = r"block level.*\(2, 2\), so of shape \(2, 2\), got \(4, 4\)"
    with pytest.raises(ValueError, match=rule):
        Layout.from_mask(elements, 2, shape=(4, 4))
    assert Layout.from_mask([[1, 0], [1, 1]], 2, shape=(4, 4)).shape == (4, 4)


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize("ndim", [0, 1, 4])
def test_mask_of_wrong_dimension(ndim):
    rule = f"Layout.from_mask: mask must be 2-D, one element per block, got {ndim}-D"
    with pytest.raises(ValueError, match=rule):
        Layout.from_mask(np.ones((1,) * ndim), 2)


@pytest.mark.parametrize(
    ("arguments", "error", "rule"),
    [
        (([0, 1], [0], (2, 2), 2.0), TypeError, "blocksize must be an int or a pair"),
        (([0, 1], [0], (2, 2), "2"), TypeError, "blocksize must be an int or a pair"),
        (
            ([0, 1], [0], (2, 2), (-2, 2)),
            ValueError,
            r"blocksize must be at least \(1, 1\), got \(-2, 2\)",
        ),
        (([0, 1], [0], (2, 2, 2), 2), TypeError, "shape must be a pair of ints"),
        (([0, 1], [0], (2.0, 2), 2), TypeError, "shape must be a pair of ints"),
        (([0, 1], [0], (-2, 2), 2), ValueError, "shape must not be negative"),
        (
            ([0, 1], [0], (4, 2), 2),
            ValueError,
            r"indptr must have block_rows \+ 1 = 3 entries, got 2",
        ),
        (([[0, 1]], [0], (2, 2), 2), ValueError, "indptr must be 1-D"),
        (([0, 1], [[0]], (2, 2), 2), ValueError, "indices must be 1-D"),
        (([1, 1], [0], (2, 2), 2), ValueError, "indptr must start with 0, got 1"),
        (
            ([0, 2, 1], [0, 1], (4, 4), 2),
            ValueError,
            "indptr must not decrease",
        ),
        (
            ([0, 3], [0, 1], (2, 4), 2),
            ValueError,
            r"indptr must end within indices, got indptr\[-1\] = 3 and 2 indices",
        ),
        (
            ([0, 1], [-1], (2, 4), 2),
            ValueError,
            r"block columns must be in 0 \.\.\. 1, got -1",
        ),
        (
            ([0, 1], [0.0], (2, 2), 2),
            TypeError,
            "indices must hold integers, got float",
        ),
    ],
)
def test_wrong_arguments(arguments, error, rule):
    for build in (Layout, canonicalise):
        with pytest.raises(error, match=f"^{build.__name__}: {rule}"):
            build(*arguments)


def test_from_scipy_wants_bsr():
    csr = scipy.sparse.csr_array(np.eye(4))
    rule = r"Layout.from_scipy: a must be a SciPy BSR array, got csr_array; \.tobsr"
    with pytest.raises(TypeError, match=rule):
        Layout.from_scipy(csr)
    with pytest.raises(TypeError, match="got ndarray"):
        Layout.from_scipy(np.eye(4))


def test_more_than_32_bits_are_refused_not_cut():
    # No array of that size is made: the numbers alone are looked at.
    with pytest.raises(NotImplementedError, match=r"at most 2\^31 - 1 blocks"):
        Layout([0, 0], [], (1, 2**31), 1)
