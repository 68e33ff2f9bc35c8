"""matmul and matmul_backward on every backend, against dense products."""

import operator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from backends import BACKENDS, EACH, FAST, HOST, bits
from bounds import assert_within, widened
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns import (
    BLOCKSIZES,
    FLOATS,
    INTEGERS,
    MASKS,
    dense,
    label,
    make,
    strided,
    values,
)
from products import check_matmul, check_matmul_backward, inner

import numba_bs as bs

bfloat16 = bs.dtypes.bfloat16
MASK = MASKS["empty_row_and_column"]

# How a sparse and a dense operand meet: the sparse one as it stands in the product,
# and which side it is on.
SIDES = {
    "a_x": (lambda a: a, False),
    "aT_x": (lambda a: a.T, False),
    "x_a": (lambda a: a, True),
    "x_aT": (lambda a: a.T, True),
}
sides = pytest.mark.parametrize("side", SIDES)
backends = pytest.mark.parametrize("backend", BACKENDS)
each_backend = pytest.mark.parametrize("backend", EACH)


def pair(rng, a, side, n, dtype=None, lead=()):
    """Return the two operands of a product with ``n`` columns (or rows)."""
    turn, flipped = SIDES[side]
    a = turn(a)
    dtype = a.dtype if dtype is None else dtype
    shape = (n, a.shape[0]) if flipped else (a.shape[1], n)
    x = values(rng, (*lead, *shape), dtype)
    return (x, a) if flipped else (a, x)


# -------------------------------------------------------------------------- forward


@backends
@sides
@pytest.mark.parametrize("name", MASKS)
def test_patterns(backend, rng, name, side):
    a = make(rng, MASKS[name], (2, 3), np.float32)
    check_matmul(backend, *pair(rng, a, side, 5), operator.matmul)


@backends
@pytest.mark.parametrize("n", [1, 17])
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=label)
def test_blocksizes(backend, rng, blocksize, n):
    a = make(rng, MASK, blocksize, np.float64)
    check_matmul(backend, *pair(rng, a, "a_x", n))
    check_matmul(backend, *pair(rng, a, "x_aT", n))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("blocksize", [(128, 128), (64, 128), (100, 7)], ids=label)
@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_large_blocks(backend, rng, blocksize, dtype):
    a = make(rng, MASK[:2], blocksize, dtype)
    check_matmul(backend, *pair(rng, a, "a_x", 3))
    check_matmul(backend, *pair(rng, a, "aT_x", 3))


@each_backend
@sides
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
def test_dtypes(backend, rng, dtype, side):
    a = make(rng, MASK, (2, 3), dtype)
    check_matmul(backend, *pair(rng, a, side, 4))


@each_backend
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("float16", "float32"),
        ("float32", bfloat16),
        ("float32", "float64"),
        ("float64", "float16"),
        ("complex64", "float32"),
        ("float16", "complex64"),
        ("float64", "complex64"),
        ("int8", "int64"),
        ("uint8", "int16"),
        ("int32", "uint32"),
        ("int16", "float32"),
        ("float64", "uint64"),
        ("int64", "complex128"),
        ("int8", "uint64"),
    ],
    ids=label,
)
def test_unlike_dtypes(backend, rng, ours, theirs):
    a = make(rng, MASK, (2, 3), ours)
    check_matmul(backend, *pair(rng, a, "a_x", 3, theirs))
    check_matmul(backend, *pair(rng, a, "x_a", 3, theirs))


@each_backend
@pytest.mark.parametrize(
    ("natural", "asked"),
    [
        ("float16", "float32"),
        (bfloat16, "float32"),
        ("float32", "float16"),
        ("float32", "complex64"),
        ("float64", "float32"),
        ("int8", "int32"),
        ("int32", "int8"),
        ("uint32", "int64"),
        ("uint64", "int8"),
        ("uint8", "float32"),
        ("int16", "complex64"),
    ],
    ids=label,
)
def test_dtype_of_the_result(backend, rng, natural, asked):
    a = make(rng, MASK, (2, 3), natural)
    a, x = pair(rng, a, "a_x", 3)
    check_matmul(backend, a, x, dtype=asked)
    out = np.zeros((a.shape[0], 3), asked)
    check_matmul(backend, a, x, out=out)


@each_backend
def test_an_int8_product_asked_as_int32_does_not_wrap_at_8_bits(backend):
    a = bs.bsr_array(np.full((2, 64), 100, np.int8), blocksize=2)
    x = np.full((64, 1), 100, np.int8)
    got = backend.run(bs.matmul, a, x, dtype=np.int32)
    assert got.tolist() == [[640_000], [640_000]]


@each_backend
@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=label)
def test_16_bit_sums_are_kept_in_float32(backend, dtype):
    ones = bs.bsr_array(np.ones((2, 640), dtype), blocksize=(2, 16))
    x = np.full((640, 2), 1 / 64, dtype)
    x[::2] = 8  # a running sum of 16 bits would lose every 1/64
    exact = 320 * 8 + 320 / 64
    got = backend.run(bs.matmul, ones, x, dtype=np.float32)
    assert (got == exact).all()
    assert (backend.run(bs.matmul, ones, x) == np.asarray(exact, dtype)).all()


