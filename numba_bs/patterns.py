"""Named layouts: regular ones, attention patterns, random graphs.

Every function takes the number of block rows and of block columns, the block size,
and by keyword what makes the pattern; it returns a :class:`~numba_bs.Layout`. Work
and memory grow with the blocks that are stored, not with those that could be.

``seed`` is what ``np.random.default_rng`` takes. An int, 0 by default, gives the same
layout every time; a ``Generator`` is drawn from, so that several layouts can share
one; None draws anew in each process. NumPy's global state is never touched.

*Attention* (:func:`causal`, :func:`local`, :func:`strided`, :func:`fixed`,
:func:`bigbird`): block rows are queries, block columns are keys. With unlike numbers
of queries and keys the last query stands at the last key, as in decoding with a key
cache. The *own* block columns of a block row are those that hold the positions of its
queries: with square blocks just one, ``block_row + block_cols - block_rows``. What
``causal=True`` leaves out are the blocks that lie wholly after every query of their
block row; a block that holds both kinds of pairs stays, and needs a mask of elements.

*Small worlds* (:func:`barabasi_albert`, :func:`watts_strogatz_1d`,
:func:`watts_strogatz_2d`, :func:`balanced_random`; Gray, Radford and Kingma, "GPU
kernels for block-sparse weights", 2017): layouts of square shape whose nodes are the
groups of features that a block row and a block column of the same number stand for.
Every node keeps a block with itself. :func:`mix_factor` tells how many such layers
it takes until every output hears from every input.
"""

import heapq
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse

from . import checks
from .layout import Layout

Seed = int | Sequence[int] | np.random.SeedSequence | np.random.Generator | None
BlockSize = int | tuple[int, int]

# How often a block of balanced_random is switched, on average.
SWITCHES = 4


def dense(block_rows: int, block_cols: int, blocksize: BlockSize) -> Layout:
    """Store every block.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows and block columns.
    blocksize : int or (R, C)

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.dense(2, 3, 16)
    Layout(shape=(32, 48), blocksize=(16, 16), blocks=6, density=1)
    """
    grid = _grid("dense", block_rows, block_cols, blocksize)
    return grid.layout(_runs(np.zeros(grid.block_rows, int), grid.block_cols))


def diagonal(
    block_rows: int, block_cols: int, blocksize: BlockSize, *, offset: int = 0
) -> Layout:
    """Store the blocks with ``block_col - block_row == offset``.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows and block columns.
    blocksize : int or (R, C)
    offset : int
        Positive above the main diagonal, negative below it.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.diagonal(2, 3, 16, offset=1).mask().astype(int)
    array([[0, 1, 0],
           [0, 0, 1]])
    """
    grid = _grid("diagonal", block_rows, block_cols, blocksize)
    offset = _integer(grid.op, "offset", offset)
    return _band(grid, -offset, offset)


def banded(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    lower: int = 1,
    upper: int = 1,
) -> Layout:
    """Store the blocks with ``-lower <= block_col - block_row <= upper``.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows and block columns.
    blocksize : int or (R, C)
    lower, upper : int
        Diagonals below and above the main one, as in ``scipy.linalg.solve_banded``;
        block tridiagonal by default. Negative: the band ends beside the main
        diagonal. More than there are: all of them.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.banded(4, 4, 3, lower=1, upper=2).mask().astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])
    """
    grid = _grid("banded", block_rows, block_cols, blocksize)
    lower = _integer(grid.op, "lower", lower)
    upper = _integer(grid.op, "upper", upper)
    return _band(grid, lower, upper)


def checkerboard(
    block_rows: int, block_cols: int, blocksize: BlockSize, *, parity: int = 0
) -> Layout:
    """Store the blocks with ``(block_row + block_col) % 2 == parity``.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows and block columns.
    blocksize : int or (R, C)
    parity : 0 or 1
        0 stores the first block, 1 leaves it out.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        ``parity`` is neither 0 nor 1.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.checkerboard(2, 4, 16).mask().astype(int)
    array([[1, 0, 1, 0],
           [0, 1, 0, 1]])
    """
    grid = _grid("checkerboard", block_rows, block_cols, blocksize)
    parity = _integer(grid.op, "parity", parity, 0, 1)
    first = (np.arange(grid.block_rows) + parity) % 2
    return grid.layout(_runs(first, grid.block_cols, step=2))


def random(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    density: float,
    seed: Seed = 0,
) -> Layout:
    """Store ``round(density * block_rows * block_cols)`` blocks drawn at random.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows and block columns.
    blocksize : int or (R, C)
    density : float from 0 to 1
        Stored blocks over all blocks.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        ``density`` is not from 0 to 1.

    Notes
    -----
    Drawn without replacement: every set of that many blocks is equally likely. Rows
    and columns without blocks can occur; :func:`balanced_random` has none.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.random(64, 32, (16, 8), density=0.1, seed=1)
    Layout(shape=(1024, 256), blocksize=(16, 8), blocks=205, density=0.1)
    """
    grid = _grid("random", block_rows, block_cols, blocksize)
    density = _share(grid.op, "density", density)
    rng = _generator(grid.op, seed)
    every = grid.block_rows * grid.block_cols
    keys = _draw(rng, every, round(density * every))
    return grid.layout(np.divmod(keys, max(grid.block_cols, 1)))


