"""bsr_array: construction, attributes, conversions, arithmetic, views, pickles."""

import copy
import itertools
import operator
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from backends import EACH
from bounds import assert_within, widened
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns import FLOATS, INTEGERS, MASKS, dense, label, make, values

import numba_bs as bs

bfloat16 = bs.dtypes.bfloat16
MASK = MASKS["empty_row_and_column"]
HEADS = np.stack([MASKS["empty_row_and_column"], MASKS["no_blocks"], MASKS["full"]])
each_backend = pytest.mark.parametrize("backend", EACH)


def same(a, b):
    """Require equal structure and bits."""
    assert a.layout == b.layout
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))


def full(dtype=np.float64):
    """Return a dense (6, 12) array whose blocks of (2, 3) are those of MASK."""
    inside = np.kron(MASK, np.ones((2, 3)))
    return (inside * np.arange(1, 73).reshape(6, 12)).astype(dtype)


# --------------------------------------------------------------------- construction


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
def test_from_a_dense_array(dtype):
    a = bs.bsr_array(full(dtype), blocksize=(2, 3))
    assert a.dtype == dtype
    assert a.shape == (6, 12)
    np.testing.assert_array_equal(a.layout.mask(), MASK)
    np.testing.assert_array_equal(dense(a), widened(full(dtype)))


def test_from_a_dense_array_without_a_blocksize_as_scipy_guesses_it():
    theirs = sp.bsr_array(full())
    assert bs.bsr_array(full()).blocksize == theirs.blocksize
    assert bs.bsr_array(np.zeros((4, 6))).blocksize == (1, 1)
    assert bs.bsr_array(np.kron(np.eye(3), np.ones((2, 2), np.float16))).blocksize == (
        2,
        2,
    )


def test_blocks_of_nan_are_not_taken_for_zeros():
    x = np.zeros((4, 4))
    x[3, 0] = np.nan
    assert bs.bsr_array(x, blocksize=2).layout.mask().tolist() == [
        [False, False],
        [True, False],
    ]


@pytest.mark.parametrize("form", ["bsr", "csr", "csc", "coo", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_from_scipy(form, kind):
    theirs = getattr(sp, f"bsr_{kind}")(full(), blocksize=(2, 3)).asformat(form)
    a = bs.bsr_array(theirs, blocksize=(2, 3))
    np.testing.assert_array_equal(dense(a), full())
    assert a.blocksize == (2, 3)


def test_from_scipy_bsr_shares_the_values():
    theirs = sp.bsr_array(full(), blocksize=(2, 3))
    a = bs.bsr_array(theirs)
    assert a.blocksize == (2, 3)
    assert np.shares_memory(a.data, theirs.data)
    copied = bs.bsr_array(theirs, copy=True)
    assert not np.shares_memory(copied.data, theirs.data)
    same(a, copied)


def test_from_scipy_bsr_with_another_blocksize():
    theirs = sp.bsr_array(full(), blocksize=(2, 3))
    for blocksize in [(1, 1), (2, 2), 3, (6, 12)]:
        a = bs.bsr_array(theirs, blocksize=blocksize)
        assert a.blocksize == tuple(np.broadcast_to(blocksize, 2))
        np.testing.assert_array_equal(dense(a), full())


def test_from_a_bsr_array(rng):
    a = make(rng, MASK, (2, 3))
    b = bs.bsr_array(a)
    same(a, b)
    assert np.shares_memory(a.data, b.data)
    assert not np.shares_memory(bs.bsr_array(a, copy=True).data, a.data)
    turned = bs.bsr_array(a.T)
    np.testing.assert_array_equal(dense(turned), dense(a).T)
    turned.data[...] = 0  # a new array: writable, though the view's values are not
    assert a.data.any()
    split = bs.bsr_array(a, blocksize=1)
    np.testing.assert_array_equal(dense(split), dense(a))


def test_without_blocks():
    a = bs.bsr_array((4, 6), blocksize=(2, 3), dtype=np.complex64)
    assert (a.shape, a.blocksize, a.dtype, a.nnz) == ((4, 6), (2, 3), "complex64", 0)
    assert a.data.shape == (0, 2, 3)
    assert not a.toarray().any()
    assert bs.bsr_array((4, 6)).blocksize == (1, 1)
    assert bs.bsr_array((4, 6)).dtype == np.float64
    assert bs.bsr_array((np.int64(4), np.int32(6)), blocksize=2).shape == (4, 6)


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float16, bfloat16, np.int8], ids=label
)
def test_from_elements_that_add_up(dtype):
    data = np.array([1, 2, 4, 8], dtype)
    i, j = [0, 3, 0, 3], [0, 5, 0, 0]
    a = bs.bsr_array((data, (i, j)), shape=(4, 6), blocksize=(2, 3))
    exact = np.zeros((4, 6))
    np.add.at(exact, (i, j), [1, 2, 4, 8])
    np.testing.assert_array_equal(dense(a), exact)
    assert a.dtype == dtype
    assert bs.bsr_array((data, (i, j))).shape == (4, 6)