@backends
@sides
def test_vectors(backend, rng, side):
    a = make(rng, MASK, (2, 3), np.float32)
    left, right = pair(rng, a, side, 1)
    if side.startswith("x"):
        left = left[0]
    else:
        right = right[:, 0]
    assert check_matmul(backend, left, right, operator.matmul).ndim == 1


LEADING = {
    "batch_of_x": ((), (3,)),
    "batch_of_a": ((3,), ()),
    "both": ((3,), (3,)),
    "broadcast_a": ((1,), (3,)),
    "broadcast_x": ((2, 3), (2, 1)),
    "crossed": ((2, 1), (3,)),
    "crossed_more": ((2, 1, 2), (1, 3, 2)),
    "longer_a": ((2, 3), (3,)),
    "empty_batch": ((), (0,)),
    "empty_both": ((0,), (0,)),
}
leading = pytest.mark.parametrize(
    ("lead_a", "lead_x"), LEADING.values(), ids=list(LEADING)
)


@each_backend
@leading
@pytest.mark.parametrize("side", ["a_x", "x_aT"])
def test_leading_axes(backend, rng, lead_a, lead_x, side):
    a = make(rng, MASK, (2, 3), np.float32, lead_a)
    left, right = pair(rng, a, side, 2, lead=lead_x)
    lead = np.broadcast_shapes(lead_a, lead_x)
    got = check_matmul(backend, left, right)
    assert got.shape[:-2] == lead


@each_backend
@pytest.mark.parametrize("side", ["a_x", "x_a"])
def test_vector_with_leading_axes_of_the_values(backend, rng, side):
    a = make(rng, MASK, (2, 3), np.float32, (2,))
    left, right = pair(rng, a, side, 1)
    if side == "x_a":
        check_matmul(backend, left[0], right)
    else:
        check_matmul(backend, left, right[:, 0])


HEADS = np.stack([MASKS["empty_row_and_column"], MASKS["no_blocks"], MASKS["full"]])


@backends
@sides
@pytest.mark.parametrize("lead", [(), (3,), (1,), (2, 3), (2, 1)], ids=label)
def test_heads_with_different_block_counts(backend, rng, side, lead):
    a = make(rng, HEADS, (2, 3), np.float32)
    assert np.diff(a.layout.head_ptr).tolist() == [4, 0, 12]
    got = check_matmul(backend, *pair(rng, a, side, 2, lead=lead))
    assert got.shape[-3] == 3


@each_backend
def test_heads_with_leading_axes_of_the_values(backend, rng):
    a = make(rng, HEADS, (2, 3), np.float32, (2,))
    check_matmul(backend, *pair(rng, a, "a_x", 2, lead=(2, 1)))
    check_matmul(backend, *pair(rng, a, "x_a", 2, lead=(3,)))
    a, x = pair(rng, a, "a_x", 1)
    assert check_matmul(backend, a, x[:, 0]).shape == (2, 3, 6)


@backends
@pytest.mark.parametrize("beta", [0, 1, -0.5])
@pytest.mark.parametrize("side", ["a_x", "x_a"])
def test_alpha_and_beta(backend, rng, side, beta):
    a = make(rng, MASK, (2, 3), np.float32)
    left, right = pair(rng, a, side, 4)
    out = values(rng, (left.shape[0], right.shape[1]), np.float32)
    check_matmul(backend, left, right, out=out, alpha=1.5, beta=beta)


@each_backend
def test_complex_alpha_and_beta(backend, rng):
    a, x = pair(rng, make(rng, MASK, (2, 3), np.complex64), "a_x", 2)
    out = values(rng, (a.shape[0], 2), np.complex64)
    check_matmul(backend, a, x, out=out, alpha=1 + 2j, beta=-0.5j)


@each_backend
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64])
def test_integer_alpha_and_beta_wrap(backend, rng, dtype):
    a, x = pair(rng, make(rng, MASK, (2, 3), dtype), "a_x", 2)
    out = values(rng, (a.shape[0], 2), dtype)
    check_matmul(backend, a, x, out=out, alpha=-3, beta=7)


@each_backend
def test_vector_out(backend, rng):
    a, x = pair(rng, make(rng, MASK, (2, 3)), "a_x", 1)
    out = values(rng, a.shape[:1], a.dtype)
    check_matmul(backend, a, x[:, 0], out=out, alpha=2, beta=0.5)


STRIDES = [
    "transposed",
    "reversed",
    "every_second",
    "read_only",
    "broadcast_columns",
    "broadcast_rows",
]


@each_backend
@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("side", ["a_x", "x_a"])
def test_strides_of_the_dense_operand(backend, rng, kind, side):
    a = make(rng, MASK, (2, 3), np.float32)
    left, right = pair(rng, a, side, 5)
    if side == "a_x":
        right = strided(right, kind)
    else:
        left = strided(left, kind)
    check_matmul(backend, left, right)


@each_backend
@pytest.mark.parametrize("kind", STRIDES)
def test_strides_of_the_values(backend, rng, kind):
    a = make(rng, MASK, (2, 3), np.float32)
    flat = strided(a.data.reshape(a.layout.blocks, 6), kind)
    a = a.with_data(
        flat[..., None].reshape(-1, 2, 3) if kind == "read_only" else a.data
    )
    # Strides of whole blocks, and of the elements in one.
    for data in (
        np.swapaxes(np.ascontiguousarray(np.swapaxes(a.data, -1, -2)), -1, -2),
        np.broadcast_to(a.data[:1], a.data.shape),
        a.data[::-1],
        np.repeat(a.data, 2, axis=0)[::2],
    ):
        b = a.with_data(data)
        check_matmul(backend, *pair(rng, b, "a_x", 2))
        check_matmul(backend, *pair(rng, b, "aT_x", 2))


