"""sdd on Hopper: a tile of rows against the strips of columns where it has blocks.

Copies, products, barriers and CTAs that stay are those of ``matmul_dsd_wgmma.py``; both
operands are dense here, so that the layout says only what to load and what to write.

- **Several blocks share rows of x.** A CTA loads 64 rows of x for each row of its
  warpgroups, and beside them a run of *strips*: the columns of y, up to 64 each, in
  which one of its rows has a block. One block of SIDE x SIDE alone would make the L2
  cache deliver twice as much, at half the speed.
- **Strips lie side by side.** What ``wgmma`` takes for one right operand of up to 256
  columns are strips from anywhere in y. So it runs at full width, which reads least of
  shared memory, whatever the size of a block.
- **Small blocks are multiplied with their neighbours.** Where a block has 16 or 32
  rows, a tile of 64 multiplies each strip by all of its rows and writes the squares
  that are stored. At 16 rows and density 0.1 seven tenths of the products are wasted.
  Yet that is faster than to skip them: blocks of 16 on their own would want 16 columns
  an instruction, which runs at 40 % for its reads of shared memory, and every copy of a
  strip would serve one row of blocks, which L2 cannot deliver.

    grid     (min(multiprocessors, tiles),), tiles = batch * splits * items
    threads  128 for each of the consumer warpgroups and 128 of loaders
    shared   a ring of stages: CHUNK inner steps of the rows of x and of each strip of y
    reads    64 * ROW_GROUPS rows of x for a run of strips, each strip once for a tile

Where there are few tiles, the inner dimension is cut in ``splits`` ranges, whose sums
``sum_partials_simt.py`` adds in order.
"""

import numpy as np

from .. import strided
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
    make_setmaxnreg,
    make_spread,
    make_wgmma,
    make_wgmma_wait,
    make_zeros,
    mbar_arrive,
    mbar_expect,
    mbar_fence,
    mbar_init,
    mbar_wait,
    smem_addr,
    tma_load_3d,
)
from .tensor_map import matrix_map
from .tiles import in_turn, make_narrow, make_widen

SUMS = np.dtype(np.float32)
WARP, WARPGROUP = 32, 128
ROWS = 64  # of a warpgroup's tile
CHUNK = 64  # inner steps of a stage: 128 bytes of what lies along them
ALIGNMENT = 1024  # bytes, of what is swizzled
# Registers of a thread by the number of consumer warpgroups: those of the loaders, of
# the consumers. All of them together are those of a multiprocessor.
_REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}


