"""The machine under NUMBA_ENABLE_CUDASIM=1: threads take turns, memory has addresses.

Numba's own simulator starts one Python thread for each CUDA thread and polls them
all. Here exactly one of them runs at a time and hands over only where it has to
wait. So

- a run is deterministic, and a deadlock is certain the moment it exists: no thread
  can run and no background work is under way;
- work that hardware does in the background (copies, ``wgmma``) can be done as late
  as the program allows, or at once. Both are legal, as is any order of the threads,
  so a right kernel gives the same result under every :func:`schedule`;
- shared and local memory start as NaN: what is read too early shows. An index below
  zero is an error here (Numba and NumPy take it from the end), one past the end too.

``launch.run`` puts :class:`Machine` in the place of Numba's ``BlockManager`` while a
kernel of this package runs; other simulated kernels of the process are left alone. It
runs one CTA, or the CTAs of one cluster, at a time.
"""

import collections
import contextlib
import ctypes
import functools
import os
import random
import sys
import threading

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.simulator import kernel as numba_simulator
from numba.cuda.simulator.kernelapi import Dim3, swapped_cuda_module

PATIENCE = 20.0  # seconds that one thread may run without handing over
# A multiple of 16 and of nothing larger: a kernel that needs more aligns its tiles.
SHARED_BASE = 1360
RANK_SHIFT = 24
SHARED_LIMIT = 227 * 1024  # bytes of one CTA, compute capability 9.0
STATIC_LIMIT = 48 * 1024  # bytes that may be declared with a fixed shape
# Who does background work, in the order of doing it. What "drain" does needs nothing
# of the CTA any more, so the CTA may end before.
ENGINES = ("copy", "wgmma", "drain")

_schedule = {"order": "first", "late": True}


@contextlib.contextmanager
def schedule(order="first", late=True):
    """Choose who runs next, and when background work is done.

    Parameters
    ----------
    order : "first" | "last" | int
        The thread that became ready first or last, or the seed of a draw.
    late : bool
        Background work is done when no thread can run, or as soon as it is issued.
    """
    before = dict(_schedule)
    _schedule.update(order=order, late=late)
    try:
        yield
    finally:
        _schedule.update(before)


@contextlib.contextmanager
def installed(cluster=1):
    """Let this machine run the kernels that Numba's dispatcher starts.

    ``cluster``: CTAs that run together, neighbours along x.
    """
    before = numba_simulator.BlockManager
    numba_simulator.BlockManager = functools.partial(Machine, cluster)
    try:
        yield
    finally:
        numba_simulator.BlockManager = before


class SimulatedError(RuntimeError):
    """The kernel did what the hardware leaves undefined or refuses."""


class DeadlockError(SimulatedError):
    """No thread can ever run again."""


class _Stopped(BaseException):
    """Unwinds the other threads of a CTA after one failed."""


def this_thread():
    """Return the CUDA thread that runs."""
    return threading.current_thread().thread


def this_cta():
    """Return the CTA of the thread that runs."""
    return threading.current_thread().thread.cta


def this_machine():
    """Return the machine that runs it."""
    return threading.current_thread().thread.cta.machine


_device_functions = {}  # one of each module that has any


def device_function(function):
    """Leave a device function the Python function that it is.

    While a kernel runs, the ``cuda`` of its module is the kernel's. (Numba's own
    wrapper swaps it at every call, a quarter of the run time.)
    """
    _device_functions[id(function.__globals__)] = function
    return function


# -------------------------------------------------------------------------- values


def converter(dtype):
    """Return what a cast to ``dtype`` does in a kernel.

    Numba computes integers in 64 bits, NumPy in their own width and with warnings.
    So an integer is a Python int here, cut to the width only by a cast or a store.
    """
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        return dtype.type
    bits = 8 * dtype.itemsize
    low = 0 if dtype.kind == "u" else -(1 << bits - 1)
    mask = (1 << bits) - 1
    return lambda x: (int(x) - low & mask) + low


