"""Blocks in another order, one thread per element; any dtype, copied bit by bit.

A CTA owns THREADS neighbouring elements of ``out``. This is what ``a.T.data`` costs;
products never need it, because their plans say where each block sits.

    grid     (ceil(elements / THREADS),)
    threads  (THREADS,)
    shared   none
    reads    each element of the values once
"""

from .compiler import cuda, jit, maker
from .launch import ceil_div, run
from .tiles import index

THREADS = 256


def launch(order, values, out, stream):
    """Write ``out[:, block] = values[:, order[block]]``.

    Parameters
    ----------
    order : (blocks,) int32
    values, out : (batch, blocks, R, C) of one dtype
    """
    elements = out.shape[0] * out.shape[1] * out.shape[2] * out.shape[3]
    kernel = _make_kernel()
    run(kernel, ceil_div(elements, THREADS), stream, order, values, out)


@maker
def _make_kernel():
    """No compile-time constants: Numba compiles one kernel for each dtype."""

    @jit(threads=THREADS)
    def gather_blocks_simt(
        order,  # (blocks,) int32
        values,  # (batch, blocks, R, C)
        out,  # (batch, blocks, R, C)
    ):
        # Which element is mine?
        _, blocks, R, C = out.shape
        element = index(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        row, c = element // C, element % C
        block, r = row // R, row % R
        batch, block = block // blocks, block % blocks

        if element < out.size:
            out[batch, block, r, c] = values[batch, index(order[block]), r, c]

    return gather_blocks_simt
