"""Who holds which element, and where it lies: the maps of the matrix instructions.

A warp or a warpgroup holds a matrix in the registers of its threads. The maps from
(lane, register) to (row, column), the swizzles of shared memory and the descriptors of
``wgmma`` operands stand here once, for kernels, emulation and tests: plain functions
of integers, or of NumPy arrays of them. A kernel calls ``device(fragments.swizzled)``.

Shared memory is moved and swizzled in chunks of 16 bytes.

References
----------
PTX ISA, "Warp-Level Matrix Instructions", figures of the fragments of each shape, and
"Asynchronous Warpgroup Level Matrix Instructions", register fragments, strides,
matrix descriptor. The canonical layouts in units of chunks: CUTLASS,
include/cute/atom/mma_traits_sm90_gmma.hpp.
"""

from collections.abc import Callable
from typing import NamedTuple

WARP, WARPGROUP = 32, 128  # threads
CHUNK_BYTES = 16

# --------------------------------------------------------------------- swizzles


def swizzled(address, swizzle):
    """Return where the chunk of this shared address lies: bits 4-6 ^= bits 7-9.

    ``swizzle`` is the bytes of a row that are mixed: 128; 64 has one bit less, 32 two;
    0 has none. PTX ISA, "Tensors: Swizzling modes".

    The eight chunks of eight rows of 128 bytes:

    >>> for row in range(8):
    ...     print(*(swizzled(128 * row + 16 * i, 128) % 128 // 16 for i in range(8)))
    0 1 2 3 4 5 6 7
    1 0 3 2 5 4 7 6
    2 3 0 1 6 7 4 5
    3 2 1 0 7 6 5 4
    4 5 6 7 0 1 2 3
    5 4 7 6 1 0 3 2
    6 7 4 5 2 3 0 1
    7 6 5 4 3 2 1 0
    """
    return address ^ (address & max(8 * swizzle, 128) - 128) >> 3


# ------------------------------------------------------------------------- mma
# From lane and item to the element's place: (row, k) of a, (k, column) of b, (row,
# column) of c and d. An item is a register, or half of one, the lower half first.


def a_of_16x16(lane, item):
    """Return (row, k) of the eight 16-bit items of a in m16n8k16.

    Lane 5 holds pairs of row 1 and row 9:

    >>> [a_of_16x16(5, item) for item in range(8)]
    [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    """
    row = lane // 4 + item // 2 % 2 * 8
    return row, lane % 4 * 2 + item % 2 + item // 4 * 8


def b_of_16x8(lane, item):
    """Return (k, column) of the four 16-bit items of b in m16n8k16.

    >>> [b_of_16x8(5, item) for item in range(4)]
    [(2, 1), (3, 1), (10, 1), (11, 1)]
    """
    return lane % 4 * 2 + item % 2 + item // 2 * 8, lane // 4


def a_of_16x8(lane, item):
    """Return (row, k) of the four tf32 items of a in m16n8k8.

    >>> [a_of_16x8(5, item) for item in range(4)]
    [(1, 1), (9, 1), (1, 5), (9, 5)]
    """
    return lane // 4 + item % 2 * 8, lane % 4 + item // 2 * 4


def b_of_8x8(lane, item):
    """Return (k, column) of the two tf32 items of b in m16n8k8.

    >>> [b_of_8x8(5, item) for item in range(2)]
    [(1, 1), (5, 1)]
    """
    return lane % 4 + item * 4, lane // 4


def c_of_16x8(lane, item):
    """Return (row, column) of the four sums of m16n8k16 and m16n8k8.

    >>> [c_of_16x8(5, item) for item in range(4)]
    [(1, 2), (1, 3), (9, 2), (9, 3)]
    """
    return lane // 4 + item // 2 * 8, lane % 4 * 2 + item % 2


def a_of_8x4(lane, item):
    """Return (row, k) of the one float64 item of a in m8n8k4.

    >>> a_of_8x4(5, 0)
    (1, 1)
    """
    return lane // 4, lane % 4 + item


def b_of_4x8(lane, item):
    """Return (k, column) of the one float64 item of b in m8n8k4.

    >>> b_of_4x8(5, 0)
    (1, 1)
    """
    return lane % 4 + item, lane // 4


