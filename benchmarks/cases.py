"""Named points at which products are timed, and the layouts they use."""

from typing import NamedTuple

import numpy as np

from numba_bs import Layout, patterns
from numba_bs.dtypes import bfloat16

DTYPES = {
    "bf16": bfloat16,
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}


class Case(NamedTuple):
    """One product: A (M, K) in blocks of (R, C), times X (K, N)."""

    dtype: str
    M: int
    K: int
    N: int
    blocksize: tuple[int, int]
    density: float
    pattern: str = "uniform"
    precision: str | None = None  # what fp32 may lose: None, "tf32" or "tf32x3"

    @property
    def name(self) -> str:
        """Return the name that results are stored under and `--only` searches."""
        R, C = self.blocksize
        block = f"b{R}" if R == C else f"b{R}x{C}"
        size = f"{self.M}x{self.K}x{self.N}"
        name = f"{self.dtype}/{size}/{block}/d{self.density:g}/{self.pattern}"
        return f"{name}/{self.precision}" if self.precision else name

    @property
    def numpy_dtype(self) -> np.dtype:
        """Return the dtype of all operands."""
        return DTYPES[self.dtype]


def _points(
    dtypes,
    sizes,
    blocks,
    densities=(0.1, 0.3),
    patterns=("uniform",),
    precision=None,
):
    """Return the product of these, the dtype and the block varying slowest."""
    return [
        Case(
            dtype,
            # The nearest whole number of blocks: 8190 for blocks of 3.
            M // R * R,
            K // C * C,
            N,
            (R, C),
            density,
            pattern,
            precision,
        )
        for dtype in dtypes
        for R, C in blocks
        for M, K, N in sizes
        for pattern in patterns
        for density in densities
    ]


def _with_twins(points):
    """Return power-law points, each followed by a uniform one of as many blocks."""
    return [twin for case in points for twin in (case, _uniform_twin(case))]


def _uniform_twin(case):
    cols = case.K // case.blocksize[1]
    density = (2 * _links(cols, case.density) + 1) / cols
    return case._replace(pattern="uniform", density=density)


def _links(cols, density):
    """Return m of a power-law layout, which stores ``cols * (2 * m + 1)`` blocks."""
    return max(1, round((density * cols - 1) / 2))


_LARGE = [(8192, 8192, 8192)]
_SMALL = [(4096, 4096, 1024)]
_SQUARE = [(16, 16), (32, 32), (64, 64), (128, 128)]
_WIDE = [(32, 32), (64, 64), (128, 128)]

# What a set is for is said in README.md; "default" is what README's table shows.
SETS = {
    "default": _points(["bf16", "fp32"], _LARGE, _SQUARE),
    "quick": _points(["bf16", "fp32"], _SMALL, [(32, 32), (128, 128)], [0.1]),
    "small": _points(["bf16"], _SMALL, _SQUARE),
    "densities": _points(
        ["bf16"], _LARGE, _SQUARE, [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    ),
    "blocks": _points(["bf16", "fp32"], _LARGE, [(8, 8), (3, 3), (32, 64)], [0.1]),
    "patterns": _points(
        ["bf16"],
        _LARGE,
        [(32, 32), (128, 128)],
        [0.1],
        ["banded", "power-law", "full-row"],
    ),
    # The longest row has 3 to 15 times the blocks of the median one, most in the last.
    "scale-free": _with_twins(
        [
            *_points(
                ["bf16"], _LARGE, [(32, 32), (128, 128)], [0.02, 0.1], ["power-law"]
            ),
            Case("bf16", 32768, 32768, 4096, (32, 32), 0.01, "power-law"),
        ]
    ),
    "dtypes": _points(["fp16", "fp64"], _LARGE, [(32, 32), (64, 64)], [0.1]),
    "precisions": [
        *_points(["fp32"], _LARGE, _WIDE, [0.1], precision="tf32"),
        *_points(["fp32"], _LARGE, _WIDE, [0.1], precision="tf32x3"),
        *_points(["fp64"], _LARGE, _WIDE, [0.1]),
    ],
    "widths": [
        *_points(
            ["bf16", "fp32"],
            [(8192, 8192, n) for n in (8192, 8191)],
            _SQUARE,
            [0.1],
        ),
        *_points(["bf16"], [(8192, 8192, n) for n in (128, 1)], [(32, 32)], [0.1]),
    ],
    # Seconds on one core: these exercise the code, and show what the reference does.
    "cpu": _points(["fp32", "fp64"], [(2048, 2048, 256)], _SQUARE),
    "cpu-quick": [
        Case("fp32", 512, 512, 64, (32, 32), 0.1),
        Case("fp64", 510, 510, 64, (3, 3), 0.3),
        Case("bf16", 512, 512, 33, (16, 16), 0.1, "full-row"),
    ],
}
SETS["all"] = list(
    dict.fromkeys(
        case
        for name, points in SETS.items()
        if name != "quick" and not name.startswith("cpu")
        for case in points
    )
)


def make_layout(case: Case, seed: int = 0) -> Layout:
    """Return the layout of a case: the same one for the same case and seed."""
    R, C = case.blocksize
    make = PATTERNS[case.pattern]
    return make(case.M // R, case.K // C, case.blocksize, case.density, seed)


def _uniform(rows, cols, blocksize, density, seed):
    return patterns.random(rows, cols, blocksize, density=density, seed=seed)


def _banded(rows, cols, blocksize, density, seed):
    # A band of half-width w in n x n stores n (2 w + 1) - w (w + 1) blocks.
    n = min(rows, cols)
    width = round(n - 0.5 - (max(0.25, n * n * (1 - density))) ** 0.5)
    return patterns.banded(rows, cols, blocksize, lower=width, upper=width)


def _power_law(rows, cols, blocksize, density, seed):
    # With extra edges that make up for the corner.
    m = _links(cols, density)
    return patterns.barabasi_albert(
        rows, cols, blocksize, m=m, extra_edges=m * (m + 1) // 2, seed=seed
    )


def _full_row(rows, cols, blocksize, density, seed):
    mask = _uniform(rows, cols, blocksize, density, seed).mask()
    mask[rows // 2] = True
    return Layout.from_mask(mask, blocksize)


# Functions of (block_rows, block_cols, blocksize, density, seed); the density of the
# irregular ones is about right, and every result carries the true one.
PATTERNS = {
    "uniform": _uniform,
    "banded": _banded,
    "power-law": _power_law,
    "full-row": _full_row,
}
