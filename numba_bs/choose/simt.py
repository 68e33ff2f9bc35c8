"""Constants of the SIMT rung, which serves every call."""

from typing import NamedTuple

import numpy as np


class SimtConfig(NamedTuple):
    """Compile-time constants of the SIMT rung; sizes in elements."""

    tile_m: int  # rows of a CTA's tile of the result
    tile_n: int  # columns of it
    tile_k: int  # inner steps staged in shared memory at a time
    thread_m: int  # rows a thread keeps in registers
    thread_n: int  # columns a thread keeps in registers
    groups: int  # thread groups that share a tile and split its inner steps
    accumulator: np.dtype
    splits: int = 1  # parts of the inner dimension (sdd), summed in a second pass
    k_run: int = 1  # neighbouring inner steps that a thread multiplies at once


# Rows and columns of a thread's tile by the bytes of an accumulator: 64 registers of
# sums, so that with what is on its way from memory nothing spills.
_REGISTER_TILE = {4: (8, 8), 8: (4, 8), 16: (4, 4)}
# For sdd, which stages more for a product, fewer sums and more threads (block 32: 27.6
# TFLOP/s with 8 x 4, 24.4 with 8 x 8), and less for what is not work for a warp (block
# 16: 19.4 with 4 x 4, 17.7 with 8 x 8).
_SAMPLED_REGISTER_TILE = {4: (8, 4), 8: (4, 8), 16: (4, 4)}
# The most that a CTA takes. Its threads hand their sums over in 32 KiB of shared
# memory, and it stages 40 KiB at a time. (48 are to be had, padding needs some.)
_THREADS, _TILE_M, _TILE_N_BYTES, _STAGED_BYTES = 128, 64, 1024, 40960
_WARP = 32
_VECTOR_BYTES = 16
# Inner steps staged at a time: two barriers and a look-up are paid once a step. fp32
# on an H200, 8192 cubed, density 0.1: dsd 32 at 16 steps 30.2 TFLOP/s, at 32 30.7;
# dsd 64 28.2, 34.3; sdd 64 at 16 steps 23.6, at 32 27.6, at 64 32.5.
_TILE_K = 32
# What a CTA costs besides its columns, in columns: its share of A, its start and end.
_CTA_COLUMNS = 16
# Threads that fill a large GPU, and the least part of a sum worth a CTA: for the cut
# of the inner dimension, which must depend on shapes only.
_FILLING, _LEAST_RANGE = 65536, 512


