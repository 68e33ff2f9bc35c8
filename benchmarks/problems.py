"""The operands of a case, and samples of the exact result to check answers by.

Operands are NumPy arrays on the host and torch tensors on a GPU; what is done with
them here (indexing, ``@``, ``abs``, ``reshape``, ``swapaxes``) both write the same way.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from numba_bs import dtypes

from .cases import Case, make_layout

OPS = ("forward", "grad_x", "grad_w")
# Most items of a float64 operand that a sample may gather at a time (1 GB).
_SAMPLE_ITEMS = 2**27


class Sample(NamedTuple):
    """A part of a result, exactly."""

    part: Callable[[Any], Any]  # takes this part out of a whole result
    exact: Any  # float64
    magnitude: Any  # the same sums, of absolute values
    terms: int  # how many products the longest of these sums has


class Rounding(NamedTuple):
    """What a product may lose beyond what its dtype does."""

    operand: float = 0.0  # relative error of an operand as it is multiplied
    products: int = 1  # how many are added up for one


# What numba_bs says of its precisions. tf32: operands have 11 bits. tf32x3: an operand
# is the sum of two such parts, the second rounded, which loses 2^-22 of the operand;
# three of their four products are added up, and the fourth is 2^-22 again, half of
# which is counted for each operand.
ROUNDING = {
    None: Rounding(),
    "tf32": Rounding(2.0**-11),
    "tf32x3": Rounding(1.5 * 2.0**-22, 3),
}
# Relative Frobenius error that sums of float32 may have. They have 2e-6 at most here,
# and operands of 11 bits cause 3e-4: the bound of a long sum would let that pass.
_SUMS_OF_FLOAT32 = 2.0**-14


class Check(NamedTuple):
    """How far a result is from the exact one."""

    error: float  # relative Frobenius norm of the difference, worst sample
    excess: float  # largest difference over its bound
    complete: bool  # every element is a number
    limit: float = float("inf")  # of the error

    def within(self, slack: float) -> bool:
        """Whether every element is a number and within ``slack`` bounds.

        The limit of the error has no slack: it is there to tell precisions apart.
        """
        return self.complete and self.excess <= slack and self.error <= self.limit

    @property
    def share(self) -> float:
        """Return the largest share of a bound or of the limit."""
        return max(self.excess, self.error / self.limit)


class Problem:
    """Operands of a case, standard normal, and what is known of the results.

    Attributes
    ----------
    layout : Layout
    values : (blocks, R, C)
        A in SciPy's order of blocks.
    x : (K, N)
    grad_y : (M, N)
    """

    def __init__(self, case: Case, machine, seed: int = 0):
        self.case = case
        self.machine = machine
        self.layout = make_layout(case, seed)
        R, C = case.blocksize
        normal = machine.normal(case.dtype, seed)
        self.values = normal((self.layout.blocks, R, C))
        self.x = normal((case.K, case.N))
        self.grad_y = normal((case.M, case.N))

    @property
    def flops(self) -> int:
        """Useful work of each of the three products: stored blocks only."""
        R, C = self.case.blocksize
        return 2 * self.layout.blocks * R * C * self.case.N

    @property
    def bytes(self) -> int:
        """Bytes of all operands of each product, once, and of A's structure."""
        case, layout = self.case, self.layout
        R, C = case.blocksize
        items = layout.blocks * R * C + (case.K + case.M) * case.N
        structure = layout.indptr.nbytes + layout.indices.nbytes
        return items * case.numpy_dtype.itemsize + structure

    @cached_property
    def transposed_values(self):
        """A's values as a BSR array of A.T stores them: a copy.

        Made for peers that cannot walk block columns; numba_bs never needs it.
        """
        return self.transpose(None)

    def transpose(self, out):
        """Copy A's values to ``out`` (or a new array) in the order of A.T."""
        order = self.machine.index(self.layout.transpose_order)
        gathered = self.values[order].swapaxes(-1, -2)
        if out is None:
            return self.machine.copy(gathered)
        out[...] = gathered
        return out

    def dense(self, values=None):
        """Return A (or other values on its layout) as a dense array (M, K)."""
        values = self.values if values is None else values
        (R, C), layout = self.case.blocksize, self.layout
        full = self.machine.zeros((layout.block_rows, layout.block_cols, R, C), values)
        rows, cols = map(self.machine.index, layout.coordinates())
        full[rows, cols] = values
        return full.swapaxes(1, 2).reshape(self.case.M, self.case.K)

    def stored(self, dense):
        """Return the blocks of a dense array (M, K) that the layout stores."""
        (R, C), layout = self.case.blocksize, self.layout
        full = dense.reshape(layout.block_rows, R, layout.block_cols, C)
        rows, cols = map(self.machine.index, layout.coordinates())
        return full.swapaxes(1, 2)[rows, cols]

    def samples(self, op: str) -> list[Sample]:
        """Return exact parts of the result of ``op``, computed once."""
        return self._samples[op]

    @cached_property
    def _samples(self):
        layout, T = self.layout, self.layout.T
        order = self.machine.index(layout.transpose_order)
        return _Lazy(
            forward=lambda: _product_samples(
                self.machine, layout, lambda b: self.values[b], self.x
            ),
            grad_x=lambda: _product_samples(
                self.machine,
                T,
                lambda b: self.values[order[b]].swapaxes(-1, -2),
                self.grad_y,
            ),
            grad_w=lambda: [self._sampled_blocks()],
        )

    def _sampled_blocks(self):
        """Blocks of grad_y @ x.T: the first, the last and some in between."""
        (R, C), layout, N = self.case.blocksize, self.layout, self.case.N
        most = int(np.clip(_SAMPLE_ITEMS // 8 // max(1, (R + C) * N), 2, 64))
        blocks = _spread(layout.blocks, most)
        rows, cols = (self.machine.index(i[blocks]) for i in layout.coordinates())
        blocks = self.machine.index(blocks)
        grad_y = _float64(self.grad_y.reshape(-1, R, N)[rows])
        x = _float64(self.x.reshape(-1, C, N)[cols]).swapaxes(-1, -2)
        return Sample(lambda w: w[blocks], grad_y @ x, abs(grad_y) @ abs(x), N)


class _Lazy(dict):
    """A dictionary of values that are made at first use."""

    def __init__(self, **makers):
        super().__init__()
        self._makers = makers

    def __missing__(self, key):
        self[key] = self._makers[key]()
        return self[key]


def _product_samples(machine, layout, blocks, dense):
    """Parts of A @ dense: some block rows whole, and some columns of all rows."""
    (R, C), N = layout.blocksize, dense.shape[1]
    by_block = dense.reshape(-1, C, N)
    samples = []

    # Some block rows: the first, the last, the longest and one without blocks if any.
    lengths = np.diff(layout.indptr)
    some = {0, layout.block_rows - 1, int(lengths.argmax()), int(lengths.argmin())}
    for row in sorted(some):
        first, last = (int(i) for i in layout.indptr[row : row + 2])
        # A long row times a wide matrix is cut to the columns that fit.
        fits = max(1, _SAMPLE_ITEMS // max(1, (last - first) * C))
        cols = slice(max(0, N - fits), N)
        a = blocks(slice(first, last)).swapaxes(0, 1).reshape(R, -1)
        a = _float64(a)
        b = by_block[machine.index(layout.indices[first:last])][:, :, cols]
        b = _float64(b.reshape(-1, b.shape[-1]))
        part = _rows_part(row * R, row * R + R, cols)
        samples.append(Sample(part, a @ b, abs(a) @ abs(b), (last - first) * C))

    # Some columns of all rows.
    cols = machine.index(_spread(N, 4))
    rows = machine.index(layout.coordinates()[0])
    a = _float64(blocks(slice(None)))
    b = _float64(by_block[:, :, cols][machine.index(layout.indices)])
    exact, magnitude = (
        machine.sum_by(rows, product, layout.block_rows).reshape(-1, len(cols))
        for product in (a @ b, abs(a) @ abs(b))
    )
    terms = int(lengths.max()) * C
    samples.append(Sample(lambda y: y[:, cols], exact, magnitude, terms))
    return samples


def _rows_part(start, stop, cols):
    return lambda y: y[start:stop, cols]


def _spread(count: int, most: int) -> np.ndarray:
    """Return up to ``most`` different indices below ``count``: first and last too."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _float64(x):
    return x.double() if hasattr(x, "double") else x.astype(np.float64)


def check(
    problem: Problem, op: str, result, rounding: Rounding = ROUNDING[None]
) -> Check:
    """Compare samples of a result with exact ones.

    The bound of a sum of ``terms`` products is ``(terms + 2) eps (|A| @ |B|)``, with
    eps of the dtype sums are kept in, plus the rounding of the result and of the
    inputs; for float64 twice the first, since the reference rounds like it.

    Where float32 is multiplied, the relative Frobenius error has a limit too: twice
    what an operand loses, plus what sums of float32 may have.

    Parameters
    ----------
    result : (M, N), (K, N) or (blocks, R, C)
    rounding : Rounding
        What the peer does to operands before it multiplies them.
    """
    dtype = problem.case.numpy_dtype
    eps = dtypes.unit_roundoff(dtypes.accumulator(dtype))
    eps_out = dtypes.unit_roundoff(dtype)
    twice = 2 if dtype == np.float64 else 1
    lost = (1 + rounding.operand) ** 2 - 1
    error = excess = 0.0
    for part, exact, magnitude, terms in problem.samples(op):
        actual = _float64(part(result))
        if tuple(actual.shape) != tuple(exact.shape):
            raise ValueError(
                f"{op}: the result has {tuple(actual.shape)} elements where "
                f"{tuple(exact.shape)} were due"
            )
        if 0 in tuple(actual.shape):
            continue
        share = twice * (terms * rounding.products + 2) * eps + lost
        difference = abs(actual - exact)
        bound = share * magnitude + eps_out * (abs(exact) + share * magnitude)
        # An exact zero (a row without blocks) has no room for error: any is too much.
        ratio = float((difference / (bound + 1e-300)).max())
        excess = max(excess, ratio) if ratio == ratio else float("inf")
        norm = float((exact * exact).sum()) ** 0.5
        wrong = float((difference * difference).sum()) ** 0.5
        error = max(error, wrong / norm if norm else wrong)
    limit = lost + _SUMS_OF_FLOAT32 if dtype == np.float32 else float("inf")
    return Check(error, excess, problem.machine.all_finite(result), limit)
