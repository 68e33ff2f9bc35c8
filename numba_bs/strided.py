"""Arithmetic on shapes and strides: fewer axes for kernels, the same elements."""

import itertools
from collections.abc import Iterator


def merge(shape: tuple, *strides: tuple) -> tuple[tuple, list[tuple]]:
    """Drop axes of size 1 and join neighbours that lie one in the other everywhere.

    Parameters
    ----------
    shape : common shape
    strides : strides of each array over it

    Returns
    -------
    shape, [strides, ...]
        With as few axes as the arrays allow; elements keep their order.

    Examples
    --------
    >>> merge((2, 3, 1, 4), (48, 16, 7, 4), (0, 0, 0, 4))
    ((6, 4), [(16, 4), (0, 4)])
    """
    sizes, steps = [], []  # steps: one tuple of all arrays' strides for each axis
    for size, *step in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        inner = [by * size for by in step]
        if steps and list(steps[-1]) == inner:
            sizes[-1] *= size
            steps[-1] = tuple(step)
        else:
            sizes.append(size)
            steps.append(tuple(step))
    merged = list(zip(*steps, strict=True)) if steps else [()] * len(strides)
    return tuple(sizes), merged


def aligned(strides: tuple, shape: tuple, full: tuple) -> tuple:
    """Return strides over ``full``, to which ``shape`` broadcasts; 0 where it does."""
    missing = (0,) * (len(full) - len(shape))
    own = (
        0 if size == 1 and whole != 1 else step
        for size, step, whole in zip(shape, strides, full[len(missing) :], strict=True)
    )
    return (*missing, *own)


def one_axis(shape: tuple, *strides: tuple) -> Iterator[tuple[list, int, list]]:
    """Leave one axis to a kernel and walk the others.

    Yields
    ------
    offsets, size, strides
        Where the kernel's part begins in each array (bytes), how long its axis is
        and each array's stride on it. One yield if the axes merge into one.
    """
    shape, strides = merge(shape, *strides)
    if not shape:
        yield [0] * len(strides), 1, [0] * len(strides)
        return
    longest = max(range(len(shape)), key=shape.__getitem__)
    others = [axis for axis in range(len(shape)) if axis != longest]
    for index in itertools.product(*(range(shape[axis]) for axis in others)):
        offsets = [
            sum(i * by[axis] for i, axis in zip(index, others, strict=True))
            for by in strides
        ]
        yield offsets, shape[longest], [by[longest] for by in strides]