_INTEGERS = frozenset(np.dtype(code).type for code in np.typecodes["AllInteger"])
_get, _set = np.ndarray.__getitem__, np.ndarray.__setitem__


class KernelArray(np.ndarray):
    """An array inside a kernel.

    Integers read as Python ints and wrap when stored; a negative index is an error.
    """

    def __getitem__(self, index):
        try:  # the usual case first: this is the hottest line of the simulator
            if (min(index) if type(index) is tuple else index) < 0:
                _refuse_index(self, index)
        except TypeError:  # a slice, an ellipsis
            _check_parts(self, index)
        value = _get(self, index)
        return int(value) if type(value) in _INTEGERS else value

    def __setitem__(self, index, value):
        try:
            if (min(index) if type(index) is tuple else index) < 0:
                _refuse_index(self, index)
        except TypeError:
            _check_parts(self, index)
        try:
            _set(self, index, value)
        except OverflowError:  # a Python int that the dtype cannot hold
            _set(self, index, converter(self.dtype)(value))


def _refuse_index(array, index):
    raise SimulatedError(
        f"an index must not be negative, got {index} into an array of "
        f"shape {array.shape}"
    )


def _check_parts(array, index):
    for part in index if type(index) is tuple else (index,):
        if isinstance(part, (int, np.integer)) and part < 0:
            _refuse_index(array, index)


def _kernel_argument(value):
    array = getattr(value, "_item", value)  # Numba wraps a device array twice
    array = getattr(array, "_ary", array)
    if isinstance(array, np.ndarray):
        return array.view(KernelArray)
    return int(value) if isinstance(value, np.integer) else value


# --------------------------------------------------------- threads that take turns


class Thread:
    """One CUDA thread. ``state`` is what emulated instructions remember of it."""

    __slots__ = (
        "blockIdx",
        "cta",
        "done",
        "state",
        "threadIdx",
        "thread_id",
        "waits_for",
        "worker",
    )

    def __init__(self, cta, thread_id, thread_idx, block_idx):
        self.cta, self.thread_id = cta, thread_id
        self.threadIdx, self.blockIdx = Dim3(*thread_idx), Dim3(*block_idx)
        self.worker = None  # the Python thread that plays it, once it has begun
        self.waits_for = None
        self.done = False
        self.state = {}

    def resume(self):
        """Let this thread run, on an idle worker if it has not begun."""
        if self.worker is None:
            worker = _idle.pop() if _idle else _Worker()
            worker.take(self)
            worker.turn.release()
        else:
            self.worker.turn.release()

    def play(self):
        """Run the kernel; return the next thread for this worker, or None."""
        machine = self.cta.machine
        try:
            machine.body()
        except _Stopped:
            pass
        except BaseException as error:
            machine.fail(error, self)
        return machine.leave(self)


class _Worker(threading.Thread):
    """A Python thread that plays CUDA threads, one after the other.

    It has the attributes that Numba's fake ``cuda`` module asks the current Python
    thread for. Workers are kept from launch to launch: starting one is slow.
    """

    def __init__(self):
        super().__init__(daemon=True, name="numba_bs simulator")
        self.turn = threading.Lock()
        self.turn.acquire()
        self.lost = False  # it ran away once; nobody uses it again
        self.start()

    def take(self, thread):
        thread.worker, self.thread = self, thread
        self.thread_id = thread.thread_id
        self.threadIdx, self.blockIdx = thread.threadIdx, thread.blockIdx

    def run(self):
        with np.errstate(all="ignore"):  # a GPU does not warn
            while not self.lost:
                self.turn.acquire()
                # A thread that ends before it waited needs no second worker.
                while (following := self.thread.play()) is not None:
                    self.take(following)
                self.thread = None
                if not self.lost:
                    _idle.append(self)

    def syncthreads(self):
        self.thread.cta.syncthreads()

    def syncthreads_count(self, value):
        cta = self.thread.cta
        cta.votes[self.thread_id] = bool(value)
        cta.syncthreads()
        count = sum(cta.votes.values())
        cta.syncthreads()
        return count

    def syncthreads_and(self, value):
        return int(self.syncthreads_count(not value) == 0)

    def syncthreads_or(self, value):
        return int(self.syncthreads_count(value) > 0)


