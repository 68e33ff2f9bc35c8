"""Second pass of dsd and sdd: add partial sums in order, one thread per element.

dsd cuts long rows into segments, sdd cuts a long inner dimension; each part leaves
its sums in ``partial``. Here a CTA owns THREADS elements of one row (one block) of
the result and adds its parts from the first to the last, so the same bits come out
every time. ``alpha`` and ``beta`` apply here, once.

    grid     (batch * rows or blocks * ceil(R * N / THREADS),)
    threads  (THREADS,)
    shared   none
    reads    each partial sum once
"""

from .compiler import cast, cuda, device, jit, maker
from .launch import ceil_div, run
from .tiles import index, make_narrow, make_widen, scalars

THREADS = 256


def launch_rows(plan, partial, out, alpha, beta, stream):
    """Finish dsd: ``out = alpha * (sum of segments) + beta * out`` for rows cut.

    Parameters
    ----------
    plan : plan.RowPlan or plan.GroupPlan of Operands
    partial : (batch, slots, R, N)
    out : (batch, heads, M, N)
    """
    batch, _, R, N = partial.shape
    kernel = _make_kernel(partial.dtype, out.dtype, True)
    grid = batch * plan.split_row.shape[0] * ceil_div(R * N, THREADS)
    factors = scalars(partial.dtype, alpha, beta)
    splits = plan[plan._fields.index("split_row") :]
    run(kernel, grid, stream, splits, partial, out, *factors)


def launch_blocks(partial, out, alpha, beta, stream):
    """Finish sdd: ``out = alpha * (sum of splits) + beta * out`` for every block.

    Parameters
    ----------
    partial : (batch, splits, blocks, R, C)
    out : (batch, blocks, R, C)
    """
    batch, _, blocks, R, C = partial.shape
    kernel = _make_kernel(partial.dtype, out.dtype, False)
    grid = batch * blocks * ceil_div(R * C, THREADS)
    factors = scalars(partial.dtype, alpha, beta)
    run(kernel, grid, stream, partial, out, *factors)


@maker
def _make_kernel(accumulator, out_dtype, ROWS):
    """Compile-time: dtypes; whether rows of a plan or all blocks are summed."""
    zero, to_sum = accumulator.type(0), cast(accumulator)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen = make_widen(out_dtype, accumulator)
    narrow = make_narrow(accumulator, out_dtype)

    @device
    def write(parts, first, last, r, n, out, row, alpha, beta):
        # parts (parts, R, N), out (rows, N)
        total = zero
        for part in range(first, last):
            total += parts[part, r, n]
        if alpha != one:  # complex 1 times infinity is NaN in part
            total = to_sum(alpha * total)
        if beta != 0:
            total = to_sum(total + beta * widen(out[row, n]))
        out[row, n] = narrow(total)

    @jit(threads=THREADS)
    def sum_rows(
        split_row,  # (splits,) int32
        split_head,  # (splits,) int32
        split_first,  # (splits,) int32
        split_count,  # (splits,) int32
        partial,  # (batch, slots, R, N) accumulation dtype
        out,  # (batch, heads, M, N) out_dtype
        alpha,
        beta,
    ):
        # Which element of which row is mine?
        R, N = partial.shape[2:]
        chunks = (R * N + THREADS - 1) // THREADS
        cta, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
        batch, split = cta // split_row.size, cta % split_row.size
        element = chunk * THREADS + cuda.threadIdx.x
        r, n = element // N, element % N

        first = index(split_first[split])
        last = first + index(split_count[split])
        row = index(split_row[split]) * R + r
        # (A group of rows may lead past the last one.)
        if r < R and row < out.shape[2]:
            rows = out[batch, index(split_head[split])]
            write(partial[batch], first, last, r, n, rows, row, alpha, beta)

    @jit(threads=THREADS)
    def sum_blocks(
        partial,  # (batch, splits, blocks, R, C) accumulation dtype
        out,  # (batch, blocks, R, C) out_dtype
        alpha,
        beta,
    ):
        # Which element of which block is mine?
        R, C = partial.shape[3:]
        chunks = (R * C + THREADS - 1) // THREADS
        cta, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
        batch, block = cta // partial.shape[2], cta % partial.shape[2]
        element = chunk * THREADS + cuda.threadIdx.x
        r, c = element // C, element % C

        if r < R:
            parts = partial[batch, :, block]
            splits = partial.shape[1]
            write(parts, 0, splits, r, c, out[batch, block], r, alpha, beta)

    return sum_rows if ROWS else sum_blocks
