"""Products of one sparse and one dense operand, and the sampled product.

Sums are kept in :func:`numba_bs.dtypes.accumulator` of the operands and rounded
once. Arguments that only steer kernels (``precision``, ``variant``, ``stream``,
``workspace``) are taken and ignored.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from .. import checks
from ..arrays import Array
from ..bsr import as_bsr, bsr_array
from ..dtypes import result_dtype, sums_dtype
from ..layout import Layout, LayoutStack

# One BLAS product a block row beats SciPy's loop over blocks from blocks of this many
# elements and this many columns on (benchmarks/bench_matmul.py --device cpu).
BLAS_BLOCK = 64
BLAS_COLUMNS = 4
# Columns of one BLAS product: as many as leave it to one thread (OpenBLAS wakes others
# from about this many multiplications on, which costs more than so short a product),
# within what stays in the cache and what is worth a call.
BLAS_ALONE = 2**18
COLUMNS = range(32, 129)

_NO_BLOCKS = scipy.sparse.bsr_array((0, 0))


def matmul(
    a: bsr_array | Array,
    b: bsr_array | Array,
    *,
    out: Array | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    dtype: DTypeLike | None = None,
    precision: str | None = None,
    variant: str | None = None,
    stream: object | None = None,
    workspace: Array | None = None,
) -> Array:
    """See :func:`numba_bs.matmul`."""
    sparse = as_bsr("matmul", "a", a)
    if sparse is None:  # x @ a = (a^T x^T)^T
        flipped = out if out is None or a.ndim == 1 else out.swapaxes(-1, -2)
        x = a if a.ndim == 1 else a.swapaxes(-1, -2)
        b = as_bsr("matmul", "b", b)
        y = matmul(b.T, x, out=flipped, alpha=alpha, beta=beta, dtype=dtype)
        return y if a.ndim == 1 else y.swapaxes(-1, -2) if out is None else out
    natural = result_dtype("matmul", sparse.dtype, b.dtype)
    given = out.dtype if out is not None else natural if dtype is None else dtype
    sums = _sums(natural, np.dtype(given))
    product = _product(sparse, b[:, None] if b.ndim == 1 else b, sums)
    product = product[..., 0] if b.ndim == 1 else product
    return _finish(product, out, alpha, beta, given)


def matmul_backward(
    grad_out: Array,
    a: bsr_array | Array,
    b: bsr_array | Array,
    *,
    needs: Sequence[str] = ("a", "b"),
    precision: str | None = None,
    variant: str | None = None,
    stream: object | None = None,
    workspace: Array | None = None,
) -> tuple:
    """See :func:`numba_bs.matmul_backward`."""
    sparse = as_bsr("matmul_backward", "a", a)
    if sparse is None:  # (x @ b)^T = b^T x^T
        sparse = as_bsr("matmul_backward", "b", b)
        wanted = [{"a": "b", "b": "a"}[name] for name in needs]
        turned = grad_out if a.ndim == 1 else _transposed(grad_out)
        grad_b, grad_a = matmul_backward(turned, sparse.T, _transposed(a), needs=wanted)
        grad_a = None if grad_a is None else _transposed(grad_a)
        return grad_a, None if grad_b is None else grad_b.T
    g, x = (each[:, None] if b.ndim == 1 else each for each in (grad_out, b))
    if b.ndim == 1 and grad_out.ndim > 1:
        g = grad_out[..., None]
    grad_a = grad_b = None
    if "a" in needs:
        natural = result_dtype("matmul_backward", g.dtype, x.dtype)
        sums = sums_dtype(natural, sparse.dtype)
        if sparse._transposed:
            values = _sampled(x.conj(), g.swapaxes(-1, -2), sparse._layout, sums)
        else:
            values = _sampled(g, x.conj().swapaxes(-1, -2), sparse._layout, sums)
        values = _sum_to(values, (*sparse.leading, *values.shape[-3:]), sparse.dtype)
        grad_a = sparse._view(values)
    if "b" in needs:
        natural = result_dtype("matmul_backward", g.dtype, sparse.dtype)
        sums = sums_dtype(natural, x.dtype)
        grad_b = _product(sparse.conj(copy=False).T, g, sums)
        grad_b = _sum_to(grad_b, x.shape, x.dtype)
        grad_b = grad_b[:, 0] if b.ndim == 1 else grad_b
    return grad_a, grad_b


def sddmm(
    x: Array,
    y: Array,
    layout: Layout | LayoutStack,
    *,
    out: bsr_array | None = None,
    alpha: complex = 1,
    beta: complex = 0,
    dtype: DTypeLike | None = None,
    precision: str | None = None,
    variant: str | None = None,
    stream: object | None = None,
    workspace: Array | None = None,
) -> bsr_array:
    """See :func:`numba_bs.sddmm`."""
    natural = result_dtype("sddmm", x.dtype, y.dtype)
    given = out.dtype if out is not None else natural if dtype is None else dtype
    sums = _sums(natural, np.dtype(given))
    if out is not None and out._transposed:  # out.T = y^T x^T on its layout
        x, y = y.swapaxes(-1, -2), x.swapaxes(-1, -2)
        layout = layout.T
    values = _sampled(x, y, layout, sums)
    stored = None if out is None else out._values
    values = _finish(values, stored, alpha, beta, given)
    return bsr_array((values, layout)) if out is None else out


def sddmm_backward(
    grad_out: bsr_array,
    x: Array,
    y: Array,
    *,
    needs: Sequence[str] = ("x", "y"),
    precision: str | None = None,
    variant: str | None = None,
    stream: object | None = None,
    workspace: Array | None = None,
) -> tuple:
    """See :func:`numba_bs.sddmm_backward`."""
    grad_x = grad_y = None
    grad_out = as_bsr("sddmm_backward", "grad_out", grad_out)
    if "x" in needs:
        natural = result_dtype("sddmm_backward", grad_out.dtype, y.dtype)
        sums = sums_dtype(natural, x.dtype)
        grad_x = _product(grad_out, y.conj().swapaxes(-1, -2), sums)
        grad_x = _sum_to(grad_x, x.shape, x.dtype)
    if "y" in needs:
        natural = result_dtype("sddmm_backward", grad_out.dtype, x.dtype)
        sums = sums_dtype(natural, y.dtype)
        grad_y = _product(grad_out.T, x.conj(), sums)  # transposed: G^T conj(x)
        grad_y = _sum_to(grad_y.swapaxes(-1, -2), y.shape, y.dtype)
    return grad_x, grad_y


# ------------------------------------------------------------------ 2-D products


def _product(a, x, sums):
    """Return ``a @ x`` in ``sums``: (..., M, K) sparse times (..., K, N)."""
    layout, values = a._layout, a._operand().as_array()
    stacked = isinstance(layout, LayoutStack)
    own = (*values.shape[:-3], layout.heads) if stacked else values.shape[:-3]
    lead = np.broadcast_shapes(own, x.shape[:-2])
    if lead == () and not stacked:
        return _times(layout, values, a._transposed, x, sums)
    out = np.empty((*lead, a.shape[0], x.shape[-1]), sums)
    x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
    kept = lead[:-1] if stacked else lead
    values = np.broadcast_to(values, (*kept, *values.shape[-3:]))
    for index in np.ndindex(*lead):
        single, blocks = layout, values[index[:-1] if stacked else index]
        if stacked:
            single = layout.layouts[index[-1]]
            blocks = blocks[layout.head_ptr[index[-1]] :][: single.blocks]
        out[index] = _times(single, blocks, a._transposed, x[index], sums)
    return out


def _times(layout, values, transposed, x, sums):
    """Return ``A @ x`` or ``A.T @ x`` for one layout: SciPy's loop or BLAS."""
    R, C = layout.blocksize
    x = x.astype(sums, copy=False)
    if R * C < BLAS_BLOCK or sums.kind in "iu" or x.shape[1] < BLAS_COLUMNS:
        values = values.astype(sums, copy=False)
        a = _scipy_bsr(values, layout)
        a = a.T if transposed else a
        # SciPy has a loop of its own for vectors.
        return (a @ x[:, 0])[:, None] if x.shape[1] == 1 else a @ x
    if transposed:
        indptr, indices, order = layout._columns
        return _rows_times(indptr, indices, values[order].swapaxes(1, 2), x)
    return _rows_times(layout.indptr, layout.indices, values, x)


