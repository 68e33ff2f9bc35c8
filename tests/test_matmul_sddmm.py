"""sddmm and sddmm_backward on every backend, against dense products."""

import numpy as np
import pytest
from backends import BACKENDS, EACH, FAST, HOST, bits
from bounds import assert_within, widened
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns import (
    BLOCKSIZES,
    FLOATS,
    INTEGERS,
    MASKS,
    label,
    layout_of,
    make,
    sampled,
    strided,
    values,
)
from products import check_sddmm, check_sddmm_backward, inner

import numba_bs as bs

bfloat16 = bs.dtypes.bfloat16
MASK = MASKS["empty_row_and_column"]
HEADS = np.stack([MASKS["empty_row_and_column"], MASKS["no_blocks"], MASKS["full"]])

backends = pytest.mark.parametrize("backend", BACKENDS)
each_backend = pytest.mark.parametrize("backend", EACH)


def pair(rng, layout, n, dtype=np.float32, theirs=None, leads=((), ())):
    """Return x (..., M, n) and y (..., n, K)."""
    M, K = layout.shape
    x = values(rng, (*leads[0], M, n), dtype)
    return x, values(rng, (*leads[1], n, K), dtype if theirs is None else theirs)


# -------------------------------------------------------------------------- forward


@backends
@pytest.mark.parametrize("name", MASKS)
def test_patterns(backend, rng, name):
    layout = layout_of(MASKS[name], (2, 3))
    check_sddmm(backend, *pair(rng, layout, 5), layout)


@backends
@pytest.mark.parametrize("n", [1, 17])
@pytest.mark.parametrize("blocksize", BLOCKSIZES, ids=label)
def test_blocksizes(backend, rng, blocksize, n):
    layout = layout_of(MASKS["random"][:2], blocksize)
    check_sddmm(backend, *pair(rng, layout, n, np.float64), layout)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("blocksize", [(128, 128), (64, 128), (100, 7)], ids=label)
@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_large_blocks(backend, rng, blocksize, dtype):
    layout = layout_of(MASK[:2], blocksize)
    check_sddmm(backend, *pair(rng, layout, 3, dtype), layout)


@each_backend
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
def test_dtypes(backend, rng, dtype):
    layout = layout_of(MASK, (2, 3))
    check_sddmm(backend, *pair(rng, layout, 4, dtype), layout)


@each_backend
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("float16", "float32"),
        ("float32", bfloat16),
        ("float64", "float16"),
        ("complex64", "float32"),
        ("float64", "complex64"),
        ("int8", "int64"),
        ("uint8", "int16"),
        ("int16", "float32"),
    ],
    ids=label,
)
def test_unlike_dtypes(backend, rng, ours, theirs):
    layout = layout_of(MASK, (2, 3))
    x, y = pair(rng, layout, 3, ours, theirs)
    check_sddmm(backend, x, y, layout)


@each_backend
@pytest.mark.parametrize(
    ("natural", "asked"),
    [
        ("float16", "float32"),
        (bfloat16, "float32"),
        ("float32", bfloat16),
        ("float64", "complex64"),
        ("int8", "int32"),
        ("uint64", "int16"),
    ],
    ids=label,
)
def test_dtype_of_the_result(backend, rng, natural, asked):
    layout = layout_of(MASK, (2, 3))
    x, y = pair(rng, layout, 3, natural)
    check_sddmm(backend, x, y, layout, dtype=asked)
    out = make(rng, MASK, (2, 3), asked)
    check_sddmm(backend, x, y, layout, out=out)


@each_backend
def test_scores_beyond_float16_are_kept_as_float32(backend):
    layout = layout_of(np.ones((1, 1)), 2)
    q = np.full((2, 128), 64, np.float16)
    got = backend.run(bs.sddmm, q, q.T, layout, dtype=np.float32)
    assert (got.data == 524_288).all()


