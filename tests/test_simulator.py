"""The simulator's machine: order of threads, memory, deadlocks, and what it refuses."""

import threading

import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from numba_bs.arrays import describe
from numba_bs.cuda import simulator
from numba_bs.cuda.compiler import (
    cast,
    complex64,
    cuda,
    device,
    f32,
    float32,
    i64,
    int32,
    jit,
    u32,
)
from numba_bs.cuda.launch import run
from numba_bs.cuda.simulator import DeadlockError, SimulatedError

pytestmark = pytest.mark.simulator


def on_device(array):
    return describe("test", "array", array)._replace(device=0)


def start(function, threads, *arrays, grid=1, shared=0):
    run(jit(threads, shared)(function), grid, 0, *map(on_device, arrays))


# -------------------------------------------------------------------------- threads


def test_threads_take_turns_in_the_order_of_the_schedule():
    def kernel(order, count):
        position = count[0]
        order[position] = cuda.threadIdx.x
        count[0] = position + 1

    orders = {}
    for name in ("first", "last", 1, 2):
        order, count = np.zeros(8, np.int32), np.zeros(1, np.int32)
        with simulator.schedule(order=name):
            start(kernel, 8, order, count)
        orders[name] = order.tolist()
    assert orders["first"] == list(range(8))
    assert orders["last"] == list(range(7, -1, -1))
    assert sorted(orders[1]) == list(range(8))
    assert orders[1] != orders[2]


def test_barrier(schedule):
    """Each thread reads what its neighbour wrote before the barrier."""

    def kernel(out):
        tid = cuda.threadIdx.x
        shared = cuda.shared.array(64, int32)
        for step in range(4):
            shared[tid] = 10 * step + tid
            cuda.syncthreads()
            out[cuda.blockIdx.x, step, tid] = shared[(tid + 1) % 64]
            cuda.syncthreads()

    out = np.zeros((3, 4, 64), np.int32)
    start(kernel, 64, out, grid=3)
    expected = 10 * np.arange(4)[:, None] + (np.arange(64) + 1) % 64
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


def test_missing_barrier_shows_in_one_of_two_schedules():
    def kernel(out):
        tid = cuda.threadIdx.x
        shared = cuda.shared.array(32, float32)
        shared[tid] = tid
        out[tid] = shared[31 - tid]

    wrong = 0
    for order in ("first", "last"):
        out = np.zeros(32, np.float32)
        with simulator.schedule(order=order):
            start(kernel, 32, out)
        wrong += np.isnan(out).any()
    assert wrong


def test_barrier_does_not_wait_for_threads_that_ended(schedule):
    def kernel(out):
        tid = cuda.threadIdx.x
        if tid < 32:
            cuda.syncthreads()
            out[tid] = 1

    out = np.zeros(32, np.int32)
    start(kernel, 48, out)
    assert (out == 1).all()


def test_barrier_in_divergent_code_is_refused(schedule):
    def kernel(out):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    with pytest.raises(SimulatedError, match=r"must meet at one call, got\n  threads"):
        start(kernel, 8, np.zeros(1))


def test_deadlock_is_found_at_once_and_says_who_waits_where(schedule):
    def kernel(out):
        if cuda.threadIdx.x < 32:
            cuda.syncwarp(0xFFFFFFFF)
        else:
            cuda.syncwarp(0x3)

    with pytest.raises(DeadlockError) as found:
        start(kernel, 33, np.zeros(1))
    assert "threads 32: test_simulator.py:" in str(found.value)
    assert "wait at an instruction of warp 1, mask 0x3: 1 of 2" in str(found.value)


def test_failure_in_one_thread_ends_the_launch_and_is_named(schedule):
    def kernel(out):
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            out[4] = 1
        cuda.syncthreads()

    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(IndexError, match="out of bounds") as found:
            start(kernel, 16, np.zeros(4), grid=2)
        assert found.value.__notes__ == ["in thread 5 of CTA (0, 0, 0)"]
    assert threading.active_count() <= before + 17  # workers are kept, none is lost

    out = np.zeros(5)
    start(kernel, 16, out)  # and the next launch is well
    assert out[4] == 1


def test_thread_that_never_waits_is_stopped(monkeypatch):
    def kernel(out):
        while out[0] == 0:
            pass

    monkeypatch.setattr(simulator, "PATIENCE", 0.1)
    with pytest.raises(DeadlockError, match="has run for 0 s without waiting, at test"):
        start(kernel, 2, np.zeros(1))