def _scipy_bsr(values, layout):
    """Return SciPy's array over the same memory; a Layout needs no second check."""
    a = object.__new__(scipy.sparse.bsr_array)
    a.__dict__.update(
        _NO_BLOCKS.__dict__,
        data=values,
        indices=layout.indices,
        indptr=layout.indptr,
        _shape=layout.shape,
    )
    return a


def _rows_times(indptr, indices, blocks, x):
    """Return ``A @ x``: one BLAS product a block row, some columns at a time.

    ``blocks`` (entries, R, C) row by row; ``x`` (K, N) in the type of the result. The
    columns of a step are few enough that what is gathered stays in the cache.
    """
    _, R, C = blocks.shape
    rows, N = len(indptr) - 1, x.shape[1]
    out = np.zeros((rows, R, N), x.dtype)
    width = BLAS_ALONE * rows // max(blocks.size, 1)
    width = min(max(width, COLUMNS.start), COLUMNS.stop - 1)
    for col in range(0, N, width):
        columns = slice(col, col + width)
        strips = np.ascontiguousarray(x[:, columns])
        strips = strips.reshape(-1, C, strips.shape[1])
        for row in range(rows):
            entries = slice(indptr[row], indptr[row + 1])
            if entries.start == entries.stop:
                continue
            left = blocks[entries].astype(x.dtype, copy=False)
            left = left.swapaxes(0, 1).reshape(R, -1)
            right = strips[indices[entries]].reshape(-1, strips.shape[2])
            out[row, :, columns] = left @ right
    return out.reshape(-1, N)


