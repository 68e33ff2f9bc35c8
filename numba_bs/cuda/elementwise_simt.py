"""Element-wise operations on strided arrays, one thread per element; any dtype.

A CTA owns THREADS neighbouring elements of ``out``, counted with the axis innermost
along which ``out`` is densest in memory. So writes are coalesced, and reads of
operands laid out alike.

    grid     (ceil(elements / THREADS),)
    threads  (THREADS,)
    shared   none
    reads    each element of the operands once; ``out`` never
"""

from .compiler import cast, cuda, jit, maker
from .launch import ceil_div, run
from .tiles import index, make_narrow, make_widen, scalars

THREADS = 256
OPERATIONS = ("scale", "multiply", "axpby")


def launch(operation, x, y, out, alpha, beta, stream):
    """Write ``out``; see the constructors and operators of ``bsr_array``.

    Parameters
    ----------
    operation : str
        "scale": ``alpha * x`` (also a cast, a copy, a conjugate);
        "multiply": ``alpha * x * y``; "axpby": ``alpha * x + beta * y``.
    x, y, out : Operands of one shape, up to three axes, any strides
        ``y`` is None for "scale". ``out`` may be ``x`` or ``y``.
    alpha, beta : NumPy scalars of the accumulation dtype
    """
    y = x if y is None else y
    accumulator = alpha.dtype
    kernel = _make_kernel(
        operation, accumulator, x.dtype, y.dtype, out.dtype, x.conj, y.conj
    )
    # The densest axis of out goes last; missing axes have one element.
    order = sorted(range(out.ndim), key=lambda axis: -abs(out.strides[axis]))
    missing = (1,) * (3 - out.ndim)
    x, y, out = (
        each.view(
            (*missing, *(each.shape[axis] for axis in order)),
            (*missing, *(each.strides[axis] for axis in order)),
        )
        for each in (x, y, out)
    )
    factors = scalars(accumulator, alpha, beta)
    run(kernel, ceil_div(out.size, THREADS), stream, x, y, out, *factors)


@maker
def _make_kernel(operation, accumulator, x_dtype, y_dtype, out_dtype, conj_x, conj_y):
    """Compile-time: operation, dtypes, which operands count as conjugated."""
    MULTIPLY, AXPBY = operation == "multiply", operation == "axpby"
    to_sum = cast(accumulator)
    (one,) = scalars(accumulator, accumulator.type(1))
    widen_x = make_widen(x_dtype, accumulator, conj_x)
    widen_y = make_widen(y_dtype, accumulator, conj_y)
    narrow = make_narrow(accumulator, out_dtype)

    @jit(threads=THREADS)
    def elementwise_simt(
        x,  # (outer, middle, inner) x_dtype
        y,  # (outer, middle, inner) y_dtype
        out,  # (outer, middle, inner) out_dtype
        alpha,
        beta,
    ):
        # Which element is mine?
        _, middle, inner = out.shape
        element = index(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        line, k = element // inner, element % inner
        i, j = line // middle, line % middle

        if element < out.size:
            value = widen_x(x[i, j, k])
            if MULTIPLY:
                value = to_sum(value * widen_y(y[i, j, k]))
            # Not with 1: complex 1 times infinity has a part that is NaN.
            if alpha != one:
                value = to_sum(alpha * value)
            if AXPBY:
                other = widen_y(y[i, j, k])
                if beta == one:
                    value = to_sum(value + other)
                elif beta == -one:
                    value = to_sum(value - other)
                else:
                    value = to_sum(value + beta * other)
            out[i, j, k] = narrow(value)

    return elementwise_simt
