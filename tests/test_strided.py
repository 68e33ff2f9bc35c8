"""Arithmetic on strides: fewer axes, the same elements."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_bs import strided


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.sampled_from([0, 1, 2, -1]), min_size=5, max_size=5),
    st.permutations(range(5)),
)
def test_merged_axes_visit_the_same_elements(shape, steps, order):
    """Of an array that lies in memory in any way, next to a contiguous one."""
    memory = np.arange(4**5).reshape((4,) * 5).transpose(order)
    index = tuple(
        slice(None, size * step, step) if step > 0 else slice(size)
        for size, step in zip(shape, steps, strict=False)
    )
    view = memory[index][tuple(slice(n) for n in shape)][(..., *[0] * (5 - len(shape)))]
    shape = view.shape
    other = np.arange(view.size).reshape(shape)
    merged, (ours, theirs) = strided.merge(shape, view.strides, other.strides)
    assert len(merged) <= len(shape)
    as_strided = np.lib.stride_tricks.as_strided
    pairs = zip(
        as_strided(view, merged, ours).ravel(),
        as_strided(other, merged, theirs).ravel(),
        strict=True,
    )
    assert list(pairs) == list(zip(view.ravel(), other.ravel(), strict=True))
    seen = []
    for offsets, size, by in strided.one_axis(shape, view.strides, other.strides):
        for i in range(size):
            seen.append(
                tuple((o + i * b) // 8 for o, b in zip(offsets, by, strict=True))
            )
    base = view.__array_interface__["data"][0]
    want = [
        (sum(i * s for i, s in zip(at, view.strides, strict=True)) // 8, int(other[at]))
        for at in np.ndindex(shape)
    ]
    assert base
    assert sorted(seen) == sorted(want)