def test_elements_of_16_bits_are_summed_in_float32():
    data = np.ones(4096, np.float16)
    a = bs.bsr_array((data, (np.zeros(4096, int), np.zeros(4096, int))), shape=(1, 1))
    assert a.toarray() == 4096


def test_from_arrays(rng):
    a = make(rng, MASK, (2, 3))
    b = bs.bsr_array((a.data, a.indices, a.indptr))
    assert b.shape == (6, 12)
    same(a, b)
    assert b.data is a.data
    same(
        a, bs.bsr_array((a.data, a.indices, a.indptr), shape=(6, 12), blocksize=(2, 3))
    )
    wider = bs.bsr_array((a.data, a.indices, a.indptr), shape=(6, 18))
    assert wider.layout.block_cols == 6


def test_from_nested_lists():
    a = bs.bsr_array(([[[1.0, 2.0]]], [1], [0, 1]), shape=(1, 4))
    assert isinstance(a.data, np.ndarray)
    np.testing.assert_array_equal(a.toarray(), [[0, 0, 1, 2]])
    layout = bs.Layout([0, 1], [1], (1, 4), (1, 2))
    b = bs.bsr_array(([[[1.0, 2.0]]], layout))
    assert isinstance(b.data, np.ndarray)
    assert isinstance(b.with_data([[[3.0, 4.0]]]).data, np.ndarray)
    np.testing.assert_array_equal(
        bs.bsr_array([[0, 1], [0, 0]]).toarray(), [[0, 1], [0, 0]]
    )


@pytest.mark.parametrize(
    "dtype", [np.float16, bfloat16, np.float32, np.complex128, np.int8], ids=label
)
def test_unsorted_and_repeated_blocks_are_summed_into_new_arrays(rng, dtype):
    data = values(rng, (6, 2, 2), dtype)
    indices, indptr = np.array([2, 0, 2, 0, 2, 1]), np.array([0, 4, 4, 6])
    given = [x.copy() for x in (data, indices, indptr)]
    a = bs.bsr_array((data, indices, indptr), shape=(6, 6))
    for now, before in zip((data, indices, indptr), given, strict=True):
        np.testing.assert_array_equal(now, before)
    assert a.indices.tolist() == [0, 2, 1, 2]
    assert a.dtype == dtype
    # One addition, rounded once (float32 holds the sum of two halves exactly enough).
    one, other = (
        data[i].astype(
            np.result_type(dtype, np.int64 if dtype is np.int8 else np.float32)
        )
        for i in ([1, 0], [3, 2])
    )
    np.testing.assert_array_equal(a.data[:2], (one + other).astype(dtype))
    np.testing.assert_array_equal(a.data[2:], data[[5, 4]])


def test_unsorted_blocks_with_leading_axes(rng):
    data = values(rng, (2, 3, 2, 2, 2), np.float32)
    a = bs.bsr_array((data, [1, 0], [0, 2]))
    np.testing.assert_array_equal(a.data, data[:, :, ::-1])


def test_from_values_and_a_layout(rng):
    layout = bs.Layout.from_mask(MASK, (2, 3))
    data = values(rng, (4, 2, 3), np.float32)
    a = bs.bsr_array((data, layout))
    assert a.data is data
    assert a.layout is layout
    batch = bs.bsr_array((values(rng, (5, 2, 4, 2, 3), np.float32), layout))
    assert batch.leading == (5, 2)
    assert batch.nnz == 5 * 2 * 24
    stack = bs.LayoutStack.from_mask(HEADS, (2, 3))
    heads = bs.bsr_array((values(rng, (2, 16, 2, 3), np.float32), stack))
    assert heads.leading == (2,)
    assert heads.toarray().shape == (2, 3, 6, 12)


@pytest.mark.parametrize(
    "make_arg",
    [
        lambda a: a,
        lambda a: a.to_scipy(),
        lambda a: a.toarray(),
        lambda a: (a.data, a.layout),
        lambda a: (a.data, a.indices, a.indptr),
    ],
    ids=["ours", "scipy", "dense", "layout", "arrays"],
)
def test_dtype_converts(rng, make_arg):
    a = make(rng, MASK, (2, 3))
    b = bs.bsr_array(make_arg(a), dtype=np.float32, blocksize=(2, 3))
    assert b.dtype == np.float32
    np.testing.assert_array_equal(b.data, a.data.astype(np.float32))


