"""NumPy emulations of the instructions that ``ptx.py`` declares, by the same names.

Operands arrive cast: integers are Python ints of the declared width, floats NumPy
scalars, several registers a tuple, a tensor map an :class:`EmulatedTensorMap`.
Immediates arrive as keywords. What an instruction has to remember sits in the
``state`` of the CTA or the thread. Background work goes through ``machine.later``, a
thread that must wait calls ``machine.wait``. Misuse that hardware answers with wrong
numbers or a hang is a SimulatedError here, with the reason.

What does not show here: ordinary loads and stores that race, unless a schedule makes
the result wrong; a ``wgmma`` that is done for one warp before another; a
``fence.proxy.async`` that came before a write in program order but after it in this
run; registers, bank conflicts, speed, the order of a sum.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from .fragments import (
    CHUNK_BYTES,
    MMA,
    WARP,
    WARPGROUP,
    c_of_8x8,
    described,
    k_major_chunk,
    mn_major_chunk,
    swizzled,
    wgmma_sum,
)
from .simulator import (
    RANK_SHIFT,
    Rendezvous,
    SimulatedError,
    global_address,
    global_bytes,
    this_cta,
    this_machine,
    this_thread,
    thread_line,
    warp_meeting,
)

_ALL_LANES = 0xFFFFFFFF

# ------------------------------------------------------- conversion, memory by address


def float_as_uint(x):
    """Return the bits of a float32."""
    return int(x.view(np.uint32))


def uint_as_float(bits):
    """Return the float32 of these bits."""
    return np.uint32(bits).view(np.float32)


def round_tf32(x):
    """Round to 10 bits of mantissa, ties away from zero; the low 13 bits are zero.

    A NaN that is told by these bits alone becomes an infinity, as on an H200.
    """
    return float_as_uint(x) + 0x1000 & 0xFFFFE000


def pack_f16(low, high):
    """Round each to nearest even; every NaN becomes 0x7FFF."""
    return _f16_word(low) | _f16_word(high) << 16


def _f16_word(value):
    return 0x7FFF if np.isnan(value) else int(value.astype(np.float16).view(np.uint16))


def pack_bf16(low, high):
    """Round each to nearest even; every NaN becomes 0x7FFF."""
    return _bf16_word(low) | _bf16_word(high) << 16


def _bf16_word(value):
    bits = float_as_uint(value)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def smem_addr(array):
    """Return the shared address of the first element."""
    return this_cta().shared.address(array)


def gmem_addr(array):
    """Return the global address of the first element."""
    return global_address(array)


def load_shared(address):
    """Return the four bytes at a shared address."""
    shared = this_cta().shared
    return int(shared.bytes[shared.place(address, 4, "ld.shared")].view(np.uint32)[0])


def store_shared(address, value):
    """Write four bytes."""
    shared = this_cta().shared
    shared.bytes[shared.place(address, 4, "st.shared")].view(np.uint32)[0] = value


def named_barrier(barrier, threads):
    """Wait until ``threads`` threads of whole warps are at this barrier."""
    if not 1 <= barrier <= 15 or not 0 < threads <= 1024 or threads % WARP:
        raise SimulatedError(
            f"bar.sync: a barrier of 1 to 15 (0 is that of syncthreads) and whole "
            f"warps are needed, got barrier {barrier} of {threads} threads"
        )
    barriers = this_cta().state.setdefault("named barriers", {})
    name = f"barrier {barrier} of {threads} threads"
    meeting = barriers.setdefault(barrier, Rendezvous(name, lambda: threads))
    if meeting.expected() != threads:
        if meeting.operands:
            raise SimulatedError(f"bar.sync: {meeting}, and one that counts {threads}")
        meeting = barriers[barrier] = Rendezvous(name, lambda: threads)
    meeting.arrive_and_wait(compute=_check_warps)


def _check_warps(operands):
    warps = {thread // WARP for thread in operands}
    if len(warps) * WARP != len(operands):
        raise SimulatedError(
            f"bar.sync: whole warps must meet, got {len(operands)} threads of "
            f"{len(warps)} warps"
        )


# --------------------------------------------------------- groups of copies of a thread


class _Groups:
    """Copies of one thread: ``open`` ones, and groups of them, oldest first."""

    def __init__(self):
        self.open, self.committed = [], []

    def commit(self):
        self.committed.append(self.open)
        self.open = []

    def all_but(self, n):
        """Return all but the latest ``n`` groups."""
        return self.committed[: max(len(self.committed) - n, 0)]


def _groups(kind):
    return this_thread().state.setdefault(kind, _Groups())


# -------------------------------------------------------- asynchronous copies (8.0)


def _cp_async(destination, source, size, width):
    """Copy ``size`` bytes, zero the rest of ``width``; now, or when waited for."""
    shared = this_cta().shared
    to = shared.bytes[shared.place(destination, width, "cp.async")]
    if source % width or size > width:
        raise SimulatedError(
            f"cp.async: a global address that is a multiple of {width} and at most "
            f"as many bytes are needed, got {size} bytes at {source:#x}"
        )
    data = global_bytes(source, size, "cp.async") if size else to[:0]

    def copy():
        to[:size] = data
        to[size:] = 0

    if this_machine().is_late():
        _groups("cp.async").open.append(copy)
    else:
        copy()


cp_async16 = functools.partial(_cp_async, width=16)
cp_async8 = functools.partial(_cp_async, width=8)
cp_async4 = functools.partial(_cp_async, width=4)


def copy2(destination, source, size):
    """Copy two bytes, or zeros, at once."""
    shared = this_cta().shared
    to = shared.bytes[shared.place(destination, 2, "st.shared")]
    to[:] = global_bytes(source, 2, "ld.global") if size else 0


def cp_commit():
    """Make a group of this thread's copies since the last one."""
    _groups("cp.async").commit()


