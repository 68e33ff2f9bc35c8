"""Element types: what is stored, what sums are kept in, what a result is.

===================== ============ ===================
stored                summed in    unit roundoff
===================== ============ ===================
float16, bfloat16     float32      2^-11, 2^-8
float32, complex64    the same     2^-24
float64, complex128   the same     2^-53
signed integers       int64        exact, wraps
unsigned integers     uint64       exact, wraps
===================== ============ ===================
"""

from functools import cache

import ml_dtypes
import numpy as np

bfloat16 = np.dtype(ml_dtypes.bfloat16)

STORAGE = (
    np.dtype(np.float16),
    bfloat16,
    *map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)),
    *map(np.dtype, (np.int8, np.int16, np.int32, np.int64)),
    *map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64)),
)

_SIXTEEN_BIT = (np.dtype(np.float16), bfloat16)
_ROUNDOFF = {
    np.dtype(np.float16): 2.0**-11,
    bfloat16: 2.0**-8,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.complex64): 2.0**-24,
    np.dtype(np.complex128): 2.0**-53,
}


def is_integer(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a signed or unsigned integer type."""
    return dtype.kind in "iu"


def is_complex(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is complex."""
    return dtype.kind == "c"


def storage_dtype(op: str, name: str, dtype) -> np.dtype:
    """Return ``dtype`` as a NumPy dtype, or raise TypeError if no kernel stores it."""
    dtype = np.dtype(dtype)
    if dtype not in STORAGE:
        served = ", ".join(map(str, STORAGE))
        hint = "; cast booleans with .astype(np.int8)" if dtype.kind == "b" else ""
        raise TypeError(
            f"{op}: {name} must have one of the dtypes {served}, got {dtype}{hint}"
        )
    return dtype


@cache
def result_dtype(op: str, *dtypes: np.dtype) -> np.dtype:
    """Return the dtype of a product of these: NumPy's, where the pair makes sense.

    Raises
    ------
    TypeError
        float16 meets bfloat16, or a 16-bit float meets an integer: neither holds
        the other's values, and NumPy's answer (float32, float64) is seldom meant.
    """
    halves = [dtype for dtype in dtypes if dtype in _SIXTEEN_BIT]
    if len(set(halves)) == 2:
        raise TypeError(
            f"{op}: operands must not mix float16 and bfloat16, got "
            f"{' and '.join(map(str, dtypes))}; cast one of them"
        )
    if halves and any(is_integer(dtype) for dtype in dtypes):
        raise TypeError(
            f"{op}: 16-bit floats and integers must not be mixed, got "
            f"{' and '.join(map(str, dtypes))}; cast one of them"
        )
    return np.dtype(np.result_type(*dtypes))


@cache
def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which sums of ``dtype`` are kept."""
    if dtype in _SIXTEEN_BIT:
        return np.dtype(np.float32)
    if is_integer(dtype):
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return dtype


@cache
def sums_dtype(operands: np.dtype, result: np.dtype) -> np.dtype:
    """Return the dtype in which sums of ``operands`` are kept for a ``result``.

    Integers wrap alike in int64 and uint64, so either does; NumPy's common type of
    the two, float64, would not wrap.
    """
    if is_integer(operands) and is_integer(result):
        return accumulator(result)
    return np.dtype(np.result_type(accumulator(operands), accumulator(result)))


def unit_roundoff(dtype: np.dtype) -> float:
    """Return the largest relative error of rounding to ``dtype``; 0 for integers."""
    return _ROUNDOFF.get(np.dtype(dtype), 0.0)


def words(dtype: np.dtype) -> np.dtype:
    """Return what a kernel sees of ``dtype``: 16-bit words for bfloat16."""
    return np.dtype(np.uint16) if dtype == bfloat16 else dtype
