"""What the tensor-core kernels share: asynchronous copies, fragments, products.

``mma.sync`` multiplies small matrices that the 32 threads of a warp hold together. An
operand is cut in *fragments* of 16 rows by K_STEP inner steps (16 of 16-bit numbers,
8 of others), of which each thread holds four registers, one of each quarter::

                 left operand, halves of k    right operand, halves of k
    rows 0-7           0   2                         0   1
    rows 8-15          1   3                         2   3

"Rows" are those of the left operand and the columns of the right one: one function
loads both. An instruction multiplies a fragment of the left operand by eight rows of
the right one, which therefore lie in neighbouring registers. Which lane holds what of
a quarter, and of the sums, stands in ``fragments.py``.
"""

import functools
from typing import NamedTuple

import numpy as np

from ..dtypes import bfloat16
from . import fragments
from .compiler import cuda, device, float64, uint32
from .launch import ceil_div
from .ptx import (
    copy2,
    cp_async4,
    cp_async8,
    cp_async16,
    make_ldmatrix,
    make_mma,
    round_tf32,
    uint_as_float,
)

FRAGMENT = 16  # rows
COPY_BYTES = 16  # what a thread copies at most, at once


class Kind(NamedTuple):
    """What a precision is for the tensor cores."""

    storage: np.dtype
    sums: np.dtype
    k_step: int  # inner steps of a fragment
    parts: int = 1  # numbers that stand for an operand


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
KINDS = {
    "f16": Kind(np.dtype(np.float16), _F32, 16),
    "bf16": Kind(bfloat16, _F32, 16),
    "tf32": Kind(_F32, _F32, 8),
    "tf32x3": Kind(_F32, _F32, 8, parts=2),
    "f64": Kind(_F64, _F64, 8),
    "f64wide": Kind(_F64, _F64, 8),  # compute capability 9.0
}


# ------------------------------------------------------------------ staging a tile


class Tile(NamedTuple):
    """How an operand's tile lies in shared memory, and who copies what of it.

    It lies there as in global memory, along k or across, in lines a pitch apart.
    """

    along_k: bool
    item: int  # bytes of an element
    vector: int  # bytes of one copy
    k_threads: int  # threads along k that copy
    row_threads: int
    k_vector: int  # elements of one copy along k, and across: one of them is 1
    row_vector: int
    k_passes: int
    row_passes: int
    k_pitch: int  # elements from one k to the next
    row_pitch: int
    k_pass: int  # elements from one pass to the next
    row_pass: int
    whole: bool  # every thread has something to copy in every pass
    items: int  # elements of the tile, padding included


def tile(along_k, tile_k, rows, vector, threads, item):
    """Return how to stage ``tile_k`` by ``rows`` elements of ``item`` bytes.

    Parameters
    ----------
    along_k : bool
        Whether neighbours in global memory lie along k.
    vector : bytes of one copy, from ``item`` to COPY_BYTES
    threads : of the CTA, a power of two
    """
    line, lines = (tile_k, rows) if along_k else (rows, tile_k)
    copies = ceil_div(line * item, vector)
    line_threads = min(1 << (copies - 1).bit_length(), threads)
    lines_at_once = threads // line_threads
    line_passes, passes = ceil_div(copies, line_threads), ceil_div(lines, lines_at_once)
    whole = line_threads * line_passes == copies and lines_at_once * passes == lines
    # The threads of a warp read 8 lines at once, 16 bytes of each, or 4 lines, 32
    # bytes of each: with so much padding they lie on different banks.
    pitch = line + (16 if _by_matrix(along_k, item) else 32) // item
    items = vector // item
    on_line = line_threads, items, line_passes, 1, line_threads * items
    over_lines = lines_at_once, 1, passes, pitch, lines_at_once
    of_k, of_rows = (on_line, over_lines) if along_k else (over_lines, on_line)
    pairs = (each for pair in zip(of_k, of_rows, strict=True) for each in pair)
    return Tile(along_k, item, vector, *pairs, whole, lines * pitch)


def _by_matrix(along_k, item):
    """Return whether ldmatrix can load fragments: 16 bytes of a line are 8 items.

    It moves 16-bit words, and turns them for a tile that lies across. A 32-bit number
    is two of them: in a tile along k they stay together.
    """
    return item == 2 or (item == 4 and along_k)


@functools.cache
def make_first(tile):
    """Return the function from a thread's index to the first (row, k) it copies."""
    K_THREADS, ROW_THREADS = tile.k_threads, tile.row_threads
    K_VECTOR, ROW_VECTOR = tile.k_vector, tile.row_vector

    # Both remainders say how large the result can be, which simplifies what follows.
    if tile.along_k:

        @device
        def first(tid):
            return tid // K_THREADS % ROW_THREADS, tid % K_THREADS * K_VECTOR

    else:

        @device
        def first(tid):
            return tid % ROW_THREADS * ROW_VECTOR, tid // ROW_THREADS % K_THREADS

    return first


