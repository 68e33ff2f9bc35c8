"""Leading axes of a product: which are kept, which are summed, which are heads.

Kernels take one batch axis that is kept, one that is summed and one of heads. Here
any number of broadcasting axes becomes those, by strides alone, and several launches
where they do not merge.
"""

from typing import NamedTuple

import numpy as np

from . import strided
from .arrays import Operand
from .layout import LayoutStack


class LeadingAxes(NamedTuple):
    """The leading axes of a product: which are kept, which are summed, the heads."""

    kept: tuple  # shape, strides of the three arrays
    summed: tuple  # shape, strides of the two inputs
    heads: tuple  # (heads, stride) of each array; None for values, which have none
    full: tuple  # leading shape with nothing summed, heads included
    head_summed: bool

    @classmethod
    def of(cls, layout, x: Operand, y: Operand, out: Operand, *, values: Operand):
        """Align inputs and result; ``values`` is the one that has no head axis."""
        stacked = isinstance(layout, LayoutStack)
        leads, heads = [], []
        for each in (x, y, out):
            inner = 3 if each is values else 2
            shape, strides = each.shape[:-inner], each.strides[:-inner]
            if each is values:
                heads.append(None)
            elif stacked:
                last = shape[-1] if shape else 1
                heads.append((layout.heads, strides[-1] if last > 1 else 0))
                shape, strides = shape[:-1], strides[:-1]
            else:
                heads.append((1, 0))
            leads.append((shape, strides))
        full = np.broadcast_shapes(*(shape for shape, _ in leads))
        steps = [strided.aligned(by, shape, full) for shape, by in leads]
        present = (1,) * (len(full) - len(leads[2][0])) + leads[2][0]
        kept = [i for i, size in enumerate(full) if present[i] == size]
        gone = [i for i, size in enumerate(full) if present[i] != size]

        def pick(axes, strides):
            sizes = tuple(full[i] for i in axes)
            return sizes, [tuple(by[i] for i in axes) for by in strides]

        out_heads = 1 if out is values or not out.shape[:-2] else out.shape[-3]
        return cls(
            kept=pick(kept, steps),
            summed=pick(gone, steps[:2]),
            heads=tuple(heads),
            full=(*full, layout.heads) if stacked and out is not values else full,
            head_summed=stacked and out is not values and out_heads != layout.heads,
        )

    @property
    def summed_afterwards(self) -> bool:
        """Whether more is summed than the one axis that kernels take."""
        shape, strides = self.summed
        return self.head_summed or len(strided.merge(shape, *strides)[0]) > 1

    def parts(self):
        """Yield one :class:`Part` a launch; all have the same batch."""
        shape, strides = self.summed
        (_, summed, summed_strides), *_ = strided.one_axis(shape, *strides)
        shape, strides = self.kept
        for offsets, batch, batch_strides in strided.one_axis(shape, *strides):
            yield Part(
                batch, summed, offsets, batch_strides, summed_strides, self.heads
            )


class Part(NamedTuple):
    """The axes of one launch: one that is kept, one that is summed."""

    batch: int
    summed: int
    offsets: list  # of each array, bytes
    batch_strides: list
    summed_strides: list
    heads: tuple

    def view(self, x: Operand, which: int) -> Operand:
        """Return array ``which`` as a kernel wants it.

        Inputs (batch, summed, ...), the result (batch, ...); then (blocks, R, C) for
        values and (heads, rows, columns) for a dense array.
        """
        shape, strides = [self.batch], [self.batch_strides[which]]
        if which < 2:
            shape, strides = (
                [*shape, self.summed],
                [*strides, self.summed_strides[which]],
            )
        inner = 3
        if self.heads[which] is not None:
            heads, by = self.heads[which]
            shape, strides, inner = [*shape, heads], [*strides, by], 2
        return x.view(
            (*shape, *x.shape[-inner:]),
            (*strides, *x.strides[-inner:]),
            self.offsets[which],
        )
