"""Real matrices: products and gradients on them, with values computed elsewhere.

``y = A @ x`` with ``x[j] = j mod 7 - 3``; sums and norms come from SciPy alone.
"""

import operator

import numpy as np
import pytest
from backends import EACH, HOST, SIMULATED
from bounds import assert_within, widened
from patterns import values

import numba_bs as bs
from numba_bs import files

# file, blocks, (count, blocks of a row: least and most), sum of y, norm of y
MATRICES = {
    "pyamg_bar.mat": ((3, 3), 3718, (8, 27), -1538.461538, 28654.35246),
    "pyamg_helmholtz_2D.mat": ((3, 3), 9024, (7, 10), -36.68319895, 1345.716377),
    "olm1000.mtx": ((2, 2), 1498, None, 5070.74368, 2793865.478),
    "amgx_matrix.mtx": ((3, 3), 14, None, -383, 349.7384737),
    "dlmc_vd98_enc2_v.smtx": ((16, 16), 17, (0, 7), 17, 10.34408043),
    "dlmc_vd98_dec0_k_all_zero.smtx": ((16, 16), 0, (0, 0), 0, 0),
    "dlmc_rn50_mp95_initial_conv.smtx": ((8, 7), 119, (12, 20), 107, 45.94562003),
    "dlmc_l0_98_dec0_q.smtx": ((8, 8), 1148, (0, 64), -203, 158.533908),
}
# A simulated CTA takes milliseconds: these have few.
SMALL = ["amgx_matrix.mtx", "dlmc_vd98_enc2_v.smtx", "dlmc_vd98_dec0_k_all_zero.smtx"]
SMALL += ["dlmc_rn50_mp95_initial_conv.smtx"]
every = pytest.mark.parametrize("name", MATRICES)


def on_backends():
    """Return (backend, name) pairs: all on the host and a GPU, some simulated."""
    return [
        pytest.param(
            *backend.values, name, id=f"{name}-{backend.id}", marks=backend.marks
        )
        for backend in EACH
        for name in (SMALL if SIMULATED and backend is not HOST else MATRICES)
    ]


@pytest.fixture
def matrix(cases, name):
    """Return the matrix as SciPy read it."""
    return files.read(cases / "files" / name)


def blocked(matrix, name):
    return bs.bsr_array(matrix, blocksize=MATRICES[name][0])


def pattern(size, dtype):
    return (np.arange(size) % 7 - 3).astype(dtype)


@every
def test_blocks(matrix, name):
    _, blocks, of_rows, *_ = MATRICES[name]
    a = blocked(matrix, name)
    assert a.layout.blocks == blocks
    lengths = np.diff(a.indptr)
    if of_rows:
        assert (lengths.min(), lengths.max()) == of_rows
    assert (a.tocsr() != matrix).nnz == 0


def test_shares_of_zeros_in_blocks(cases):
    """How much of the stored blocks is not zero, as the sources say."""
    for name, blocksize, fill in (
        ("pyamg_bar.mat", 3, 0.699),
        ("pyamg_helmholtz_2D.mat", 3, 0.640),
        ("olm1000.mtx", 2, 0.667),
        ("dlmc_l0_98_dec0_q.smtx", 8, 0.147),
    ):
        matrix = files.read(cases / "files" / name)
        a = bs.bsr_array(matrix, blocksize=blocksize)
        assert np.count_nonzero(a.data) / a.nnz == pytest.approx(fill, abs=5e-4)
    assert (
        bs.bsr_array(
            files.read(cases / "files" / "amgx_matrix.mtx"), blocksize=4
        ).layout.density
        == 1
    )


@pytest.mark.parametrize(("backend", "name"), on_backends())
def test_products(matrix, backend, name):
    *_, total, norm = MATRICES[name]
    a = blocked(matrix, name)
    y = backend.run(operator.matmul, a, pattern(a.shape[1], a.dtype))
    real = y.astype(np.complex128 if y.dtype.kind == "c" else np.float64)
    # The values are given with ten digits.
    assert real.sum().real == pytest.approx(total, rel=1e-8, abs=1e-9)
    assert np.linalg.norm(real) == pytest.approx(norm, rel=1e-8)


@pytest.mark.parametrize(("backend", "name"), on_backends())
def test_gradients(rng, matrix, backend, name):
    """Against SciPy's products with the CSR matrix."""
    a = blocked(matrix, name)
    n = 3
    x, g = (values(rng, (size, n), a.dtype) for size in a.shape[::-1])
    y = backend.run(operator.matmul, a, x)
    grad_a, grad_x = backend.run(bs.matmul_backward, g, a, x)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    exact = matrix.astype(wide)
    moduli = abs(exact)
    sums = bs.dtypes.accumulator(a.dtype)
    x, g = x.astype(wide), g.astype(wide)
    terms = max(np.diff(a.indptr).max(), np.diff(a.T.indptr).max()) * max(a.blocksize)
    assert_within(y, exact @ x, moduli @ np.abs(x), terms, sums)
    adjoint = exact.conj().T.tocsr()
    assert_within(grad_x, adjoint @ g, moduli.T.tocsr() @ np.abs(g), terms, sums)
    R, C = a.blocksize
    rows, cols = a.layout.coordinates()
    g = g.reshape(-1, R, n)[rows]
    x = x.reshape(-1, C, n)[cols]
    assert_within(
        grad_a.data,
        g @ x.conj().swapaxes(1, 2),
        np.abs(g) @ np.abs(x).swapaxes(1, 2),
        n,
        sums,
    )


@every
def test_the_adjoint_identity(rng, matrix, name):
    """<g, dA x + A dx> = <grad_a, dA> + <grad_x, dx>."""
    a = blocked(matrix, name)
    wide = np.result_type(a.dtype, np.float64)
    a = a.astype(wide)
    x, dx, g = (
        values(rng, (size,), wide) for size in (a.shape[1], a.shape[1], a.shape[0])
    )
    da = a.with_data(values(rng, a.data.shape, wide))
    grad_a, grad_x = bs.matmul_backward(g, a, x)
    A, dA = (each.to_scipy().tocsr() for each in (a, da))
    change = dA @ x + A @ dx
    moduli = abs(dA) @ np.abs(x) + abs(A) @ np.abs(dx)
    terms = 4 * (change.size + a.nnz)
    actual = np.vdot(grad_a.data, da.data).real + np.vdot(grad_x, dx).real
    magnitude = np.abs(g) @ moduli
    assert_within(actual, np.vdot(g, change).real, magnitude, terms, np.float64)


def test_bfloat16_and_float16_of_a_pruned_layer(rng, cases):
    matrix = files.read(cases / "files" / "dlmc_l0_98_dec0_q.smtx", seed=1)
    for dtype in (np.float16, bs.dtypes.bfloat16):
        a = bs.bsr_array(matrix, blocksize=8).astype(dtype)
        x = values(rng, (512, 4), dtype)
        exact = a.astype(np.float64).to_scipy().tocsr()
        assert_within(
            a @ x,
            exact @ widened(x).astype(np.float64),
            abs(exact) @ np.abs(widened(x)).astype(np.float64),
            512,
            np.float32,
        )