@each_backend
@pytest.mark.parametrize("kind", ["transposed", "reversed", "every_second"])
@pytest.mark.parametrize("side", ["a_x", "x_a"])
def test_strides_of_out(backend, rng, kind, side):
    a = make(rng, MASK, (2, 3), np.float32)
    left, right = pair(rng, a, side, 5)
    out = strided(values(rng, (left.shape[0], right.shape[1]), a.dtype), kind)
    check_matmul(backend, left, right, out=out, alpha=2, beta=0.5)


@each_backend
def test_out_between_other_columns_leaves_those_alone(backend, rng):
    a, x = pair(rng, make(rng, MASK, (2, 3)), "a_x", 3)
    whole = np.full((a.shape[0], 9), 5.0)
    if backend is HOST.values[0]:
        backend.run(bs.matmul, a, x, out=whole[:, 3:6])
    else:
        placed = backend.place(whole)
        with backend.computing():
            bs.matmul(backend.place(a), backend.place(x), out=placed[:, 3:6])
        whole = backend.take(placed)
    assert (whole[:, :3] == 5).all()
    assert (whole[:, 6:] == 5).all()
    assert_within(
        whole[:, 3:6],
        dense(a) @ widened(x),
        np.abs(dense(a)) @ np.abs(widened(x)),
        a.shape[1],
        np.float64,
    )


@each_backend
@pytest.mark.parametrize("n", [0, 1, 2, 33, 65])
def test_numbers_of_columns(backend, rng, n):
    a = make(rng, MASK, (2, 3), np.float32)
    check_matmul(backend, *pair(rng, a, "a_x", n))
    check_matmul(backend, *pair(rng, a, "x_a", n))


@each_backend
@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (0, 0)], ids=label)
def test_matrices_without_elements(backend, shape):
    a = bs.bsr_array(shape, blocksize=(2, 3), dtype=np.float32)
    got = backend.run(bs.matmul, a, np.ones((shape[1], 2), np.float32))
    assert got.shape == (shape[0], 2)
    assert not got.any()
    out = np.full((shape[0], 2), 3, np.float32)
    got = backend.run(bs.matmul, a, np.ones((shape[1], 2), np.float32), out=out, beta=2)
    assert (got == 6).all()


def with_long_rows(rng, dtype=np.float32):
    """Return an array of which two rows are cut into work items."""
    mask = np.zeros((6, 700), bool)
    mask[[1, 4]] = True
    mask[:, 5] = True
    a = make(rng, mask, (1, 3), dtype)
    assert a.layout.plan.split_row.tolist() == [1, 4]
    return a


@each_backend
def test_long_rows_are_cut_and_summed_in_order(backend, rng):
    a = with_long_rows(rng)
    out = values(rng, (6, 2), np.float32)
    check_matmul(backend, *pair(rng, a, "a_x", 2), out=out, alpha=2, beta=0.5)
    b = bs.bsr_array(a.T)  # (2100, 3), of which the columns are walked
    assert b.layout.column_plan.split_row.tolist() == [1, 4]
    check_matmul(backend, *pair(rng, b, "aT_x", 2))


@backends
def test_what_is_not_stored_meets_nothing(backend, rng):
    """Columns of NaN and infinity are met by no stored block."""
    a, x = pair(rng, make(rng, MASK, (2, 3)), "a_x", 2)
    x[6:9] = [[np.nan, np.inf]] * 3  # block column 2 is empty
    got = backend.run(bs.matmul, a, x)
    x[6:9] = 0
    np.testing.assert_array_equal(got, backend.run(bs.matmul, a, x))


@backends
@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int32])
def test_beta_0_does_not_read_out(backend, rng, dtype):
    a, x = pair(rng, make(rng, MASK, (2, 3), dtype), "a_x", 2)
    bad = np.nan if np.dtype(dtype).kind in "fc" else np.iinfo(dtype).max
    out = np.full((a.shape[0], 2), bad, dtype)
    check_matmul(backend, a, x, out=out)


@each_backend
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex128], ids=label)
def test_the_same_call_gives_the_same_bits(backend, rng, dtype):
    a, x = pair(rng, with_long_rows(rng, dtype), "a_x", 2)
    one, other = (backend.run(bs.matmul, a, x).tobytes() for _ in range(2))
    assert one == other
    # A long inner dimension of the gradient is cut too.
    a, x = pair(rng, make(rng, MASKS["last_corner"], (2, 3), dtype), "a_x", 2000)
    g = values(rng, (a.shape[0], 2000), dtype)
    one, other = (
        backend.run(bs.matmul_backward, g, a, x, needs="a")[0].data.tobytes()
        for _ in range(2)
    )
    assert one == other


