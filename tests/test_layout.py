"""Layout, LayoutStack, canonicalise: which blocks are stored."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from patterns import MASKS, stored

import numba_bs as bs

MASK = MASKS["empty_row_and_column"]
HEADS = np.stack([MASK, MASKS["no_blocks"], MASKS["full"]])


# ------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_back(name):
    mask = MASKS[name]
    layout = bs.Layout.from_mask(mask, (2, 3))
    assert (layout.block_rows, layout.block_cols) == mask.shape
    assert layout.shape == (2 * mask.shape[0], 3 * mask.shape[1])
    assert layout.blocks == mask.sum()
    assert layout.density == mask.mean()
    np.testing.assert_array_equal(layout.mask(), mask)
    np.testing.assert_array_equal(layout.coordinates(), np.nonzero(mask))
    np.testing.assert_array_equal(layout.T.mask(), mask.T)
    assert layout.T.T is layout
    assert layout.T.blocksize == (3, 2)
    same = bs.Layout.from_scipy(
        sp.bsr_array(np.kron(mask, np.ones((2, 3))), blocksize=(2, 3))
    )
    assert same == layout


def test_structure_is_what_was_given():
    layout = bs.Layout([0, 2, 2, 3], [0, 3, 1], (6, 12), (2, 3))
    assert layout.indptr.tolist() == [0, 2, 2, 3]
    assert layout.indices.tolist() == [0, 3, 1]
    assert layout.indptr.dtype == layout.indices.dtype == np.int32
    assert repr(layout) == (
        "Layout(shape=(6, 12), blocksize=(2, 3), blocks=3, density=0.25)"
    )
    square = bs.Layout([0, 1], [0], (4, 4), 4)
    assert square.blocksize == (4, 4)


@pytest.mark.parametrize("index", [np.int8, np.int16, np.uint16, np.int64, np.uint64])
def test_index_types(index):
    layout = bs.Layout(
        np.array([0, 2, 2, 3], index), np.array([0, 3, 1], index), (6, 12), (2, 3)
    )
    assert layout == bs.Layout([0, 2, 2, 3], [0, 3, 1], (6, 12), (2, 3))


def test_the_callers_arrays_are_copied():
    indptr, indices = np.array([0, 1], np.int32), np.array([0], np.int32)
    layout = bs.Layout(indptr, indices, (2, 4), 2)
    indices[0] = 1
    indptr[1] = 0
    assert layout.indices.tolist() == [0]
    assert layout.indptr.tolist() == [0, 1]


def test_spare_capacity_is_ignored():
    layout = bs.Layout([0, 1], [0, 77, -3], (2, 4), 2)
    assert layout.blocks == 1


def test_layouts_are_immutable():
    layout = bs.Layout.from_mask(MASK, 2)
    for name in ("indptr", "shape", "anything"):
        with pytest.raises(AttributeError, match="Layout is immutable, cannot set"):
            setattr(layout, name, 1)
    with pytest.raises(AttributeError, match="cannot delete shape"):
        del layout.shape
    for array in (layout.indptr, layout.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_equality_and_hash():
    one, other = (bs.Layout.from_mask(MASK, (2, 3)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    different = [
        bs.Layout.from_mask(MASK, (3, 2)),
        bs.Layout.from_mask(MASKS["full"], (2, 3)),
        bs.Layout.from_mask(MASKS["last_corner"], (2, 3)),
        bs.LayoutStack([one]),
        one.T,
        MASK.tolist(),
        None,
    ]
    for each in different:
        assert one != each
    assert len({one, other, one.T, one.T.T}) == 2
    no_rows = [bs.LayoutStack([bs.Layout([0], [], (0, 4), 2)] * n) for n in (1, 2)]
    assert no_rows[0] != no_rows[1]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_pickles_and_copies(duplicate):
    for layout in (
        bs.Layout.from_mask(MASK, (2, 3)),
        bs.LayoutStack.from_mask(HEADS, 2),
    ):
        _ = layout.plan, layout.column_plan, layout.T  # what is held is left behind
        again = duplicate(layout)
        assert again == layout
        assert again.T == layout.T


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_matrices_without_elements(shape):
    layout = bs.Layout(np.zeros(shape[0] // 2 + 1, int), [], shape, 2)
    assert layout.blocks == layout.density == 0
    assert layout.T.shape == shape[::-1]
    assert layout.mask().shape == (shape[0] // 2, shape[1] // 2)
    assert len(layout.plan.item_row) == shape[0] // 2
    assert len(layout.column_plan.item_row) == shape[1] // 2
    assert hash(layout) == hash(pickle.loads(pickle.dumps(layout)))


def test_stacks():
    stack = bs.LayoutStack.from_mask(HEADS, (2, 3))
    assert stack.heads == 3
    assert stack.blocks == 16
    assert stack.head_ptr.tolist() == [0, 4, 4, 16]
    assert stack.density == 16 / 36
    assert [one.blocks for one in stack.layouts] == [4, 0, 12]
    np.testing.assert_array_equal(stack.mask(), HEADS)
    np.testing.assert_array_equal(stack.coordinates(), np.nonzero(HEADS))
    np.testing.assert_array_equal(stack.T.mask(), HEADS.swapaxes(1, 2))
    assert stack.T.T is stack
    sizes = "heads=3, shape=(6, 12), blocksize=(2, 3), blocks=16, density=0.444"
    assert repr(stack) == f"LayoutStack({sizes})"
    assert list(stored(stack)) == list(zip(*map(list, np.nonzero(HEADS)), strict=True))


def test_canonicalise_adds_up():
    indptr, indices = np.array([0, 4, 4, 6]), np.array([2, 0, 2, 0, 2, 1, 9])
    before = indptr.copy(), indices.copy()
    layout, order = bs.canonicalise(indptr, indices, (6, 6), 2)
    assert layout.indptr.tolist() == [0, 2, 2, 4]
    assert layout.indices.tolist() == [0, 2, 1, 2]
    assert order.tolist() == [1, 0, 1, 0, 3, 2]
    np.testing.assert_array_equal(indptr, before[0])
    np.testing.assert_array_equal(indices, before[1])
    layout, order = bs.canonicalise([0, 2], [0, 1], (2, 4), 2)
    assert order.tolist() == [0, 1]


def test_offsets_beyond_32_bits():
    """The positions of blocks fit 32 bits, block * R * C of them need not."""
    layout = bs.Layout([0, 2], [0, 2**31 - 2], (2, 2 * (2**31 - 1)), 2)
    assert layout.indices.dtype == np.int64
    assert layout.block_cols == 2**31 - 1
    assert layout.plan.entry_col.tolist() == [0, 2**31 - 2]
    with pytest.raises(NotImplementedError, match=r"at most 2\^31 - 1 blocks"):
        bs.Layout([0, 1], [2**31], (2, 2**32 + 2), 2)


# --------------------------------------------------------------------------- errors

BAD = {
    "shape": (
        lambda: bs.Layout([0, 1], [0], (5, 4), 2),
        ValueError,
        r"Layout: shape must be a multiple of blocksize, got shape \(5, 4\)",
    ),
    "negative_shape": (
        lambda: bs.Layout([0], [], (-2, 4), 2),
        ValueError,
        "Layout: shape must not be negative",
    ),
    "shape_is_no_pair": (
        lambda: bs.Layout([0], [], 4, 2),
        TypeError,
        "Layout: shape must be a pair of ints, got 4",
    ),
    "blocksize": (
        lambda: bs.Layout([0], [], (0, 4), (0, 2)),
        ValueError,
        r"Layout: blocksize must be at least \(1, 1\), got \(0, 2\)",
    ),
    "float_indices": (
        lambda: bs.Layout([0, 1], [0.0], (2, 2), 2),
        TypeError,
        "Layout: indices must hold integers, got float64",
    ),
    "float_indptr": (
        lambda: bs.Layout(np.array([0, 1.5]), [0], (2, 2), 2),
        TypeError,
        "Layout: indptr must hold integers, got float64",
    ),
    "two_axes": (
        lambda: bs.Layout([[0, 1]], [0], (2, 2), 2),
        ValueError,
        r"Layout: indptr must be 1-D, got shape \(1, 2\)",
    ),
    "indptr_too_long": (
        lambda: bs.Layout([0, 1, 1], [0], (2, 2), 2),
        ValueError,
        r"Layout: indptr must have block_rows \+ 1 = 2 entries, got 3",
    ),
    "indptr_from_1": (
        lambda: bs.Layout([1, 1], [0], (2, 2), 2),
        ValueError,
        "Layout: indptr must start with 0, got 1",
    ),
    "indptr_decreases_unsigned": (
        lambda: bs.Layout(np.array([0, 2, 1], np.uint32), [0, 1], (4, 4), 2),
        ValueError,
        "Layout: indptr must not decrease",
    ),
    "indptr_past_indices": (
        lambda: bs.Layout([0, 2], [0], (2, 2), 2),
        ValueError,
        "Layout: indptr must end within indices",
    ),
    "column_out_of_range": (
        lambda: bs.Layout([0, 1], [1], (2, 2), 2),
        ValueError,
        "Layout: indices must be block columns in 0 ... 0, got 1 ... 1",
    ),
    "column_wraps": (
        lambda: bs.Layout([0, 1], np.array([2**63 + 1], np.uint64), (2, 4), 2),
        ValueError,
        "Layout: indices must be block columns in 0 ... 1",
    ),
    "unsorted": (
        lambda: bs.Layout([0, 2], [1, 0], (2, 4), 2),
        ValueError,
        r"must be sorted and unique, .*; canonicalise\(\) sorts them",
    ),
    "repeated": (
        lambda: bs.Layout([0, 2], [1, 1], (2, 4), 2),
        ValueError,
        "must be sorted and unique",
    ),
    "mask_1d": (
        lambda: bs.Layout.from_mask([1, 0], 2),
        ValueError,
        "Layout.from_mask: mask must be 2-D, one element per block, got 1-D",
    ),
    "mask_3d": (
        lambda: bs.Layout.from_mask(HEADS, 2),
        ValueError,
        r"got shape \(3, 3, 4\); LayoutStack.from_mask takes one mask per head",
    ),
    "element_mask": (
        lambda: bs.Layout.from_mask(np.ones((4, 4)), 2, shape=(4, 4)),
        ValueError,
        r"mask must be block level, .* so of shape \(2, 2\), got \(4, 4\)",
    ),
    "scipy_csr": (
        lambda: bs.Layout.from_scipy(sp.csr_array(np.eye(2))),
        TypeError,
        r"a must be a SciPy BSR array, got .*csr_array; see",
    ),
    "stack_of_nothing": (
        lambda: bs.LayoutStack([]),
        TypeError,
        "LayoutStack: layouts must be one or more Layout objects",
    ),
    "stack_of_masks": (lambda: bs.LayoutStack([MASK]), TypeError, "Layout objects"),
    "stack_of_blocksizes": (
        lambda: bs.LayoutStack([bs.Layout.from_mask(MASK, b) for b in (2, 3)]),
        ValueError,
        r"must share shape and blocksize, .* for head 0 and .* for head 1",
    ),
    "stack_2d": (
        lambda: bs.LayoutStack.from_mask(MASK, 2),
        ValueError,
        "LayoutStack.from_mask: mask must be 3-D",
    ),
}


@pytest.mark.parametrize(("call", "error", "match"), BAD.values(), ids=list(BAD))
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