_COPY = {16: cp_async16, 8: cp_async8, 4: cp_async4, 2: copy2}


@functools.cache
def make_copy(tile, TILE_K, ROWS):
    """Return the function by which a thread starts its copies of one step.

    It takes the shared address of the tile; the thread's first (row, k) in it; for
    each pass along k the global address of its first row, and bytes to copy from
    there (0: write zeros); bytes from one row to the next in global memory.
    """
    copy = _COPY[tile.vector]
    K_PASSES, ROW_PASSES = tile.k_passes, tile.row_passes
    K_PASS, ROW_PASS = tile.k_pass, tile.row_pass
    K_PITCH, ROW_PITCH, ITEM = tile.k_pitch, tile.row_pitch, tile.item
    WHOLE = tile.whole

    @device
    def start_copies(base, row, k, sources, sizes, row_stride):
        for p in range(K_PASSES):
            source = sources[p]
            for q in range(ROW_PASSES):
                to_row, to_k = row + q * ROW_PASS, k + p * K_PASS
                if WHOLE or (to_k < TILE_K and to_row < ROWS):
                    to = (to_row * ROW_PITCH + to_k * K_PITCH) * ITEM
                    copy(base + to, source, sizes[p])
                source += row_stride * ROW_PASS

    return start_copies


def vector_bytes(x):
    """Return how many bytes of ``x`` can be copied at once, along its last axis."""
    vector = COPY_BYTES if x.strides[-1] == x.dtype.itemsize else x.dtype.itemsize
    steps = [by for by, size in zip(x.strides[:-1], x.shape, strict=False) if size > 1]
    places = x.pointer, x.shape[-1] * x.dtype.itemsize, *steps
    while any(place % vector for place in places):
        vector //= 2
    return vector


# ---------------------------------------------------------------------- fragments


@functools.cache
def make_lane(tile, left):
    """Return the function from a lane to where in a fragment it begins to read."""
    K_PITCH, ROW_PITCH = tile.k_pitch, tile.row_pitch
    ALONG_K, LEFT = tile.along_k, left
    HALF = 16 // tile.item  # of the k of a fragment that ldmatrix can load

    if _by_matrix(tile.along_k, tile.item):

        @device
        def begin(lane):
            # Lane 8 i + j names line j of the quarter that register i holds.
            line, odd, upper = lane % 8, lane // 8 % 2, lane // 16
            rows8, half = (odd * 8, upper * HALF) if LEFT else (upper * 8, odd * HALF)
            if ALONG_K:
                return (rows8 + line) * ROW_PITCH + half
            return (half + line) * K_PITCH + rows8

    else:
        place = device(fragments.a_of_16x8)

        @device
        def begin(lane):
            row, k = place(lane, 0)
            return row * ROW_PITCH + k * K_PITCH

    return begin


@functools.cache
def make_load(kind, tile, left):
    """Return the function that loads a fragment into ``registers[i]``, (parts, 4).

    It takes shared memory as an array and by address, and where this lane begins.
    ``tf32`` keeps the first 11 bits of a float32, ``tf32x3`` the next 11 as a second
    part.
    """
    # From register 0 to 1, and from both to 2 and 3.
    ODD, UPPER = 8 * tile.row_pitch, 4 * tile.k_pitch
    ODD, UPPER = (ODD, UPPER) if left else (UPPER, ODD)
    ITEM = tile.item
    BY_MATRIX = _by_matrix(tile.along_k, tile.item)
    ldmatrix = make_ldmatrix(4, transposed=not tile.along_k)

    if kind in ("tf32", "tf32x3"):
        TWO_PARTS = kind == "tf32x3"

        @device
        def keep(registers, i, e, x):
            value = uint_as_float(x) if BY_MATRIX else x
            high = round_tf32(value)
            registers[i, 0, e] = high
            if TWO_PARTS:
                registers[i, 1, e] = round_tf32(value - uint_as_float(high))

    else:

        @device
        def keep(registers, i, e, x):
            registers[i, 0, e] = x

    @device
    def load(smem, base, at, registers, i):
        if BY_MATRIX:
            x0, x1, x2, x3 = ldmatrix(base + at * ITEM)
        else:
            x0, x1 = smem[at], smem[at + ODD]
            x2, x3 = smem[at + UPPER], smem[at + UPPER + ODD]
        keep(registers, i, 0, x0)
        keep(registers, i, 1, x1)
        keep(registers, i, 2, x2)
        keep(registers, i, 3, x3)

    return load


# ----------------------------------------------------------------------- products