@pytest.mark.gpu
@pytest.mark.parametrize("backend", EACH[1:])
@pytest.mark.parametrize("dtype", [*FLOATS[:4], FLOATS[5]], ids=label)
@pytest.mark.parametrize(
    ("blocks", "blocksize", "n"),
    [
        (64, (32, 32), 512),
        (17, (128, 128), 333),
        (100, (16, 8), 1000),
        (999, (3, 3), 1),
    ],
    ids=["32x32", "128x128", "16x8", "3x3"],
)
def test_real_sizes(backend, rng, dtype, blocks, blocksize, n):
    """Products and gradients against the reference in a wider type."""
    mask = rng.random((blocks, blocks)) < 0.1
    mask[3], mask[blocks // 2] = False, True
    a = make(rng, mask, blocksize, dtype)
    x, g = (values(rng, (size, n), dtype) for size in a.shape[::-1])
    wide = np.result_type(dtype if dtype != bfloat16 else np.float32, np.float64)
    exact = [each.astype(wide) for each in (a, x, g)]
    moduli = [a.with_data(np.abs(exact[0].data)), *map(np.abs, exact[1:])]
    got = backend.run(bs.matmul, a, x), *backend.run(bs.matmul_backward, g, a, x)
    right, magnitude = (
        (bs.matmul(a, x), *bs.matmul_backward(g, a, x)) for a, x, g in (exact, moduli)
    )
    for one, other, bound in zip(got, right, magnitude, strict=True):
        if isinstance(one, bs.bsr_array):
            one, other, bound = one.data, other.data, bound.data
        sums = bs.dtypes.accumulator(dtype)
        assert_within(one, other, bound, max(*a.shape, n), sums)


@each_backend
def test_calls_from_several_threads(backend, rng):
    """Plans and lookup tables of a layout are made at first use."""
    a, x = pair(rng, make(rng, MASKS["random"], (2, 3)), "a_x", 4)
    b, placed = backend.place(a), backend.place(x)
    with backend.computing(), ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(bs.matmul, b, placed) for _ in range(8)]
        calls += [pool.submit(bs.matmul_backward, b @ placed, b, placed)]
        *products, gradients = [call.result() for call in calls]
    right = check_matmul(backend, a, x)
    for y in products:
        np.testing.assert_array_equal(backend.take(y), right)
    grad_a, grad_x = check_matmul_backward(backend, right, a, x)
    np.testing.assert_array_equal(backend.take(gradients[0]).data, grad_a.data)
    np.testing.assert_array_equal(backend.take(gradients[1]), grad_x)


def test_scipy_operands_are_taken_as_they_are(rng):
    a = make(rng, MASK, (2, 3))
    theirs, x = a.to_scipy(), values(rng, (12, 2), np.float64)
    np.testing.assert_array_equal(bs.matmul(theirs, x), a @ x)
    np.testing.assert_array_equal(bs.matmul(x[:6].T, theirs), x[:6].T @ a)
    one = bs.matmul_backward(a @ x, theirs, x)
    other = bs.matmul_backward(a @ x, a, x)
    np.testing.assert_array_equal(one[0].data, other[0].data)
    np.testing.assert_array_equal(one[1], other[1])


def test_lists_are_taken_as_numpy_takes_them(rng):
    a = make(rng, MASK, (2, 3))
    np.testing.assert_array_equal(a @ ([1.0] * 12), a @ np.ones(12))
    np.testing.assert_array_equal(([1.0] * 6) @ a, np.ones(6) @ a)


# ------------------------------------------------------------------------- backward


@backends
@sides
@pytest.mark.parametrize("name", ["no_blocks", "empty_row_and_column", "power_law"])
def test_backward_patterns(backend, rng, name, side):
    a = make(rng, MASKS[name], (2, 3), np.float32)
    left, right = pair(rng, a, side, 3)
    g = values(rng, (left.shape[0], right.shape[1]), np.float32)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=label)
def test_backward_blocksizes(backend, rng, blocksize):
    a = make(rng, MASK, blocksize, np.float64)
    a, x = pair(rng, a, "a_x", 7)
    g = values(rng, (a.shape[0], 7), np.float64)
    check_matmul_backward(backend, g, a, x)


@each_backend
@sides
@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_backward_dtypes(backend, rng, dtype, side):
    a = make(rng, MASK, (2, 3), dtype)
    left, right = pair(rng, a, side, 3)
    g = values(rng, (left.shape[0], right.shape[1]), dtype)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize(
    "dtypes",
    [
        ("float32", "float16", "float32"),
        (bfloat16, bfloat16, "float32"),
        ("complex64", "float32", "complex64"),
        ("complex64", "complex64", "float32"),
        ("complex64", "float32", "float32"),
        ("complex128", "float16", "float64"),
        ("float32", "complex64", "complex64"),
    ],
    ids=label,
)
def test_backward_unlike_dtypes(backend, rng, dtypes):
    of_g, of_a, of_x = dtypes
    a, x = pair(rng, make(rng, MASK, (2, 3), of_a), "a_x", 3, of_x)
    g = values(rng, (a.shape[0], 3), of_g)
    check_matmul_backward(backend, g, a, x)


@each_backend
@sides
def test_backward_vectors(backend, rng, side):
    a = make(rng, MASK, (2, 3), np.float32)
    left, right = pair(rng, a, side, 1)
    flipped = SIDES[side][1]
    left, right = (left[0], right) if flipped else (left, right[:, 0])
    g = values(rng, (right.shape[1] if flipped else left.shape[0],), np.float32)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize("side", ["a_x", "x_a"])
