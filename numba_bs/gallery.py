"""Block-sparse matrices to try things on, made on the spot."""

import itertools

import numpy as np
import scipy.sparse

from . import checks


def elasticity(
    nodes_x: int,
    nodes_y: int,
    nodes_z: int,
    *,
    youngs: float = 1.0,
    poisson: float = 0.3,
) -> scipy.sparse.bsr_array:
    """Assemble the stiffness matrix of an elastic box, clamped at one face.

    Linear elasticity in three dimensions on a grid of trilinear cubes with edges of
    1: each node has three displacements, so that blocks are 3x3, and is coupled to
    itself and at most 26 neighbours.

    Parameters
    ----------
    nodes_x, nodes_y, nodes_z : int
        Nodes along the axes, at least 2. Those of the face x = 0 are clamped: they
        count here, but have no rows in the matrix.
    youngs : float
        Young's modulus.
    poisson : float
        Poisson's ratio, above -1 and below 0.5.

    Returns
    -------
    scipy.sparse.bsr_array
        float64 with blocks of 3x3, symmetric and positive definite;
        ``3 * (nodes_x - 1) * nodes_y * nodes_z`` rows, z the fastest axis.

    Raises
    ------
    ValueError
        Fewer than two nodes along an axis, or a Poisson's ratio out of range.

    References
    ----------
    O. C. Zienkiewicz, R. L. Taylor, "The Finite Element Method", volume 1, chapter on
    three-dimensional stress analysis: ``K = sum over elements of B^T D B``.

    Examples
    --------
    >>> elasticity(3, 3, 3).shape
    (54, 54)
    """
    nodes = nodes_x, nodes_y, nodes_z
    if min(nodes) < 2:
        raise ValueError(
            f"elasticity: at least 2 nodes must lie along each axis, got {nodes}"
        )
    if not -1 < poisson < 0.5:
        raise ValueError(
            f"elasticity: poisson must be above -1 and below 0.5, got {poisson}"
        )
    element = _cube_stiffness(youngs, poisson)

    # All cubes are alike, so that the block of a node and its neighbour at a given
    # offset is a sum over the pairs of corners with this offset, each pair meeting
    # at every cube: 64 additions of slices, and no sorting.
    values = np.zeros((*nodes, 27, 3, 3))
    corners = list(itertools.product((0, 1), repeat=3))
    for p, corner in enumerate(corners):
        first = tuple(slice(c, n - 1 + c) for c, n in zip(corner, nodes, strict=True))
        for q, other in enumerate(corners):
            step = np.subtract(other, corner) + 1
            offset = np.ravel_multi_index(step, (3, 3, 3))
            values[*first, offset] += element[p, :, q, :]

    # Offsets in this order have growing column numbers, so the result is canonical.
    steps = np.array(list(itertools.product((-1, 0, 1), repeat=3)))
    places = np.stack(np.meshgrid(*map(np.arange, nodes), indexing="ij"), axis=-1)
    neighbours = places[1:, :, :, np.newaxis, :] + steps
    # A neighbour with x = 0 is clamped: its displacement is zero.
    exists = ((neighbours >= (1, 0, 0)) & (neighbours < nodes)).all(axis=-1)
    stored = neighbours[exists] - (1, 0, 0)
    indices = np.ravel_multi_index(tuple(stored.T), (nodes_x - 1, nodes_y, nodes_z))
    counts = exists.sum(axis=-1).ravel()
    indptr = np.concatenate([[0], np.cumsum(counts)])
    unknowns = 3 * len(counts)
    return scipy.sparse.bsr_array(
        (values[1:][exists], indices, indptr), shape=(unknowns, unknowns)
    )


