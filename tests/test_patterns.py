"""Patterns: definitions block by block, counts of random graphs, errors."""

import inspect
import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_bs import Layout, patterns

# One call of every pattern on a square grid of n x n blocks.
EVERY = {
    "dense": {},
    "diagonal": {"offset": -1},
    "banded": {"lower": 2, "upper": 1},
    "checkerboard": {},
    "random": {"density": 0.3},
    "causal": {},
    "local": {"window": 1},
    "strided": {"stride": 3},
    "fixed": {"stride": 3},
    "bigbird": {},
    "barabasi_albert": {"m": 2},
    "watts_strogatz_1d": {"m": 2, "p": 0.5},
    "watts_strogatz_2d": {"m": 2, "p": 0.5},
    "balanced_random": {"m": 2},
}
SEEDED = [
    name
    for name in EVERY
    if "seed" in inspect.signature(getattr(patterns, name)).parameters
]
GRAPHS = [
    "barabasi_albert",
    "watts_strogatz_1d",
    "watts_strogatz_2d",
    "balanced_random",
]

counts = st.integers(0, 12)
sizes = st.integers(1, 4)
blocksizes = st.tuples(sizes, sizes)
seeds = st.integers(0, 2**32)
examples = settings(max_examples=80, deadline=None)


def make(name, n, blocksize=(2, 3), **changes):
    return getattr(patterns, name)(n, n, blocksize, **EVERY[name] | changes)


def drawn(text):
    """Return the mask that a picture of # and . shows."""
    return np.array([[c == "#" for c in line] for line in text.split()])


def links(layout):
    """Return the set of blocks (block_row, block_col)."""
    return set(zip(*(axis.tolist() for axis in layout.coordinates()), strict=True))


def own_columns(block_rows, block_cols, blocksize):
    """Return for each block row the block columns, also < 0, its queries stand in."""
    R, C = blocksize
    ahead = block_cols * C - block_rows * R
    return [
        sorted({(row + ahead) // C for row in range(i * R, (i + 1) * R)})
        for i in range(block_rows)
    ]


def distances(block_rows, block_cols, blocksize):
    """Return (block_rows, block_cols): steps to the nearest own block column."""
    own = own_columns(block_rows, block_cols, blocksize)
    table = [[min(abs(j - o) for o in of) for j in range(block_cols)] for of in own]
    return np.array(table, int).reshape(block_rows, block_cols)


def visible(block_rows, block_cols, blocksize):
    """Return which blocks hold a pair with key <= query, from single elements."""
    R, C = blocksize
    M, K = block_rows * R, block_cols * C
    pairs = np.arange(K) <= np.arange(M)[:, None] + K - M
    return pairs.reshape(block_rows, R, block_cols, C).any(axis=(1, 3))


# ------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", EVERY)
def test_shape_and_blocksize(name):
    layout = make(name, 9, (2, 3))
    assert isinstance(layout, Layout)
    assert (layout.shape, layout.blocksize) == ((18, 27), (2, 3))
    assert make(name, 9, 4).blocksize == (4, 4)
    assert 0 < layout.blocks <= 81


@pytest.mark.parametrize("name", [name for name in EVERY if name not in GRAPHS])
def test_rectangular(name):
    layout = getattr(patterns, name)(5, 8, (2, 3), **EVERY[name])
    assert (layout.block_rows, layout.block_cols) == (5, 8)
    assert layout.blocks


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_square(name):
    rule = f"{name}: block_rows must equal block_cols, got 5 and 8"
    with pytest.raises(ValueError, match=rule):
        getattr(patterns, name)(5, 8, (2, 3), **EVERY[name])


@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in GRAPHS])
def test_no_block_rows_or_columns(name, rows, cols):
    layout = getattr(patterns, name)(rows, cols, (2, 3), **EVERY[name])
    assert (layout.shape, layout.blocks) == ((2 * rows, 3 * cols), 0)


