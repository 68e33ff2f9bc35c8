"""Faults that users of other libraries reported; one test (or a few) for each.

The inputs are made up for this purpose; the right values were computed with NumPy and
SciPy alone. ``matrix((rows, cols))`` holds eighths, so that every sum of products is
exact in float32 and results can be compared for equality.
"""

import operator
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from backends import BACKENDS, EACH, FAST, HAVE_GPU, HOST, SIMULATED
from patterns import label

import numba_bs as bs
from numba_bs import arrays, files

bfloat16 = bs.dtypes.bfloat16
each_backend = pytest.mark.parametrize("backend", EACH)
backends = pytest.mark.parametrize("backend", BACKENDS)
host = HOST.values[0]


def matrix(shape, dtype=np.float64):
    """Return ((7 row + 3 col) mod 11 - 5) / 8."""
    row, col = np.indices(shape)
    return (((7 * row + 3 * col) % 11 - 5) / 8).astype(dtype)


def from_layout(mask, blocksize, dtype=np.float64, dense=None):
    """Return the bsr_array that stores the blocks of ``mask``, cut out of a matrix."""
    layout = bs.Layout.from_mask(mask, blocksize)
    dense = matrix(layout.shape, dtype) if dense is None else dense
    R, C = layout.blocksize
    data = [
        dense[row * R : row * R + R, col * C : col * C + C]
        for row, col in zip(*layout.coordinates(), strict=True)
    ]
    return bs.bsr_array((np.array(data, dtype).reshape(-1, R, C), layout))


# ----------------------------------------------------- G01: repeated, unsorted blocks


def g01(dtype):
    data = np.arange(1, 17, dtype=dtype).reshape(4, 2, 2)
    return data, np.array([1, 0, 1, 0]), np.array([0, 3, 4])