def pruned_layer(
    rows: int,
    cols: int,
    *,
    blocksize: tuple[int, int] = (32, 32),
    density: float = 0.1,
    spread: float = 0.25,
    seed: int = 0,
) -> scipy.sparse.bsr_array:
    """Return the weights of a linear layer after pruning blocks by magnitude.

    Parameters
    ----------
    rows, cols : int
        Outputs and inputs of the layer, multiples of ``blocksize``.
    blocksize : (R, C)
        Only whole blocks are pruned.
    density : float
        Share of the blocks that stay, those with the largest norm; 0 to 1.
    spread : float
        How unlike the features are: block rows and block columns differ in size by
        log-normal factors whose logarithms have this standard deviation. 0 gives a
        uniformly random layout; with more, some rows keep many blocks and some few,
        as in trained layers.
    seed : int
        Of the weights.

    Returns
    -------
    scipy.sparse.bsr_array
        float32.

    Raises
    ------
    ValueError
        ``blocksize`` does not divide the shape, or ``density`` is out of range.

    Examples
    --------
    >>> a = pruned_layer(256, 128, density=0.25)
    >>> a.shape, a.data.shape
    ((256, 128), (8, 32, 32))
    """
    R, C = checks.blocksize("pruned_layer", blocksize)
    checks.divides("pruned_layer", (rows, cols), (R, C))
    if not 0 <= density <= 1:
        raise ValueError(f"pruned_layer: density must be in [0, 1], got {density}")
    rng = np.random.default_rng(seed)
    block_rows, block_cols = rows // R, cols // C
    # What training does to the sizes of blocks, by assumption: a factor for each
    # output, each input and each block.
    norms = np.exp(
        spread * rng.standard_normal((block_rows, 1))
        + spread * rng.standard_normal((1, block_cols))
        + 0.5 * rng.standard_normal((block_rows, block_cols))
    )
    kept = round(density * norms.size)
    survivors = np.sort(np.argsort(norms, axis=None)[norms.size - kept :])
    block_row, indices = np.divmod(survivors, max(block_cols, 1))
    data = rng.standard_normal((kept, R, C), dtype=np.float32)
    # Root mean square instead of length: weights of the usual size, about 1.
    size = np.sqrt((data**2).mean(axis=(1, 2), keepdims=True))
    data *= norms.ravel()[survivors, np.newaxis, np.newaxis] / size
    counts = np.bincount(block_row, minlength=block_rows)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return scipy.sparse.bsr_array((data, indices, indptr), shape=(rows, cols))


def _cube_stiffness(youngs, poisson):
    """Stiffness of one trilinear cube with edges of 1: (8, 3, 8, 3).

    Corners are numbered with z fastest. The integrals are exact: two Gauss points
    along each axis.
    """
    # Stress of strain, with strains in the order xx, yy, zz, yz, xz, xy.
    shear = youngs / (2 * (1 + poisson))
    lame = youngs * poisson / ((1 + poisson) * (1 - 2 * poisson))
    stress = np.diag([2 * shear] * 3 + [shear] * 3)
    stress[:3, :3] += lame

    corners = np.array(list(itertools.product((0, 1), repeat=3)))
    points = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
    stiffness = np.zeros((24, 24))
    for point in itertools.product(points, repeat=3):
        # Each shape function is a product of x or 1 - x, y or 1 - y, z or 1 - z.
        factor = np.where(corners, point, np.subtract(1, point))
        slope = np.where(corners, 1, -1)
        x, y, z = (
            slope[:, axis] * np.delete(factor, axis, axis=1).prod(axis=1)
            for axis in range(3)
        )
        strain = np.zeros((6, 8, 3))
        strain[0, :, 0], strain[1, :, 1], strain[2, :, 2] = x, y, z
        strain[3, :, 1], strain[3, :, 2] = z, y
        strain[4, :, 0], strain[4, :, 2] = z, x
        strain[5, :, 0], strain[5, :, 1] = y, x
        strain = strain.reshape(6, 24)
        stiffness += strain.T @ stress @ strain / 8  # each point has weight 1/8
    return stiffness.reshape(8, 3, 8, 3)
