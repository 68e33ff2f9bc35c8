"""dsd on Hopper: copies and products run by themselves; float16 and bfloat16.

New against the rung below (``matmul_dsd_mma.py``):

- **One instruction copies a tile** (TMA). A warp of *loaders* tells the copy engine
  what to bring and goes on; an mbarrier counts the bytes that arrived. No thread of
  the multiplying warps computes an address or holds a value on its way.
- **One instruction multiplies 64 rows** (``wgmma``), both operands read from shared
  memory, by four warps at once: a *warpgroup*.
- **Several block rows share a tile of b.** A CTA owns a group of rows and walks the
  union of their columns (``plan.GroupPlan``): what is loaded once is used for every
  row of the group that has a block there. Without it the L2 cache could not deliver.
- **CTAs stay.** Each takes one tile of the result after the other, so the loaders are
  ahead in the next tile while the sums of the last one are written. Items come longest
  first; every other round is dealt out backwards, so that no CTA has the longest of
  each: all stay near the same columns of b, which the L2 cache then holds (block 128,
  density 0.1: 567 TFLOP/s, without 500, where memory was read three times as often).

Tried and lost: CTAs in pairs, which multiply the same rows by neighbouring columns of b
and copy half of the squares each to both (multicast). L2 would deliver a sixth less,
but the two wait for each other at every stage: 461 and 618 TFLOP/s at block 128,
density 0.1 and 0.3 (alone 569 and 664), 434 and 573 at 64 (454 and 568). Copying to the
L2 cache what a CTA reads next: 493 for 525. Letting one warpgroup start later than the
other, so that one multiplies while the other writes: no difference.

A block is cut into squares of SIDE = 16, 32 or 64. Squares of 64 are the left operand
of ``wgmma``; smaller ones have not the 64 rows that it wants, so they are the right one
and the product is computed transposed: out^T = b^T A^T.

    grid     (min(multiprocessors, tiles),), tiles = batch * items * ceil(N / TILE_N)
    threads  128 for each of the consumer warpgroups and 128 of loaders
    shared   all there is: a ring of stages, each STAGE_COLS tiles of b and the squares
             that meet them
    reads    each square once for every TILE_N columns of b, and SIDE rows of b for
             every column of squares in the union of a group
"""

import numpy as np

from ..dtypes import bfloat16
from . import fragments, sum_partials_simt
from .compiler import (
    cuda,
    device,
    f32,
    float32,
    i32,
    inlined_late,
    jit,
    maker,
    u32,
    u64,
    uint8,
)
from .launch import ceil_div, multiprocessors, run
from .ptx import (
    bulk_commit,
    fence_async,
    load_shared,
    make_bulk_wait,
    make_pack,
    make_setmaxnreg,
    make_spread,
    make_stmatrix,
    make_wgmma,
    make_wgmma_wait,
    make_zeros,
    map_address,
    mbar_arrive,
    mbar_expect,
    mbar_fence,
    mbar_init,
    mbar_wait,
    named_barrier,
    smem_addr,
    store_shared,
    tma_load_3d,
    tma_store_3d,
)
from .tensor_map import matrix_map
from .tiles import in_turn, make_narrow, make_widen

SUMS = np.dtype(np.float32)
WARP, WARPGROUP = 32, 128
CHUNK = 64  # columns of b that are side by side in shared memory: 128 bytes
ALIGNMENT = 1024  # bytes, of what is swizzled
# Registers of a thread by the number of consumer warpgroups: those of the loaders, of
# the consumers. All of them together are those of a multiprocessor.
_REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}


