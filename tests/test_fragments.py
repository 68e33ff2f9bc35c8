"""Lane maps, swizzles and descriptors: one to one, and the same in a kernel."""

import numpy as np
import pytest

from numba_bs.cuda.fragments import (
    MMA,
    WARP,
    WARPGROUP,
    c_of_8x8,
    described,
    descriptor,
    k_major_chunk,
    mn_major_chunk,
    swizzled,
    wgmma_sum,
)

SWIZZLES = [0, 32, 64, 128]


def assert_covers(places, shape, threads):
    """Require that the items of all threads are the elements, each once."""
    rows, cols = shape
    thread, item = np.indices((threads, rows * cols // threads))
    row, col = places(thread, item)
    assert (row >= 0).all()
    assert (col >= 0).all()
    assert (col < cols).all()
    assert sorted((row * cols + col).ravel()) == list(range(rows * cols))


@pytest.mark.parametrize("dtype", MMA)
def test_every_element_of_mma_has_one_place(dtype):
    M, N, K, a, b, c = MMA[dtype]
    assert_covers(a, (M, K), WARP)
    assert_covers(b, (K, N), WARP)
    assert_covers(c, (M, N), WARP)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_sum_of_wgmma_has_one_place(n):
    assert_covers(wgmma_sum, (64, n), WARPGROUP)


def test_a_warp_of_wgmma_holds_sums_as_mma_does():
    c = MMA["bf16"].c
    for thread in (0, 37, 127):
        for register in range(16):
            row, col = c(thread % 32, register % 4)
            expected = row + thread // 32 * 16, col + register // 4 * 8
            assert wgmma_sum(thread, register) == expected


def test_every_item_of_ldmatrix_has_one_place():
    assert_covers(c_of_8x8, (8, 8), WARP)


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_swizzles_move_chunks_within_eight_rows(swizzle):
    address = np.arange(0, 4096, 16)
    moved = swizzled(address, swizzle)
    assert sorted(moved) == address.tolist()
    np.testing.assert_array_equal(swizzled(moved, swizzle), address)  # its own inverse
    np.testing.assert_array_equal(
        moved // max(swizzle, 16), address // max(swizzle, 16)
    )
    np.testing.assert_array_equal(
        moved[address % 1024 < 128], address[address % 1024 < 128]
    )


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_column_of_chunks_meets_every_bank_once(swizzle):
    """Eight rows of one chunk are in eight places of 128 bytes, or as many as can."""
    rows = swizzled(np.arange(8) * swizzle, swizzle)
    assert len(set(rows % 128 // 16)) == 8


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("start", [0, 0x400, 0x38C00])
def test_descriptors(swizzle, start):
    fields = start, 8192, 1024, swizzle
    assert described(descriptor(*fields)) == fields
    assert described(descriptor(*fields) + 2)[0] == start + 32


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_chunks_of_an_operand_do_not_overlap(swizzle):
    strides = (16, 8 * swizzle) if swizzle else (64 * 16, 128)
    chunks = k_major_chunk(*np.ogrid[:64, :2], *strides, swizzle)
    assert len(np.unique(chunks)) == chunks.size == 128
    assert (chunks % 16 == 0).all()

    strides = (16 * swizzle, 8 * swizzle) if swizzle else (128, 256)
    chunks = mn_major_chunk(*np.ogrid[:16, :8], *strides, swizzle)
    assert len(np.unique(chunks)) == chunks.size == 128
    assert chunks.max() == 127 * 16  # and there is no gap
