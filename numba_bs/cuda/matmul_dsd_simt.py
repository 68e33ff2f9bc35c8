"""dsd, first rung: register tiles over tiles staged in shared memory; any dtype.

One CTA owns a tile of ``out``: TILE_M rows of one block row by TILE_N columns. It
walks the stored blocks of its work item. A step stages TILE_K of the inner dimension
(part of a block, or several small blocks) with the rows of ``b`` they meet; then each
thread multiplies its THREAD_M rows by its THREAD_N columns out of registers. Where a
tile is too small to give a warp work, GROUPS of threads share it: each takes every
GROUPS-th run of K_RUN k of a step, and their sums are added at the end, in order.

    grid     (batch * ceil(N / TILE_N) * items * ceil(R / TILE_M),)
    threads  (THREADS_M * THREADS_N * GROUPS,)
    shared   TILE_K * (TILE_M + TILE_N) items of the accumulation dtype, padded, or
             the sums of all threads: whichever is larger
    reads    each stored block once for every TILE_N columns of ``b``; C rows of ``b``
             for each of the ceil(R / TILE_M) row tiles of a stored block

A work item that is a segment of a long row writes its sums to ``partial``; the kernel
of ``sum_partials_simt.py`` adds the segments of each such row in order.
"""

from . import sum_partials_simt
from .compiler import cast, cuda, device, jit, maker, numba_type, u64
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


