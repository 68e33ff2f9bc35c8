"""``bsr_array``: a layout and its values, in SciPy's words.

Structure lives on the host in :class:`numba_bs.Layout`; the values may belong to
NumPy, Numba, CuPy or torch, on the host or a device, and decide where an operation
runs.
"""

import functools
import operator
import warnings

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from . import arrays, checks
from .arrays import Operand
from .dtypes import bfloat16, storage_dtype
from .layout import Layout, LayoutStack, canonicalise


class bsr_array:  # noqa: N801 - SciPy's name
    """Block sparse row array of shape (M, K) with blocks (R, C).

    ``bsr_array(D)``
        A 2-D dense host array; blocks without a nonzero are not stored.
    ``bsr_array(S)``
        Any SciPy sparse array, or a torch ``sparse_bsr`` tensor.
    ``bsr_array((M, K), dtype=...)``
        No block stored.
    ``bsr_array((data, (i, j)))``
        Elements ``data[n]`` at ``[i[n], j[n]]``; equal positions add up.
    ``bsr_array((data, indices, indptr))``
        BSR arrays: ``data`` (blocks, R, C). On the host unsorted and repeated blocks
        are sorted and summed into new arrays; device arrays must be canonical.
    ``bsr_array((data, layout))``
        ``data`` (..., blocks, R, C) with a Layout, or a LayoutStack (heads).

    Parameters
    ----------
    arg : one of the above
    shape : (M, K), optional
        Needed where it cannot be read off ``arg``.
    dtype : optional
        Of the values; converted if they have another.
    copy : bool
        Whether to copy the values. Otherwise they are shared where possible.
    blocksize : (R, C) or int, optional
        If not given, for dense and other sparse input the one that
        :func:`numba_bs.files.guess_blocksize` finds.

    Attributes
    ----------
    layout : Layout or LayoutStack
    data : array (..., blocks, R, C)
        In the library that owns it. Of a transposed view: gathered, read-only.
    shape, blocksize, indptr, indices, dtype, nnz, ndim
        As SciPy's.

    Raises
    ------
    TypeError
        Float indices, a dtype no kernel stores, a tensor that requires grad.
    ValueError
        Sizes that do not fit, indices out of range, device input that is not
        canonical.

    Notes
    -----
    ``.T`` and ``.mT`` are views of the same values. ``data`` may be written in place;
    the structure may not. Nothing densifies: there is no ``__array__``. ``==`` asks
    whether two names are one array, not (as in SciPy) which elements are equal.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> a = bs.bsr_array(np.kron(np.eye(2), np.ones((2, 3))), blocksize=(2, 3))
    >>> a
    <bsr_array of shape (4, 6), 2 blocks of (2, 3), float64, numpy>
    >>> a @ np.arange(6.0)
    array([ 3.,  3., 12., 12.])
    """

    __array_ufunc__ = None
    __array_priority__ = 20
    ndim = 2

    def __init__(
        self,
        arg: object,
        shape: tuple[int, int] | None = None,
        dtype: DTypeLike | None = None,
        copy: bool = False,
        blocksize: int | tuple[int, int] | None = None,
    ):
        layout, values = _parse(arg, shape, dtype, blocksize)
        operand = arrays.describe("bsr_array", "data", values)
        storage_dtype("bsr_array", "data", operand.dtype)
        checks.values_match("bsr_array", operand.shape, layout.blocks, layout.blocksize)
        values = operand.owner if isinstance(values, (list, tuple)) else values
        self._set(layout, values, transposed=False)
        if dtype is not None and np.dtype(dtype) != operand.dtype:
            self._set(layout, self.astype(dtype)._values, transposed=False)
        elif copy:
            self._set(layout, self.copy()._values, transposed=False)

    def _set(self, layout, values, transposed):
        self._layout = layout  # of the values, also in a transposed view
        self._values = values
        self._transposed = transposed
        self._described = None
        return self

    def _view(self, values, transposed=None) -> "bsr_array":
        """Return an array of the same structure on ``values`` without checks."""
        transposed = self._transposed if transposed is None else transposed
        return object.__new__(bsr_array)._set(self._layout, values, transposed)

    # ------------------------------------------------------------- what it is

    @property
    def layout(self) -> Layout | LayoutStack:
        """Which blocks are stored."""
        return self._layout.T if self._transposed else self._layout

    @property
    def shape(self) -> tuple[int, int]:
        """Sizes (M, K) in elements."""
        shape = self._layout.shape
        return shape[::-1] if self._transposed else shape

    @property
    def blocksize(self) -> tuple[int, int]:
        """Block size (R, C)."""
        R, C = self._layout.blocksize
        return (C, R) if self._transposed else (R, C)

    @property
    def indptr(self) -> np.ndarray:
        """Where each block row begins, read-only, on the host."""
        return self.layout.indptr

    @property
    def indices(self) -> np.ndarray:
        """Block column of each block, read-only, on the host."""
        return self.layout.indices

    @property
    def dtype(self) -> np.dtype:
        """Of the values, as NumPy names it (bfloat16 is that of ml_dtypes)."""
        return self._operand().dtype

    @property
    def nnz(self) -> int:
        """Stored values, zeros inside of blocks included."""
        return self._operand().size

    @property
    def leading(self) -> tuple[int, ...]:
        """Leading axes of the values, without the heads of a LayoutStack."""
        return self._operand().shape[:-3]

    @property
    def device(self) -> int | None:
        """The device of the values; None: the host."""
        return self._operand().device

    @property
    def library(self) -> str:
        """Who owns the values: "numpy", "numba", "cupy", "torch" or "foreign"."""
        return self._operand().library

    has_sorted_indices = True
    has_canonical_format = True

    @property
    def data(self):
        """Values (..., blocks, R, C); gathered and read-only for a transposed view."""
        if not self._transposed:
            return self._values
        from ._elementwise import gather_transposed

        gathered = gather_transposed(self)
        if isinstance(gathered, np.ndarray):
            gathered.flags.writeable = False
        return gathered

    @property
    def T(self) -> "bsr_array":  # noqa: N802 - SciPy's name
        """The transpose, a view of the same values."""
        return self._view(self._values, not self._transposed)

    mT = T  # noqa: N815 - the array API's name

    def transpose(self, axes=None, copy=False) -> "bsr_array":
        """Return the transpose: a view, or with ``copy`` a view of a copy."""
        if axes is not None and tuple(axes) != (1, 0):
            raise ValueError(f"transpose: axes must be None or (1, 0), got {axes}")
        return self.copy().T if copy else self.T

    def _operand(self, op: str = "bsr_array", name: str = "data") -> Operand:
        """Describe the stored values, (..., blocks, R, C) of the base layout."""
        if self._described is not None:
            return self._described
        described = arrays.describe(op, name, self._values)
        if described.library != "torch":  # a tensor may change its memory, or need grad
            self._described = described
        return described

    def walk(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return indptr, block columns and the position of each block's values.

        A transposed view walks the block columns of its base; the values at
        ``data[order[entry]]`` are then to be read transposed.
        """
        if self._transposed:
            return self._layout._columns
        return self._layout.indptr, self._layout.indices, np.arange(self._layout.blocks)

    # ------------------------------------------------------- where it lives

    def to_device(self, library: str = "numba", device: int = 0) -> "bsr_array":
        """Return a copy whose values ``library`` owns on a GPU.

        Parameters
        ----------
        library : "numba", "cupy" or "torch"
        device : int
            Which GPU.
        """
        if library not in ("numba", "cupy", "torch"):
            raise ValueError(
                "to_device: library must be 'numba', 'cupy' or 'torch', "
                f"got {library!r}"
            )
        operand = self._operand("to_device")
        if (operand.library, operand.device) == (library, device):
            return self
        host = arrays.to_numpy(operand)
        return self._view(arrays.from_numpy(host, library, device))

    def to_host(self) -> "bsr_array":
        """Return an array whose values NumPy owns; itself if that is so already."""
        operand = self._operand("to_host")
        if operand.library == "numpy":
            return self
        return self._view(arrays.to_numpy(operand))

    def to_scipy(self) -> scipy.sparse.bsr_array:
        """Return a ``scipy.sparse.bsr_array``; shares the values if SciPy can.

        Raises
        ------
        TypeError
            16-bit floats, which SciPy does not store; leading axes or heads.
        """
        host = self._host("to_scipy")
        if host.dtype.itemsize == 2 and host.dtype.kind not in "iu":
            raise TypeError(
                f"to_scipy: SciPy stores no {host.dtype}; "
                "call .astype(np.float32) first"
            )
        return scipy.sparse.bsr_array(
            (host.data, host.indices.copy(), host.indptr.copy()), shape=self.shape
        )

    def to_torch(self):
        """Return a torch ``sparse_bsr`` tensor on the values' device."""
        import torch

        if self.library == "torch":
            values = self.data
        else:
            operand = self._operand("to_torch")
            host = self if operand.device is None else self.to_host()
            device = operand.device
            values = arrays.from_numpy(
                np.ascontiguousarray(arrays.to_numpy(host._operand())), "torch", device
            )
            values = self._view(values).data
        if isinstance(self._layout, LayoutStack) or values.ndim != 3:
            raise ValueError("to_torch: values must be (blocks, R, C) of one layout")
        crow, col = (
            torch.from_numpy(index.copy()).to(values.device)
            for index in (self.indptr, self.indices)
        )
        # A Layout was checked when it was built; torch warns that BSR is in beta state.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_bsr_tensor(
                crow, col, values, size=self.shape, check_invariants=False
            )

    def _host(self, op: str) -> "bsr_array":
        """Return the plain 2-D array on the host, or raise."""
        if isinstance(self._layout, LayoutStack) or self.leading:
            raise TypeError(
                f"{op}: values must be (blocks, R, C) of one Layout, got "
                f"{tuple(self._operand().shape)}; take one of them first"
            )
        if self.device is not None:
            raise TypeError(
                f"{op}: values must be on the host, got device {self.device}; "
                "call .to_host() first"
            )
        return self.to_host()

    def toarray(self) -> np.ndarray:
        """Return the dense host array (..., M, K) (heads before M)."""
        if self.device is not None:
            raise TypeError(
                "toarray: values must be on the host; call .to_host() first"
            )
        values = self.to_host()._operand().as_array()
        layout = self._layout
        lead = values.shape[:-3]
        R, C = layout.blocksize
        tiles = np.zeros(
            (*lead, layout.heads, layout.block_rows, layout.block_cols, R, C),
            values.dtype,
        )
        row, col, head = layout.block_plan
        tiles[..., head, row, col, :, :] = values
        dense = tiles.swapaxes(-2, -3).reshape(*lead, layout.heads, *layout.shape)
        if isinstance(layout, Layout):
            dense = dense[..., 0, :, :]
        return dense.swapaxes(-1, -2) if self._transposed else dense

    todense = toarray

    def tobsr(self, blocksize=None, copy=False) -> "bsr_array":
        """Return this array with another block size (on the host)."""
        if blocksize is None or checks.blocksize("tobsr", blocksize) == self.blocksize:
            return self.copy() if copy else self
        return bsr_array(self.tocsr(), blocksize=blocksize, dtype=self.dtype)

    def tocsr(self, copy=False) -> scipy.sparse.csr_array:
        """Return SciPy's CSR array (on the host)."""
        return self.to_scipy().tocsr(copy=copy)

    def tocoo(self, copy=False) -> scipy.sparse.coo_array:
        """Return SciPy's COO array (on the host)."""
        return self.to_scipy().tocoo(copy=copy)

    # ---------------------------------------------------------- new values

    def with_data(self, data) -> "bsr_array":
        """Return an array of this layout with other values (..., blocks, R, C)."""
        operand = arrays.describe("with_data", "data", data)
        storage_dtype("with_data", "data", operand.dtype)
        checks.values_match(
            "with_data", operand.shape, self.layout.blocks, self.blocksize
        )
        data = operand.owner if isinstance(data, (list, tuple)) else data
        return object.__new__(bsr_array)._set(self.layout, data, False)

    def copy(self) -> "bsr_array":
        """Return a copy of the values in the same library."""
        from ._elementwise import scale

        return scale("copy", self)

    def astype(self, dtype, casting="unsafe", copy=True) -> "bsr_array":
        """Return the values as ``dtype``."""
        from ._elementwise import scale

        dtype = storage_dtype("astype", "dtype", dtype)
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(
                f"astype: cannot cast {self.dtype} to {dtype} with casting {casting!r}"
            )
        if dtype == self.dtype and not copy:
            return self
        return scale("astype", self, dtype=dtype)

    def conj(self, copy=True) -> "bsr_array":
        """Return the complex conjugate; of real values a copy."""
        from ._elementwise import scale

        if self.dtype.kind != "c" and not copy:
            return self
        return scale("conj", self, conj=True)

    conjugate = conj

    # -------------------------------------------------------- canonical form

    def sum_duplicates(self) -> None:
        """Do nothing: an array is canonical from its construction on."""

    def sort_indices(self) -> None:
        """Do nothing: an array is canonical from its construction on."""

    def check_format(self, full_check=True) -> None:
        """Raise ValueError if structure and values do not fit together."""
        operand = self._operand("check_format")
        layout = self._layout
        checks.values_match(
            "check_format", operand.shape, layout.blocks, layout.blocksize
        )
        if full_check:
            rows = layout.heads * layout.block_rows
            checks.structure(
                "check_format", layout.indptr, layout.indices, rows, layout.block_cols
            )

    # ---------------------------------------------------------- arithmetic

    def __matmul__(self, other):
        """Return ``self @ other``; see :func:`numba_bs.matmul`."""
        return _matmul()(self, other) if _multiplies(other) else NotImplemented

    def __rmatmul__(self, other):
        """Return ``other @ self``; see :func:`numba_bs.matmul`."""
        return _matmul()(other, self) if _multiplies(other) else NotImplemented

    def dot(self, other):
        """Return ``self @ other``."""
        return self @ other

    def __add__(self, other):
        """Return the sum with an array of the same layout."""
        return self._combine("add", other, 1)

    def __sub__(self, other):
        """Return the difference to an array of the same layout."""
        return self._combine("subtract", other, -1)

    def _combine(self, op, other, beta):
        from ._elementwise import axpby

        if scipy.sparse.issparse(other) and other.format == "bsr":
            other = bsr_array(other)
        if isinstance(other, bsr_array):
            return axpby(op, self, other, 1, beta)
        if np.isscalar(other) and other == 0:
            return self.copy()
        return NotImplemented

    def __radd__(self, other):
        """Return ``other + self`` for SciPy's BSR and for 0, so that sum() works."""
        return self + other

    def __rsub__(self, other):
        """Return ``other - self``."""
        return -self + other

    def __mul__(self, other):
        """Return the product by a scalar, or element by element on one layout."""
        from ._elementwise import multiply, scale

        if scipy.sparse.issparse(other) and other.format == "bsr":
            other = bsr_array(other)
        if isinstance(other, bsr_array):
            return multiply("multiply", self, other)
        if np.ndim(other) == 0 and _is_number(other):
            return scale("multiply", self, other)
        return NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other):
        """Return the quotient by a scalar."""
        if np.ndim(other) != 0 or not _is_number(other):
            return NotImplemented
        if self.dtype.kind in "iu":
            return self.astype(np.float64) / other
        from ._elementwise import scale

        return scale("divide", self, other, divide=True)

    def __neg__(self):
        """Return the negative."""
        return self * -1

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Let ``tensor @ a`` and friends reach the reflected method."""
        reflected = {
            "matmul": "__rmatmul__",
            "__matmul__": "__rmatmul__",
            "add": "__radd__",
            "sub": "__rsub__",
            "mul": "__rmul__",
        }.get(func.__name__)
        if reflected and len(args) == 2 and isinstance(args[1], bsr_array):
            return getattr(args[1], reflected)(args[0])
        return NotImplemented

    # -------------------------------------------------------------- the rest

    def __repr__(self):
        operand = self._operand()
        where = operand.library
        if operand.device is not None:
            where += f" on device {operand.device}"
        lead = f"{operand.shape[:-3]} x " if operand.ndim > 3 else ""
        heads = getattr(self._layout, "layouts", None)
        lead += f"{len(heads)} heads, " if heads else ""
        return (
            f"<bsr_array of shape {self.shape}, {lead}{self._layout.blocks} blocks of "
            f"{self.blocksize}, {operand.dtype}, {where}>"
        )

    def __reduce__(self):
        if self.device is not None:
            raise TypeError(
                "pickle: values must be on the host, got device "
                f"{self.device}; call .to_host() first"
            )
        base = self._layout, arrays.to_numpy(self._operand()), self.library
        return _restore, (*base, self._transposed)


def _restore(layout, values, library, transposed) -> bsr_array:
    """Rebuild a pickled array."""
    values = arrays.from_numpy(values, library, None)
    return object.__new__(bsr_array)._set(layout, values, transposed)


def _is_number(x) -> bool:
    return isinstance(x, (int, float, complex, np.number)) or (
        getattr(x, "ndim", None) == 0 and np.asarray(x).dtype.kind in "iufc"
    )


@functools.cache
def _matmul():
    from ._matmul import matmul  # which imports this module

    return matmul


def _multiplies(x) -> bool:
    """Whether ``@`` should take ``x`` (and raise if it does not fit)."""
    return (
        arrays.is_array(x)
        or isinstance(x, (bsr_array, list, tuple))
        or scipy.sparse.issparse(x)
    )


def as_bsr(op: str, name: str, x) -> bsr_array | None:
    """Return ``x`` as a bsr_array if it is one or SciPy's BSR; None if it is dense.

    Raises
    ------
    TypeError
        Another sparse format: converting it is the caller's decision.
    """
    if isinstance(x, bsr_array):
        return x
    if scipy.sparse.issparse(x):
        if x.format == "bsr":
            return bsr_array(x)
        raise TypeError(
            f"{op}: {name} must be BSR or dense, got a SciPy {x.format} array; "
            "bsr_array(x, blocksize=...) makes one"
        )
    return None


def require_canonical(op: str, name: str, x) -> None:
    """Raise ValueError for a SciPy BSR array that has no block order of its own."""
    if scipy.sparse.issparse(x) and x.format == "bsr":
        layout, order = canonicalise(x.indptr, x.indices, x.shape, x.blocksize)
        if layout.blocks != len(order) or (order[1:] < order[:-1]).any():
            raise ValueError(
                f"{op}: {name} must be canonical, got unsorted or repeated blocks, "
                "whose gradient has no order; canonicalise() sorts them"
            )


# ------------------------------------------------------------ constructor forms


def _parse(arg, shape, dtype, blocksize):
    """Return layout and values of any constructor form."""
    op = "bsr_array"
    if isinstance(arg, bsr_array):
        if blocksize is not None:
            arg = arg.tobsr(blocksize)
        from ._elementwise import gather_transposed

        values = gather_transposed(arg) if arg._transposed else arg._values
        layout = arg.layout
    elif scipy.sparse.issparse(arg):
        layout, values = _from_scipy(arg, blocksize)
    elif _is_torch_sparse(arg):
        layout, values = _from_torch(arg, blocksize)
    elif isinstance(arg, tuple) and len(arg) == 2 and _is_layout(arg[1]):
        values, layout = arg
    elif isinstance(arg, tuple) and len(arg) == 3:
        layout, values = _from_arrays(*arg, shape, blocksize)
    elif isinstance(arg, tuple) and len(arg) == 2 and np.ndim(arg[0]) == 0:
        layout, values = _without_blocks(arg, dtype, blocksize)
    elif isinstance(arg, tuple) and len(arg) == 2:
        layout, values = _from_elements(*arg, shape, blocksize)
    else:
        layout, values = _from_dense(arg, blocksize)
    if blocksize is not None and layout.blocksize != checks.blocksize(op, blocksize):
        raise ValueError(
            f"{op}: data must have the blocksize asked for, got mismatching blocks of "
            f"{layout.blocksize} and blocksize={blocksize}"
        )
    if shape is not None and checks.shape(op, shape) != layout.shape:
        raise ValueError(
            f"{op}: shape must be that of the input, got {shape} and {layout.shape}"
        )
    return layout, values


def _is_layout(x) -> bool:
    return isinstance(x, (Layout, LayoutStack))


def _is_torch_sparse(x) -> bool:
    return type(x).__module__.startswith("torch") and "sparse" in str(
        getattr(x, "layout", "")
    )


def _from_arrays(data, indices, indptr, shape, blocksize):
    """Take (data, indices, indptr): canonical as given, else sorted and summed."""
    op = "bsr_array"
    operand = arrays.describe(op, "data", data)
    if operand.ndim < 3:
        raise ValueError(
            f"{op}: data must be 3-dimensional, (blocks, R, C), got shape "
            f"{tuple(operand.shape)}"
        )
    R, C = operand.shape[-2:]
    if blocksize is not None and checks.blocksize(op, blocksize) != (R, C):
        raise ValueError(
            f"{op}: blocks of data must have the blocksize asked for, got mismatching "
            f"blocks of {(R, C)} and blocksize={blocksize}"
        )
    R, C = checks.blocksize(op, (R, C))
    indices, indptr = (
        checks.integer_array(
            op,
            name,
            arrays.to_numpy(arrays.describe(op, name, index))
            if arrays.is_array(index)
            else index,
        )
        for name, index in (("indices", indices), ("indptr", indptr))
    )
    if shape is None:  # as SciPy reads it off, without spare capacity
        used = indices[: int(indptr[-1])] if len(indptr) else indices
        cols = int(used.max()) + 1 if len(used) else 0
        shape = ((len(indptr) - 1) * R, cols * C)
    layout, order = canonicalise(indptr, indices, shape, (R, C), op=op)
    if operand.shape[-3] < len(order):
        raise ValueError(
            f"{op}: data must hold the {len(order)} blocks of indptr[-1], "
            f"got {operand.shape[-3]}"
        )
    sorted_once = layout.blocks == len(order) and (np.diff(order) > 0).all()
    if sorted_once:
        if operand.shape[-3] == len(order):
            return layout, data
        every = (slice(None),) * (operand.ndim - 3)  # Numba's arrays take no Ellipsis
        return layout, data[(*every, slice(len(order)), slice(None), slice(None))]
    if operand.device is not None:
        raise ValueError(
            f"{op}: device arrays must be canonical, got unsorted or repeated blocks; "
            "canonicalise() returns the layout and the order of the values"
        )
    given = arrays.to_numpy(operand)[..., : len(order), :, :]
    summed = np.zeros((*given.shape[:-3], layout.blocks, R, C), _sum_dtype(given.dtype))
    for lead in np.ndindex(*given.shape[:-3]):
        np.add.at(summed[lead], order, given[lead])
    return layout, arrays.give_back(summed.astype(given.dtype), operand)


def _sum_dtype(dtype: np.dtype) -> np.dtype:
    """16-bit floats are summed in float32 and rounded once."""
    halves = (np.dtype(np.float16), bfloat16)
    return np.dtype(np.float32) if dtype in halves else dtype


def _from_scipy(a, blocksize):
    """SciPy sparse: BSR as it is, others through SciPy's own conversion."""
    if a.format != "bsr" or (
        blocksize and a.blocksize != tuple(np.broadcast_to(blocksize, 2))
    ):
        if blocksize is None:
            from .files import guess_blocksize

            blocksize = guess_blocksize(a)
        blocksize = checks.blocksize("bsr_array", blocksize)
        checks.divides("bsr_array", a.shape, blocksize)
        a = a.tobsr(blocksize)
    return _from_arrays(a.data, a.indices, a.indptr, a.shape, None)


