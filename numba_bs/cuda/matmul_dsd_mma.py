"""dsd, second rung: tensor cores by ``mma.sync`` (compute capability 8.0).

As in the first rung, a CTA owns TILE_M rows of one block row by TILE_N columns of
``out`` and walks the stored blocks of its work item in steps of TILE_K. Each warp
owns WARP_M x WARP_N of that tile, the sums in its registers.

Against ``matmul_dsd_simt.py``:

- *A warp multiplies.* One ``mma.sync`` is 16 x 8 x 16 products of 16-bit numbers, 64
  times what a multiply-add of the same 32 threads is, out of fragments that
  ``ldmatrix`` hands to the lanes (``tiles_mma.py``). Operands stay as they are stored
  (or become tf32, once they are in registers); sums are as wide as before.
- *Copies run ahead.* ``cp.async`` goes from global to shared memory past the
  registers, and a thread does not wait for it. STAGES buffers hold the step that is
  multiplied and those on their way: memory has STAGES - 1 steps of time to answer,
  and one barrier a step says both that a buffer is full and that another is free.

    grid     (batch * ceil(N / TILE_N) * items * R / TILE_M,)
    threads  (32 * WARPS,)
    shared   STAGES * TILE_K * (TILE_M + TILE_N) items of the operands, padded, or
             TILE_M * TILE_N sums: whichever is larger; dynamic
    reads    each stored block once for every TILE_N columns of ``b``; C rows of ``b``
             for each of the R / TILE_M row tiles of a stored block
"""

from . import fragments, sum_partials_simt
from .compiler import (
    cast,
    cuda,
    device,
    i64,
    int32,
    int64,
    jit,
    maker,
    numba_type,
    uint32,
)
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