def causal(block_rows: int, block_cols: int, blocksize: BlockSize) -> Layout:
    """Store the blocks where some query may see some key: itself or an earlier one.

    Query ``q`` of ``block_rows * R`` sees key ``k`` of ``block_cols * C`` if
    ``k <= q + block_cols * C - block_rows * R``: the last query sees every key. With
    square blocks these are the blocks with
    ``block_col <= block_row + block_cols - block_rows``.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows (queries) and block columns (keys). With more queries
        than keys the first queries see nothing: their block rows hold no block.
    blocksize : int or (R, C)

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.causal(2, 4, 16).mask().astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    grid = _grid("causal", block_rows, block_cols, blocksize)
    _, last = _own_columns(grid)
    return grid.layout(_runs(np.zeros_like(last), _seen(grid, last, causal=True)))


def local(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    window: int,
    causal: bool = False,
) -> Layout:
    """Store a sliding window: own block columns and ``window`` on each side of them.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows (queries) and block columns (keys).
    blocksize : int or (R, C)
    window : int, at least 0
        Block columns before the own ones, and as many behind them. It may be larger
        than the layout.
    causal : bool
        Leave out what lies behind.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        ``window`` is negative.

    References
    ----------
    Beltagy, Peters and Cohan, "Longformer: the long-document transformer", 2020,
    section 3.1; the window of w tokens there is ``2 * window + 1`` blocks here.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.local(4, 4, 16, window=1).mask().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])
    """
    grid = _grid("local", block_rows, block_cols, blocksize)
    window = _integer(grid.op, "window", window, 0)
    return grid.layout(_window(grid, window, causal))


def strided(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    stride: int,
    causal: bool = False,
) -> Layout:
    """Store the nearest ``stride`` block columns and every ``stride``-th beyond.

    With ``distance`` the number of block columns between a block and the own ones of
    its block row (0 for an own one): ``distance < stride`` or
    ``distance % stride == 0``.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows (queries) and block columns (keys).
    blocksize : int or (R, C)
    stride : int, at least 1
        In block columns. 1 stores everything; it may be larger than the layout.
    causal : bool
        Leave out what lies behind the own block columns, as the paper does.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        ``stride`` is less than 1.

    References
    ----------
    Child, Gray, Radford and Sutskever, "Generating long sequences with sparse
    transformers", 2019, section 4.3: the union of the two heads A1 and A2 there, with
    blocks in place of positions.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.strided(6, 6, 16, stride=2, causal=True).mask().astype(int)
    array([[1, 0, 0, 0, 0, 0],
           [1, 1, 0, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0],
           [1, 0, 1, 1, 1, 0],
           [0, 1, 0, 1, 1, 1]])
    """
    grid = _grid("strided", block_rows, block_cols, blocksize)
    stride = _integer(grid.op, "stride", stride, 1)
    first, last = _own_columns(grid)
    parts = [
        _window(grid, stride - 1, causal),
        _runs(first % stride, first, step=stride),
    ]
    if not causal:
        # Queries before the first key (last < 0) meet the comb where it enters.
        behind = np.where(last < 0, last % stride, last + stride)
        parts.append(_runs(behind, grid.block_cols, step=stride))
    return grid.layout(*parts)


def fixed(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    stride: int,
    columns: int = 1,
    causal: bool = False,
) -> Layout:
    """Store the own group of ``stride`` block columns and the last few of every group.

    With own block column ``own``: ``block_col // stride == own // stride`` or
    ``block_col % stride >= stride - columns``. The last ``columns`` of each group
    carry a summary of it to everyone.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows (queries) and block columns (keys).
    blocksize : int or (R, C)
    stride : int, at least 1
        Block columns of a group. It may be larger than the layout.
    columns : int, 0 to ``stride``
        Summary columns of a group; c in the paper.
    causal : bool
        Leave out what lies behind the own block columns, as the paper does.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        ``stride`` is less than 1, or ``columns`` is not in 0 ... ``stride``.

    References
    ----------
    Child, Gray, Radford and Sutskever, "Generating long sequences with sparse
    transformers", 2019, section 4.3: the union of the two heads A1 and A2 there, with
    blocks in place of positions.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.fixed(6, 6, 16, stride=3, causal=True).mask().astype(int)
    array([[1, 0, 0, 0, 0, 0],
           [1, 1, 0, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [0, 0, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 0],
           [0, 0, 1, 1, 1, 1]])
    """
    grid = _grid("fixed", block_rows, block_cols, blocksize)
    stride = _integer(grid.op, "stride", stride, 1)
    columns = _integer(
        grid.op, "columns", columns, 0, stride, "a group has stride block columns"
    )
    first, last = _own_columns(grid)
    seen = _seen(grid, last, causal)
    group = _runs(
        np.maximum(first // stride * stride, 0),
        np.minimum((last // stride + 1) * stride, seen),
    )
    every = np.arange(grid.block_cols)
    summary = every[every % stride >= stride - columns]
    rows, entry = _runs(np.zeros_like(seen), np.searchsorted(summary, seen))
    return grid.layout(group, (rows, summary[entry]))


def bigbird(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    window: int = 1,
    global_blocks: int = 2,
    random_blocks: int = 3,
    causal: bool = False,
    seed: Seed = 0,
) -> Layout:
    """Store a window, global block rows and columns, and random blocks in each row.

    Parameters
    ----------
    block_rows, block_cols : int
        Numbers of block rows (queries) and block columns (keys).
    blocksize : int or (R, C)
    window : int, at least 0
        As in :func:`local`: ``2 * window + 1`` blocks with square ones.
    global_blocks : int, at least 0
        The first so many block columns are seen by every query, and the queries that
        stand there see every key.
    random_blocks : int, at least 0
        Blocks that each block row draws from its block columns which are neither
        global nor in its window, without replacement; all of these where they are
        fewer.
    causal : bool
        Leave out what lies behind the own block columns; the random blocks are then
        drawn from the rest.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)

    Raises
    ------
    ValueError
        One of the three numbers is negative.

    Notes
    -----
    The defaults are those of the paper's base model, with blocks of 64.

    References
    ----------
    Zaheer et al., "Big Bird: transformers for longer sequences", 2020, section 2 and
    appendix D (the blocked form; global tokens as in BigBird-ITC).

    Examples
    --------
    >>> from numba_bs import patterns
    >>> a = patterns.bigbird(6, 6, 64, global_blocks=1, random_blocks=0)
    >>> a.mask().astype(int)
    array([[1, 1, 1, 1, 1, 1],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 1, 0, 0],
           [1, 0, 1, 1, 1, 0],
           [1, 0, 0, 1, 1, 1],
           [1, 0, 0, 0, 1, 1]])
    """
    grid = _grid("bigbird", block_rows, block_cols, blocksize)
    window = _integer(grid.op, "window", window, 0)
    global_blocks = _integer(grid.op, "global_blocks", global_blocks, 0)
    random_blocks = _integer(grid.op, "random_blocks", random_blocks, 0)
    rng = _generator(grid.op, seed)
    first, last = _own_columns(grid)
    seen = _seen(grid, last, causal)
    is_global = (first < global_blocks) & (last >= 0)
    every = np.where(is_global, seen, np.minimum(global_blocks, seen))
    # What is taken in a row are two runs, [0, every) and [near, far): the free block
    # column of a given rank is found by stepping over them.
    near = np.clip(first - window, every, seen)
    far = np.clip(last + window + 1, near, seen)
    free = seen - every - (far - near)
    rows, rank = _draw_in_rows(rng, free, random_blocks)
    cols = rank + every[rows]
    cols += np.where(cols >= near[rows], (far - near)[rows], 0)
    return grid.layout(
        _runs(np.zeros_like(every), every), _runs(near, far), (rows, cols)
    )


def barabasi_albert(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    m: int,
    extra_edges: int = 0,
    seed: Seed = 0,
) -> Layout:
    """Store a graph with hubs, grown by preferential attachment.

    The nodes join one after the other. Node ``m`` links to the ``m`` before it, each
    later one to ``m`` distinct older ones, drawn in proportion to the links they
    have. The oldest ``m``, which become hubs, are all linked to one another.

    Parameters
    ----------
    block_rows, block_cols : int
        Equal: the number of nodes.
    blocksize : int or (R, C)
    m : int, 0 to ``block_rows - 1``
        Links that a node brings when it joins.
    extra_edges : int
        Links added at the end, one by one, each from a least connected node to a node
        that it is not linked to yet.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)
        Symmetric, diagonal and dense m x m corner included: with n nodes
        ``n + 2 * m * (n - m) + m * (m - 1) + 2 * extra_edges`` blocks. With
        ``extra_edges=m * (m + 1) // 2`` these are ``n * (2 * m + 1)``, as many as
        :func:`watts_strogatz_1d` and :func:`balanced_random` of the same ``m`` store.

    Raises
    ------
    ValueError
        Block rows and columns differ in number, ``m`` is not less than it, or there
        are not so many pairs left to link.

    References
    ----------
    Barabasi and Albert, "Emergence of scaling in random networks", Science 286, 1999.
    The dense corner and the added links are those of openai/blocksparse (2017),
    which went on for ever when asked for more links than fit; here: ValueError.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> a = patterns.barabasi_albert(100, 100, 32, m=2)
    >>> a.blocks, a.mask()[:2, :2].all()
    (494, np.True_)
    >>> patterns.barabasi_albert(100, 100, 32, m=2, extra_edges=3).blocks
    500
    """
    grid = _grid("barabasi_albert", block_rows, block_cols, blocksize)
    nodes = _nodes(grid)
    m = _integer(grid.op, "m", m, 0, max(nodes - 1, 0), "a node links to m older ones")
    rng = _generator(grid.op, seed)
    links = max(nodes - m, 0) * m
    # ends[2 * i] and ends[2 * i + 1] are linked: a node stands in it once for each of
    # its links, so that an even draw is one in proportion to the links.
    ends = np.empty(2 * links, np.int64)
    targets = set(range(m))
    for node in range(m, nodes if m else 0):
        at = 2 * m * (node - m)
        ends[at : at + 2 * m : 2] = node
        ends[at + 1 : at + 2 * m : 2] = sorted(targets)
        targets.clear()
        while len(targets) < m:
            drawn = rng.integers(at + 2 * m, size=m - len(targets))
            targets.update(ends[drawn].tolist())
    corner = np.triu_indices(m, 1)
    u = np.concatenate([ends[0::2], corner[0]])
    v = np.concatenate([ends[1::2], corner[1]])
    return _graph_layout(grid, rng, u, v, extra_edges)


def watts_strogatz_1d(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    m: int,
    p: float,
    extra_edges: int = 0,
    seed: Seed = 0,
) -> Layout:
    """Store a ring whose links have moved to random places with probability ``p``.

    Each node is linked to its ``2 * m`` nearest on a ring. Each link then keeps one of
    its nodes and, with probability ``p``, moves the other end to a node that the kept
    one is not linked to.

    Parameters
    ----------
    block_rows, block_cols : int
        Equal: the number of nodes.
    blocksize : int or (R, C)
    m : int, 0 to ``(block_rows - 1) // 2``
        Neighbours on each side.
    p : float from 0 to 1
        0: the ring. 1: nearly a random graph.
    extra_edges : int
        As in :func:`barabasi_albert`.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)
        Symmetric, diagonal included: with n nodes ``n * (2 * m + 1) + 2 *
        extra_edges`` blocks, whatever ``p`` is.

    Raises
    ------
    ValueError
        Block rows and columns differ in number, the ring has no ``2 * m`` neighbours
        for a node, ``p`` is not from 0 to 1, or there are not so many pairs left.

    Notes
    -----
    The links move in rounds, all at once, not one by one; where several want the same
    place one gets it and the others draw again. As in networkx, a link whose kept node
    is linked to all others stays.

    References
    ----------
    Watts and Strogatz, "Collective dynamics of 'small-world' networks", Nature 393,
    1998. ``ws_m_pct`` of openai/blocksparse (2017) is ``m`` and ``p = pct / 100`` here.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.watts_strogatz_1d(6, 6, 32, m=1, p=0).mask().astype(int)
    array([[1, 1, 0, 0, 0, 1],
           [1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 0],
           [0, 0, 0, 1, 1, 1],
           [1, 0, 0, 0, 1, 1]])
    """
    grid = _grid("watts_strogatz_1d", block_rows, block_cols, blocksize)
    nodes = _nodes(grid)
    m = _integer(
        grid.op,
        "m",
        m,
        0,
        max(nodes - 1, 0) // 2,
        "a node has 2 m neighbours beside itself on the ring",
    )
    p = _share(grid.op, "p", p)
    rng = _generator(grid.op, seed)
    u, v = _lattice(1, nodes, m, wrap=True)
    v = _rewire(rng, u, v, nodes, p)
    return _graph_layout(grid, rng, u, v, extra_edges)


def watts_strogatz_2d(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    m: int,
    p: float,
    lattice: tuple[int, int] | None = None,
    wrap: bool = True,
    extra_edges: int = 0,
    seed: Seed = 0,
) -> Layout:
    """Store a 2-D lattice whose links have moved to random places.

    As :func:`watts_strogatz_1d` on a lattice: node ``i * width + j`` stands at (i, j)
    and is linked to its ``2 * m`` nearest. These are taken as ``m`` pairs of opposite
    ones, the nearest first: ``m=1`` left and right, 2 also above and below, 4 all
    eight around.

    Parameters
    ----------
    block_rows, block_cols : int
        Equal: the number of nodes.
    blocksize : int or (R, C)
    m : int
        Pairs of neighbours.
    p : float from 0 to 1
        Probability that a link moves.
    lattice : (height, width), optional
        ``height * width`` nodes. The most nearly square one by default, which for a
        prime number of nodes is a line.
    wrap : bool
        Link each edge of the lattice to the opposite one, so that every node has
        ``2 * m`` neighbours; otherwise nodes near an edge have fewer. (On a wrapped
        lattice of even height or width the node half way round is its own opposite:
        that pair is one neighbour.)
    extra_edges : int
        As in :func:`barabasi_albert`.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)
        Symmetric, diagonal included, with as many blocks for every ``p``:
        ``block_rows * (2 * m + 1) + 2 * extra_edges`` on a large wrapped lattice.

    Raises
    ------
    ValueError
        Block rows and columns differ in number, the lattice does not hold that many
        nodes or has no ``m`` pairs of neighbours, ``p`` is not from 0 to 1, or there
        are not so many pairs of nodes left to link.

    Notes
    -----
    The original of openai/blocksparse differs: it looks for neighbours to the right
    and below alone, takes ties beyond the number asked for, and returns a layout that
    is neither symmetric nor has a diagonal. Its ``m`` is ``2 * m`` here.

    References
    ----------
    Watts and Strogatz, "Collective dynamics of 'small-world' networks", Nature 393,
    1998; on a lattice: Gray, Radford and Kingma, "GPU kernels for block-sparse
    weights", 2017.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> patterns.watts_strogatz_2d(6, 6, 8, m=2, p=0, wrap=False).mask().astype(int)
    array([[1, 1, 0, 1, 0, 0],
           [1, 1, 1, 0, 1, 0],
           [0, 1, 1, 0, 0, 1],
           [1, 0, 0, 1, 1, 0],
           [0, 1, 0, 1, 1, 1],
           [0, 0, 1, 0, 1, 1]])
    """
    grid = _grid("watts_strogatz_2d", block_rows, block_cols, blocksize)
    nodes = _nodes(grid)
    height, width = _lattice_shape(grid.op, nodes, lattice)
    pairs = len(_offsets(height, width, wrap))
    m = _integer(
        grid.op,
        "m",
        m,
        0,
        pairs,
        f"a lattice of {height} x {width} has {pairs} pairs of opposite neighbours",
    )
    p = _share(grid.op, "p", p)
    rng = _generator(grid.op, seed)
    u, v = _lattice(height, width, m, wrap)
    v = _rewire(rng, u, v, nodes, p)
    return _graph_layout(grid, rng, u, v, extra_edges)


def balanced_random(
    block_rows: int,
    block_cols: int,
    blocksize: BlockSize,
    *,
    m: int,
    seed: Seed = 0,
) -> Layout:
    """Store the diagonal and ``2 * m`` random blocks in each row and each column.

    Parameters
    ----------
    block_rows, block_cols : int
        Equal: the number of nodes.
    blocksize : int or (R, C)
    m : int, 0 to ``(block_rows - 1) // 2``
        Half the random blocks of a row, so that layouts of one ``m`` are of one size;
        see :func:`barabasi_albert`.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    Layout, shape (block_rows * R, block_cols * C)
        Not symmetric; ``block_rows * (2 * m + 1)`` blocks, every block row and every
        block column with ``2 * m + 1`` of them.

    Raises
    ------
    ValueError
        Block rows and columns differ in number, or a row has no ``2 * m`` blocks
        beside the diagonal.

    Notes
    -----
    Starts from shifted diagonals and switches: two blocks (i, j) and (k, l) become
    (i, l) and (k, j) where both places are free, which leaves all counts as they are.
    The original of openai/blocksparse fills row by row and then repairs columns, which
    leaves rows of unlike length.

    References
    ----------
    Rao, Jana and Bandyopadhyay, "A Markov chain Monte Carlo method for generating
    random (0,1)-matrices with given marginals", Sankhya A 58, 1996.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> mask = patterns.balanced_random(64, 64, 32, m=2).mask()
    >>> set(mask.sum(axis=0).tolist()), set(mask.sum(axis=1).tolist())
    ({5}, {5})
    """
    grid = _grid("balanced_random", block_rows, block_cols, blocksize)
    nodes = _nodes(grid)
    m = _integer(
        grid.op,
        "m",
        m,
        0,
        max(nodes - 1, 0) // 2,
        "a row has 2 m random blocks beside its diagonal one",
    )
    rng = _generator(grid.op, seed)
    every = np.arange(nodes)
    beside = 2 * m
    # Switches need free places: beyond half, choose what to leave out.
    leave_out = 2 * beside > nodes - 1
    if leave_out:
        beside = nodes - 1 - beside
    rows = np.repeat(every, beside)
    cols = (rows + np.tile(1 + _draw(rng, max(nodes - 1, 0), beside), nodes)) % max(
        nodes, 1
    )
    names = rng.permutation(nodes)
    rows, cols = names[rows], names[cols]
    # A round tries each block once; both new places are free with a chance of free^2.
    free = 1 - beside / max(nodes - 1, 1)
    for _ in range(math.ceil(SWITCHES / free**2)):
        cols = _switch(rng, rows, cols, nodes)
    if leave_out:
        stored = np.ones((nodes, nodes), bool)
        stored[rows, cols] = False
        return grid.layout(np.nonzero(stored))
    return grid.layout((rows, cols), (every, every))


def mix_factor(
    layouts: Sequence[Layout], samples: int | None = None, seed: Seed = 0
) -> np.ndarray:
    """Return how much of the output one input reaches after 1, 2, ... layers.

    Parameters
    ----------
    layouts : sequence of Layout
        Layers in the order of their use, ``y = layouts[1] @ (layouts[0] @ x)``; the
        block columns of each are the block rows of the one before.
    samples : int, optional
        How many block columns of the first layer are tried, drawn at random; all of
        them by default.
    seed : int, Generator or None
        See the head of this module.

    Returns
    -------
    array, shape (len(layouts),), float64
        After each layer, the percentage of its block rows that the signal of one
        input block has reached: the mean over the samples. 100 means mixed.

    Raises
    ------
    TypeError
        ``layouts`` is not a sequence of layouts.
    ValueError
        It is empty, a layout has no block rows or columns, two do not fit, or
        ``samples`` is less than 1.

    Notes
    -----
    The original of openai/blocksparse returns text, stops when all is mixed, and
    reads its masks as (inputs, outputs); these are layouts of ``A`` in ``A @ x``,
    with outputs first.

    Examples
    --------
    >>> from numba_bs import patterns
    >>> ring = patterns.watts_strogatz_1d(64, 64, 32, m=2, p=0)
    >>> patterns.mix_factor([ring] * 3)
    array([ 7.8125, 14.0625, 20.3125])
    >>> rewired = patterns.watts_strogatz_1d(64, 64, 32, m=2, p=1)
    >>> patterns.mix_factor([rewired] * 3)[-1] > 60
    np.True_
    """
    op = "mix_factor"
    layouts = _layers(op, layouts)
    inputs = layouts[0].block_cols
    rng = _generator(op, seed)
    chosen = np.arange(inputs)
    if samples is not None:
        samples = _integer(op, "samples", samples, 1)
        chosen = _draw(rng, inputs, min(samples, inputs))
    reached = scipy.sparse.csr_array(
        (np.ones(len(chosen), bool), (chosen, np.arange(len(chosen)))),
        shape=(inputs, len(chosen)),
    )
    percent = np.empty(len(layouts))
    for layer, layout in enumerate(layouts):
        stored = np.ones(layout.blocks, bool)
        step = scipy.sparse.csr_array(
            (stored, layout.indices, layout.indptr),
            shape=(layout.block_rows, layout.block_cols),
        )
        reached = step @ reached  # of booleans: "and" for times, "or" for plus
        percent[layer] = 100 * reached.nnz / (layout.block_rows * len(chosen))
    return percent


class _Grid(NamedTuple):
    """The arguments that every pattern has, checked."""

    op: str
    block_rows: int
    block_cols: int
    blocksize: tuple[int, int]

    def layout(self, *parts: tuple[np.ndarray, np.ndarray]) -> Layout:
        """Return the layout of blocks (rows, cols), in any order, also repeated."""
        keys = np.concatenate([rows * self.block_cols + cols for rows, cols in parts])
        if (keys[1:] <= keys[:-1]).any():
            keys = _sorted_once(keys)
        rows, cols = np.divmod(keys, max(self.block_cols, 1))
        indptr = np.searchsorted(rows, np.arange(self.block_rows + 1))
        R, C = self.blocksize
        shape = self.block_rows * R, self.block_cols * C
        return Layout(indptr, cols, shape, self.blocksize)


# ------------------------------------------------------------------- arguments


def _grid(op: str, block_rows, block_cols, blocksize) -> _Grid:
    return _Grid(
        op,
        _integer(op, "block_rows", block_rows, 0),
        _integer(op, "block_cols", block_cols, 0),
        checks.blocksize(op, blocksize),
    )


def _nodes(grid: _Grid) -> int:
    """Return the number of nodes of a graph: block rows, and as many columns."""
    if grid.block_rows != grid.block_cols:
        raise ValueError(
            f"{grid.op}: block_rows must equal block_cols, "
            f"got {grid.block_rows} and {grid.block_cols}"
        )
    return grid.block_rows


def _integer(op: str, name: str, value, low=None, high=None, why: str = "") -> int:
    """Return ``value`` as an int of ``low`` ... ``high``; ``why`` these."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an int, got {value!r}") from None
    if (low is not None and value < low) or (high is not None and value > high):
        due = f"at least {low}" if high is None else f"in {low} ... {high}"
        reason = f" ({why})" if why else ""
        raise ValueError(f"{op}: {name} must be {due}{reason}, got {value}")
    return value