def c_of_8x8(lane, item):
    """Return (row, column) of the two float64 sums of m8n8k4.

    Also of the two 16-bit items of an 8x8 matrix of ldmatrix and stmatrix.

    >>> [c_of_8x8(5, item) for item in range(2)]
    [(1, 2), (1, 3)]
    """
    return lane // 4, lane % 4 * 2 + item


class Mma(NamedTuple):
    """Shape and maps of one ``mma``; items a lane: rows * columns / 32."""

    M: int
    N: int
    K: int
    a: Callable
    b: Callable
    c: Callable


_M16N8K16 = Mma(16, 8, 16, a_of_16x16, b_of_16x8, c_of_16x8)
MMA = {
    "f16": _M16N8K16,
    "bf16": _M16N8K16,
    "tf32": Mma(16, 8, 8, a_of_16x8, b_of_8x8, c_of_16x8),
    "f64": Mma(8, 8, 4, a_of_8x4, b_of_4x8, c_of_8x8),
    "f64wide": Mma(16, 8, 8, a_of_16x8, b_of_8x8, c_of_16x8),
}

# ----------------------------------------------------------------------- wgmma


def wgmma_sum(thread, register):
    """Return (row, column) of a sum of a 64 by n tile; ``thread`` of the warpgroup.

    A warp owns 16 rows. Every four registers are the sums of a 16 by 8 ``mma``.

    >>> [wgmma_sum(37, register) for register in range(6)]
    [(17, 2), (17, 3), (25, 2), (25, 3), (17, 10), (17, 11)]
    """
    row = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    return row, register // 4 * 8 + thread % 4 * 2 + register % 2


def descriptor(start, leading, stride, swizzle):
    """Return the 64 bits that tell ``wgmma`` where an operand lies in shared memory.

    ``start``, ``leading`` and ``stride`` are bytes, multiples of 16; what they mean
    says :func:`k_major_chunk` and :func:`mn_major_chunk`. A larger ``start`` adds
    (bytes >> 4) to the descriptor.

    >>> hex(descriptor(0x2400, 16, 1024, 128))
    '0x4000004000010240'
    """
    mode = (0, 3, 2, 0, 1)[swizzle // 32]
    return (start & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def described(descriptor):
    """Return (start, leading, stride, swizzle) of a descriptor.

    >>> described(0x4000004000010240)
    (9216, 16, 1024, 128)
    """
    start, leading, stride = (
        (descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32)
    )
    return start, leading, stride, (0, 128, 64, 32)[descriptor >> 62 & 3]


def k_major_chunk(row, chunk, leading, stride, swizzle):
    """Return the offset, before the swizzle, of a chunk of an operand along k.

    ``row`` is along m or n. The 32 bytes of k that an instruction reads are two chunks.
    Eight rows lie together, ``swizzle`` bytes apart (none: 16); ``stride`` leads to
    the next eight. ``leading`` counts only without a swizzle: to the second chunk.

    >>> [k_major_chunk(row, 1, 16, 1024, 128) for row in (0, 1, 8)]
    [16, 144, 1040]
    """
    within = chunk * (CHUNK_BYTES if swizzle else leading)
    return row % 8 * (swizzle or CHUNK_BYTES) + row // 8 * stride + within


def mn_major_chunk(k, chunk, leading, stride, swizzle):
    """Return the offset, before the swizzle, of a chunk of an operand along m or n.

    A chunk is eight rows of the operand (of 16 bits) at one ``k``. With a swizzle,
    ``swizzle`` bytes of them lie together and ``leading`` leads to the next; eight k
    are ``swizzle`` bytes apart, and ``stride`` leads to the next eight. Without:
    eight k lie together, ``stride`` leads to the next chunk, ``leading`` to the next
    eight k.

    >>> [mn_major_chunk(k, 9, 8192, 1024, 128) for k in (0, 1, 8)]
    [8208, 8336, 9232]
    """
    if swizzle == 0:
        return chunk * stride + k % 8 * CHUNK_BYTES + k // 8 * leading
    width = swizzle // CHUNK_BYTES
    along = chunk % width * CHUNK_BYTES + chunk // width * leading
    return along + k % 8 * swizzle + k // 8 * stride