@pytest.mark.parametrize("nodes", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_without_links(name, nodes):
    layout = make(name, nodes, m=0)
    assert layout == patterns.diagonal(nodes, nodes, (2, 3))


@pytest.mark.parametrize("name", EVERY)
def test_one_block(name):
    if name == "diagonal":
        assert make(name, 1, offset=0).blocks == 1
    elif name == "random":
        assert make(name, 1, density=0.6).blocks == 1
    elif name not in GRAPHS:
        assert make(name, 1).blocks == 1


@pytest.mark.parametrize("name", SEEDED)
def test_seed(name):
    assert make(name, 40) == make(name, 40, seed=0)
    assert make(name, 40, seed=7) == make(name, 40, seed=7)
    assert make(name, 40, seed=7) != make(name, 40, seed=8)
    assert make(name, 40, seed=7) == make(name, 40, seed=np.random.default_rng(7))
    assert make(name, 40, seed=None) != make(name, 40, seed=None)
    shared = np.random.default_rng(7)
    assert make(name, 40, seed=shared) != make(name, 40, seed=shared)


@pytest.mark.parametrize("name", EVERY)
def test_global_random_state_is_left_alone(name):
    before = np.random.get_state()  # noqa: NPY002 - that state is the point
    make(name, 20)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(x, y) for x, y in zip(before, after, strict=True))


# ----------------------------------------------------------------- regular


def test_dense():
    assert patterns.dense(3, 5, 2).mask().all()


@given(counts, counts, st.integers(-14, 14))
@examples
def test_diagonal(rows, cols, offset):
    mask = patterns.diagonal(rows, cols, 2, offset=offset).mask()
    np.testing.assert_array_equal(mask, np.eye(rows, cols, offset, dtype=bool))


@given(counts, counts, st.integers(-14, 14), st.integers(-14, 14))
@examples
def test_banded(rows, cols, lower, upper):
    mask = patterns.banded(rows, cols, 2, lower=lower, upper=upper).mask()
    offset = np.arange(cols) - np.arange(rows)[:, None]
    np.testing.assert_array_equal(mask, (-lower <= offset) & (offset <= upper))


def test_banded_is_tridiagonal_by_default():
    expected = drawn("##... ###.. .###. ..### ...##")
    np.testing.assert_array_equal(patterns.banded(5, 5, 3).mask(), expected)


@given(counts, counts, st.integers(0, 1))
@examples
def test_checkerboard(rows, cols, parity):
    mask = patterns.checkerboard(rows, cols, 2, parity=parity).mask()
    np.testing.assert_array_equal(mask, np.indices((rows, cols)).sum(0) % 2 == parity)


# ------------------------------------------------------------------ random


@given(counts, counts, st.floats(0, 1), seeds)
@examples
def test_random_count(rows, cols, density, seed):
    layout = patterns.random(rows, cols, 2, density=density, seed=seed)
    assert layout.blocks == round(density * rows * cols)


@pytest.mark.parametrize("density", [0, 1, 0.0, 1.0])
def test_random_extremes(density):
    assert patterns.random(7, 5, 2, density=density).blocks == 35 * density


@pytest.mark.parametrize("blocks", [4, 9])  # drawn; drawn as what is left out
def test_random_blocks_are_equally_likely(blocks):
    rng = np.random.default_rng(0)
    trials = 4000
    stored = np.zeros((3, 4))
    for _ in range(trials):
        stored += patterns.random(3, 4, 1, density=blocks / 12, seed=rng).mask()
    share = blocks / 12
    deviation = np.sqrt(share * (1 - share) / trials)
    assert (abs(stored / trials - share) < 5 * deviation).all()


# --------------------------------------------------------------- attention


def test_causal_is_aligned_at_the_end():
    fewer_queries = drawn("###.. ####. #####")
    np.testing.assert_array_equal(patterns.causal(3, 5, 4).mask(), fewer_queries)
    more_queries = drawn("... ... #.. ##. ###")
    np.testing.assert_array_equal(patterns.causal(5, 3, 4).mask(), more_queries)


@given(counts, counts, blocksizes)
@examples
def test_causal(rows, cols, blocksize):
    mask = patterns.causal(rows, cols, blocksize).mask()
    np.testing.assert_array_equal(mask, visible(rows, cols, blocksize))