_idle = []  # workers without a thread
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork copies no threads


class Rendezvous:
    """Where ``expected()`` threads meet.

    What ``compute`` makes of the operands, by thread, is everyone's result.
    """

    def __init__(self, name, expected):
        self.name, self.expected = name, expected
        self.waiters, self.operands, self.results, self.meeting = [], {}, None, 0

    def arrive_and_wait(self, operands=None, compute=None):
        """Wait for the others; return this thread's result."""
        thread, meeting = this_thread(), self.meeting
        self.operands[thread.thread_id] = operands
        machine = thread.cta.machine
        self.release_if_complete(machine, compute)
        machine.wait(self, lambda: self.meeting != meeting)
        return self.results and self.results[thread.thread_id]

    def release_if_complete(self, machine, compute=None):
        """End the meeting if all are here."""
        if self.operands and len(self.operands) >= self.expected():
            self.results = compute and compute(self.operands)
            self.operands = {}
            self.meeting += 1
            machine.wake(self)

    def __str__(self):
        return (
            f"{self.name}: {len(self.operands)} of {self.expected()} threads are here"
        )


class SplitBarrier:
    """Where all threads of a cluster that have not ended arrive, and wait later."""

    def __init__(self, machine):
        self.machine, self.arrived, self.phase = machine, set(), 0
        self.waiters = []

    def arrive(self):
        """Note that this thread is here; it goes on."""
        thread = this_thread()
        if "cluster phase" in thread.state:
            raise SimulatedError(f"{self}: a wait must follow an arrival, got another")
        thread.state["cluster phase"] = self.phase
        self.arrived.add(thread)
        self.release_if_complete()

    def wait(self):
        """Wait for the others of the phase that this thread arrived in."""
        phase = this_thread().state.pop("cluster phase", None)
        if phase is None:
            raise SimulatedError(f"{self}: an arrival must precede a wait, got none")
        self.machine.wait(self, lambda: self.phase > phase)

    def release_if_complete(self):
        """End the phase if all are here."""
        if self.arrived and len(self.arrived) >= self.machine.live:
            self.arrived.clear()
            self.phase += 1
            self.machine.wake(self)

    def __str__(self):
        return (
            f"barrier of the cluster: {len(self.arrived)} of {self.machine.live} "
            "threads are here"
        )


class Cta:
    """One CTA: its threads, its memory, and what is to be remembered of it."""

    def __init__(self, machine, grid_point, rank, dynamic_shared):
        self.machine, self.grid_point, self.rank = machine, grid_point, rank
        self.shared = Shared(dynamic_shared, self)
        self.spans = {}  # of each global address that was taken, its array
        self.state = {}  # what emulated instructions remember
        self.votes = {}
        X, Y, Z = machine.block_dim
        self.threads = [
            Thread(self, x + X * (y + Y * z), (x, y, z), grid_point)
            for z in range(Z)
            for y in range(Y)
            for x in range(X)
        ]
        self.live = len(self.threads)
        self.barrier = Rendezvous("syncthreads", lambda: self.live)

    def syncthreads(self):
        """Meet all threads of the CTA that have not ended."""
        self.barrier.arrive_and_wait(_place(sys._getframe(1)), self.check_places)

    def check_places(self, places):
        """Refuse a barrier that the threads reach at different calls."""
        if len(set(places.values())) > 1:
            lines = _grouped({i: _line(place) for i, place in places.items()})
            raise SimulatedError(
                f"syncthreads: all threads of a CTA must meet at one call, got\n{lines}"
            )

    def waiting(self):
        """Who waits for what, threads that say the same together."""
        return _grouped(
            {
                thread.thread_id: f"{thread_line(thread)} wait at {thread.waits_for}"
                for thread in self.threads
                if thread.waits_for is not None and not thread.done
            }
        )


