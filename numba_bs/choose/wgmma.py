"""Constants of Hopper's rung of dsd, and which products it serves."""

from math import prod
from typing import NamedTuple

import numpy as np

from ..dtypes import bfloat16
from ..plan import Squares
from . import tables


class WgmmaConfig(NamedTuple):
    """Compile-time constants of dsd on Hopper; see ``matmul_dsd_wgmma.py``."""

    side: int  # of a square: 16, 32 or 64
    rows: int  # of squares, of a warpgroup
    chunks: int  # of 64 columns, of a warpgroup
    row_groups: int  # consumer warpgroups one below the other
    col_groups: int  # and side by side
    wide: int  # columns of squares that are loaded together
    stage_cols: int  # most of these of a stage
    cap: int  # most squares of a stage
    stages: int  # in shared memory
    loaders: int  # warps
    out_tiles: int  # tiles of sums (64 by a square) that a warpgroup writes at a time
    out_buffers: int  # for so many times that
    whole: bool  # the copy engine stores them; else each thread its own, one by one

    @property
    def squares(self) -> Squares:
        """What the plan of these constants is made for."""
        return Squares(
            self.side,
            self.row_groups,
            self.rows,
            self.wide,
            self.stage_cols,
            self.cap,
        )

    @property
    def group_rows(self) -> int:
        """Rows of a CTA's tile."""
        return self.side * self.rows * self.row_groups


_FLOAT16 = np.dtype(np.float16)
_INPUTS, _OUTPUTS = (_FLOAT16, bfloat16), (_FLOAT16, bfloat16, np.dtype(np.float32))
_SHARED_BYTES = 227 * 1024  # of a CTA, compute capability 9.0
_CHUNK = 64  # columns
_LEAST_N = 64  # fewer leave most of a tile empty


def of_dsd(product) -> WgmmaConfig | str:
    """Return the constants for a :class:`choose.Dsd`, or what it is not served for."""
    a, b, out = product.a, product.b, product.out
    _, summed, blocks, R, C = a.shape
    if product.capability != (9, 0):
        return "wgmma needs compute capability 9.0"
    if a.dtype != b.dtype or a.dtype not in _INPUTS or out.dtype not in _OUTPUTS:
        return "wgmma multiplies float16 or bfloat16"
    if R % 16 or C % 16:
        return "wgmma needs blocks of multiples of 16"
    if out.shape[-1] < _LEAST_N:
        return f"wgmma needs {_LEAST_N} columns"
    if summed > 1 or b.shape[1] > 1 or b.shape[2] > 1:
        return "wgmma neither sums leading axes nor knows heads"
    along_k = a.strides[4] < a.strides[3]
    inner, across = (C, a.strides[3]) if along_k else (R, a.strides[4])
    if blocks > 1 and a.strides[2] != across * (R * C // inner):
        return "wgmma needs the blocks of the values one after the other"
    if not all(mappable(each) for part in product.parts for each in part[:2]):
        return (
            "wgmma needs addresses and strides of multiples of 16 bytes, one axis "
            "contiguous"
        )
    b_along_k = b.strides[3] < b.strides[4]
    mapped = all(mappable(each) for _, _, each in product.parts)
    whole = bool(out.dtype == a.dtype and product.beta == 0 and mapped)
    return wgmma_dsd(R, C, product.density, b_along_k, whole, product.cut)


def mappable(x) -> bool:
    """Whether the copy engine takes an array whose last two axes are a matrix."""
    *outer, by_row, by_col = x.strides
    sizes = x.shape
    outer = [step for step, size in zip(outer, sizes, strict=False) if size > 1]
    short, long = sorted((by_row, by_col))
    return (
        short == x.dtype.itemsize
        and all(0 <= step < 1 << 40 and step % 16 == 0 for step in (*outer, long))
        and x.pointer % 16 == 0
        and prod(sizes) > 0
    )


def wgmma_dsd(
    R: int, C: int, density: float, b_along_k: bool, whole: bool, cut: bool = False
) -> WgmmaConfig:
    """Return the constants for blocks of ``(R, C)``.

    Parameters
    ----------
    R, C : block size as the plan walks it, multiples of 16
    density : of the layout
    b_along_k : whether neighbours of the dense operand in memory lie along a column
    whole : whether the copy engine can store the result
    cut : whether long rows are cut: their sums are stored one by one

    Notes
    -----
    What the tables agree on: sums that are stored one by one leave fewer registers to
    them, 128 a thread, not 192. Where b lies along k, a box only as wide as a square is
    slow to copy (91 TFLOP/s at block 16, density 0.1, and 236 at 32): ``wide`` columns
    of squares at a time make it 64 (161 and 254).

    Examples
    --------
    >>> wgmma_dsd(128, 128, 0.1, False, True)[:4]
    (64, 1, 4, 2)
    """
    key = block_class(R, C), density >= tables.DENSE, b_along_k, whole and not cut
    return _config(whole, min(key[0], 64), *tables.DSD[key])


def square(R: int, C: int) -> int:
    """Return the side of the squares that blocks of ``(R, C)`` are cut into."""
    return next(side for side in (64, 32, 16) if R % side == 0 and C % side == 0)


def block_class(R: int, C: int) -> int:
    """Return under which block size the tables have blocks of ``(R, C)``."""
    side = square(R, C)
    return 128 if side == 64 and R % 128 == 0 else side


def _config(whole, side, rows, chunks, row_groups, wide, stage_cols, cap, out_tiles):
    """Fill shared memory with stages."""
    stage = 2 * side * (stage_cols * wide * _CHUNK * chunks + cap * side)
    out = row_groups * out_tiles * 2 * _CHUNK * side
    barriers = 16 + 4 * (cap + row_groups)
    stages = (_SHARED_BYTES - 1024 - out) // (stage + barriers)
    return WgmmaConfig(
        side=side,
        rows=rows,
        chunks=chunks,
        row_groups=row_groups,
        col_groups=1,
        wide=wide,
        stage_cols=stage_cols,
        cap=cap,
        stages=min(stages, 8),
        loaders=min(stages, 4),
        out_tiles=out_tiles,
        out_buffers=1,
        whole=whole,
    )
