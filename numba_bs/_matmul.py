"""Products of a block-sparse and a dense operand, and the sampled product.

``matmul`` is dsd (dense = sparse @ dense) and, on transposed views, dds;
``sddmm`` is sdd. Their gradients are each other. Meaning:
``reference/_matmul.py``. Kernels: ``cuda/matmul_dsd_*.py``, ``cuda/matmul_sdd_*.py``.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from . import _prepared as prepared
from . import arrays, checks, choose, reference, strided
from . import plan as plans
from ._elementwise import cast
from ._explain import explaining, only_explained
from .arrays import Array, Operand
from .bsr import as_bsr, blocks_of, bsr_array, require_canonical
from .dtypes import result_dtype, storage_dtype, sums_dtype
from .layout import Layout, LayoutStack
from .leading import LeadingAxes


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
    """Multiply a block-sparse and a dense operand.

    ``out = alpha * (a @ b) + beta * out``; one of ``a`` and ``b`` is sparse.

    Parameters
    ----------
    a, b : bsr_array (or SciPy's BSR) and array
        (..., M, K) and (..., K, N), or a vector (K,) as the dense one. Leading axes
        of values and dense operand broadcast; a LayoutStack counts its heads as the
        last leading axis. Any strides. ``a.T`` is a view and costs no copy.
    out : array, optional
        Where to write the result; must overlap no input.
    alpha, beta : scalars
        ``beta=0`` never reads ``out``; another ``beta`` needs one.
    dtype : optional
        Of the result, if not that of ``out`` or NumPy's for the operands.
    precision : None, "ieee", "tf32" or "tf32x3"
        What float32 products may lose to run on tensor cores: nothing (None, "ieee");
        "tf32" rounds operands to 11 bits; "tf32x3" adds three products of rounded
        parts, whose error is that of float32 (an infinity becomes NaN).
    variant : str, optional
        Name of the one kernel to use: "simt", "mma" or "wgmma" on a device,
        "reference" on the host.
    stream : optional
        Handle or stream object of any library; the caller then orders the work.
    workspace : device array, optional
        Scratch memory; :func:`explain` tells how many bytes.

    Returns
    -------
    array (..., M, N), or (..., M) for a vector
        In the library of the dense operand; ``out`` if given.

    Raises
    ------
    TypeError
        Both operands sparse or dense, dtypes that do not mix, one operand on the
        host and one on a device, a tensor that requires grad.
    ValueError
        Shapes, devices, an ``out`` that cannot be written.
    NotImplementedError
        sparse @ sparse, a ``variant`` that does not serve the call.

    Notes
    -----
    2 * blocks * R * C * N flops. Sums in float32 for 16-bit floats and float32, in
    float64 for float64 (complex likewise), rounded once; integers wrap. Blocks that
    are not stored are skipped, so what is NaN there stays there. Deterministic. On a
    device the call is asynchronous and never synchronises.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> a = bs.bsr_array(np.diag([1.0, 2.0, 3.0, 4.0]), blocksize=2)
    >>> bs.matmul(a, np.ones(4), alpha=10)
    array([10., 20., 30., 40.])
    >>> np.ones((3, 4)) @ a
    array([[1., 2., 3., 4.],
           [1., 2., 3., 4.],
           [1., 2., 3., 4.]])
    """
    options = alpha, beta, dtype, precision, variant
    return prepared.call("matmul", _matmul, (a, b), out, workspace, options, stream)


def _matmul(op, a, b, out, workspace, alpha, beta, dtype, precision, variant, stream):
    sparse, dense, flipped = _operands(op, a, b)
    values = sparse._operand(op, "b" if flipped else "a")
    names = {"b" if flipped else "a": values, "a" if flipped else "b": dense}
    checks.same_device(op, **names)
    shape = _result_shape(op, a, b, sparse, dense, flipped)
    target, given, sums = _output(op, out, dtype, shape, names)
    alpha, beta = (
        checks.scalar(op, name, value, sums)
        for name, value in (("alpha", alpha), ("beta", beta))
    )
    checks.beta_needs_out(op, beta, out)
    options = _options(op, dense, names, target, variant, precision, stream, workspace)
    if dense.device is None:
        return prepared.run_reference(
            reference.matmul,
            (dense, sparse.T) if flipped else (sparse, dense),
            out,
            dense.library,
            alpha=alpha,
            beta=beta,
            dtype=given,
        )
    result = prepared.empty(shape, given, dense) if out is None else out
    target = arrays.describe(op, "out", result) if out is None else target
    x, y = _as_columns(dense, target, flipped)
    _dsd(op, sparse, x, y, alpha, beta, options)
    return result


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
    """Return the gradients of :func:`matmul` (``alpha=1``).

    ``grad_a = (grad_out @ b^H)`` on the layout of ``a``, an :func:`sddmm`;
    ``grad_b = a^H @ grad_out``, a :func:`matmul`; for ``x @ a`` likewise.

    Parameters
    ----------
    grad_out : array
        Gradient with respect to the result, of its shape.
    a, b : as in :func:`matmul`
        The sparse one canonical.
    needs : names of inputs
        Which gradients to compute.
    precision, variant, stream, workspace : as in :func:`matmul`

    Returns
    -------
    grad_a, grad_b
        Each of the type, layout, shape and dtype of its input; None where not
        needed. Summed over leading axes that the input lacks, in the accumulation
        type. For a transposed view: the view of the gradient of its base. For a real
        input among complex ones: the real part.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :func:`matmul`; also integers (no gradient) and a SciPy array that is not
        canonical.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> a = bs.bsr_array(np.diag([1.0, 2.0, 3.0, 4.0]), blocksize=2)
    >>> grad_a, grad_x = bs.matmul_backward(np.ones(4), a, np.arange(4.0))
    >>> grad_a.toarray()
    array([[0., 1., 0., 0.],
           [0., 1., 0., 0.],
           [0., 0., 2., 3.],
           [0., 0., 2., 3.]])
    >>> grad_x
    array([1., 2., 3., 4.])
    """
    op = "matmul_backward"
    options = checks.needs(op, needs, ("a", "b")), precision, variant
    inputs = grad_out, a, b
    return prepared.call(op, _matmul_backward, inputs, None, workspace, options, stream)


def _matmul_backward(
    op, grad_out, a, b, _, workspace, needs, precision, variant, stream
):
    require_canonical(op, "a", a)
    require_canonical(op, "b", b)
    sparse, dense, flipped = _operands(op, a, b)
    of_sparse, of_dense = ("b", "a") if flipped else ("a", "b")
    values = sparse._operand(op, of_sparse)
    grad = arrays.describe(op, "grad_out", grad_out)
    names = {"grad_out": grad, of_sparse: values, of_dense: dense}
    checks.same_device(op, **names)
    for name, operand in names.items():
        _require_float(op, name, operand)
    shape = _result_shape(op, a, b, sparse, dense, flipped)
    if grad.shape != shape:
        raise ValueError(
            f"{op}: grad_out must have the shape of the result, {shape}, "
            f"got {grad.shape}"
        )
    result_dtype(op, *(operand.dtype for operand in names.values()))
    options = _options(op, dense, names, None, variant, precision, stream, workspace)
    if dense.device is None:
        pair = (dense, sparse.T) if flipped else (sparse, dense)
        inputs = grad, *pair
        return prepared.run_reference(
            reference.matmul_backward, inputs, None, dense.library, needs=needs
        )
    grad_sparse = grad_dense = None
    if of_sparse in needs:
        x, g = _as_columns(dense, grad, flipped)
        kept = prepared.empty(values.shape, values.dtype, values)
        target = arrays.describe(op, "grad", kept)
        turned = sparse._transposed
        pair = (x.conjugate(), g.mT) if turned else (g, x.mT.conjugate())
        _sdd(op, *pair, sparse._layout, target, 1, 0, options)
        grad_sparse = sparse._view(kept)
        grad_sparse = grad_sparse.T if flipped else grad_sparse
    if of_dense in needs:
        grad_dense = prepared.empty(dense.shape, dense.dtype, dense)
        target = arrays.describe(op, "grad", grad_dense)
        x, g = _as_columns(target, grad, flipped)
        _dsd(op, sparse.T, g, x, 1, 0, options, conj=True)
    return (grad_dense, grad_sparse) if flipped else (grad_sparse, grad_dense)


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
    """Compute the blocks of ``x @ y`` that a layout stores (sampled dense product).

    ``out = alpha * (x @ y) + beta * out`` on ``layout``: the weight gradient of
    ``y = a @ x`` is ``sddmm(grad_y, x.T, a.layout)``, attention scores are
    ``sddmm(q, k.mT, layout)``.

    Parameters
    ----------
    x : array (..., M, N)
    y : array (..., N, K)
        Leading axes broadcast; any strides, so ``k.mT`` costs no copy.
    layout : Layout or LayoutStack of shape (M, K)
        A LayoutStack takes the last leading axis as its heads.
    out : bsr_array, optional
        On ``layout``; written in place (``beta=1`` accumulates).
    alpha, beta, dtype, precision, variant, stream, workspace : as in :func:`matmul`

    Returns
    -------
    bsr_array with values (..., blocks, R, C)
        In the library of ``x``; ``out`` if given.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :func:`matmul`; ``layout`` that is no Layout (a mask is one element per
        block: ``Layout.from_mask``).

    Notes
    -----
    2 * blocks * R * C * N flops. Sums as in :func:`matmul`; deterministic, also when
    a long inner dimension is cut. On a device asynchronous.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> layout = bs.Layout.from_mask([[1, 0], [0, 1]], blocksize=(1, 2))
    >>> bs.sddmm(np.ones((2, 3)), np.ones((3, 4)), layout).toarray()
    array([[3., 3., 0., 0.],
           [0., 0., 3., 3.]])
    """
    inputs, options = (x, y, layout), (alpha, beta, dtype, precision, variant)
    return prepared.call("sddmm", _sddmm, inputs, out, workspace, options, stream)


def _sddmm(
    op, x, y, layout, out, workspace, alpha, beta, dtype, precision, variant, stream
):
    blocks_of(layout, op)
    x, y = arrays.describe(op, "x", x), arrays.describe(op, "y", y)
    names = {"x": x, "y": y}
    checks.same_device(op, **names)
    shape = _sampled_shape(op, x, y, layout)
    stored, wanted = out, layout
    if out is not None:
        if not isinstance(out, bsr_array):
            raise TypeError(
                f"{op}: out must be a bsr_array on layout, got {type(out).__name__}"
            )
        if out.layout != layout:
            raise ValueError(f"{op}: out must be on {layout}, got {out.layout}")
        stored = out._values
        if out._transposed:  # out^T = y^T x^T on its own layout
            x, y, layout = y.mT, x.mT, out._layout
            shape = (*shape[:-2], *layout.blocksize)
    target, given, sums = _output(op, stored, dtype, shape, names)
    alpha, beta = (
        checks.scalar(op, name, value, sums)
        for name, value in (("alpha", alpha), ("beta", beta))
    )
    checks.beta_needs_out(op, beta, out)
    options = _options(
        op, names["x"], names, target, variant, precision, stream, workspace
    )
    if x.device is None:
        return prepared.run_reference(
            reference.sddmm,
            (*names.values(), wanted),
            out,
            names["x"].library,
            alpha=alpha,
            beta=beta,
            dtype=given,
        )
    if out is None:
        stored = prepared.empty(shape, given, x)
        target = arrays.describe(op, "out", stored)
    _sdd(op, x, y, layout, target, alpha, beta, options)
    return bsr_array((stored, layout)) if out is None else out


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
    """Return the gradients of :func:`sddmm` (``alpha=1``).

    ``grad_x = grad_out @ y^H`` and ``grad_y = x^H @ grad_out``: two products.

    Parameters
    ----------
    grad_out : bsr_array
        Gradient with respect to the result, on its layout.
    x, y : as in :func:`sddmm`
    needs : names of inputs
        Which gradients to compute.
    precision, variant, stream, workspace : as in :func:`matmul`

    Returns
    -------
    grad_x, grad_y
        Each of the type, shape and dtype of its input; None where not needed.
        Summed over leading axes that the input lacks.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :func:`matmul_backward`.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> layout = bs.Layout.from_mask([[1, 0], [0, 1]], blocksize=(1, 1))
    >>> g = bs.bsr_array((np.array([[[1.0]], [[2.0]]]), layout))
    >>> grad_x, grad_y = bs.sddmm_backward(g, np.ones((2, 1)), np.ones((1, 2)))
    >>> grad_x
    array([[1.],
           [2.]])
    """
    op = "sddmm_backward"
    options = checks.needs(op, needs, ("x", "y")), precision, variant
    inputs = grad_out, x, y
    return prepared.call(op, _sddmm_backward, inputs, None, workspace, options, stream)


def _sddmm_backward(
    op, grad_out, x, y, _, workspace, needs, precision, variant, stream
):
    require_canonical(op, "grad_out", grad_out)
    grad = as_bsr(op, "grad_out", grad_out)
    if grad is None:
        raise TypeError(
            f"{op}: grad_out must be a bsr_array, got {type(grad_out).__name__}"
        )
    x, y = arrays.describe(op, "x", x), arrays.describe(op, "y", y)
    names = {"grad_out": grad._operand(op, "grad_out"), "x": x, "y": y}
    checks.same_device(op, **names)
    for name, operand in names.items():
        _require_float(op, name, operand)
    shape = _sampled_shape(op, x, y, grad.layout)
    if shape[:-3] != grad.leading:
        raise ValueError(
            f"{op}: grad_out must have the leading axes of the result, {shape[:-3]}, "
            f"got {grad.leading}"
        )
    result_dtype(op, *(operand.dtype for operand in names.values()))
    options = _options(op, x, names, None, variant, precision, stream, workspace)
    if x.device is None:
        return prepared.run_reference(
            reference.sddmm_backward, (grad, x, y), None, x.library, needs=needs
        )
    grad_x = grad_y = None
    if "x" in needs:
        grad_x = prepared.empty(x.shape, x.dtype, x)
        target = arrays.describe(op, "grad_x", grad_x)
        _dsd(op, grad, y.mT.conjugate(), target, 1, 0, options)
    if "y" in needs:
        grad_y = prepared.empty(y.shape, y.dtype, y)
        target = arrays.describe(op, "grad_y", grad_y)  # transposed: G^T conj(x)
        _dsd(op, grad.T, x.conjugate(), target.mT, 1, 0, options)
    return grad_x, grad_y


# ---------------------------------------------------------------------- checks


def _operands(op, a, b):
    """Return the sparse operand as it stands left, the dense one, and if flipped.

    ``x @ b`` is ``(b^T x^T)^T``: flipped, with ``b.T`` as the sparse operand.
    """
    sparse_a, sparse_b = as_bsr(op, "a", a), as_bsr(op, "b", b)
    if sparse_a is not None and sparse_b is not None:
        raise NotImplementedError(
            f"{op}: sparse @ sparse is not served in this release; "
            "a.to_scipy() @ b.to_scipy() has it on the host"
        )
    if sparse_a is None and sparse_b is None:
        raise TypeError(
            f"{op}: a or b must be a bsr_array, got {type(a).__name__} and "
            f"{type(b).__name__}"
        )
    flipped = sparse_a is None
    dense = arrays.describe(op, "a" if flipped else "b", a if flipped else b)
    if dense.ndim == 0:
        raise ValueError(f"{op}: the dense operand must have an axis, got a scalar")
    storage_dtype(op, "a" if flipped else "b", dense.dtype)
    return sparse_b.T if flipped else sparse_a, dense, flipped


def _result_shape(op, a, b, sparse, dense, flipped):
    """Return the shape of the product as the user sees it."""
    left, right = (dense, sparse.T) if flipped else (sparse, dense)
    checks.inner_sizes(op, "a", left.shape, "b", right.shape)
    own = sparse.leading
    if isinstance(sparse._layout, LayoutStack):
        own = (*own, sparse._layout.heads)
    if dense.ndim == 1:
        return (*own, sparse.shape[0])
    lead = checks.leading(op, own, dense.shape[:-2])
    if isinstance(sparse._layout, LayoutStack):
        checks.heads(op, lead, sparse._layout.heads)
    if flipped:
        return (*lead, dense.shape[-2], sparse.shape[0])
    return (*lead, sparse.shape[0], dense.shape[-1])


def _sampled_shape(op, x, y, layout):
    """Return the shape of the values of a sampled product."""
    for name, operand in (("x", x), ("y", y)):
        storage_dtype(op, name, operand.dtype)
        if operand.ndim < 2:
            raise ValueError(
                f"{op}: {name} must have at least two axes, got shape {operand.shape}"
            )
    checks.inner_sizes(op, "x", x.shape, "y", y.shape)
    if (x.shape[-2], y.shape[-1]) != layout.shape:
        raise ValueError(
            f"{op}: layout must have the shape of x @ y, "
            f"{(x.shape[-2], y.shape[-1])}, got {layout.shape}"
        )
    if isinstance(layout, LayoutStack):
        lead = checks.leading(op, x.shape[:-2], y.shape[:-2], (layout.heads,))
        checks.heads(op, lead, layout.heads)
        lead = lead[:-1]
    else:
        lead = checks.leading(op, x.shape[:-2], y.shape[:-2])
    return (*lead, layout.blocks, *layout.blocksize)


def _output(op, out, dtype, shape, inputs):
    """Check ``out`` and ``dtype``.

    Returns
    -------
    Operand of ``out`` or None, dtype of the result, dtype of the sums
    """
    natural = result_dtype(op, *(operand.dtype for operand in inputs.values()))
    asked = natural if dtype is None else storage_dtype(op, "dtype", dtype)
    if out is None:
        checks.output_dtype(op, natural, asked)
        return None, asked, sums_dtype(natural, asked)
    if not arrays.is_array(out):  # a list would be copied and stay as it is
        raise TypeError(f"{op}: out must be an array, got {type(out).__name__}")
    target = arrays.describe(op, "out", out)
    storage_dtype(op, "out", target.dtype)
    if dtype is not None and asked != target.dtype:
        raise TypeError(f"{op}: out must have dtype {asked}, got {target.dtype}")
    checks.output_dtype(op, natural, target.dtype)
    checks.same_device(op, out=target, **inputs)
    checks.out(op, target, shape, inputs)
    return target, target.dtype, sums_dtype(natural, target.dtype)


def _require_float(op, name, operand):
    storage_dtype(op, name, operand.dtype)
    if operand.dtype.kind in "iu":
        raise TypeError(
            f"{op}: {name} must be a float or complex array, got {operand.dtype}: "
            "integers have no gradient"
        )


# --------------------------------------------------------------- on the device


class _Options(NamedTuple):
    """What steers kernels, checked once."""

    variant: str | None
    precision: str | None
    stream: int
    others: tuple  # streams of other operands: ordered before and after the kernels
    workspace: Operand | None
    reserved: int = 0  # bytes of the workspace that are in use already


def _options(op, dense, inputs, out, variant, precision, stream, workspace) -> _Options:
    checks.precision(op, precision)
    if dense.device is None:
        if variant != "reference":
            choose.check_variant(op, variant)
        if variant not in (None, "reference"):
            raise NotImplementedError(
                f"{op}: variant={variant!r} needs device arrays; host arrays are "
                "computed by the reference"
            )
        return _Options(variant, precision, 0, (), None)
    choose.check_variant(op, variant)
    used = inputs if out is None else {**inputs, "out": out}
    if workspace is not None:
        workspace = arrays.describe(op, "workspace", workspace)
        checks.same_device(op, workspace=workspace, dense=dense)
        checks.disjoint(op, "workspace", workspace, used)
        used = {**used, "workspace": workspace}
    if stream is not None:
        stream = arrays.stream_handle(op, stream)
        return _Options(variant, precision, stream, (), workspace)
    stream = prepared.stream_of(dense)
    others = arrays.streams_of(used.values()) - {stream}
    return _Options(variant, precision, stream, tuple(sorted(others)), workspace)


def _as_columns(dense: Operand, result: Operand, flipped: bool):
    """Return both as (..., rows, N): a vector is one column, ``flipped``: turned."""
    if dense.ndim == 1:
        return tuple(
            each.view((*each.shape, 1), (*each.strides, each.dtype.itemsize))
            for each in (dense, result)
        )
    return (dense.mT, result.mT) if flipped else (dense, result)


def _sums(out: Operand, *inputs: Operand) -> np.dtype:
    """Return the type in which the sums of a product are kept."""
    natural = result_dtype("matmul", *(each.dtype for each in inputs))
    return sums_dtype(natural, out.dtype)


def _dsd(op, sparse, dense, out, alpha, beta, options, conj=False):
    """Write ``out = alpha * sparse @ dense + beta * out``, summing missing axes.

    ``dense`` (..., K, N), ``out`` (..., M, N); leading axes that ``out`` lacks are
    summed, in the accumulation type. ``conj``: conjugate the sparse operand.
    """
    if out.size == 0:
        return
    layout = sparse._layout
    values = sparse._operand(op)
    values = values.conjugate() if conj else values
    values = values.mT if sparse._transposed else values
    sums = _sums(out, values, dense)
    axes = LeadingAxes.of(layout, values, dense, out, values=values)
    if axes.summed_afterwards:
        with _summed_in_order(op, axes, out, 2, sums, alpha, beta, options) as inner:
            _dsd(op, sparse, dense, inner.whole, 1, 0, inner.options, conj)
        return

    from .cuda import matmul_dsd_mma, matmul_dsd_simt, matmul_dsd_wgmma
    from .cuda.launch import limits, ordered
    from .cuda.upload import resident

    parts = _views(axes, values, dense, out)
    product = choose.Dsd(
        parts, layout.density, beta, sums, options.precision, *limits(dense.device)
    )
    choice, plan, rows = _planned(op, product, sparse._transposed, options)
    slots = plans.slots(layout._tables(*plan))
    if slots and choice.variant == "wgmma":
        product = product._replace(cut=True)
        choice, plan, rows = _planned(op, product, sparse._transposed, options)
        slots = plans.slots(layout._tables(*plan))
    shape = (product.out.shape[0], slots, rows, dense.shape[-1])
    if _explained("matmul_dsd", choice, shape, sums, options):
        return
    kernels = {
        "simt": matmul_dsd_simt,
        "mma": matmul_dsd_mma,
        "wgmma": matmul_dsd_wgmma,
    }
    tables = resident(layout, dense, options.stream, *plan)
    partial = _workspace(op, shape, sums, dense, options)
    last = partial, sums.type(alpha), sums.type(beta), options.stream
    with ordered(dense.device, options.stream, options.others):
        for part in parts:
            kernels[choice.variant].launch(choice.config, tables, *part, *last)


def _planned(op, product, transposed, options):
    """Return the choice for dsd, which plan its kernel walks, rows of a slot."""
    choice = choose.dsd(op, product, options.variant)
    if choice.variant == "wgmma":
        config, strides = choice.config, product.a.strides
        plan = "group_plan", config.squares, transposed, strides[3] < strides[4]
        return choice, plan, config.group_rows
    name = "column_plan" if transposed else "plan"
    return choice, (name,), product.a.shape[-2]


def _sdd(op, x, y, layout, out, alpha, beta, options):
    """Write ``out = alpha * (x @ y) + beta * out`` on ``layout``.

    ``x`` (..., M, N), ``y`` (..., N, K), ``out`` (..., blocks, R, C); leading axes
    that ``out`` lacks are summed, in the accumulation type.
    """
    if out.size == 0:
        return
    sums = _sums(out, x, y)
    axes = LeadingAxes.of(layout, x, y, out, values=out)
    if axes.summed_afterwards:
        with _summed_in_order(op, axes, out, 3, sums, alpha, beta, options) as inner:
            _sdd(op, x, y, layout, inner.whole, 1, 0, inner.options)
        return

    from .cuda import matmul_sdd_mma, matmul_sdd_simt, matmul_sdd_wgmma
    from .cuda.launch import limits, ordered
    from .cuda.upload import resident

    parts = _views(axes, x, y, out)
    product = choose.Sdd(parts, beta, sums, options.precision, *limits(x.device))
    choice = choose.sdd(op, product, options.variant)
    splits = choice.config.splits if choice.config.splits > 1 else 0
    shape = (product.out.shape[0], splits, layout.blocks, *layout.blocksize)
    if _explained("matmul_sdd", choice, shape, sums, options):
        return
    kernels = {
        "simt": matmul_sdd_simt,
        "mma": matmul_sdd_mma,
        "wgmma": matmul_sdd_wgmma,
    }
    hopper = choice.variant == "wgmma"
    plan = ("strip_plan", choice.config.strips) if hopper else ("block_plan",)
    tables = resident(layout, x, options.stream, *plan)
    partial = _workspace(op, shape, sums, x, options)
    last = partial, sums.type(alpha), sums.type(beta), options.stream
    with ordered(x.device, options.stream, options.others):
        for part in parts:
            kernels[choice.variant].launch(choice.config, tables, *part, *last)


def _views(axes, x, y, out) -> list:
    """Return the three arrays as a kernel wants them, for each launch."""
    return [
        tuple(part.view(each, i) for i, each in enumerate((x, y, out)))
        for part in axes.parts()
    ]


def _explained(kernel, choice, shape, sums, options) -> bool:
    """Tell :func:`numba_bs.explain` of a launch, if it asks."""
    needed = options.reserved + math.prod(shape) * sums.itemsize
    name = f"{kernel}_{choice.variant}"
    return only_explained(name, choice.config._asdict(), choice.reason, needed)


def _workspace(op, shape, sums, like, options) -> Operand:
    """Return scratch memory for sums, of the caller's workspace or fresh."""
    needed = math.prod(shape) * sums.itemsize
    strides = arrays.contiguous_strides(shape, sums.itemsize)
    memory, at = options.workspace, options.reserved
    if needed == 0 or explaining():
        memory = like._replace(pointer=0, owner=None)  # never touched
    elif memory is None:
        fresh = prepared.empty(shape, sums, like, options.stream)
        memory = arrays.describe(op, "workspace", fresh)
    else:
        checks.workspace(op, memory, at + needed, sums.itemsize)
        memory = memory._replace(pointer=memory.pointer + at)
    return memory._replace(dtype=sums, shape=shape, strides=strides, conj=False)


class _Unsummed(NamedTuple):
    """Where the product with nothing summed goes, and how it is to be computed."""

    whole: Operand
    options: _Options  # the rest of the workspace


@contextlib.contextmanager
def _summed_in_order(op, axes, out, inner, sums, alpha, beta, options):
    """Give room for the product with nothing summed; then sum it into ``out``."""
    shape = (*axes.full, *out.shape[-inner:])
    whole = _workspace(op, shape, sums, out, options)
    taken = options.reserved + math.prod(shape) * sums.itemsize
    yield _Unsummed(whole, options._replace(reserved=taken))
    reason = "leading axes are summed in order"
    if only_explained("elementwise_simt", {}, reason, taken):
        return
    from .cuda.launch import ordered

    with ordered(out.device, options.stream, options.others):
        _sum_in_order(axes, whole, out, inner, alpha, beta, options.stream)


def _sum_in_order(axes, whole, out, inner, alpha, beta, stream) -> None:
    """Write ``out = alpha * (sum of whole over the axes out lacks) + beta * out``.

    One addition after the other, so always the same bits. For what no kernel sums in
    one go: the heads of a stack, several axes that do not merge into one.
    """
    full, rank = axes.full, len(axes.full)
    lead = out.shape[:-inner]
    present = (1,) * (rank - len(lead)) + lead
    gone = [axis for axis in range(rank) if present[axis] != full[axis]]
    kept = [axis for axis in range(whole.ndim) if axis not in gone]
    shape = [whole.shape[axis] for axis in kept]
    steps = [whole.strides[axis] for axis in kept]
    total = None
    for index in np.ndindex(*(full[axis] for axis in gone)):
        at = sum(i * whole.strides[axis] for i, axis in zip(index, gone, strict=True))
        term = whole.view(shape, steps, at)
        if total is None:
            total = term
        else:
            cast(term, total, 1, 1, stream)
    if total is None:  # an axis of length 0: nothing to add up
        zero = np.zeros(1, whole.dtype)
        zero = arrays.from_numpy(zero, whole.library, whole.device)
        zero = arrays.describe("matmul", "zero", zero)
        total = zero.view(shape, [0] * len(shape))
    by = strided.aligned(out.strides[:-inner], lead, full)
    steps = [by[axis] for axis in range(rank) if axis not in gone]
    target = out.view(shape, (*steps, *out.strides[-inner:]))
    cast(total, target, alpha, beta, stream)