LEADING = {
    "of_x": ((3,), ()),
    "of_y": ((), (3,)),
    "both": ((3,), (3,)),
    "broadcast": ((2, 1), (2, 3)),
    "crossed": ((2, 1), (3,)),
    "empty": ((0,), (0,)),
    "empty_of_x": ((0,), ()),
}
leading = pytest.mark.parametrize("leads", LEADING.values(), ids=list(LEADING))


@each_backend
@leading
def test_leading_axes(backend, rng, leads):
    layout = layout_of(MASK, (2, 3))
    x, y = pair(rng, layout, 2, leads=leads)
    got = check_sddmm(backend, x, y, layout)
    assert got.leading == np.broadcast_shapes(*leads)


HEAD_LEADS = {
    "none": ((), ()),
    "heads_of_x": ((3,), ()),
    "heads_of_both": ((3,), (3,)),
    "heads_of_y_broadcast_x": ((1,), (3,)),
    "batch_and_heads": ((2, 3), (2, 3)),
    "batch_of_y_alone": ((3,), (2, 1)),
}
head_leads = pytest.mark.parametrize("leads", HEAD_LEADS.values(), ids=list(HEAD_LEADS))


@backends
@head_leads
def test_heads_with_different_block_counts(backend, rng, leads):
    stack = layout_of(HEADS, (2, 3))
    x, y = pair(rng, stack, 4, leads=leads)
    got = check_sddmm(backend, x, y, stack)
    assert got.data.shape[-3] == 16


@backends
@pytest.mark.parametrize("beta", [0, 1, -0.5])
def test_alpha_and_beta(backend, rng, beta):
    out = make(rng, MASK, (2, 3), np.float32)
    x, y = pair(rng, out.layout, 4)
    check_sddmm(backend, x, y, out.layout, out=out, alpha=1.5, beta=beta)


@each_backend
def test_complex_alpha_and_beta(backend, rng):
    out = make(rng, MASK, (2, 3), np.complex64)
    x, y = pair(rng, out.layout, 4, np.complex64)
    check_sddmm(backend, x, y, out.layout, out=out, alpha=1 + 2j, beta=-0.5j)


@each_backend
def test_a_transposed_view_as_out(backend, rng):
    base = make(rng, MASK, (2, 3), np.float32)
    x, y = pair(rng, base.layout.T, 4)
    check_sddmm(backend, x, y, base.layout.T, out=base.T, alpha=2, beta=0.5)


@each_backend
def test_out_with_leading_axes_and_heads(backend, rng):
    out = make(rng, HEADS, (2, 3), np.float32, (2,))
    x, y = pair(rng, out.layout, 4, leads=((2, 3), (3,)))
    check_sddmm(backend, x, y, out.layout, out=out, alpha=2, beta=0.5)
    x, y = pair(rng, out.layout.T, 4, leads=((2, 3), (3,)))
    check_sddmm(backend, x, y, out.layout.T, out=out.T, alpha=2, beta=0.5)


@each_backend
def test_a_strided_out(backend, rng):
    out = make(rng, MASK, (2, 3), np.float32)
    turned = np.swapaxes(np.ascontiguousarray(np.swapaxes(out.data, -1, -2)), -1, -2)
    spread = np.repeat(out.data, 2, axis=0)[::2]
    x, y = pair(rng, out.layout, 4)
    for data in (turned, spread, out.data[::-1]):
        check_sddmm(backend, x, y, out.layout, out=out.with_data(data), beta=0.5)


STRIDES = ["transposed", "reversed", "every_second", "read_only", "broadcast_columns"]


@each_backend
@pytest.mark.parametrize("kind", STRIDES)
def test_strides(backend, rng, kind):
    layout = layout_of(MASK, (2, 3))
    x, y = pair(rng, layout, 4)
    check_sddmm(backend, strided(x, kind), y, layout)
    check_sddmm(backend, x, strided(y, kind), layout)


@each_backend
@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_inner_sizes(backend, rng, n):
    layout = layout_of(MASK, (2, 3))
    check_sddmm(backend, *pair(rng, layout, n), layout)


