"""sdd, first rung: the blocks of ``x @ y`` that a layout stores; any dtype.

One CTA owns a tile of one block: TILE_M of its rows by TILE_N of its columns, and a
range of the inner dimension. It walks the range TILE_K at a time: a step stages
TILE_K columns of ``x`` and rows of ``y``, then each thread multiplies its THREAD_M
rows by its THREAD_N columns out of registers. A block of 32 x 32 is work for 16
threads; so GROUPS of threads share a tile, each takes every GROUPS-th k of a step,
and their sums are added at the end, in order.

    grid     (batch * splits * blocks * tiles of a block,)
    threads  (THREADS_M * THREADS_N * GROUPS,)
    shared   TILE_K * (TILE_M + TILE_N) items of the accumulation dtype, padded, or
             the sums of all threads: what is larger
    reads    C + R values per k and block, 1 / TILE_N + 1 / TILE_M per product

Where there are few blocks, the inner dimension is cut in ``splits`` ranges. Each
writes its sums to ``partial``; the kernel of ``sum_partials_simt.py`` adds them in
order.
"""

from . import sum_partials_simt
from .compiler import cast, cuda, device, jit, maker, numba_type, u64
from .launch import ceil_div, run
from .tiles import (
    index,
    make_multiply_add,
    make_narrow,
    make_widen,
    pitch,
    run_length,
    scalars,
    staging_threads,
)