def launch(config, plan, a, b, out, partial, alpha, beta, stream):
    """Write ``out = alpha * A @ b + beta * out``; see :func:`numba_bs.matmul`.

    Parameters
    ----------
    config : choose.wgmma.WgmmaConfig
    plan : plan.GroupPlan of Operands
    a : (batch, 1, blocks, R, C) values of A, the last or the last but one contiguous
    b : (batch, 1, 1, K, N) likewise
    out : (batch, 1, M, N)
    partial : (batch, slots, rows of a group, N) float32
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    batch, _, _, N = out.shape
    items = plan.item_row.shape[0]
    if 0 in (batch, items, N):
        return
    a_along_k = a.strides[4] < a.strides[3]
    b_along_k = b.strides[3] < b.strides[4]
    out_along_m = out.strides[2] < out.strides[3]
    kernel = _make_kernel(
        "bf16" if a.dtype == bfloat16 else "f16",
        out.dtype,
        *config,
        a_along_k,
        b_along_k,
        out_along_m,
        plan.split_row.shape[0] > 0,
    )
    tile_n = CHUNK * config.chunks * config.col_groups
    slabs = ceil_div(N, tile_n)
    tiles = batch * slabs * items
    grid = min(multiprocessors(out.device), tiles)
    maps = _maps(config, a, b, a_along_k, b_along_k)
    # Sums that go out one by one need no map; any will do.
    out_map = _out_map(config, out, out_along_m) if config.whole else maps[1]
    factors = SUMS.type(alpha), SUMS.type(beta)
    run(
        kernel,
        grid,
        stream,
        *maps,
        out_map,
        plan[: plan._fields.index("split_row")],
        out,
        partial,
        slabs,
        tiles,
        int(maps[0].operand.shape[0] > 1),
        int(maps[1].operand.shape[0] > 1),
        *factors,
    )
    if partial.shape[1]:
        sum_partials_simt.launch_rows(plan, partial, out, alpha, beta, stream)


def _maps(config, a, b, a_along_k, b_along_k):
    """Return the tensor maps of squares of a and chunks of b."""
    side, rows_of_b = config.side, config.side * config.wide
    a = a if a_along_k else a.mT
    batch, _, blocks, rows, cols = a.shape
    squares = a.view(
        (batch, blocks * rows, cols), (a.strides[0], a.strides[3], a.strides[4])
    )
    box = (1, CHUNK, rows_of_b) if b_along_k else (1, rows_of_b, CHUNK)
    return (
        matrix_map(squares, False, (1, side, side), 2 * side),
        matrix_map(b, b_along_k, box, 2 * box[2]),
    )


def _out_map(config, out, out_along_m):
    """Return the tensor map of the tiles of 64 by what a square has across."""
    swapped = config.side < 64
    width = config.side if swapped else CHUNK
    box = (1, width, CHUNK) if out_along_m != swapped else (1, CHUNK, width)
    return matrix_map(out, out_along_m, box, 2 * box[2])


@maker
def _make_kernel(
    dtype,
    out_dtype,
    SIDE,
    ROWS,
    CHUNKS,
    ROW_GROUPS,
    COL_GROUPS,
    WIDE,
    STAGE_COLS,
    CAP,
    STAGES,
    LOADERS,
    AT_ONCE,
    BUFFERS,
    WHOLE,
    A_ALONG_K,
    B_ALONG_K,
    OUT_ALONG_M,
    SPLIT,
):
    """Compile-time: the type, sizes, how the operands lie in memory.

    A warpgroup has ROWS rows of squares and CHUNKS chunks of columns, a CTA ROW_GROUPS
    times COL_GROUPS warpgroups. A stage holds STAGE_COLS columns of squares, of which
    at most CAP are stored. WHOLE: the result is stored by the copy engine.
    """
    assert LOADERS <= STAGES, (LOADERS, STAGES)
    assert CAP <= WARP, CAP
    assert ROWS * CHUNKS % AT_ONCE == 0, (ROWS, CHUNKS, AT_ONCE)
    assert STAGE_COLS * CHUNKS * COL_GROUPS <= WARP, (STAGE_COLS, CHUNKS, COL_GROUPS)
    SWAPPED = SIDE < 64
    GROUPS = ROW_GROUPS * COL_GROUPS
    CONSUMERS = GROUPS * WARPGROUP
    TILE_CHUNKS = CHUNKS * COL_GROUPS
    TILE_N = CHUNK * TILE_CHUNKS

    # A stage in shared memory: chunks of b, squares; apart from them the list.
    B_ROWS = SIDE * WIDE
    B_CHUNK_BYTES, B_BYTES = B_ROWS * CHUNK * 2, B_ROWS * TILE_N * 2
    A_BYTES = SIDE * SIDE * 2
    A_FIRST = STAGE_COLS * B_BYTES
    STAGE_BYTES = A_FIRST + CAP * A_BYTES
    LIST_BYTES = 4 * (CAP + ROW_GROUPS)
    OUT_TILE_BYTES = 2 * CHUNK * min(SIDE, CHUNK)
    OUT_ROOM = AT_ONCE * BUFFERS  # some are written, some on their way
    OUT_BYTES = OUT_ROOM * OUT_TILE_BYTES
    BARRIERS = ALIGNMENT + GROUPS * OUT_BYTES + STAGES * STAGE_BYTES
    SHARED = BARRIERS + STAGES * (16 + LIST_BYTES)

    # Which operand is left, how both lie, what one product of squares takes: the
    # sums are tiles of 64 by WIDTH.
    # (Three warpgroups leave an instruction fewer registers than 256 columns take.)
    HALVES = 2 if GROUPS == 3 else 1
    WIDTH = SIDE if SWAPPED else CHUNK * CHUNKS // HALVES
    PER = WIDTH // 2
    TILES = ROWS * CHUNKS if SWAPPED else ROWS * HALVES
    A_STEP = 2 if A_ALONG_K else 2 * SIDE  # 16 inner steps, in units of 16 bytes
    B_STEP = 2 if B_ALONG_K else 128
    B_WITHIN = B_STEP * SIDE // 16  # from a square's rows of b to the next one's
    steps = []
    for k in range(SIDE // 16):
        if SWAPPED:
            for chunk in range(CHUNKS):
                at = k * B_STEP + chunk * (B_CHUNK_BYTES // 16)
                steps.append((chunk * ROWS, at, k * A_STEP))
        else:
            for half in range(HALVES):
                at = k * B_STEP + half * (WIDTH * B_ROWS * 2 // 16)
                steps.append((half, k * A_STEP, at))
    majors = (int(not A_ALONG_K), int(not B_ALONG_K))
    left_major, right_major = reversed(majors) if SWAPPED else majors
    stride = 1 if SWAPPED else HALVES
    multiply = make_wgmma(
        WIDTH, tuple(steps), ROWS, stride, left_major, right_major, dtype
    )
    A_DESCRIPTOR = fragments.descriptor(0, 16, 8 * 2 * SIDE, 2 * SIDE)
    if B_ALONG_K:
        B_DESCRIPTOR = fragments.descriptor(0, 16, 8 * 2 * B_ROWS, 2 * B_ROWS)
    else:
        B_DESCRIPTOR = fragments.descriptor(0, B_CHUNK_BYTES, 8 * 128, 128)

    REGISTERS = TILES * PER
    zeros, spread = make_zeros(REGISTERS), make_spread(REGISTERS)
    products_done, all_but_one_done = make_wgmma_wait(0), make_wgmma_wait(1)
    few, many = _REGISTERS[GROUPS]
    give_registers = make_setmaxnreg("dec", few)
    take_registers = make_setmaxnreg("inc", many)
    FIRST_LOADER = CONSUMERS // WARP

    # The way out: a tile of 64 by OUT_WIDTH sums at a time.
    OUT_WIDTH = min(WIDTH, CHUNK)
    OUT_TILES = TILES * WIDTH // OUT_WIDTH
    OUT_PER = OUT_WIDTH // 2
    RUN = 8  # sums that are written by one piece of code
    TRANSPOSED = OUT_ALONG_M != SWAPPED  # what is contiguous are the 64
    OUT_ROW_BYTES = 128 if TRANSPOSED else 2 * OUT_WIDTH
    pack, stmatrix = make_pack(dtype), make_stmatrix(4, TRANSPOSED)
    all_read, earlier_read = make_bulk_wait(0, True), make_bulk_wait(BUFFERS - 1, True)
    all_written = make_bulk_wait(0, False)
    widen_out = make_widen(out_dtype, SUMS)
    narrow = make_narrow(SUMS, out_dtype)

    swizzled, sum_place = device(fragments.swizzled), device(fragments.wgmma_sum)

    # ``corner`` is (batch, first row of the group, first row of the warpgroup in it,
    # rows of the group, first column): rows in squares.

    @device
    def place_of(t):
        # Row (in squares) and column (in elements) of an output tile of a warpgroup.
        if SWAPPED:
            return t % ROWS, t // ROWS * CHUNK
        return t // CHUNKS, t % CHUNKS * CHUNK

    @device
    def stored(t, corner, out_map, out_smem):
        batch, row0, row, rows, col0 = corner
        down, across = place_of(t)
        at = u32(out_smem + t % OUT_ROOM * OUT_TILE_BYTES)
        m, n = i32((row0 + row + down) * SIDE), i32(col0 + across)
        if row + down < rows:
            if OUT_ALONG_M:
                tma_store_3d(out_map, at, m, n, batch)
            else:
                tma_store_3d(out_map, at, n, m, batch)

    @inlined_late
    def store_tile(t, args):
        # By way of shared memory, where stmatrix takes what the lanes hold: this
        # one names a row of the first 16 columns of sums.
        sums, corner, alpha, out_map, out_smem, group = args
        tid = u32(cuda.threadIdx.x % WARPGROUP)
        elected = tid == 0
        warp, high, half, r = tid // 32, tid // 16 % 2, tid // 8 % 2, tid % 8
        if t % AT_ONCE == 0:
            if elected:
                if t == 0:
                    all_read()
                else:
                    earlier_read()
            named_barrier(group + 1, WARPGROUP)  # there is room
        at = u32(out_smem + t % OUT_ROOM * OUT_TILE_BYTES)
        for v in range(0, OUT_PER, 8):
            i = t * OUT_PER + v
            words = (
                pack(alpha * sums[i], alpha * sums[i + 1]),
                pack(alpha * sums[i + 2], alpha * sums[i + 3]),
                pack(alpha * sums[i + 4], alpha * sums[i + 5]),
                pack(alpha * sums[i + 6], alpha * sums[i + 7]),
            )
            if TRANSPOSED:
                line = (high * 8 + r + 2 * v) * 128 + (warp * 2 + half) * 16
            else:
                line = (warp * 16 + half * 8 + r) * OUT_ROW_BYTES
                line += (high + v // 4) * 16
            stmatrix(at + swizzled(u32(line), OUT_ROW_BYTES), words)
        if (t + 1) % AT_ONCE == 0:
            fence_async()
            named_barrier(group + 1, WARPGROUP)  # AT_ONCE tiles are written
            if elected:
                for back in range(AT_ONCE):
                    stored(t + 1 - AT_ONCE + back, corner, out_map, out_smem)
                bulk_commit()

    @device
    def place_of_sum(i):
        # Row (in squares), row and column (in elements) of a warpgroup's i-th sum.
        down, across = place_of(i // OUT_PER)
        m, n = sum_place(u32(cuda.threadIdx.x % WARPGROUP), i % OUT_PER)
        if SWAPPED:
            m, n = n, m
        return down, m, across + n

    @inlined_late
    def write_run(run, args):
        # One by one: what is unaligned, or added to, or of another type.
        sums, corner, factors, out = args
        batch, row0, row, rows, col0 = corner
        alpha, beta = factors
        out_tile = out[batch, 0]
        for i in range(run * RUN, run * RUN + RUN):
            down, m, n = place_of_sum(i)
            m, n = u32((row0 + row + down) * SIDE + m), u32(col0 + n)
            if row + down < rows and n < out.shape[3]:
                total = f32(alpha * sums[i])
                if beta != 0:
                    total = f32(total + beta * widen_out(out_tile[m, n]))
                out_tile[m, n] = narrow(total)

    @inlined_late
    def write_partial_run(run, args):
        sums, corner, slot, partial = args
        batch, _, row, rows, col0 = corner
        for i in range(run * RUN, run * RUN + RUN):
            down, m, n = place_of_sum(i)
            m, n = u32((row + down) * SIDE + m), u32(col0 + n)
            if row + down < rows and n < partial.shape[3]:
                partial[batch, slot, m, n] = sums[i]

    store = in_turn(store_tile, OUT_TILES)
    write = in_turn(write_run, REGISTERS // RUN)
    write_partial = in_turn(write_partial_run, REGISTERS // RUN)

    @jit(CONSUMERS + WARPGROUP, dynamic_shared=SHARED, alone=True)
    def dsd_wgmma(
        a_map,  # squares (batch, blocks * rows, columns) of the values as stored
        b_map,  # (batch, K, N), or (batch, N, K)
        out_map,  # (batch, M, N), or (batch, N, M)
        item_row,  # (items,) int32, first row of squares
        item_rows,  # (items,) int32
        item_first,  # (items,) int32, first stage
        item_count,  # (items,) int32
        item_slot,  # (items,) int32
        stage_first,  # (stages + 1,) int32, first square
        stage_col,  # (stages, STAGE_COLS) int32; -1: none
        stage_part,  # (stages, ROW_GROUPS) int32: first square, count << 8, last << 16
        square_x,  # (squares,) int32, column in a_map
        square_y,  # (squares,) int32, row in a_map
        square_word,  # (squares,) int32: row of its warpgroup, column of the stage << 8
        out,  # (batch, 1, M, N) out_dtype
        partial,  # (batch, slots, rows, N) float32
        slabs,
        tiles,
        a_batched,
        b_batched,
        alpha,
        beta,
    ):
        smem = smem_addr(cuda.shared.array(0, uint8))
        staged = u32(smem + ALIGNMENT - 1) & ~u32(ALIGNMENT - 1)  # tiles of out
        ring = u32(staged + GROUPS * OUT_BYTES)
        full = u32(ring + STAGES * STAGE_BYTES)  # barriers: the stage has arrived
        empty = u32(full + STAGES * 8)  # and: it may be overwritten
        lists = u32(empty + STAGES * 8)
        tid = u32(cuda.threadIdx.x)
        lane = tid % WARP
        warp = cuda.shfl_sync(0xFFFFFFFF, tid // WARP, 0)  # uniform, for all to see
        if tid == 0:
            for s in range(STAGES):
                mbar_init(full + s * 8, 1)
                mbar_init(empty + s * 8, CONSUMERS // WARP)
            mbar_fence()
        cuda.syncthreads()  # the barriers are there

        items = u32(item_row.size)
        tile = u32(cuda.blockIdx.x)
        # Every other round of tiles is dealt out backwards.
        step = u32(2 * cuda.gridDim.x - 1 - 2 * tile)
        if warp >= FIRST_LOADER:
            give_registers()
            # A loader takes every LOADERS-th stage, counted over all tiles of the CTA.
            slot, parity = u32(warp - FIRST_LOADER), u32(1)
            mine = u32(slot)
            if slot >= LOADERS:
                tile = u32(tiles)
            while tile < tiles:
                slab, item = u32(tile // items), u32(tile % items)
                batch, col0 = i32(slab // slabs), i32(slab % slabs * TILE_N)
                first, count = u32(item_first[item]), u32(item_count[item])
                while mine < count:
                    stage = u32(first + mine)
                    square = u32(stage_first[stage])
                    squares = u32(stage_first[stage + 1] - square)
                    x, y, word = i32(0), i32(0), u32(0)
                    if lane < squares:
                        x, y = square_x[square + lane], square_y[square + lane]
                        # Of a square: its row, and its offset into b.
                        word = u32(square_word[square + lane])
                        at = u32((word >> 8 & 0xFF) * (B_BYTES // 16))
                        at = u32(at + (word >> 16) * B_WITHIN)
                        word = u32(word & 0xFF | at << 8)
                    if lane < ROW_GROUPS:
                        part = u32(stage_part[stage, lane])
                    tiles_of_b = u32(lane // TILE_CHUNKS)
                    col = i32(-1)
                    if tiles_of_b < STAGE_COLS:
                        col = stage_col[stage, tiles_of_b]
                    mbar_wait(empty + slot * 8, parity)  # the slot is free
                    bar = u32(full + slot * 8)
                    room = u32(ring + slot * STAGE_BYTES)
                    listed = u32(lists + slot * LIST_BYTES)
                    if lane < squares:
                        store_shared(listed + lane * 4, word)
                    if lane < ROW_GROUPS:
                        store_shared(listed + (CAP + lane) * 4, part)
                    if col >= 0:
                        to = u32(room + lane * B_CHUNK_BYTES)
                        n = i32(col0 + lane % TILE_CHUNKS * CHUNK)
                        k = i32(col * B_ROWS)
                        if B_ALONG_K:
                            tma_load_3d(to, b_map, bar, k, n, batch * b_batched)
                        else:
                            tma_load_3d(to, b_map, bar, n, k, batch * b_batched)
                    if lane < squares:
                        to = u32(room + A_FIRST + lane * A_BYTES)
                        tma_load_3d(to, a_map, bar, x, y, batch * a_batched)
                    loads = u32(cuda.popc(cuda.ballot_sync(0xFFFFFFFF, col >= 0)))
                    cuda.syncwarp()  # the list is written
                    if lane == 0:
                        mbar_expect(bar, loads * B_CHUNK_BYTES + squares * A_BYTES)
                    mine = u32(mine + LOADERS)
                    slot = u32(slot + LOADERS)
                    if slot >= STAGES:
                        slot, parity = u32(slot - STAGES), u32(parity ^ 1)
                mine = u32(mine - count)
                tile = u32(tile + step)
                step = u32(2 * cuda.gridDim.x - step)
        else:
            take_registers()
            group = u32(warp // 4)
            row_group, col_group = u32(group % ROW_GROUPS), u32(group // ROW_GROUPS)
            elected = tid % WARPGROUP == 0
            out_smem = u32(staged + group * OUT_BYTES)
            slot, parity = u32(0), u32(0)
            while tile < tiles:
                slab, item = u32(tile // items), u32(tile % items)
                row0, rows = u32(item_row[item]), u32(item_rows[item])
                slot_of_item = item_slot[item]
                acc = zeros()
                ended, before = u32(0), u32(0)
                while ended == 0:
                    mbar_wait(full + slot * 8, parity)  # tiles and list are there
                    listed = u32(lists + slot * LIST_BYTES)
                    part = load_shared(listed + (CAP + row_group) * 4)
                    room = u32(ring + slot * STAGE_BYTES)
                    square = u32(part & 0xFF)
                    last = u32(square + (part >> 8 & 0xFF))
                    ended = u32(part >> 16)
                    at = u32(room + A_FIRST + square * A_BYTES)
                    a_tile = u64(A_DESCRIPTOR | u64(at >> 4))
                    at = u32(room + col_group * (CHUNKS * B_CHUNK_BYTES))
                    b_tiles = u64(B_DESCRIPTOR | u64(at >> 4))
                    # While the first product of this stage runs, those of the stage
                    # before end: then its slot is free.
                    if square < last:
                        word = load_shared(listed + square * 4)
                        b_tile = u64(b_tiles + u64(word >> 8))
                        if SWAPPED:
                            acc = multiply(acc, word & 0xFF, b_tile, a_tile)
                        else:
                            acc = multiply(acc, word & 0xFF, a_tile, b_tile)
                        all_but_one_done()
                    else:
                        products_done()
                        cuda.syncwarp()  # no lane is a whole ring behind
                    if before > 0 and lane == 0:
                        mbar_arrive(before)
                    square = u32(square + 1)
                    while square < last:
                        word = load_shared(listed + square * 4)
                        a_tile = u64(a_tile + A_BYTES // 16)
                        b_tile = u64(b_tiles + u64(word >> 8))
                        if SWAPPED:
                            acc = multiply(acc, word & 0xFF, b_tile, a_tile)
                        else:
                            acc = multiply(acc, word & 0xFF, a_tile, b_tile)
                        square = u32(square + 1)
                    before = u32(empty + slot * 8)
                    slot = u32(slot + 1)
                    if slot == STAGES:
                        slot, parity = u32(0), u32(parity ^ 1)
                products_done()
                if lane == 0:
                    mbar_arrive(before)

                sums = cuda.local.array(REGISTERS, float32)
                spread(acc, sums)
                batch = i32(slab // slabs)
                col0 = u32(slab % slabs * TILE_N + col_group * (CHUNKS * CHUNK))
                corner = (batch, row0, u32(row_group * ROWS), rows, col0)
                factors = (f32(alpha), f32(beta))
                if SPLIT and slot_of_item >= 0:
                    write_partial(0, (sums, corner, slot_of_item, partial))
                elif WHOLE:
                    store(
                        0,
                        (
                            sums,
                            corner,
                            factors[0],
                            map_address(out_map),
                            out_smem,
                            group,
                        ),
                    )
                else:
                    write(0, (sums, corner, factors, out))
                tile = u32(tile + step)
                step = u32(2 * cuda.gridDim.x - step)
            if elected:
                all_written()

    return dsd_wgmma