def test_three_axes_of_threads(schedule):
    def kernel(out):
        x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
        cuda.syncthreads()
        out[z, y, x] = x + 10 * y + 100 * z + 1000 * cuda.blockDim.y

    out = np.zeros((2, 3, 4), np.int32)
    start(kernel, (4, 3, 2), out)
    z, y, x = np.indices(out.shape)
    np.testing.assert_array_equal(out, x + 10 * y + 100 * z + 3000)


def test_kernels_of_others_run_on_numba_s_own_scheduler():
    played_by = []

    @cuda.jit
    def theirs(out):
        played_by.append(type(threading.current_thread()).__name__)

    def ours(out):
        played_by.append(type(threading.current_thread()).__name__)

    theirs[1, 1](np.zeros(1))
    start(ours, 1, np.zeros(1))
    theirs[1, 1](np.zeros(1))
    assert played_by == ["BlockThread", "_Worker", "BlockThread"]


# --------------------------------------------------------------------------- memory


def test_memory_starts_as_nan(schedule):
    def kernel(out, words):
        shared = cuda.shared.array((2, 2), float32)
        halves = cuda.shared.array(2, "float16")
        local = cuda.local.array(3, complex64)
        dynamic = cuda.shared.array(0, float32)
        integers = cuda.local.array(1, int32)
        out[0] = shared[1, 1]
        out[1] = halves[1]
        out[2] = local[2].real
        out[3] = dynamic[15]
        words[0] = integers[0]

    out, words = np.zeros(4), np.zeros(1, np.int64)
    start(kernel, 1, out, words, shared=64)
    assert np.isnan(out).all()
    assert words[0] == -1


def test_shared_memory_is_new_in_every_cta():
    def kernel(out):
        shared = cuda.shared.array(1, float32)
        out[cuda.blockIdx.x] = shared[0]
        shared[0] = 1

    out = np.zeros(2)
    start(kernel, 1, out, grid=2)
    assert np.isnan(out).all()


@device
def _scratch():
    return cuda.shared.array(1, int32)


def test_each_declaration_is_one_array():
    def kernel(out):
        # fmt: off
        a = cuda.shared.array(1, int32); b = cuda.shared.array(1, int32)  # noqa: E702
        # fmt: on
        c = _scratch()
        d = _scratch()
        for i in range(2):  # one declaration, however often it is passed
            e = cuda.shared.array(2, int32)
            e[i] = i
        a[0], b[0], c[0], d[0] = 1, 2, 3, 4
        out[0], out[1], out[2], out[3] = a[0], b[0], c[0], d[0]
        out[4], out[5] = e[0], e[1]

    out = np.zeros(6, np.int32)
    start(kernel, 1, out)
    assert out.tolist() == [1, 2, 3, 4, 0, 1]


def test_addresses_of_shared_memory():
    def kernel(out):
        shared = simulator.this_cta().shared
        a = cuda.shared.array((2, 3), float32)
        b = cuda.shared.array(1, float32, 128)
        out[0] = shared.address(a[1]) - shared.address(a)
        out[1] = shared.address(b) % 128
        out[2] = shared.address(a) % 16
        shared.check(shared.address(a), shared.address(b) + 3, "test")

    out = np.ones(3, np.int64)
    start(kernel, 1, out)
    assert out.tolist() == [12, 0, 0]


def test_addresses_elsewhere_are_refused():
    def outside(out):
        simulator.this_cta().shared.address(out)

    def past_the_end(out):
        shared = simulator.this_cta().shared
        a = cuda.shared.array(4, float32)
        shared.check(shared.address(a), shared.address(a) + 16, "store")

    with pytest.raises(SimulatedError, match="must be taken of an array in shared"):
        start(outside, 1, np.zeros(1))
    with pytest.raises(SimulatedError, match="store: shared addresses must be within"):
        start(past_the_end, 1, np.zeros(1))


def test_places_and_chunks_of_shared_memory():
    def kernel(out):
        shared = simulator.this_cta().shared
        a = cuda.shared.array(8, int32)
        a[1], a[4] = 7, 9
        base = shared.address(a)
        out[0] = shared.bytes[shared.place(base + 4, 4, "test")].view(np.int32)[0]
        chunks = shared.chunks(base + np.array([16, 0]), "test")
        words = shared.bytes.reshape(-1, 16)[chunks].view(np.int32)
        out[1], out[2] = words[0, 0], words[1, 1]

    out = np.zeros(3, np.int64)
    start(kernel, 1, out)
    assert out.tolist() == [7, 9, 7]