def _share(op: str, name: str, value) -> float:
    """Return ``value`` as a float from 0 to 1."""
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: {name} must be a number, got {value!r}") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{op}: {name} must be from 0 to 1, got {value}")
    return value


def _generator(op: str, seed: Seed) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{op}: seed must be a non-negative int, a Generator or None, got {seed!r}"
        ) from None


def _lattice_shape(op: str, nodes: int, lattice) -> tuple[int, int]:
    """Return (height, width), by default the most nearly square one."""
    if lattice is None:
        height = next((h for h in range(int(nodes**0.5), 0, -1) if nodes % h == 0), 1)
        return height, nodes // height
    try:
        height, width = (operator.index(size) for size in lattice)
    except (TypeError, ValueError):
        raise TypeError(
            f"{op}: lattice must be a pair of ints, got {lattice!r}"
        ) from None
    if min(height, width) < 0 or height * width != nodes:
        raise ValueError(
            f"{op}: lattice must hold block_rows = {nodes} nodes, "
            f"got {height} x {width}"
        )
    return height, width


def _layers(op: str, layouts) -> list[Layout]:
    """Return layouts as a list in which each takes what the one before gives."""
    try:
        layouts = list(layouts)
    except TypeError:
        layouts = [None]
    if not all(isinstance(layout, Layout) for layout in layouts):
        raise TypeError(f"{op}: layouts must be a sequence of Layout objects")
    if not layouts:
        raise ValueError(f"{op}: layouts must hold at least one layout, got none")
    for layer, layout in enumerate(layouts):
        if 0 in layout.shape:
            raise ValueError(
                f"{op}: layouts must have block rows and block columns, "
                f"got shape {layout.shape} in layer {layer}"
            )
        before = layouts[layer - 1] if layer else None
        if before and (layout.shape[1], layout.blocksize[1]) != (
            before.shape[0],
            before.blocksize[0],
        ):
            raise ValueError(
                f"{op}: columns of a layer must be the rows of the one before, "
                f"got {layout} after {before}"
            )
    return layouts


