"""The products and their gradients, checked against dense ones in a wider type."""

import numpy as np
from bounds import assert_within, widened
from patterns import dense, sampled

import numba_bs as bs
from numba_bs.dtypes import accumulator, is_integer


def check_matmul(backend, a, b, operation=bs.matmul, *, out=None, dtype=None, **more):
    """Require that ``operation`` multiplies ``a`` and ``b``; return its result."""
    natural = np.result_type(a.dtype, b.dtype)
    result = out.dtype if out is not None else np.dtype(dtype or natural)
    left, right = (
        dense(x, result) if isinstance(x, bs.bsr_array) else widened(x, result)
        for x in (a, b)
    )
    terms = left.shape[-1]
    exact, magnitude = left @ right, np.abs(left) @ np.abs(right)
    keywords = more | {"out": out, "dtype": dtype}
    keywords = {name: x for name, x in keywords.items() if x is not None}
    exact, magnitude = scaled(exact, magnitude, out, more)
    actual = backend.run(operation, a, b, **keywords)
    assert actual.dtype == result
    assert_within(
        actual, cut(exact, result), magnitude, terms + 4, sums(natural, result)
    )
    return actual


def check_sddmm(backend, x, y, layout, *, out=None, dtype=None, **more):
    """Require that sddmm gives the blocks of ``x @ y``; return its result."""
    natural = np.result_type(x.dtype, y.dtype)
    result = out.dtype if out is not None else np.dtype(dtype or natural)
    left, right = widened(x, result), widened(y, result)
    exact, magnitude = left @ right, np.abs(left) @ np.abs(right)
    if isinstance(layout, bs.LayoutStack):
        exact, magnitude = (with_heads(full, layout) for full in (exact, magnitude))
    exact, magnitude = scaled(
        exact, magnitude, None if out is None else dense(out), more
    )
    keywords = more | {"out": out, "dtype": dtype}
    keywords = {name: x for name, x in keywords.items() if x is not None}
    actual = backend.run(bs.sddmm, x, y, layout, **keywords)
    assert isinstance(actual, bs.bsr_array)
    assert actual.layout == layout
    assert actual.dtype == result
    assert_within(
        sampled(dense(actual), layout).astype(result),
        cut(sampled(exact, layout), result),
        sampled(magnitude, layout),
        x.shape[-1] + 4,
        sums(natural, result),
    )
    return actual


def check_matmul_backward(backend, grad, a, b, **keywords):
    """Require the gradients of ``a @ b``; return them."""
    grad_a, grad_b = backend.run(bs.matmul_backward, grad, a, b, **keywords)
    left, right = (
        dense(x) if isinstance(x, bs.bsr_array) else widened(x) for x in (a, b)
    )
    g = widened(grad)
    if left.ndim == 1:
        left, g = left[None, :], g[..., None, :]
    if right.ndim == 1:
        right, g = right[:, None], g[..., :, None]
    if grad_a is not None:
        _check_gradient(grad_a, a, g, adjoint(right), np.result_type(grad, b.dtype))
    if grad_b is not None:
        _check_gradient(grad_b, b, adjoint(left), g, np.result_type(grad, a.dtype))
    return grad_a, grad_b


def check_sddmm_backward(backend, grad, x, y, **keywords):
    """Require the gradients of the blocks of ``x @ y``; return them."""
    grad_x, grad_y = backend.run(bs.sddmm_backward, grad, x, y, **keywords)
    g, left, right = dense(grad), widened(x), widened(y)
    if grad_x is not None:
        _check_gradient(grad_x, x, g, adjoint(right), np.result_type(grad.dtype, y))
    if grad_y is not None:
        _check_gradient(grad_y, y, adjoint(left), g, np.result_type(grad.dtype, x))
    return grad_x, grad_y


def _check_gradient(actual, of, left, right, natural):
    """Require that ``actual`` is ``left @ right`` summed to what ``of`` is."""
    exact, magnitude = left @ right, np.abs(left) @ np.abs(right)
    before = exact.size
    if isinstance(of, bs.bsr_array):
        assert isinstance(actual, bs.bsr_array)
        assert actual.layout == of.layout
        assert actual._transposed == of._transposed
        shape = dense(of).shape
        if isinstance(of.layout, bs.LayoutStack):
            exact, magnitude = (with_heads(e, of.layout) for e in (exact, magnitude))
        exact, magnitude = (
            sampled(summed_to(full, shape), of.layout) for full in (exact, magnitude)
        )
        terms = left.shape[-1] * max(before // max(int(np.prod(shape)), 1), 1)
        found = sampled(dense(actual), of.layout).astype(actual.dtype)
    else:
        exact, magnitude = (summed_to(full, of.shape) for full in (exact, magnitude))
        terms = left.shape[-1] * max(before // max(of.size, 1), 1)
        found = actual
    assert actual.dtype == of.dtype
    assert actual.shape == of.shape
    exact = exact if of.dtype.kind == "c" else exact.real
    assert_within(found, exact, magnitude, terms, sums(natural, of.dtype))


def scaled(exact, magnitude, out, keywords):
    """Return alpha * exact + beta * out, and what the moduli sum up to."""
    alpha, beta = keywords.get("alpha", 1), keywords.get("beta", 0)
    exact, magnitude = alpha * exact, np.abs(alpha) * magnitude
    if beta != 0:
        old = widened(out, exact.dtype)
        exact, magnitude = exact + beta * old, magnitude + np.abs(beta) * np.abs(old)
    return exact, magnitude


def cut(exact, dtype):
    """Let integers wrap to ``dtype``; leave floats exact."""
    return exact.astype(dtype) if is_integer(dtype) else exact


def sums(natural, result):
    """Return the dtype in which sums are kept."""
    natural, result = np.dtype(natural), np.dtype(result)
    if is_integer(result):
        return accumulator(result)
    return np.result_type(accumulator(natural), accumulator(result))


def adjoint(x):
    """Return the conjugate transpose of the last two axes."""
    return np.conj(np.swapaxes(x, -1, -2))


def with_heads(full, stack):
    """Return (..., heads, M, K): operands may share what heads do not."""
    lead = np.broadcast_shapes(full.shape[:-2], (stack.heads,))
    return np.broadcast_to(full, (*lead, *full.shape[-2:]))


def summed_to(full, shape):
    """Sum the leading axes that ``shape`` lacks, or has as 1."""
    if len(shape) == 1:  # a vector: the matrix has one row or one column
        matrix = (1, shape[0]) if full.shape[-2] == 1 else (shape[0], 1)
        return summed_to(full, matrix).reshape(shape)
    full = full.sum(axis=tuple(range(full.ndim - len(shape))))
    for axis, size in enumerate(shape[:-2]):
        if size != full.shape[axis]:
            full = full.sum(axis=axis, keepdims=True)
    return full


def inner(x, y):
    """Return the real inner product."""
    return np.sum((np.conj(widened(x)) * widened(y)).real).astype(np.float64)
