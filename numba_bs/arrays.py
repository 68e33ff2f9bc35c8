"""Whose array is it, where does it live; views, allocation and streams.

Everything numba_bs knows of somebody's array is an :class:`Operand`: address,
shape, strides, dtype, device. NumPy, Numba, CuPy and torch arrays (CPU and GPU)
and other exporters of the CUDA array interface become one without a copy. Numba,
CuPy and torch are looked up in ``sys.modules``, never imported: who owns such an
array has imported its library.
"""

import functools
import math
import operator
import sys
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .dtypes import STORAGE, bfloat16, words

Array: TypeAlias = Any  # of NumPy, Numba, CuPy or torch; named in signatures


class Operand(NamedTuple):
    """What checks and kernels need of an array; views of it cost no copy."""

    pointer: int  # address of element [0, ..., 0]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes; 0 (broadcast) and negative are fine
    dtype: np.dtype
    device: int | None  # None: the host
    readonly: bool
    library: str  # "numpy", "numba", "cupy", "torch" or "foreign"
    owner: object  # keeps the memory alive
    conj: bool = False  # values count as conjugated (torch's lazy bit)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other in C order."""
        return self.strides == contiguous_strides(self.shape, self.dtype.itemsize)

    @property
    def mT(self) -> "Operand":  # noqa: N802 - the array API's name
        """View with the last two axes swapped."""
        *lead_shape, rows, cols = self.shape
        *lead_strides, by_row, by_col = self.strides
        return self._replace(
            shape=(*lead_shape, cols, rows), strides=(*lead_strides, by_col, by_row)
        )

    def conjugate(self) -> "Operand":
        """View whose values count as conjugated; itself if they are real."""
        return self._replace(conj=not self.conj) if self.dtype.kind == "c" else self

    def view(self, shape, strides, offset: int = 0) -> "Operand":
        """View with these axes, ``offset`` bytes further."""
        return self._replace(
            pointer=self.pointer + offset, shape=tuple(shape), strides=tuple(strides)
        )

    def first_blocks(self, blocks: int) -> "Operand":
        """View of the first ``blocks`` of ``(..., blocks, R, C)`` values."""
        *lead, _, R, C = self.shape
        return self._replace(shape=(*lead, blocks, R, C))

    def as_words(self) -> "Operand":
        """View as a kernel sees it: bfloat16 as 16-bit words."""
        return self._replace(dtype=words(self.dtype))

    def as_array(self) -> np.ndarray:
        """Return a NumPy array over the same addresses.

        On the host (and in the simulator) it is a view of the values. For a device
        array only its geometry may be looked at: reading it is an illegal access.
        """
        owner = self.owner
        if type(owner) is np.ndarray and self[1:4] == _geometry(owner):
            return owner  # an Operand of all of it, not of a view
        array = np.asarray(_Memory(self))
        return array.view(bfloat16) if self.dtype == bfloat16 else array


def _geometry(x: np.ndarray) -> tuple:
    """Return the three fields of an Operand that tell its views apart."""
    return x.shape, x.strides, x.dtype


class _Memory:
    """Lets NumPy make an array of an Operand."""

    def __init__(self, operand: Operand):
        self.owner = operand.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": operand.shape,
            "strides": operand.strides,
            "typestr": words(operand.dtype).str,
            "data": (operand.pointer, operand.readonly),
        }