# --------------------------------------------------------------- runs of blocks


def _runs(first: np.ndarray, stop, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks ``range(first[i], stop[i], step)`` of each block row i."""
    counts = np.maximum((stop - first + step - 1) // step, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, first[rows] + step * place


def _band(grid: _Grid, lower: int, upper: int) -> Layout:
    row = np.arange(grid.block_rows)
    first = np.maximum(row - lower, 0)
    return grid.layout(_runs(first, np.minimum(row + upper + 1, grid.block_cols)))


def _own_columns(grid: _Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last block column where each block row's queries stand.

    They are negative where a query stands before the first key.
    """
    R, C = grid.blocksize
    row0 = np.arange(grid.block_rows) * R + grid.block_cols * C - grid.block_rows * R
    return row0 // C, (row0 + R - 1) // C


def _seen(grid: _Grid, last: np.ndarray, causal: bool) -> np.ndarray:
    """Return how many block columns, from the first, each block row may look at."""
    return np.maximum(last + 1, 0) if causal else np.full_like(last, grid.block_cols)


def _window(grid: _Grid, window: int, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the own blocks and ``window`` on each side; see :func:`local`."""
    first, last = _own_columns(grid)
    stop = np.minimum(last + window + 1, _seen(grid, last, causal))
    return _runs(np.maximum(first - window, 0), stop)


# ----------------------------------------------------------------- random draws


def _sorted_once(numbers: np.ndarray) -> np.ndarray:
    """Return what occurs in ``numbers``, sorted.

    ``np.unique`` hashes; NumPy 2.4 takes 90 s for the 10 million numbers of a layout.
    """
    numbers = np.sort(numbers)
    new = np.ones(len(numbers), bool)
    new[1:] = numbers[1:] != numbers[:-1]
    return numbers[new]


def _draw(rng: np.random.Generator, every: int, count: int) -> np.ndarray:
    """Return ``count`` distinct numbers below ``every``, sorted.

    ``Generator.choice`` would do, but takes 8 bytes for each of ``every``.
    """
    if count > every // 2:
        kept = np.ones(every, bool)
        kept[_draw(rng, every, every - count)] = False
        return np.flatnonzero(kept)
    numbers = np.empty(0, np.int64)
    while len(numbers) < count:  # never too many: as many are drawn as are missing
        drawn = rng.integers(every, size=count - len(numbers))
        numbers = _sorted_once(np.concatenate([numbers, drawn]))
    return numbers


def _draw_in_rows(
    rng: np.random.Generator, free: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and ranks: ``count`` distinct ranks below ``free[row]``, or all.

    Floyd's method (Bentley and Floyd, "A sample of brilliance", 1987) on all rows at
    once: draw ``t`` of ``count`` takes one of the first ``free - count + t + 1``, and
    the last of these if the drawn one is taken already.
    """
    count = min(count, int(free.max(initial=0)))
    wanted = np.minimum(free, count)
    ranks = np.full((len(free), count), -1, np.int64)
    for t in range(count):
        last = np.maximum(free - wanted + t, 0)
        drawn = rng.integers(last + 1)
        taken = (ranks[:, :t] == drawn[:, None]).any(axis=1)
        ranks[:, t] = np.where(taken, last, drawn)
        ranks[wanted <= t, t] = -1
    rows, places = np.nonzero(ranks >= 0)
    return rows, ranks[rows, places]


# ----------------------------------------------------------------------- graphs
# A graph is two arrays u, v: link i joins the nodes u[i] and v[i], each pair once.


def _mirrored(u: np.ndarray, v: np.ndarray, nodes: int) -> np.ndarray:
    """Return sorted ``row * nodes + col`` of the links, both ways, and the diagonal."""
    diagonal = np.arange(nodes) * (nodes + 1)
    return np.sort(np.concatenate([u * nodes + v, v * nodes + u, diagonal]))


def _graph_layout(grid: _Grid, rng, u, v, extra_edges: int) -> Layout:
    """Return the layout of a graph after adding links to its least connected nodes."""
    nodes = grid.block_rows
    keys = _mirrored(u, v, nodes)
    unlinked = (nodes * nodes - len(keys)) // 2
    extra_edges = _integer(
        grid.op,
        "extra_edges",
        extra_edges,
        0,
        unlinked,
        f"{unlinked} pairs of nodes are not linked yet",
    )
    added = _least_connected(rng, keys, nodes, extra_edges)
    every = np.divmod(keys, max(nodes, 1))
    return grid.layout(every, added, added[::-1])


def _least_connected(rng, keys: np.ndarray, nodes: int, edges: int) -> np.ndarray:
    """Return (2, edges) new links, each from a node that has fewest at its turn."""
    added = np.empty((2, edges), np.int64)
    if not edges:
        return added
    indptr = np.searchsorted(keys, np.arange(nodes + 1) * nodes)
    linked = {}  # node -> the nodes it is linked to, filled when first needed
    degree = np.diff(indptr).tolist()
    # (links, a random number for ties, node); entries of old degrees are passed over.
    heap = list(zip(degree, rng.random(nodes).tolist(), range(nodes), strict=True))
    heapq.heapify(heap)

    def neighbours(node):
        if node not in linked:
            linked[node] = keys[indptr[node] : indptr[node + 1]] - node * nodes
        return linked[node]

    for edge in range(edges):
        links, _, node = heapq.heappop(heap)
        while links != degree[node]:
            links, _, node = heapq.heappop(heap)
        taken = neighbours(node)
        rank = rng.integers(nodes - links)
        # In front of its i-th neighbour a node has taken[i] - i that are not linked.
        free_before = taken - np.arange(links)
        other = int(rank + np.searchsorted(free_before, rank, side="right"))
        added[:, edge] = node, other
        for a, b in ((node, other), (other, node)):
            taken = neighbours(a)
            linked[a] = np.insert(taken, np.searchsorted(taken, b), b)
            degree[a] += 1
            heapq.heappush(heap, (degree[a], rng.random(), a))
    return added


def _offsets(height: int, width: int, wrap: bool) -> np.ndarray:
    """Return (pairs, 2) steps to the neighbours of a node, nearest first.

    Of a step and its opposite only one is listed: the link is the same.
    """
    if wrap:  # steps modulo (height, width); the shorter way round counts
        i, j = np.divmod(np.arange(height * width), max(width, 1))
        distance = np.minimum(i, height - i) ** 2 + np.minimum(j, width - j) ** 2
        opposite = -i % max(height, 1) * width + -j % max(width, 1)
        one_of_two = np.arange(height * width) <= opposite
    else:
        i, j = np.mgrid[0:height, 1 - width : width].reshape(2, -1)
        distance = i**2 + j**2
        one_of_two = (i > 0) | (j > 0)
    steps = np.flatnonzero(one_of_two & (distance > 0))
    steps = steps[np.argsort(distance[steps], kind="stable")]
    return np.stack([i[steps], j[steps]], axis=1)


def _lattice(height: int, width: int, m: int, wrap: bool):
    """Return links u, v of each node to the ends of its ``m`` shortest steps."""
    nodes = height * width
    i, j = np.divmod(np.arange(nodes), max(width, 1))
    u, v = [np.empty(0, int)], [np.empty(0, int)]
    for step_i, step_j in _offsets(height, width, wrap)[:m]:
        to_i, to_j = i + step_i, j + step_j
        if wrap:
            to_i, to_j = to_i % height, to_j % width
        inside = (to_i < height) & (to_j >= 0) & (to_j < width)
        u.append(np.flatnonzero(inside))
        v.append((to_i * width + to_j)[inside])
    u, v = np.concatenate(u), np.concatenate(v)
    # A step that is its own opposite has met each link from both of its nodes.
    pair = np.minimum(u, v) * nodes + np.maximum(u, v)
    once = np.sort(np.unique(pair, return_index=True)[1])
    return u[once], v[once]


def _rewire(rng, u: np.ndarray, v: np.ndarray, nodes: int, p: float) -> np.ndarray:
    """Return v after each link moved its end there with probability ``p``."""
    v = v.copy()
    pending = np.flatnonzero(rng.random(len(v)) < p)
    while len(pending):
        keys = _mirrored(u, v, nodes)
        indptr = np.searchsorted(keys, np.arange(nodes + 1) * nodes)
        linked = np.diff(indptr)
        pending = pending[linked[u[pending]] < nodes]  # the others have no free place
        node = u[pending]
        rank = rng.integers(nodes - linked[node])
        # As in _least_connected, for all rows at once: keys less their place in the
        # row are sorted too, since a row of keys ends before the next one begins.
        place = np.arange(len(keys)) - np.repeat(indptr[:-1], linked)
        passed = np.searchsorted(keys - place, node * nodes + rank, side="right")
        end = rank + passed - indptr[node]
        # Of links that want the same place, one gets it.
        pair = np.minimum(node, end) * nodes + np.maximum(node, end)
        _, winners = np.unique(pair, return_index=True)
        v[pending[winners]] = end[winners]
        pending = np.delete(pending, winners)
    return v


def _switch(rng, rows: np.ndarray, cols: np.ndarray, nodes: int) -> np.ndarray:
    """Return cols after blocks, two and two, have exchanged theirs where they may."""
    keys = np.sort(rows * nodes + cols)
    half = len(keys) // 2
    a, b = rng.permutation(len(keys))[: 2 * half].reshape(2, half)
    asked = np.concatenate([rows[a] * nodes + cols[b], rows[b] * nodes + cols[a]])
    order = np.argsort(asked)
    asked = asked[order]
    found = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    may = (keys[found] != asked) & (asked % (nodes + 1) != 0)  # free, off the diagonal
    repeated = asked[1:] == asked[:-1]  # two want one place: neither gets it
    may[1:] &= ~repeated
    may[:-1] &= ~repeated
    both = np.empty(2 * half, bool)
    both[order] = may
    both = both.reshape(2, half).all(axis=0)
    a, b = a[both], b[both]
    cols = cols.copy()
    cols[a], cols[b] = cols[b], cols[a]
    return cols