def test_backward_vectors_with_leading_axes_of_the_values(backend, rng, side):
    a = make(rng, MASK, (2, 3), np.float32, (2,))
    left, right = pair(rng, a, side, 1)
    flipped = SIDES[side][1]
    left, right = (left[0], right) if flipped else (left, right[:, 0])
    g = values(rng, (2, right.shape[1] if flipped else left.shape[0]), np.float32)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize("real", ["a", "x"])
def test_backward_real_part_of_sums_over_leading_axes(backend, rng, real):
    """Summed on the way, and (with heads) afterwards."""
    of_a, of_x = ("f4", "c8") if real == "a" else ("c8", "f4")
    for mask, lead_a, lead_x in (
        (MASK, (), (3,)),
        (HEADS, (), ()),
        (HEADS, (2,), (1,)),
    ):
        a = make(rng, mask, (2, 3), of_a, lead_a)
        a, x = pair(rng, a, "a_x", 2, of_x, lead_x)
        g = values(rng, (a @ x).shape, np.complex64)
        check_matmul_backward(backend, g, a, x)


@each_backend
@leading
@pytest.mark.parametrize("side", ["a_x", "x_aT"])
def test_backward_sums_over_leading_axes(backend, rng, lead_a, lead_x, side):
    a = make(rng, MASK, (2, 3), np.float32, lead_a)
    left, right = pair(rng, a, side, 2, lead=lead_x)
    lead = np.broadcast_shapes(lead_a, lead_x)
    g = values(rng, (*lead, left.shape[-2], right.shape[-1]), np.float32)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize("side", ["a_x", "x_a"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1), (2, 3)], ids=label)
def test_backward_heads(backend, rng, lead, side):
    a = make(rng, HEADS, (2, 3), np.float32)
    left, right = pair(rng, a, side, 2, lead=lead)
    full = np.broadcast_shapes(lead, (3,))
    g = values(rng, (*full, left.shape[-2], right.shape[-1]), np.float32)
    check_matmul_backward(backend, g, left, right)


@each_backend
@pytest.mark.parametrize("kind", ["transposed", "reversed", "broadcast_rows"])
def test_backward_strides(backend, rng, kind):
    a, x = pair(rng, make(rng, MASK, (2, 3), np.float32), "a_x", 4)
    g = strided(values(rng, (a.shape[0], 4), np.float32), kind)
    check_matmul_backward(backend, g, a, strided(x, kind))
    data = np.broadcast_to(a.data[:1], a.data.shape)
    check_matmul_backward(backend, g, a.with_data(data), x)


@each_backend
@pytest.mark.parametrize("n", [0, 1, 40])
def test_backward_numbers_of_columns(backend, rng, n):
    a, x = pair(rng, make(rng, MASK, (2, 3), np.float32), "a_x", n)
    g = values(rng, (a.shape[0], n), np.float32)
    check_matmul_backward(backend, g, a, x)


@each_backend
def test_needs_computes_only_what_is_named(backend, rng):
    a, x = pair(rng, make(rng, MASK, (2, 3), np.float32), "a_x", 2)
    g = values(rng, (a.shape[0], 2), np.float32)
    both = check_matmul_backward(backend, g, a, x)
    grad_a, nothing = check_matmul_backward(backend, g, a, x, needs=("a",))
    assert nothing is None
    nothing_else, grad_x = check_matmul_backward(backend, g, a, x, needs="b")
    assert nothing_else is None
    np.testing.assert_array_equal(grad_a.data, both[0].data)
    np.testing.assert_array_equal(grad_x, both[1])
    assert backend.run(bs.matmul_backward, g, a, x, needs=()) == (None, None)
    # For x @ a the names are those of the arguments.
    grad_x, nothing = check_matmul_backward(
        backend, np.ascontiguousarray(g.T), x.T, a.T, needs="a"
    )
    assert nothing is None


@sides
@pytest.mark.parametrize("lead", [(), (2,)], ids=label)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=label)
def test_backward_is_the_adjoint_of_forward(rng, dtype, lead, side):
    """<g, d(f)> = <grad_a, da> + <grad_b, db> for any direction (da, db)."""
    a = make(rng, MASKS["random"], (2, 3), dtype, lead[1:])
    left, right = pair(rng, a, side, 4, lead=lead)
    flipped = SIDES[side][1]
    d_left, d_right = pair(
        rng, make(rng, MASKS["random"], (2, 3), dtype, lead[1:]), side, 4, lead=lead
    )
    (l_, r_), (dl, dr) = (
        [dense(x) if isinstance(x, bs.bsr_array) else widened(x) for x in pair]
        for pair in ((left, right), (d_left, d_right))
    )
    change = dl @ r_ + l_ @ dr
    moduli = np.abs(dl) @ np.abs(r_) + np.abs(l_) @ np.abs(dr)
    g = values(rng, change.shape, dtype)
    grads = bs.matmul_backward(g, left, right)
    of_sparse, of_dense = grads[::-1] if flipped else grads
    d_sparse, d_dense = (d_right, d_left) if flipped else (d_left, d_right)
    assert_within(
        inner(dense(of_sparse), dense(d_sparse)) + inner(of_dense, d_dense),
        inner(g, change),
        np.sum(np.abs(g) * moduli),
        2 * change.size * max(l_.shape[-1], 1),
        dtype,
    )


# --------------------------------------------------------------------- any of it all


