"""Element-wise operations on values, in NumPy. See :mod:`numba_bs._elementwise`."""

import numpy as np

from ..dtypes import sums_dtype


def _sums(x, out):
    """Return ``x`` in the type that sums of it and of the result are kept in."""
    return x.astype(sums_dtype(x.dtype, out.dtype))


def scale(x, _, alpha, beta, out):
    """Write ``out = alpha * x``."""
    out[...] = x if np.isscalar(alpha) and alpha == 1 else alpha * _sums(x, out)


def axpby(x, y, alpha, beta, out):
    """Write ``out = alpha * x + beta * y``."""
    out[...] = alpha * _sums(x, out) + beta * _sums(y, out)


def multiply(x, y, alpha, beta, out):
    """Write ``out = alpha * x * y``."""
    out[...] = alpha * _sums(x, out) * _sums(y, out)
