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
    """Write ``out = alpha * x + beta * y``; factors 1 and -1 cost no rounding."""
    x, y = _sums(x, out), _sums(y, out)
    x = x if alpha == 1 else alpha * x
    out[...] = x + y if beta == 1 else x - y if beta == -1 else x + beta * y


def multiply(x, y, alpha, beta, out):
    """Write ``out = alpha * x * y``."""
    product = _sums(x, out) * _sums(y, out)
    out[...] = product if alpha == 1 else alpha * product