class Machine:
    """Runs the CTAs of a cluster; has the interface of Numba's ``BlockManager``.

    Exactly one of the launching thread and the workers runs at any time. The
    launching thread waits for ``over``: all threads ended, or one failed.
    """

    def __init__(self, cluster, function, grid_dim, block_dim, debug):
        self.cluster, self.function = cluster, function
        self.grid_dim, self.block_dim = grid_dim, block_dim

    def run(self, grid_point, *args):
        """Run the cluster that begins at ``grid_point``; raise what its threads did."""
        x, *yz = grid_point
        if x % self.cluster:
            return  # ran with the first of its cluster
        self.args = [_kernel_argument(arg) for arg in args]
        module = numba_simulator._get_kernel_context()
        dynamic = module.shared._dynshared_size
        module._shared, module._local = _SharedOfCta(dynamic), Local()
        module.__dict__.update(WARP_FUNCTIONS)
        self.ctas = [
            Cta(self, (x + rank, *yz), rank, dynamic) for rank in range(self.cluster)
        ]
        self.threads = [thread for cta in self.ctas for thread in cta.threads]
        self.barrier = SplitBarrier(self)
        self.background = {engine: collections.deque() for engine in ENGINES}
        order = _schedule["order"]
        self.draw = random.Random(order) if isinstance(order, int) else None
        self.late = _schedule["late"]
        self.next = -1 if order == "last" else 0
        self.ready = list(self.threads)
        self.live, self.turns, self.error = len(self.threads), 0, None
        self.over = threading.Lock()
        self.over.acquire()
        with contextlib.ExitStack() as stack:
            for function in _device_functions.values():
                stack.enter_context(swapped_cuda_module(function, module))
            self.pick().resume()
            try:
                self.watch()
            except BaseException as error:  # Ctrl-C: let the running thread see it
                self.error = self.error or error
                self.over.acquire(timeout=PATIENCE)
            if self.error:
                self.stop()
                raise self.error

    def body(self):
        """Run the kernel as the current thread."""
        self.function(*self.args)

    def pick(self):
        """Choose the thread that runs next; None after a failure.

        When no thread can run, background work is finished until one can.
        """
        if self.draw and self.draw.random() < 0.5:
            self.finish_one()
        while not self.ready and not self.error and self.finish_one():
            pass
        if not self.ready and not self.error:
            self.fail(DeadlockError(self.report()), None)
        if self.error:
            return None
        self.turns += 1
        index = self.draw.randrange(len(self.ready)) if self.draw else self.next
        self.running = self.ready.pop(index)
        return self.running

    def wait(self, where, is_over):
        """Block this thread at ``where`` until ``is_over()``.

        ``where`` has ``waiters``, and its text says what is missing.
        """
        thread = this_thread()
        while not is_over():
            where.waiters.append(thread)
            thread.waits_for = where
            following = self.pick()
            if following is not thread and following is not None:
                following.resume()
                thread.worker.turn.acquire()
            self.stop_if_failed()
        thread.waits_for = None

    def stop_if_failed(self):
        """Unwind the current thread if another one failed."""
        if self.error:
            raise _Stopped

    def wake(self, where):
        """Make ready who waits at ``where``."""
        self.ready += where.waiters
        where.waiters.clear()

    def is_late(self):
        """Whether what is issued now is done as late as possible, or at once."""
        return self.draw.random() < 0.5 if self.draw else self.late

    def later(self, engine, action):
        """Leave ``action`` to one of ENGINES, each of which keeps its order.

        Check its operands before: an error in it is blamed on the issuing thread.
        """
        self.background[engine].append((action, this_thread()))
        if not self.is_late():
            while self.background[engine]:
                self.finish_one(engine)
                self.stop_if_failed()

    def finish_one(self, engine=None):
        """Do one piece of background work; False if there is none."""
        busy = [engine] if engine else [e for e in ENGINES if self.background[e]]
        if not busy:
            return False
        engine = self.draw.choice(busy) if self.draw else busy[0]
        action, issuer = self.background[engine].popleft()
        try:
            action()
        except Exception as error:
            self.fail(error, issuer)
        return True

    def leave(self, thread):
        """End ``thread``; return the next one if this worker should begin it."""
        cta = thread.cta
        self.live -= 1
        cta.live -= 1
        thread.done = True
        if not self.error:
            try:
                cta.barrier.release_if_complete(self, cta.check_places)
                self.barrier.release_if_complete()
            except SimulatedError as error:
                self.fail(error, thread)
        following = self.pick() if self.live and not self.error else None
        if following is None:
            while not self.error and self.background["drain"]:
                self.finish_one("drain")
            left = {e: len(work) for e, work in self.background.items() if work}
            if left and not self.error:
                text = " and ".join(f"{n} pieces of {e} work" for e, n in left.items())
                self.fail(SimulatedError(f"the CTA ended with {text} to do"), thread)
            self.over.release()
        elif following.worker is None:
            return following
        else:
            following.resume()
        return None

    def fail(self, error, thread):
        """Stop the CTA; the first failure is the one that counts."""
        if self.error is None:
            if thread is not None:
                place = thread.cta.grid_point
                error.add_note(f"in thread {thread.thread_id} of CTA {place}")
            self.error = error

    def watch(self):
        """Wait for the end; stop a thread that never hands over."""
        turns = None
        while not self.over.acquire(timeout=PATIENCE):
            if turns == self.turns:
                thread = self.running
                text = (
                    f"thread {thread.thread_id} of CTA {thread.cta.grid_point} has run "
                    f"for {PATIENCE:.0f} s without waiting, at {thread_line(thread)}"
                )
                thread.worker.lost = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.worker.ident), ctypes.py_object(_Stopped)
                )
                self.error = DeadlockError(text)
                self.over.acquire(timeout=PATIENCE)
                return
            turns = self.turns

    def stop(self):
        """Unwind every thread that waits, one by one."""
        for thread in self.threads:
            if thread.waits_for is not None and not thread.done:
                thread.worker.turn.release()
                self.over.acquire(timeout=PATIENCE)

    def report(self):
        """Who waits for what, by CTA."""
        return "\n".join(
            f"no thread of CTA {cta.grid_point} can run\n{cta.waiting()}"
            for cta in self.ctas
            if cta.live
        )


