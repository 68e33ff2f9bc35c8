"""Error bounds in the place of tolerances.

A sum of ``terms`` products, kept in a type of unit roundoff u and rounded once to a
result of unit roundoff v, is within

    (terms + 2) u magnitude + v |exact|,    magnitude = sum of |factor| |factor|

of the exact sum, whatever the order of summation (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, chapter 3). Nothing here is tuned.
"""

import ml_dtypes
import numpy as np

from numba_bs.dtypes import unit_roundoff


def assert_within(actual, exact, magnitude, terms, sums):
    """Require that ``actual`` is within the bound of ``exact``, everywhere.

    Parameters
    ----------
    actual : NumPy array of the result's dtype
        NaN is within no bound. Integers must be equal.
    exact : array of that shape
        From the inputs as they are stored, in a wider type where there is one.
    magnitude : array of that shape
        What the moduli of the products sum up to.
    terms : int
        Products in one sum; one more for each further factor or addend.
    sums : dtype
        In which sums are kept.
    """
    actual, exact = np.asarray(actual), np.asarray(exact)
    assert actual.shape == exact.shape
    if actual.dtype.kind in "iu":
        assert exact.dtype == actual.dtype
        np.testing.assert_array_equal(actual, exact)
        return
    bound = allowed(actual.dtype, exact, magnitude, terms, sums)
    assert np.isfinite(bound).all(), "a bound that is not finite bounds nothing"
    error = np.abs(widened(actual) - exact)
    excess = error - bound
    outside = ~(excess <= 0)  # NaN counts
    assert not outside.any(), (
        f"{np.count_nonzero(outside)} of {outside.size} elements are outside of the "
        f"bound, the first at {first(outside)}: {actual[first(outside)]} for "
        f"{exact[first(outside)]}, allowed {np.asarray(bound)[first(outside)]:.3g}"
    )


def allowed(dtype, exact, magnitude, terms, sums):
    """Return how far a result of ``dtype`` may be from ``exact``."""
    u = unit_roundoff(sums)
    if np.dtype(sums).kind == "c":
        # Each part of a complex product is a sum of two; both parts may be off.
        terms, u = 2 * terms, np.sqrt(2) * u
    # exact is a sum in floating point too.
    u += np.finfo(exact.dtype).eps / 2
    summed = (terms + 2) * u * magnitude
    rounded = unit_roundoff(dtype) * (np.abs(exact) + summed)
    return summed + rounded + float(ml_dtypes.finfo(dtype).smallest_subnormal)


def widened(x, result=None):
    """Return ``x`` in NumPy's widest type of its kind; integers wrap in int64.

    With ``result``, the dtype of a product: integers among floats become floats.
    """
    x = np.asarray(x)
    kinds = {x.dtype.kind, np.dtype(x.dtype if result is None else result).kind}
    if kinds <= {"i", "u"}:
        return x.astype(np.int64)
    if "c" in kinds:
        return x.astype(np.complex128).astype(np.clongdouble)
    if x.dtype.kind in "iu":
        return x.astype(np.longdouble)
    return x.astype(np.float64).astype(np.longdouble)


def first(where):
    """Return the index of the first True."""
    return tuple(int(i) for i in np.argwhere(where)[0])
