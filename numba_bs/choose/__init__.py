"""Which rung runs, with which constants: pure functions, the only place that picks.

A rung is one kernel file of ``cuda/``; beside this one is a file for the constants of
each. :func:`dsd` and :func:`sdd` take what a call knows and ask the rungs from the
fastest down; the first that serves the call runs.
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Operand
from . import mma, simt, wgmma, wgmma_sdd

VARIANTS = ("simt", "mma", "wgmma")
_DSD = {"wgmma": wgmma.of_dsd, "mma": mma.of_dsd, "simt": simt.of_dsd}
_SDD = {"wgmma": wgmma_sdd.of_sdd, "mma": mma.of_sdd, "simt": simt.of_sdd}


class Dsd(NamedTuple):
    """What is known of a product ``out = A @ b``."""

    parts: list  # of (a, b, out): the Operands of each launch
    density: float  # of the layout
    beta: complex
    sums: np.dtype
    precision: str | None
    capability: tuple[int, int]
    shared_limit: int  # bytes of a CTA
    cut: bool = False  # whether the plan of the first choice cuts long rows

    @property
    def a(self) -> Operand:
        """Values (batch, summed, blocks, R, C), as they are walked."""
        return self.parts[0][0]

    @property
    def b(self) -> Operand:
        """The dense operand (batch, summed, heads, K, N)."""
        return self.parts[0][1]

    @property
    def out(self) -> Operand:
        """The result (batch, heads, M, N)."""
        return self.parts[0][2]


class Sdd(NamedTuple):
    """What is known of a sampled product ``out = x @ y``."""

    parts: list  # of (x, y, out): the Operands of each launch
    beta: complex
    sums: np.dtype
    precision: str | None
    capability: tuple[int, int]
    shared_limit: int  # bytes of a CTA

    @property
    def x(self) -> Operand:
        """The left operand (batch, summed, heads, M, N)."""
        return self.parts[0][0]

    @property
    def y(self) -> Operand:
        """The right operand (batch, summed, heads, N, K)."""
        return self.parts[0][1]

    @property
    def out(self) -> Operand:
        """The values (batch, blocks, R, C)."""
        return self.parts[0][2]


class Choice(NamedTuple):
    """A rung, its constants and the reason."""

    variant: str
    config: NamedTuple
    reason: str


def check_variant(op: str, variant: str | None) -> None:
    """Raise NotImplementedError for a rung that does not exist."""
    if variant is not None and variant not in VARIANTS:
        raise NotImplementedError(
            f"{op}: variant must be one of {', '.join(VARIANTS)} for device arrays, "
            f"got {variant!r}"
        )


def dsd(op: str, product: Dsd, variant: str | None = None) -> Choice:
    """Choose for ``out = A @ b``; NotImplementedError if ``variant`` cannot."""
    return _choose(op, _DSD, product, variant)


def sdd(op: str, product: Sdd, variant: str | None = None) -> Choice:
    """Choose for the sampled product; NotImplementedError if ``variant`` cannot."""
    return _choose(op, _SDD, product, variant)


def _choose(op, ladder, product, variant):
    refusals = []
    for name, of in ladder.items():
        if variant not in (None, name):
            continue
        config = of(product)
        if not isinstance(config, str):
            if variant is not None:
                reason = "asked for"
            else:
                reason = "; ".join(refusals) or "the fastest rung"
            return Choice(name, config, reason)
        refusals.append(config)
    found = "; ".join(refusals) or "there is no such kernel of this product"
    raise NotImplementedError(
        f"{op}: variant={variant!r} must serve the call, got one that it does not: "
        f"{found}"
    )
