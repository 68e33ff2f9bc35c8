"""The bound that other tests rely on: what it lets pass, what it does not."""

import numpy as np
import pytest
from bounds import assert_within, widened

import numba_bs as bs

TERMS = 100


@pytest.fixture
def sums(rng):
    """Return exact sums of products of float32, and what their moduli sum up to."""
    a, b = (rng.standard_normal((50, TERMS)).astype(np.float32) for _ in range(2))
    products = widened(a) * widened(b)
    return products.sum(axis=1), np.abs(products).sum(axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bs.dtypes.bfloat16])
def test_what_passes(sums, dtype):
    exact, magnitude = sums
    assert_within(exact.astype(dtype), exact, magnitude, TERMS, np.float32)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y * np.float32(1.0001),
        lambda y: np.where(np.arange(50) == 49, np.nan, y),
        lambda y: np.where(np.arange(50) == 0, np.inf, y),
        lambda y: np.roll(y, 1),
        lambda y: np.zeros_like(y),
        lambda y: y[:-1],
    ],
    ids=["scaled", "nan", "inf", "rolled", "zeros", "short"],
)
def test_what_fails(sums, spoil):
    exact, magnitude = sums
    with pytest.raises(AssertionError):
        assert_within(
            spoil(exact.astype(np.float32)), exact, magnitude, TERMS, np.float32
        )


def test_one_unit_of_rounding_is_seen_where_one_term_is_summed():
    exact = np.ones(1, np.longdouble)
    for dtype, u in ((np.float32, 2.0**-24), (np.float16, 2.0**-11)):
        assert_within(np.ones(1, dtype), exact, exact, 1, dtype)
        off = np.asarray([1 + 8 * u], dtype)
        with pytest.raises(AssertionError, match="1 of 1 elements are outside"):
            assert_within(off, exact, exact, 1, dtype)


def test_integers_must_be_equal():
    exact = np.arange(4)
    assert_within(exact, exact, exact, 1, np.int64)
    with pytest.raises(AssertionError):
        assert_within(exact + (exact == 3), exact, exact, 1, np.int64)


def test_a_bound_of_infinity_is_refused():
    exact = np.ones(1)
    with pytest.raises(AssertionError, match="bounds nothing"):
        assert_within(exact, exact, exact * np.inf, 1, np.float64)