@pytest.mark.parametrize(
    ("offset", "size", "match"),
    [
        (2, 4, "test: the shared address must be a multiple of 4, got"),
        (32, 4, "test: shared addresses must be within"),
        (-16, 16, "test: shared addresses must be within"),
    ],
)
def test_places_outside_of_shared_memory_are_refused(offset, size, match):
    def kernel(out):
        shared = simulator.this_cta().shared
        a = cuda.shared.array(8, int32)
        shared.place(shared.address(a) + offset, size, "test")

    with pytest.raises(SimulatedError, match=match):
        start(kernel, 1, np.zeros(1))


def test_async_proxy_sees_stores_after_a_fence():
    def kernel(out):
        shared = simulator.this_cta().shared
        a = cuda.shared.array(4, int32)
        place = shared.place(shared.address(a), 4, "test")
        a[0] = 5
        out[0] = shared.seen[place].view(np.int32)[0]
        shared.fence_async()
        out[1] = shared.seen[place].view(np.int32)[0]

    out = np.zeros(2, np.int64)
    start(kernel, 1, out)
    assert out.tolist() == [-1, 5]


def test_global_memory_by_address():
    def kernel(x, out):
        address = simulator.global_address(x[1])
        out[0] = simulator.global_bytes(address + 4, 4, "test").view(np.int32)[0]
        with pytest.raises(SimulatedError, match="test: global addresses must be in"):
            simulator.global_bytes(address + 12, 4, "test")
        with pytest.raises(SimulatedError, match="got 4 bytes at"):
            simulator.global_bytes(address - 4, 4, "test")

    x, out = np.arange(9, dtype=np.int32).reshape(3, 3), np.zeros(1)
    start(kernel, 1, x, out)
    assert out[0] == 4


def test_more_than_48_kib_of_fixed_shape_is_refused():
    def kernel(out):
        cuda.shared.array(48 * 256, float32)
        out[0] = 1
        cuda.shared.array(1, float32)

    out = np.zeros(1)
    with pytest.raises(SimulatedError, match="at most 49152 bytes a CTA, got 49156"):
        start(kernel, 1, out)
    assert out[0] == 1


@pytest.mark.parametrize("index", [-1, (0, -1), (-2, 0), (slice(None), -1)], ids=str)
def test_negative_index_is_refused(index):
    def load(x):
        x[index]

    def store(x):
        x[index] = 0

    for kernel in (load, store):
        with pytest.raises(SimulatedError, match="must not be negative"):
            start(kernel, 1, np.zeros((2, 3)))


@pytest.mark.parametrize("index", [2, (0, 3)], ids=str)
def test_index_past_the_end_is_refused(index):
    def load(x):
        x[index]

    def store(x):
        x[index] = 0

    for kernel in (load, store):
        with pytest.raises(IndexError, match="out of bounds"):
            start(kernel, 1, np.zeros((2, 3)))


def test_parts_of_an_array_are_refused_the_same_way():
    def kernel(x):
        row = x[1]
        row[-1] = 1

    with pytest.raises(SimulatedError, match=r"got -1 into an array of shape \(3,\)"):
        start(kernel, 1, np.zeros((2, 3)))


# ------------------------------------------------------------------------- integers

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_casts_wrap_as_on_a_gpu(dtype):
    values = [0, 1, -1, 127, 128, 255, 256, -129, 2**31, 2**32 + 5, 2**63, -(2**63) - 1]
    to = cast(np.dtype(dtype))
    for value in values:
        wrapped = np.array(value % 2**64, np.uint64).astype(dtype)
        assert to(value) == int(wrapped)
        assert type(to(value)) is int


@pytest.mark.parametrize("dtype", INTEGERS)
def test_stores_wrap_as_on_a_gpu(dtype):
    def kernel(out):
        out[0] = 2**63 + 2**31 + 300
        out[1] = -1
        out[2] = out[1] * out[1] + 7  # read as Python ints: no warning, no overflow
        out[3] = out[2] + out[2]

    out = np.zeros(4, dtype)
    start(kernel, 1, out)
    minus = int(np.array(-1).astype(dtype))
    seven = minus * minus + 7
    expected = [2**63 + 2**31 + 300, -1, seven, 2 * (seven % 2**64)]
    wrapped = [np.array(v % 2**64, np.uint64).astype(dtype) for v in expected]
    np.testing.assert_array_equal(out, wrapped)


def test_floats_keep_their_width():
    def kernel(x, out):
        out[0] = x[0] * x[0] + f32(1)
        out[1] = f32(i64(2**24 + 1))

    x, out = np.full(1, 1e-4, np.float32), np.zeros(2)
    start(kernel, 1, x, out)
    assert out[0] == np.float32(1) + x[0] * x[0]
    assert out[1] == 2**24


# --------------------------------------------------------------------------- warps