def test_local_example():
    expected = drawn("##... ###.. .###. ..### ...##")
    mask = patterns.local(5, 5, 4, window=1).mask()
    np.testing.assert_array_equal(mask, expected)
    causal = patterns.local(5, 5, 4, window=1, causal=True).mask()
    np.testing.assert_array_equal(causal, np.tril(expected))


def test_local_window_larger_than_the_layout():
    assert patterns.local(3, 4, 2, window=100).mask().all()
    everything_seen = patterns.causal(3, 4, 2)
    assert patterns.local(3, 4, 2, window=100, causal=True) == everything_seen


@given(counts, counts, blocksizes, st.integers(0, 14), st.booleans())
@examples
def test_local(rows, cols, blocksize, window, causal):
    layout = patterns.local(rows, cols, blocksize, window=window, causal=causal)
    expected = distances(rows, cols, blocksize) <= window
    if causal:
        expected &= visible(rows, cols, blocksize)
    np.testing.assert_array_equal(layout.mask(), expected)


def test_strided_example():
    # Child et al. 2019, figure 3 (b), with 3 in place of the square root.
    expected = drawn("#...... ##..... ###.... ####... .####.. ..####. #..####")
    layout = patterns.strided(7, 7, 4, stride=3, causal=True)
    np.testing.assert_array_equal(layout.mask(), expected)
    both = patterns.strided(7, 7, 4, stride=3).mask()
    np.testing.assert_array_equal(both, expected | expected.T)


@given(counts, counts, blocksizes, st.integers(1, 14), st.booleans())
@examples
def test_strided(rows, cols, blocksize, stride, causal):
    layout = patterns.strided(rows, cols, blocksize, stride=stride, causal=causal)
    expected = distances(rows, cols, blocksize) % stride == 0
    expected |= distances(rows, cols, blocksize) < stride
    if causal:
        expected &= visible(rows, cols, blocksize)
    np.testing.assert_array_equal(layout.mask(), expected)


def test_fixed_example():
    # Child et al. 2019, figure 3 (c): stride 3, one summary column of each group.
    expected = drawn("#...... ##..... ###.... ..##... ..###.. ..####. ..#..##")
    layout = patterns.fixed(7, 7, 4, stride=3, causal=True)
    np.testing.assert_array_equal(layout.mask(), expected)


@given(counts, counts, blocksizes, st.data(), st.booleans())
@examples
def test_fixed(rows, cols, blocksize, data, causal):
    stride = data.draw(st.integers(1, 14))
    columns = data.draw(st.integers(0, stride))
    layout = patterns.fixed(
        rows, cols, blocksize, stride=stride, columns=columns, causal=causal
    )
    every = np.arange(cols)
    expected = np.zeros((rows, cols), bool)
    for i, own in enumerate(own_columns(rows, cols, blocksize)):
        for o in own:
            expected[i] |= every // stride == o // stride
    expected |= every % stride >= stride - columns
    if causal:
        expected &= visible(rows, cols, blocksize)
    np.testing.assert_array_equal(layout.mask(), expected)


@given(
    counts,
    counts,
    blocksizes,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 14),
    st.booleans(),
    seeds,
)
@examples
def test_bigbird(rows, cols, blocksize, window, globals_, randoms, causal, seed):
    layout = patterns.bigbird(
        rows,
        cols,
        blocksize,
        window=window,
        global_blocks=globals_,
        random_blocks=randoms,
        causal=causal,
        seed=seed,
    )
    seen = np.ones((rows, cols), bool)
    if causal:
        seen = visible(rows, cols, blocksize)
    certain = distances(rows, cols, blocksize) <= window
    certain[:, :globals_] = True
    for i, own in enumerate(own_columns(rows, cols, blocksize)):
        certain[i] |= own[0] < globals_ and own[-1] >= 0
    certain &= seen
    mask = layout.mask()
    assert (mask & certain == certain).all()
    assert (mask <= seen).all()
    rest = (seen & ~certain).sum(axis=1)
    found = (mask & ~certain).sum(axis=1)
    np.testing.assert_array_equal(found, np.minimum(rest, randoms))