BAD = {
    "shape_and_blocksize": (
        lambda: bs.bsr_array((5, 4), blocksize=(2, 2)),
        ValueError,
        r"shape must be a multiple of blocksize, got shape \(5, 4\) and blocksize \(2",
    ),
    "dense_and_blocksize": (
        lambda: bs.bsr_array(np.ones((5, 4)), blocksize=2),
        ValueError,
        "shape must be a multiple of blocksize",
    ),
    "csr_and_blocksize": (
        lambda: bs.bsr_array(sp.csr_array(np.ones((5, 4))), blocksize=2),
        ValueError,
        "shape must be a multiple of blocksize",
    ),
    "flat_values": (
        lambda: bs.bsr_array((np.ones((4, 4)), [0], [0, 1, 1]), blocksize=(2, 2)),
        ValueError,
        r"data must be 3-dimensional, \(blocks, R, C\), got shape \(4, 4\)",
    ),
    "flat_values_and_layout": (
        lambda: bs.bsr_array((np.ones((4, 4)), bs.Layout([0, 1], [0], (2, 2), 2))),
        ValueError,
        "data must be at least 3-dimensional",
    ),
    "other_blocksize": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [0], [0, 1, 1]), blocksize=(4, 1)),
        ValueError,
        r"mismatching blocks of \(2, 2\) and blocksize=\(4, 1\)",
    ),
    "other_blocksize_than_layout": (
        lambda: bs.bsr_array((np.ones((1, 3, 2)), bs.Layout([0, 1], [0], (2, 2), 2))),
        ValueError,
        r"got mismatching blocks of \(3, 2\)",
    ),
    "blocks_and_layout": (
        lambda: bs.bsr_array((np.ones((2, 2, 2)), bs.Layout([0, 1], [0], (2, 2), 2))),
        ValueError,
        "data must hold 1 blocks, got 2",
    ),
    "blocksize_0": (
        lambda: bs.bsr_array((4, 4), blocksize=(0, 2)),
        ValueError,
        r"blocksize must be at least \(1, 1\), got \(0, 2\)",
    ),
    "blocksize_is_a_float": (
        lambda: bs.bsr_array((4, 4), blocksize=2.0),
        TypeError,
        "blocksize must be an int or a pair of ints, got 2.0",
    ),
    "blocksize_of_three": (
        lambda: bs.bsr_array((4, 4), blocksize=(2, 2, 2)),
        TypeError,
        "blocksize must be an int or a pair",
    ),
    "empty_blocks": (
        lambda: bs.bsr_array((np.ones((1, 0, 2)), [0], [0, 1])),
        ValueError,
        r"blocksize must be at least \(1, 1\), got \(0, 2\)",
    ),
    "column_out_of_range": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [5], [0, 1, 1]), shape=(4, 4)),
        ValueError,
        "indices must be block columns in 0 ... 1, got 5 ... 5",
    ),
    "column_below_zero": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [-1], [0, 1, 1]), shape=(4, 4)),
        ValueError,
        "indices must be block columns in 0 ... 1, got -1",
    ),
    "indptr_too_short": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [0], [0, 1]), shape=(4, 4)),
        ValueError,
        "indptr must have block_rows [+] 1 = 3 entries, got 2",
    ),
    "indptr_from_1": (
        lambda: bs.bsr_array((np.ones((2, 2, 2)), [0, 0], [1, 2]), shape=(2, 4)),
        ValueError,
        "indptr must start with 0, got 1",
    ),
    "indptr_decreases": (
        lambda: bs.bsr_array((np.ones((2, 2, 2)), [0, 1], [0, 2, 1]), shape=(4, 4)),
        ValueError,
        "indptr must not decrease",
    ),
    "indptr_past_indices": (
        lambda: bs.bsr_array((np.ones((2, 2, 2)), [0, 1], [0, 1, 3]), shape=(4, 4)),
        ValueError,
        r"indptr must end within indices, got indptr\[-1\] = 3 and 2 indices",
    ),
    "fewer_blocks_than_indices": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [0, 1], [0, 2]), shape=(2, 4)),
        ValueError,
        r"data must hold the 2 blocks of indptr\[-1\], got 1",
    ),
    "no_indptr": (
        lambda: bs.bsr_array((np.ones((0, 2, 2)), [], []), shape=(0, 4)),
        ValueError,
        "indptr must have block_rows [+] 1 = 1 entries, got 0",
    ),
    "float_indices": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [0.5], [0, 1])),
        TypeError,
        "indices must hold integers, got float64",
    ),
    "nan_indices": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), np.array([np.nan]), [0, 1])),
        TypeError,
        "indices must hold integers, got float64",
    ),
    "float_indptr": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [0], np.array([0.0, 1.0]))),
        TypeError,
        "indptr must hold integers, got float64",
    ),
    "boolean_indices": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), np.array([True]), [0, 1])),
        TypeError,
        "indices must hold integers, got bool",
    ),
    "indices_2d": (
        lambda: bs.bsr_array((np.ones((1, 2, 2)), [[0]], [0, 1])),
        ValueError,
        r"indices must be 1-D, got shape \(1, 1\)",
    ),
    "float_coordinates": (
        lambda: bs.bsr_array((np.ones(1), ([0.0], [1]))),
        TypeError,
        "i must hold integers, got float64",
    ),
    "coordinates_out_of_range": (
        lambda: bs.bsr_array((np.ones(1), ([4], [1])), shape=(4, 4)),
        ValueError,
        "coordinates must be inside of the shape",
    ),
    "fewer_coordinates": (
        lambda: bs.bsr_array((np.ones(2), ([1], [1])), shape=(4, 4)),
        ValueError,
        "coordinates must be inside of the shape",
    ),
    "another_shape": (
        lambda: bs.bsr_array(np.ones((4, 4)), shape=(4, 6), blocksize=2),
        ValueError,
        r"shape must be that of the input, got \(4, 6\) and \(4, 4\)",
    ),
    "negative_shape": (
        lambda: bs.bsr_array((-2, 4)),
        ValueError,
        r"shape must not be negative, got \(-2, 4\)",
    ),
    "float_shape": (
        lambda: bs.bsr_array((4.0, 4)),
        TypeError,
        r"shape must be a pair of ints, got \(4.0, 4\)",
    ),
    "3d": (
        lambda: bs.bsr_array(np.ones((2, 2, 2))),
        ValueError,
        "a dense array must be 2-D, got 3-D",
    ),
    "booleans": (
        lambda: bs.bsr_array(np.ones((2, 2), bool)),
        TypeError,
        r"dtypes .* got bool; cast booleans with \.astype",
    ),
    "strings": (lambda: bs.bsr_array("abc"), TypeError, "must be an array of NumPy"),
    "objects": (
        lambda: bs.bsr_array(np.array([[None]])),
        TypeError,
        "must have one of the dtypes",
    ),
    "a_dtype_no_kernel_stores": (
        lambda: bs.bsr_array(np.ones((2, 2)), dtype=np.longdouble, blocksize=2),
        TypeError,
        "must have one of the dtypes",
    ),
    "no_argument_at_all": (lambda: bs.bsr_array(None), TypeError, "must be an array"),
}