def _grouped(texts):
    """One line for all threads of the same text."""
    groups = collections.defaultdict(list)
    for thread_id, text in sorted(texts.items()):
        groups[text].append(thread_id)
    return "\n".join(
        f"  threads {_ranges(ids)}: {text}" for text, ids in groups.items()
    )


def _ranges(ids):
    """0, 1, 2, 5 -> "0-2, 5"."""
    parts, start = [], ids[0]
    for a, b in zip(ids, [*ids[1:], None], strict=True):
        if b != a + 1:
            parts.append(str(a) if a == start else f"{start}-{a}")
            start = b
    if len(parts) > 6:
        return f"{', '.join(parts[:6])} ... ({len(ids)} threads)"
    return ", ".join(parts)


# Files whose frames are no kernel's.
_MACHINE = (
    *(os.path.join(os.path.dirname(__file__), stem) for stem in ("simulator", "ptx")),
    os.path.dirname(numba_simulator.__file__),
    threading.__file__,
)


def _kernel_frame(frame):
    while frame and frame.f_code.co_filename.startswith(_MACHINE):
        frame = frame.f_back
    return frame


def _place(frame):
    """Return the call in a kernel that ``frame`` is part of."""
    frame = _kernel_frame(frame)
    return frame.f_code, frame.f_lasti, frame.f_lineno


def _line(place):
    code, _, line = place
    return f"{os.path.basename(code.co_filename)}:{line}"


def thread_line(thread):
    """File and line of the kernel where ``thread`` is."""
    here = thread.worker is threading.current_thread()
    frame = sys._getframe() if here else sys._current_frames()[thread.worker.ident]
    return _line(_place(frame)) if _kernel_frame(frame) else "?"


# -------------------------------------------------------------------------- memory


def _numpy_dtype(dtype):
    if isinstance(dtype, types.Type):
        dtype = numpy_support.as_dtype(dtype)
    return np.dtype(dtype)