@pytest.mark.parametrize("randoms", [1, 3])
def test_bigbird_random_blocks_are_equally_likely(randoms):
    rng = np.random.default_rng(0)
    trials = 4000
    stored = np.zeros((8, 8))
    for _ in range(trials):
        layout = patterns.bigbird(
            8, 8, 1, window=0, global_blocks=1, random_blocks=randoms, seed=rng
        )
        stored += layout.mask()
    off = stored[1:, 1:][~np.eye(7, dtype=bool)] / trials
    share = randoms / 6  # 8 less the global and the own one
    assert (abs(off - share) < 5 * np.sqrt(share * (1 - share) / trials)).all()


# ------------------------------------------------------------------ graphs


@given(st.integers(1, 40), st.data(), seeds)
@examples
def test_barabasi_albert(nodes, data, seed):
    m = data.draw(st.integers(0, nodes - 1))
    layout = patterns.barabasi_albert(nodes, nodes, 2, m=m, seed=seed)
    mask = layout.mask()
    assert layout.blocks == nodes + 2 * m * (nodes - m) + m * (m - 1)
    assert (mask == mask.T).all()
    assert mask.diagonal().all()
    assert mask[:m, :m].all()
    # Each node that joins brings m links to older ones.
    older = np.tril(mask, -1).sum(axis=1)
    assert (older[m:] == m).all()


def test_barabasi_albert_first_steps():
    # Node 1 links to 0; node 2 to one of these two; with m = 2, node 2 to both.
    assert links(patterns.barabasi_albert(2, 2, 1, m=1)) == {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }
    assert patterns.barabasi_albert(3, 3, 1, m=2).mask().all()


def test_barabasi_albert_prefers_the_well_connected():
    # Three nodes in a path 1 - 0 - 2: node 0 has half of the link ends, so of the
    # layouts where 2 linked to 0, node 3 links to 0 in half.
    rng = np.random.default_rng(0)
    masks = [
        patterns.barabasi_albert(4, 4, 1, m=1, seed=rng).mask() for _ in range(6000)
    ]
    paths = [mask for mask in masks if mask[2, 0]]
    to_hub = np.mean([mask[3, 0] for mask in paths])
    assert abs(len(paths) / 6000 - 0.5) < 5 * np.sqrt(0.25 / 6000)
    assert abs(to_hub - 0.5) < 5 * np.sqrt(0.25 / len(paths))


def test_barabasi_albert_has_hubs():
    degree = patterns.barabasi_albert(2000, 2000, 1, m=3).mask().sum(axis=1)
    assert degree.max() > 10 * np.median(degree)
    assert degree[:20].mean() > 5 * degree[-1000:].mean()