@pytest.mark.parametrize(("call", "error", "match"), BAD.values(), ids=list(BAD))
def test_bad_input(call, error, match):
    with pytest.raises(error, match=f"^(bsr_array|canonicalise|astype): .*{match}"):
        call()


@pytest.mark.parametrize("backend", EACH[1:])
def test_device_arrays_must_be_canonical(backend):
    data = backend.place(np.ones((2, 2, 2)))
    with pytest.raises(
        ValueError, match=r"^bsr_array: device arrays must be canonical"
    ):
        bs.bsr_array((data, [1, 0], [0, 2]))
    with pytest.raises(
        TypeError, match=r"^bsr_array: a dense array must be on the host"
    ):
        bs.bsr_array(backend.place(np.ones((2, 2))))
    a = bs.bsr_array((data, backend.place(np.array([0, 1])), [0, 2]))
    assert a.data is data
    assert a.device == 0


@pytest.mark.parametrize("backend", EACH[1:])
def test_spare_capacity_on_a_device(backend):
    data = backend.place(np.arange(12.0).reshape(3, 2, 2))
    a = bs.bsr_array((data, [1, 0, 7], [0, 1, 2]), shape=(4, 4))
    np.testing.assert_array_equal(backend.take(a.data), np.arange(8.0).reshape(2, 2, 2))


# ----------------------------------------------------------------------- attributes


def test_attributes_are_scipys(rng):
    a = make(rng, MASK, (2, 3), np.float32)
    theirs = a.to_scipy()
    for name in ("shape", "blocksize", "dtype", "nnz", "ndim", "has_sorted_indices"):
        assert getattr(a, name) == getattr(theirs, name), name
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(a, name), getattr(theirs, name))
    assert (a.device, a.library, a.leading) == (None, "numpy", ())