@each_backend
def test_a_long_inner_size(backend, rng):
    """A few blocks with a long inner dimension: parts are summed in order."""
    layout = layout_of(MASKS["last_corner"], (2, 3))
    out = make(rng, MASKS["last_corner"], (2, 3), np.float32)
    x, y = pair(rng, layout, 5000)
    check_sddmm(backend, x, y, layout, out=out, alpha=2, beta=0.5)


@each_backend
@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (0, 0)], ids=label)
def test_matrices_without_elements(backend, shape):
    layout = bs.Layout(np.zeros(shape[0] // 2 + 1, int), [], shape, (2, 3))
    x, y = np.ones((shape[0], 2)), np.ones((2, shape[1]))
    got = backend.run(bs.sddmm, x, y, layout)
    assert got.data.shape == (0, 2, 3)
    assert got.shape == shape


@backends
def test_what_is_not_stored_is_not_computed(backend, rng):
    """Rows and columns of NaN that no stored block needs."""
    layout = layout_of(MASK, (2, 3))
    x, y = pair(rng, layout, 4)
    x[2:4] = np.nan  # block row 1 and block column 2 are empty
    y[:, 6:9] = np.inf
    check = backend.run(bs.sddmm, x, y, layout)
    assert np.isfinite(check.data).all()


@backends
def test_beta_0_does_not_read_out(backend, rng):
    out = make(rng, MASK, (2, 3), np.float32)
    out.data[...] = np.nan
    x, y = pair(rng, out.layout, 4)
    check_sddmm(backend, x, y, out.layout, out=out)


@each_backend
def test_the_same_call_gives_the_same_bits(backend, rng):
    layout = layout_of(MASKS["last_corner"], (2, 3))
    x, y = pair(rng, layout, 3000)
    one, other = (backend.run(bs.sddmm, x, y, layout) for _ in range(2))
    assert one.data.tobytes() == other.data.tobytes()


# ------------------------------------------------------------------------- backward


@backends
@pytest.mark.parametrize("name", ["no_blocks", "empty_row_and_column", "power_law"])
def test_backward_patterns(backend, rng, name):
    g = make(rng, MASKS[name], (2, 3), np.float32)
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 5))


@each_backend
@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_backward_dtypes(backend, rng, dtype):
    g = make(rng, MASK, (2, 3), dtype)
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 5, dtype))


@each_backend
@pytest.mark.parametrize(
    "dtypes",
    [
        ("float32", "float16", "float32"),
        (bfloat16, "float32", bfloat16),
        ("complex64", "float32", "complex64"),
        ("complex64", "float32", "float32"),
        ("float32", "complex128", "float64"),
    ],
    ids=label,
)
def test_backward_unlike_dtypes(backend, rng, dtypes):
    g = make(rng, MASK, (2, 3), dtypes[0])
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 3, *dtypes[1:]))


@each_backend
def test_backward_of_a_transposed_gradient(backend, rng):
    g = make(rng, MASK, (2, 3), np.complex64).T
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 3, np.complex64))


@each_backend
@leading
def test_backward_sums_over_leading_axes(backend, rng, leads):
    g = make(rng, MASK, (2, 3), np.float32, np.broadcast_shapes(*leads))
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 2, leads=leads))


@each_backend
@head_leads
def test_backward_heads(backend, rng, leads):
    lead = np.broadcast_shapes(*leads)[:-1]
    g = make(rng, HEADS, (2, 3), np.float32, lead)
    check_sddmm_backward(backend, g, *pair(rng, g.layout, 2, leads=leads))


@each_backend
@pytest.mark.parametrize("kind", STRIDES)
def test_backward_strides(backend, rng, kind):
    g = make(rng, MASK, (2, 3), np.float32)
    x, y = pair(rng, g.layout, 4)
    check_sddmm_backward(backend, g, strided(x, kind), strided(y, kind))


@each_backend
@pytest.mark.parametrize("n", [0, 1, 40])
def test_backward_inner_sizes(backend, rng, n):
    g = make(rng, MASK, (2, 3), np.float32)
    check_sddmm_backward(backend, g, *pair(rng, g.layout, n))