def contiguous_strides(shape: tuple, itemsize: int) -> tuple[int, ...]:
    """Return the C-order strides in bytes."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


# ------------------------------------------------------------------ describing


def is_array(x) -> bool:
    """Whether ``describe`` can take ``x`` as it is."""
    return _library(type(x), x) is not None


def describe(op: str, name: str, x) -> Operand:
    """Return the Operand of an array.

    Parameters
    ----------
    op, name : for messages
    x : array
        NumPy, Numba, CuPy, torch, any exporter of ``__cuda_array_interface__``;
        nested lists and scalars become NumPy arrays.

    Raises
    ------
    TypeError
        Not an array, a torch tensor that requires grad or is not strided, or a
        dtype that has no NumPy name.
    """
    library = _library(type(x), x)
    if library is None:
        if not isinstance(x, (list, tuple, int, float, complex, np.generic)):
            raise TypeError(
                f"{op}: {name} must be an array of NumPy, Numba, CuPy or torch, "
                f"got {type(x).__module__}.{type(x).__name__}"
            )
        x, library = np.asarray(x), "numpy"
    operand = _DESCRIBE[library](op, name, x)
    itemsize = operand.dtype.itemsize
    for step in operand.strides:
        if step % itemsize and operand.size:
            raise ValueError(
                f"{op}: strides of {name} must be multiples of its item size "
                f"{itemsize}, got {operand.strides}; copy it first"
            )
    unit = itemsize // 2 if operand.dtype.kind == "c" else itemsize
    if operand.device is not None and operand.pointer % unit and operand.size:
        raise ValueError(
            f"{op}: the address of {name} must be a multiple of {unit} bytes, "
            f"got {operand.pointer:#x}; copy it first"
        )
    return operand


_known_types: dict[type, str] = {}


def _library(cls: type, x) -> str | None:
    found = _known_types.get(cls)
    if found is None:
        found = _find_library(x)
        if found is not None:
            _known_types[cls] = found
    return found


def _find_library(x) -> str | None:
    if isinstance(x, np.ndarray):
        return None if isinstance(x, np.ma.MaskedArray) else "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return "cupy"
    if type(x).__module__.startswith("numba.") and hasattr(x, "__cuda_ndarray__"):
        return "numba"
    if hasattr(x, "__cuda_array_interface__"):
        return "foreign"
    return None


_stored = {dtype: dtype for dtype in STORAGE}


def _dtype(op: str, name: str, dtype) -> np.dtype:
    """Two-byte void values are bfloat16: the array interface has no other name."""
    stored = _stored.get(dtype)
    if stored is not None:
        return stored
    dtype = np.dtype(dtype)
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:
        return bfloat16
    if not dtype.isnative:
        raise TypeError(f"{op}: {name} must have native byte order, got {dtype.str}")
    return dtype


def _describe_numpy(op, name, x) -> Operand:
    return Operand(
        _numpy_address(x),
        x.shape,
        x.strides,
        _dtype(op, name, x.dtype),
        device=None,
        readonly=not x.flags.writeable,
        library="numpy",
        owner=x,
    )


def _describe_numba(op, name, x) -> Operand:
    host = getattr(x, "_ary", None)  # the simulator's device array
    if host is not None:
        return _describe_numpy(op, name, host)._replace(
            device=0, library="numba", owner=x
        )
    return Operand(
        _numba_address(x),
        x.shape,
        x.strides,
        _dtype(op, name, x.dtype),
        device=x.gpu_data.context.device.id,
        readonly=False,
        library="numba",
        owner=x,
    )


def _describe_cupy(op, name, x) -> Operand:
    return Operand(
        x.data.ptr,
        x.shape,
        x.strides,
        _dtype(op, name, x.dtype),
        device=x.data.device_id,
        readonly=False,
        library="cupy",
        owner=x,
    )


def _describe_torch(op, name, x) -> Operand:
    torch = sys.modules["torch"]
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{op}: {name} must not require grad, got a tensor that does; numba_bs "
            f"keeps no tape: pass {name}.detach() and call the op's backward"
        )
    if x.layout != torch.strided:
        raise TypeError(
            f"{op}: {name} must be a strided tensor, got layout {x.layout}; "
            f"numba_bs.bsr_array takes sparse ones"
        )
    if not (x.is_cpu or x.is_cuda):
        raise TypeError(f"{op}: {name} must be on cpu or cuda, got {x.device}")
    negative = x.is_neg()  # torch's lazy minus; a result can not be written through it
    if negative:
        x = x.resolve_neg()
    dtype = _torch_dtypes().get(x.dtype)
    if dtype is None:
        raise TypeError(f"{op}: {name} must have a dtype NumPy knows, got {x.dtype}")
    itemsize = dtype.itemsize
    return Operand(
        x.data_ptr(),
        tuple(x.shape),
        tuple([step * itemsize for step in x.stride()]),
        dtype,
        device=None if x.is_cpu else x.get_device(),
        readonly=negative,
        library="torch",
        owner=x,
        conj=x.is_conj(),
    )


def _describe_foreign(op, name, x) -> Operand:
    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError(f"{op}: {name} must not be masked, got an array with a mask")
    dtype = _dtype(op, name, interface["typestr"])
    shape = tuple(interface["shape"])
    pointer, readonly = interface["data"]
    return Operand(
        pointer=pointer or 0,
        shape=shape,
        strides=tuple(
            interface.get("strides") or contiguous_strides(shape, dtype.itemsize)
        ),
        dtype=dtype,
        device=_pointer_device(pointer),
        readonly=readonly,
        library="foreign",
        owner=x,
    )


_DESCRIBE = {
    "numpy": _describe_numpy,
    "numba": _describe_numba,
    "cupy": _describe_cupy,
    "torch": _describe_torch,
    "foreign": _describe_foreign,
}


@functools.cache
def _torch_dtypes() -> dict:
    """Torch dtype -> NumPy dtype."""
    torch = sys.modules["torch"]
    names = "float16 float32 float64 complex64 complex128 int8 int16 int32 int64"
    names += " uint8 uint16 uint32 uint64 bool"
    table = {
        getattr(torch, name): np.dtype(name)
        for name in names.split()
        if hasattr(torch, name)
    }
    return {torch.bfloat16: bfloat16, **table}


@functools.cache
def _torch_strided():
    return sys.modules["torch"].strided


@functools.cache
def torch_dtype(dtype: np.dtype):
    """Return torch's dtype of this name."""
    return next(theirs for theirs, ours in _torch_dtypes().items() if ours == dtype)