def test_structure_is_read_only(rng):
    a = make(rng, MASK, (2, 3))
    for array in (a.indptr, a.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for name in ("layout", "indptr", "indices", "shape", "dtype", "data"):
        with pytest.raises(AttributeError):
            setattr(a, name, None)


def test_nothing_densifies(rng):
    a = make(rng, MASK, (2, 3))
    assert not hasattr(a, "__array__")
    for call in (len, iter, list, float, lambda a: a[0]):
        with pytest.raises(TypeError):
            call(a)
    assert np.asarray(a).shape == ()  # an object, not its values
    for ufunc in (np.add, np.exp, np.matmul):
        with pytest.raises(TypeError):
            ufunc(*[a] * ufunc.nin)
    with pytest.raises(TypeError):
        np.ones((6, 12)) + a


def test_repr(rng):
    a = make(rng, MASK, (2, 3), np.float32)
    assert repr(a) == (
        "<bsr_array of shape (6, 12), 4 blocks of (2, 3), float32, numpy>"
    )
    assert repr(a.T) == (
        "<bsr_array of shape (12, 6), 4 blocks of (3, 2), float32, numpy>"
    )
    stack = make(rng, HEADS, (2, 3), bfloat16, (5,))
    assert repr(stack) == (
        "<bsr_array of shape (6, 12), (5,) x 3 heads, 16 blocks of (2, 3), "
        "bfloat16, numpy>"
    )


# ---------------------------------------------------------------------------- views


@pytest.mark.parametrize("mask", [MASK, HEADS], ids=["layout", "heads"])
def test_a_transpose_is_a_view(rng, mask):
    a = make(rng, mask, (2, 3), lead=(2,))
    b = a.T
    assert (b.shape, b.blocksize) == ((12, 6), (3, 2))
    assert b.layout == a.layout.T
    np.testing.assert_array_equal(b.toarray(), np.swapaxes(dense(a), -1, -2))
    a.data[...] += 1
    np.testing.assert_array_equal(b.toarray(), np.swapaxes(dense(a), -1, -2))
    assert b.T.data is a.data
    assert b.T.layout is a.layout
    assert (a.mT.shape, a.transpose().shape) == ((12, 6), (12, 6))
    with pytest.raises(ValueError, match=r"^transpose: axes must be None or \(1, 0\)"):
        a.transpose((0, 1))
    copied = a.transpose((1, 0), copy=True)
    a.data[...] = 0
    assert copied.toarray().any()


@each_backend
@pytest.mark.parametrize("name", ["empty_row_and_column", "no_blocks", "power_law"])
@pytest.mark.parametrize("dtype", [bfloat16, np.complex128], ids=label)
def test_values_of_a_transpose_are_gathered_in_its_order(backend, rng, name, dtype):
    a = make(rng, MASKS[name], (2, 3), dtype, (2,))
    exact = bs.bsr_array((a.data[0], a.layout)).toarray().T
    tiles = [
        exact[row * 3 : row * 3 + 3, col * 2 : col * 2 + 2]
        for row, col in zip(*a.layout.T.coordinates(), strict=True)
    ]
    with backend.computing():
        data = backend.take(backend.place(a).T.data)
    assert data.shape == (2, a.layout.blocks, 3, 2)
    np.testing.assert_array_equal(data[0], np.array(tiles, dtype).reshape(-1, 3, 2))
    assert data.dtype == dtype


def test_gathered_values_are_read_only(rng):
    with pytest.raises(ValueError, match="read-only"):
        make(rng, MASK, (2, 3)).T.data[...] = 0


def test_with_data(rng):
    a = make(rng, MASK, (2, 3))
    data = values(rng, (7, 4, 2, 3), np.float16)
    b = a.with_data(data)
    assert b.data is data
    assert b.layout is a.layout
    turned = a.T.with_data(np.swapaxes(data, -1, -2))
    assert turned.shape == (12, 6)
    for bad, match in (
        (data[0, :3], "^with_data: data must hold 4 blocks, got 3"),
        (data[0].reshape(4, 3, 2), r"^with_data: .*mismatching blocks of \(3, 2\)"),
        (data[0, 0], "^with_data: data must be at least 3-dimensional"),
    ):
        with pytest.raises(ValueError, match=match):
            a.with_data(bad)
    with pytest.raises(TypeError, match=r"^with_data: .* got bool"):
        a.with_data(data > 0)


# ---------------------------------------------------------------------- conversions


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.uint8], ids=label)
def test_to_scipy_and_dense(rng, name, dtype):
    a = make(rng, MASKS[name], (2, 3), dtype)
    for one in (a, a.T):
        theirs = one.to_scipy()
        assert isinstance(theirs, sp.bsr_array)
        assert theirs.blocksize == one.blocksize
        theirs.check_format(full_check=True)
        exact = dense(one).astype(dtype)
        np.testing.assert_array_equal(theirs.toarray(), exact)
        for got in (one.toarray(), one.todense(), one.tocsr().toarray()):
            np.testing.assert_array_equal(got, exact)
            assert got.dtype == dtype
        np.testing.assert_array_equal(one.tocoo().toarray(), exact)


def test_to_scipy_shares_the_values_but_not_the_structure(rng):
    a = make(rng, MASK, (2, 3))
    theirs = a.to_scipy()
    assert np.shares_memory(theirs.data, a.data)
    theirs.indices[:] = 0  # SciPy's own methods rewrite these arrays
    assert a.indices.tolist() == [0, 3, 0, 1]


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=label)
def test_halves_to_dense(rng, dtype):
    a = make(rng, MASK, (2, 3), dtype)
    assert a.toarray().dtype == dtype
    np.testing.assert_array_equal(widened(a.toarray()), dense(a))
    with pytest.raises(
        TypeError, match=r"^to_scipy: SciPy stores no .*astype\(np.float"
    ):
        a.to_scipy()


