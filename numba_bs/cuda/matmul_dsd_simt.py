"""dsd, first rung: register tiles over tiles staged in shared memory; any dtype.

One CTA owns a tile of ``out``: TILE_M rows of one block row by TILE_N columns. It
walks the stored blocks of its work item. A step stages TILE_K of the inner dimension
(part of a block, or several small blocks) with the rows of ``b`` they meet; then each
thread multiplies its THREAD_M rows by its THREAD_N columns out of registers. Where a
tile is too small to give a warp work, GROUPS of threads share it: each takes every
GROUPS-th k of a step, and their sums are added at the end, in order.

    grid     (batch * ceil(N / TILE_N) * items * ceil(R / TILE_M),)
    threads  (THREADS_M * THREADS_N * GROUPS,)
    shared   TILE_K * (TILE_M + TILE_N) items of the accumulation dtype, padded
    reads    each stored block once per TILE_N columns of ``b``

A work item that is a segment of a long row writes its sums to ``partial``; the kernel
of ``sum_partials_simt.py`` adds the segments of each such row in order.
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


def launch(config, plan, a, b, out, partial, alpha, beta, stream):
    """Write ``out = alpha * A @ b + beta * out``; see :func:`numba_bs.matmul`.

    Parameters
    ----------
    config : choose.SimtConfig
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
    run(kernel, grid, stream, plan[:7], a, b, out, partial, *factors)
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
    """Compile-time: block size, tiles, dtypes; which operands lie in memory along k.

    ``conj_a``, ``conj_b``: whether values count as conjugated.
    """
    THREADS_M, THREADS_N = TILE_M // THREAD_M, TILE_N // THREAD_N
    TILE_THREADS = THREADS_M * THREADS_N
    THREADS = TILE_THREADS * GROUPS
    ROW_TILES = ceil_div(R, TILE_M)

    # A step takes TILE_K columns of one block, or all columns of several.
    ENTRIES = max(TILE_K // C, 1)

    # Staging: K_THREADS by M_THREADS (N_THREADS) threads, in so many passes. The last
    # pass may lead past the tile: its room in shared memory is part of the padding.
    A_K_THREADS, A_M_THREADS = staging_threads(
        A_ALONG_K, TILE_K, TILE_M, THREADS, a_dtype
    )
    B_K_THREADS, B_N_THREADS = staging_threads(
        B_ALONG_K, TILE_K, TILE_N, THREADS, b_dtype
    )
    A_K_PASSES = ceil_div(TILE_K, A_K_THREADS)
    A_M_PASSES = ceil_div(TILE_M, A_M_THREADS)
    B_K_PASSES = ceil_div(TILE_K, B_K_THREADS)
    B_N_PASSES = TILE_N // B_N_THREADS
    A_K_ROOM, B_K_ROOM = A_K_PASSES * A_K_THREADS, B_K_PASSES * B_K_THREADS
    A_PITCH = pitch(A_M_PASSES * A_M_THREADS, accumulator)
    B_PITCH = pitch(TILE_N, accumulator)
    ROWS_FIT = R % (A_M_PASSES * A_M_THREADS) == 0
    STEPS_FIT = C % TILE_K == 0 and A_K_ROOM == B_K_ROOM == TILE_K

    # Columns of a thread come in runs that it reads from shared memory at once.
    RUN = run_length(THREAD_N, accumulator)
    RUN_STEP = RUN * THREADS_N

    A_ITEMS = A_K_ROOM * A_PITCH
    TILE_ITEMS = A_ITEMS + B_K_ROOM * B_PITCH
    SUM_ITEMS = GROUPS * TILE_M * B_PITCH
    ROOM = max(TILE_ITEMS, SUM_ITEMS)

    # Four steps a turn where that goes: the loop costs instructions too.
    UNROLLED = TILE_K % (4 * GROUPS) == 0
    TURN = 4 * GROUPS if UNROLLED else GROUPS

    dtype, to_sum = numba_type(accumulator), cast(accumulator)
    zero = accumulator.type(0)
    widen_a = make_widen(a_dtype, accumulator, conj_a)
    widen_b = make_widen(b_dtype, accumulator, conj_b)
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    multiply_add = make_multiply_add(accumulator)

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

    @device
    def multiply(k, m0, n0, a_smem, b_smem, acc):
        # acc += (column k of the a tile) times (row k of the b tile), my part of it.
        b_reg = cuda.local.array(THREAD_N, dtype)
        for j in range(THREAD_N):
            n = n0 + j // RUN * RUN_STEP + j % RUN
            b_reg[j] = b_smem[u64(k * B_PITCH + n)]
        for i in range(THREAD_M):
            a_value = a_smem[u64(k * A_PITCH + m0 + i)]
            for j in range(THREAD_N):
                acc[i, j] = multiply_add(acc[i, j], a_value, b_reg[j])

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
        m0, n0 = tid_m * THREAD_M, tid_n * RUN
        # And which elements do I stage?
        if A_ALONG_K:
            a_k, a_m = tid % A_K_THREADS, tid // A_K_THREADS
        else:
            a_k, a_m = tid // A_M_THREADS, tid % A_M_THREADS
        if B_ALONG_K:
            b_k, b_n = tid % B_K_THREADS, tid // B_K_THREADS
        else:
            b_k, b_n = tid // B_N_THREADS, tid % B_N_THREADS

        smem = cuda.shared.array(ROOM, dtype, alignment=16)
        a_smem, b_smem, sums_smem = smem, smem[A_ITEMS:], smem
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
                for i in range(A_K_PASSES):
                    k = a_k + i * A_K_THREADS
                    at, c, inside = locate(k, entry, c0, last)
                    block = a_values[index(entry_block[at])]
                    for j in range(A_M_PASSES):
                        m = a_m + j * A_M_THREADS
                        r = row0 + m if ROWS_FIT else min(row0 + m, R - 1)
                        value = widen_a(block[r, u64(c)])
                        a_smem[k * A_PITCH + m] = value if inside else zero
                for i in range(B_K_PASSES):
                    k = b_k + i * B_K_THREADS
                    at, c, inside = locate(k, entry, c0, last)
                    b_row = b_tile[u64(index(entry_col[at]) * C + c)]
                    for j in range(B_N_PASSES):
                        n = b_n + j * B_N_THREADS
                        value = widen_b(b_row[n])
                        b_smem[k * B_PITCH + n] = value if inside else zero
                cuda.syncthreads()  # both tiles are whole

                k = 0
                while k < TILE_K:
                    mine = k + group
                    multiply(mine, m0, n0, a_smem, b_smem, acc)
                    if UNROLLED:
                        multiply(mine + GROUPS, m0, n0, a_smem, b_smem, acc)
                        multiply(mine + 2 * GROUPS, m0, n0, a_smem, b_smem, acc)
                        multiply(mine + 3 * GROUPS, m0, n0, a_smem, b_smem, acc)
                    k += TURN
                c0 += TILE_K
                if c0 >= C:
                    entry, c0 = entry + ENTRIES, 0
                cuda.syncthreads()  # both tiles are free to overwrite

        # Hand the sums over through shared memory, which the tiles do not need any
        # more: now neighbouring threads can write neighbouring elements.
        for i in range(THREAD_M):
            for j in range(THREAD_N):
                n = n0 + j // RUN * RUN_STEP + j % RUN
                sums_smem[(group * TILE_M + m0 + i) * B_PITCH + n] = acc[i, j]
        cuda.syncthreads()  # the sums of all threads are there
        out_row0 = index(item_row[item]) * R + row0
        out_tile = out[batch, head, out_row0:, col0:]
        element = tid
        while element < TILE_M * TILE_N:
            if OUT_ALONG_M:
                m, n = element % TILE_M, element // TILE_M
            else:
                m, n = element // TILE_N, element % TILE_N
            total = sums_smem[m * B_PITCH + n]
            for g in range(1, GROUPS):  # in order
                total += sums_smem[(g * TILE_M + m) * B_PITCH + n]
            if row0 + m < R and n >= overlap:
                if slot >= 0:
                    partial[batch, slot, row0 + m, col0 + n] = total
                else:
                    total = to_sum(alpha * total)
                    if beta != 0:
                        total = to_sum(total + beta * widen_out(out_tile[m, n]))
                    out_tile[m, n] = narrow(total)
            element += THREADS

    return dsd_simt