@functools.cache
def _torch_device(device: int | None):
    where = "cpu" if device is None else f"cuda:{device}"
    return sys.modules["torch"].device(where)


def _pointer_device(pointer: int) -> int:
    """Return the device that owns an address; 0 for an empty array's null."""
    from .cuda.compiler import SIMULATED

    if not pointer or SIMULATED:
        return 0
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, device = driver.cuPointerGetAttribute(attribute, pointer)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"array interface: {pointer:#x} is no device address")
    return int(device)


# -------------------------------------------------------------------- signatures


def signature(x) -> tuple | None:
    """Return what the Operand of ``x`` is made of, all but the address, cheaply.

    Library and device come first. None if it is not so cheap to tell: a list, another
    exporter, a tensor that is refused or a lazy minus.
    """
    of_library = _SIGNATURE.get(_known_types.get(type(x)) or _library(type(x), x))
    return None if of_library is None else of_library(x)


def address(x) -> int:
    """Return the address of an array that has a signature."""
    return _ADDRESS[_known_types[type(x)]](x)


def _numpy_signature(x):
    return "numpy", None, x.shape, x.strides, x.dtype, x.flags.writeable


def _numba_signature(x):
    host = getattr(x, "_ary", None)  # the simulator's device array
    if host is not None:
        return "numba", 0, *_numpy_signature(host)
    return "numba", x.gpu_data.context.device.id, x.shape, x.strides, x.dtype


def _cupy_signature(x):
    return "cupy", x.data.device_id, x.shape, x.strides, x.dtype


def _torch_signature(x):
    refused = x.requires_grad and sys.modules["torch"].is_grad_enabled()
    if refused or x.is_neg() or x.layout is not _torch_strided():
        return None
    device = None if x.is_cpu else x.get_device()
    return "torch", device, x.shape, x.stride(), x.dtype, x.is_conj()


def _numpy_address(x):
    return x.__array_interface__["data"][0]


def _numba_address(x):
    host = getattr(x, "_ary", None)
    if host is not None:
        return _numpy_address(host)
    return x.device_ctypes_pointer.value or 0


_SIGNATURE = {
    "numpy": _numpy_signature,
    "numba": _numba_signature,
    "cupy": _cupy_signature,
    "torch": _torch_signature,
}
_ADDRESS = {
    "numpy": _numpy_address,
    "numba": _numba_address,
    "cupy": operator.attrgetter("data.ptr"),
    "torch": operator.methodcaller("data_ptr"),
}


# ------------------------------------------------------------ making and moving


def empty(shape: tuple, dtype: np.dtype, like: Operand, stream: int | None = None):
    """Return an uninitialised array of the library and device of ``like``.

    ``stream``: where it is used, if not on the library's own current stream; its
    memory is then not handed out again before that stream is through with it.
    """
    pooled = stream is not None and like.library in ("torch", "cupy")
    if pooled and stream != stream_of(like):
        with _on_stream(like, stream):
            return make_empty(shape, dtype, like.library, like.device)
    return make_empty(shape, dtype, like.library, like.device)


