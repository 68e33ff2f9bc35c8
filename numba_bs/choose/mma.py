"""Constants of the mma rung: which precisions, blocks and sizes it serves, and how."""

from typing import NamedTuple

import numpy as np

from ..dtypes import bfloat16


class MmaConfig(NamedTuple):
    """Compile-time constants of the mma rung; sizes in elements."""

    kind: str  # precision: "f16", "bf16", "tf32", "tf32x3", "f64", "f64wide"
    tile_m: int  # rows of a CTA's tile of the result
    tile_n: int  # columns of it
    tile_k: int  # inner steps of a stage
    warp_m: int  # rows of a warp
    warp_n: int  # columns of a warp
    stages: int  # buffers: one that is multiplied, the others on their way
    groups: int = 1  # of warps that share a tile and split each step (sdd)
    splits: int = 1  # parts of the inner dimension (sdd), summed in a second pass

    @property
    def accumulator(self) -> np.dtype:
        """The dtype of the sums."""
        return np.dtype(np.float64 if _ITEM[self.kind] == 8 else np.float32)

    @property
    def tiles(self) -> tuple:
        """The sizes and the number of buffers, as the kernels take them."""
        return self[1:7]


_ITEM = {"f16": 2, "bf16": 2, "tf32": 4, "tf32x3": 4, "f64": 8, "f64wide": 8}
_K_STEP = {2: 16, 4: 8, 8: 8}
# Rows (columns) of a tile and of a warp in it: the first that divides a block.
_ALONG = {
    2: {128: 64, 96: 48, 64: 64, 48: 48, 32: 32, 16: 16},
    4: {128: 64, 96: 48, 64: 64, 48: 48, 32: 32, 16: 16},
    8: {64: 32, 32: 32, 16: 16},
}
_WARP_SUMS = {2: 4096, 4: 4096, 8: 2048}  # 128 registers a thread
_WARPS = 4  # of a CTA; two CTAs a multiprocessor
_TILE_N = 256
# What two CTAs of a multiprocessor of compute capability 9.0 can have each.
_SHARED_BYTES = 113 * 1024
_STAGES = 4
# What a CTA costs besides its columns, in columns: its share of A, its start and end.
_CTA_COLUMNS = 16
# Threads that fill a large GPU, and the least part of a sum worth a CTA: for the cut
# of the inner dimension, which must depend on shapes only.
_FILLING, _LEAST_RANGE = 65536, 512


def mma_kind(
    a: np.dtype,
    b: np.dtype,
    sums: np.dtype,
    precision: str | None,
    capability: tuple = (8, 0),
) -> str | None:
    """Return the kind of product of operands of these dtypes; None if there is none.

    Parameters
    ----------
    a, b : dtypes of the operands
    sums : accumulation dtype
    precision : None or "ieee", "tf32", "tf32x3": what float32 operands may lose
    capability : compute capability; from 9.0 on float64 has a wider instruction

    Examples
    --------
    >>> f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    >>> mma_kind(f64, f64, f64, None), mma_kind(f32, f32, f32, "tf32x3")
    ('f64', 'tf32x3')
    >>> mma_kind(f32, f32, f32, None)
    """
    if a != b:
        return None
    asked = precision if precision in ("tf32", "tf32x3") else None
    kinds = {
        (np.dtype(np.float16), 4): "f16",
        (bfloat16, 4): "bf16",
        (np.dtype(np.float32), 4): asked,
        (np.dtype(np.float64), 8): "f64" if capability < (9, 0) else "f64wide",
    }
    return kinds.get((a, sums.itemsize)) if sums.kind == "f" else None


def serves_mma_dsd(R: int, C: int, N: int) -> bool:
    """Whether the rung multiplies blocks of ``(R, C)`` by N columns."""
    return R % 16 == 0 and C % 8 == 0 and N >= 16


def serves_mma_sdd(R: int, C: int) -> bool:
    """Whether the rung makes blocks of ``(R, C)``."""
    return R % 16 == 0 and C % 16 == 0


