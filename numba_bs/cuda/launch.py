"""The one way to start a kernel: :func:`run`.

Numba's dispatcher costs 57 us a launch. Here a kernel is compiled once for its types
of arguments (``compiler.load``) and started by ``cuda.core.launch`` with its arguments
flattened to the parameters that Numba's calling convention asks for:

==================== ==============================================================
argument             parameters
==================== ==============================================================
array                0, 0, items, bytes of an item, address, shape ..., strides ...
Python int           one int64
complex scalar       real part, imaginary part
float scalar         one
==================== ==============================================================

In the simulator the same arguments become arrays again and Numba's dispatcher starts
the kernel on the machine of ``simulator.py``.

Under :func:`recording` every launch is kept besides. What changes from call to call is
where arrays lie: :meth:`Launch.repeatable` says which parameters follow from whose
address, and :meth:`Repeatable.start` makes the same launch for other addresses.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from math import prod
from typing import NamedTuple

import numpy as np

from ..arrays import Operand
from .compiler import SIMULATED, cuda, leaves, load, signature_of
from .tensor_map import TensorMap

MAX_GRID = 2**31 - 1  # CTAs along x

# What the simulator says it is: an H200 with its own shared memory limit.
_SIMULATED_DEVICE = {"capability": (9, 0), "multiprocessors": 132}


def ceil_div(a, b):
    """Return ``a / b`` rounded up, of integers."""
    return -(-a // b)


def run(kernel, grid, stream, *args):
    """Start a kernel; return at once.

    Parameters
    ----------
    kernel : compiler.Kernel
    grid : int
        CTAs, whole clusters of the kernel. Nothing is started for 0.
    stream : int
        Handle; 0 is the default stream.
    *args : Operand, int, NumPy scalar, or tuples of them
        The parameters of the kernel in order; tuples are passed element by element.
        All Operands are on one device, which need not be the current one.

    Raises
    ------
    NotImplementedError
        More CTAs, or more shared memory, than the device has.
    """
    if not 0 < grid <= MAX_GRID:
        if grid == 0:
            return
        raise NotImplementedError(
            f"{kernel.function.__name__}: the grid must have 0 to {MAX_GRID} CTAs, "
            f"got {grid}; split the operands"
        )
    if grid % kernel.cluster:
        raise ValueError(
            f"{kernel.function.__name__}: the grid must be whole clusters of "
            f"{kernel.cluster} CTAs, got {grid}"
        )
    made = (_simulated if SIMULATED else _ready)(kernel, grid, args)
    made.start(stream, made.parameters)
    record = _record.get()
    if record is not None:
        record.append(made)


def flatten(args):
    """Return the parameters of a kernel, and a key of their types and device."""
    parameters, key = [], []
    _flatten(args, parameters, key, [])
    return parameters, tuple(key)


def _flatten(args, parameters, key, moving):
    for arg in args:
        kind = type(arg)
        if isinstance(arg, Operand):
            moving.append(Moving(len(parameters) + 4, arg, int))
            pointer, shape, strides, dtype, device = arg[:5]
            parameters += 0, 0, prod(shape), dtype.itemsize, pointer
            parameters += shape
            parameters += strides
            key += dtype, len(shape), device
        elif kind is np.complex64 or kind is np.complex128:
            parameters += arg.real, arg.imag
            key.append(kind)
        elif kind is TensorMap:
            moving.append(Moving(len(parameters), arg.operand, arg.ownerless().at))
            parameters.append(arg.at(arg.operand.pointer))
            key.append(kind)
        elif isinstance(arg, tuple):
            _flatten(arg, parameters, key, moving)
        else:
            parameters.append(arg)
            key.append(kind)


class Table(Operand):
    """An Operand that stays where it is: a lookup table, which its layout keeps."""


# ------------------------------------------------------------------ the same again

_record: ContextVar[list | None] = ContextVar("record", default=None)


@contextlib.contextmanager
def recording():
    """Give the list to which every :class:`Launch` made meanwhile is added."""
    record = []
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


class Moving(NamedTuple):
    """A parameter that is made of the address of an array."""

    position: int  # of the parameter
    operand: Operand
    make: Callable  # of the address; ``int`` where it is the address itself


class Launch(NamedTuple):
    """A kernel that is ready to be started: compiled, loaded, arguments flattened."""

    start: Callable  # of stream and parameters
    parameters: list
    moving: list  # of Moving, one for each array

    def repeatable(self, sources):
        """Return the launch without its arrays; None if one is of unknown origin.

        Parameters
        ----------
        sources : dict
            id of an array's owner -> (which of the addresses to come, its address)
        """
        parameters, patches = self.parameters.copy(), []
        for position, operand, make in self.moving:
            if isinstance(operand, Table):
                continue
            parameters[position] = None  # holds no array, and is not used by mistake
            if operand.size == 0:
                parameters[position] = make(0)
            elif id(operand.owner) in sources:
                source, address = sources[id(operand.owner)]
                patches.append((position, source, operand.pointer - address, make))
            else:
                return None
        return Repeatable(self.start, parameters, tuple(patches))


class Repeatable(NamedTuple):
    """A launch that waits for the addresses of its arrays. Several threads may use it.

    A patch is a position among the parameters, which address is its source, how many
    bytes further the array begins, and what makes the parameter of that.
    """

    launch: Callable  # of stream and parameters
    parameters: list
    patches: tuple

    def start(self, stream, addresses):
        """Start the kernel for arrays at these addresses; return at once."""
        parameters = self.parameters.copy()
        for position, source, offset, make in self.patches:
            parameters[position] = make(addresses[source] + offset)
        self.launch(stream, parameters)


# --------------------------------------------------------------------- on a GPU

if not SIMULATED:
    from cuda.bindings import driver
    from cuda.core import LaunchConfig, ObjectCode, Stream
    from cuda.core import launch as core_launch

_preparing = threading.RLock()


class _Code(NamedTuple):
    """What one kernel needs on one device, for one signature."""

    kernel: object  # cuda.core.Kernel
    context: object  # CUcontext, the device's primary one
    context_handle: int
    device: int


def _ready(kernel, grid, args) -> Launch:
    parameters, key, moving = [], [], []
    _flatten(args, parameters, key, moving)
    key = tuple(key)
    code = kernel.ready.get(key) or _prepare(kernel, key, args)
    config = _config(grid, kernel.cluster, kernel.threads, kernel.dynamic_shared)
    return Launch(functools.partial(_launch, code, config), parameters, moving)


def _launch(code, config, stream, parameters):
    stream = _stream(code.device, stream)
    if int(driver.cuCtxGetCurrent()[1]) == code.context_handle:
        core_launch(stream, config, code.kernel, *parameters)
        return
    _check(driver.cuCtxPushCurrent(code.context))
    try:
        core_launch(stream, config, code.kernel, *parameters)
    finally:
        _check(driver.cuCtxPopCurrent())


@functools.lru_cache(maxsize=4096)
def _config(grid, cluster, threads, dynamic_shared):
    sizes = {"block": threads, "shmem_size": dynamic_shared}
    if cluster == 1:
        return LaunchConfig(grid=grid, **sizes)
    return LaunchConfig(grid=grid // cluster, cluster=cluster, **sizes)


@functools.lru_cache(maxsize=1024)
def _stream(device, handle):
    return Stream.from_handle(handle)


def _prepare(kernel, key, args):
    """Compile, load and set up a kernel for the device of its arguments."""
    operands = [getattr(arg, "operand", arg) for arg in leaves(args)]
    devices = {each.device for each in operands if isinstance(each, Operand)}
    name = kernel.function.__name__
    if len(devices) != 1 or None in devices:
        raise ValueError(
            f"{name}: all arrays must be on one device, got devices {devices}"
        )
    (device,) = devices
    with _preparing:
        if key in kernel.ready:  # another thread was faster
            return kernel.ready[key]
        entry, cubin = load(kernel, signature_of(args), capability(device))
        loaded = _load_code(entry, cubin)
        _allow_shared(kernel, loaded, device)
        context = _primary_context(device)
        code = kernel.ready[key] = _Code(loaded, context, int(context), device)
    return code


def _load_code(entry, cubin):
    try:
        return ObjectCode.from_cubin(cubin).get_kernel(entry)
    except Exception as error:
        version = _check(driver.cuDriverGetVersion())
        served = f"{version // 1000}.{version % 1000 // 10}"
        raise RuntimeError(
            f"run: the driver must accept the compiled kernel, got {error}; it serves "
            f"CUDA {served}: install the numba-cuda[cu12] or numba-cuda[cu13] of it"
        ) from error


def _allow_shared(kernel, code, device):
    """Raise the kernel's limit of dynamic shared memory to what it asks for."""
    _check_shared(kernel, device)
    if kernel.dynamic_shared:
        attributes = driver.CUfunction_attribute
        (status,) = driver.cuKernelSetAttribute(
            attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            kernel.dynamic_shared,
            code.handle,
            driver.CUdevice(device),
        )
        if status == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            fixed = code.attributes[device].shared_size_bytes
            _refuse_shared(kernel, kernel.dynamic_shared + fixed, device)
        _check((status,))


