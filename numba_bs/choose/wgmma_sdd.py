"""Constants of Hopper's rung of sdd, and which products it serves."""

from typing import NamedTuple

import numpy as np

from .. import strided
from ..dtypes import bfloat16
from ..plan import Strips
from . import tables
from .wgmma import mappable, square


class SampleConfig(NamedTuple):
    """Compile-time constants of sdd on Hopper; see ``matmul_sdd_wgmma.py``."""

    side: int  # of a square: 16, 32 or 64
    wide: int  # squares side by side in a strip of columns, of 64 columns at most
    width: int  # columns of a part
    parts: int  # of a warpgroup
    row_groups: int  # consumer warpgroups one below the other
    col_groups: int  # and side by side
    stages: int  # in shared memory
    loaders: int  # warps
    splits: int = 1  # parts of the inner dimension, summed in a second pass
    by_place: bool = False  # items run by columns, which then stay in the L2 cache

    @property
    def strips(self) -> Strips:
        """What the plan of these constants is made for."""
        strip = self.side * self.wide
        return Strips(
            rows=_ROWS * self.row_groups,
            side=self.side,
            wide=self.wide,
            unit=self.width // strip,
            most=self.width // strip * self.parts * self.col_groups,
            ctas=_FILLING,
            by_place=self.by_place,
        )


_FLOAT16 = np.dtype(np.float16)
_INPUTS, _OUTPUTS = (_FLOAT16, bfloat16), (_FLOAT16, bfloat16, np.dtype(np.float32))
_SHARED_BYTES = 227 * 1024  # of a CTA, compute capability 9.0
_ROWS = 64  # of an instruction
_CHUNK = 64  # inner steps of a stage
_LEAST_N = 64  # fewer leave most of a stage empty
_LEAST_STAGES = 8  # of a part of the inner dimension
_FILLING = 132  # CTAs: one on each multiprocessor of an H200


def of_sdd(product) -> SampleConfig | str:
    """Return the constants for a :class:`choose.Sdd`, or what it is not served for."""
    x, y, out = product.x, product.y, product.out
    _, blocks, R, C = out.shape
    if product.capability != (9, 0):
        return "wgmma needs compute capability 9.0"
    if x.dtype != y.dtype or x.dtype not in _INPUTS or out.dtype not in _OUTPUTS:
        return "wgmma multiplies float16 or bfloat16"
    if R % 16 or C % 16:
        return "wgmma needs blocks of multiples of 16"
    if x.shape[4] < _LEAST_N:
        return f"wgmma needs an inner dimension of {_LEAST_N}"
    if x.shape[2] > 1:
        return "wgmma knows no heads"
    if not all(mappable(each) for part in product.parts for each in part[:2]):
        return (
            "wgmma needs addresses and strides of multiples of 16 bytes, one axis "
            "contiguous"
        )
    if not all(_one_axis(each) for part in product.parts for each in part[:2]):
        return "wgmma needs leading axes that are one by their strides"
    M, N = x.shape[-2:]
    K = y.shape[-1]
    return wgmma_sdd(R, C, blocks, M, K, N * x.shape[1], x.shape[0])


def _one_axis(x) -> bool:
    """Whether one stride stands for (batch, summed); broadcast ones count as 1 long."""
    outer = [
        size if step else 1
        for size, step in zip(x.shape[:2], x.strides[:2], strict=True)
    ]
    return len(strided.merge(outer, x.strides[:2])[0]) <= 1


def wgmma_sdd(
    R: int, C: int, blocks: int, M: int, K: int, N: int, batch: int = 1
) -> SampleConfig:
    """Return the constants for ``blocks`` of ``(R, C)`` of a matrix ``(M, K)``.

    Parameters
    ----------
    R, C : block size, multiples of 16
    blocks : how many a layout stores
    M, K : shape of the matrix
    N : inner dimension, times what is summed besides
    batch : products

    Examples
    --------
    >>> wgmma_sdd(64, 64, 1638, 8192, 8192, 8192)
    SampleConfig(side=64, wide=1, width=128, parts=2, row_groups=1, col_groups=2,
        stages=3, loaders=3, splits=1, by_place=False)
    >>> wgmma_sdd(64, 64, 4, 512, 512, 100_000).splits
    33
    """
    side = square(R, C)
    strip = next(width for width in (64, 32, 16) if C % width == 0)
    density = min(blocks * R * C / (M * K), 1)
    key = 128 if R % 128 == 0 else side, density >= tables.DENSE
    width, parts, row_groups, col_groups, by_place = tables.SDD[key]
    rows, columns = _ROWS * row_groups, width * parts * col_groups
    stages = stages_of(rows, columns)

    # Items, if the blocks lie evenly: a strip of a tile is there if one of its rows has
    # a block.
    union = 1 - (1 - density) ** max(rows / R, 1)
    with_blocks = min(-(-M // rows), max(blocks * R // rows, 1))
    items = batch * with_blocks * max(round(union * K / columns), 1)
    total, splits = -(-N // _CHUNK), 1
    if 2 * items <= _FILLING:
        splits = max(min(_FILLING // items, total // _LEAST_STAGES), 1)
    splits = -(-total // -(-total // splits))  # each has its part
    return SampleConfig(
        side=side,
        wide=strip // side,
        width=width,
        parts=parts,
        row_groups=row_groups,
        col_groups=col_groups,
        stages=stages,
        loaders=min(stages, 4),
        splits=splits,
        by_place=by_place,
    )


def stages_of(rows: int, columns: int) -> int:
    """Return how many stages shared memory holds."""
    stage = 2 * _CHUNK * (rows + columns) + 16
    return min((_SHARED_BYTES - 1024) // stage, 8)
