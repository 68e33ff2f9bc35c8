"""sdd, first rung: the blocks of ``x @ y`` that a layout stores; any dtype.

One CTA owns a tile of one block: TILE_M of its rows by TILE_N of its columns, and a
range of the inner dimension. It walks the range TILE_K at a time: a step stages
TILE_K columns of ``x`` and rows of ``y``, then each thread multiplies its THREAD_M
rows by its THREAD_N columns out of registers. A block of 32 x 32 is work for 16
threads; so GROUPS of threads share a tile, each takes every GROUPS-th run of K_RUN k
of a step, and their sums are added at the end, in order.

    grid     (batch * splits * blocks * tiles of a block,)
    threads  (THREADS_M * THREADS_N * GROUPS,)
    shared   TILE_K * (TILE_M + TILE_N) items of the accumulation dtype, padded, or
             the sums of all threads: whichever is larger
    reads    C + R values per k and block, 1 / TILE_N + 1 / TILE_M per product

Where there are few blocks, the inner dimension is cut in ``splits`` ranges. Each
writes its sums to ``partial``; the kernel of ``sum_partials_simt.py`` adds them in
order.
"""

from . import sum_partials_simt
from .compiler import cast, cuda, jit, maker, numba_type, u64
from .launch import ceil_div, run
from .tiles import (
    index,
    make_at,
    make_multiply,
    make_narrow,
    make_row,
    make_stager,
    make_widen,
    pitch,
    scalars,
    staged,
)


def launch(config, plan, x, y, out, partial, alpha, beta, stream):
    """Write ``out = alpha * (x @ y) + beta * out``; see :func:`numba_bs.sddmm`.

    Parameters
    ----------
    config : choose.simt.SimtConfig
        ``tile_k`` is at most N.
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
    # Each group takes whole runs of neighbouring k.
    assert config.tile_k % (config.k_run * config.groups) == 0 or config.k_run == 1
    kernel = _make_kernel(
        R,
        C,
        config.tile_m,
        config.tile_n,
        config.tile_k,
        config.thread_m,
        config.thread_n,
        config.groups,
        config.k_run,
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
    K_RUN,
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

    X = staged(X_ALONG_K, TILE_K, TILE_M, THREAD_M, THREADS, GROUPS, accumulator)
    Y = staged(Y_ALONG_K, TILE_K, TILE_N, THREAD_N, THREADS, GROUPS, accumulator)
    ROWS_FIT, COLS_FIT = R % X.row_room == 0, C % Y.row_room == 0
    K_FITS = X.k_room == Y.k_room == TILE_K

    # One array in shared memory: first the tiles, at last the sums.
    Y_FIRST = X.items
    SUM_PITCH = pitch(TILE_N, accumulator)
    ROOM = max(Y_FIRST + Y.items, GROUPS * TILE_M * SUM_PITCH)

    dtype, to_sum = numba_type(accumulator), cast(accumulator)
    zero = accumulator.type(0)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen_x = make_widen(x_dtype, accumulator, conj_x)
    widen_y = make_widen(y_dtype, accumulator, conj_y)
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    x_first, y_first = make_stager(X), make_stager(Y)
    x_at, y_at = make_at(X), make_at(Y)
    x_row, y_row = make_row(X), make_row(Y)
    multiply = make_multiply(X, Y, THREAD_M, THREAD_N, K_RUN, accumulator)

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
        # And where do I begin to stage?
        x_m, x_k = x_first(tid)
        y_n, y_k = y_first(tid)

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
                # Stage columns of x and rows of y. The last step is moved left until
                # it ends at the range's end, so that no load needs a test. Rows past
                # the block repeat its last one: their sums are not written.
                overlap = max(k0 + TILE_K - end, 0)
                x_step = x_tile[:, k0 - overlap :]
                y_step = y_tile[k0 - overlap :]
                for i in range(X.k_passes):
                    k = x_k + i * X.k_threads
                    col = k if K_FITS else min(k, TILE_K - 1)
                    for j in range(X.row_passes):
                        m = x_m + j * X.row_threads
                        r = m if ROWS_FIT else min(m, R - 1 - row0)
                        x_smem[u64(x_at(m, k))] = widen_x(x_step[u64(r), u64(col)])
                for i in range(Y.k_passes):
                    k = y_k + i * Y.k_threads
                    row = k if K_FITS else min(k, TILE_K - 1)
                    for j in range(Y.row_passes):
                        n = y_n + j * Y.row_threads
                        c = n if COLS_FIT else min(n, C - 1 - col0)
                        y_smem[u64(y_at(n, k))] = widen_y(y_step[u64(row), u64(c)])
                # What the moved step shares with the one before counts as zero.
                if overlap > 0:
                    for i in range(X.k_passes):
                        k = x_k + i * X.k_threads
                        for j in range(X.row_passes):
                            if k < overlap:
                                x_smem[u64(x_at(x_m + j * X.row_threads, k))] = zero
                    for i in range(Y.k_passes):
                        k = y_k + i * Y.k_threads
                        for j in range(Y.row_passes):
                            if k < overlap:
                                y_smem[u64(y_at(y_n + j * Y.row_threads, k))] = zero
                cuda.syncthreads()  # both tiles are whole

                k = group * K_RUN
                while k < TILE_K:
                    multiply(k, tid_m, tid_n, x_smem, y_smem, acc)
                    k += GROUPS * K_RUN
                k0 += TILE_K
                cuda.syncthreads()  # both tiles are free to overwrite

        # Hand the sums over through shared memory, which the tiles do not need any
        # more: now neighbouring threads can write neighbouring elements.
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                m, n = x_row(tid_m, i), y_row(tid_n, j)
                sums_smem[(group * TILE_M + m) * SUM_PITCH + n] = acc[i, j]
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
                    if alpha != one:  # complex 1 times infinity is NaN in part
                        total = to_sum(alpha * total)
                    if beta != 0:
                        total = to_sum(total + beta * widen_out(out_block[r, c]))
                    out_block[r, c] = narrow(total)
            element += THREADS

    return sdd_simt
