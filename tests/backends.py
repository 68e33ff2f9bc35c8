"""Where a test of an operation runs: on the host, in the simulator, on a GPU.

A test takes ``backend`` from ``BACKENDS`` and calls the operation by ``backend.run``,
with host arrays in and out. Every such call checks two contracts besides: inputs keep
every bit, and results belong to the library and place of the inputs.
"""

import contextlib

import numpy as np
import pytest

import numba_bs as bs
from numba_bs import arrays

try:
    from numba_bs.cuda import launch
    from numba_bs.cuda.compiler import SIMULATED, cuda

    HAVE_GPU = not SIMULATED and cuda.is_available() and launch.device_count() > 0
except ImportError:  # macOS: no numba-cuda
    SIMULATED = HAVE_GPU = False


class Host:
    """The reference."""

    small = False  # whether only small shapes are affordable

    def place(self, x):
        """Return an argument where this backend computes."""
        return x

    def take(self, result):
        """Return a result on the host."""
        if result is not None:
            values = result._values if isinstance(result, bs.bsr_array) else result
            assert isinstance(values, np.ndarray)
        return result

    def computing(self):
        """Return the context in which operations are called."""
        return contextlib.nullcontext()

    def run(self, operation, *args, **keywords):
        """Return what ``operation`` gives for host arrays, on the host."""
        args = [self.place(arg) for arg in args]
        keywords = {name: self.place(arg) for name, arg in keywords.items()}
        out = keywords.get("out")
        inputs = [*args, *(x for name, x in keywords.items() if name != "out")]
        before = [bits(x) for x in inputs]
        with self.computing():
            result = operation(*args, **keywords)
        assert [bits(x) for x in inputs] == before, "an input was written"
        assert out is None or result is out
        if isinstance(result, tuple):
            return tuple(self.take(each) for each in result)
        return self.take(result)


class Device(Host):
    """Numba's device arrays, on a GPU or in the simulator under one schedule."""

    library = "numba"

    def __init__(self, **schedule):
        self.schedule = schedule
        self.small = bool(schedule)

    def place(self, x):
        if isinstance(x, bs.bsr_array):
            return x._view(device_copy(x._values))
        return device_copy(x) if isinstance(x, np.ndarray) else x

    def take(self, result):
        if result is None:
            return None
        if isinstance(result, bs.bsr_array):
            return result._view(self.take(result._values))
        operand = arrays.describe("test", "result", result)
        assert (operand.library, operand.device) == (self.library, 0)
        return arrays.to_numpy(operand)

    def computing(self):
        if not self.schedule:
            return contextlib.nullcontext()
        from numba_bs.cuda import simulator

        return simulator.schedule(**self.schedule)


def device_copy(x):
    """Return a Numba device array with the values, strides and access of ``x``."""
    if x.size == 0:
        return cuda.device_array(x.shape, x.dtype)
    low, high = np.lib.array_utils.byte_bounds(x)
    address = x.__array_interface__["data"][0]
    memory = np.asarray(_Bytes(low, high - low, x)).copy()
    if SIMULATED:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        view = np.ndarray(x.shape, x.dtype, memory, address - low, x.strides)
        view.flags.writeable = x.flags.writeable
        return FakeCUDAArray(view)
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer, binding

    whole = cuda.to_device(memory)
    first = binding.CUdeviceptr(whole.device_ctypes_pointer.value + address - low)
    size = high - address
    where = MemoryPointer(cuda.current_context(), first, size=size, owner=whole)
    array = DeviceNDArray(x.shape, x.strides, x.dtype, gpu_data=where)
    # Numba's own arrays can always be written.
    return array if x.flags.writeable else Exporter(array, readonly=True)


class Exporter:
    """Another library's device array: it says where it lies and no more."""

    def __init__(self, array, typestr=None, stream=None, readonly=None):
        self.array = array
        operand = arrays.describe("test", "array", array)
        readonly = operand.readonly if readonly is None else readonly
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": operand.shape,
            "strides": None if operand.contiguous else operand.strides,
            "typestr": typestr or operand.dtype.str,
            "data": (operand.pointer, readonly),
            "stream": stream,
        }


def host_copy(x):
    """Return a NumPy array with the values of a Numba device array of any strides."""
    return arrays.to_numpy(arrays.describe("test", "x", x))


class _Bytes:
    """The memory that an array lies in."""

    def __init__(self, address, size, owner):
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, True),
        }


def bits(x):
    """Return all bits of an argument that is an array."""
    if isinstance(x, bs.bsr_array):
        x = x._values
    if isinstance(x, np.ndarray):
        return x.ctypes.data, x.tobytes()
    if not arrays.is_array(x):
        return None
    operand = arrays.describe("test", "x", x)
    return operand.pointer, arrays.to_numpy(operand).tobytes()


HOST = pytest.param(Host(), id="host")
if HAVE_GPU:
    DEVICES = [pytest.param(Device(), id="gpu", marks=pytest.mark.gpu)]
elif SIMULATED:
    DEVICES = [
        pytest.param(
            Device(order=order, late=late),
            id=f"simulator-{order}",
            marks=pytest.mark.simulator,
        )
        for order, late in (("first", True), ("last", False))
    ]
else:
    reason = "no GPU here, and NUMBA_ENABLE_CUDASIM is not set"
    DEVICES = [pytest.param(None, id="device", marks=pytest.mark.skip(reason))]
# Where what is shown does not depend on the order of threads.
DEVICE = DEVICES[:1]
BACKENDS = [HOST, *DEVICES]
EACH = [HOST, *DEVICE]
# Where large shapes are affordable.
FAST = [HOST] if SIMULATED else EACH