PAIRS = [(dtype, dtype) for dtype in (*FLOATS, *INTEGERS)]
PAIRS += [("float16", "float32"), ("complex64", bfloat16), ("float64", "complex64")]
PAIRS += [("int8", "uint16"), ("int32", "float32"), ("float32", "float64")]


@st.composite
def products(draw, side_limit=4):
    """Draw operands of a product: layout, types, leading axes and strides."""
    rows, cols = draw(st.integers(0, side_limit)), draw(st.integers(0, side_limit))
    blocksize = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    heads = draw(st.sampled_from([None, None, 1, 2]))
    shape = (rows, cols) if heads is None else (heads, rows, cols)
    size = int(np.prod(shape))
    cells = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    mask = np.array(cells, bool).reshape(shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ours, theirs = draw(st.sampled_from(PAIRS))
    a = make(rng, mask, blocksize, ours, draw(st.sampled_from([(), (1,), (2,)])))
    lead = draw(st.sampled_from([(), (1,), (2, heads or 1), (heads or 2,)]))
    side = draw(st.sampled_from(list(SIDES)))
    left, right = pair(rng, a, side, draw(st.integers(0, 6)), theirs, lead)
    x, flipped = (left, True) if SIDES[side][1] else (right, False)
    for axis in range(x.ndim):
        turn = draw(st.sampled_from(["as_is", "reversed", "every_second", "broadcast"]))
        if turn == "reversed":
            x = np.flip(x, axis)
        elif turn == "every_second":
            x = np.repeat(x, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
        elif turn == "broadcast" and x.shape[axis]:
            x = np.broadcast_to(x.take([0], axis), x.shape)
    factors = st.sampled_from([0, 1, -2])
    return (x, right) if flipped else (left, x), rng, draw(factors), draw(factors)


def compatible(left, right):
    """Whether leading axes (and heads) broadcast."""
    try:
        np.matmul(dense_shape(left), dense_shape(right))
    except ValueError:
        return False
    return True


def dense_shape(x):
    shape = dense(x).shape if isinstance(x, bs.bsr_array) else x.shape
    return np.broadcast_to(np.int8(0), shape)


def check_both(backend, drawn):
    (left, right), rng, alpha, beta = drawn
    if not compatible(left, right):
        with pytest.raises(ValueError, match="leading axes must broadcast"):
            backend.run(bs.matmul, left, right)
        return
    got = check_matmul(backend, left, right)
    out = values(rng, got.shape, got.dtype)
    check_matmul(backend, left, right, out=out, alpha=alpha, beta=beta)
    if all(x.dtype.kind not in "iu" for x in (left, right)):
        g = values(rng, got.shape, got.dtype)
        check_matmul_backward(backend, g, left, right)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(products())
def test_any_product_on_the_host(drawn):
    check_both(HOST.values[0], drawn)


@pytest.mark.parametrize("backend", EACH[1:])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(products(side_limit=2))
def test_any_small_product_on_a_device(backend, drawn):
    check_both(backend, drawn)


# --------------------------------------------------------------------------- errors


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def sparse(dtype=np.float32, lead=(), mask=MASK):
    layout = bs.LayoutStack if mask.ndim == 3 else bs.Layout
    layout = layout.from_mask(mask, (2, 3))
    return bs.bsr_array((ones(*lead, layout.blocks, 2, 3, dtype=dtype), layout))


def read_only(x):
    x.flags.writeable = False
    return x


A, G = sparse(), ones(6, 2)  # (6, 12) in blocks of (2, 3)
X = ones(12, 2)

BAD = {
    "inner_sizes": (
        lambda: (A, ones(6, 2)),
        ValueError,
        r"a\.shape\[-1\] must equal b\.shape\[-2\], got \(6, 12\) and \(6, 2\)",
    ),
    "inner_sizes_from_the_left": (
        lambda: (ones(2, 12), A),
        ValueError,
        r"a\.shape\[-1\] must equal b\.shape\[-2\], got \(2, 12\) and \(6, 12\)",
    ),
    "inner_sizes_of_a_vector": (
        lambda: (A, ones(6)),
        ValueError,
        r"a\.shape\[-1\] must equal b\.shape\[0\], got \(6, 12\) and \(6,\)",
    ),
    "a_scalar": (lambda: (A, np.array(3.0)), ValueError, "must have an axis"),
    "leading_axes": (
        lambda: (sparse(lead=(2,)), ones(3, 12, 2)),
        ValueError,
        r"leading axes must broadcast, got \(2,\) and \(3,\)",
    ),
    "heads": (
        lambda: (sparse(mask=HEADS), ones(2, 12, 2)),
        ValueError,
        r"leading axes must broadcast, got \(3,\) and \(2,\)",
    ),
    "two_dense": (lambda: (G, X.T), TypeError, "must be a bsr_array, got"),
    "an_element_mask": (lambda: (MASK, X), TypeError, "must be a bsr_array"),
    "two_sparse": (lambda: (A, A.T), NotImplementedError, "sparse @ sparse is not"),
    "scipy_csr": (lambda: (A.to_host().tocsr(), X), TypeError, "got a SciPy csr array"),
    "a_string": (lambda: (A, "x"), TypeError, "b must be an array of NumPy"),
    "halves_mixed": (
        lambda: (sparse(np.float16), X.astype(bfloat16)),
        TypeError,
        "must not mix float16 and bfloat16",
    ),
    "half_and_integer": (
        lambda: (sparse(bfloat16), X.astype(np.int32)),
        TypeError,
        "16-bit floats and integers must not be mixed",
    ),
    "booleans": (lambda: (A, X > 0), TypeError, r"got bool; cast booleans with"),
    "alpha_is_complex": (
        lambda: (A, X, {"alpha": 1j}),
        TypeError,
        "alpha must be real for a float32 result",
    ),
    "alpha_is_no_scalar": (lambda: (A, X, {"alpha": X}), TypeError, "a scalar"),
    "alpha_is_a_string": (lambda: (A, X, {"alpha": "2"}), TypeError, "a scalar"),
    "alpha_is_none": (lambda: (A, X, {"alpha": None}), TypeError, "a number"),
    "beta_for_integers": (
        lambda: (sparse(np.int8), X.astype(np.int8), {"beta": 0.5}),
        TypeError,
        "beta must be an integer",
    ),
    "dtype_loses_a_part": (
        lambda: (A, X.astype(np.complex64), {"dtype": np.float32}),
        TypeError,
        "a result of complex64 cannot be given as float32",
    ),
    "dtype_loses_a_fraction": (
        lambda: (A, X, {"dtype": np.int32}),
        TypeError,
        "a result of float32 cannot be given as int32",
    ),
    "dtype_no_kernel_stores": (
        lambda: (A, X, {"dtype": "S4"}),
        TypeError,
        "dtype must have one of the dtypes",
    ),
    "precision": (
        lambda: (A, X, {"precision": "fp8"}),
        ValueError,
        "precision must be 'ieee', 'tf32' or 'tf32x3', got 'fp8'",
    ),
    "variant": (lambda: (A, X, {"variant": "wgmma"}), NotImplementedError, "variant"),
    "unknown_variant": (
        lambda: (A, X, {"variant": "fast"}),
        NotImplementedError,
        "variant",
    ),
}
bad = pytest.mark.parametrize(
    ("make_call", "error", "match"), BAD.values(), ids=list(BAD)
)


# No device array is of these kinds.
BAD_ON_HOST = {
    "objects": (lambda: X.astype(object), "one of the dtypes"),
    "other_byte_order": (lambda: X.astype(">f4"), "native byte order"),
    "masked": (lambda: np.ma.masked_less(X, 0), "MaskedArray"),
}


@each_backend
@bad
def test_bad_input(backend, make_call, error, match):
    a, b, *keywords = make_call()
    keywords = keywords[0] if keywords else {}
    with pytest.raises(error, match=f"^matmul: .*{match}"):
        backend.run(bs.matmul, a, b, **keywords)


@pytest.mark.parametrize(
    ("make_x", "match"), BAD_ON_HOST.values(), ids=list(BAD_ON_HOST)
)
def test_bad_host_arrays(make_x, match):
    with pytest.raises(TypeError, match=f"^matmul: b must .*{match}"):
        bs.matmul(A, make_x())


BAD_OUT = {
    "shape": (lambda: ones(6, 3), {}, ValueError, r"shape \(6, 2\), got \(6, 3\)"),
    "rank": (lambda: ones(1, 6, 2), {}, ValueError, r"shape \(6, 2\), got \(1, 6, 2\)"),
    "read_only": (lambda: read_only(ones(6, 2)), {}, ValueError, "must be writable"),
    "broadcast": (
        lambda: np.lib.stride_tricks.as_strided(ones(6, 2), (6, 2), (8, 0)),
        {},
        ValueError,
        "elements of out must not share memory",
    ),
    "integers": (lambda: ones(6, 2, dtype=int), {}, TypeError, "given as int64"),
    "booleans": (lambda: ones(6, 2, dtype=bool), {}, TypeError, "one of the dtypes"),
    "another_dtype": (
        lambda: ones(6, 2),
        {"dtype": np.float64},
        TypeError,
        "out must have dtype float64, got float32",
    ),
    "with_a_bad_alpha": (lambda: ones(6, 2), {"alpha": 2j}, TypeError, "alpha"),
    "with_a_bad_beta": (lambda: ones(6, 2), {"beta": "1"}, TypeError, "beta"),
    "with_a_bad_precision": (
        lambda: ones(6, 2),
        {"precision": 3},
        ValueError,
        "precision",
    ),
    "with_a_bad_variant": (
        lambda: ones(6, 2),
        {"variant": "mma"},
        NotImplementedError,
        "variant",
    ),
}


@each_backend
@pytest.mark.parametrize(
    ("out", "keywords", "error", "match"), BAD_OUT.values(), ids=list(BAD_OUT)
)
def test_bad_out_stays_as_it_was(backend, out, keywords, error, match):
    a, x, out = backend.place(A), backend.place(X), backend.place(out())
    before = bits(out)
    with backend.computing(), pytest.raises(error, match=rf"^matmul: .*{match}"):
        bs.matmul(a, x, out=out, **keywords)
    assert bits(out) == before


@each_backend
def test_out_must_be_an_array(backend):
    with pytest.raises(TypeError, match=r"^matmul: out must be an array"):
        backend.run(bs.matmul, A, X, out=[[0.0] * 2] * 6)


@each_backend
def test_out_must_not_overlap_an_input(backend):
    square = bs.bsr_array(np.eye(6, dtype=np.float32), blocksize=2)
    memory = backend.place(ones(8, 4))
    x = memory[:6, :2]
    before = bits(memory)
    for out in (x, memory[1:7, :2], memory[:6, 1:3]):
        with pytest.raises(ValueError, match=r"^matmul: out must not overlap b in mem"):
            bs.matmul(backend.place(square), x, out=out)
    assert bits(memory) == before
    out = memory[:6, 2:]  # between the rows of x: the strides prove it apart
    with backend.computing():
        assert bs.matmul(backend.place(square), x, out=out) is out
    np.testing.assert_array_equal(backend.take(out), np.ones((6, 2)))


@each_backend
def test_out_must_not_overlap_the_values(backend):
    a = bs.bsr_array(np.eye(6, dtype=np.float32), blocksize=2)
    a = a._view(backend.place(a.data))
    out = a.data.reshape(6, 2)
    with pytest.raises(ValueError, match=r"^matmul: out must not overlap a in memory"):
        bs.matmul(a, backend.place(ones(6, 2)), out=out)


BAD_GRADIENTS = {
    "shape": (
        lambda: (ones(6, 3), A, X),
        ValueError,
        r"grad_out must have the shape of the result, \(6, 2\), got \(6, 3\)",
    ),
    "inner_sizes": (lambda: (G, A, ones(6, 2)), ValueError, r"a\.shape\[-1\] must"),
    "integers": (
        lambda: (G, A, X.astype(np.int32)),
        TypeError,
        "b must be a float or complex array, got int32: integers have no gradient",
    ),
    "integer_gradient": (lambda: (ones(6, 2, dtype=int), A, X), TypeError, "grad_out"),
    "halves_mixed": (
        lambda: (G.astype(bfloat16), sparse(np.float16), X.astype(np.float16)),
        TypeError,
        "must not mix float16 and bfloat16",
    ),
    "needs": (
        lambda: (G, A, X, {"needs": ("a", "x")}),
        ValueError,
        r"needs must name some of \('a', 'b'\), got \['x'\]",
    ),
    "two_dense": (lambda: (G, G, X), TypeError, "must be a bsr_array"),
    "precision": (
        lambda: (G, A, X, {"precision": "bf16x3"}),
        ValueError,
        "precision must be",
    ),
}


@each_backend
@pytest.mark.parametrize(
    ("make_call", "error", "match"), BAD_GRADIENTS.values(), ids=list(BAD_GRADIENTS)
)
def test_bad_gradients(backend, make_call, error, match):
    g, a, b, *keywords = make_call()
    with pytest.raises(error, match=f"^matmul_backward: .*{match}"):
        backend.run(bs.matmul_backward, g, a, b, **(keywords[0] if keywords else {}))


@pytest.mark.parametrize("backend", EACH[1:])
def test_one_operand_on_the_host_and_one_on_a_device(backend):
    a, x = backend.place(A), backend.place(X)
    with pytest.raises(
        TypeError, match=r"matmul: .* got b on the host and a on the de"
    ):
        bs.matmul(a, X)
    with pytest.raises(
        TypeError, match="got a on the host and b on the device; move a"
    ):
        bs.matmul(A, x)
    out = ones(6, 2)
    with pytest.raises(TypeError, match="got out on the host and a, b on the device"):
        bs.matmul(a, x, out=out)
    assert (out == 1).all()
    with pytest.raises(TypeError, match="got grad_out on the host"):
        bs.matmul_backward(G, a, x)
    with pytest.raises(TypeError, match="got a on the host and b on the device"):
        bs.matmul(A.to_scipy(), x)


def test_two_devices_are_named():
    """A second GPU is not needed to see the message."""
    one = bs.arrays.describe("test", "a", X)
    a, b = one._replace(device=0), one._replace(device=1)
    with pytest.raises(ValueError, match=r"^matmul: .* one device, got a on 0, b on 1"):
        bs.checks.same_device("matmul", a=a, b=b)


@pytest.mark.parametrize("backend", EACH[1:])
def test_a_workspace_that_does_not_serve(backend, rng):
    a, x = (backend.place(each) for each in pair(rng, with_long_rows(rng), "a_x", 2))
    needed = bs.explain("matmul", a, x).workspace_bytes
    assert needed > 0
    fits = backend.place(np.zeros(needed // 4, np.float32))
    with backend.computing():
        first = backend.take(bs.matmul(a, x, workspace=fits))
        np.testing.assert_array_equal(first, backend.take(bs.matmul(a, x)))
    small = backend.place(np.zeros(needed // 4 - 1, np.float32))
    gappy = backend.place(np.zeros(needed // 2, np.float32)[::2])
    for workspace in (small, gappy):
        with pytest.raises(ValueError, match=r"^matmul: workspace must be a writable"):
            bs.matmul(a, x, workspace=workspace)
    with pytest.raises(TypeError, match="workspace on the host"):
        bs.matmul(a, x, workspace=np.zeros(needed, np.uint8))


def test_a_gradient_of_a_scipy_array_that_is_not_canonical():
    theirs = sp.bsr_array((ones(2, 2, 2), [1, 0], [0, 2]), shape=(2, 4))
    for args in ((ones(2, 1), theirs, ones(4, 1)), (ones(1, 4), ones(1, 2), theirs)):
        with pytest.raises(ValueError, match=r"must be canonical.*canonicalise\(\)"):
            bs.matmul_backward(*args)
    np.testing.assert_array_equal(bs.matmul(theirs, ones(4, 1)), ones(2, 1) * 4)
