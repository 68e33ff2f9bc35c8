"""Element-wise operations on the values of one layout: scale, add, multiply, cast.

Meaning: ``reference/_elementwise.py``. Kernel: ``cuda/elementwise_simt.py``.
"""

import itertools

import numpy as np

from . import arrays, checks, strided
from .arrays import Operand
from .dtypes import bfloat16, result_dtype, sums_dtype
from .reference import _elementwise as reference


def scale(op, a, alpha=1, *, dtype=None, conj=False, divide=False):
    """Return ``alpha * a`` (``a / alpha`` with ``divide``) as a new bsr_array.

    Parameters
    ----------
    a : bsr_array
    alpha : scalar
    dtype : of the result; NumPy's of ``a`` and ``alpha`` if not given
    conj : conjugate the values first
    """
    values = a._operand(op)
    alpha = alpha.item() if hasattr(alpha, "item") else alpha  # keeps the dtype
    if dtype is None:
        # NumPy has no rule for a Python scalar beside bfloat16.
        known = np.dtype(np.float32) if values.dtype == bfloat16 else values.dtype
        natural = np.result_type(known, alpha)
        dtype = values.dtype if natural.kind == known.kind else natural
    factor = np.true_divide(1, alpha) if divide else alpha
    source = values.conjugate() if conj else values
    result = arrays.empty(values.shape, dtype, values)
    _map("scale", source, None, arrays.describe(op, "out", result), factor, 0)
    return a._view(result)


def axpby(op, a, b, alpha, beta):
    """Return ``alpha * a + beta * b`` on their common layout."""
    return _combine(op, "axpby", a, b, alpha, beta)


def multiply(op, a, b):
    """Return ``a * b``, block by block and element by element."""
    return _combine(op, "multiply", a, b, 1, 0)


def _combine(op, operation, a, b, alpha, beta):
    if a.layout != b.layout:
        raise NotImplementedError(
            f"{op}: arrays of different layouts are not served in this release, got "
            f"{a.layout} and {b.layout}; .to_scipy() has it"
        )
    if a._transposed != b._transposed:
        a, b = (each.with_data(each.data) for each in (a, b))
    x, y = a._operand(op), b._operand(op)
    checks.same_device(op, a=x, b=y)
    dtype = result_dtype(op, x.dtype, y.dtype)
    lead = checks.leading(op, x.shape[:-3], y.shape[:-3])
    shape = (*lead, *x.shape[-3:])
    x, y = (
        each.view(shape, strided.aligned(each.strides, each.shape, shape))
        for each in (x, y)
    )
    result = arrays.empty(shape, dtype, x)
    _map(operation, x, y, arrays.describe(op, "out", result), alpha, beta)
    return a._view(result)


def gather_transposed(a):
    """Return the values of the transposed view ``a`` in its own order, a new array."""
    base = a._operand("data")
    order = a._layout.transpose_order
    source = base.mT
    if base.device is None:
        gathered = arrays.to_numpy(source)[..., order, :, :]
        return arrays.give_back(gathered, base)
    result = arrays.empty(source.shape, base.dtype, base)
    out = arrays.describe("data", "out", result)
    if out.size:
        from .cuda import gather_blocks_simt
        from .cuda.upload import resident

        stream = arrays.stream_of(base)
        index = resident(a._layout, base, stream, "transpose_order")
        gather_blocks_simt.launch(index, *_as_4d(source, out), stream)
    return result.conj() if base.conj else result


def _as_4d(*operands: Operand):
    """Merge leading axes of ``(..., blocks, R, C)`` arrays into one."""
    for each in operands:
        lead, (by,) = strided.merge(each.shape[:-3], each.strides[:-3])
        if len(lead) > 1:
            raise NotImplementedError(
                "data: leading axes that do not merge into one are not served for a "
                "transposed view on a device; copy() the base first"
            )
        yield each.view(
            (*(lead or (1,)), *each.shape[-3:]), (*(by or (0,)), *each.strides[-3:])
        )


def cast(source: Operand, out: Operand, alpha=1, beta=0, stream=None) -> None:
    """Write ``out = alpha * source + beta * out`` in the accumulation type."""
    if beta == 0:
        _map("scale", source, None, out, alpha, 0, stream)
    else:
        _map("axpby", source, out, out, alpha, beta, stream)


def _map(operation, x, y, out, alpha, beta, stream=None) -> None:
    """Write ``out``, whose shape the operands have."""
    if out.size == 0:
        return
    inputs = [each for each in (x, y) if each is not None]
    natural = result_dtype(operation, *(e.dtype for e in inputs))
    sums = sums_dtype(natural, out.dtype)
    alpha, beta = (
        checks.scalar(operation, "factor", value, sums) for value in (alpha, beta)
    )
    if out.device is None:
        x, y = (None if e is None else arrays.to_numpy(e) for e in (x, y))
        getattr(reference, operation)(x, y, alpha, beta, out.as_array())
        return
    from .cuda import elementwise_simt
    from .cuda.launch import ordered

    others = ()
    if stream is None:
        stream = arrays.stream_of(x)
        others = arrays.streams_of((*inputs, out)) - {stream}
    shape, steps = strided.merge(out.shape, *(e.strides for e in (*inputs, out)))
    outer, inner = shape[:-3], shape[-3:] or (1,)
    with ordered(out.device, stream, sorted(others)):
        for index in itertools.product(*map(range, outer)):
            views = [
                each.view(
                    inner,
                    by[len(outer) :] or (each.dtype.itemsize,),
                    sum(i * step for i, step in zip(index, by, strict=False)),
                )
                for each, by in zip((*inputs, out), steps, strict=True)
            ]
            source, other = views[0], views[1] if y is not None else None
            elementwise_simt.launch(
                operation, source, other, views[-1], alpha, beta, stream
            )