@each_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
def test_g01_repeated_and_unsorted_block_columns(backend, dtype):
    given = g01(dtype)
    before = [x.copy() for x in given]
    a = bs.bsr_array(given, shape=(4, 4))
    x = np.arange(1, 5, dtype=dtype)
    assert backend.run(operator.matmul, a, x).tolist() == [95, 129, 41, 47]
    assert backend.run(operator.matmul, a.T, x).tolist() == [118, 128, 38, 44]
    grad_a, _ = backend.run(bs.matmul_backward, x, a, x)
    assert grad_a.data.shape == (3, 2, 2)
    for now, then in zip(given, before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_g01_scipy_arrays_stay_as_they_are():
    theirs = sp.bsr_array(g01(np.float32), shape=(4, 4))
    before = [x.copy() for x in (theirs.data, theirs.indices, theirs.indptr)]
    x = np.arange(1, 5, dtype=np.float32)
    assert bs.matmul(theirs, x).tolist() == [95, 129, 41, 47]
    bs.bsr_array(theirs)
    bs.Layout.from_scipy(theirs)
    with pytest.raises(ValueError, match=r"^matmul_backward: a must be canonical"):
        bs.matmul_backward(x, theirs, x)
    now = (theirs.data, theirs.indices, theirs.indptr)
    for each, then in zip(now, before, strict=True):
        np.testing.assert_array_equal(each, then)


def test_g01_the_layout_alone_says_how_to_make_it_canonical():
    data, indices, indptr = g01(np.float64)
    with pytest.raises(ValueError, match=r"canonicalise\(\) sorts them"):
        bs.Layout(indptr, indices, (4, 4), 2)
    layout, order = bs.canonicalise(indptr, indices, (4, 4), 2)
    summed = np.zeros((layout.blocks, 2, 2))
    np.add.at(summed, order, data)
    a = bs.bsr_array((summed, layout))
    assert (a @ np.arange(1.0, 5)).tolist() == [95, 129, 41, 47]


# ------------------------------------------------------------ G02: spare capacity


@each_backend
def test_g02_storage_past_the_last_row_pointer(backend):
    data = np.full((6, 2, 2), np.nan)
    data[:3] = np.arange(1, 13).reshape(3, 2, 2)
    structure = [1, 0, 1, 0, 0, 0], [0, 1, 3]
    a = bs.bsr_array((data, *structure), shape=(4, 4))
    assert a.nnz == 12
    x = np.arange(1.0, 5)
    for b in (a, bs.bsr_array((data, a.indices, a.indptr), shape=(4, 4))):
        assert backend.run(operator.matmul, b, x).tolist() == [11, 25, 84, 104]
        assert backend.run(operator.matmul, b.T, x).tolist() == [43, 50, 78, 88]
        grad_a, grad_x = backend.run(bs.matmul_backward, x, b, x)
        assert grad_a.data.shape == (3, 2, 2)
        assert np.isfinite(grad_x).all()
    placed = bs.bsr_array((backend.place(data), *structure), shape=(4, 4))
    with backend.computing():
        y = backend.take(placed @ backend.place(x))
    assert y.tolist() == [11, 25, 84, 104]


# --------------------------------------------------------- G03: every block size

G03 = {
    (8, 8): (1.328125, -0.046875),
    (16, 16): (3.578125, -2.5625),
    (32, 32): (1.9375, 1.125),
    (48, 48): (3.359375, 1.71875),
    (64, 64): (2.53125, -5.484375),
    (128, 128): (17.046875, -15.71875),
    (16, 32): (4.1875, -3.28125),
    (32, 8): (-0.109375, -0.140625),
}
CHECKERBOARD = np.indices((3, 4)).sum(0) % 2 == 0


def check_g03(backend, blocksize, dtype=np.float32):
    a = from_layout(CHECKERBOARD, blocksize, dtype)
    y = backend.run(operator.matmul, a, matrix((a.shape[1], 5), dtype))
    assert (y.sum(dtype=float), y[-1, -1]) == G03[blocksize]


@each_backend
@pytest.mark.parametrize("blocksize", G03, ids=label)
def test_g03_every_block_size(backend, blocksize):
    check_g03(backend, blocksize)


# ------------------------------------------------ G04: shape and block size contract


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: bs.bsr_array((5, 4), blocksize=(2, 2)),
            "shape must be a multiple of blocksize",
        ),
        (
            lambda: bs.bsr_array(sp.csr_array(np.ones((5, 4))), blocksize=(2, 2)),
            "shape must be a multiple of blocksize",
        ),
        (
            lambda: bs.bsr_array(
                (np.ones((4, 4)), [0], [0, 1, 1]), shape=(4, 4), blocksize=(2, 2)
            ),
            "data must be 3-dimensional",
        ),
        (
            lambda: bs.bsr_array(
                (np.ones((1, 2, 2)), [0], [0, 1, 1]), shape=(4, 4), blocksize=(4, 1)
            ),
            "mismatching blocks",
        ),
        (lambda: bs.bsr_array((4, 4), blocksize=(0, 2)), "blocksize must be at least"),
        (
            lambda: bs.bsr_array((np.ones((1, 2, 2)), [5], [0, 1, 1]), shape=(4, 4)),
            "indices must be block columns in 0 ... 1, got 5",
        ),
    ],
    ids=["shape", "csr", "flat_values", "mismatch", "block_0", "column_5"],
)
def test_g04_shape_and_block_size_are_checked_when_built(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_g04_a_layer_that_the_block_does_not_divide(cases):
    layer = files.read(cases / "files" / "dlmc_rn50_mp95_initial_conv.smtx")
    assert layer.shape == (64, 147)
    with pytest.raises(
        ValueError, match=r"got shape \(64, 147\) and blocksize \(8, 8\)"
    ):
        bs.bsr_array(layer, blocksize=8)


# ------------------------------------------------------ G05: remainders of reductions


def before_nan(x):
    """Return ``x`` as a view at the start of memory whose rest is NaN."""
    memory = np.full(4 * x.size + 1024, np.nan, x.dtype)
    memory[: x.size] = x.ravel()
    return memory[: x.size].reshape(x.shape)


@backends
@pytest.mark.parametrize(
    ("d", "sums", "last"),
    [(5, (-16, 96), 10), (8, (10, -19), -9), (33, (-10, 1), 3)],
    ids=["d5", "d8", "d33"],
)
def test_g05_an_inner_dimension_that_no_tile_divides(backend, d, sums, last):
    at = np.arange(32 * d).reshape(32, d)
    q, k = (before_nan((at % n - n // 2).astype(np.float32)) for n in (7, 5))
    layout = bs.Layout.from_mask(np.eye(2), 16)
    got = backend.run(bs.sddmm, q, k.T, layout)
    assert got.data.sum(axis=(1, 2)).tolist() == list(sums)
    assert got.data[1, 15, 15] == last
    # The same d as the inner dimension of dsd, with blocks of 1 by d.
    a = bs.bsr_array((q.reshape(32, 1, d), np.zeros(32, int), np.arange(33)))
    y = backend.run(operator.matmul, a, k.T)
    np.testing.assert_array_equal(y, q @ k.T)


# ---------------------------------------- G06: block rows and columns without blocks


@each_backend
def test_g06_a_block_row_and_a_block_column_without_blocks(backend):
    a = from_layout([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]], (2, 2))
    assert a.T.indptr.tolist() == [0, 2, 3, 3, 4]
    x, g = np.ones((8, 2)), np.ones((6, 2))
    y = backend.run(bs.matmul, a, x, out=np.full((6, 2), np.nan))
    assert y[:, 0].tolist() == [0, 0.75, 0, 0, 0, -0.625]
    exact = [-0.625, 0.875, -0.125, -0.75, 0, 0, 0, 0.75]
    grad_x = backend.run(bs.matmul, a.T, g, out=np.full((8, 2), np.nan))
    assert grad_x[:, 0].tolist() == exact
    grad_a, grad_x = backend.run(bs.matmul_backward, g, a, x)
    assert grad_x[:, 0].tolist() == exact
    assert (grad_a.data == 2).all()
    assert grad_a.data.shape == (4, 2, 2)


@each_backend
def test_g06_a_pruned_layer(cases, backend):
    layer = files.read(cases / "files" / "dlmc_vd98_enc2_v.smtx")
    a = bs.bsr_array(layer, blocksize=16)
    lengths, heights = (np.diff(layout.indptr) for layout in (a.layout, a.layout.T))
    assert (a.layout.blocks, (lengths == 0).sum(), (heights == 0).sum()) == (17, 27, 22)
    x = (np.arange(512) % 7 - 3).astype(np.float32)
    for b, theirs in ((a, layer), (a.T, layer.T)):
        y = backend.run(bs.matmul, b, x, out=np.full(512, np.nan, np.float32))
        np.testing.assert_array_equal(y, theirs @ x)


# ------------------------------------------------------------- G07: nothing to do


@each_backend
def test_g07_no_blocks(backend):
    a = bs.bsr_array((8, 12), blocksize=(4, 4))
    y = backend.run(bs.matmul, a, np.ones((12, 3)), out=np.full((8, 3), np.nan))
    assert y.shape == (8, 3)
    assert not y.any()
    grad_a, grad_x = backend.run(
        bs.matmul_backward, np.ones((8, 3)), a, np.ones((12, 3))
    )
    assert grad_a.data.shape == (0, 4, 4)
    assert grad_x.shape == (12, 3)
    assert not grad_x.any()


@pytest.fixture
def no_launch(monkeypatch):
    """Let any launch of a kernel fail."""
    if not SIMULATED and not HAVE_GPU:
        return
    from numba_bs.cuda import launch

    def refuse(kernel, grid, *args):
        raise AssertionError(f"{kernel} was started with {grid} CTAs")

    monkeypatch.setattr(launch, "_simulate" if SIMULATED else "_launch", refuse)


@each_backend
@pytest.mark.parametrize(
    ("shape", "lead", "n"),
    [((8, 12), (), 0), ((0, 4), (), 3), ((8, 12), (0,), 3), ((0, 0), (), 0)],
    ids=["n_0", "m_0", "no_heads", "nothing"],
)
def test_g07_empty_results_start_no_kernel(no_launch, backend, shape, lead, n):
    a = bs.bsr_array(shape, blocksize=4)
    y = backend.run(operator.matmul, a, np.ones((*lead, shape[1], n)))
    assert y.shape == (*lead, shape[0], n)
    y = backend.run(operator.matmul, np.ones((*lead, n, shape[1])), a.T)
    assert y.shape == (*lead, n, shape[0])
    if lead:
        heads = bs.bsr_array((np.ones((0, 1, 4, 4)), bs.Layout([0, 1], [0], (4, 4), 4)))
        y = backend.run(operator.matmul, heads, np.ones((4, 3)))
        assert y.shape == (0, 4, 3)
        _, grad_x = bs.matmul_backward(y, heads, np.ones((4, 3)), needs="b")
        assert not grad_x.any()


@each_backend
def test_g07_an_empty_inner_dimension_gives_zeros(backend):
    a = bs.bsr_array((4, 0), blocksize=2)
    y = backend.run(operator.matmul, a, np.ones((0, 3)))
    assert y.shape == (4, 3)
    assert not y.any()
    layout = bs.Layout.from_mask(np.ones((2, 2)), 2)
    assert not backend.run(
        bs.sddmm, np.ones((4, 0)), np.ones((0, 4)), layout
    ).data.any()


def test_g07_an_empty_transpose_keeps_its_block_size():
    a = bs.bsr_array((6, 4), blocksize=(3, 2))
    assert a.T.blocksize == (2, 3)
    assert a.T.data.shape == (0, 2, 3)
    assert bs.bsr_array(a.T).blocksize == (2, 3)
    assert a.T.copy().blocksize == (2, 3)
    assert a.T.to_scipy().blocksize == (2, 3)


def test_g07_an_empty_array_keeps_its_block_size_through_torch():
    pytest.importorskip("torch")
    a = bs.bsr_array((6, 4), blocksize=(3, 2))
    assert bs.bsr_array(a.to_torch()).blocksize == (3, 2)
    assert bs.bsr_array(a.T.to_torch()).blocksize == (2, 3)


@each_backend
def test_g07_a_layer_pruned_to_nothing(cases, backend):
    layer = files.read(cases / "files" / "dlmc_vd98_dec0_k_all_zero.smtx")
    a = bs.bsr_array(layer, blocksize=16)
    assert (a.shape, a.layout.blocks) == ((512, 512), 0)
    assert not backend.run(operator.matmul, a, np.ones((512, 1), np.float32)).any()


# ----------------------------------------------- G11: more than 65 535 blocks or tiles

G11 = 70_000


def g11():
    data = np.broadcast_to(np.eye(16, dtype=np.float32), (G11, 16, 16))
    return bs.bsr_array((data, np.zeros(G11, int), np.arange(G11 + 1)))


def check_g11(backend):
    """Block rows; columns; leading axes."""
    x = np.arange(16, dtype=np.float32)
    y = backend.run(operator.matmul, g11(), x)
    assert y.sum(dtype=float) == 8_400_000
    np.testing.assert_array_equal(y, np.tile(x, G11))
    one = bs.bsr_array(np.eye(16, dtype=np.float32), blocksize=16)
    wide = np.broadcast_to(x[:, None], (16, G11 * 256))
    y = backend.run(operator.matmul, one, wide)
    np.testing.assert_array_equal(y[:, [0, -1]], wide[:, [0, -1]])
    assert y.sum(axis=0, dtype=float).min() == y.sum(axis=0, dtype=float).max() == 120
    batch = np.broadcast_to(x[:, None], (65_537, 16, 1))
    np.testing.assert_array_equal(backend.run(operator.matmul, one, batch), batch)
    sampled = backend.run(
        bs.sddmm, y.T[: G11 * 16], np.eye(16, dtype=np.float32), g11().layout
    )
    np.testing.assert_array_equal(sampled.data[-1], np.tile(x, (16, 1)))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", EACH[1:])
def test_g11_more_than_65535_blocks(backend):
    check_g11(backend)


def test_g11_more_than_65535_blocks_on_the_host():
    x = np.arange(16, dtype=np.float32)
    y = g11() @ x
    assert (y[-1], y.sum(dtype=float)) == (15, 8_400_000)
    np.testing.assert_array_equal(y, np.tile(x, G11))
    one = bs.bsr_array(np.eye(16, dtype=np.float32), blocksize=16)
    batch = np.broadcast_to(x[:, None], (65_537, 16, 1))
    np.testing.assert_array_equal(one @ batch, batch)


@pytest.fixture
def only_the_ends(monkeypatch):
    """Let the simulator run the first and the last CTAs of a grid."""
    pytest.importorskip("numba.cuda")
    if not SIMULATED:
        pytest.skip("a GPU runs all of a grid")
    from numba_bs.cuda import simulator

    class Ends(simulator.Machine):
        def run(self, grid_point, *args):
            if not 2 <= grid_point[0] < self.grid_dim[0] - 2:
                super().run(grid_point, *args)

    monkeypatch.setattr(simulator, "Machine", Ends)


@pytest.mark.simulator
def test_g11_the_last_of_70000_block_rows_in_the_simulator(only_the_ends):
    device = EACH[1].values[0]
    x = np.arange(16, dtype=np.float32)
    out = device.place(np.full(16 * G11, np.nan, np.float32))
    with device.computing():
        bs.matmul(device.place(g11()), device.place(x), out=out)
    y = device.take(out)
    ends = np.isfinite(y)
    assert ends[:16].all()
    assert ends[-16:].all()
    assert ends.sum() == 4 * 16
    np.testing.assert_array_equal(y[ends], np.tile(x, 4))


@pytest.fixture
def launches(monkeypatch):
    """Record grids and arrays of launches that are not made."""
    pytest.importorskip("numba.cuda")
    from numba_bs.cuda import launch, matmul_dsd_simt, matmul_sdd_simt

    made = []

    def record(kernel, grid, stream, *args):
        made.append((grid, [*leaves(args)]))

    def leaves(args):
        for arg in args:
            if isinstance(arg, tuple) and not isinstance(arg, arrays.Operand):
                yield from leaves(arg)
            else:
                yield arg

    for module in (matmul_dsd_simt, matmul_sdd_simt):
        monkeypatch.setattr(module, "run", record)
    monkeypatch.setattr(launch, "run", record)
    return made


def imagined(shape, dtype, pointer=2**40):
    """Return an Operand of device 0 that nobody may read."""
    dtype = np.dtype(dtype)
    strides = arrays.contiguous_strides(shape, dtype.itemsize)
    return arrays.Operand(pointer, shape, strides, dtype, 0, False, "numba", None)


@pytest.mark.parametrize("backend", EACH[1:])
def test_g11_grids_have_one_axis(launches, backend, monkeypatch):
    """Grid axes y and z end at 65 535; x holds 2^31 - 1."""
    from numba_bs import _matmul

    layout = bs.Layout(np.arange(G11 + 1), np.zeros(G11, int), (16 * G11, 16), 16)
    values = imagined((G11, 16, 16), np.float32)
    options = _matmul._Options(None, None, 0, (), None)
    a = object.__new__(bs.bsr_array)._set(layout, None, False)
    a._described = values
    one = bs.bsr_array(np.eye(16, dtype=np.float32), blocksize=16)
    one._described = imagined((1, 16, 16), np.float32)
    for sparse, lead, n in ((a, (), 1), (one, (), G11 * 256), (one, (65_537,), 1)):
        M, K = sparse.shape
        dense, out = (imagined((*lead, size, n), np.float32) for size in (K, M))
        _matmul._dsd("test", sparse, dense, out, 1, 0, options)
    _matmul._sdd(
        "test",
        imagined((16 * G11, 4), np.float32),
        imagined((4, 16), np.float32),
        layout,
        values,
        1,
        0,
        options,
    )
    grids = [grid for grid, _ in launches]
    assert all(isinstance(grid, int) for grid in grids)
    assert len(grids) == 4
    assert min(grids) > 65_535


@pytest.mark.parametrize("backend", EACH[1:])
def test_g11_a_grid_that_no_gpu_has_is_refused(backend):
    from numba_bs.cuda import launch
    from numba_bs.cuda.compiler import jit

    kernel = jit(threads=1)(lambda: None)
    with pytest.raises(NotImplementedError, match="2147483647 CTAs, got 2147483648"):
        launch.run(kernel, 2**31, 0)


# ------------------------------------------------------------ G12: offsets past 2^31

G12 = 2**23 + 1


def g12():
    data = np.zeros((G12, 16, 16), np.int8)
    data[-1] = 3 * np.eye(16, dtype=np.int8)
    layout = bs.Layout(np.arange(G12 + 1), np.zeros(G12, np.int64), (16 * G12, 16), 16)
    return bs.bsr_array((data, layout))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", EACH[1:])
def test_g12_offsets_past_2_to_the_31(backend):
    a = backend.place(g12())
    x = backend.place(np.arange(1, 17, dtype=np.int8))
    y = backend.take(a @ x)
    assert np.count_nonzero(y) == 16
    assert y[-16:].tolist() == [3 * i for i in range(1, 17)]
    ones = backend.place(np.broadcast_to(np.int8(1), a.shape[:1]))
    assert backend.take(a.T @ ones).tolist() == [3] * 16
    # The dense side: 15 times the stride of a row passes 2^31.
    one = backend.place(bs.bsr_array(np.eye(16, dtype=np.int8), blocksize=16))
    wide = np.zeros((16, 2**28), np.int8)
    wide[15, -1] = 7
    y = backend.take(one @ backend.place(wide))
    assert (y[15, -1], np.count_nonzero(y)) == (7, 1)


def test_g12_offsets_past_2_to_the_31_on_the_host():
    a, x = g12(), np.arange(1, 17, dtype=np.int8)
    y = a @ x
    assert np.count_nonzero(y) == 16
    assert y[-16:].tolist() == [3 * i for i in range(1, 17)]


@pytest.mark.simulator
def test_g12_the_last_of_2_to_the_31_elements_in_the_simulator(only_the_ends):
    """With blocks of 128 x 128, so that there are few CTAs to pass over."""
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    blocks = 2**17 + 1
    data = np.zeros((blocks, 128, 128), np.int8)  # pages nobody touches cost nothing
    data[-1] = 3 * np.eye(128, dtype=np.int8)
    structure = np.arange(blocks + 1), np.zeros(blocks, int)
    layout = bs.Layout(*structure, (128 * blocks, 128), 128)
    a = bs.bsr_array((FakeCUDAArray(data), layout))
    out = FakeCUDAArray(np.zeros(128 * blocks, np.int8))
    x = FakeCUDAArray(np.arange(128, dtype=np.int8) % 40)
    bs.matmul(a, x, out=out)
    y = out.copy_to_host()
    np.testing.assert_array_equal(y[-128:], 3 * (np.arange(128) % 40))
    assert np.count_nonzero(y) == 128 - 4


@pytest.mark.parametrize("backend", EACH[1:])
def test_g12_strides_and_offsets_reach_kernels_in_64_bits(launches, backend):
    from numba_bs import _matmul
    from numba_bs.cuda import launch

    far = 2**33
    layout = bs.Layout.from_mask(np.ones((1, 1)), 16)
    values = imagined((3, 5, 1, 16, 16), np.int8)
    values = values.view(values.shape, (far, 5, 256, 16, 1))
    a = object.__new__(bs.bsr_array)._set(layout, None, False)
    a._described = values
    dense, out = (imagined((3, 5, 16, 4), np.int8) for _ in range(2))
    _matmul._dsd("test", a, dense, out, 1, 0, _matmul._Options(None, None, 0, (), None))
    offsets = {
        arg.pointer - values.pointer
        for _, args in launches
        for arg in args
        if isinstance(arg, arrays.Operand) and arg.shape[-3:] == (1, 16, 16)
    }
    assert offsets == {0, far, 2 * far}
    parameters, _ = launch.flatten((values,))
    assert far in parameters


# --------------------------------------------------- G13: index arrays of other types


@each_backend
@pytest.mark.parametrize(
    ("of_indices", "of_indptr"),
    [(t, t) for t in ("i2", "i4", "i8", "u4", "u8")]
    + [("i8", "i4"), ("i4", "i8"), ("u4", "i8"), ("u1", "u8")],
)
def test_g13_index_arrays_of_other_integer_types(backend, of_indices, of_indptr):
    base = from_layout([[1, 0, 1], [0, 1, 1]], (2, 2))
    indices, indptr = base.indices.astype(of_indices), base.indptr.astype(of_indptr)
    right = [-4.375, -0.375, 0.375, -3.125]
    x = np.arange(1.0, 7)
    a = bs.bsr_array((base.data, indices, indptr), shape=(4, 6))
    assert backend.run(operator.matmul, a, x).tolist() == right
    b = bs.bsr_array((base.data, bs.Layout(indptr, indices, (4, 6), 2)))
    assert b.layout == a.layout
    for kind in (sp.bsr_array, sp.bsr_matrix):
        theirs = kind((base.data, indices, indptr), shape=(4, 6))
        assert backend.run(operator.matmul, bs.bsr_array(theirs), x).tolist() == right


def test_g13_float_indices_are_refused():
    base = from_layout([[1, 0, 1], [0, 1, 1]], (2, 2))
    for indices, indptr in (
        (base.indices + 0.5, base.indptr),
        (base.indices, base.indptr.astype(float)),
    ):
        with pytest.raises(TypeError, match="must hold integers, got float64"):
            bs.bsr_array((base.data, indices, indptr))


# ---------------------------------------------------------------- G14: beta = 0


@each_backend
@pytest.mark.parametrize(
    ("beta", "right"),
    [(0, [-1.75, 1.75, 0, 0]), (0.5, [np.nan, np.inf, np.nan, 4])],
    ids=["beta0", "beta_half"],
)
def test_g14_beta_0_over_an_uninitialised_out(backend, beta, right):
    a = from_layout([[1, 0], [0, 0]], (2, 2))
    out = np.array([[np.nan], [np.inf], [np.nan], [8]])
    y = backend.run(bs.matmul, a, np.ones((4, 1)), out=out, alpha=2, beta=beta)
    np.testing.assert_array_equal(y[:, 0], right)
    out = a.with_data(np.array([[[np.nan, np.inf], [np.nan, 8]]]))
    zeros = np.zeros((4, 1))
    got = backend.run(bs.sddmm, zeros, zeros.T, a.layout, out=out, beta=beta)
    right = [np.nan, np.inf, np.nan, 4] if beta else [0] * 4
    np.testing.assert_array_equal(got.data.ravel(), right)


# ------------------------------------------------- G15: strides of the dense operand


@each_backend
@pytest.mark.parametrize(
    ("make_x", "first", "total"),
    [
        (
            lambda: np.broadcast_to(np.arange(4.0)[:, None], (4, 3)),
            [1.5, 1.5, 1.5],
            6,
        ),
        (
            lambda: np.arange(24.0).reshape(4, 6)[::-1, ::-1],
            [-14.75, -14.5, -14.25, -14, -13.75, -13.5],
            4.875,
        ),
        (lambda: np.arange(24.0).reshape(4, 6)[:, ::2], [9, 8.5, 8], 39.75),
        (lambda: np.arange(12.0).reshape(3, 4).T, [1.5, 0.5, -0.5], 13.5),
    ],
    ids=["broadcast", "reversed", "every_second", "transposed"],
)
def test_g15_strides_of_the_dense_operand(backend, make_x, first, total):
    a = from_layout([[1, 1], [0, 1]], (2, 2))
    y = backend.run(operator.matmul, a, make_x())
    assert (y[0].tolist(), y.sum()) == (first, total)
    y = backend.run(operator.matmul, make_x().T, a.T)
    assert (y[:, 0].tolist(), y.sum()) == (first, total)


# ------------------------------------------------------------------- G16: bfloat16

G16 = np.array([0x3F80, 0x4000, 0xC060, 0x42C8], np.uint16)
G16_RIGHT = [1, 2, -3.5, 100]


@each_backend
@pytest.mark.parametrize("bits", [bfloat16, "V2"], ids=["named", "void"])
def test_g16_bfloat16_is_never_taken_for_float16(backend, bits):
    identity = bs.bsr_array(np.eye(4, dtype=bfloat16), blocksize=2)
    x = G16.view(bits)
    y = backend.run(operator.matmul, identity, x)
    assert y.dtype == bfloat16
    assert y.tolist() == G16_RIGHT
    values = bs.bsr_array((x.reshape(1, 1, 4), [0], [0, 1]))
    assert values.dtype == bfloat16
    total = backend.run(operator.matmul, values, np.ones(4, bfloat16))
    assert total.tolist() == [99.5]


def test_g16_bfloat16_tensors():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(G16.view(np.int16)).view(torch.bfloat16)
    identity = bs.bsr_array(np.eye(4, dtype=bfloat16), blocksize=2)
    y = identity @ x
    assert y.dtype == torch.bfloat16
    assert y.tolist() == G16_RIGHT


# -------------------------------------------------------- G17: float16 without SciPy


@each_backend
@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["f16", "bf16"])
def test_g17_sums_of_half_precision_do_not_stop_at_2048(backend, dtype):
    layout = bs.Layout([0, 256], np.arange(256), (16, 4096), 16)
    a = bs.bsr_array((np.ones((256, 16, 16), dtype), layout))
    y = backend.run(operator.matmul, a, np.ones((4096, 1), dtype))
    assert y.dtype == dtype
    assert (y == 4096).all()
    if not backend.small:
        y = backend.run(operator.matmul, np.ones((1, 4096), dtype), a.T)
        assert (y == 4096).all()
    layout = bs.Layout.from_mask(np.ones((1, 1)), 2)
    s = backend.run(
        bs.sddmm, np.ones((2, 4096), dtype), np.ones((4096, 2), dtype), layout
    )
    assert s.dtype == dtype
    assert (s.data == 4096).all()


# ------------------------------------------------ G18: gradients, rectangular layout

G18_Y = [[116, 38], [116, 92], [4, 19], [4, 46]]
G18_DX = [
    *([-33, 17], [-30, 16], [-27, 15], [-26, 25], [-28, 29]),
    *([-30, 33], [-15, 11], [-12, 10], [-9, 9]),
]
G18_DW = [
    [[-1, -1, -1], [-16, -12, -8]],
    [[-1, -1, -1], [8, 12, 16]],
    [[-3, 3, 9], [3, 1, -1]],
]


def g18(dtype=np.float64):
    dense = np.arange(36).reshape(4, 9) - 17
    a = from_layout([[1, 0, 1], [0, 1, 0]], (2, 3), dtype, dense)
    x = (np.arange(18).reshape(9, 2) - 8).astype(dtype)
    return a, x, np.array([[1, -1], [2, 0], [0, 3], [-2, 1]], dtype)


@backends
@pytest.mark.parametrize("dtype", [np.float32, np.float64, bfloat16], ids=label)
def test_g18_gradients_on_a_rectangular_layout(backend, dtype):
    a, x, g = g18(dtype)
    assert backend.run(operator.matmul, a, x).tolist() == G18_Y
    grad_a, grad_x = backend.run(bs.matmul_backward, g, a, x)
    assert grad_x.tolist() == G18_DX
    assert grad_a.data.tolist() == G18_DW
    # The same from the left.
    assert backend.run(operator.matmul, x.T, a.T).T.tolist() == G18_Y
    grad_x, grad_a = backend.run(bs.matmul_backward, g.T, x.T, a.T)
    assert grad_x.T.tolist() == G18_DX
    assert grad_a.T.data.tolist() == G18_DW


def test_g18_a_finite_difference_agrees():
    a, x, g = g18()
    moved = a.copy()
    moved.data[2, 1, 2] += 1  # the product is linear: any step gives the slope
    assert (((moved @ x) - (a @ x)) * g).sum() == G18_DW[2][1][2]


# --------------------------------------------------------------- G20: shared memory


def g20():
    return from_layout(np.eye(2), (512, 512), np.float32), matrix((1024, 3), np.float32)


@pytest.mark.parametrize("backend", FAST)
def test_g20_blocks_larger_than_shared_memory(backend):
    y = backend.run(operator.matmul, *g20())
    assert y.sum(dtype=float) == 32.140625
    assert y[-1].tolist() == [40.1875, -7.5, -0.359375]


@pytest.mark.simulator
def test_g20_blocks_larger_than_shared_memory_in_the_simulator(only_the_ends):
    device = EACH[1].values[0]
    out = np.full((1024, 3), np.nan, np.float32)
    y = device.run(bs.matmul, *g20(), out=out)
    done = np.isfinite(y)
    assert done[0, 0]
    assert y[-1, -1] == -0.359375
    a, x = g20()
    np.testing.assert_array_equal(y[done], (a @ x)[done])


@each_backend
@pytest.mark.parametrize(
    ("blocksize", "dtype"),
    [((96, 64), np.float64), ((128, 128), np.float32), ((256, 256), np.float32)],
    ids=["48_KiB", "64_KiB", "256_KiB"],
)
def test_g20_blocks_at_the_limits_of_shared_memory(backend, blocksize, dtype):
    a = from_layout([[1]], blocksize, dtype)
    x = matrix((blocksize[1], 2), dtype)
    y = backend.run(operator.matmul, a, x)
    np.testing.assert_array_equal(y, a.data[0] @ x)
    if not backend.small or blocksize[0] < 256:
        got = backend.run(bs.sddmm, y, x.T, a.layout)
        np.testing.assert_array_equal(got.data[0], y @ x.T)


# ------------------------------------------------------------ G22: devices, streams


def test_g22_two_devices_are_refused_by_name():
    a, x, _ = g18()
    values, dense = (arrays.describe("test", "x", each) for each in (a.data, x))
    a._described = values._replace(device=1)
    dense = dense._replace(device=0)
    with pytest.raises(ValueError, match=r"^matmul: .*one device, got a on 1, b on 0"):
        bs.checks.same_device("matmul", a=a._operand(), b=dense)


@pytest.mark.gpu
def test_g22_everything_on_the_second_device():
    from numba_bs.cuda.compiler import cuda
    from numba_bs.cuda.launch import device_count

    if device_count() < 2:
        pytest.skip("needs two GPUs, found one")
    a, x, g = g18()
    there = a.to_device(device=1)
    x_, g_ = (arrays.from_numpy(each, "numba", 1) for each in (x, g))
    assert cuda.get_current_device().id == 0
    y = there @ x_
    grad_a, grad_x = bs.matmul_backward(g_, there, x_)
    assert cuda.get_current_device().id == 0
    for got, right in ((y, G18_Y), (grad_x, G18_DX), (grad_a.data, G18_DW)):
        operand = arrays.describe("test", "got", got)
        assert operand.device == 1
        assert arrays.to_numpy(operand).tolist() == right
    with pytest.raises(ValueError, match=r"^matmul: .*one device, got a on 1, b on 0"):
        there @ arrays.from_numpy(x, "numba", 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_g22_operands_written_on_a_stream_that_does_not_block(name):
    library = pytest.importorskip(name)
    if name == "torch" and not library.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    a, x, _ = g18()
    b = a.to_device(name)
    there = arrays.from_numpy(x, name, 0)
    if name == "torch":
        stream = library.cuda.Stream()
        entered = library.cuda.stream(stream)
        work = library.ones(8192, 8192, device="cuda")
    else:
        stream = entered = library.cuda.Stream(non_blocking=True)
        work = library.ones((8192, 8192), np.float32)
    with entered:
        for _ in range(20):  # keeps the stream busy before x is written
            work = work @ work * 0
        y = b @ (there + work[:9, :2])
    stream.synchronize()
    assert y.tolist() == G18_Y


@pytest.mark.gpu
def test_g22_a_stream_that_is_given():
    from numba_bs.cuda.compiler import cuda

    a, x, g = g18()
    stream = cuda.stream()
    b = a.to_device()
    x_, g_ = (cuda.to_device(each, stream=stream) for each in (x, g))
    y = bs.matmul(b, x_, stream=stream)
    grad_a, grad_x = bs.matmul_backward(g_, b, x_, stream=stream)
    stream.synchronize()
    assert y.copy_to_host().tolist() == G18_Y
    assert grad_x.copy_to_host().tolist() == G18_DX
    assert grad_a.data.copy_to_host().tolist() == G18_DW


# ------------------------------------------------------- G23: warnings of our own


@each_backend
def test_g23_no_warning_and_no_changed_setting(backend):
    a, x, g = g18(np.float32)
    numba = sys.modules.get("numba")

    def settings():
        config = vars(numba.core.config).items() if numba else ()
        return {k: v for k, v in config if k.isupper() and not callable(v)}

    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        before = list(warnings.filters), settings()
        assert backend.run(operator.matmul, a, x).tolist() == G18_Y
        grad_a, grad_x = backend.run(bs.matmul_backward, g, a, x)
        backend.run(lambda a: (2 * a + a - a).T.conj().astype(np.float16), a)
        assert grad_x.tolist() == G18_DX
        assert grad_a.data.tolist() == G18_DW
        assert (list(warnings.filters), settings()) == before


def test_g23_to_torch_is_silent_in_a_fresh_process():
    pytest.importorskip("torch")
    code = (
        "import warnings, numpy as np, torch, numba_bs as bs\n"
        "warnings.simplefilter('error')\n"
        "a = bs.bsr_array(np.eye(4), blocksize=2)\n"
        "b = bs.bsr_array(a.to_torch())\n"
        "print((b @ torch.ones(4, 1, dtype=torch.float64)).sum().item())"
    )
    assert in_a_process(code) == "4.0"


def in_a_process(code, **environment):
    """Return what Python prints for ``code``; what it writes to stderr fails."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
        cwd=os.path.dirname(os.path.dirname(bs.__file__)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# ------------------------------------------------------- G24: what a layout means


@each_backend
@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, np.float32], ids=label)
def test_g24_a_layout_is_of_blocks_and_of_any_type(backend, dtype):
    mask = np.array([[1, 0], [1, 1]], dtype)
    layout = bs.Layout.from_mask(mask, 2)
    assert layout.blocks == 3
    elements = bs.bsr_array((np.ones((3, 2, 2)), layout)).toarray()
    np.testing.assert_array_equal(elements, np.kron(mask != 0, np.ones((2, 2))))
    q = matrix((4, 3))
    one = backend.run(bs.sddmm, q, q.T, layout)
    np.testing.assert_array_equal(one.toarray(), elements * (q @ q.T))
    # A leading axis of heads: of 1, of H; one layout serves all of them.
    for heads in (1, 3):
        many = np.broadcast_to(q, (heads, 4, 3))
        shared = backend.run(bs.sddmm, many, many.mT, layout)
        stack = bs.LayoutStack.from_mask(np.broadcast_to(mask, (heads, 2, 2)), 2)
        own = backend.run(bs.sddmm, many, many.mT, stack)
        for head in range(heads):
            np.testing.assert_array_equal(shared.data[head], one.data)
            np.testing.assert_array_equal(own.toarray()[head], one.toarray())


def test_g24_an_element_mask_is_refused_with_the_shape_due():
    elements = np.kron([[1, 0], [1, 1]], np.ones((2, 2)))
    match = r"block level, one element per block of \(2, 2\), so of shape \(2, 2\)"
    with pytest.raises(ValueError, match=match):
        bs.Layout.from_mask(elements, 2, shape=(4, 4))
    too_large = bs.Layout.from_mask(elements, 2)
    with pytest.raises(
        ValueError, match=r"layout must have the shape of x @ y, \(4, 4"
    ):
        bs.sddmm(np.ones((4, 3)), np.ones((3, 4)), too_large)
    with pytest.raises(ValueError, match=r"LayoutStack\.from_mask takes one mask per"):
        bs.Layout.from_mask(elements[None], 2)


# ------------------------------------------------------ G25: nothing that goes stale


@each_backend
def test_g25_block_sizes_and_layouts_in_turn(backend):
    for side in (16, 32, 16):
        check_g03(backend, (side, side))
    one, other = np.eye(2, dtype=bool), ~np.eye(2, dtype=bool)
    x = matrix((6, 2))
    for mask in (one, other, one):
        a = from_layout(mask, (2, 3))
        inside = np.kron(mask, np.ones((2, 3))) * matrix((4, 6))
        np.testing.assert_array_equal(backend.run(operator.matmul, a, x), inside @ x)


def test_g25_the_simulator_in_a_fresh_process():
    pytest.importorskip("numba.cuda")
    code = (
        "import numpy as np, numba_bs as bs\n"
        "a = bs.bsr_array(np.eye(4), blocksize=2).to_device()\n"
        "x = bs.arrays.from_numpy(np.arange(4.0), 'numba', 0)\n"
        "print((a @ x).copy_to_host().tolist())"
    )
    assert in_a_process(code, NUMBA_ENABLE_CUDASIM="1") == "[0.0, 1.0, 2.0, 3.0]"


# ---------------------------------------------------------------- G27: run to run


@backends
def test_g27_the_same_bits_from_run_to_run(backend):
    columns, runs = (500, 2) if backend.small else (100_000, 20)
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((16, columns)).astype(np.float32) for _ in range(2))
    a = bs.bsr_array(np.ones((16, 16), np.float32), blocksize=16)
    seen = {
        backend.run(bs.matmul_backward, g, a, x, needs="a")[0].data.tobytes()
        for _ in range(runs)
    }
    assert len(seen) == 1


@backends
def test_g27_the_order_of_a_short_sum_is_fixed(backend):
    terms = np.array([1e8, 1, -1e8, 1], np.float32)
    for blocksize in ((1, 1), (1, 2), (1, 4)):
        a = bs.bsr_array(terms[None], blocksize=blocksize)
        sums = {
            float(backend.run(operator.matmul, a, np.ones(4, np.float32))[0])
            for _ in range(5)
        }
        assert len(sums) == 1
        assert sums <= {0, 1, 2}