def _from_torch(a, blocksize):
    """Torch sparse_bsr (other torch formats: convert with .to_sparse_bsr)."""
    import torch

    if a.layout != torch.sparse_bsr:
        raise TypeError(
            f"bsr_array: a torch tensor must be strided or sparse_bsr, got {a.layout}; "
            ".to_sparse_bsr(blocksize) makes one"
        )
    if a.ndim != 2:
        raise ValueError(f"bsr_array: a torch BSR tensor must be 2-D, got {a.ndim}-D")
    indices, indptr = a.col_indices(), a.crow_indices()
    return _from_arrays(a.values(), indices, indptr, tuple(a.shape), blocksize)


def _without_blocks(shape, dtype, blocksize):
    """Take (M, K): no block stored."""
    R, C = checks.blocksize("bsr_array", 1 if blocksize is None else blocksize)
    shape = checks.shape("bsr_array", shape)
    checks.divides("bsr_array", shape, (R, C))
    layout = Layout(np.zeros(shape[0] // R + 1, np.int32), [], shape, (R, C))
    return layout, np.zeros((0, R, C), np.float64 if dtype is None else dtype)


def _from_elements(data, ij, shape, blocksize):
    """Take (data, (i, j)): elements, equal positions add up."""
    data = np.asarray(data)
    i, j = (checks.integer_array("bsr_array", name, x) for name, x in zip("ij", ij))  # noqa: B905
    try:
        wide = data.astype(_sum_dtype(data.dtype))
        coo = scipy.sparse.coo_array((wide, (i, j)), shape)
    except ValueError as error:
        raise ValueError(
            "bsr_array: coordinates must be inside of the shape, one pair for each "
            f"element, got {error}"
        ) from None
    layout, values = _from_scipy(coo, blocksize)
    return layout, values.astype(data.dtype)


def _from_dense(dense, blocksize):
    """Take a dense host array: blocks that hold a nonzero are stored."""
    operand = arrays.describe("bsr_array", "arg", dense)
    if operand.device is not None:
        raise TypeError(
            "bsr_array: a dense array must be on the host, got a device array; "
            "nothing is copied over PCIe unasked"
        )
    storage_dtype("bsr_array", "arg", operand.dtype)
    values = arrays.to_numpy(operand)
    if values.ndim != 2:
        raise ValueError(f"bsr_array: a dense array must be 2-D, got {values.ndim}-D")
    if blocksize is None:
        from .files import guess_blocksize

        stored = scipy.sparse.coo_array(values.astype(_sum_dtype(values.dtype)))
        blocksize = guess_blocksize(stored)
    R, C = checks.blocksize("bsr_array", blocksize)
    checks.divides("bsr_array", values.shape, (R, C))
    rows, cols = values.shape[0] // R, values.shape[1] // C
    tiles = values.reshape(rows, R, cols, C).swapaxes(1, 2)
    mask = (tiles != 0).any(axis=(2, 3))
    layout = Layout.from_mask(mask, (R, C))
    return layout, arrays.give_back(np.ascontiguousarray(tiles[mask]), operand)


def blocks_of(layout, op: str = "layout") -> int:
    """Return the stored blocks of a layout; anything else is a TypeError."""
    if not _is_layout(layout):
        hint = "Layout.from_mask(mask, blocksize) makes one of a block-level mask"
        if isinstance(layout, bsr_array):
            hint = "use its .layout"
        elif scipy.sparse.issparse(layout):
            hint = "Layout.from_scipy makes one of a BSR array"
        raise TypeError(
            f"{op}: layout must be a Layout or LayoutStack, got "
            f"{type(layout).__name__}; {hint}"
        )
    return operator.index(layout.blocks)