def _on_stream(like: Operand, stream: int):
    """Return the context manager that makes ``stream`` current in a library."""
    if like.library == "torch":
        cuda = sys.modules["torch"].cuda
        return cuda.stream(cuda.ExternalStream(stream, device=like.device))
    return sys.modules["cupy"].cuda.ExternalStream(stream, like.device)


def make_empty(shape: tuple, dtype: np.dtype, library: str, device: int | None):
    """Return an uninitialised C-order array of ``library`` on ``device``."""
    if library == "torch":
        torch, where = sys.modules["torch"], _torch_device(device)
        return torch.empty(shape, dtype=torch_dtype(dtype), device=where)
    if device is None:
        return np.empty(shape, dtype)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(shape, dtype)
    from .cuda.compiler import cuda

    with cuda.gpus[device]:
        return cuda.device_array(shape, dtype)


def to_numpy(x: Operand) -> np.ndarray:
    """Return the values on the host: a view if they are there, else a copy."""
    if x.device is None:
        array = x.as_array()
    elif x.library == "torch":
        return to_numpy(_describe_torch("to_numpy", "x", x.owner.cpu()))
    elif x.library == "cupy":
        array = x.owner.get()
    else:
        from .cuda.compiler import SIMULATED

        array = x.as_array().copy() if SIMULATED else _fetch(x)
    return array.conj() if x.conj else array


def _fetch(x: Operand) -> np.ndarray:
    """Copy the memory that a device array of any strides spans, and view it alike."""
    from cuda.bindings import driver

    from .cuda.compiler import cuda

    if x.size == 0:
        return np.empty(x.shape, x.dtype)
    steps = [step * (n - 1) for n, step in zip(x.shape, x.strides, strict=True)]
    before = -sum(step for step in steps if step < 0)
    after = sum(step for step in steps if step > 0) + x.dtype.itemsize
    memory = np.empty(before + after, np.uint8)
    with cuda.gpus[x.device]:
        status = driver.cuCtxSynchronize()  # whatever stream x is written on
        if status[0] == driver.CUresult.CUDA_SUCCESS:
            target, source = memory.ctypes.data, x.pointer - before
            status = driver.cuMemcpyDtoH(target, source, memory.nbytes)
    if status[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"to_numpy: the copy to the host failed: {status[0].name}")
    return np.ndarray(x.shape, x.dtype, memory, before, x.strides)


def from_numpy(array: np.ndarray, library: str, device: int | None):
    """Return ``array`` as an array of ``library`` on ``device`` (None: the host)."""
    if library == "torch":
        import torch

        bits = array.view(np.int16) if array.dtype == bfloat16 else array
        if any(step < 0 for step in bits.strides):  # torch has none of these
            bits = bits.copy()
        tensor = torch.from_numpy(np.require(bits, requirements="W"))
        tensor = tensor.view(torch.bfloat16) if array.dtype == bfloat16 else tensor
        return tensor if device is None else tensor.to(f"cuda:{device}")
    if device is None:
        return array
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(device):
            return cupy.asarray(array)
    from .cuda.compiler import SIMULATED, cuda

    array = np.ascontiguousarray(array)
    with cuda.gpus[device]:
        if array.dtype == bfloat16 and not SIMULATED:  # no buffer to Python
            return cuda.to_device(array.view(np.uint16)).view(bfloat16)
        return cuda.to_device(array)


def give_back(array: np.ndarray, like: Operand):
    """Return a host result in the library of the host operand ``like``."""
    return from_numpy(array, like.library, None)


# --------------------------------------------------------------------- streams


def stream_of(x: Operand) -> int:
    """Return the handle of the stream on which work on ``x`` is ordered."""
    if x.library == "torch":
        return sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    if x.library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream(x.device).ptr
    if x.library == "foreign":
        return x.owner.__cuda_array_interface__.get("stream") or 0
    return 0


def streams_of(operands) -> set[int]:
    """Return the streams of several operands; each library is asked once."""
    owners = {
        (x.library, x.device, x.library == "foreign" and id(x)): x for x in operands
    }
    return {stream_of(x) for x in owners.values()}


def stream_handle(op: str, stream) -> int:
    """Return the handle of a stream object of any library, or of an integer."""
    if isinstance(stream, int):
        return 0 if stream == 1 else stream  # 1 names the default stream too
    for attribute in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    raise TypeError(
        f"{op}: stream must be an integer or a stream of Numba, CuPy, torch or an "
        f"object with __cuda_stream__, got {type(stream).__name__}"
    )