def mma_dsd(
    R: int, C: int, N: int, kind: str, shared_limit: int = _SHARED_BYTES
) -> MmaConfig:
    """Return the constants for blocks of ``(R, C)`` times N columns.

    Parameters
    ----------
    R, C : block size as the plan walks it
    N : columns of the dense operand
    kind : of :func:`mma_kind`
    shared_limit : bytes of shared memory a CTA can have

    Examples
    --------
    >>> mma_dsd(64, 64, 8192, "bf16")[1:7]
    (64, 256, 32, 64, 64, 4)
    >>> mma_dsd(16, 16, 100, "tf32")[1:7]
    (16, 64, 16, 16, 16, 4)
    """
    item = _ITEM[kind]
    tile_m, warp_m = _along(R, item)
    warps_m = tile_m // warp_m
    warp_n = _power_of_two_below(min(_WARP_SUMS[item] // warp_m, 64))
    # The kernel wants tile_n <= N; powers of two, so that there are few kernels.
    limit = min(_WARPS // warps_m * warp_n, _TILE_N, N)
    widths = [1 << i for i in range(4, limit.bit_length())]
    tile_n = min(
        reversed(widths), key=lambda width: -(-N // width) * (width + _CTA_COLUMNS)
    )
    warp_n = max(min(warp_n, tile_n * warps_m // _WARPS), 16)
    tile_k = _depth(C, _K_STEP[item], 64 // item)
    stages = _stages(tile_m, tile_n, tile_k, item, shared_limit)
    return MmaConfig(kind, tile_m, tile_n, tile_k, warp_m, warp_n, stages)


def mma_sdd(
    R: int,
    C: int,
    blocks: int,
    N: int,
    kind: str,
    shared_limit: int = _SHARED_BYTES,
) -> MmaConfig:
    """Return the constants for ``blocks`` of ``(R, C)``, inner dimension N.

    Parameters
    ----------
    R, C : block size
    blocks : how many a layout stores
    N : inner dimension
    kind : of :func:`mma_kind`
    shared_limit : bytes of shared memory a CTA can have

    Examples
    --------
    >>> mma_sdd(64, 64, 1638, 8192, "bf16")[1:8]
    (64, 64, 64, 64, 32, 4, 2)
    >>> mma_sdd(16, 16, 1, 100_000, "tf32").splits
    196
    """
    item = _ITEM[kind]
    (tile_m, warp_m), (tile_n, warp_n) = _along(R, item), _along(C, item)

    def warps():
        return tile_m // warp_m * (tile_n // warp_n)

    while (
        warp_m * warp_n > _WARP_SUMS[item] // 2
        and warps() < _WARPS
        and warp_n % 32 == 0
    ):
        warp_n //= 2
    groups = max(_WARPS // warps(), 1)
    area = tile_m * tile_n
    line_bytes = 64 if area >= 128 * 128 else 128 if area >= 64 * 64 else 256
    least = _K_STEP[item] * groups
    tile_k = min(max(line_bytes // item, least), -(-max(N, 1) // least) * least)
    stages = _stages(tile_m, tile_n, tile_k, item, shared_limit)

    ctas = max(blocks * (R // tile_m) * (C // tile_n), 1)
    wanted = _FILLING // (32 * warps() * groups)
    splits = min(wanted // ctas, -(-N // _LEAST_RANGE)) if 2 * ctas <= wanted else 1
    length = -(-N // max(splits, 1) // tile_k) * tile_k
    splits = max(-(-N // max(length, 1)), 1)
    return MmaConfig(
        kind, tile_m, tile_n, tile_k, warp_m, warp_n, stages, groups, splits
    )


def _along(size: int, item: int) -> tuple[int, int]:
    """Return elements of a tile and of a warp along one axis of a block."""
    return next(each for each in _ALONG[item].items() if size % each[0] == 0)


def _depth(C: int, k_step: int, usual: int) -> int:
    """Return how many inner steps dsd stages at a time: several blocks, or a part.

    Of the multiples of ``k_step`` up to twice the usual: the one that wastes least on
    blocks of C columns, and of those the one nearest to the usual.
    """

    def waste(depth):
        used = depth // C * C if depth >= C else C / -(-C // depth)
        return depth / used

    depths = range(k_step, 2 * usual + 1, k_step)
    return min(depths, key=lambda depth: (waste(depth), abs(depth - usual), -depth))


def _stages(tile_m: int, tile_n: int, tile_k: int, item: int, limit: int) -> int:
    """Return how many steps fit shared memory at a time, whichever way they lie."""
    pad = 32 if item == 8 else 16
    stage = sum(
        max(rows * (tile_k * item + pad), tile_k * (rows * item + 32))
        for rows in (tile_m, tile_n)
    )
    return max(min(limit // stage, _STAGES), 2)


def _power_of_two_below(n: int) -> int:
    """Return the largest power of two that is not above ``n``."""
    return 1 << n.bit_length() - 1


# ------------------------------------------------------------------- for a product


def of_dsd(product) -> MmaConfig | str:
    """Return the constants for a :class:`choose.Dsd`, or what it is not served for."""
    *_, R, C = product.a.shape
    N = product.b.shape[-1]
    kind = _kind(product, product.a, product.b)
    if kind is None:
        return _KINDS_SERVED
    if not serves_mma_dsd(R, C, N):
        return "mma needs blocks of multiples of 16 by 8 and 16 columns"
    return mma_dsd(R, C, N, kind, _shared(product))


def of_sdd(product) -> MmaConfig | str:
    """Return the constants for a :class:`choose.Sdd`, or what it is not served for."""
    *_, blocks, R, C = product.out.shape
    kind = _kind(product, product.x, product.y)
    if kind is None:
        return _KINDS_SERVED
    if not serves_mma_sdd(R, C):
        return "mma needs blocks of multiples of 16"
    return mma_sdd(R, C, blocks, product.x.shape[-1], kind, _shared(product))


_KINDS_SERVED = (
    "mma needs compute capability 8.0 and two operands of float16, bfloat16, float64 "
    "or (with precision 'tf32' or 'tf32x3') float32"
)


def _kind(product, a, b):
    if product.capability < (8, 0):
        return None
    return mma_kind(
        a.dtype, b.dtype, product.sums, product.precision, product.capability
    )


def _shared(product) -> int:
    return min(product.shared_limit, _SHARED_BYTES)