@given(st.integers(1, 24), st.data(), seeds)
@examples
def test_barabasi_albert_fills_up_to_the_size_of_a_ring(nodes, data, seed):
    m = data.draw(st.integers(0, (nodes - 1) // 2))
    extra = m * (m + 1) // 2
    layout = patterns.barabasi_albert(
        nodes, nodes, 2, m=m, extra_edges=extra, seed=seed
    )
    assert layout.blocks == nodes * (2 * m + 1)
    ring = patterns.watts_strogatz_1d(nodes, nodes, 2, m=m, p=0.5, seed=seed)
    assert layout.blocks == ring.blocks


@pytest.mark.parametrize(
    "name", ["barabasi_albert", "watts_strogatz_1d", "watts_strogatz_2d"]
)
def test_extra_edges_go_to_a_least_connected_node(name):
    nodes = 12
    before = make(name, nodes, extra_edges=0)
    unlinked = (nodes**2 - before.blocks) // 2
    for extra in range(1, unlinked + 1):
        after = make(name, nodes, extra_edges=extra)
        assert after.blocks == before.blocks + 2
        (a, b), (c, d) = new = sorted(links(after) - links(before))
        assert (a, b) == (d, c), new
        degree = before.mask().sum(axis=1)
        assert degree.min() in (degree[a], degree[b])
        before = after
    assert before.mask().all()
    rule = rf"{name}: extra_edges must be in 0 \.\.\. {unlinked} .*, got {unlinked + 1}"
    with pytest.raises(ValueError, match=rule):
        make(name, nodes, extra_edges=unlinked + 1)


@pytest.mark.parametrize("extra", [1, 5])
def test_extra_edges_break_ties_at_random(extra):
    rng = np.random.default_rng(0)
    trials = 3000
    stored = np.zeros((6, 6))
    for _ in range(trials):
        layout = patterns.barabasi_albert(6, 6, 1, m=0, extra_edges=extra, seed=rng)
        stored += layout.mask()
    # No node differs from another, so each of the 15 pairs is as likely.
    off = stored[~np.eye(6, dtype=bool)] / trials
    share = extra / 15
    assert (abs(off - share) < 5 * np.sqrt(share * (1 - share) / trials)).all()


def ring(nodes, m):
    step = abs(np.arange(nodes) - np.arange(nodes)[:, None])
    return np.minimum(step, nodes - step) <= m


@given(st.integers(1, 30), st.data(), st.floats(0, 1), seeds)
@examples
def test_watts_strogatz_1d(nodes, data, p, seed):
    m = data.draw(st.integers(0, (nodes - 1) // 2))
    layout = patterns.watts_strogatz_1d(nodes, nodes, 2, m=m, p=p, seed=seed)
    mask = layout.mask()
    assert layout.blocks == nodes * (2 * m + 1)  # no link lost, none twice
    assert (mask == mask.T).all()
    assert mask.diagonal().all()
    assert (mask.sum(axis=1) > m).all()  # the ends that stay


@pytest.mark.parametrize(("nodes", "m"), [(9, 0), (9, 1), (9, 4), (10, 4)])
def test_watts_strogatz_1d_without_rewiring_is_a_ring(nodes, m):
    mask = patterns.watts_strogatz_1d(nodes, nodes, 2, m=m, p=0).mask()
    np.testing.assert_array_equal(mask, ring(nodes, m))


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_watts_strogatz_1d_rewired_share(p):
    nodes, m = 4000, 3
    mask = patterns.watts_strogatz_1d(nodes, nodes, 1, m=m, p=p).mask()
    moved = 1 - (mask & ring(nodes, m)).sum() / (nodes * (2 * m + 1))
    # Of n m links p move; few land on the ring again, whose share is 2 m / n.
    share = p * 2 * m / (2 * m + 1)
    assert abs(moved - share) < 5 * np.sqrt(0.25 / (nodes * m)) + 2 * m / nodes


def test_watts_strogatz_1d_near_a_complete_graph():
    # Where all nodes are linked nothing can move; one free pair moves about.
    assert patterns.watts_strogatz_1d(9, 9, 1, m=4, p=1).mask().all()
    layout = patterns.watts_strogatz_1d(10, 10, 1, m=4, p=1)
    assert layout.blocks == 90


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.data(),
    st.floats(0, 1),
    st.booleans(),
    seeds,
)
@examples
def test_watts_strogatz_2d(height, width, data, p, wrap, seed):
    nodes = height * width
    pairs = len(patterns._offsets(height, width, wrap))
    arguments = {
        "m": data.draw(st.integers(0, pairs)),
        "lattice": (height, width),
        "wrap": wrap,
    }
    lattice = patterns.watts_strogatz_2d(nodes, nodes, 2, p=0, **arguments)
    layout = patterns.watts_strogatz_2d(nodes, nodes, 2, p=p, seed=seed, **arguments)
    mask = layout.mask()
    assert layout.blocks == lattice.blocks
    assert (mask == mask.T).all()
    assert mask.diagonal().all()


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_watts_strogatz_2d_without_rewiring_is_a_lattice(m, wrap):
    height, width = 5, 7
    layout = patterns.watts_strogatz_2d(
        35, 35, 2, m=m, p=0, lattice=(height, width), wrap=wrap
    )
    steps = {(0, 1)} | ({(1, 0)} if m > 1 else set())
    steps |= {(1, 1), (1, -1)} if m > 2 else set()
    expected = set()
    for i, j in np.ndindex(height, width):
        expected.add((i * width + j, i * width + j))
        for step_i, step_j in steps | {(-a, -b) for a, b in steps}:
            to_i, to_j = i + step_i, j + step_j
            if wrap:
                to_i, to_j = to_i % height, to_j % width
            if 0 <= to_i < height and 0 <= to_j < width:
                expected.add((i * width + j, to_i * width + to_j))
    assert links(layout) == expected
    if wrap:
        assert layout.blocks == 35 * (2 * m + 1)


def test_watts_strogatz_2d_wraps_half_way_round_once():
    # On a wrapped 2 x 4 lattice above is below: 3 neighbours at m = 2, not 4.
    layout = patterns.watts_strogatz_2d(8, 8, 1, m=2, p=0, lattice=(2, 4))
    assert (layout.mask().sum(axis=1) == 4).all()


def test_watts_strogatz_2d_default_lattice_is_nearly_square():
    for nodes, lattice in [(36, (6, 6)), (12, (3, 4)), (7, (1, 7)), (1, (1, 1))]:
        arguments = {"m": 0 if nodes == 1 else 1, "p": 0.5}
        default = patterns.watts_strogatz_2d(nodes, nodes, 1, **arguments)
        assert default == patterns.watts_strogatz_2d(
            nodes, nodes, 1, lattice=lattice, **arguments
        )


@given(st.integers(1, 30), st.data(), seeds)
@examples
def test_balanced_random(nodes, data, seed):
    m = data.draw(st.integers(0, (nodes - 1) // 2))
    mask = patterns.balanced_random(nodes, nodes, 2, m=m, seed=seed).mask()
    assert mask.diagonal().all()
    assert (mask.sum(axis=0) == 2 * m + 1).all()
    assert (mask.sum(axis=1) == 2 * m + 1).all()


@pytest.mark.parametrize("m", [1, 3])  # chosen; chosen as what is left out
def test_balanced_random_blocks_are_equally_likely(m):
    rng = np.random.default_rng(0)
    trials = 3000
    stored = sum(
        patterns.balanced_random(9, 9, 1, m=m, seed=rng).mask().astype(int)
        for _ in range(trials)
    )
    off = stored[~np.eye(9, dtype=bool)] / trials
    share = 2 * m / 8
    assert (abs(off - share) < 5 * np.sqrt(share * (1 - share) / trials)).all()


def test_balanced_random_is_not_a_set_of_shifted_diagonals():
    # It starts as one. There the order of steps does not matter, and 4 steps of the
    # 5 blocks of a row lead to 70 places at most; at random to about 1 + 4 + ... + 256.
    layout = patterns.balanced_random(2000, 2000, 1, m=2)
    places = patterns.mix_factor([layout] * 4, samples=50) * 2000 / 100
    assert places[-1] > 250


# -------------------------------------------------------------- mix factor


def test_mix_factor_by_hand():
    shift = Layout.from_mask([[0, 1, 0], [0, 0, 1], [1, 0, 0]], 2)
    branch = Layout.from_mask([[1, 1, 0], [0, 1, 0], [0, 0, 0]], 2)
    # Input 0 reaches {2}, then nothing; 1: {0}, then {0}; 2: {1}, then {0, 1}.
    np.testing.assert_allclose(
        patterns.mix_factor([shift, branch]), [100 / 3, 100 * 3 / 9]
    )
    # Input 0 reaches {0}, then {2}; 1: {0, 1}, then {2, 0}; 2: nothing.
    np.testing.assert_allclose(
        patterns.mix_factor([branch, shift]), [100 * 3 / 9, 100 * 3 / 9]
    )


def test_mix_factor_goes_from_columns_to_rows():
    layout = Layout.from_mask([[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]], (2, 3))
    assert patterns.mix_factor([layout]) == [25]
    assert patterns.mix_factor([layout.T]) == [25]  # one input reaches 3, three none
    spread = Layout.from_mask([[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], (2, 3))
    assert patterns.mix_factor([spread]) == pytest.approx([100 / 3])


@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), seeds)
@examples
def test_mix_factor_of_layers_of_unlike_width(widths, seed):
    rng = np.random.default_rng(seed)
    layouts = [
        patterns.random(rows, cols, 2, density=0.4, seed=rng)
        for cols, rows in itertools.pairwise(widths)
    ]
    reached, expected = np.eye(widths[0], dtype=int), []
    for layout in layouts:
        reached = layout.mask().astype(int) @ reached > 0
        expected.append(100 * reached.mean())
    np.testing.assert_allclose(patterns.mix_factor(layouts), expected)


def test_mix_factor_samples():
    layers = [patterns.barabasi_albert(60, 60, 2, m=2)] * 2
    everything = patterns.mix_factor(layers)
    np.testing.assert_array_equal(patterns.mix_factor(layers, samples=60), everything)
    np.testing.assert_array_equal(patterns.mix_factor(layers, samples=99), everything)
    one = patterns.mix_factor(layers, samples=1, seed=3)
    np.testing.assert_array_equal(patterns.mix_factor(layers, samples=1, seed=3), one)
    per_input = layers[0].mask().mean(axis=0) * 100
    assert one[0] in per_input
    seen = {patterns.mix_factor(layers, samples=1, seed=s)[0] for s in range(20)}
    assert len(seen) > 1


def test_mix_factor_of_small_worlds_grows_faster_than_a_ring():
    lattice = patterns.watts_strogatz_1d(256, 256, 1, m=3, p=0)
    small = patterns.watts_strogatz_1d(256, 256, 1, m=3, p=0.2)
    slow, fast = (patterns.mix_factor([one] * 5) for one in (lattice, small))
    assert slow[-1] == pytest.approx(100 * 31 / 256)
    assert fast[-1] > 90


# -------------------------------------------------------------- large ones


def test_large_layouts_take_no_python_loop_over_blocks():
    # A second or two on a slow machine; a million steps of Python, or a test of each
    # of the 10^8 places, take longer.
    n = 10_000
    start = time.perf_counter()
    assert patterns.random(n, n, 16, density=0.01).blocks == 1_000_000
    assert patterns.balanced_random(n, n, 16, m=10).blocks == 21 * n
    assert patterns.watts_strogatz_1d(n, n, 16, m=10, p=0.5).blocks == 21 * n
    assert patterns.bigbird(n, n, 16).blocks
    assert patterns.strided(n, n, 16, stride=100, causal=True).blocks
    # Memory goes with the blocks: a mask of this one would be 10^12 bytes.
    assert patterns.banded(10**6, 10**6, 3).blocks == 3 * 10**6 - 2
    assert time.perf_counter() - start < 20


# ------------------------------------------------------------------ errors

WRONG = [
    ("dense", (-1, 2, 2), {}, ValueError, "block_rows must be at least 0, got -1"),
    ("dense", (1, 2.5, 2), {}, TypeError, "block_cols must be an int, got 2.5"),
    ("dense", (1, 2, 0), {}, ValueError, r"blocksize must be at least \(1, 1\)"),
    ("dense", (1, 2, (2, 2, 2)), {}, TypeError, "blocksize must be an int or a pair"),
    ("diagonal", (2, 2, 2), {"offset": 0.5}, TypeError, "offset must be an int"),
    ("banded", (2, 2, 2), {"lower": None}, TypeError, "lower must be an int, got None"),
    (
        "checkerboard",
        (2, 2, 2),
        {"parity": 2},
        ValueError,
        r"parity must be in 0 \.\.\. 1, got 2",
    ),
    (
        "random",
        (2, 2, 2),
        {"density": 1.5},
        ValueError,
        r"density must be from 0 to 1, got 1\.5",
    ),
    ("random", (2, 2, 2), {"density": float("nan")}, ValueError, "density .* got nan"),
    ("random", (2, 2, 2), {"density": "x"}, TypeError, "density must be a number"),
    (
        "random",
        (2, 2, 2),
        {"density": 0.5, "seed": -1},
        ValueError,
        "seed must be a non-negative int, a Generator or None, got -1",
    ),
    (
        "random",
        (2, 2, 2),
        {"density": 0.5, "seed": 0.5},
        TypeError,
        "seed must be a non-negative int",
    ),
    ("local", (2, 2, 2), {"window": -1}, ValueError, "window must be at least 0"),
    ("strided", (2, 2, 2), {"stride": 0}, ValueError, "stride must be at least 1"),
    ("fixed", (2, 2, 2), {"stride": 0}, ValueError, "stride must be at least 1"),
    (
        "fixed",
        (2, 2, 2),
        {"stride": 3, "columns": 4},
        ValueError,
        r"columns must be in 0 \.\.\. 3 \(a group has stride block columns\), got 4",
    ),
    ("bigbird", (2, 2, 2), {"window": -1}, ValueError, "window must be at least 0"),
    (
        "bigbird",
        (2, 2, 2),
        {"global_blocks": -1},
        ValueError,
        "global_blocks must be at least 0",
    ),
    (
        "bigbird",
        (2, 2, 2),
        {"random_blocks": -1},
        ValueError,
        "random_blocks must be at least 0",
    ),
    (
        "barabasi_albert",
        (5, 5, 2),
        {"m": 5},
        ValueError,
        r"m must be in 0 \.\.\. 4 \(a node links to m older ones\), got 5",
    ),
    ("barabasi_albert", (5, 5, 2), {"m": -1}, ValueError, "m must be in 0"),
    (
        "barabasi_albert",
        (5, 5, 2),
        {"m": 1, "extra_edges": -1},
        ValueError,
        "extra_edges must be in 0",
    ),
    (
        "watts_strogatz_1d",
        (6, 6, 2),
        {"m": 3, "p": 0},
        ValueError,
        r"m must be in 0 \.\.\. 2 \(a node has 2 m neighbours .*\), got 3",
    ),
    (
        "watts_strogatz_1d",
        (6, 6, 2),
        {"m": 1, "p": -0.1},
        ValueError,
        r"p must be from 0 to 1, got -0\.1",
    ),
    (
        "watts_strogatz_2d",
        (4, 4, 2),
        {"m": 4, "p": 0},
        ValueError,
        r"m must be in 0 \.\.\. 3 \(a lattice of 2 x 2 has 3 pairs .*\), got 4",
    ),
    (
        "watts_strogatz_2d",
        (6, 6, 2),
        {"m": 1, "p": 0, "lattice": (2, 2)},
        ValueError,
        "lattice must hold block_rows = 6 nodes, got 2 x 2",
    ),
    (
        "watts_strogatz_2d",
        (6, 6, 2),
        {"m": 1, "p": 0, "lattice": 6},
        TypeError,
        "lattice must be a pair of ints, got 6",
    ),
    (
        "balanced_random",
        (4, 4, 2),
        {"m": 2},
        ValueError,
        r"m must be in 0 \.\.\. 1 \(a row has 2 m random blocks .*\), got 2",
    ),
]


@pytest.mark.parametrize(("name", "sizes", "arguments", "error", "rule"), WRONG)
def test_wrong_arguments(name, sizes, arguments, error, rule):
    with pytest.raises(error, match=f"^{name}: {rule}"):
        getattr(patterns, name)(*sizes, **arguments)


def test_pattern_arguments_are_by_keyword():
    with pytest.raises(TypeError, match="positional"):
        patterns.random(2, 2, 2, 0.5)


@pytest.mark.parametrize(
    ("layouts", "arguments", "error", "rule"),
    [
        ([], {}, ValueError, "layouts must hold at least one layout, got none"),
        (
            patterns.dense(2, 2, 2),
            {},
            TypeError,
            "layouts must be a sequence of Layout objects",
        ),
        ([np.ones((2, 2))], {}, TypeError, "layouts must be a sequence of Layout"),
        (
            [patterns.dense(2, 3, 2), patterns.dense(2, 3, 2)],
            {},
            ValueError,
            "columns of a layer must be the rows of the one before",
        ),
        (
            [patterns.dense(4, 4, 2), patterns.dense(2, 2, 4)],
            {},
            ValueError,
            "columns of a layer must be the rows of the one before",
        ),
        (
            [patterns.dense(0, 3, 2)],
            {},
            ValueError,
            r"layouts must have block rows and block columns, got shape \(0, 6\)",
        ),
        (
            [patterns.dense(2, 2, 2)],
            {"samples": 0},
            ValueError,
            "samples must be at least 1, got 0",
        ),
    ],
)
def test_mix_factor_errors(layouts, arguments, error, rule):
    with pytest.raises(error, match=f"^mix_factor: {rule}"):
        patterns.mix_factor(layouts, **arguments)
