"""Matrices that the package makes."""

import numpy as np
import pytest

from numba_bs import Layout, gallery


def displacements(nodes, gradient):
    """Displacements of the free nodes that are linear in their places."""
    places = np.stack(np.meshgrid(*map(np.arange, nodes), indexing="ij"), axis=-1)
    return places[1:] @ np.transpose(gradient).astype(float)


@pytest.mark.parametrize("nodes", [(2, 2, 2), (4, 3, 5), (3, 2, 2)])
def test_elasticity_is_symmetric_positive_definite(nodes):
    a = gallery.elasticity(*nodes)
    dense = a.toarray()
    assert a.shape == (3 * (nodes[0] - 1) * nodes[1] * nodes[2],) * 2
    assert a.blocksize == (3, 3)
    assert Layout.from_scipy(a).blocks == a.data.shape[0]  # canonical
    assert np.allclose(dense, dense.T, rtol=0, atol=1e-15)
    assert np.linalg.eigvalsh(dense)[0] > 0


@pytest.mark.parametrize(
    "gradient",
    [
        np.arange(9).reshape(3, 3) - 4.0,  # constant stress
        [[0, 1, 0], [-1, 0, 0], [0, 0, 0]],  # a rotation
    ],
    ids=["stretched", "turned"],
)
def test_elasticity_has_no_force_inside_at_constant_stress(gradient):
    nodes = (6, 5, 4)
    u = displacements(nodes, gradient)
    force = (gallery.elasticity(*nodes) @ u.ravel()).reshape(u.shape)
    assert np.abs(force[1:-1, 1:-1, 1:-1]).max() < 1e-13
    assert np.abs(force).max() > 0.1


def test_elasticity_pulls_with_youngs_modulus():
    nodes, youngs, poisson = (4, 4, 5), 7.0, 0.2
    stretched = np.diag([1, -poisson, -poisson])
    u = displacements(nodes, stretched)
    a = gallery.elasticity(*nodes, youngs=youngs, poisson=poisson)
    force = (a @ u.ravel()).reshape(u.shape)
    area = (nodes[1] - 1) * (nodes[2] - 1)
    assert force[-1].sum(axis=(0, 1)) == pytest.approx([youngs * area, 0, 0], abs=1e-12)


def test_elasticity_errors():
    with pytest.raises(ValueError, match=r"at least 2 nodes .*got \(2, 1, 2\)"):
        gallery.elasticity(2, 1, 2)
    with pytest.raises(ValueError, match=r"poisson must be above -1 and below 0\.5"):
        gallery.elasticity(2, 2, 2, poisson=0.5)


@pytest.mark.parametrize("density", [0, 0.1, 1])
def test_pruned_layer_keeps_so_many_blocks(density):
    a = gallery.pruned_layer(96, 160, blocksize=(8, 16), density=density)
    assert a.shape == (96, 160)
    assert a.dtype == np.float32
    layout = Layout.from_scipy(a)
    assert layout.blocks == round(density * 12 * 10)
    assert layout.blocksize == (8, 16)


def test_pruned_layer_is_the_same_for_the_same_seed():
    one, same, other = (gallery.pruned_layer(128, 96, seed=s) for s in (3, 3, 4))
    assert np.array_equal(one.toarray(), same.toarray())
    assert not np.array_equal(one.toarray(), other.toarray())


def test_pruned_layer_rows_are_uneven_as_asked():
    even, uneven = (
        np.diff(gallery.pruned_layer(2048, 2048, spread=spread).indptr).std()
        for spread in (0, 1)
    )
    assert uneven > 2 * even


def test_pruned_layer_errors():
    with pytest.raises(ValueError, match="shape must be a multiple of blocksize"):
        gallery.pruned_layer(100, 64)
    with pytest.raises(ValueError, match=r"density must be in \[0, 1\], got 1.5"):
        gallery.pruned_layer(64, 64, density=1.5)