@each_backend
def test_needs_computes_only_what_is_named(backend, rng):
    g = make(rng, MASK, (2, 3), np.float32)
    x, y = pair(rng, g.layout, 4)
    both = check_sddmm_backward(backend, g, x, y)
    grad_x, nothing = check_sddmm_backward(backend, g, x, y, needs=["x"])
    assert nothing is None
    nothing, grad_y = check_sddmm_backward(backend, g, x, y, needs="y")
    assert nothing is None
    np.testing.assert_array_equal(grad_x, both[0])
    np.testing.assert_array_equal(grad_y, both[1])


@pytest.mark.parametrize("mask", [MASKS["random"], HEADS], ids=["layout", "heads"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=label)
def test_backward_is_the_adjoint_of_forward(rng, dtype, mask):
    """<g, d(f)> = <grad_x, dx> + <grad_y, dy> for any direction (dx, dy)."""
    layout = layout_of(mask, (2, 3))
    leads = ((2, 1), (3,)) if mask.ndim == 3 else ((2,), ())
    (x, y), (dx, dy) = (pair(rng, layout, 4, dtype, leads=leads) for _ in range(2))
    x_, y_, dx_, dy_ = map(widened, (x, y, dx, dy))
    change = sampled(dx_ @ y_ + x_ @ dy_, layout)
    moduli = sampled(np.abs(dx_) @ np.abs(y_) + np.abs(x_) @ np.abs(dy_), layout)
    g = bs.bsr_array((values(rng, change.shape, dtype), layout))
    grad_x, grad_y = bs.sddmm_backward(g, x, y)
    assert_within(
        inner(grad_x, dx) + inner(grad_y, dy),
        inner(g.data, change),
        np.sum(np.abs(g.data) * moduli),
        8 * change.size,
        dtype,
    )


def test_sddmm_is_the_weight_gradient_of_matmul(rng):
    a = make(rng, MASK, (2, 3))
    x, g = values(rng, (12, 4), np.float64), values(rng, (6, 4), np.float64)
    grad_a, _ = bs.matmul_backward(g, a, x)
    np.testing.assert_array_equal(grad_a.data, bs.sddmm(g, x.T, a.layout).data)


# --------------------------------------------------------------------- any of it all


PAIRS = [(dtype, dtype) for dtype in (*FLOATS, *INTEGERS)]
PAIRS += [("float16", "float32"), ("complex64", bfloat16), ("float64", "complex64")]
PAIRS += [("int8", "uint16"), ("int32", "float32"), ("float32", "float64")]


@st.composite
def products(draw, side_limit=4):
    """Draw x, y and a layout: types, leading axes and strides."""
    rows, cols = draw(st.integers(0, side_limit)), draw(st.integers(0, side_limit))
    blocksize = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    heads = draw(st.sampled_from([None, None, 1, 2]))
    shape = (rows, cols) if heads is None else (heads, rows, cols)
    size = int(np.prod(shape))
    cells = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    layout = layout_of(np.array(cells, bool).reshape(shape), blocksize)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ours, theirs = draw(st.sampled_from(PAIRS))
    lead = st.sampled_from([(), (1,), (heads or 2,), (3, heads or 2)])
    leads = draw(lead), draw(lead)
    x, y = pair(rng, layout, draw(st.integers(0, 6)), ours, theirs, leads)
    kinds = st.sampled_from(["as_is", *STRIDES])
    x, y = strided(x, draw(kinds)), strided(y, draw(kinds))
    factors = st.sampled_from([0, 1, -2])
    return x, y, layout, rng, draw(factors), draw(factors)


def check_both(backend, drawn):
    x, y, layout, rng, alpha, beta = drawn
    got = check_sddmm(backend, x, y, layout)
    out = got.with_data(values(rng, got.data.shape, got.dtype))
    check_sddmm(backend, x, y, layout, out=out, alpha=alpha, beta=beta)
    if all(each.dtype.kind not in "iu" for each in (x, y)):
        g = got.with_data(values(rng, got.data.shape, got.dtype))
        check_sddmm_backward(backend, g, x, y)


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


LAYOUT = layout_of(MASK, (2, 3))  # (6, 12)
STACK = layout_of(HEADS, (2, 3))
X, Y = ones(6, 4), ones(4, 12)


def stored(dtype=np.float32, layout=LAYOUT, lead=()):
    return bs.bsr_array((ones(*lead, layout.blocks, 2, 3, dtype=dtype), layout))


BAD = {
    "inner_sizes": (
        lambda: (X, ones(5, 12), LAYOUT),
        ValueError,
        r"x\.shape\[-1\] must equal y\.shape\[-2\], got \(6, 4\) and \(5, 12\)",
    ),
    "shape": (
        lambda: (X, ones(4, 6), LAYOUT),
        ValueError,
        r"layout must have the shape of x @ y, \(6, 6\), got \(6, 12\)",
    ),
    "an_element_mask_as_block_mask": (
        lambda: (ones(4, 2), ones(2, 4), bs.Layout.from_mask(np.eye(4), 2)),
        ValueError,
        r"layout must have the shape of x @ y, \(4, 4\), got \(8, 8\)",
    ),
    "a_vector": (
        lambda: (X[0], Y, LAYOUT),
        ValueError,
        "x must have at least two axes",
    ),
    "a_mask": (
        lambda: (X, Y, MASK.tolist()),
        TypeError,
        r"layout must be a Layout or LayoutStack, got list; Layout\.from_mask",
    ),
    "leading_axes": (
        lambda: (ones(2, 6, 4), ones(3, 4, 12), LAYOUT),
        ValueError,
        "leading axes must broadcast",
    ),
    "heads": (
        lambda: (ones(2, 6, 4), Y, STACK),
        ValueError,
        r"leading axes must broadcast, got \(2,\) and \(\) and \(3,\)",
    ),
    "one_head_in_a_longer_axis": (
        lambda: (ones(4, 6, 4), Y, layout_of(MASK[None], (2, 3))),
        ValueError,
        "the last leading axis must be the 1 heads of the LayoutStack",
    ),
    "halves_mixed": (
        lambda: (X.astype(np.float16), Y.astype(bfloat16), LAYOUT),
        TypeError,
        "must not mix float16 and bfloat16",
    ),
    "booleans": (lambda: (X > 0, Y, LAYOUT), TypeError, "got bool"),
    "a_string": (lambda: ("x", Y, LAYOUT), TypeError, "x must be an array of NumPy"),
    "alpha": (lambda: (X, Y, LAYOUT, {"alpha": 1j}), TypeError, "alpha must be real"),
    "dtype": (lambda: (X, Y, LAYOUT, {"dtype": int}), TypeError, "given as int64"),
    "precision": (
        lambda: (X, Y, LAYOUT, {"precision": "tf16"}),
        ValueError,
        "precision must be",
    ),
    "variant": (
        lambda: (X, Y, LAYOUT, {"variant": "mma"}),
        NotImplementedError,
        "variant",
    ),
}


@each_backend
@pytest.mark.parametrize(("make_call", "error", "match"), BAD.values(), ids=list(BAD))
def test_bad_input(backend, make_call, error, match):
    x, y, layout, *keywords = make_call()
    with pytest.raises(error, match=f"^sddmm: .*{match}"):
        backend.run(bs.sddmm, x, y, layout, **(keywords[0] if keywords else {}))


def read_only(a):
    a.data.flags.writeable = False
    return a


BAD_OUT = {
    "another_layout": (
        lambda: stored(layout=layout_of(MASKS["full"], (2, 3))),
        {},
        ValueError,
        r"out must be on Layout\(.*blocks=4.* got Layout\(.*blocks=12",
    ),
    "leading_axes": (lambda: stored(lead=(2,)), {}, ValueError, "out must have shape"),
    "read_only": (lambda: read_only(stored()), {}, ValueError, "must be writable"),
    "broadcast": (
        lambda: stored().with_data(
            np.lib.stride_tricks.as_strided(ones(4, 2, 3), (4, 2, 3), (0, 12, 4))
        ),
        {},
        ValueError,
        "elements of out must not share memory",
    ),
    "integers": (lambda: stored(np.int32), {}, TypeError, "given as int32"),
    "another_dtype": (
        stored,
        {"dtype": np.float64},
        TypeError,
        "out must have dtype float64, got float32",
    ),
    "with_a_bad_beta": (stored, {"beta": 1j}, TypeError, "beta must be real"),
    "with_a_bad_variant": (stored, {"variant": "x"}, NotImplementedError, "variant"),
}


@each_backend
@pytest.mark.parametrize(
    ("out", "keywords", "error", "match"), BAD_OUT.values(), ids=list(BAD_OUT)
)
def test_bad_out_stays_as_it_was(backend, out, keywords, error, match):
    x, y, out = backend.place(X), backend.place(Y), backend.place(out())
    before = bits(out)
    with backend.computing(), pytest.raises(error, match=f"^sddmm: .*{match}"):
        bs.sddmm(x, y, LAYOUT, out=out, **keywords)
    assert bits(out) == before


@each_backend
def test_out_must_be_sparse(backend):
    with pytest.raises(
        TypeError, match=r"^sddmm: out must be a bsr_array on layout, got"
    ):
        backend.run(bs.sddmm, X, Y, LAYOUT, out=ones(6, 12))


@each_backend
def test_out_must_not_overlap_an_input(backend):
    memory = backend.place(ones(24))
    out = stored()._view(memory.reshape(4, 2, 3))
    x = memory.reshape(6, 4)
    before = bits(memory)
    with pytest.raises(ValueError, match=r"^sddmm: out must not overlap x in memory"):
        bs.sddmm(x, backend.place(Y), LAYOUT, out=out)
    assert bits(memory) == before


BAD_GRADIENTS = {
    "dense_gradient": (
        lambda: (ones(6, 12), X, Y),
        TypeError,
        "grad_out must be a bsr_array, got",
    ),
    "shape": (
        lambda: (stored(), X, ones(4, 6)),
        ValueError,
        "layout must have the sha",
    ),
    "leading_axes": (
        lambda: (stored(), ones(2, 6, 4), Y),
        ValueError,
        r"grad_out must have the leading axes of the result, \(2,\), got \(\)",
    ),
    "integers": (
        lambda: (stored(), X.astype(int), Y),
        TypeError,
        "x must be a float or complex array, got int64: integers have no gradient",
    ),
    "halves_mixed": (
        lambda: (stored(np.float16), X, Y.astype(bfloat16)),
        TypeError,
        "must not mix float16 and bfloat16",
    ),
    "needs": (lambda: (stored(), X, Y, {"needs": "z"}), ValueError, "needs must name"),
    "precision": (
        lambda: (stored(), X, Y, {"precision": 1}),
        ValueError,
        "precision must be",
    ),
}


@each_backend
@pytest.mark.parametrize(
    ("make_call", "error", "match"), BAD_GRADIENTS.values(), ids=list(BAD_GRADIENTS)
)
def test_bad_gradients(backend, make_call, error, match):
    g, x, y, *keywords = make_call()
    with pytest.raises(error, match=f"^sddmm_backward: .*{match}"):
        backend.run(bs.sddmm_backward, g, x, y, **(keywords[0] if keywords else {}))


@pytest.mark.parametrize("backend", EACH[1:])
def test_one_operand_on_the_host_and_one_on_a_device(backend):
    x, y, out = (backend.place(each) for each in (X, Y, stored()))
    with pytest.raises(
        TypeError, match=r"^sddmm: .* got y on the host and x on the dev"
    ):
        bs.sddmm(x, Y, LAYOUT)
    with pytest.raises(TypeError, match="got x, y on the host and out on the device"):
        bs.sddmm(X, Y, LAYOUT, out=out)
    with pytest.raises(TypeError, match="got out on the host and x, y on the device"):
        bs.sddmm(x, y, LAYOUT, out=stored())
    with pytest.raises(TypeError, match="got grad_out on the host and x, y on the dev"):
        bs.sddmm_backward(stored(), x, y)
