"""Named masks, awkward ones first, and arrays on them.

``dense`` is written block by block and by hand: what the tests compare with must not
come from the code under test.
"""

import itertools

import numpy as np
from bounds import widened

import numba_bs as bs


def _mask(picture):
    return np.array([[c == "#" for c in line] for line in picture.split()])


def _power_law(rows, cols):
    """Half of the blocks in the first row, half of the rest in the next, ..."""
    mask = np.zeros((rows, cols), bool)
    for row in range(rows):
        mask[row, : cols >> row] = True
    return mask


MASKS = {
    "no_blocks": np.zeros((3, 4), bool),
    "empty_row_and_column": _mask("#..# .... ##.."),
    "last_corner": _mask(".... .... ...#"),
    "one_full_row": _mask(".... #### ...."),
    "one_full_column": _mask(".#.. .#.. .#.."),
    "full": np.ones((3, 4), bool),
    "random": _mask("##.. .#.# #.#."),
    "power_law": _power_law(4, 8),
    "tall": _mask("# . # # ."),
}

BLOCKSIZES = [(1, 1), (2, 3), (3, 3), (5, 1), (8, 8), (16, 8), (33, 17)]

FLOATS = [
    *map(np.dtype, (np.float16, bs.dtypes.bfloat16, np.float32, np.float64)),
    *map(np.dtype, (np.complex64, np.complex128)),
]
INTEGERS = [
    np.dtype(f"{kind}{8 * size}") for kind in ("int", "uint") for size in (1, 2, 4, 8)
]


def label(value):
    """Name a dtype, a number, or a tuple of them in the id of a test."""
    if isinstance(value, tuple):
        numbers = all(isinstance(each, int) for each in value)
        return ("x" if numbers else "-").join(map(label, value)) or "none"
    if isinstance(value, (str, type, np.dtype)):
        return np.dtype(value).name
    return str(value)


def values(rng, shape, dtype):
    """Return normally distributed values, or integers of the whole range of a type."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x).astype(dtype)


def layout_of(mask, blocksize):
    """Return the Layout of a 2-D mask, the LayoutStack of a 3-D one."""
    of = bs.LayoutStack if np.ndim(mask) == 3 else bs.Layout
    return of.from_mask(mask, blocksize)


def make(rng, mask, blocksize, dtype=np.float64, lead=()):
    """Return a bsr_array with random values on the blocks of ``mask``."""
    layout = layout_of(mask, blocksize)
    return bs.bsr_array(
        (values(rng, (*lead, layout.blocks, *blocksize), dtype), layout)
    )


def stored(layout):
    """Yield head, block row and block column of each block; straight from indptr."""
    R = layout.blocksize[0]
    rows = layout.shape[0] // R
    for line, (begin, end) in enumerate(itertools.pairwise(layout.indptr.tolist())):
        for col in layout.indices[begin:end].tolist():
            yield line // rows, line % rows, col


def dense(a, result=None):
    """Return (..., M, K) of a bsr_array, heads before M, in the widest type."""
    if a._transposed:
        return np.swapaxes(dense(a.T, result), -1, -2)
    values = widened(a.data, result)
    layout, (R, C) = a.layout, a.blocksize
    stacked = isinstance(layout, bs.LayoutStack)
    heads = len(layout.layouts) if stacked else 1
    whole = np.zeros((*values.shape[:-3], heads, *a.shape), values.dtype)
    for block, (head, row, col) in enumerate(stored(layout)):
        tile = whole[..., head, row * R : (row + 1) * R, col * C : (col + 1) * C]
        tile[...] = values[..., block, :, :]
    return whole if stacked else whole[..., 0, :, :]


def sampled(full, layout):
    """Return the values (..., blocks, R, C) that ``layout`` picks of (..., M, K)."""
    R, C = layout.blocksize
    stacked = isinstance(layout, bs.LayoutStack)
    lead = full.shape[: -3 if stacked else -2]
    picked = np.zeros((*lead, layout.blocks, R, C), full.dtype)
    for block, (head, row, col) in enumerate(stored(layout)):
        whole = full[..., head, :, :] if stacked else full
        tile = whole[..., row * R : (row + 1) * R, col * C : (col + 1) * C]
        picked[..., block, :, :] = tile
    return picked


def strided(x, kind):
    """Return an array of the shape of ``x`` that lies in memory otherwise."""
    if kind == "as_is":
        return x
    if kind == "transposed":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
    if kind == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    if kind == "every_second":
        wide = np.full((*x.shape[:-2], x.shape[-2] * 3, x.shape[-1] * 2), 77, x.dtype)
        wide[..., 1::3, ::2] = x
        return wide[..., 1::3, ::2]
    if kind == "read_only":
        x = x.copy()
        x.flags.writeable = False
        return x
    if kind == "broadcast_columns":
        return np.broadcast_to(x[..., :1], x.shape)
    if kind == "broadcast_rows":
        return np.broadcast_to(x[..., :1, :], x.shape)
    raise ValueError(kind)