def cp_wait(n):
    """Wait for all but the latest ``n`` groups of this thread."""
    groups = _groups("cp.async")
    done = groups.all_but(n)
    del groups.committed[: len(done)]
    for group in done:
        for copy in group:
            copy()


# ------------------------------------------------------- matrices of a warp (8.0)


def _rows(lanes, count, what):
    """Return where in shared memory the rows lie that lanes 0 to 8 count - 1 name."""
    shared = this_cta().shared
    return [
        shared.place(lanes[lane], CHUNK_BYTES, what).start // CHUNK_BYTES
        for lane in range(8 * count)
    ]


def _matrix_places(transposed):
    """Return (row, column) of both 16-bit items of each lane, each (32, 2)."""
    row, col = c_of_8x8(*np.ogrid[:WARP, :2])
    return np.broadcast_arrays(*((col, row) if transposed else (row, col)))


def ldmatrix(row, count, transposed):
    """Return a register of each of ``count`` 8x8 matrices of 16-bit words."""

    def load(lanes):
        chunks = this_cta().shared.bytes.reshape(-1, CHUNK_BYTES)
        rows = chunks[_rows(lanes, count, "ldmatrix")]
        matrices = rows.view(np.uint16).reshape(count, 8, 8)
        items = matrices[:, *_matrix_places(transposed)]
        words = np.ascontiguousarray(items).view(np.uint32)[..., 0].T
        return dict(enumerate(map(tuple, words.tolist())))

    return warp_meeting(_ALL_LANES, row, load)


def stmatrix(row, words, count, transposed):
    """Write a register of each of ``count`` 8x8 matrices of 16-bit words."""

    def store(lanes):
        rows = _rows({i: row for i, (row, _) in lanes.items()}, count, "stmatrix")
        items = _registers([lanes[lane][1] for lane in range(WARP)]).view(np.uint16)
        matrices = np.empty((count, 8, 8), np.uint16)
        places = _matrix_places(transposed)
        matrices[:, *places] = items.reshape(WARP, count, 2).swapaxes(0, 1)
        chunks = this_cta().shared.bytes.reshape(-1, CHUNK_BYTES)
        chunks[rows] = matrices.view(np.uint8).reshape(-1, CHUNK_BYTES)
        return dict.fromkeys(lanes)

    warp_meeting(_ALL_LANES, (row, words), store)