def launch(config, plan, x, y, out, partial, alpha, beta, stream):
    """Write ``out = alpha * (x @ y) + beta * out``; see :func:`numba_bs.sddmm`.

    Parameters
    ----------
    config : choose.wgmma_sdd.SampleConfig
    plan : plan.StripPlan of Operands
    x : (batch, summed, 1, M, N), the last or the last but one contiguous; the first
        two are one axis by their strides, where they are not broadcast
    y : (batch, summed, 1, N, K) likewise
    out : (batch, blocks, R, C)
    partial : (batch, splits, blocks, R, C) float32; 0 splits if not cut
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    items = plan.item_row.shape[0]
    batch, summed, N = out.shape[0], x.shape[1], x.shape[-1]
    if 0 in (batch, items):
        return
    splits = partial.shape[1]
    x_along_n = x.strides[4] < x.strides[3]
    y_along_n = y.strides[3] < y.strides[4]
    kernel = _make_kernel(
        "bf16" if x.dtype == bfloat16 else "f16",
        out.dtype,
        *config[: config._fields.index("splits")],
        x_along_n,
        y_along_n,
        splits > 0,
    )
    chunks = ceil_div(N, CHUNK)
    length = ceil_div(summed * chunks, max(splits, 1))
    tiles = batch * max(splits, 1) * items
    x_map, x_outer = _map(x, x_along_n, ROWS, not x_along_n)
    y_map, y_outer = _map(y, y_along_n, config.side * config.wide, y_along_n)
    factors = SUMS.type(alpha), SUMS.type(beta)
    run(
        kernel,
        min(multiprocessors(out.device), tiles),
        stream,
        x_map,
        y_map,
        plan,
        out,
        partial,
        tiles,
        summed * chunks,
        chunks,
        length,
        *x_outer,
        *y_outer,
        *factors,
    )
    if splits:
        sum_partials_simt.launch_blocks(partial, out, alpha, beta, stream)


def _map(operand, along_n, across, turned):
    """Return the tensor map of boxes of CHUNK inner steps by ``across``.

    Besides, the factors that make of batch and summed the place on its outer axis.
    """
    two = operand.shape[:2], operand.strides[:2]
    batch, summed = (size if step else 1 for size, step in zip(*two, strict=True))
    _, (steps,) = strided.merge((batch, summed), operand.strides[:2])
    (step,) = steps or (0,)  # choose made sure that they are one axis
    outer = operand.view(
        (batch * summed, *operand.shape[-2:]), (step, *operand.strides[-2:])
    )
    box = (1, across, CHUNK) if along_n else (1, CHUNK, across)
    factors = summed if batch > 1 else 0, int(summed > 1)
    return matrix_map(outer, turned, box, 2 * box[2]), factors


@maker
def _make_kernel(
    dtype,
    out_dtype,
    SIDE,
    WIDE,
    WIDTH,
    PARTS,
    ROW_GROUPS,
    COL_GROUPS,
    STAGES,
    LOADERS,
    X_ALONG_N,
    Y_ALONG_N,
    SPLIT,
):
    """Compile-time: the types, sizes, how the operands lie in memory.

    A strip is WIDE squares of SIDE. A warpgroup has the sums of 64 rows by PARTS times
    WIDTH columns, a CTA ROW_GROUPS times COL_GROUPS warpgroups.
    """
    STRIP = SIDE * WIDE  # columns
    UNIT = WIDTH // STRIP  # strips of a part
    MOST = UNIT * PARTS * COL_GROUPS
    SQUARES = PARTS * WIDTH // SIDE  # side by side, of a warpgroup
    assert LOADERS <= STAGES, (LOADERS, STAGES)
    assert 16 <= STRIP <= CHUNK, (SIDE, WIDE)
    assert WIDTH % STRIP == 0, (WIDTH, STRIP)
    assert MOST <= WARP, (MOST, "strips")
    assert SQUARES <= WARP, (SQUARES, "squares")
    GROUPS = ROW_GROUPS * COL_GROUPS
    CONSUMERS = GROUPS * WARPGROUP

    # A stage in shared memory: rows of x, strips of y.
    X_BYTES, STRIP_BYTES = ROWS * CHUNK * 2, STRIP * CHUNK * 2
    Y_FIRST = ROW_GROUPS * X_BYTES
    PART_BYTES = UNIT * STRIP_BYTES
    STAGE_BYTES = Y_FIRST + MOST * STRIP_BYTES
    SHARED = ALIGNMENT + STAGES * (STAGE_BYTES + 16)

    # 16 inner steps, in units of 16 bytes
    X_STEP = 2 if X_ALONG_N else 2 * ROWS
    Y_STEP = 2 if Y_ALONG_N else 2 * STRIP
    steps = tuple((0, k * X_STEP, k * Y_STEP) for k in range(CHUNK // 16))
    majors = int(not X_ALONG_N), int(not Y_ALONG_N)
    multiply = make_wgmma(WIDTH, steps, PARTS, 1, *majors, dtype)
    X_DESCRIPTOR = fragments.descriptor(0, 16, 8 * 128, 128)
    if Y_ALONG_N:
        Y_DESCRIPTOR = X_DESCRIPTOR
    else:
        Y_DESCRIPTOR = fragments.descriptor(0, STRIP_BYTES, 16 * STRIP, 2 * STRIP)

    REGISTERS = PARTS * WIDTH // 2
    zeros, spread = make_zeros(REGISTERS), make_spread(REGISTERS)
    products_done, all_but_one_done = make_wgmma_wait(0), make_wgmma_wait(1)
    few, many = _REGISTERS[GROUPS]
    give_registers = make_setmaxnreg("dec", few)
    take_registers = make_setmaxnreg("inc", many)
    FIRST_LOADER = CONSUMERS // WARP

    RUN = 8  # sums that are written by one piece of code
    widen_out = make_widen(out_dtype, SUMS)
    narrow = make_narrow(SUMS, out_dtype)
    sum_place = device(fragments.wgmma_sum)

    @device
    def corner_of(run, lane_block, lane_col):
        # Block of the square of a run of sums, its first column there, which of the
        # square's sums the run begins with. Lane q knows this of the q-th square.
        square, first = run * RUN // (SIDE // 2), run * RUN % (SIDE // 2)
        block = cuda.shfl_sync(0xFFFFFFFF, lane_block, square)
        col = cuda.shfl_sync(0xFFFFFFFF, lane_col, square)
        return block, col, first

    @inlined_late
    def write_run(run, args):
        sums, corner, factors, out = args
        batch, row, lane, lane_block, lane_col = corner
        alpha, beta = factors
        block, col, first = corner_of(run, lane_block, lane_col)
        if block >= 0:
            out_block = out[batch, block]
            for i in range(RUN):
                m, n = sum_place(lane, first + i)
                m, n = u32(row + m), u32(col + n)
                total = f32(alpha * sums[run * RUN + i])
                if beta != 0:
                    total = f32(total + beta * widen_out(out_block[m, n]))
                out_block[m, n] = narrow(total)

    @inlined_late
    def write_partial_run(run, args):
        sums, corner, split, partial = args
        batch, row, lane, lane_block, lane_col = corner
        block, col, first = corner_of(run, lane_block, lane_col)
        if block >= 0:
            part = partial[batch, split, block]
            for i in range(RUN):
                m, n = sum_place(lane, first + i)
                part[u32(row + m), u32(col + n)] = sums[run * RUN + i]

    write = in_turn(write_run, REGISTERS // RUN)
    write_partial = in_turn(write_partial_run, REGISTERS // RUN)

    @jit(CONSUMERS + WARPGROUP, dynamic_shared=SHARED, alone=True)
    def sdd_wgmma(
        x_map,  # (batch or summed, M, N), or (..., N, M)
        y_map,  # (batch or summed, N, K), or (..., K, N)
        item_row,  # (items,) int32, first row
        item_first,  # (items,) int32, first strip
        item_count,  # (items,) int32
        strip_col,  # (strips,) int32, first column
        strip_block,  # (strips, rows of squares * WIDE) int32; -1: none
        out,  # (batch, blocks, R, C) out_dtype
        partial,  # (batch, splits, blocks, R, C) float32
        tiles,
        total,  # stages of the inner dimension and the axis that is summed
        chunks,  # of these, of the inner dimension
        length,  # of these, of a split
        x_by_batch,  # place on the outer axis: batch times this
        x_by_summed,  # and what is summed times this
        y_by_batch,
        y_by_summed,
        alpha,
        beta,
    ):
        smem = smem_addr(cuda.shared.array(0, uint8))
        ring = u32(smem + ALIGNMENT - 1) & ~u32(ALIGNMENT - 1)
        full = u32(ring + STAGES * STAGE_BYTES)  # barriers: the stage has arrived
        empty = u32(full + STAGES * 8)  # and: it may be overwritten
        tid = u32(cuda.threadIdx.x)
        lane = tid % WARP
        warp = cuda.shfl_sync(0xFFFFFFFF, tid // WARP, 0)  # uniform, for all to see
        if tid == 0:
            for s in range(STAGES):
                mbar_init(full + s * 8, 1)
                mbar_init(empty + s * 8, CONSUMERS // WARP)
            mbar_fence()
        cuda.syncthreads()  # the barriers are there

        # Tiles of one range of one product come one after the other, the longest first:
        # what runs at a time walks x and y in step, and meets in the L2 cache.
        items = u32(item_row.size)
        splits = u32(max(partial.shape[1], 1))
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
                part, item = u32(tile // items), u32(tile % items)
                batch, first_stage = u32(part // splits), u32(part % splits * length)
                count = u32(max(min(i32(length), i32(total - first_stage)), 0))
                strips = u32(item_count[item])
                row = i32(item_row[item] + lane * ROWS)
                col = i32(0)
                if lane < strips:
                    col = strip_col[u32(item_first[item]) + lane]
                while mine < count:
                    stage = u32(first_stage + mine)
                    summed, k = u32(stage // chunks), i32(stage % chunks * CHUNK)
                    mbar_wait(empty + slot * 8, parity)  # the slot is free
                    cuda.syncwarp()  # a lane that idles must not miss that it was
                    bar = u32(full + slot * 8)
                    room = u32(ring + slot * STAGE_BYTES)
                    if lane == 0:
                        mbar_expect(bar, Y_FIRST + strips * STRIP_BYTES)
                    if lane < ROW_GROUPS:
                        z = i32(batch * x_by_batch + summed * x_by_summed)
                        if X_ALONG_N:
                            tma_load_3d(room + lane * X_BYTES, x_map, bar, k, row, z)
                        else:
                            tma_load_3d(room + lane * X_BYTES, x_map, bar, row, k, z)
                    if lane < strips:
                        to = u32(room + Y_FIRST + lane * STRIP_BYTES)
                        z = i32(batch * y_by_batch + summed * y_by_summed)
                        if Y_ALONG_N:
                            tma_load_3d(to, y_map, bar, k, col, z)
                        else:
                            tma_load_3d(to, y_map, bar, col, k, z)
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
            # A warp has 16 rows of the sums: those of one row of squares.
            warp_row = u32(row_group * ROWS + warp % 4 * 16)
            slot, parity = u32(0), u32(0)
            while tile < tiles:
                part, item = u32(tile // items), u32(tile % items)
                batch, split = i32(part // splits), i32(part % splits)
                count = u32(max(min(i32(length), i32(total - split * length)), 0))
                first, strips = u32(item_first[item]), u32(item_count[item])
                # Warpgroups side by side share the parts of a run.
                parts = u32((strips + UNIT - 1) // UNIT)
                share = u32((parts + COL_GROUPS - 1) // COL_GROUPS)
                first_part = u32(min(col_group * share, parts))
                parts = u32(min(share, parts - first_part))
                # A lane keeps where one square of the warp's row belongs.
                strip = u32(first_part * UNIT + lane // WIDE)
                lane_block, lane_col = i32(-1), i32(0)
                if lane < parts * (UNIT * WIDE) and strip < strips:
                    place = u32(warp_row // SIDE * WIDE + lane % WIDE)
                    lane_block = strip_block[first + strip, place]
                    lane_col = u32(strip_col[first + strip] + lane % WIDE * SIDE)
                    lane_col = i32(lane_col % u32(out.shape[3]))

                acc = zeros()
                stage, before = u32(0), u32(0)
                while stage < count:
                    mbar_wait(full + slot * 8, parity)  # the stage is there
                    room = u32(ring + slot * STAGE_BYTES)
                    x_at = u32(room + row_group * X_BYTES)
                    y_at = u32(room + Y_FIRST + first_part * PART_BYTES)
                    x_tile = u64(X_DESCRIPTOR | u64(x_at >> 4))
                    y_tile = u64(Y_DESCRIPTOR | u64(y_at >> 4))
                    # While the first product of this stage runs, those of the stage
                    # before end: then its slot is free.
                    if parts > 0:
                        acc = multiply(acc, 0, x_tile, y_tile)
                        all_but_one_done()
                    else:
                        products_done()
                        cuda.syncwarp()  # no lane is a whole ring behind
                    if stage > 0 and lane == 0:
                        mbar_arrive(before)
                    part = u32(1)
                    while part < parts:
                        y_tile = u64(y_tile + PART_BYTES // 16)
                        acc = multiply(acc, part, x_tile, y_tile)
                        part = u32(part + 1)
                    before = u32(empty + slot * 8)
                    stage = u32(stage + 1)
                    slot = u32(slot + 1)
                    if slot == STAGES:
                        slot, parity = u32(0), u32(parity ^ 1)
                products_done()
                if count > 0 and lane == 0:
                    mbar_arrive(before)

                sums = cuda.local.array(REGISTERS, float32)
                spread(acc, sums)
                row = u32(u32(item_row[item] + warp_row) % u32(out.shape[2]))
                corner = (batch, row, lane, lane_block, lane_col)
                if SPLIT:
                    write_partial(0, (sums, corner, split, partial))
                else:
                    write(0, (sums, corner, (f32(alpha), f32(beta)), out))
                tile = u32(tile + step)
                step = u32(2 * cuda.gridDim.x - step)

    return sdd_wgmma