class Shared:
    """The shared memory of one CTA: bytes, counted from SHARED_BASE and its rank.

    In a cluster an address holds the CTA's rank in bits RANK_SHIFT and up.

    ``bytes`` is what threads read and write; ``seen`` what copies of tiles and
    ``wgmma`` (the async proxy) see of it: an ordinary store gets there by
    ``fence.proxy.async``, never by itself.
    """

    def __init__(self, dynamic, cta):
        self.dynamic = self.used = dynamic
        self.cta = cta
        self.base = SHARED_BASE + (cta.rank << RANK_SHIFT)
        self.bytes = np.full(SHARED_LIMIT, 0xFF, np.uint8)  # NaN in every format
        self.seen = self.bytes.copy()
        self.host = self.bytes.ctypes.data
        self.static = {}
        self._limit()

    def _limit(self):
        static = self.used - self.dynamic
        if static > STATIC_LIMIT:
            raise SimulatedError(
                f"shared memory of fixed shape: at most {STATIC_LIMIT} bytes a CTA, "
                f"got {static}; more must be dynamic"
            )
        if self.used > SHARED_LIMIT:
            raise SimulatedError(
                f"shared memory: at most {SHARED_LIMIT} bytes a CTA, got {self.used}"
            )

    def array(self, shape, dtype, alignment=None):
        """Return the array that this declaration makes; shape 0: dynamic memory."""
        dtype = _numpy_dtype(dtype)
        if shape == 0:  # dynamic: every such array is the same memory
            if alignment and SHARED_BASE % alignment:
                raise SimulatedError(
                    "dynamic shared memory is 16-byte aligned, asked for "
                    f"{alignment}; align the address in the kernel"
                )
            size = self.dynamic // dtype.itemsize * dtype.itemsize
            return self.bytes[:size].view(dtype).view(KernelArray)
        place = self._call_path(sys._getframe(1))
        if place not in self.static:
            size = int(np.prod(shape)) * dtype.itemsize
            step = max(alignment or 0, 16)
            start = -(-(self.used + SHARED_BASE) // step) * step - SHARED_BASE
            self.used = start + size
            self._limit()
            words = self.bytes[start : start + size].view(dtype)
            self.static[place] = words.reshape(shape).view(KernelArray)
        return self.static[place]

    def _call_path(self, frame):
        """Name a declaration by the calls that lead to it, from the kernel on.

        Two on one line are two arrays; so are those of a device function that is
        called from two places, since it is inlined there.
        """
        path, kernel = [], self.cta.machine.function.__code__
        while frame.f_code is not kernel:
            path += (frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return (*path, frame.f_lasti)

    def address(self, array):
        """Return the shared address of the first element of ``array``."""
        offset = array.__array_interface__["data"][0] - self.host
        if not 0 <= offset <= SHARED_LIMIT:
            raise SimulatedError(
                "a shared address must be taken of an array in shared memory, "
                f"got one of shape {array.shape} elsewhere"
            )
        return self.base + offset

    def check(self, first, last, what):
        """Refuse addresses ``first`` to ``last`` unless all are allocated."""
        if first < self.base or last >= self.base + self.used:
            raise SimulatedError(
                f"{what}: shared addresses must be within {self.base:#x} to "
                f"{self.base + self.used - 1:#x}, got {first:#x} to {last:#x}"
            )

    def place(self, address, size, what):
        """Return the slice of ``bytes`` at an address, a multiple of its size."""
        if address % size:
            raise SimulatedError(
                f"{what}: the shared address must be a multiple of {size}, "
                f"got {address:#x}"
            )
        self.check(address, address + size - 1, what)
        return slice(address - self.base, address - self.base + size)

    def chunks(self, addresses, what):
        """Return the index of each 16-byte chunk in ``bytes.reshape(-1, 16)``."""
        self.check(int(addresses.min()), int(addresses.max()) + 15, what)
        return (addresses - self.base) >> 4

    def fence_async(self):
        """Let the async proxy see all that threads wrote."""
        self.seen[: self.used] = self.bytes[: self.used]


class _SharedOfCta:
    """Stands in for ``cuda.shared``: that of the CTA whose thread runs."""

    def __init__(self, dynamic):
        self._dynshared_size = dynamic  # Numba's name

    def array(self, shape, dtype, alignment=None):
        return this_cta().shared.array(shape, dtype, alignment)


class Local:
    """Stands in for ``cuda.local``."""

    def array(self, shape, dtype, alignment=None):
        """Return a new array of NaN; its alignment means nothing here."""
        dtype = _numpy_dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        words = np.full(size, 0xFF, np.uint8).view(dtype)
        return words.reshape(shape).view(KernelArray)


class Span:
    """The bytes of a global array whose address was taken."""

    def __init__(self, array):
        self.start, self.stop = np.lib.array_utils.byte_bounds(array)
        self.array = array  # keeps the memory alive
        memory = (ctypes.c_uint8 * (self.stop - self.start)).from_address(self.start)
        self.bytes = np.ctypeslib.as_array(memory)


def global_address(array):
    """Return the address of the first element; the array can be read by it now."""
    start = array.__array_interface__["data"][0]
    spans = this_cta().spans
    if start not in spans:
        spans[start] = Span(array)
    return start


def global_bytes(address, size, what):
    """Return a view of ``size`` bytes at ``address``, of whatever array is there."""
    for span in this_cta().spans.values():
        if span.start <= address <= span.stop - size:
            return span.bytes[address - span.start :][:size]
    raise SimulatedError(
        f"{what}: global addresses must be in an array whose address was taken, got "
        f"{size} bytes at {address:#x}"
    )


# ----------------------------------- what Numba's simulator lacks: threads of a warp


def warp_meeting(mask, operands, compute):
    """Let the lanes of ``mask`` meet.

    ``compute`` maps {lane: operands} to {lane: result}.
    """
    thread = this_thread()
    warp, lane = divmod(thread.thread_id, 32)
    mask &= 0xFFFFFFFF
    if not mask >> lane & 1:
        raise SimulatedError(
            f"a warp instruction: its mask must name every lane that takes part, "
            f"got {mask:#x} in lane {lane}"
        )
    name = f"an instruction of warp {warp}, mask {mask:#x}"
    meeting = thread.cta.state.setdefault(
        (name, mask), Rendezvous(name, mask.bit_count)
    )

    def by_lane(operands):
        results = compute({i % 32: value for i, value in operands.items()})
        return {i: results[i % 32] for i in operands}

    return meeting.arrive_and_wait(operands, by_lane)


def _shuffle(source):
    """Make a shuffle; ``source(lane, operand)`` is the lane to read.

    One outside of the warp gives a lane its own value.
    """

    def shuffle(mask, value, operand):
        def compute(lanes):
            take = {lane: source(lane, by) for lane, (_, by) in lanes.items()}
            return {
                lane: lanes[take[lane] if 0 <= take[lane] < 32 else lane][0]
                for lane in lanes
            }

        return warp_meeting(mask, (value, operand), compute)

    return shuffle


def _vote(reduce):
    def vote(mask, predicate):
        return warp_meeting(
            mask, predicate, lambda lanes: dict.fromkeys(lanes, reduce(lanes))
        )

    return vote


WARP_FUNCTIONS = {
    "syncwarp": lambda mask=0xFFFFFFFF: warp_meeting(mask, None, lambda lanes: lanes),
    "shfl_sync": _shuffle(lambda lane, by: by % 32),
    "shfl_xor_sync": _shuffle(lambda lane, by: lane ^ by),
    "shfl_up_sync": _shuffle(lambda lane, by: lane - by),
    "shfl_down_sync": _shuffle(lambda lane, by: lane + by),
    "all_sync": _vote(lambda lanes: all(lanes.values())),
    "any_sync": _vote(lambda lanes: any(lanes.values())),
    "ballot_sync": _vote(
        lambda lanes: sum(1 << lane for lane, value in lanes.items() if value)
    ),
}
