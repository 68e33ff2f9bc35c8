"""Which blocks are stored: :class:`Layout`, and :class:`LayoutStack` for heads."""

import weakref
from functools import cached_property
from typing import Self

import numpy as np
import scipy.sparse

from . import checks
from .plan import (
    BlockPlan,
    GroupPlan,
    RowPlan,
    Squares,
    StripPlan,
    Strips,
    group_plan,
    row_plan,
    strip_plan,
    table,
)


class _Structure:
    """What one layout and a stack of layouts share: arrays, plans, identity."""

    shape: tuple[int, int]
    blocksize: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    heads: int

    def _set(self, indptr, indices, shape, blocksize):
        fits = max(len(indices), shape[0], shape[1]) <= np.iinfo(np.int32).max
        index = np.int32 if fits else np.int64
        indptr, indices = (np.array(a, dtype=index) for a in (indptr, indices))
        indptr.flags.writeable = indices.flags.writeable = False
        self.__dict__.update(
            indptr=indptr, indices=indices, shape=shape, blocksize=blocksize
        )

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__} is immutable, cannot set {name}")

    def __delattr__(self, name):
        raise AttributeError(
            f"{type(self).__name__} is immutable, cannot delete {name}"
        )

    @property
    def block_rows(self) -> int:
        """Number of block rows, M / R."""
        return self.shape[0] // self.blocksize[0]

    @property
    def block_cols(self) -> int:
        """Number of block columns, K / C."""
        return self.shape[1] // self.blocksize[1]

    @property
    def blocks(self) -> int:
        """Number of stored blocks, of all heads."""
        return len(self.indices)

    @property
    def density(self) -> float:
        """Stored blocks over all blocks; 0 if there are none at all."""
        every = self.heads * self.block_rows * self.block_cols
        return self.blocks / every if every else 0.0

    @cached_property
    def _lines(self) -> np.ndarray:
        """Row of each stored block, heads one below the other."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @cached_property
    def plan(self) -> RowPlan:
        """Lookup tables that walk block rows: ``A @ b``."""
        entries = np.arange(self.blocks)
        return row_plan(
            self.indptr, self.indices, entries, self.blocksize[1], self.heads
        )

    @cached_property
    def block_plan(self) -> BlockPlan:
        """Lookup tables of the stored blocks in storage order: ``sddmm``."""
        head, row = np.divmod(self._lines, max(self.block_rows, 1))
        return BlockPlan(table(row), table(self.indices), table(head))

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Walk columns: pointers, block row of each entry, its block."""
        head = self._lines // max(self.block_rows, 1)
        # One CSR matrix with the heads on its diagonal; SciPy's compiled
        # conversion sorts its entries by column.
        columns = self.indices + head * self.block_cols
        whole = scipy.sparse.csr_array(
            (np.arange(self.blocks), columns, self.indptr),
            shape=(len(self.indptr) - 1, self.heads * self.block_cols),
        ).tocsc()
        rows = whole.indices % max(self.block_rows, 1)
        return whole.indptr, rows, whole.data

    @cached_property
    def column_plan(self) -> RowPlan:
        """Lookup tables that walk block columns: ``A.T @ b`` on A's own values."""
        indptr, rows, order = self._columns
        return row_plan(indptr, rows, order, self.blocksize[0], self.heads)

    def group_plan(self, squares: Squares, transposed: bool, turned: bool) -> GroupPlan:
        """Lookup tables of squares, for ``A @ b`` or ``A.T @ b``; heads have none.

        ``turned``: the columns of a block, as it is walked, are contiguous in memory.
        """
        entries = (self.indptr, self.indices, np.arange(self.blocks))
        entries = self._columns if transposed else entries
        blocksize = self.blocksize[::-1] if transposed else self.blocksize
        return group_plan(*entries, blocksize, turned, squares)

    def strip_plan(self, strips: Strips) -> StripPlan:
        """Lookup tables of strips of columns, for ``sddmm``; heads have none."""
        return strip_plan(self.indptr, self.indices, self.shape, self.blocksize, strips)

    def _tables(self, name: str, *args):
        """Return the tables of an attribute, or of a method; those are kept."""
        if not args:
            return getattr(self, name)
        kept = self.__dict__.setdefault("_kept_tables", {})
        if (name, args) not in kept:
            kept[name, args] = getattr(self, name)(*args)
        return kept[name, args]

    @property
    def T(self) -> Self:  # noqa: N802 - SciPy's name
        """The layout of the transpose; its own transpose is this one.

        Kept by this one. The way back is weak, so that no cycle keeps lookup tables on
        a device alive.
        """
        origin = self.__dict__.get("_origin")
        made = origin() if origin else None
        if made is None:
            made = self._transposed
        return made

    @cached_property
    def _transposed(self) -> Self:
        made = self._make_transposed()
        made.__dict__["_origin"] = weakref.ref(self)
        return made

    @property
    def transpose_order(self) -> np.ndarray:
        """Where the blocks of ``T``, in its order, lie in the values of this one."""
        return self._columns[2]

    def __eq__(self, other):
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return (
            (self.shape, self.blocksize, self.heads)
            == (other.shape, other.blocksize, other.heads)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    @cached_property
    def _hash(self) -> int:
        content = self.indptr.tobytes(), self.indices.tobytes()
        kind = type(self).__name__, self.heads
        return hash((*kind, self.shape, self.blocksize, *content))

    def __hash__(self):
        return self._hash


class Layout(_Structure):
    """Which blocks of a matrix are stored: the structure of SciPy's BSR.

    Immutable, canonical (block columns of a row sorted, none twice) and checked when
    built, so that no kernel can be sent out of bounds by it. The lookup tables that
    kernels walk are made at first use and kept with it.

    Parameters
    ----------
    indptr : (block_rows + 1,) integers
        Where each block row begins in ``indices``. What lies past ``indptr[-1]`` is
        spare capacity and ignored.
    indices : (blocks,) integers
        Block column of each stored block.
    shape : (M, K)
        Of the matrix, in elements; a multiple of ``blocksize``.
    blocksize : (R, C) or int

    Raises
    ------
    TypeError
        ``indptr`` or ``indices`` are not integers.
    ValueError
        Sizes do not fit, an index is out of range, or the structure is not
        canonical: :func:`canonicalise` makes it so.

    Examples
    --------
    >>> import numba_bs as bs
    >>> layout = bs.Layout([0, 2, 3], [0, 1, 1], shape=(4, 6), blocksize=(2, 3))
    >>> layout
    Layout(shape=(4, 6), blocksize=(2, 3), blocks=3, density=0.75)
    >>> layout.mask()
    array([[ True,  True],
           [False,  True]])
    """

    heads = 1

    def __init__(self, indptr, indices, shape, blocksize):
        op = "Layout"
        shape = checks.shape(op, shape)
        blocksize = checks.blocksize(op, blocksize)
        checks.divides(op, shape, blocksize)
        indptr = checks.integer_array(op, "indptr", indptr)
        indices = checks.integer_array(op, "indices", indices)
        rows, cols = shape[0] // blocksize[0], shape[1] // blocksize[1]
        checks.structure(op, indptr, indices, rows, cols)
        indices = indices[: int(indptr[-1])]
        if not _canonical(indptr, indices):
            raise ValueError(
                f"{op}: block columns of a row must be sorted and unique, got "
                "unsorted or repeated ones; canonicalise() sorts them"
            )
        self._set(indptr, indices, shape, blocksize)

    @classmethod
    def from_mask(cls, mask, blocksize, shape=None) -> "Layout":
        """Return the layout that stores the blocks where ``mask`` is not zero.

        Parameters
        ----------
        mask : (block_rows, block_cols), any dtype
            One element per *block*.
        blocksize : (R, C) or int
        shape : (M, K), optional
            Of the matrix. Give it, and a mask of elements is refused.

        Raises
        ------
        ValueError
            ``mask`` is not 2-D, or it does not have one element per block of
            ``shape`` (a mask of elements is not one of blocks).
        """
        op = "Layout.from_mask"
        R, C = checks.blocksize(op, blocksize)
        if scipy.sparse.issparse(mask):
            raise TypeError(
                f"{op}: mask must be a dense array, one element per block, got a SciPy "
                f"{mask.format} array; from_scipy takes the structure of a BSR one"
            )
        mask = np.asarray(mask) != 0
        if mask.ndim == 3:
            raise ValueError(
                f"{op}: mask must be 2-D, one element per block, got shape "
                f"{mask.shape}; LayoutStack.from_mask takes one mask per head"
            )
        if mask.ndim != 2:
            raise ValueError(
                f"{op}: mask must be 2-D, one element per block, got {mask.ndim}-D"
            )
        if shape is not None:
            shape = checks.shape(op, shape)
            checks.divides(op, shape, (R, C))
            due = shape[0] // R, shape[1] // C
            if mask.shape != due:
                raise ValueError(
                    f"{op}: mask must be block level, one element per block of "
                    f"{(R, C)}, so of shape {due}, got {mask.shape}"
                )
        indptr, indices = _compress(mask)
        return cls(indptr, indices, (mask.shape[0] * R, mask.shape[1] * C), (R, C))

    @classmethod
    def from_scipy(cls, a) -> "Layout":
        """Return the layout of a SciPy BSR array (canonical or not)."""
        if getattr(a, "format", None) != "bsr":
            hint = (
                "use its .layout" if hasattr(a, "layout") else "see .tobsr(blocksize)"
            )
            raise TypeError(
                f"Layout.from_scipy: a must be a SciPy BSR array, got "
                f"{type(a).__module__}.{type(a).__name__}; {hint}"
            )
        layout, _ = canonicalise(a.indptr, a.indices, a.shape, a.blocksize)
        return layout

    def _make_transposed(self) -> "Layout":
        indptr, rows, _ = self._columns
        return Layout(indptr, rows, self.shape[::-1], self.blocksize[::-1])

    def coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return block row and block column of each stored block, in order."""
        return self.block_plan.block_row, self.block_plan.block_col

    def mask(self) -> np.ndarray:
        """Return ``(block_rows, block_cols)`` booleans: which blocks are stored."""
        mask = np.zeros((self.block_rows, self.block_cols), bool)
        mask[self.coordinates()] = True
        return mask

    def plot(self, ax=None):
        """Draw the layout: stored blocks dark; large ones as shares of a cell.

        Parameters
        ----------
        ax : matplotlib axes, optional

        Returns
        -------
        matplotlib axes
        """
        from ._plot import plot_layout

        return plot_layout(self, ax)

    def __repr__(self):
        return (
            f"Layout(shape={self.shape}, blocksize={self.blocksize}, "
            f"blocks={self.blocks}, density={self.density:.3g})"
        )

    def __reduce__(self):
        return Layout, (self.indptr, self.indices, self.shape, self.blocksize)


class LayoutStack(_Structure):
    """Layouts of one shape side by side, one per head, with their own block counts.

    Parameters
    ----------
    layouts : sequence of Layout
        Of one shape and block size, at least one.

    Attributes
    ----------
    heads : int
    head_ptr : (heads + 1,) int64
        Where the blocks of each head begin in the values, ``(..., blocks, R, C)``.
    """

    def __init__(self, layouts):
        layouts = tuple(layouts)
        if not layouts or not all(isinstance(one, Layout) for one in layouts):
            raise TypeError("LayoutStack: layouts must be one or more Layout objects")
        first = layouts[0]
        for head, one in enumerate(layouts):
            if (one.shape, one.blocksize) != (first.shape, first.blocksize):
                raise ValueError(
                    "LayoutStack: layouts must share shape and blocksize, got "
                    f"{(first.shape, first.blocksize)} for head 0 and "
                    f"{(one.shape, one.blocksize)} for head {head}"
                )
        head_ptr = np.cumsum([0] + [one.blocks for one in layouts])
        head_ptr.flags.writeable = False
        pointers = [one.indptr[:-1] + at for one, at in zip(layouts, head_ptr)]  # noqa: B905
        indptr = np.concatenate([*pointers, head_ptr[-1:]])
        indices = np.concatenate([one.indices for one in layouts])
        self.__dict__.update(layouts=layouts, heads=len(layouts), head_ptr=head_ptr)
        self._set(indptr, indices, first.shape, first.blocksize)

    @classmethod
    def from_mask(cls, mask, blocksize) -> "LayoutStack":
        """Return the stack of ``(heads, block_rows, block_cols)`` masks."""
        mask = np.asarray(mask)
        if mask.ndim != 3:
            raise ValueError(
                "LayoutStack.from_mask: mask must be 3-D, (heads, block_rows, "
                f"block_cols), got {mask.ndim}-D"
            )
        return cls(Layout.from_mask(one, blocksize) for one in mask)

    def _make_transposed(self) -> "LayoutStack":
        return LayoutStack(one.T for one in self.layouts)

    def coordinates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return head, block row and block column of each stored block, in order."""
        plan = self.block_plan
        return plan.block_head, plan.block_row, plan.block_col

    def mask(self) -> np.ndarray:
        """Return ``(heads, block_rows, block_cols)`` booleans."""
        return np.stack([one.mask() for one in self.layouts])

    def __repr__(self):
        return (
            f"LayoutStack(heads={self.heads}, shape={self.shape}, "
            f"blocksize={self.blocksize}, blocks={self.blocks}, "
            f"density={self.density:.3g})"
        )

    def __reduce__(self):
        return LayoutStack, (self.layouts,)


def canonicalise(
    indptr, indices, shape, blocksize, *, op: str = "canonicalise"
) -> tuple[Layout, np.ndarray]:
    """Sort the block columns of every row and merge those that occur twice.

    Parameters
    ----------
    indptr, indices, shape, blocksize
        As of :class:`Layout`, in any order and with repetitions.
    op : what errors call the operation

    Returns
    -------
    layout : Layout
    order : (blocks given,) int64
        Where each given block goes: ``np.add.at(new, order, data)`` adds the values
        up; without repetitions ``new[order] = data`` sorts them.

    Examples
    --------
    >>> import numba_bs as bs
    >>> layout, order = bs.canonicalise([0, 3], [1, 0, 1], (2, 4), (2, 2))
    >>> layout.indices, order
    (array([0, 1], dtype=int32), array([1, 0, 1]))
    """
    shape = checks.shape(op, shape)
    blocksize = checks.blocksize(op, blocksize)
    checks.divides(op, shape, blocksize)
    indptr = checks.integer_array(op, "indptr", indptr)
    indices = checks.integer_array(op, "indices", indices)
    rows, cols = shape[0] // blocksize[0], shape[1] // blocksize[1]
    checks.structure(op, indptr, indices, rows, cols)
    indptr = indptr.astype(np.int64)
    indices = indices[: indptr[-1]].astype(np.int64)
    if _canonical(indptr, indices):
        return Layout(indptr, indices, shape, blocksize), np.arange(len(indices))
    key = np.repeat(np.arange(rows), np.diff(indptr)) * cols + indices
    unique, order = np.unique(key, return_inverse=True)
    row, col = np.divmod(unique, cols)
    indptr = np.searchsorted(row, np.arange(rows + 1))
    return Layout(indptr, col, shape, blocksize), order


def _canonical(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether block columns increase within every row."""
    if len(indices) < 2:
        return True
    grows = indices[1:] > indices[:-1]
    begins = np.asarray(indptr[1:-1], np.int64)  # a new row may start lower
    begins = begins[(begins > 0) & (begins < len(indices))]
    grows[begins - 1] = True
    return bool(grows.all())


def _compress(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row pointers and column indices of a boolean matrix."""
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(mask, axis=1))])
    return indptr, np.nonzero(mask)[1]
