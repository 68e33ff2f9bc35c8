"""sdd, second rung: tensor cores by ``mma.sync`` (compute capability 8.0).

As in the first rung, a CTA owns a tile of one block, TILE_M of its rows by TILE_N of
its columns, and walks a range of the inner dimension TILE_K at a time; GROUPS share
the tile, where it is too small to give all warps work, and their sums are added at
the end, in order.

Against ``matmul_sdd_simt.py``, what ``matmul_dsd_mma.py`` has against its own first
rung: a warp owns WARP_M x WARP_N of the tile and multiplies fragments by
``mma.sync``; copies run STAGES - 1 steps ahead. A group is a set of warps here, and
takes one part of every step.

    grid     (batch * splits * blocks * tiles of a block,)
    threads  (32 * warps of a tile * GROUPS,)
    shared   STAGES * TILE_K * (TILE_M + TILE_N) items of the operands, padded, or
             GROUPS * TILE_M * TILE_N sums: whichever is larger; dynamic
    reads    C + R values per k and block, 1 / TILE_N + 1 / TILE_M per product

Where there are few blocks, the inner dimension is cut in ``splits`` ranges. Each
writes its sums to ``partial``; the kernel of ``sum_partials_simt.py`` adds them in
order.
"""

from . import fragments, sum_partials_simt
from .compiler import cast, cuda, device, i64, int64, jit, maker, numba_type, uint32
from .fragments import WARP
from .launch import ceil_div, run
from .ptx import cp_commit, gmem_addr, make_cp_wait, smem_addr
from .tiles import index, make_narrow, make_widen, scalars
from .tiles_mma import (
    KINDS,
    make_copy,
    make_first,
    make_lane,
    make_multiply,
    make_sum_at,
    sum_items,
    tile,
    vector_bytes,
)