def launch(config, plan, x, y, out, partial, alpha, beta, stream):
    """Write ``out = alpha * (x @ y) + beta * out``; see :func:`numba_bs.sddmm`.

    Parameters
    ----------
    config : choose.SimtConfig
    plan : plan.BlockPlan of Operands
    x : (batch, summed, heads, M, N)
    y : (batch, summed, heads, N, K)
    out : (batch, blocks, R, C)
    partial : (batch, splits, blocks, R, C) accumulation dtype; 0 splits if not cut
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    batch, blocks, R, C = out.shape
    N = x.shape[-1]
    splits = partial.shape[1] or 1
    kernel = _make_kernel(
        R,
        C,
        config.tile_m,
        config.tile_n,
        config.tile_k,
        config.thread_m,
        config.thread_n,
        config.groups,
        config.accumulator,
        x.dtype,
        y.dtype,
        out.dtype,
        x.conj,
        y.conj,
        abs(x.strides[4]) <= abs(x.strides[3]),
        abs(y.strides[3]) < abs(y.strides[4]),
        abs(out.strides[2]) < abs(out.strides[3]),
    )
    tiles = ceil_div(R, config.tile_m) * ceil_div(C, config.tile_n)
    length = ceil_div(ceil_div(N, splits), config.tile_k) * config.tile_k
    factors = scalars(config.accumulator, alpha, beta)
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
    THREAD_M,
    THREAD_N,
    GROUPS,
    accumulator,
    x_dtype,
    y_dtype,
    out_dtype,
    conj_x,
    conj_y,
    X_ALONG_K,
    Y_ALONG_K,
    OUT_ALONG_M,
):
    """Compile-time: block size, tiles, dtypes; what lies in memory along which axis.

    ``conj_x``, ``conj_y``: whether values count as conjugated.
    """
    THREADS_M, THREADS_N = TILE_M // THREAD_M, TILE_N // THREAD_N
    TILE_THREADS = THREADS_M * THREADS_N
    THREADS = TILE_THREADS * GROUPS
    ROW_TILES, COL_TILES = ceil_div(R, TILE_M), ceil_div(C, TILE_N)

    # Staging: K_THREADS by M_THREADS (N_THREADS) threads, in so many passes. The last
    # pass may lead past the tile: its room in shared memory is part of the padding.
    X_K_THREADS, X_M_THREADS = staging_threads(
        X_ALONG_K, TILE_K, TILE_M, THREADS, x_dtype
    )
    Y_K_THREADS, Y_N_THREADS = staging_threads(
        Y_ALONG_K, TILE_K, TILE_N, THREADS, y_dtype
    )
    X_K_PASSES = ceil_div(TILE_K, X_K_THREADS)
    X_M_PASSES = ceil_div(TILE_M, X_M_THREADS)
    Y_K_PASSES = ceil_div(TILE_K, Y_K_THREADS)
    Y_N_PASSES = ceil_div(TILE_N, Y_N_THREADS)
    X_PITCH = pitch(X_M_PASSES * X_M_THREADS, accumulator)
    Y_PITCH = pitch(Y_N_PASSES * Y_N_THREADS, accumulator)
    ROWS_FIT = R % (X_M_PASSES * X_M_THREADS) == 0
    COLS_FIT = C % (Y_N_PASSES * Y_N_THREADS) == 0

    K_ROOM = max(X_K_PASSES * X_K_THREADS, Y_K_PASSES * Y_K_THREADS)

    # One array in shared memory: first the tiles, at last the sums.
    Y_FIRST = K_ROOM * X_PITCH
    TILE_ITEMS = Y_FIRST + K_ROOM * Y_PITCH
    SUM_PITCH = pitch(TILE_N, accumulator)
    ROOM = max(TILE_ITEMS, GROUPS * TILE_M * SUM_PITCH)

    # Columns of a thread come in runs that it reads from shared memory at once.
    RUN = run_length(THREAD_N, accumulator)
    RUN_STEP = RUN * THREADS_N

    # Four steps a turn where that goes: the loop costs instructions too.
    UNROLLED = TILE_K % (4 * GROUPS) == 0
    TURN = 4 * GROUPS if UNROLLED else GROUPS

    dtype, to_sum = numba_type(accumulator), cast(accumulator)
    zero = accumulator.type(0)
    widen_x = make_widen(x_dtype, accumulator, conj_x)
    widen_y = make_widen(y_dtype, accumulator, conj_y)
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    multiply_add = make_multiply_add(accumulator)

    @device
    def multiply(k, m0, n0, x_smem, y_smem, acc):
        # acc += (column k of the x tile) times (row k of the y tile), my part of it.
        y_reg = cuda.local.array(THREAD_N, dtype)
        for j in range(THREAD_N):
            n = n0 + j // RUN * RUN_STEP + j % RUN
            y_reg[j] = y_smem[u64(k * Y_PITCH + n)]
        for i in range(THREAD_M):
            x_value = x_smem[u64(k * X_PITCH + m0 + i)]
            for j in range(THREAD_N):
                acc[i, j] = multiply_add(acc[i, j], x_value, y_reg[j])

    @jit(threads=THREADS)
    def sdd_simt(
        block_row,  # (blocks,) int32
        block_col,  # (blocks,) int32
        block_head,  # (blocks,) int32
        x,  # (batch, summed, heads, M, N) x_dtype
        y,  # (batch, summed, heads, N, K) y_dtype
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
        cta, block = cta // block_row.size, cta % block_row.size
        splits = max(partial.shape[1], 1)
        batch, split = cta // splits, cta % splits
        head = index(block_head[block])
        x_row0 = index(block_row[block]) * R + row0
        y_col0 = index(block_col[block]) * C + col0
        end = min((split + 1) * length, x.shape[4])

        # Which rows and columns of the tile, which k of a step are mine?
        group = tid // TILE_THREADS if GROUPS > 1 else 0
        tid_m, tid_n = tid // THREADS_N % THREADS_M, tid % THREADS_N
        m0, n0 = tid_m * THREAD_M, tid_n * RUN
        # And which elements do I stage?
        if X_ALONG_K:
            x_k, x_m = tid % X_K_THREADS, tid // X_K_THREADS
        else:
            x_k, x_m = tid // X_M_THREADS, tid % X_M_THREADS
        if Y_ALONG_K:
            y_k, y_n = tid % Y_K_THREADS, tid // Y_K_THREADS
        else:
            y_k, y_n = tid // Y_N_THREADS, tid % Y_N_THREADS

        smem = cuda.shared.array(ROOM, dtype, alignment=16)
        x_smem, y_smem, sums_smem = smem, smem[Y_FIRST:], smem
        acc = cuda.local.array((THREAD_M, THREAD_N), dtype)
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                acc[i, j] = zero

        for s in range(x.shape[1]):
            x_tile = x[batch, s, head, x_row0:]
            y_tile = y[batch, s, head, :, y_col0:]
            k0 = split * length
            while k0 < end:
                # Stage columns of x and rows of y. Where they lead past the block they
                # repeat its last row or column, whose sums are not written; where they
                # lead past the range, its last k.
                for i in range(X_K_PASSES):
                    k = x_k + i * X_K_THREADS
                    at = u64(min(k0 + k, end - 1))
                    for j in range(X_M_PASSES):
                        m = x_m + j * X_M_THREADS
                        r = m if ROWS_FIT else min(m, R - 1 - row0)
                        x_smem[k * X_PITCH + m] = widen_x(x_tile[u64(r), at])
                for i in range(Y_K_PASSES):
                    k = y_k + i * Y_K_THREADS
                    y_row = y_tile[u64(min(k0 + k, end - 1))]
                    for j in range(Y_N_PASSES):
                        n = y_n + j * Y_N_THREADS
                        c = n if COLS_FIT else min(n, C - 1 - col0)
                        y_smem[k * Y_PITCH + n] = widen_y(y_row[u64(c)])
                # That k was counted already: a k past the range counts as zero.
                if k0 + K_ROOM > end:
                    for i in range(X_K_PASSES):
                        k = x_k + i * X_K_THREADS
                        for j in range(X_M_PASSES):
                            if k0 + k >= end:
                                x_smem[k * X_PITCH + x_m + j * X_M_THREADS] = zero
                    for i in range(Y_K_PASSES):
                        k = y_k + i * Y_K_THREADS
                        for j in range(Y_N_PASSES):
                            if k0 + k >= end:
                                y_smem[k * Y_PITCH + y_n + j * Y_N_THREADS] = zero
                cuda.syncthreads()  # both tiles are whole

                k = 0
                while k < TILE_K:
                    mine = k + group
                    multiply(mine, m0, n0, x_smem, y_smem, acc)
                    if UNROLLED:
                        multiply(mine + GROUPS, m0, n0, x_smem, y_smem, acc)
                        multiply(mine + 2 * GROUPS, m0, n0, x_smem, y_smem, acc)
                        multiply(mine + 3 * GROUPS, m0, n0, x_smem, y_smem, acc)
                    k += TURN
                k0 += TILE_K
                cuda.syncthreads()  # both tiles are free to overwrite

        # Hand the sums over through shared memory, which the tiles do not need any
        # more: now neighbouring threads can write neighbouring elements.
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                n = n0 + j // RUN * RUN_STEP + j % RUN
                sums_smem[(group * TILE_M + m0 + i) * SUM_PITCH + n] = acc[i, j]
        cuda.syncthreads()  # the sums of all threads are there
        out_block = out[batch, block]
        element = tid
        while element < TILE_M * TILE_N:
            if OUT_ALONG_M:
                m, n = element % TILE_M, element // TILE_M
            else:
                m, n = element // TILE_N, element % TILE_N
            total = sums_smem[m * SUM_PITCH + n]
            for g in range(1, GROUPS):  # in order
                total += sums_smem[(g * TILE_M + m) * SUM_PITCH + n]
            r, c = row0 + m, col0 + n
            if r < R and c < C:
                if partial.shape[1] > 0:
                    partial[batch, split, block, r, c] = total
                else:
                    total = to_sum(alpha * total)
                    if beta != 0:
                        total = to_sum(total + beta * widen_out(out_block[r, c]))
                    out_block[r, c] = narrow(total)
            element += THREADS

    return sdd_simt
