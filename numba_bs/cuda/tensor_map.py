"""Tensor maps: how the copy engine of Hopper (TMA) finds a tile of an array.

A map says address, shape, strides, the box that one instruction copies, and how the
box is swizzled in shared memory. It is a kernel's parameter, by value: nothing on the
device that could go stale. Kernels name a tile by the place of its first element,
innermost axis first, a multiple of 16 bytes there (hardware stops otherwise, even where
strides would allow more); what lies outside of the array reads as zero and is not
written.
"""

import functools
from typing import NamedTuple

from ..arrays import Operand
from ..dtypes import bfloat16


class TensorMap(NamedTuple):
    """An argument of :func:`launch.run`."""

    operand: Operand
    box: tuple[int, ...]  # elements along each axis of the operand
    swizzle: int  # bytes of a row of the box that are swizzled: 0, 32, 64 or 128

    def ownerless(self):
        """Return the map of an array that it does not keep alive."""
        return self._replace(operand=self.operand._replace(owner=None))

    def at(self, address: int):
        """Return what ``cuda.core.launch`` passes by value, for this address."""
        _, shape, strides, dtype = self.operand[:4]
        return encode(address, shape, strides, dtype, self.box, self.swizzle)


def matrix_map(x: Operand, turned: bool, box, swizzle: int) -> TensorMap:
    """Return the map of (batch, ..., rows, columns), axes between of length 1.

    Parameters
    ----------
    turned : bool
        Whether the rows are what is contiguous: then the map is of (batch, columns,
        rows).
    box : elements along the three axes
    swizzle : bytes
    """
    x = x.mT if turned else x
    batch, rows, cols = x.shape[0], *x.shape[-2:]
    steps = x.strides[0], *x.strides[-2:]
    if batch > 1 and steps[0] == 0:  # the same for all: kernels count one
        batch = 1
    # Hardware checks the stride of an axis of length 1 too.
    row = steps[1] if rows > 1 else cols * x.dtype.itemsize
    row += -row % 16
    steps = (steps[0] if batch > 1 else rows * row, row, steps[2])
    return TensorMap(x.view((batch, rows, cols), steps), box, swizzle)


@functools.lru_cache(maxsize=1024)
def encode(pointer, shape, strides, dtype, box, swizzle):
    """Return the descriptor that ``cuda.core.launch`` passes by value."""
    from cuda.core import TensorMapDescriptorOptions as Options
    from cuda.core._tensor_map import TensorMapL2Promotion as L2Promotion
    from cuda.core._tensor_map import TensorMapSwizzle as Swizzle
    from cuda.core.utils import StridedMemoryView

    names = {0: "NONE", 32: "SWIZZLE_32B", 64: "SWIZZLE_64B", 128: "SWIZZLE_128B"}
    view = StridedMemoryView.from_any_interface(
        _Exporter(pointer, shape, strides, dtype), stream_ptr=-1
    )
    options = Options(
        box_dim=box,
        data_type=dtype,
        swizzle=getattr(Swizzle, names[swizzle]),
        l2_promotion=L2Promotion.L2_256B,
    )
    return view.as_tensor_map(options=options)


class _Exporter:
    """Memory, as the array interface names it."""

    def __init__(self, pointer, shape, strides, dtype):
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (pointer, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"<u{dtype.itemsize}" if dtype == bfloat16 else dtype.str,
        }