def test_what_scipy_has_no_form_for(rng):
    for a in (make(rng, MASK, (2, 3), lead=(2,)), make(rng, HEADS, (2, 3))):
        with pytest.raises(
            TypeError, match=r"^to_scipy: values must be .* take one of"
        ):
            a.to_scipy()


def test_tobsr(rng):
    a = make(rng, MASK, (2, 3))
    assert a.tobsr() is a
    assert a.tobsr((2, 3)) is a
    assert not np.shares_memory(a.tobsr(copy=True).data, a.data)
    b = a.tobsr((3, 4))
    assert b.blocksize == (3, 4)
    np.testing.assert_array_equal(dense(b), dense(a))
    with pytest.raises(ValueError, match="shape must be a multiple of blocksize"):
        a.tobsr(5)


@pytest.mark.parametrize("backend", EACH[1:])
def test_to_device_and_back(backend, rng):
    for a in (make(rng, MASK, (2, 3), bfloat16, (2,)), make(rng, HEADS, (2, 3)).T):
        b = a.to_device()
        assert (b.device, b.library, b.layout) == (0, "numba", a.layout)
        assert b.to_device() is b
        back = b.to_host()
        assert (back.device, back.library) == (None, "numpy")
        same(back, a)
        assert not np.shares_memory(back._values, a._values)
        assert back.to_host() is back
        with pytest.raises(TypeError, match=r"^toarray: .* call \.to_host\(\) first"):
            b.toarray()
        with pytest.raises(
            TypeError, match=r"^pickle: values .* call \.to_host\(\) fir"
        ):
            pickle.dumps(b)
        assert repr(b).endswith("numba on device 0>")


def test_to_device_names_the_libraries(rng):
    with pytest.raises(
        ValueError, match=r"^to_device: library must be 'numba', 'cupy'"
    ):
        make(rng, MASK, (2, 3)).to_device("jax")


# ----------------------------------------------------------------------- arithmetic


@each_backend
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("float32", "float32"),
        ("float16", "float32"),
        (bfloat16, bfloat16),
        ("float64", "complex64"),
        ("int8", "int8"),
        ("uint8", "int16"),
        ("int64", "float32"),
    ],
    ids=label,
)
def test_sum_difference_product_on_one_layout(backend, rng, ours, theirs):
    a, b = (make(rng, MASK, (2, 3), dtype) for dtype in (ours, theirs))
    result = np.result_type(ours, theirs)
    x, y = (widened(each.data, result) for each in (a, b))
    for operation in (operator.add, operator.sub, operator.mul):
        got = backend.run(operation, a, b)
        assert got.layout == a.layout
        assert got.dtype == result
        exact = operation(x, y)
        if result.kind in "iu":
            exact = exact.astype(result)
        magnitude = (
            np.abs(x) * np.abs(y)
            if operation is operator.mul
            else np.abs(x) + np.abs(y)
        )
        sums = np.result_type(
            *(bs.dtypes.accumulator(np.dtype(d)) for d in (ours, theirs))
        )
        assert_within(got.data, exact, magnitude, 2, sums)


@each_backend
def test_arithmetic_on_views_and_leading_axes(backend, rng):
    a, b = make(rng, MASK, (2, 3)), make(rng, MASK, (2, 3), lead=(2, 1))
    got = backend.run(operator.add, a, b)
    np.testing.assert_array_equal(got.data, a.data + b.data)
    got = backend.run(operator.sub, a.T, b.T)
    assert got.shape == (12, 6)
    np.testing.assert_array_equal(got.T.data, a.data - b.data)
    turned = bs.bsr_array(a.T)  # the same layout as a.T, with values of its own
    got = backend.run(operator.add, a.T, turned)
    np.testing.assert_array_equal(dense(got), 2 * dense(a).T)


@each_backend
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
def test_multiples(backend, rng, dtype):
    a = make(rng, MASK, (2, 3), dtype)
    with np.errstate(over="ignore"):
        two = a.data * np.asarray(2, dtype)
        minus = np.negative(a.data)
    for operation, exact in (
        (lambda a: 2 * a, two),
        (lambda a: a * np.int64(2), two),
        (operator.neg, minus),
        (lambda a: a * 1, a.data),
    ):
        got = backend.run(operation, a)
        assert got.dtype == dtype
        assert got.data.tobytes() == exact.tobytes()