def simt_dsd(
    R: int, C: int, N: int, sums: np.dtype, along_k: bool = False
) -> SimtConfig:
    """Return the constants for blocks of ``(R, C)`` times N columns.

    Parameters
    ----------
    R, C : block size as the plan walks it
    N : columns of the dense operand
    sums : accumulation dtype
    along_k : whether neighbours of the dense operand in memory lie along a column

    Examples
    --------
    >>> simt_dsd(32, 32, 8192, np.dtype(np.float32))[:6]
    (32, 256, 32, 8, 8, 1)
    >>> simt_dsd(3, 3, 1, np.dtype(np.float64))[:6]
    (3, 1, 32, 3, 1, 32)
    """
    most_m, most_n = _REGISTER_TILE[sums.itemsize]
    thread_m, threads_m = _along(R, most_m, _TILE_M)
    tile_m = threads_m * thread_m
    # The kernel wants tile_n <= N; powers of two, so that there are few kernels.
    limit = min(_TILE_N_BYTES // sums.itemsize, most_n * _THREADS // threads_m, N)
    widths = [1 << i for i in range(max(limit, 1).bit_length())]
    tile_n = min(widths, key=lambda width: -(-N // width) * (width + _CTA_COLUMNS))
    thread_n = min(most_n, tile_n)
    groups = min(_THREADS * thread_n // (threads_m * tile_n), _WARP)
    if groups == 2 and thread_m == 8:  # rather smaller register tiles than two groups
        thread_m, groups = 4, 1
    # Staging rounds rows up to whole passes of the threads: powers of two.
    most_k = _STAGED_BYTES // ((_power_of_two(tile_m) + tile_n) * sums.itemsize)
    most_k = _floor_power_of_two(most_k) if sums.itemsize == 16 else most_k
    tile_k = _depth(C, groups, most_k)
    # Half a vector where many columns are staged: a whole one costs the third CTA
    # (block 32: 26.4 TFLOP/s against 30.7; block 64: 34.3 against 30.9). Along k a
    # vector is what shared memory can read without bank conflicts.
    run = max(_VECTOR_BYTES // sums.itemsize, 1)
    run = run if tile_m > 32 or along_k else max(run // 2, 1)
    return SimtConfig(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        thread_m=thread_m,
        thread_n=thread_n,
        groups=groups,
        accumulator=sums,
        k_run=run if tile_k % (run * groups) == 0 else 1,
    )


def simt_sdd(R: int, C: int, blocks: int, N: int, sums: np.dtype) -> SimtConfig:
    """Return the constants for ``blocks`` of ``(R, C)``, inner dimension N.

    Parameters
    ----------
    R, C : block size
    blocks : how many a layout stores
    N : inner dimension
    sums : accumulation dtype

    Examples
    --------
    >>> simt_sdd(32, 32, 6554, 8192, np.dtype(np.float32))[:6]
    (32, 32, 32, 8, 4, 2)
    >>> simt_sdd(16, 16, 1, 100_000, np.dtype(np.float32)).splits
    196
    """
    most_m, most_n = _SAMPLED_REGISTER_TILE[sums.itemsize]
    if min(R, _TILE_M) * min(C, _TILE_M) < _WARP * most_m * most_n:
        most_m, most_n = min(most_m, 4), min(most_n, 4)
    thread_m, threads_m = _along(R, most_m, _TILE_M)
    thread_n, threads_n = _along(C, most_n, most_n * _THREADS // threads_m)
    tile_m, tile_n = threads_m * thread_m, threads_n * thread_n
    tile_threads = threads_m * threads_n
    groups = max(_WARP // tile_threads, 1 if tile_threads > _WARP else 2)
    groups = min(groups, _floor_power_of_two(max(N, 1)))
    threads = tile_threads * groups
    row_bytes = (_power_of_two(tile_m) + _power_of_two(tile_n)) * sums.itemsize
    tile_k = _TILE_K if tile_threads >= _WARP else 2 * _TILE_K
    tile_k = min(max(tile_k, groups), _STAGED_BYTES // row_bytes, max(N, 1))
    tile_k = _floor_power_of_two(tile_k)  # at most N: the kernel wants that
    run = max(_VECTOR_BYTES // sums.itemsize, 1)

    tiles = -(-R // tile_m) * -(-C // tile_n)
    ctas, wanted = max(blocks * tiles, 1), _FILLING // threads
    splits = min(wanted // ctas, -(-N // _LEAST_RANGE)) if 2 * ctas <= wanted else 1
    length = -(-N // max(splits, 1) // tile_k) * tile_k
    return SimtConfig(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        thread_m=thread_m,
        thread_n=thread_n,
        groups=groups,
        accumulator=sums,
        splits=max(-(-N // max(length, 1)), 1),
        k_run=run if tile_k % (run * groups) == 0 else 1,
    )


def _along(size: int, most: int, limit: int) -> tuple[int, int]:
    """Return elements of a thread and number of threads along one axis of a block.

    Threads are a power of two: then their place in a tile is cheap to find, and any
    number of them along one axis of it leaves a whole number along the other.
    ``limit`` elements are the most a CTA takes.
    """
    threads = min(_power_of_two(-(-size // most)), _floor_power_of_two(limit // most))
    tiles = -(-size // (threads * most))
    return -(-size // (tiles * threads)), threads


def _depth(C: int, groups: int, most: int) -> int:
    """Return how many inner steps dsd stages at a time: several blocks, or a part.

    Of the multiples of four steps of each group up to a block, or 16 steps of small
    blocks: the one that wastes least on blocks of C columns, and of those the largest.
    """
    most = min(most, _TILE_K, max(C, 16))
    turn = 4 * groups if 4 * groups <= most else groups

    def waste(depth):
        used = depth // C * C if depth >= C else C / -(-C // depth)
        return depth / used

    depths = range(turn, max(most, turn) + 1, turn)
    depths = [depth for depth in depths if depth >= _TILE_K // 4] or [turn]
    return min(depths, key=lambda k: (waste(k), abs(k - _TILE_K), -k))


def _power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def _floor_power_of_two(n: int) -> int:
    """Return the largest power of two that is not above ``n``."""
    return 1 << n.bit_length() - 1


# ------------------------------------------------------------------- for a product


def of_dsd(product) -> SimtConfig:
    """Return the constants for a :class:`choose.Dsd`."""
    *_, R, C = product.a.shape
    along_k = abs(product.b.strides[-2]) < abs(product.b.strides[-1])
    return simt_dsd(R, C, product.b.shape[-1], product.sums, along_k)


def of_sdd(product) -> SimtConfig:
    """Return the constants for a :class:`choose.Sdd`."""
    *_, blocks, R, C = product.out.shape
    return simt_sdd(R, C, blocks, product.x.shape[-1], product.sums)