@functools.cache
def make_product(kind):
    """Return the function that adds the product of two fragments to its sums.

    Of fragment ``i`` of ``a_reg`` and eight rows, half ``h``, of fragment ``j`` of
    ``b_reg``: 16 x 8 sums ``acc[i, 2 * j + h]``.
    """
    mma = make_mma("tf32" if kind == "tf32x3" else kind)
    zeros = (np.float32(0),) * 4

    @device
    def of_parts(a, b, h, c):
        return mma((a[0], a[1], a[2], a[3]), (b[2 * h], b[2 * h + 1]), c)

    if kind == "f64":

        @device
        def of_fragments(a_reg, i, b_reg, j, h, c):
            # An instruction multiplies one quarter.
            a, b = a_reg[i, 0], b_reg[j, 0]
            c0, c1 = mma((a[0],), (b[2 * h],), (c[0], c[1]))
            c2, c3 = mma((a[1],), (b[2 * h],), (c[2], c[3]))
            c0, c1 = mma((a[2],), (b[2 * h + 1],), (c0, c1))
            c2, c3 = mma((a[3],), (b[2 * h + 1],), (c2, c3))
            return c0, c1, c2, c3

    elif kind == "tf32x3":

        @device
        def of_fragments(a_reg, i, b_reg, j, h, c):
            # Small products first. Low times low is below what float32 keeps. Tensor
            # cores cut off what does not fit a sum, 1e-5 of a long one: they add up
            # these products only, and the long sum is of float32, rounded.
            part = of_parts(a_reg[i, 1], b_reg[j, 0], h, zeros)
            part = of_parts(a_reg[i, 0], b_reg[j, 1], h, part)
            part = of_parts(a_reg[i, 0], b_reg[j, 0], h, part)
            return c[0] + part[0], c[1] + part[1], c[2] + part[2], c[3] + part[3]

    else:

        @device
        def of_fragments(a_reg, i, b_reg, j, h, c):
            return of_parts(a_reg[i, 0], b_reg[j, 0], h, c)

    @device
    def product(a_reg, i, b_reg, j, h, acc):
        c = acc[i, 2 * j + h]
        c[0], c[1], c[2], c[3] = of_fragments(
            a_reg, i, b_reg, j, h, (c[0], c[1], c[2], c[3])
        )

    return product


@functools.cache
def make_multiply(kind, a_tile, b_tile, TILE_K, WARP_M, WARP_N):
    """Return the function that adds a warp's share of a staged step to its sums.

    Parameters
    ----------
    kind : key of KINDS
    a_tile, b_tile : Tile
    TILE_K : inner steps to multiply; where they begin, the places passed say
    WARP_M, WARP_N : rows and columns of a warp, multiples of FRAGMENT
    """
    K_STEP, PARTS = KINDS[kind].k_step, KINDS[kind].parts
    K_STEPS = TILE_K // K_STEP
    M_FRAGMENTS, N_FRAGMENTS = WARP_M // FRAGMENT, WARP_N // FRAGMENT
    A_STEP, A_NEXT = K_STEP * a_tile.k_pitch, FRAGMENT * a_tile.row_pitch
    B_STEP, B_NEXT = K_STEP * b_tile.k_pitch, FRAGMENT * b_tile.row_pitch
    register = float64 if KINDS[kind].storage == _F64 else uint32
    load_a, load_b = make_load(kind, a_tile, True), make_load(kind, b_tile, False)
    product = make_product(kind)

    @device
    def multiply(smem, base, a_at, b_at, acc):
        a_reg = cuda.local.array((M_FRAGMENTS, PARTS, 4), register)
        b_reg = cuda.local.array((N_FRAGMENTS, PARTS, 4), register)
        for step in range(K_STEPS):
            for i in range(M_FRAGMENTS):
                load_a(smem, base, a_at + step * A_STEP + i * A_NEXT, a_reg, i)
            for j in range(N_FRAGMENTS):
                load_b(smem, base, b_at + step * B_STEP + j * B_NEXT, b_reg, j)
            for i in range(M_FRAGMENTS):
                for j in range(N_FRAGMENTS):
                    for h in range(2):
                        product(a_reg, i, b_reg, j, h, acc)

    return multiply


# --------------------------------------------------------------------------- sums


def sum_items(TILE_M, TILE_N, along_m):
    """Return how many elements the sums of a tile take in shared memory."""
    return _sum_pitch(TILE_M, TILE_N, along_m) * (TILE_N if along_m else TILE_M)


def _sum_pitch(TILE_M, TILE_N, along_m):
    # A warp writes 8 rows of 4 pairs of columns at once: to different banks.
    return TILE_M + 4 if along_m else TILE_N + 8


@functools.cache
def make_sum_at(TILE_M, TILE_N, along_m):
    """Return the function from (m, n) of a tile of the result to its sum's place.

    Sums lie in shared memory as the result does in global memory.
    """
    PITCH = _sum_pitch(TILE_M, TILE_N, along_m)

    if along_m:

        @device
        def sum_at(m, n):
            return n * PITCH + m

    else:

        @device
        def sum_at(m, n):
            return m * PITCH + n

    return sum_at
