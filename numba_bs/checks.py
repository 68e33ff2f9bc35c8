"""Rules on arguments: one function and one message each.

Every message reads ``<operation>: <what must hold>, got <what was found>``.
"""

import operator

import numpy as np


def blocksize(op: str, value) -> tuple[int, int]:
    """Return ``(R, C)`` from an int or a pair of ints of at least 1."""
    try:
        R, C = (value, value) if np.ndim(value) == 0 else value
        R, C = operator.index(R), operator.index(C)
    except (TypeError, ValueError):
        raise TypeError(
            f"{op}: blocksize must be an int or a pair of ints, got {value!r}"
        ) from None
    if R < 1 or C < 1:
        raise ValueError(f"{op}: blocksize must be at least (1, 1), got {(R, C)}")
    return R, C


def shape(op: str, value) -> tuple[int, int]:
    """Return ``(M, K)`` from a pair of non-negative ints."""
    try:
        M, K = value
        M, K = operator.index(M), operator.index(K)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: shape must be a pair of ints, got {value!r}") from None
    if M < 0 or K < 0:
        raise ValueError(f"{op}: shape must not be negative, got {(M, K)}")
    return M, K


def divides(op: str, shape: tuple[int, int], blocksize: tuple[int, int]) -> None:
    """Require that blocks tile the matrix."""
    if shape[0] % blocksize[0] or shape[1] % blocksize[1]:
        raise ValueError(
            f"{op}: shape must be a multiple of blocksize, got shape {shape} "
            f"and blocksize {blocksize}"
        )


def integer_array(op: str, name: str, value) -> np.ndarray:
    """Return ``value`` as a one-dimensional integer array; floats are a TypeError."""
    array = np.asarray(value)
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int32)  # [] is a float64 array to NumPy
    if array.dtype.kind not in "iu":
        raise TypeError(f"{op}: {name} must hold integers, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{op}: {name} must be 1-D, got shape {array.shape}")
    return array


def structure(
    op: str,
    indptr: np.ndarray,
    indices: np.ndarray,
    block_rows: int,
    block_cols: int,
) -> None:
    """Require that row pointers and block columns stay inside of the matrix."""
    if len(indptr) != block_rows + 1:
        raise ValueError(
            f"{op}: indptr must have block_rows + 1 = {block_rows + 1} entries, "
            f"got {len(indptr)}"
        )
    if indptr[0] != 0:
        raise ValueError(f"{op}: indptr must start with 0, got {indptr[0]}")
    if (indptr[1:] < indptr[:-1]).any():  # no subtraction: it wraps if unsigned
        raise ValueError(
            f"{op}: indptr must not decrease, got a row of negative length"
        )
    if indptr[-1] > len(indices):
        raise ValueError(
            f"{op}: indptr must end within indices, got indptr[-1] = {indptr[-1]} "
            f"and {len(indices)} indices"
        )
    used = indices[: int(indptr[-1])]
    if used.size and (used.min() < 0 or used.max() >= block_cols):
        raise ValueError(
            f"{op}: indices must be block columns in 0 ... {block_cols - 1}, "
            f"got {used.min()} ... {used.max()}"
        )
    if max(int(indptr[-1]), block_rows, block_cols) > np.iinfo(np.int32).max:
        raise NotImplementedError(
            f"{op}: at most 2^31 - 1 blocks, block rows and block columns are served, "
            f"got {indptr[-1]}, {block_rows}, {block_cols}"
        )


def values_match(op: str, data_shape: tuple, blocks: int, blocksize: tuple) -> None:
    """Require that values are ``(..., blocks, R, C)`` of the layout."""
    if len(data_shape) < 3:
        raise ValueError(
            f"{op}: data must be at least 3-dimensional, (blocks, R, C), "
            f"got shape {tuple(data_shape)}"
        )
    if tuple(data_shape[-2:]) != tuple(blocksize):
        raise ValueError(
            f"{op}: data must have blocks of {tuple(blocksize)}, "
            f"got mismatching blocks of {tuple(data_shape[-2:])}"
        )
    if data_shape[-3] != blocks:
        raise ValueError(f"{op}: data must hold {blocks} blocks, got {data_shape[-3]}")


def inner_sizes(op: str, left: str, left_shape, right: str, right_shape) -> None:
    """Require that the inner dimensions of a product agree."""
    inner = left_shape[-1]
    outer = right_shape[-2] if len(right_shape) > 1 else right_shape[0]
    if inner != outer:
        raise ValueError(
            f"{op}: {left}.shape[-1] must equal {right}.shape"
            f"[{-2 if len(right_shape) > 1 else 0}], got {tuple(left_shape)} "
            f"and {tuple(right_shape)}"
        )


def leading(op: str, *shapes: tuple) -> tuple:
    """Return the broadcast leading shape."""
    if not any(shapes):  # no leading axes at all: the common case
        return ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"{op}: leading axes must broadcast, got "
            f"{' and '.join(str(tuple(shape)) for shape in shapes)}"
        ) from None