def launch(config, plan, a, b, out, partial, alpha, beta, stream):
    """Write ``out = alpha * A @ b + beta * out``; see :func:`numba_bs.matmul`.

    Parameters
    ----------
    config : choose.mma.MmaConfig
        ``tile_m`` divides R, ``tile_n`` is at most N.
    plan : plan.RowPlan of Operands
    a : (batch, summed, blocks, R, C) values of A
    b : (batch, summed, heads, K, N), of the dtype of ``a``
    out : (batch, heads, M, N)
    partial : (batch, slots, R, N) accumulation dtype
    alpha, beta : scalars; ``beta == 0`` does not read ``out``
    """
    batch, _, _, R, C = a.shape
    N = b.shape[-1]
    items = plan.item_row.shape[0]
    if 0 in (batch, items, N):
        return
    assert R % config.tile_m == 0, (config, R)
    assert config.tile_n <= N, (config, N)
    a_along_k = abs(a.strides[4]) <= abs(a.strides[3])
    b_along_k = abs(b.strides[3]) < abs(b.strides[4])
    kernel = _make_kernel(
        R,
        C,
        *config.tiles,
        config.kind,
        out.dtype,
        a_along_k,
        b_along_k,
        abs(out.strides[2]) < abs(out.strides[3]),
        vector_bytes(a if a_along_k else a.mT),
        vector_bytes(b.mT if b_along_k else b),
    )
    grid = batch * ceil_div(N, config.tile_n) * items * (R // config.tile_m)
    sums = KINDS[config.kind].sums
    items_and_entries = plan[: plan._fields.index("split_row")]
    factors = scalars(sums, alpha, beta)
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
    WARP_M,
    WARP_N,
    STAGES,
    kind,
    out_dtype,
    A_ALONG_K,
    B_ALONG_K,
    OUT_ALONG_M,
    A_VECTOR,
    B_VECTOR,
):
    """Compile-time: block size, tiles, precision; how the operands lie in memory.

    ``A_VECTOR``, ``B_VECTOR``: bytes that can be copied at once.
    """
    WARPS_N = TILE_N // WARP_N
    THREADS = WARP * (TILE_M // WARP_M) * WARPS_N
    ROW_TILES = R // TILE_M
    M_FRAGMENTS, N_TILES = WARP_M // 16, WARP_N // 8

    # A step takes TILE_K columns of one block, or all columns of several.
    ENTRIES, BLOCK_STEPS = max(TILE_K // C, 1), ceil_div(C, TILE_K)
    STEPS_FIT = C % TILE_K == 0

    storage, accumulator = KINDS[kind].storage, KINDS[kind].sums
    ITEM = storage.itemsize
    A = tile(A_ALONG_K, TILE_K, TILE_M, A_VECTOR, THREADS, ITEM)
    B = tile(B_ALONG_K, TILE_K, TILE_N, B_VECTOR, THREADS, ITEM)
    STAGE = A.items + B.items
    LAST_STAGE = (STAGES - 1) * STAGE
    A_PASSES, B_PASSES = A.k_passes, B.k_passes
    SUMS = sum_items(TILE_M, TILE_N, OUT_ALONG_M)
    SHARED_BYTES = max(STAGES * STAGE * ITEM, SUMS * accumulator.itemsize)

    dtype, sums_type = numba_type(storage), numba_type(accumulator)
    zero, to_sum = accumulator.type(0), cast(accumulator)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen_out = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)
    a_first, b_first = make_first(A), make_first(B)
    copy_a, copy_b = make_copy(A, TILE_K, TILE_M), make_copy(B, TILE_K, TILE_N)
    a_lane, b_lane = make_lane(A, left=True), make_lane(B, left=False)
    multiply = make_multiply(kind, A, B, TILE_K, WARP_M, WARP_N)
    sum_at = make_sum_at(TILE_M, TILE_N, OUT_ALONG_M)
    place_in_fragment = device(fragments.c_of_16x8)
    wait_for_step, wait_for_all = make_cp_wait(STAGES - 2), make_cp_wait(0)

    @device
    def entry_of(k, entry, last):
        # Which entry is k of a step in? Any, if there is none.
        return entry if ENTRIES == 1 else min(entry + k // C, last - 1)

    @device
    def column_of(k, entry, c0, last):
        # Which column of its block is k? And is there one? If not it counts as zero.
        if STEPS_FIT:
            return c0 + k, True
        if ENTRIES == 1:
            return c0 + k, c0 + k < C
        return k % C, k < ENTRIES * C and entry + k // C < last

    @jit(threads=THREADS, dynamic_shared=SHARED_BYTES)
    def dsd_mma(
        item_row,  # (items,) int32
        item_head,  # (items,) int32
        item_first,  # (items,) int32
        item_count,  # (items,) int32
        item_slot,  # (items,) int32
        entry_col,  # (blocks,) int32
        entry_block,  # (blocks,) int32
        a,  # (batch, summed, blocks, R, C) storage dtype
        b,  # (batch, summed, heads, K, N) storage dtype
        out,  # (batch, heads, M, N) out_dtype
        partial,  # (batch, slots, R, N) accumulation dtype
        alpha,
        beta,
    ):
        # Which tile of out is mine? Neighbouring CTAs take neighbouring items.
        tid, cta = index(cuda.threadIdx.x), index(cuda.blockIdx.x)
        cta, row0 = cta // ROW_TILES, cta % ROW_TILES * TILE_M
        items = index(item_row.size)
        cta, item = cta // items, cta % items
        tiles = index((out.shape[3] + TILE_N - 1) // TILE_N)
        batch, col0 = cta // tiles, cta % tiles * TILE_N
        # The last tile is moved left until it ends at N, so that no load needs a
        # test; the columns it then shares with the one before are not its own.
        overlap = max(col0 + TILE_N - out.shape[3], 0)
        col0 -= overlap
        head, slot = index(item_head[item]), item_slot[item]
        first, count = index(item_first[item]), index(item_count[item])
        last = first + count

        # Which part of the tile is my warp's, where in a fragment do I read?
        warp, lane = tid // WARP, tid % WARP
        warp_m, warp_n = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        a_begin = a_lane(lane) + warp_m * A.row_pitch
        b_begin = b_lane(lane) + warp_n * B.row_pitch + A.items
        # And where do I begin to copy?
        a_m, a_k = a_first(tid)
        b_n, b_k = b_first(tid)
        a_from = i64(gmem_addr(a[batch])) + (row0 + a_m) * a.strides[3]
        b_from = i64(gmem_addr(b[batch])) + (col0 + b_n) * b.strides[4]
        b_from += head * b.strides[2]

        smem = cuda.shared.array(0, dtype, alignment=16)
        smem_base = index(smem_addr(smem))
        a_block = cuda.local.array(A_PASSES, int32)
        b_block = cuda.local.array(B_PASSES, int32)
        a_source = cuda.local.array(A_PASSES, int64)
        b_source = cuda.local.array(B_PASSES, int64)
        a_bytes = cuda.local.array(A_PASSES, uint32)
        b_bytes = cuda.local.array(B_PASSES, uint32)
        acc = cuda.local.array((M_FRAGMENTS, N_TILES, 4), sums_type)
        for i in range(M_FRAGMENTS):
            for j in range(N_TILES):
                for e in range(4):
                    acc[i, j, e] = zero

        # A turn multiplies a step and copies the one STAGES - 1 later; the first turns
        # only copy. An item without entries takes none.
        steps = a.shape[1] * ((count + ENTRIES - 1) // ENTRIES) * BLOCK_STEPS
        step, entry, c0 = 1 - STAGES if count > 0 else 0, first, 0
        full, free = 0, 0  # where their buffers begin
        while step < steps:
            # Which blocks to copy is asked now, so that the answer is there in time.
            for p in range(A_PASSES):
                a_block[p] = entry_block[entry_of(a_k + p * A.k_pass, entry, last)]
            for p in range(B_PASSES):
                b_block[p] = entry_col[entry_of(b_k + p * B.k_pass, entry, last)]
            if step >= 0:
                wait_for_step()
                cuda.syncthreads()  # this buffer is full, the one before it is free
                multiply(smem, smem_base, full + a_begin, full + b_begin, acc)
                full = full + STAGE if full < LAST_STAGE else 0
            if step + STAGES - 1 < steps:
                for p in range(A_PASSES):
                    c, inside = column_of(a_k + p * A.k_pass, entry, c0, last)
                    block = index(a_block[p])
                    a_source[p] = a_from + block * a.strides[2] + c * a.strides[4]
                    a_bytes[p] = A.vector if inside else 0
                for p in range(B_PASSES):
                    c, inside = column_of(b_k + p * B.k_pass, entry, c0, last)
                    row = index(b_block[p]) * C + c
                    b_source[p] = b_from + row * b.strides[3]
                    b_bytes[p] = B.vector if inside else 0
                to = smem_base + free * ITEM
                copy_a(to, a_m, a_k, a_source, a_bytes, a.strides[3])
                to += A.items * ITEM
                copy_b(to, b_n, b_k, b_source, b_bytes, b.strides[4])
                free = free + STAGE if free < LAST_STAGE else 0
                c0 += TILE_K
                if c0 >= C:
                    entry, c0 = entry + ENTRIES, 0
                if entry >= last:  # the same blocks of the next summed operands
                    entry = first
                    a_from += a.strides[1]
                    b_from += b.strides[1]
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
                    sums_smem[sum_at(m, n)] = acc[i, j, e]
        cuda.syncthreads()  # the sums of all threads are there
        out_row0 = index(item_row[item]) * R + row0
        out_tile = out[batch, head, out_row0:, col0:]
        element = tid
        while element < TILE_M * TILE_N:
            if OUT_ALONG_M:
                m, n = element % TILE_M, element // TILE_M
            else:
                m, n = element // TILE_N, element % TILE_N
            if n >= overlap:
                total = sums_smem[sum_at(m, n)]
                if slot >= 0:
                    partial[batch, slot, row0 + m, col0 + n] = total
                else:
                    if alpha != one:
                        total = to_sum(alpha * total)
                    if beta != 0:
                        total = to_sum(total + beta * widen_out(out_tile[m, n]))
                    out_tile[m, n] = narrow(total)
            element += THREADS

    return dsd_mma