def _registers(values):
    """Return 32-bit registers, which a kernel holds as Python ints, as an array."""
    return (np.array(values, np.int64) & 0xFFFFFFFF).astype(np.uint32)


def _bf16_values(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def _tf32_values(words):
    return (words & np.uint32(0xFFFFE000)).view(np.float32)  # the rest is not looked at


# Of each dtype: how its items lie in registers or memory, and what they are worth.
_ITEMS = {
    "f16": (np.uint16, lambda words: words.view(np.float16).astype(np.float32)),
    "bf16": (np.uint16, _bf16_values),
    "tf32": (np.uint32, _tf32_values),
}


def mma(a, b, c, dtype):
    """Multiply and add: every lane gives its fragments, the warp meets."""
    M, N, K, of_a, of_b, of_c = MMA[dtype]

    def operand(registers, shape, places):
        items = np.array(registers)
        if dtype in _ITEMS:
            stored, values = _ITEMS[dtype]
            items = values(_registers(registers).view(stored))
        return _gathered(items, shape, places)

    def multiply(lanes):
        a, b, c = zip(*(lanes[lane] for lane in range(WARP)), strict=True)
        sums = np.array(c, np.float32 if dtype in _ITEMS else np.float64)
        product = operand(a, (M, K), of_a) @ operand(b, (K, N), of_b)
        d = (_gathered(sums, (M, N), of_c) + product)[of_c(*np.indices(sums.shape))]
        return dict(enumerate(map(tuple, d)))

    return warp_meeting(_ALL_LANES, (a, b, c), multiply)


def _gathered(items, shape, places):
    """Return the matrix of the items of all lanes, (lanes, items)."""
    matrix = np.empty(shape, items.dtype)
    matrix[places(*np.indices(items.shape))] = items
    return matrix


# ------------------------------------------------------------ barriers in memory (9.0)


class Mbarrier:
    """What stands behind the address of a barrier.

    A phase ends when no arrival is pending and no byte outstanding.
    """

    def __init__(self, cta, address, count):
        self.cta, self.address, self.count = cta, address, count
        self.pending, self.bytes, self.phase = count, 0, 0
        self.visible = False  # to the async proxy
        self.waiters = []

    def arrive(self):
        """Take one arrival off those pending."""
        if self.pending == 0:
            raise SimulatedError(
                f"{self}: an arrival more than the {self.count} of mbarrier.init"
            )
        self.pending -= 1
        self.end_phase_if_complete()

    def transfer(self, count):
        """Add to the bytes outstanding."""
        self.bytes += count
        if abs(self.bytes) >= 1 << 20:
            raise SimulatedError(f"{self}: at most 2^20 - 1 bytes may be outstanding")

    def end_phase_if_complete(self):
        """Begin the next phase, and wake who waits for it, if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.pending = self.count
            self.phase += 1
            self.cta.machine.wake(self)

    def __str__(self):
        return (
            f"mbarrier {self.address:#x} in phase {self.phase} "
            f"({self.pending} of {self.count} arrivals and {self.bytes} bytes missing)"
        )


def _mbarriers(cta=None):
    return (cta or this_cta()).state.setdefault("mbarriers", {})


def _mbarrier(address, cta=None):
    barriers = _mbarriers(cta)
    if address not in barriers:
        raise SimulatedError(
            f"an mbarrier must be initialised before it is used, got {address:#x}"
        )
    return barriers[address]


def mbar_init(barrier, count):
    """Make a barrier of ``count`` arrivals a phase."""
    cta, barriers = this_cta(), _mbarriers()
    cta.shared.place(barrier, 8, "mbarrier.init")
    if barrier in barriers or not 0 < count < 1 << 20:
        raise SimulatedError(
            f"mbarrier.init: a new address and a count are needed, got {barrier:#x} "
            f"and {count}"
        )
    barriers[barrier] = Mbarrier(cta, barrier, count)


def mbar_fence():
    """Let copies of tiles see the barriers."""
    for barrier in _mbarriers().values():
        barrier.visible = True


def mbar_arrive(barrier):
    """Arrive once."""
    _mbarrier(barrier).arrive()


def mbar_expect(barrier, bytes):
    """Announce bytes of this phase, and arrive."""
    _mbarrier(barrier).transfer(bytes)
    _mbarrier(barrier).arrive()


def mbar_wait(barrier, parity):
    """Wait until the phase of this parity is over."""
    barrier = _mbarrier(barrier)
    if parity > 1:
        raise SimulatedError(f"mbarrier.try_wait: parity must be 0 or 1, got {parity}")
    this_machine().wait(barrier, lambda: barrier.phase & 1 != parity)


# -------------------------------------------------------------- copies of tiles (9.0)


class EmulatedTensorMap:
    """What a ``tensor_map.TensorMap`` is to a kernel in the simulator.

    Parameters
    ----------
    array : numpy.ndarray
        Its innermost axis contiguous.
    box : tuple of int
        Elements along each axis that one instruction copies.
    swizzle : int
        0, 32, 64 or 128 bytes, those of a row of the box unless 0.
    """

    def __init__(self, array, box, swizzle):
        row_bytes = box[-1] * array.itemsize
        starts = (array.ctypes.data, *array.strides[:-1])
        if array.strides[-1] != array.itemsize or any(x % CHUNK_BYTES for x in starts):
            raise ValueError(
                "a tensor map: the innermost axis must be contiguous, the address and "
                f"the other strides multiples of 16 bytes, got {array.ctypes.data:#x} "
                f"and {array.strides}"
            )
        if len(box) != array.ndim or not all(0 < side <= 256 for side in box):
            raise ValueError(
                "a tensor map: the box must have 1 to 256 elements along each of "
                f"{array.ndim} axes, got {box}"
            )
        # On hardware a row may be shorter than the swizzle: not emulated.
        if row_bytes % CHUNK_BYTES or swizzle not in (
            0,
            *({32, 64, 128} & {row_bytes}),
        ):
            raise ValueError(
                "a tensor map: a row of the box must have a multiple of 16 bytes, "
                f"as many as the swizzle if there is one, got {row_bytes} and {swizzle}"
            )
        self.array, self.box, self.swizzle = array, tuple(box), swizzle
        self.bytes = math.prod(box) * array.itemsize

    def read(self, corner):
        """Return the box at ``corner`` (outermost first), zeros outside."""
        inside, of_box = self._overlap(corner)
        tile = np.zeros(self.box, self.array.dtype)
        tile[of_box] = self.array[inside]
        return tile.view(np.uint8).reshape(-1, CHUNK_BYTES)

    def write(self, corner, chunks):
        """Write what of the box lies inside of the array."""
        inside, of_box = self._overlap(corner)
        self.array[inside] = chunks.view(self.array.dtype).reshape(self.box)[of_box]

    def _overlap(self, corner):
        """Return where the box meets the array: slices of the array, of the box."""
        triples = list(zip(corner, self.box, self.array.shape, strict=True))
        ends = [
            (max(x, 0), max(min(x + side, size), x, 0)) for x, side, size in triples
        ]
        of_box = tuple(
            slice(low - x, high - x)
            for (low, high), x in zip(ends, corner, strict=True)
        )
        return tuple(slice(low, high) for low, high in ends), of_box

    def chunks(self, shared, address, what):
        """Return the chunks of shared memory that a box at ``address`` fills."""
        if address % 128:
            raise SimulatedError(
                f"{what}: the shared address must be a multiple of 128, "
                f"got {address:#x}"
            )
        flat = address + CHUNK_BYTES * np.arange(self.bytes // CHUNK_BYTES)
        return shared.chunks(swizzled(flat, self.swizzle), what)


def _check_map(tensor_map, axes):
    if not isinstance(tensor_map, EmulatedTensorMap) or tensor_map.array.ndim != axes:
        raise TypeError(
            f"cp.async.bulk.tensor: a tensor map of {axes} axes is needed, got "
            f"{type(tensor_map).__name__}"
        )


def _check_corner(tensor_map, corner, what):
    """Refuse what hardware does not know: an illegal instruction, whatever is there."""
    offset = corner[-1] * tensor_map.array.itemsize
    if offset % CHUNK_BYTES:
        raise SimulatedError(
            f"{what}: the first coordinate must be a multiple of {CHUNK_BYTES} bytes, "
            f"got {corner[-1]} elements, {offset} bytes"
        )


def map_address(tensor_map):
    """Return the map itself: here it needs no address."""
    return tensor_map


def tma_load_3d(destination, tensor_map, barrier, x, y, z):
    """Copy the box at (z, y, x) to shared memory, in the background."""
    _load(this_cta(), destination, tensor_map, barrier, (z, y, x))


def _load(cta, destination, tensor_map, barrier, corner):
    """Copy a box to the shared memory of ``cta`` and tell its barrier."""
    what = "cp.async.bulk.tensor, load"
    _check_map(tensor_map, len(corner))
    _check_corner(tensor_map, corner, what)
    barrier = _mbarrier(barrier, cta)
    if not barrier.visible:
        raise SimulatedError(
            f"{what}: a fence.mbarrier_init must follow mbarrier.init, got none for "
            f"{barrier}"
        )
    chunks = tensor_map.chunks(cta.shared, destination, what)
    for address in _mbarriers(cta):
        if destination <= address < destination + tensor_map.bytes:
            raise SimulatedError(
                f"{what}: the box at {destination:#x} covers mbarrier {address:#x}"
            )

    def copy():
        _check_running(cta, what)
        tile = tensor_map.read(corner)
        for memory in (cta.shared.bytes, cta.shared.seen):
            memory.reshape(-1, CHUNK_BYTES)[chunks] = tile
        barrier.transfer(-tensor_map.bytes)
        barrier.end_phase_if_complete()

    cta.machine.later("copy", copy)


def _check_running(cta, what):
    if not cta.live:
        raise SimulatedError(
            f"{what}: a CTA must run as long as others or its copies write to its "
            f"shared memory, got one to CTA {cta.grid_point}, which has ended"
        )


class _Reading:
    """What reads chunks of shared memory in the background.

    They must be visible to it when it is issued, and stay as they are until ``take``.
    """

    def __init__(self, chunks):
        self.cta, self.places = this_cta(), chunks
        self.line = thread_line(this_thread())
        self.taken, self.waiters = False, []
        self.first = self._now("seen")
        if not np.array_equal(self.first, self._now("bytes")):
            raise SimulatedError(
                f"{self}: a fence.proxy.async must follow what threads wrote to the "
                "shared memory that it reads"
            )

    def _now(self, view):
        memory = getattr(self.cta.shared, view)
        return memory.reshape(-1, CHUNK_BYTES)[self.places]

    def take(self):
        """Return the chunks; from now on they may be overwritten."""
        if not self.taken and not np.array_equal(self.first, self._now("bytes")):
            raise SimulatedError(
                f"{self}: what it reads must not be written from its issue until it "
                "has read it, got a write in between"
            )
        self.taken = True
        self.cta.machine.wake(self)
        return self.first


class _Store(_Reading):
    """One copy of a tile to global memory: read first, written some time later."""

    def __init__(self, chunks, write):
        super().__init__(chunks)
        self.to_array, self.written = write, False

    def write(self):
        self.to_array(self.take())
        self.written = True
        self.cta.machine.wake(self)

    def __str__(self):
        return f"the store of a tile at {self.line}"


def tma_store_3d(tensor_map, source, x, y, z):
    """Copy a box in shared memory to (z, y, x), in the background.

    Past the end nothing is written. A box that begins before the start is an illegal
    instruction on an H200 (a load of one is not: it reads zeros there).
    """
    _check_map(tensor_map, 3)
    _check_corner(tensor_map, (z, y, x), "cp.async.bulk.tensor, store")
    if min(x, y, z) < 0:
        raise SimulatedError(
            "cp.async.bulk.tensor, store: coordinates must not be negative, "
            f"got {(x, y, z)}"
        )
    cta = this_cta()
    store = _Store(
        tensor_map.chunks(cta.shared, source, "cp.async.bulk.tensor, store"),
        lambda chunks: tensor_map.write((z, y, x), chunks),
    )
    _groups("bulk").open.append(store)
    cta.machine.later("copy", store.take)
    cta.machine.later("drain", store.write)


def bulk_commit():
    """Make a group of this thread's stores of tiles since the last one."""
    _groups("bulk").commit()


def bulk_wait(n, read):
    """Wait until all but the latest ``n`` groups are written, or at least read."""
    done = "taken" if read else "written"
    for group in _groups("bulk").all_but(n):
        for store in group:
            this_machine().wait(store, functools.partial(getattr, store, done))


def fence_async():
    """Let the async proxy see all that threads wrote to shared memory."""
    this_cta().shared.fence_async()
    mbar_fence()


# --------------------------------------------------- matrices of a warpgroup (9.0a)


class _Product(NamedTuple):
    """What the 128 threads of a warpgroup must agree on."""

    tile: int  # of the sums
    a: int  # descriptors
    b: int
    n: int
    a_major: int  # 0 along k, 1 along m or n
    b_major: int
    dtype: str

    def __str__(self):
        return f"tile {self.tile} of a {self.a:#x} and b {self.b:#x}"


class _Wgmma(_Reading):
    """One ``wgmma`` on one tile of sums: 128 threads issue it, then it runs once.

    From the first issue until it is done nobody may write what it reads: a warp's
    share of it may run at any time between.
    """

    def __init__(self, index, product):
        self.index, self.product, self.n = index, product, product.n
        self.issued, self.result = 0, None
        self.sums = [None] * WARPGROUP
        a = _operand_chunks(product.a, 64, product.a_major)
        b = _operand_chunks(product.b, product.n, product.b_major)
        self.shapes = a.shape, b.shape
        super().__init__(np.concatenate([a.ravel(), b.ravel()]))

    def compute(self):
        """Multiply and add."""
        chunks, split = self.take(), math.prod(self.shapes[0])
        a = self._operand(chunks[:split], self.shapes[0], self.product.a_major)
        b = self._operand(chunks[split:], self.shapes[1], self.product.b_major)
        self.result = self._accumulated() + a @ b.T
        self.sums = None
        self.cta.machine.wake(self)

    def _operand(self, chunks, shape, major):
        """Return the operand in float32, (m or n, k)."""
        stored, values = _ITEMS[self.product.dtype]
        items = values(chunks.view(stored).reshape(shape[0], -1))
        return items.T if major else items

    def _accumulated(self):
        """Return the (64, n) sums that the registers of the 128 threads hold."""
        sources = {getattr(sums, "wgmma", None) for sums in self.sums}
        if None not in sources and len(sources) == 1:
            return sources.pop().result
        matrix = np.empty((64, self.n), np.float32)
        matrix[_sum_places(self.n)] = [
            sums.values() if isinstance(sums, _Tile) else sums for sums in self.sums
        ]
        return matrix

    def __str__(self):
        return (
            f"the wgmma of {self.line} (issued by {self.issued} of {WARPGROUP} threads)"
        )


@functools.cache
def _sum_places(n):
    return wgmma_sum(*np.indices((WARPGROUP, n // 2)))


class _Tile:
    """The n / 2 sums of one thread that a ``wgmma`` writes."""

    def __init__(self, wgmma, lane):
        self.wgmma, self.lane, self._values = wgmma, lane, None

    def values(self):
        if self._values is None:
            row, col = _sum_places(self.wgmma.n)
            self._values = self.wgmma.result[row[self.lane], col[self.lane]]
        return self._values

    def read(self):
        """Return the sums to the thread, if it may know them."""
        if self.wgmma.index >= _warpgroup().waited[self.lane]:
            raise SimulatedError(
                "sums of a wgmma may be read after a wgmma.wait_group that covers it, "
                f"got none for {self.wgmma}"
            )
        return self.values()


class Accumulators:
    """The registers that a group of ``wgmma`` works on: a tuple, once waited for.

    ``tiles`` are pending ones, or tuples of the n / 2 values of a thread.
    """

    def __init__(self, tiles, per):
        self.tiles, self.per = tiles, per

    def __len__(self):
        return len(self.tiles) * self.per

    def __getitem__(self, i):
        tile = self.tiles[i // self.per]
        return (tile.read() if isinstance(tile, _Tile) else tile)[i % self.per]

    def __iter__(self):
        for tile in self.tiles:
            yield from tile.read() if isinstance(tile, _Tile) else tile


class _Warpgroup:
    """The order of a warpgroup's ``wgmma``, and how far each thread has come in it."""

    def __init__(self):
        self.open = {}  # of each index that some thread has not issued yet, its wgmma
        self.count = [0] * WARPGROUP  # wgmma issued
        self.last = [None] * WARPGROUP  # the latest wgmma since the last commit
        self.groups = [[] for _ in range(WARPGROUP)]  # the last of each open group
        self.waited = [0] * WARPGROUP  # wgmma whose sums the thread may read


def _warpgroup():
    thread = this_thread()
    key = "warpgroup", thread.thread_id // WARPGROUP
    return thread.cta.state.setdefault(key, _Warpgroup())


def _lane():
    """Return the place of this thread in its warpgroup."""
    return this_thread().thread_id % WARPGROUP


def zeros(count):
    """Return a tuple of float32 zeros."""
    return (np.float32(0),) * count


def spread(registers, array):
    """Copy registers to a local array."""
    array[:] = list(registers)


def wgmma(accumulators, row, a, b, n, steps, row_stride, a_major, b_major, dtype):
    """Issue one group: fence, a product for each of ``steps``, commit."""
    if dtype == "tf32" and (a_major or b_major):
        raise SimulatedError(
            f"wgmma of tf32: both operands must lie along k, got majors {a_major} "
            f"and {b_major}"
        )
    per = n // 2
    if isinstance(accumulators, tuple):
        parts = range(0, len(accumulators), per)
        tiles = [accumulators[i : i + per] for i in parts]
    else:
        tiles = list(accumulators.tiles)
    wgmma_fence()
    for tile, a_offset, b_offset in steps:
        tile += row * row_stride
        if tile >= len(tiles):
            raise SimulatedError(
                f"wgmma: row {row} must lie in the {len(tiles)} tiles of sums, got "
                f"tile {tile}"
            )
        product = _Product(tile, a + a_offset, b + b_offset, n, a_major, b_major, dtype)
        tiles[tile] = _issue(product, tiles[tile])
    wgmma_commit()
    return Accumulators(tiles, per)


def _issue(product, sums):
    """Issue one product as this thread; return its new sums."""
    group, lane = _warpgroup(), _lane()
    index = group.count[lane]
    group.count[lane] += 1
    if index not in group.open:
        group.open[index] = _Wgmma(index, product)
    this = group.last[lane] = group.open[index]
    if this.product != product:
        raise SimulatedError(
            f"wgmma: all threads of a warpgroup must issue the same, got {product} "
            f"beside {this.product} of {this}"
        )
    this.sums[lane] = sums
    this.issued += 1
    if this.issued == WARPGROUP:
        del group.open[index]
        this_machine().later("wgmma", this.compute)
    return _Tile(this, lane)


def _operand_chunks(descriptor, size, major):
    """Return the chunks of an operand: (size, 2) along k, (16, size / 8) along m or n.

    A chunk along k is of one row, one along m or n of one k.
    """
    start, *layout, swizzle = described(descriptor)
    if descriptor >> 49 & 7:
        raise NotImplementedError("wgmma: a base offset is not emulated")
    if swizzle and start % (8 * swizzle) >= swizzle:
        raise SimulatedError(
            f"wgmma: an operand must start in the first row of a {swizzle}-byte "
            f"swizzle, got {start:#x}"
        )
    if major == 0:
        offsets = k_major_chunk(*np.ogrid[:size, :2], *layout, swizzle)
    else:
        offsets = mn_major_chunk(*np.ogrid[:16, : size // 8], *layout, swizzle)
    shared = this_cta().shared
    start = map_shared(start, shared.cta.rank)
    return shared.chunks(swizzled(start + offsets, swizzle), "wgmma")


def wgmma_fence():
    """Order registers before what follows: every group of :func:`wgmma` has its own."""


def wgmma_commit():
    """Make a group of this thread's ``wgmma`` since the last one."""
    group, lane = _warpgroup(), _lane()
    group.groups[lane].append(group.last[lane])
    group.last[lane] = None


def wgmma_wait(n):
    """Wait for all but the latest ``n`` groups of this thread."""
    group, lane = _warpgroup(), _lane()
    while len(group.groups[lane]) > n:
        last = group.groups[lane].pop(0)
        if last:
            this_machine().wait(last, lambda last=last: last.result is not None)
            group.waited[lane] = last.index + 1


def setmaxnreg(action, registers):
    """Change the registers a thread may use: here only what may be asked for."""
    if registers % 8 or not 24 <= registers <= 256:
        raise SimulatedError(
            f"setmaxnreg.{action}: a multiple of 8 from 24 to 256 is needed, "
            f"got {registers}"
        )


# ------------------------------------------------------------------- clusters (9.0)
# A shared address holds, above the place in a CTA's memory, the rank of that CTA.


def cluster_rank():
    """Return the rank of this CTA in its cluster."""
    return this_cta().rank


def cluster_arrive():
    """Arrive at the barrier of all threads of the cluster, and go on."""
    this_machine().barrier.arrive()


def cluster_wait():
    """Wait until all threads of the cluster have arrived."""
    this_machine().barrier.wait()


def map_shared(address, rank):
    """Return the address of the same place in the shared memory of another CTA."""
    _cta_of_rank(rank, "mapa")
    return address & (1 << RANK_SHIFT) - 1 | rank << RANK_SHIFT


def _cta_of_rank(rank, what):
    ctas = this_machine().ctas
    if rank >= len(ctas):
        raise SimulatedError(
            f"{what}: the rank must be that of one of the {len(ctas)} CTAs of the "
            f"cluster, got {rank}"
        )
    return ctas[rank]


def mbar_arrive_cluster(barrier):
    """Arrive once at a barrier of any CTA of the cluster."""
    what = "mbarrier.arrive.shared::cluster"
    cta = _cta_of_rank(barrier >> RANK_SHIFT, what)
    _check_running(cta, what)
    _mbarrier(barrier, cta).arrive()


def tma_load_3d_multicast(destination, tensor_map, barrier, x, y, z, ranks):
    """Copy a box to the same place in each CTA whose bit of ``ranks`` is set.

    Each copy tells the barrier at the same place in its CTA.
    """
    for rank in range(ranks.bit_length()):
        if ranks >> rank & 1:
            cta = _cta_of_rank(rank, "cp.async.bulk.tensor, multicast")
            to, told = (map_shared(here, rank) for here in (destination, barrier))
            _load(cta, to, tensor_map, told, (z, y, x))