def _sampled(x, y, layout, sums):
    """Return the blocks of ``x @ y`` that ``layout`` stores, (..., blocks, R, C)."""
    stacked = isinstance(layout, LayoutStack)
    lead = np.broadcast_shapes(
        x.shape[:-2], y.shape[:-2], (layout.heads,) if stacked else ()
    )
    x, y = (np.broadcast_to(each, (*lead, *each.shape[-2:])) for each in (x, y))
    R, C = layout.blocksize
    kept = lead[:-1] if stacked else lead
    values = np.zeros((*kept, layout.blocks, R, C), sums)
    layouts = layout.layouts if stacked else (layout,)
    begins = layout.head_ptr if stacked else (0,)
    for index in np.ndindex(*lead):
        head = index[-1] if stacked else 0
        target = values[index[:-1] if stacked else index][begins[head] :]
        left, right = (each[index].astype(sums, copy=False) for each in (x, y))
        _sampled_rows(left, right, layouts[head], target)
    return values


def _sampled_rows(x, y, layout, out):
    """Write the blocks of ``x @ y``: one BLAS product a block row, or a part of it."""
    R, C = layout.blocksize
    n = x.shape[1]
    strips = y.reshape(n, layout.block_cols, C).swapaxes(0, 1)
    alone = BLAS_ALONE // max(R * n * C, 1)
    for row in range(layout.block_rows):
        first, last = layout.indptr[row : row + 2]
        for entry in range(first, last, alone or last - first or 1):
            entries = slice(entry, min(entry + alone, last) if alone else last)
            cols = layout.indices[entries]
            right = strips[cols].swapaxes(0, 1).reshape(n, len(cols) * C)
            product = x[row * R : (row + 1) * R] @ right
            out[entries] = product.reshape(R, len(cols), C).swapaxes(0, 1)


# ----------------------------------------------------------------- small helpers


def _sums(natural, given):
    """Return the type of sums: integers wrap alike in their own, without a copy."""
    sums = sums_dtype(natural, given)
    return given if sums.kind in "iu" else sums


def _finish(product, out, alpha, beta, dtype):
    """Return ``alpha * product + beta * out`` rounded once, in ``out`` if given."""
    if alpha != 1:
        product *= np.asarray(alpha).astype(product.dtype)
    checks.beta_needs_out("reference", beta, out)
    if out is None:
        return product.astype(dtype, copy=False)
    target = out if isinstance(out, np.ndarray) else np.asarray(out)
    if beta != 0:
        beta = np.asarray(beta).astype(product.dtype)
        product += beta * target.astype(product.dtype)
    target[...] = product
    return out


def _sum_to(full, shape, dtype):
    """Sum the leading axes that ``shape`` lacks or has as 1; round once."""
    extra = full.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        axis + extra
        for axis, size in enumerate(shape)
        if size == 1 and full.shape[axis + extra] != 1
    )
    full = full.sum(axis=axes, dtype=full.dtype) if axes else full
    full = full.real if full.dtype.kind == "c" and np.dtype(dtype).kind != "c" else full
    return full.reshape(shape).astype(dtype, copy=False)


def _transposed(x):
    return x if x.ndim == 1 else x.swapaxes(-1, -2)