@each_backend
@pytest.mark.parametrize(
    ("dtype", "factor", "result"),
    [
        ("float32", 0.5, "float32"),
        ("float16", np.float64(0.5), "float16"),
        (bfloat16, 0.5, bfloat16),
        ("float32", 2j, "complex64"),
        ("float64", 2j, "complex128"),
        ("complex64", 0.5, "complex64"),
        ("int32", 0.5, "float64"),
        ("uint8", np.array(3), "uint8"),
        ("float32", True, "float32"),
    ],
    ids=label,
)
def test_factors_keep_the_kind_of_the_values(backend, rng, dtype, factor, result):
    a = make(rng, MASK, (2, 3), dtype)
    for got in (
        backend.run(lambda a: a * factor, a),
        backend.run(lambda a: factor * a, a),
    ):
        assert got.dtype == result
        exact = (widened(a.data) * factor).astype(result)
        np.testing.assert_array_equal(got.data, exact)


@each_backend
def test_quotients(backend, rng):
    a = make(rng, MASK, (2, 3), np.float32)
    got = backend.run(lambda a: a / 4, a)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.data, a.data / 4)
    got = backend.run(lambda a: a / 4, make(rng, MASK, (2, 3), np.int16))
    assert got.dtype == np.float64


@each_backend
def test_an_optimiser_step_can_be_written(backend, rng):
    w, g = make(rng, MASK, (2, 3), np.float32), make(rng, MASK, (2, 3), np.float32)
    got = backend.run(lambda w, g: w - 0.5 * g, w, g)
    np.testing.assert_array_equal(got.data, w.data - np.float32(0.5) * g.data)
    got = backend.run(lambda *each: sum(each), w, g, w)
    np.testing.assert_array_equal(got.data, w.data + g.data + w.data)


def test_scipy_on_either_side(rng):
    a, b = make(rng, MASK, (2, 3)), make(rng, MASK, (2, 3))
    theirs = b.to_scipy()
    for operation in (operator.add, operator.sub, operator.mul):
        if operation is not operator.mul:  # SciPy multiplies its own by matrices
            for got in (operation(a, theirs), operation(theirs, a)):
                assert isinstance(got, bs.bsr_array)
    np.testing.assert_array_equal((a - theirs).data, a.data - b.data)
    np.testing.assert_array_equal((theirs - a).data, b.data - a.data)


def test_what_arithmetic_does_not_serve(rng):
    a = make(rng, MASK, (2, 3))
    other = make(rng, MASKS["full"], (2, 3))
    for operation in (operator.add, operator.sub, operator.mul):
        with pytest.raises(
            NotImplementedError, match=r"arrays of different layouts .*Layo"
        ):
            operation(a, other)
    for operation, x in (
        (operator.add, 1),
        (operator.add, np.ones((6, 12))),
        (operator.mul, np.ones((6, 12))),
        (operator.mul, "2"),
        (operator.truediv, a),
        (operator.truediv, np.ones(12)),
        (operator.pow, 2),
    ):
        with pytest.raises(TypeError):
            operation(a, x)
    with pytest.raises(TypeError, match=r"^add: operands must not mix float16 and bf"):
        a.astype(np.float16) + a.astype(bfloat16)


@each_backend
@pytest.mark.parametrize("dtype", [np.complex64, np.float16, np.int8], ids=label)
def test_copy_and_conj(backend, rng, dtype):
    a = make(rng, MASK, (2, 3), dtype, (2,))
    for view in (a, a.T):
        got = backend.run(bs.bsr_array.copy, view)
        assert got.layout == view.layout
        assert got._values.tobytes() == a.data.tobytes()
        for name in ("conj", "conjugate"):
            got = backend.run(getattr(bs.bsr_array, name), view)
            np.testing.assert_array_equal(got._values, a.data.conj())
    copied = a.copy()
    copied.data[...] = 0
    assert a.data.any()


@each_backend
@pytest.mark.parametrize(
    ("dtype", "to"),
    [
        ("float32", "float16"),
        ("float32", bfloat16),
        (bfloat16, "float64"),
        ("float16", bfloat16),
        ("float64", "complex64"),
        ("int8", "uint8"),
        ("int64", "int8"),
        ("uint64", "float32"),
        ("int8", "float16"),
        ("uint8", "int64"),
    ],
    ids=label,
)
def test_astype(backend, rng, dtype, to):
    a = make(rng, MASK, (2, 3), dtype)
    exact = a.data.astype(to)
    got = backend.run(lambda a: a.astype(to), a)
    assert got.dtype == to
    np.testing.assert_array_equal(got.data, exact)


def test_astype_rules(rng):
    a = make(rng, MASK, (2, 3))
    assert a.astype(np.float64, copy=False) is a
    assert not np.shares_memory(a.astype(np.float64).data, a.data)
    with pytest.raises(
        TypeError, match=r"^astype: cannot cast float64 to int8 with cast"
    ):
        a.astype(np.int8, casting="same_kind")
    with pytest.raises(TypeError, match=r"^astype: dtype must have one of the dtypes"):
        a.astype(bool)


# ------------------------------------------------------------------- canonical form


