"""Starting kernels: arguments, grids, streams, devices."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from compile_child import run_child

from numba_bs.arrays import describe
from numba_bs.cuda import launch, ptx
from numba_bs.cuda.compiler import (
    SIMULATED,
    cast,
    cuda,
    i64,
    jit,
    maker,
    numba_type,
    u32,
)
from numba_bs.cuda.launch import Table, ceil_div, flatten, run
from numba_bs.cuda.simulator import converter
from numba_bs.dtypes import STORAGE, bfloat16, is_complex, is_integer

# Kernels of this file run in the simulator or on the GPU, whichever conftest.py chose;
# with neither there is nothing to run.
needs_kernels = pytest.mark.skipif(
    not SIMULATED and launch.device_count() == 0, reason="no GPU, and no simulator"
)


def to_device(array, device=0):
    """Return an Operand over a copy of ``array`` on the device, strides as they are."""
    base = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(max(base[1] - base[0], 1), np.uint8)
    start = array.__array_interface__["data"][0] - base[0]
    view = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    view[...] = array
    if SIMULATED:
        held, pointer = memory, memory.ctypes.data
    else:
        with cuda.gpus[device]:
            held = cuda.to_device(memory)
            pointer = held.device_ctypes_pointer.value
    operand = describe("test", "array", view)
    return operand._replace(pointer=pointer + start, device=device, owner=held)


def to_host(operand):
    """Return the values of an Operand that ``to_device`` made."""
    if SIMULATED:
        return operand.as_array().copy()
    memory = operand.owner.copy_to_host()
    start = operand.pointer - operand.owner.device_ctypes_pointer.value
    words = operand.as_words()
    return np.ndarray(words.shape, words.dtype, memory, start, words.strides)


# -------------------------------------------------------------------------- kernels


@maker
def make_axpy(threads=64):
    @jit(threads)
    def axpy(x, y, alpha, n):
        i = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < n:
            y[i] += alpha * x[i]

    return axpy


@maker
def make_copy(source, target):
    """Any 5-D array to any other of its shape."""
    number = cast(target)

    @jit(64)
    def copy(x, out):
        item = i64(cuda.blockIdx.x) * 64 + cuda.threadIdx.x
        if item < x.size:
            m = item % x.shape[4]
            item //= x.shape[4]
            k = item % x.shape[3]
            item //= x.shape[3]
            j = item % x.shape[2]
            item //= x.shape[2]
            i = item % x.shape[1]
            h = item // x.shape[1]
            out[h, i, j, k, m] = number(x[h, i, j, k, m])

    return copy


@maker
def make_scalars():
    @jit(1)
    def scalars(n, a, b, c, d, out):
        out[0] = n
        out[1] = a
        out[2] = b
        out[3] = c
        out[4] = d

    return scalars


@maker
def make_reverse(items, dtype):
    """Reverse through dynamic shared memory."""
    stored = numba_type(dtype)

    @jit(64, items * dtype.itemsize)
    def reverse(x, out):
        tile = cuda.shared.array(0, stored)
        for i in range(cuda.threadIdx.x, items, 64):
            tile[i] = x[i]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, items, 64):
            out[i] = tile[items - 1 - i]

    return reverse


@maker
def make_grid():
    @jit((4, 2))
    def grid(out):
        cta = cuda.blockIdx.x
        out[cta, cuda.threadIdx.y, cuda.threadIdx.x] = cta + 10 * cuda.gridDim.x

    return grid


@maker
def make_bits():
    @jit(64)
    def bits(words, values, rounded):
        i = i64(cuda.blockIdx.x) * 64 + cuda.threadIdx.x
        if i < words.size:
            values[i] = ptx.bf16_to_f32(words[i])
            rounded[i] = ptx.f32_to_bf16(ptx.uint_as_float(rounded_input(i)))

    return bits


@ptx.device
def rounded_input(i):
    """Spread 2^16 numbers over all bits of a float32."""
    return u32(i * 40503 * 65537)


@maker
def make_wait():
    """Keep a stream busy for some milliseconds."""

    @jit(1)
    def wait(milliseconds, somewhere):
        for _ in range(milliseconds):
            cuda.nanosleep(1_000_000)

    return wait


# -------------------------------------------------------------------------- running


@needs_kernels
def test_axpy(rng, schedule):
    x, y = rng.standard_normal((2, 200), np.float32)
    on_x, on_y = to_device(x), to_device(y)
    run(make_axpy(), ceil_div(200, 64), 0, on_x, on_y, np.float32(0.5), 200)
    np.testing.assert_array_equal(to_host(on_y), y + np.float32(0.5) * x)
    np.testing.assert_array_equal(to_host(on_x), x)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(4, 2, 0, 3, 1),
    "reversed": lambda x: x[::-1, :, ::-1, :, ::-1],
    "every other": lambda x: x[:, ::2, :, ::3],
    "broadcast": lambda x: np.broadcast_to(x[:, :1, :, :1], x.shape),
}


@needs_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_arrays_of_any_strides_and_dtype(rng, layout, dtype):
    base = rng.integers(-9, 9, (2, 3, 2, 4, 2))
    x = LAYOUTS[layout]((base + 1j if is_complex(dtype) else base).astype(dtype))
    words = x.view(np.uint16) if dtype == bfloat16 else x
    on_x, out = to_device(x), to_device(np.zeros(x.shape, x.dtype))
    run(make_copy(words.dtype, words.dtype), ceil_div(x.size, 64), 0, on_x, out)
    np.testing.assert_array_equal(to_host(out).view(x.dtype), x)


@needs_kernels
def test_scalars():
    out = to_device(np.zeros(5, np.complex128))
    values = -(2**40), np.float32(0.1), np.float64(0.1), np.complex64(1 + 2j)
    values += (np.complex128(0.3 - 4j),)
    run(make_scalars(), 1, 0, *values, out)
    assert to_host(out).tolist() == [complex(value) for value in values]


@needs_kernels
def test_tuples_are_passed_element_by_element():
    out = to_device(np.zeros(5, np.complex128))
    one, two = np.float32(1), np.complex64(2)
    run(make_scalars(), 1, 0, (7, (one, np.float64(3))), two, (np.complex128(4), out))
    assert to_host(out).tolist() == [7, 1, 3, 2, 4]


@needs_kernels
def test_grid():
    out = to_device(np.zeros((3, 2, 4), np.int32))
    run(make_grid(), 3, 0, out)
    expected = np.broadcast_to(np.arange(30, 33)[:, None, None], (3, 2, 4))
    np.testing.assert_array_equal(to_host(out), expected)


@needs_kernels
def test_grid_of_0_starts_nothing():
    empty = to_device(np.zeros(0, np.float32))
    run(make_axpy(), 0, 0, empty, empty, np.float32(1), 0)
    run(make_axpy(), 1, 0, empty, empty, np.float32(1), 0)  # and arrays may be empty
    x, y = (to_device(np.ones(4, np.float32)) for _ in range(2))
    run(make_axpy(), 0, 0, x, y, np.float32(1), 4)
    np.testing.assert_array_equal(to_host(y), np.ones(4))


@pytest.mark.parametrize("grid", [2**31, 2**40, -1])
def test_grid_that_cannot_be(grid):
    with pytest.raises(NotImplementedError, match=f"axpy: the grid must .* got {grid}"):
        run(make_axpy(), grid, 0)


@needs_kernels
def test_unsupported_argument():
    with pytest.raises(TypeError, match=r"run: arguments must be Operands.*got float"):
        run(make_scalars(), 1, 0, 1.0, to_device(np.zeros(5)))


@needs_kernels
@pytest.mark.parametrize("kib", [1, 48, 56, 227])
def test_dynamic_shared_memory(kib):
    items = kib * 1024 // 8
    limit = launch.shared_limit(0)
    if kib * 1024 > limit:
        pytest.skip(f"this GPU has {limit} bytes of shared memory a CTA")
    x = np.arange(items, dtype=np.float64)
    out = to_device(np.zeros(items))
    run(make_reverse(items, np.dtype("f8")), 1, 0, to_device(x), out)
    np.testing.assert_array_equal(to_host(out), x[::-1])


@needs_kernels
def test_more_shared_memory_than_there_is():
    out = to_device(np.zeros(1, np.float32))
    with pytest.raises(
        NotImplementedError, match=r"reverse: shared memory .* got 1048"
    ):
        run(make_reverse(2**18, np.dtype("f4")), 1, 0, out, out)


@needs_kernels
def test_arrays_of_the_host_are_refused():
    x = describe("test", "x", np.zeros(4, np.float32))
    if SIMULATED:
        pytest.skip("the simulator has one memory")
    with pytest.raises(ValueError, match=r"axpy: all arrays must be on one device"):
        run(make_axpy(), 1, 0, x, x, np.float32(1), 4)


@needs_kernels
def test_launches_from_several_threads():
    rows = [to_device(np.full(100, i, np.float32)) for i in range(8)]
    sums = [to_device(np.zeros(100, np.float32)) for _ in rows]

    def work(x, y):
        for _ in range(5):
            run(make_axpy(32), 4, 0, x, y, np.float32(2), 100)

    pairs = zip(rows, sums, strict=True)
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, y in enumerate(sums):
        np.testing.assert_array_equal(to_host(y), np.full(100, 10 * i, np.float32))


@needs_kernels
def test_bfloat16_words():
    """Every word to float32, and floats of all sizes back."""
    import ml_dtypes

    words = np.arange(2**16, dtype=np.uint16)[:: 97 if SIMULATED else 1]
    values = to_device(np.zeros(len(words), np.float32))
    rounded = to_device(np.zeros(len(words), np.uint16))
    run(make_bits(), ceil_div(len(words), 64), 0, to_device(words), values, rounded)
    np.testing.assert_array_equal(
        to_host(values).view(np.uint32), words.astype(np.uint32) << 16
    )
    numbers = (np.arange(len(words)) * 40503 * 65537).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    isnan = np.isnan(numbers)
    found = to_host(rounded)
    np.testing.assert_array_equal(found[~isnan], expected[~isnan])
    assert np.isnan(found[isnan].view(ml_dtypes.bfloat16).astype(np.float32)).all()


@needs_kernels
@pytest.mark.parametrize("target", [d for d in STORAGE if is_integer(d)], ids=str)
def test_integer_casts_wrap_alike_everywhere(target):
    x = np.array([0, 1, -1, 127, 128, -129, 255, 2**31, 2**32 + 5, -(2**63)], np.int64)
    out = to_device(np.zeros(x.shape, target))
    five = (1, 1, 1, 1, len(x))
    steps = (0, 0, 0, 0)
    on_x = to_device(x)
    run(
        make_copy(x.dtype, target),
        1,
        0,
        on_x.view(five, (*steps, 8)),
        out.view(five, (*steps, target.itemsize)),
    )
    assert to_host(out).tolist() == [converter(target)(value) for value in x.tolist()]


# -------------------------------------------------------------------- the parameters


def test_a_table_is_an_operand():
    x = describe("test", "x", np.zeros((3, 4), np.float32))._replace(device=1)
    for args in ((x, 5, x), (5, (x, np.complex64(1j)))):
        again = tuple(Table(*x) if arg is x else arg for arg in args)
        assert flatten(again) == flatten(args)


def test_a_launch_can_be_made_again_for_other_arrays():
    started = []
    x = describe("test", "x", np.zeros((3, 4), np.float32))
    y, table = (x._replace(pointer=p, owner=object()) for p in (1000, 2000))
    empty = x._replace(shape=(0, 4), owner=None)
    args = (y.view((2,), (4,), 8), 5, Table(*table), x, empty)
    parameters, moving = [], []
    launch._flatten(args, parameters, [], moving)
    made = launch.Launch(lambda *call: started.append(call), parameters, moving)
    sources = {id(x.owner): (0, x.pointer), id(y.owner): (2, y.pointer)}
    again = made.repeatable(sources)
    again.start(7, [x.pointer, None, y.pointer])
    again.start(7, [64, None, 128])
    moved = [arg._replace(pointer=0) if arg is empty else arg for arg in args]
    assert started[0] == (7, flatten(moved)[0])
    moved[0], moved[3] = moved[0]._replace(pointer=136), x._replace(pointer=64)
    assert started[1] == (7, flatten(moved)[0])
    assert made.repeatable({id(x.owner): (0, x.pointer)}) is None  # whose is y?


def test_a_parameter_may_be_made_of_an_address():
    x = describe("test", "x", np.zeros(3, np.float32))
    moving = [launch.Moving(0, x, hex)]
    made = launch.Launch(lambda _, parameters: started.append(parameters), [""], moving)
    started = []
    made.repeatable({id(x.owner): (0, x.pointer - 16)}).start(0, [0x100])
    assert started == [["0x110"]]


@needs_kernels
def test_a_recorded_launch_repeats(rng, schedule):
    values = rng.standard_normal((4, 200)).astype(np.float32)
    x, y, other_x, other_y = map(to_device, values)
    with launch.recording() as record:
        run(make_axpy(), ceil_div(200, 64), 0, x, y, np.float32(0.5), 200)
    run(make_axpy(), 1, 0, x, other_x, np.float32(0), 64)  # not recorded
    (made,) = record
    again = made.repeatable({id(a.owner): (i, a.pointer) for i, a in enumerate((x, y))})
    again.start(0, [other_x.pointer, other_y.pointer])
    np.testing.assert_array_equal(
        to_host(other_y), values[3] + np.float32(0.5) * values[2]
    )


def test_key_tells_kernels_apart():
    x = describe("test", "x", np.zeros((3, 4), np.float32))._replace(device=0)
    others = [
        (x._replace(device=1),),
        (x._replace(dtype=np.dtype(np.int32)),),
        (x.view((12,), (4,)),),
        (x, 1),
        (x, np.float32(1)),
        (x, np.complex64(1)),
    ]
    keys = {flatten(args)[1] for args in [(x,), *others]}
    assert len(keys) == 7
    moved = x._replace(pointer=64, shape=(4, 3))
    assert flatten((moved,))[1] == flatten((x,))[1]


def test_ceil_div():
    assert [ceil_div(a, 4) for a in (0, 1, 4, 5, 2**40 + 1)] == [0, 1, 1, 2, 2**38 + 1]


# ------------------------------------------------------------------------ simulator


@pytest.mark.simulator
def test_read_only_arrays_cannot_be_written():
    y = np.zeros(4, np.float32)
    y.flags.writeable = False
    operand = describe("test", "y", y)
    with pytest.raises(ValueError, match="read-only"):
        run(make_axpy(), 1, 0, operand, operand, np.float32(1), 4)


@pytest.mark.simulator
def test_what_the_simulator_says_of_its_device():
    assert launch.device_count() == 1
    assert launch.capability(0) == (9, 0)
    assert launch.shared_limit(0) == 227 * 1024
    assert launch.multiprocessors(0) > 0
    assert not launch.is_capturing(0, 5)


# ------------------------------------------------------------------------------- GPU


@pytest.fixture
def stream():
    """Handle of a stream that does not wait for the default stream."""
    from cuda.bindings import driver

    with cuda.gpus[0]:
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        made = launch._check(driver.cuStreamCreate(flags.value))
        yield int(made)
        launch._check(driver.cuStreamDestroy(made))


def _is_done(stream):
    from cuda.bindings import driver

    (status,) = driver.cuStreamQuery(driver.CUstream(stream))
    return status == driver.CUresult.CUDA_SUCCESS


def _synchronise(stream):
    from cuda.bindings import driver

    launch._check(driver.cuStreamSynchronize(driver.CUstream(stream)))


@pytest.mark.gpu
def test_stream_is_honoured(stream):
    x, y = (to_device(np.ones(64, np.float32)) for _ in range(2))
    run(make_axpy(), 1, stream, x, y, np.float32(1), 64)  # compiled and loaded
    run(make_axpy(), 1, 0, x, y, np.float32(1), 64)
    cuda.synchronize()
    run(make_wait(), 1, stream, 300, x)
    run(make_axpy(), 1, stream, x, y, np.float32(1), 64)
    assert not _is_done(stream)  # and run did not wait for it
    run(make_axpy(), 1, 0, x, y, np.float32(10), 64)  # on another stream: at once
    _synchronise(0)
    assert not _is_done(stream)
    _synchronise(stream)
    np.testing.assert_array_equal(to_host(y), np.full(64, 14, np.float32))


@pytest.mark.gpu
def test_a_stream_waits_for_another(stream):
    x, y = (to_device(np.ones(64, np.float32)) for _ in range(2))
    run(make_wait(), 1, stream, 1, x)
    run(make_axpy(), 1, 0, x, y, np.float32(0), 64)
    cuda.synchronize()
    run(make_wait(), 1, stream, 300, x)
    launch.wait_for(0, 0, stream)
    run(make_axpy(), 1, 0, x, y, np.float32(1), 64)
    assert not _is_done(0)
    _synchronise(0)
    assert _is_done(stream)


@pytest.mark.gpu
def test_current_device_stays(stream):
    """Also where none is current, as in a fresh thread."""
    from cuda.bindings import driver

    x, y = (to_device(np.ones(64, np.float32)) for _ in range(2))
    cuda.synchronize()
    seen = []

    def work():
        try:
            for handle in (0, stream):
                seen.append(int(launch._check(driver.cuCtxGetCurrent())))
                run(make_axpy(), 1, handle, x, y, np.float32(1), 64)
            launch.is_capturing(0, stream)
            launch.wait_for(0, stream, 0)
            seen.append(int(launch._check(driver.cuCtxGetCurrent())))
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 0, 0]
    _synchronise(stream)
    _synchronise(0)
    np.testing.assert_array_equal(to_host(y), np.full(64, 3, np.float32))


@pytest.mark.gpu
def test_arrays_on_the_second_device():
    if launch.device_count() < 2:
        pytest.skip("there is one GPU")
    x, y = (to_device(np.ones(64, np.float32), device=1) for _ in range(2))
    before = cuda.get_current_device().id
    run(make_axpy(), 1, 0, x, y, np.float32(1), 64)
    assert cuda.get_current_device().id == before
    np.testing.assert_array_equal(to_host(y), np.full(64, 2, np.float32))
    first = to_device(np.ones(64, np.float32))
    with pytest.raises(ValueError, match=r"all arrays must be on one device"):
        run(make_axpy(), 1, 0, first, y, np.float32(1), 64)


@pytest.mark.gpu
def test_device_is_described():
    from cuda.core import Device

    properties = Device(0).properties
    assert launch.capability(0) == tuple(Device(0).compute_capability)
    assert launch.multiprocessors(0) == properties.multiprocessor_count
    assert launch.shared_limit(0) == properties.max_shared_memory_per_block_optin


@pytest.mark.gpu
def test_graph_capture_is_seen(stream):
    from cuda.bindings import driver

    assert not launch.is_capturing(0, stream)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    launch._check(driver.cuStreamBeginCapture(driver.CUstream(stream), mode))
    assert launch.is_capturing(0, stream)
    graph = launch._check(driver.cuStreamEndCapture(driver.CUstream(stream)))
    launch._check(driver.cuGraphDestroy(graph))


@pytest.mark.gpu
def test_current_stream_of_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    from numba_bs.arrays import stream_of

    x, y = (torch.ones(64, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    operands = [describe("test", "array", each) for each in (x, y)]
    with torch.cuda.stream(side):
        handle = stream_of(operands[0])
        assert handle == side.cuda_stream
        run(make_wait(), 1, handle, 1, operands[0])
        run(make_axpy(), 1, handle, *operands, np.float32(0), 64)
        side.synchronize()
        run(make_wait(), 1, handle, 300, operands[0])
        run(make_axpy(), 1, handle, *operands, np.float32(1), 64)
    assert not side.query()
    side.synchronize()
    assert (y == 2).all().item()


# ------------------------------------------------------------------ without numba


def test_importing_the_package_loads_no_numba(tmp_path):
    (tmp_path / "child.py").write_text(
        "import json, sys, numba_bs\n"
        "print(json.dumps({'loaded': [m for m in ('numba', 'cuda', 'torch', 'cupy') "
        "if m in sys.modules]}))\n"
    )
    import numba_bs

    root = str(Path(numba_bs.__path__[0]).parent)
    path = os.pathsep.join([str(tmp_path), root, os.getenv("PYTHONPATH", "")])
    assert run_child("child", PYTHONPATH=path.rstrip(os.pathsep)) == {"loaded": []}