def same_device(op: str, **operands) -> None:
    """Require that every named operand lives on one device, or all on the host.

    A host array beside a device array is a TypeError that says which to move; two
    different devices are a ValueError.
    """
    places = {name: operand.device for name, operand in operands.items()}
    on_device = {name: place for name, place in places.items() if place is not None}
    on_host = [name for name in places if name not in on_device]
    if on_device and on_host:
        raise TypeError(
            f"{op}: operands must live on one side, got {', '.join(on_host)} on the "
            f"host and {', '.join(on_device)} on the device; move "
            f"{', '.join(on_host)} to the device or the others to the host"
        )
    if len(set(on_device.values())) > 1:
        found = ", ".join(f"{name} on {place}" for name, place in on_device.items())
        raise ValueError(f"{op}: operands must live on one device, got {found}")


def scalar(op: str, name: str, value, dtype: np.dtype):
    """Return ``value`` as a scalar of ``dtype``; a complex one must not lose a part."""
    if type(value) is int and dtype.kind in "fc":  # the common case
        return dtype.type(value)
    if np.ndim(value) != 0 or isinstance(value, (str, bytes)):
        raise TypeError(f"{op}: {name} must be a scalar, got {type(value).__name__}")
    kind = np.asarray(value).dtype.kind
    order = "biufc"
    if kind not in order:
        raise TypeError(f"{op}: {name} must be a number, got {value!r}")
    if kind == "c" and dtype.kind != "c":
        raise TypeError(f"{op}: {name} must be real for a {dtype} result, got {value}")
    if kind == "f" and dtype.kind in "iu":
        raise TypeError(
            f"{op}: {name} must be an integer for a {dtype} result, got {value}"
        )
    if dtype.kind in "iu":  # wraps, as the sums do
        return np.asarray(int(value) % 2**64, np.uint64).astype(dtype)[()]
    return dtype.type(value)


def beta_needs_out(op: str, beta, out) -> None:
    """Require an ``out`` that ``beta`` can be the factor of."""
    if out is None and beta != 0:
        raise ValueError(f"{op}: beta must be 0 without out, got {beta}")


def output_dtype(op: str, natural: np.dtype, asked: np.dtype) -> None:
    """Require that a result of ``natural`` may be given as ``asked``."""
    if not np.can_cast(natural, asked, "same_kind"):
        raise TypeError(f"{op}: a result of {natural} cannot be given as {asked}")


def out(op: str, out, shape: tuple, inputs: dict) -> None:
    """Require an ``out`` that can be written: shape, access, no overlap.

    Parameters
    ----------
    out : Operand
    shape : what the result's shape must be
    inputs : name -> Operand
    """
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"{op}: out must have shape {tuple(shape)}, got {out.shape}")
    if out.readonly:
        raise ValueError(f"{op}: out must be writable, got a read-only array")
    if out.conj:
        raise ValueError(
            f"{op}: out must not be a lazy conjugate; call .resolve_conj()"
        )
    if _overlaps_itself(out):
        raise ValueError(
            f"{op}: elements of out must not share memory, got strides {out.strides} "
            f"for shape {out.shape}"
        )
    disjoint(op, "out", out, inputs)


def _overlaps_itself(operand) -> bool:
    """Whether two elements may be one: sizes sorted by stride must not reach over."""
    if 0 in operand.shape:
        return False
    reach = operand.dtype.itemsize
    axes = zip(operand.shape, operand.strides, strict=True)
    for step, size in sorted((abs(step), size) for size, step in axes if size > 1):
        if step < reach:
            return True
        reach += step * (size - 1)
    return False


def _may_overlap(a, b) -> bool:
    """Whether a byte may belong to both; strides are looked at, memory is not."""
    if a.device != b.device or 0 in a.shape or 0 in b.shape:
        return False
    a, b = a.as_array(), b.as_array()
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=1000)
    except np.exceptions.TooHardError:
        return True


def heads(op: str, lead: tuple, count: int) -> None:
    """Require that the last leading axis is that of a stack's heads."""
    if lead[-1] != count:
        raise ValueError(
            f"{op}: the last leading axis must be the {count} heads of the "
            f"LayoutStack, got leading axes {tuple(lead)}"
        )


def disjoint(op: str, name: str, operand, others: dict) -> None:
    """Require that ``operand`` shares no memory with the others."""
    for other, held in others.items():
        if _may_overlap(operand, held):
            raise ValueError(f"{op}: {name} must not overlap {other} in memory")


def workspace(op: str, operand, needed_bytes: int, alignment: int) -> None:
    """Require writable, contiguous, aligned memory that is large enough."""
    size = operand.size * operand.dtype.itemsize
    if operand.readonly or not operand.contiguous or size < needed_bytes:
        raise ValueError(
            f"{op}: workspace must be a writable contiguous array of at least "
            f"{needed_bytes} bytes, got {size} bytes of shape {operand.shape}"
        )
    if operand.pointer % alignment:
        raise ValueError(
            f"{op}: workspace must be aligned to {alignment} bytes, "
            f"got address {operand.pointer:#x}"
        )


def precision(op: str, value) -> None:
    """Require the name of a precision of float32 products."""
    if value not in (None, "ieee", "tf32", "tf32x3"):
        raise ValueError(
            f"{op}: precision must be 'ieee', 'tf32' or 'tf32x3', got {value!r}"
        )


def needs(op: str, value, names: tuple) -> tuple:
    """Return ``value`` as a tuple of known input names."""
    value = (value,) if isinstance(value, str) else tuple(value)
    unknown = [name for name in value if name not in names]
    if unknown:
        raise ValueError(f"{op}: needs must name some of {names}, got {unknown}")
    return value