def launch(config, plan, a, b, out, partial, alpha, beta, stream):
    """Write ``out = alpha * A @ b + beta * out``; see :func:`numba_bs.matmul`.

    Parameters
    ----------
    config : choose.simt.SimtConfig
        ``tile_n`` is at most N.
    plan : plan.RowPlan of Operands
    a : (batch, summed, blocks, R, C) values of A
    b : (batch, summed, heads, K, N)
    out : (batch, heads, M, N)
    partial : (batch, slots, R, N) accumulation dtype
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    batch, _, _, R, C = a.shape
    N = b.shape[-1]
    items = plan.item_row.shape[0]
    if 0 in (batch, items, N):
        return
    assert config.tile_n <= N, (config, N)
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
        a.dtype,
        b.dtype,
        out.dtype,
        a.conj,
        b.conj,
        abs(a.strides[4]) <= abs(a.strides[3]),
        abs(b.strides[3]) < abs(b.strides[4]),
        abs(out.strides[2]) < abs(out.strides[3]),
    )
    grid = batch * ceil_div(N, config.tile_n) * items * ceil_div(R, config.tile_m)
    factors = scalars(config.accumulator, alpha, beta)
    items_and_entries = plan[: plan._fields.index("split_row")]
    run(kernel, grid, stream, items_and_entries, a, b, out, partial, *factors)
    if partial.shape[1]:
        sum_partials_simt.launch_rows(plan, partial, out, alpha, beta, stream)


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
    a_dtype,
    b_dtype,
    out_dtype,
    conj_a,
    conj_b,
    A_ALONG_K,
    B_ALONG_K,
    OUT_ALONG_M,
):
    """Compile-time: block size, tiles, dtypes; what lies in memory along which axis.

    ``conj_a``, ``conj_b``: whether values count as conjugated.
    """
    THREADS_M, THREADS_N = TILE_M // THREAD_M, TILE_N // THREAD_N
    TILE_THREADS = THREADS_M * THREADS_N
    THREADS = TILE_THREADS * GROUPS
    ROW_TILES = ceil_div(R, TILE_M)

    # A step takes TILE_K columns of one block, or all columns of several.
    ENTRIES = max(TILE_K // C, 1)

    A = staged(A_ALONG_K, TILE_K, TILE_M, THREAD_M, THREADS, GROUPS, accumulator)
    B = staged(B_ALONG_K, TILE_K, TILE_N, THREAD_N, THREADS, GROUPS, accumulator)
    ROWS_FIT, COLS_FIT = R % A.row_room == 0, B.row_room == TILE_N
    STEPS_FIT = C % TILE_K == 0 and A.k_room == B.k_room == TILE_K

    # One array in shared memory: first the tiles, at last the sums.
    B_FIRST = A.items
    SUM_PITCH = pitch(TILE_N, accumulator)
    ROOM = max(B_FIRST + B.items, GROUPS * TILE_M * SUM_PITCH)

    dtype, to_sum = numba_type(accumulator), cast(accumulator)
    zero = accumulator.type(0)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen_a = make_widen(a_dtype, accumulator, conj_a)
    widen_b = make_widen(b_dtype, accumulator, conj_b)
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    a_first, b_first = make_stager(A), make_stager(B)
    a_at, b_at = make_at(A), make_at(B)
    a_row, b_col = make_row(A), make_row(B)
    multiply = make_multiply(A, B, THREAD_M, THREAD_N, K_RUN, accumulator)

    @device
    def locate(k, entry, c0, last):
        # Which entry, and which column of its block, is k of this step? The third
        # result is False where there is none: read anything, count it as zero.
        if STEPS_FIT:
            return entry, c0 + k, True
        if ENTRIES == 1:
            return entry, min(c0 + k, C - 1), c0 + k < C
        entry += k // C
        return min(entry, last - 1), k % C, k < ENTRIES * C and entry < last

    @jit(threads=THREADS)
    def dsd_simt(
        item_row,  # (items,) int32
        item_head,  # (items,) int32
        item_first,  # (items,) int32
        item_count,  # (items,) int32
        item_slot,  # (items,) int32
        entry_col,  # (blocks,) int32
        entry_block,  # (blocks,) int32
        a,  # (batch, summed, blocks, R, C) a_dtype
        b,  # (batch, summed, heads, K, N) b_dtype
        out,  # (batch, heads, M, N) out_dtype
        partial,  # (batch, slots, R, N) accumulation dtype
        alpha,
        beta,
    ):
        # Which tile of out is mine? Neighbouring CTAs take neighbouring items.
        tid, cta = index(cuda.threadIdx.x), index(cuda.blockIdx.x)
        cta, row0 = cta // ROW_TILES, cta % ROW_TILES * TILE_M
        cta, item = cta // item_row.size, cta % item_row.size
        tiles = (out.shape[3] + TILE_N - 1) // TILE_N
        batch, col0 = cta // tiles, cta % tiles * TILE_N
        # The last tile is moved left until it ends at N, so that no load needs a
        # test; the columns it then shares with the one before are not its own.
        overlap = max(col0 + TILE_N - out.shape[3], 0)
        col0 -= overlap
        head, slot = index(item_head[item]), item_slot[item]
        first, count = index(item_first[item]), index(item_count[item])

        # Which rows and columns of the tile, which k of a step are mine?
        group = tid // TILE_THREADS if GROUPS > 1 else 0
        tid_m, tid_n = tid // THREADS_N % THREADS_M, tid % THREADS_N
        # And where do I begin to stage?
        a_m, a_k = a_first(tid)
        b_n, b_k = b_first(tid)

        smem = cuda.shared.array(ROOM, dtype, alignment=16)
        a_smem, b_smem, sums_smem = smem, smem[B_FIRST:], smem
        acc = cuda.local.array((THREAD_M, THREAD_N), dtype)
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                acc[i, j] = zero

        for s in range(a.shape[1]):
            a_values = a[batch, s]
            b_tile = b[batch, s, head, :, col0:]
            entry, c0, last = first, 0, first + count
            while entry < last:
                # Stage columns of the blocks and the rows of b they meet. Rows past
                # the block repeat its last one: their sums are not written.
                for i in range(A.k_passes):
                    k = a_k + i * A.k_threads
                    place, c, inside = locate(k, entry, c0, last)
                    block = a_values[index(entry_block[place])]
                    for j in range(A.row_passes):
                        m = a_m + j * A.row_threads
                        r = row0 + m if ROWS_FIT else min(row0 + m, R - 1)
                        value = widen_a(block[r, u64(c)])
                        a_smem[u64(a_at(m, k))] = value if inside else zero
                for i in range(B.k_passes):
                    k = b_k + i * B.k_threads
                    place, c, inside = locate(k, entry, c0, last)
                    b_row = b_tile[u64(index(entry_col[place]) * C + c)]
                    for j in range(B.row_passes):
                        n = b_n + j * B.row_threads
                        col = n if COLS_FIT else min(n, TILE_N - 1)
                        value = widen_b(b_row[u64(col)])
                        b_smem[u64(b_at(n, k))] = value if inside else zero
                cuda.syncthreads()  # both tiles are whole

                k = group * K_RUN
                while k < TILE_K:
                    multiply(k, tid_m, tid_n, a_smem, b_smem, acc)
                    k += GROUPS * K_RUN
                c0 += TILE_K
                if c0 >= C:
                    entry, c0 = entry + ENTRIES, 0
                cuda.syncthreads()  # both tiles are free to overwrite

        # Hand the sums over through shared memory, which the tiles do not need any
        # more: now neighbouring threads can write neighbouring elements.
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                m, n = a_row(tid_m, i), b_col(tid_n, j)
                sums_smem[(group * TILE_M + m) * SUM_PITCH + n] = acc[i, j]
        cuda.syncthreads()  # the sums of all threads are there
        out_row0 = index(item_row[item]) * R + row0
        out_tile = out[batch, head, out_row0:, col0:]
        element = tid
        while element < TILE_M * TILE_N:
            if OUT_ALONG_M:
                m, n = element % TILE_M, element // TILE_M
            else:
                m, n = element // TILE_N, element % TILE_N
            total = sums_smem[m * SUM_PITCH + n]
            for g in range(1, GROUPS):  # in order
                total += sums_smem[(g * TILE_M + m) * SUM_PITCH + n]
            if row0 + m < R and n >= overlap:
                if slot >= 0:
                    partial[batch, slot, row0 + m, col0 + n] = total
                else:
                    if alpha != one:  # complex 1 times infinity is NaN in part
                        total = to_sum(alpha * total)
                    if beta != 0:
                        total = to_sum(total + beta * widen_out(out_tile[m, n]))
                    out_tile[m, n] = narrow(total)
            element += THREADS

    return dsd_simt