def test_warp_functions(schedule):
    def kernel(x, out):
        tid = cuda.threadIdx.x
        lane = tid % 32
        value = x[tid]
        step = 16
        while step > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
            step //= 2
        out[0, tid] = value
        out[1, tid] = cuda.shfl_sync(0xFFFFFFFF, x[tid], 3)
        out[2, tid] = cuda.shfl_up_sync(0xFFFFFFFF, x[tid], 1)
        out[3, tid] = cuda.shfl_down_sync(0xFFFFFFFF, x[tid], 2)
        out[4, tid] = cuda.ballot_sync(0xFFFFFFFF, lane % 2)
        out[5, tid] = cuda.all_sync(0xFFFFFFFF, lane >= 0)
        out[6, tid] = cuda.any_sync(0xFFFFFFFF, lane > 31)
        cuda.syncwarp()

    x = np.arange(64, dtype=np.int64) ** 2
    out = np.zeros((7, 64), np.int64)
    start(kernel, 64, x, out)
    warps = x.reshape(2, 32)
    lane = np.arange(32)
    expected = [
        np.repeat(warps.sum(1), 32),
        np.repeat(warps[:, 3], 32),
        warps[:, np.maximum(lane - 1, 0)].ravel(),
        warps[:, np.where(lane < 30, lane + 2, lane)].ravel(),
        np.full(64, 0xAAAAAAAA),
        np.ones(64),
        np.zeros(64),
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.int64))


def test_votes_of_a_cta(schedule):
    def kernel(out):
        tid = cuda.threadIdx.x
        out[0, tid] = cuda.syncthreads_count(tid % 3 == 0)
        out[1, tid] = cuda.syncthreads_and(tid < 40)
        out[2, tid] = cuda.syncthreads_or(tid == 39)

    out = np.zeros((3, 40), np.int32)
    start(kernel, 40, out)
    np.testing.assert_array_equal(out, np.repeat([[14], [1], [1]], 40, axis=1))


def test_lane_that_its_mask_leaves_out_is_refused():
    def kernel(out):
        cuda.syncwarp(0x1)

    with pytest.raises(SimulatedError, match=r"got 0x1 in lane 1"):
        start(kernel, 2, np.zeros(1))


# ------------------------------------------------------------------ background work


class Copy:
    """Emulates a copy ``out[index] = value``, and where a thread waits for it."""

    def __init__(self, out, index, value, engine="copy"):
        self.waiters, self.done = [], False
        self.machine = simulator.this_machine()

        def copy():
            out[index] = value
            self.done = True
            self.machine.wake(self)

        self.machine.later(engine, copy)

    def wait(self):
        self.machine.wait(self, lambda: self.done)

    def __str__(self):
        return "the copy"


def test_background_work_is_late_or_early():
    def kernel(out):
        copy = Copy(out, 0, 1)
        out[1] = out[0]  # a kernel must not: it did not wait
        copy.wait()
        out[2] = out[0]

    for late in (True, False):
        out = np.zeros(3)
        with simulator.schedule(late=late):
            start(kernel, 1, out)
        assert out.tolist() == [1, 0 if late else 1, 1]


def test_failing_background_work_is_blamed_on_its_issuer(schedule):
    def kernel(out):
        if cuda.threadIdx.x == 2:
            Copy(out, 1, 1).wait()
        cuda.syncthreads()

    with pytest.raises(IndexError) as found:
        start(kernel, 4, np.zeros(1))
    assert found.value.__notes__ == ["in thread 2 of CTA (0, 0, 0)"]


def test_work_under_way_at_the_end_is_refused():
    def kernel(out):
        Copy(out, 0, 1)

    with pytest.raises(SimulatedError, match="ended with 1 pieces of copy work to do"):
        start(kernel, 1, np.zeros(1))


def test_what_needs_nothing_of_the_cta_is_done_after_its_end():
    def kernel(out):
        Copy(out, cuda.threadIdx.x, out[0] + 1, "drain")

    out = np.zeros(2)
    start(kernel, 2, out)
    assert out.tolist() == [1, 1]  # late: both threads saw 0


@pytest.mark.parametrize("seed", range(3))
def test_drawn_schedules_give_the_same_result(seed):
    def kernel(out):
        tid = cuda.threadIdx.x
        shared = cuda.shared.array(32, int32)
        total = 0
        for step in range(5):
            shared[tid] = total + step
            cuda.syncthreads()
            total += shared[(tid + 1) % 32]
            cuda.syncthreads()
        out[tid] = u32(total)

    results = []
    for order in ("first", seed):
        out = np.zeros(32, np.int32)
        with simulator.schedule(order=order):
            start(kernel, 32, out)
        results.append(out)
    np.testing.assert_array_equal(*results)