def launch(config, plan, x, y, out, partial, alpha, beta, stream):
    """Write ``out = alpha * (x @ y) + beta * out``; see :func:`numba_bs.sddmm`.

    Parameters
    ----------
    config : choose.mma.MmaConfig
        ``tile_m`` divides R, ``tile_n`` divides C.
    plan : plan.BlockPlan of Operands
    x : (batch, summed, heads, M, N)
    y : (batch, summed, heads, N, K), of the dtype of ``x``
    out : (batch, blocks, R, C)
    partial : (batch, splits, blocks, R, C) accumulation dtype; 0 splits if not cut
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    batch, blocks, R, C = out.shape
    N = x.shape[-1]
    splits = partial.shape[1] or 1
    assert R % config.tile_m == C % config.tile_n == 0, (config, R, C)
    x_along_k = abs(x.strides[4]) <= abs(x.strides[3])
    y_along_k = abs(y.strides[3]) < abs(y.strides[4])
    kernel = _make_kernel(
        R,
        C,
        *config.tiles,
        config.groups,
        config.kind,
        out.dtype,
        x_along_k,
        y_along_k,
        abs(out.strides[2]) < abs(out.strides[3]),
        vector_bytes(x if x_along_k else x.mT),
        vector_bytes(y.mT if y_along_k else y),
    )
    tiles = (R // config.tile_m) * (C // config.tile_n)
    length = ceil_div(ceil_div(N, splits), config.tile_k) * config.tile_k
    factors = scalars(KINDS[config.kind].sums, alpha, beta)
    grid = batch * splits * blocks * tiles
    run(kernel, grid, stream, plan, x, y, out, partial, length, *factors)
    if partial.shape[1]:
        sum_partials_simt.launch_blocks(partial, out, alpha, beta, stream)


@maker
def _make_kernel(
    R,
    C,
    TILE_M,
    TILE_N,
    TILE_K,
    WARP_M,
    WARP_N,
    STAGES,
    GROUPS,
    kind,
    out_dtype,
    X_ALONG_K,
    Y_ALONG_K,
    OUT_ALONG_M,
    X_VECTOR,
    Y_VECTOR,
):
    """Compile-time: block size, tiles, precision; how the operands lie in memory.

    ``X_VECTOR``, ``Y_VECTOR``: bytes that can be copied at once.
    """
    WARPS_N = TILE_N // WARP_N
    TILE_WARPS = TILE_M // WARP_M * WARPS_N
    THREADS = WARP * TILE_WARPS * GROUPS
    GROUP_K = TILE_K // GROUPS
    ROW_TILES, COL_TILES = R // TILE_M, C // TILE_N
    M_FRAGMENTS, N_TILES = WARP_M // 16, WARP_N // 8

    storage, accumulator = KINDS[kind].storage, KINDS[kind].sums
    ITEM = storage.itemsize
    X = tile(X_ALONG_K, TILE_K, TILE_M, X_VECTOR, THREADS, ITEM)
    Y = tile(Y_ALONG_K, TILE_K, TILE_N, Y_VECTOR, THREADS, ITEM)
    X_PASSES, Y_PASSES = X.k_passes, Y.k_passes
    STAGE = X.items + Y.items
    LAST_STAGE = (STAGES - 1) * STAGE
    SUMS = sum_items(TILE_M, TILE_N, OUT_ALONG_M)
    SHARED_BYTES = max(STAGES * STAGE * ITEM, GROUPS * SUMS * accumulator.itemsize)

    dtype, sums_type = numba_type(storage), numba_type(accumulator)
    zero, to_sum = accumulator.type(0), cast(accumulator)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    x_first, y_first = make_first(X), make_first(Y)
    copy_x, copy_y = make_copy(X, TILE_K, TILE_M), make_copy(Y, TILE_K, TILE_N)
    x_lane, y_lane = make_lane(X, left=True), make_lane(Y, left=False)
    multiply = make_multiply(kind, X, Y, GROUP_K, WARP_M, WARP_N)
    sum_at = make_sum_at(TILE_M, TILE_N, OUT_ALONG_M)
    place_in_fragment = device(fragments.c_of_16x8)
    wait_for_step, wait_for_all = make_cp_wait(STAGES - 2), make_cp_wait(0)

    @jit(threads=THREADS, dynamic_shared=SHARED_BYTES)
    def sdd_mma(
        block_row,  # (blocks,) int32
        block_col,  # (blocks,) int32
        block_head,  # (blocks,) int32
        x,  # (batch, summed, heads, M, N) storage dtype
        y,  # (batch, summed, heads, N, K) storage dtype
        out,  # (batch, blocks, R, C) out_dtype
        partial,  # (batch, splits, blocks, R, C) accumulation dtype
        length,  # of the range of one split, a multiple of TILE_K
        alpha,
        beta,
    ):
        # Which tile of which block, and which range, is mine? Neighbouring CTAs take
        # neighbouring blocks.
        tid, cta = index(cuda.threadIdx.x), index(cuda.blockIdx.x)
        cta, col0 = cta // COL_TILES, cta % COL_TILES * TILE_N
        cta, row0 = cta // ROW_TILES, cta % ROW_TILES * TILE_M
        blocks, splits = index(block_row.size), index(max(partial.shape[1], 1))
        cta, block = cta // blocks, cta % blocks
        batch, split = cta // splits, cta % splits
        head = index(block_head[block])
        x_row0 = index(block_row[block]) * R + row0
        y_col0 = index(block_col[block]) * C + col0
        begin, end = split * length, min((split + 1) * length, x.shape[4])

        # Which part of the tile, and of a step, is my warp's; where do I read?
        warp, lane = tid // WARP, tid % WARP
        group = warp // TILE_WARPS
        warp_m = warp // WARPS_N % (TILE_M // WARP_M) * WARP_M
        warp_n = warp % WARPS_N * WARP_N
        x_begin = x_lane(lane) + warp_m * X.row_pitch + group * GROUP_K * X.k_pitch
        y_begin = y_lane(lane) + warp_n * Y.row_pitch + group * GROUP_K * Y.k_pitch
        y_begin += X.items
        # And where do I begin to copy?
        x_m, x_k = x_first(tid)
        y_n, y_k = y_first(tid)
        x_from = i64(gmem_addr(x[batch])) + head * x.strides[2]
        x_from += (x_row0 + x_m) * x.strides[3]
        y_from = i64(gmem_addr(y[batch])) + head * y.strides[2]
        y_from += (y_col0 + y_n) * y.strides[4]

        smem = cuda.shared.array(0, dtype, alignment=16)
        smem_base = index(smem_addr(smem))
        x_source = cuda.local.array(X_PASSES, int64)
        y_source = cuda.local.array(Y_PASSES, int64)
        x_bytes = cuda.local.array(X_PASSES, uint32)
        y_bytes = cuda.local.array(Y_PASSES, uint32)
        acc = cuda.local.array((M_FRAGMENTS, N_TILES, 4), sums_type)
        for i in range(M_FRAGMENTS):
            for j in range(N_TILES):
                for e in range(4):
                    acc[i, j, e] = zero

        # A turn multiplies a step and copies the one STAGES - 1 later; the first turns
        # only copy.
        steps = x.shape[1] * ((max(end - begin, 0) + TILE_K - 1) // TILE_K)
        step, k0 = 1 - STAGES, begin
        full, free = 0, 0  # where their buffers begin
        while step < steps:
            if step >= 0:
                wait_for_step()
                cuda.syncthreads()  # this buffer is full, the one before it is free
                multiply(smem, smem_base, full + x_begin, full + y_begin, acc)
                full = full + STAGE if full < LAST_STAGE else 0
            if step + STAGES - 1 < steps:
                for p in range(X_PASSES):
                    k = k0 + x_k + p * X.k_pass
                    x_source[p] = x_from + k * x.strides[4]
                    x_bytes[p] = X.vector if k < end else 0
                for p in range(Y_PASSES):
                    k = k0 + y_k + p * Y.k_pass
                    y_source[p] = y_from + k * y.strides[3]
                    y_bytes[p] = Y.vector if k < end else 0
                to = smem_base + free * ITEM
                copy_x(to, x_m, x_k, x_source, x_bytes, x.strides[3])
                to += X.items * ITEM
                copy_y(to, y_n, y_k, y_source, y_bytes, y.strides[4])
                free = free + STAGE if free < LAST_STAGE else 0
                k0 += TILE_K
                if k0 >= end:  # the same range of the next summed operands
                    k0 = begin
                    x_from += x.strides[1]
                    y_from += y.strides[1]
            cp_commit()  # one group a turn, though there may be nothing in it
            step += 1
        wait_for_all()
        cuda.syncthreads()  # nobody reads a tile any more

        # Hand the sums over through shared memory, which the tiles do not need any
        # more: now neighbouring threads can write neighbouring elements.
        sums_smem = cuda.shared.array(0, sums_type, alignment=16)
        for i in range(M_FRAGMENTS):
            for j in range(N_TILES):
                for e in range(4):
                    m, n = place_in_fragment(lane, e)
                    m, n = warp_m + i * 16 + m, warp_n + j * 8 + n
                    sums_smem[group * SUMS + sum_at(m, n)] = acc[i, j, e]
        cuda.syncthreads()  # the sums of all threads are there
        out_block = out[batch, block]
        element = tid
        while element < TILE_M * TILE_N:
            if OUT_ALONG_M:
                m, n = element % TILE_M, element // TILE_M
            else:
                m, n = element // TILE_N, element % TILE_N
            total = sums_smem[sum_at(m, n)]
            for g in range(1, GROUPS):  # in order
                total += sums_smem[g * SUMS + sum_at(m, n)]
            r, c = row0 + m, col0 + n
            if partial.shape[1] > 0:
                partial[batch, split, block, r, c] = total
            else:
                if alpha != one:
                    total = to_sum(alpha * total)
                if beta != 0:
                    total = to_sum(total + beta * widen_out(out_block[r, c]))
                out_block[r, c] = narrow(total)
            element += THREADS

    return sdd_mma
