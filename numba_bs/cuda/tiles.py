"""What the SIMT kernels share: conversions, and how threads lie on a staged tile.

The functions named ``make_...`` return device functions for given dtypes. Kernels
hold sums, and what they stage in shared memory, in the accumulation dtype: a value
is widened once, when it is staged, and rounded once, when the result is written.
"""

import functools

import numpy as np

from ..dtypes import bfloat16
from .compiler import cast, device, f32, i64, u32
from .ptx import bf16_to_f32, f32_to_bf16

SECTOR_BYTES = 32  # what a GPU fetches from memory at least
VECTOR_BYTES = 16  # what a thread reads from shared memory at most, at once


@device
def index(x):
    """Return ``x``, which is not negative and below 2^32, as an index.

    Numba counts negative indices from the end, which takes it two instructions an
    axis unless the compiler can see that there are none. After this it can.
    """
    return i64(u32(x))


# ----------------------------------------------------------------- conversions


@functools.cache
def make_widen(storage, accumulator, conj=False):
    """Return the function from a stored value to the dtype of sums.

    Parameters
    ----------
    storage, accumulator : NumPy dtypes
        bfloat16 is stored as 16-bit words.
    conj : bool
        Conjugate complex values.
    """
    to_sum = cast(accumulator)

    if storage == bfloat16:

        @device
        def widen(x):
            return to_sum(bf16_to_f32(x))

    elif conj and storage.kind == "c":

        @device
        def widen(x):
            return to_sum(x.conjugate())

    else:

        @device
        def widen(x):
            return to_sum(x)

    return widen


@functools.cache
def make_narrow(accumulator, storage):
    """Return the function from a sum to a stored value.

    Floats are rounded to nearest even (float64 to bfloat16 by way of float32, as
    ml_dtypes does it), integers wrap.
    """
    if storage == bfloat16:

        @device
        def narrow(x):
            return f32_to_bf16(f32(x))

    else:
        to_stored = cast(storage)

        @device
        def narrow(x):
            return to_stored(x)

    return narrow


@functools.cache
def make_multiply_add(accumulator):
    """Return the function ``total + x * y``: one rounding a term where GPUs can."""
    if accumulator.kind == "c":

        @device
        def multiply_add(total, x, y):
            # So written, each line compiles to two fused multiply-adds.
            real = total.real + x.real * y.real - x.imag * y.imag
            imag = total.imag + x.real * y.imag + x.imag * y.real
            return complex(real, imag)

    else:

        @device
        def multiply_add(total, x, y):
            return total + x * y

    return multiply_add


# --------------------------------------------------------------- staging a tile


def staging_threads(along_k, tile_k, tile_other, threads, storage):
    """Return how many threads lie along k, and how many across, to stage a tile.

    Memory is read fast if neighbouring threads read neighbouring addresses, so they
    lie along the axis on which ``along_k`` says that neighbours lie. Across it a
    warp takes full sectors: a tile is written to shared memory with k as the outer
    axis, and 32 threads along k would write to few of its banks. At least four
    threads lie along k where they can, because what each k costs is paid by thread.

    Parameters
    ----------
    along_k : bool
        Whether neighbours in memory lie along k, not along the other axis.
    tile_k, tile_other : sizes of the tile; ``threads`` : a power of two
    storage : NumPy dtype

    Returns
    -------
    (int, int)
        Their product is ``threads``. The second is at most ``tile_other``, rounded up
        to a power of two.
    """
    across = min(threads, power_of_two(tile_other))
    sector = SECTOR_BYTES // storage.itemsize
    if along_k:
        along = min(max(sector, 8), power_of_two(tile_k))
        across = min(across, max(threads // along, 1))
    else:
        across = min(across, 32, max(threads // 4, sector))
    return threads // across, across


def power_of_two(n):
    """Return the smallest power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def pitch(items, accumulator):
    """Return the row length of a staged tile of ``items`` columns.

    A whole number of vectors, and one more: the rows k, k + 1, ... that neighbouring
    threads write begin on different banks.
    """
    vector = max(VECTOR_BYTES // np.dtype(accumulator).itemsize, 1)
    return -(-items // vector) * vector + vector


def run_length(columns, accumulator):
    """Return how many neighbouring columns a thread reads from shared memory at once.

    Its columns come in runs of so many, the runs of all threads side by side: then
    neighbouring threads read neighbouring vectors, without bank conflicts.
    """
    vector = max(VECTOR_BYTES // accumulator.itemsize, 1)
    return vector if columns % vector == 0 else 1


def scalars(accumulator, *values):
    """Return factors as kernels take them: integers as int64, which wrap alike."""
    if accumulator.kind in "iu":
        return tuple((int(value) + 2**63) % 2**64 - 2**63 for value in values)
    return tuple(accumulator.type(value) for value in values)