def _check_shared(kernel, device):
    if kernel.dynamic_shared > shared_limit(device):
        _refuse_shared(kernel, kernel.dynamic_shared, device)


def _refuse_shared(kernel, needed, device):
    raise NotImplementedError(
        f"{kernel.function.__name__}: shared memory of a CTA must fit the device's "
        f"{shared_limit(device)} bytes, got {needed}; use smaller tiles"
    )


def _check(result):
    """Return what a driver call returns besides its status."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {status.name}")
    return values[0] if values else None


@functools.cache
def _primary_context(device):
    return _check(driver.cuDevicePrimaryCtxRetain(_device(device)))


def _device(device):
    _check(driver.cuInit(0))
    return _check(driver.cuDeviceGet(device))


@functools.cache
def _attribute(device, name):
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return _check(driver.cuDeviceGetAttribute(attribute, _device(device)))


# ------------------------------------------------------------- about the devices


def device_count():
    """Return how many GPUs there are; the simulator is one."""
    if SIMULATED:
        return 1
    try:
        _check(driver.cuInit(0))
        return _check(driver.cuDeviceGetCount())
    except RuntimeError:  # no driver, or none that finds a GPU
        return 0


def capability(device):
    """Return the compute capability, such as ``(9, 0)``."""
    if SIMULATED:
        return _SIMULATED_DEVICE["capability"]
    return (
        _attribute(device, "COMPUTE_CAPABILITY_MAJOR"),
        _attribute(device, "COMPUTE_CAPABILITY_MINOR"),
    )


def shared_limit(device):
    """Return the most shared memory a CTA can have, in bytes."""
    if SIMULATED:
        return simulator.SHARED_LIMIT
    return _attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")


def limits(device):
    """Return what the choice of a kernel depends on: capability, shared_limit."""
    return capability(device), shared_limit(device)


def multiprocessors(device):
    """Return how many multiprocessors the device has."""
    if SIMULATED:
        return _SIMULATED_DEVICE["multiprocessors"]
    return _attribute(device, "MULTIPROCESSOR_COUNT")


# ------------------------------------------------------------------------ streams


def is_capturing(device, stream):
    """Return whether work on ``stream`` is being captured into a CUDA graph."""
    if SIMULATED or stream in (0, 1):  # the default stream cannot be captured
        return False
    with _current(device):
        status = _check(driver.cuStreamIsCapturing(driver.CUstream(stream)))
    return status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


@contextlib.contextmanager
def ordered(device, stream, others):
    """Order kernels put on ``stream`` inside after and before work on the others.

    After: what they read is there. Before: whoever owns a result or an operand on
    another stream may use it, and its memory, from now on.
    """
    for other in others:
        wait_for(device, stream, other)
    yield
    for other in others:
        wait_for(device, other, stream)


def wait_for(device, stream, other):
    """Let what is put on ``stream`` from now on wait for all that ``other`` holds.

    Nothing during a capture: a graph holds what is on its own stream, and ordering
    that with others is up to whoever replays it.
    """
    if SIMULATED or stream == other:
        return
    if is_capturing(device, stream) or is_capturing(device, other):
        return
    with _current(device):
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = _check(driver.cuEventCreate(flags))
        try:
            _check(driver.cuEventRecord(event, driver.CUstream(other)))
            _check(driver.cuStreamWaitEvent(driver.CUstream(stream), event, 0))
        finally:
            _check(driver.cuEventDestroy(event))  # takes effect once it has happened


@contextlib.contextmanager
def _current(device):
    """Make ``device`` current for a while."""
    _check(driver.cuCtxPushCurrent(_primary_context(device)))
    try:
        yield
    finally:
        _check(driver.cuCtxPopCurrent())


# --------------------------------------------------------------- in the simulator

if SIMULATED:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from . import simulator

_simulating = threading.Lock()  # Numba's simulator runs one kernel at a time


def _simulated(kernel, grid, args) -> Launch:
    """Return the launch; its parameters are the arguments, its arrays Operands."""
    _check_shared(kernel, 0)
    signature_of(args)  # refuses what the GPU would
    parameters = list(leaves(args))
    moving = [
        Moving(position, arg, functools.partial(_moved, arg._replace(owner=None)))
        for position, arg in enumerate(parameters)
        if isinstance(arg, Operand)
    ]
    moving += [
        Moving(position, arg.operand, functools.partial(_map_moved, arg.ownerless()))
        for position, arg in enumerate(parameters)
        if isinstance(arg, TensorMap)
    ]
    return Launch(functools.partial(_simulate, kernel, grid), parameters, moving)


def _moved(operand, address):
    return operand._replace(pointer=address)


def _map_moved(tensor_map, address):
    return tensor_map._replace(operand=_moved(tensor_map.operand, address))


def _emulated(arg):
    if isinstance(arg, Operand):
        return FakeCUDAArray(arg.as_words().as_array())
    if isinstance(arg, TensorMap):
        from .ptx_emulated import EmulatedTensorMap

        array = arg.operand.as_words().as_array()
        return EmulatedTensorMap(array, arg.box, arg.swizzle)
    return arg


def _simulate(kernel, grid, stream, parameters):
    arguments = [_emulated(arg) for arg in parameters]
    with _simulating, simulator.installed(kernel.cluster):
        dispatcher = cuda.jit()(kernel.function)
        dispatcher[grid, kernel.threads, 0, kernel.dynamic_shared](*arguments)