def test_arrays_are_canonical_from_the_start(rng):
    a = make(rng, MASK, (2, 3))
    before = a.data.copy()
    a.sum_duplicates()
    a.sort_indices()
    a.check_format()
    a.check_format(full_check=False)
    np.testing.assert_array_equal(a.data, before)
    assert a.has_canonical_format
    assert a.has_sorted_indices


def test_check_format_finds_what_somebody_broke(rng):
    a = make(rng, MASK, (2, 3))
    broken = a._view(a.data[:3])
    with pytest.raises(
        ValueError, match=r"^check_format: data must hold 4 blocks, got 3"
    ):
        broken.check_format()


# -------------------------------------------------------------------------- pickles


@pytest.mark.parametrize("mask", [MASK, HEADS, MASKS["no_blocks"]])
@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=label)
def test_pickles_and_copies(rng, mask, dtype):
    a = make(rng, mask, (2, 3), dtype, (2,))
    for duplicate in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        for one in (a, a.T):
            again = duplicate(one)
            same(again, one)
            assert again._transposed == one._transposed
            assert not np.shares_memory(again._values, one._values)


# ---------------------------------------------------------------------------- torch


def test_to_torch_and_back(rng):
    torch = pytest.importorskip("torch")
    for dtype in (np.float32, np.float64, bfloat16, np.complex64):
        a = make(rng, MASK, (2, 3), dtype)
        for one in (a, a.T):
            tensor = one.to_torch()  # warnings are errors in these tests
            assert tensor.layout == torch.sparse_bsr
            assert tuple(tensor.shape) == one.shape
            back = bs.bsr_array(tensor)
            assert back.library == "torch"
            assert back.layout == one.layout
            same(back.to_host(), bs.bsr_array(one))


def test_to_torch_leaves_the_filters_as_they_are(rng):
    pytest.importorskip("torch")
    import warnings

    before = list(warnings.filters)
    make(rng, MASK, (2, 3)).to_torch()
    assert warnings.filters == before


def test_torch_bsr_shares_its_values(rng):
    torch = pytest.importorskip("torch")
    tensor = make(rng, MASK, (2, 3)).to_torch()
    a = bs.bsr_array(tensor)
    assert a.data.data_ptr() == tensor.values().data_ptr()
    again = a.to_torch()
    assert again.values().data_ptr() == tensor.values().data_ptr()
    assert torch.equal(again.to_dense(), tensor.to_dense())


def test_torch_forms_that_are_not_bsr(rng):
    torch = pytest.importorskip("torch")
    eye = torch.eye(4)
    with pytest.raises(TypeError, match=r"strided or sparse_bsr, got torch.sparse_coo"):
        bs.bsr_array(eye.to_sparse())
    np.testing.assert_array_equal(
        bs.bsr_array(eye, blocksize=2).to_host().toarray(), np.eye(4)
    )
    with pytest.raises(ValueError, match="values must be"):
        make(rng, HEADS, (2, 3)).to_torch()
    with pytest.raises(ValueError, match="values must be"):
        make(rng, MASK, (2, 3), lead=(2,)).to_torch()


# --------------------------------------------------------------------- any of it all


@st.composite
def structures(draw):
    """Draw data, indices and indptr: unsorted, repeated, spare; and the dense sum."""
    R, C = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, cols = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    columns = st.lists(st.integers(0, cols - 1), max_size=5)
    of_rows = draw(st.lists(columns, min_size=rows, max_size=rows))
    spare = draw(st.integers(0, 2))
    indptr = np.cumsum([0, *map(len, of_rows)])
    indices = np.array([*itertools.chain(*of_rows), *[99] * spare], int)
    index = draw(st.sampled_from([np.int16, np.int32, np.int64, np.uint8, np.uint64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    data = rng.integers(-9, 9, (len(indices), R, C)).astype(np.float32)
    exact = np.zeros((rows * R, cols * C), np.float32)
    for row, of_row in enumerate(of_rows):
        for block, col in enumerate(of_row, start=indptr[row]):
            exact[row * R : row * R + R, col * C : col * C + C] += data[block]
    return data, indices.astype(index), indptr.astype(index), exact


@settings(max_examples=100, deadline=None, derandomize=True)
@given(structures())
def test_any_structure(drawn):
    data, indices, indptr, exact = drawn
    given_before = data.copy(), indices.copy(), indptr.copy()
    a = bs.bsr_array((data, indices, indptr), shape=exact.shape)
    np.testing.assert_array_equal(a.toarray(), exact)
    a.check_format()
    np.testing.assert_array_equal(a.T.toarray(), exact.T)
    same(bs.bsr_array(a.to_scipy()), a)
    same(pickle.loads(pickle.dumps(a)), a)
    for now, before in zip((data, indices, indptr), given_before, strict=True):
        np.testing.assert_array_equal(now, before)
