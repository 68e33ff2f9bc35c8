"""What the SIMT kernels share: conversions, and how threads lie on a staged tile.

The functions named ``make_...`` return device functions for given dtypes. Kernels
hold sums, and what they stage in shared memory, in the accumulation dtype: a value
is widened once, when it is staged, and rounded once, when the result is written.
"""

import functools
from typing import NamedTuple

from ..dtypes import bfloat16
from .compiler import (
    cast,
    cuda,
    device,
    f32,
    i64,
    inlined_late,
    numba_type,
    u32,
    u64,
)
from .launch import ceil_div
from .ptx import bf16_to_f32, f32_to_bf16

WARP = 32
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
    ml_dtypes does it), integers wrap; of a complex sum a real result is the real part
    (the gradient of a real operand among complex ones).
    """
    to_stored = f32 if storage == bfloat16 else cast(storage)
    BFLOAT16 = storage == bfloat16
    REAL_PART = accumulator.kind == "c" and storage.kind != "c"

    @device
    def narrow(x):
        value = to_stored(x.real) if REAL_PART else to_stored(x)
        return f32_to_bf16(value) if BFLOAT16 else value

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


def in_turn(body, count):
    """Return the device function that calls ``body(i, args)`` for i from 0 to count.

    For what must be unrolled: a loop is, only if the compiler finds it short enough.
    ``body`` is a function ``inlined_late``.
    """
    if count == 1:
        return body
    half = count // 2
    first, second = in_turn(body, half), in_turn(body, count - half)

    @inlined_late
    def both(i, args):
        first(i, args)
        second(i + half, args)

    return both


# --------------------------------------------------------------- staging a tile


class Staged(NamedTuple):
    """How an operand's tile lies in shared memory, who stages it, who reads what.

    A tile lies in shared memory as it lies in global memory: along k, or across. So
    neighbouring threads read neighbouring addresses and write neighbouring banks. A
    thread reads VECTOR_BYTES at once, either neighbours along k of one of its rows,
    or neighbouring rows of one k.

    "Rows" are those of the left operand and the columns of the right one.
    """

    along_k: bool
    k_threads: int  # threads along k that stage
    row_threads: int  # and across; together all threads of the CTA
    k_passes: int
    row_passes: int  # the last pass may lead past the tile: there is room for it
    k_room: int
    row_room: int
    pitch: int  # items between neighbours across
    items: int  # of the whole tile
    run: int  # neighbouring rows of a thread; then come those of the next thread
    run_step: int


def staged(along_k, tile_k, rows, thread_rows, threads, groups, accumulator):
    """Return how to stage a tile of ``tile_k`` by ``rows``.

    Parameters
    ----------
    along_k : bool
        Whether neighbours in global memory lie along k.
    thread_rows : rows of the tile that each thread multiplies
    threads : of the CTA, a power of two
    groups : of threads that share the tile, each with its part of every step
    accumulator : NumPy dtype of what is staged
    """
    vector = max(VECTOR_BYTES // accumulator.itemsize, 1)
    along, across = (tile_k, rows) if along_k else (rows, tile_k)
    along_threads = min(power_of_two(along), WARP, threads)
    # No more threads across than there is to stage, rather some more along.
    along_threads = max(along_threads, threads // power_of_two(across))
    across_threads = threads // along_threads
    along_passes = ceil_div(along, along_threads)
    across_passes = ceil_div(across, across_threads)
    along_room = along_passes * along_threads
    across_room = across_passes * across_threads
    sides = (
        (along_threads, along_passes, along_room),
        (across_threads, across_passes, across_room),
    )
    of_k, of_rows = sides if along_k else reversed(sides)
    k_threads, k_passes, k_room = of_k
    row_threads, row_passes, row_room = of_rows
    # A whole number of vectors, and some padding: the vectors that the threads of a
    # warp read at once begin on different banks. Along k they are one row apart, and
    # one vector for each group of the warp.
    warp_groups = max(groups * WARP // threads, 1) if along_k else 1
    pitch = (ceil_div(along_room, vector) + warp_groups) * vector
    run = 1 if along_k or thread_rows % vector else vector
    return Staged(
        along_k=along_k,
        k_threads=k_threads,
        row_threads=row_threads,
        k_passes=k_passes,
        row_passes=row_passes,
        k_room=k_room,
        row_room=row_room,
        pitch=pitch,
        items=across_room * pitch,
        run=run,
        run_step=run * (rows // thread_rows),
    )


@functools.cache
def make_at(tile):
    """Return the function from (row, k) of a staged tile to its place."""
    PITCH = tile.pitch

    if tile.along_k:

        @device
        def at(row, k):
            return row * PITCH + k

    else:

        @device
        def at(row, k):
            return k * PITCH + row

    return at


@functools.cache
def make_stager(tile):
    """Return the function from a thread's index to the first (row, k) it stages."""
    K_THREADS, ROW_THREADS = tile.k_threads, tile.row_threads

    if tile.along_k:

        @device
        def first(tid):
            return tid // K_THREADS, tid % K_THREADS

    else:

        @device
        def first(tid):
            return tid % ROW_THREADS, tid // ROW_THREADS

    return first


@functools.cache
def make_row(tile):
    """Return the function from (thread across the tile, i) to the i-th row it has."""
    RUN, RUN_STEP = tile.run, tile.run_step

    @device
    def row(thread, i):
        return thread * RUN + i // RUN * RUN_STEP + i % RUN

    return row


@functools.cache
def make_multiply(left, right, THREAD_M, THREAD_N, K_RUN, accumulator):
    """Return the function that adds a thread's share of a staged step to its sums.

    Parameters
    ----------
    left, right : Staged
    THREAD_M, THREAD_N : rows and columns of a thread
    K_RUN : neighbouring k of one call
    """
    dtype = numba_type(accumulator)
    left_at, right_at = make_at(left), make_at(right)
    left_row, right_row = make_row(left), make_row(right)
    multiply_add = make_multiply_add(accumulator)

    @device
    def multiply(k, tid_m, tid_n, left_smem, right_smem, acc):
        left_reg = cuda.local.array(K_RUN, dtype)
        right_reg = cuda.local.array((THREAD_N, K_RUN), dtype)
        for j in range(THREAD_N):
            for kk in range(K_RUN):
                place = right_at(right_row(tid_n, j), k + kk)
                right_reg[j, kk] = right_smem[u64(place)]
        for i in range(THREAD_M):
            for kk in range(K_RUN):
                place = left_at(left_row(tid_m, i), k + kk)
                left_reg[kk] = left_smem[u64(place)]
            for kk in range(K_RUN):
                for j in range(THREAD_N):
                    acc[i, j] = multiply_add(acc[i, j], left_reg[kk], right_reg[j, kk])

    return multiply


def power_of_two(n):
    """Return the smallest power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def pitch(items, accumulator):
    """Return the row length of an array of sums: whole vectors, and one more."""
    vector = max(VECTOR_BYTES // accumulator.itemsize, 1)
    return (ceil_div(items, vector) + 1) * vector


def scalars(accumulator, *values):
    """Return factors as kernels take them: integers as int64, which wrap alike."""
    if accumulator.kind in "iu":
        return tuple((int(value) + 2**63) % 2**64 - 2**63 for value in values)
    return tuple(accumulator.type(value) for value in values)
