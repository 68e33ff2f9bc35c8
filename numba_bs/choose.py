"""Which rung runs, with which constants: pure functions, the only place that picks.

A rung is one kernel file of ``cuda/``. Each function here takes what a call knows
(block size, columns, types) and returns a :class:`Choice`.
"""

from typing import NamedTuple

import numpy as np

VARIANTS = ("simt",)


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


def dsd(blocksize, N: int, sums: np.dtype, variant: str | None) -> Choice:
    """Choose for ``out = A @ b``: ``blocksize`` (R, C) of A as walked, N columns."""
    config = simt_dsd(*blocksize, N, sums)
    return Choice("simt", config, _reason(variant))


def sdd(blocksize, blocks: int, N: int, sums: np.dtype, variant: str | None) -> Choice:
    """Choose for the sampled product: ``blocks`` of ``blocksize``, inner size N."""
    config = simt_sdd(*blocksize, blocks, N, sums)
    return Choice("simt", config, _reason(variant))


def _reason(variant) -> str:
    return "asked for" if variant else "the only rung of this release"
