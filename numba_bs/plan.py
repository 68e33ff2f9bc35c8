"""Lookup tables: what a kernel walks, made once per layout with NumPy alone.

A product ``out = A @ b`` is cut into *work items*. An item is one block row of
``out`` with the entries (stored blocks) that add up to it, or a segment of a long
row. Segments write their sums to slots of a workspace; a second pass adds the
slots of a row in order. So the cut, and with it every bit of the result, depends
on the layout alone.

The transposed product ``A.T @ b`` walks block columns instead: the same tables of
the transposed layout, whose ``entry_block`` says where each block sits in the
values, which nobody moves.
"""

from typing import NamedTuple

import numpy as np

# A row longer than both is cut: SEGMENT_DEPTH scalar columns keep a CTA busy long
# enough to hide its start; twice the mean length leaves ordinary rows whole.
SEGMENT_DEPTH = 2048
SEGMENT_MEANS = 2


class RowPlan(NamedTuple):
    """Work items over block rows, longest first, and the entries they walk.

    Invariants: every entry belongs to exactly one item; the items of a row cover
    its entries in order; slots count up from 0, the segments of a row side by side.
    """

    item_row: np.ndarray  # (items,) int32, block row of ``out``
    item_head: np.ndarray  # (items,) int32, layout of a stack; 0 for a single one
    item_first: np.ndarray  # (items,) int32, first entry
    item_count: np.ndarray  # (items,) int32, entries; 0: the row has no block
    item_slot: np.ndarray  # (items,) int32, workspace slot; -1: writes ``out``
    entry_col: np.ndarray  # (blocks,) int32, block column of the entry
    entry_block: np.ndarray  # (blocks,) int32, where its block sits in ``data``
    split_row: np.ndarray  # (splits,) int32, a block row that was cut
    split_head: np.ndarray  # (splits,) int32
    split_first: np.ndarray  # (splits,) int32, its first slot
    split_count: np.ndarray  # (splits,) int32, how many slots


class BlockPlan(NamedTuple):
    """Where each stored block lies, in the order of ``data``."""

    block_row: np.ndarray  # (blocks,) int32
    block_col: np.ndarray  # (blocks,) int32
    block_head: np.ndarray  # (blocks,) int32, layout of a stack; 0 for a single one


def slots(plan: RowPlan) -> int:
    """Return how many workspace slots the segments of ``plan`` need."""
    return int(plan.split_count.sum())


def segment_limit(lengths: np.ndarray, depth: int) -> int:
    """Return the most entries one work item takes.

    Parameters
    ----------
    lengths : (rows,) entries of each row
    depth : scalar columns of one block, C
    """
    filled = np.count_nonzero(lengths)
    mean = -(-int(lengths.sum()) // filled) if filled else 1
    return max(-(-SEGMENT_DEPTH // max(depth, 1)), SEGMENT_MEANS * mean)


def table(values) -> np.ndarray:
    """Return a lookup table: int32, contiguous, read-only, the plan's own."""
    made = np.array(values, dtype=np.int32)
    made.flags.writeable = False
    return made


def row_plan(
    indptr: np.ndarray,
    entry_col: np.ndarray,
    entry_block: np.ndarray,
    depth: int,
    heads: int = 1,
) -> RowPlan:
    """Cut the rows of a CSR structure into work items.

    Parameters
    ----------
    indptr : (heads * block_rows + 1,) where each row's entries begin
    entry_col, entry_block : (blocks,) tables of the entries, row by row
    depth : scalar columns of one block, C
    heads : layouts that lie one after the other in ``indptr``
    """
    lengths = np.diff(indptr)
    rows = len(lengths)
    item, split = _cut(lengths, segment_limit(lengths, depth))
    longest_first = np.argsort(-item.count, kind="stable")
    item = _Items(*(each[longest_first] for each in item))
    block_rows = max(rows // heads, 1)

    return RowPlan(
        item_row=table(item.row % block_rows),
        item_head=table(item.row // block_rows),
        item_first=table(indptr[item.row] + item.begin),
        item_count=table(item.count),
        item_slot=table(item.slot),
        entry_col=table(entry_col),
        entry_block=table(entry_block),
        split_row=table(split.row % block_rows),
        split_head=table(split.row // block_rows),
        split_first=table(split.first),
        split_count=table(split.count),
    )


class _Items(NamedTuple):
    """Whole rows, or parts of long ones, row by row."""

    row: np.ndarray
    begin: np.ndarray  # entries of the row before the first one
    count: np.ndarray
    slot: np.ndarray  # -1: a whole row


class _Splits(NamedTuple):
    """The rows that were cut."""

    row: np.ndarray
    first: np.ndarray  # slot
    count: np.ndarray


def _cut(lengths, limit) -> tuple[_Items, _Splits]:
    """Cut rows of these lengths into parts of at most ``limit``."""
    pieces = np.maximum(-(-lengths // limit), 1)  # work items of each row
    # One line per item, row by row: the piece-th part of its row.
    row = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Parts of a row differ by one entry at most.
    begin = lengths[row] * piece // pieces[row]
    end = lengths[row] * (piece + 1) // pieces[row]
    cut = pieces[row] > 1
    slot = np.where(cut, np.cumsum(cut) - 1, -1)
    split = np.flatnonzero(pieces > 1)
    count = pieces[split]
    return (
        _Items(row, begin, end - begin, slot),
        _Splits(split, np.cumsum(count) - count, count),
    )


class Squares(NamedTuple):
    """What a :class:`GroupPlan` is made for."""

    side: int  # of a square; divides R and C
    parts: int  # of a group: one for each row of warpgroups
    part_rows: int  # rows of squares of a part
    wide: int  # columns of squares that are loaded together
    stage_cols: int  # most of these of a stage
    cap: int  # most squares of a stage


class GroupPlan(NamedTuple):
    """Work items over groups of rows that share what they load (Hopper's rung).

    Blocks are cut into squares. The columns of the squares of a group of rows, each
    once, are walked in *stages* of a few columns and the squares that are there.

    Invariants: every square belongs to exactly one stage; a stage holds at most
    ``cap`` squares, those of one warpgroup side by side, and the squares of a row
    come in the order of their columns. The very last stage has no square: it is what
    rows without a block walk.
    """

    item_row: np.ndarray  # (items,) int32, first row of squares
    item_rows: np.ndarray  # (items,) int32, how many
    item_first: np.ndarray  # (items,) int32, first stage
    item_count: np.ndarray  # (items,) int32, stages, at least 1
    item_slot: np.ndarray  # (items,) int32, workspace slot; -1: writes ``out``
    stage_first: np.ndarray  # (stages + 1,) int32, first square
    stage_col: np.ndarray  # (stages, stage_cols) int32, columns; -1: none
    stage_part: np.ndarray  # (stages, parts) int32: first square | count << 8 |
    # 1 << 16 if the stage is the last of its item
    square_x: np.ndarray  # (squares,) int32, column in the values (rows, columns)
    square_y: np.ndarray  # (squares,) int32, row there
    square_word: np.ndarray  # (squares,) int32: row of its part, column of the stage
    # << 8, place in that column << 16
    split_row: np.ndarray  # (splits,) int32, a group that was cut
    split_head: np.ndarray  # (splits,) int32, 0
    split_first: np.ndarray  # (splits,) int32, its first slot
    split_count: np.ndarray  # (splits,) int32, how many slots


def group_plan(
    indptr: np.ndarray,
    entry_col: np.ndarray,
    entry_block: np.ndarray,
    blocksize: tuple[int, int],
    turned: bool,
    squares: Squares,
) -> GroupPlan:
    """Cut the rows of a CSR structure into squares, groups and stages.

    Parameters
    ----------
    indptr : (block_rows + 1,) where each row's entries begin
    entry_col, entry_block : (blocks,) tables of the entries, row by row
    blocksize : (R, C) as they are walked
    turned : whether a block lies in memory as (C, R), its columns contiguous
    squares : Squares
    """
    side, parts, part_rows, wide, stage_cols, cap = squares
    down, across = blocksize[0] // side, blocksize[1] // side
    block_row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    i, j = np.divmod(np.arange(down * across), across)
    row = (block_row[:, None] * down + i).ravel()
    col = (np.asarray(entry_col)[:, None] * across + j).ravel()
    stored_rows, i, j = (blocksize[1], j, i) if turned else (blocksize[0], i, j)
    y = (np.asarray(entry_block)[:, None] * stored_rows + i * side).ravel()
    x = np.tile(j * side, len(block_row))

    size = parts * part_rows
    count = (len(indptr) - 1) * down
    groups = -(-count // size)
    group = row // size

    # Units: a column (of ``wide`` squares) of a group, or a part of it where it has
    # more than cap squares.
    order = np.lexsort((row, col, group))
    row, col, x, y, group = (each[order] for each in (row, col, x, y, group))
    col, within_col = np.divmod(col, wide)
    fresh = _changes(group, col)
    within = np.arange(len(row)) - np.repeat(*_runs(fresh))
    fresh |= within % cap == 0
    unit = np.cumsum(fresh) - 1
    first_square, load = _runs(fresh)
    unit_group, unit_col = group[first_square], col[first_square]

    # Stages: runs of stage_cols units; those with more than cap squares are halved.
    stage_begins = _changes(unit_group)
    place = np.arange(len(unit_group)) - np.repeat(*_runs(stage_begins))
    stage_begins |= place % stage_cols == 0
    while True:
        first_unit, units = _runs(stage_begins)
        total = np.add.reduceat(load, first_unit) if len(load) else load
        over = np.flatnonzero(total > cap)
        if len(over) == 0:
            break
        stage_begins[first_unit[over] + (units[over] + 1) // 2] = True
    stage_of_unit = np.cumsum(stage_begins) - 1
    column = np.arange(len(unit_col)) - first_unit[stage_of_unit]
    stages = len(first_unit) + 1
    stage_col = np.full((stages, stage_cols), -1)
    stage_col[stage_of_unit, column] = unit_col

    # Within a stage the squares of a part lie side by side.
    stage, column = stage_of_unit[unit], column[unit]
    part, part_row = np.divmod(row - group * size, part_rows)
    order = np.lexsort((part_row, within_col, column, part, stage))
    stage_first = np.concatenate([[0], np.cumsum(np.bincount(stage, minlength=stages))])
    per_part = np.bincount(stage * parts + part, minlength=stages * parts)
    per_part = per_part.reshape(stages, parts)
    part_first = np.cumsum(per_part, axis=1) - per_part

    lengths = np.bincount(unit_group[first_unit], minlength=groups)
    item, split = _cut(lengths, segment_limit(lengths, side * stage_cols))
    longest_first = np.argsort(-item.count, kind="stable")
    item = _Items(*(each[longest_first] for each in item))
    item_first = (np.cumsum(lengths) - lengths)[item.row] + item.begin
    item_first[item.count == 0] = stages - 1
    item_count = np.maximum(item.count, 1)
    stage_part = part_first | per_part << 8
    stage_part[item_first + item_count - 1] |= 1 << 16
    return GroupPlan(
        item_row=table(item.row * size),
        item_rows=table(np.minimum(count - item.row * size, size)),
        item_first=table(item_first),
        item_count=table(item_count),
        item_slot=table(item.slot),
        stage_first=table(stage_first),
        stage_col=table(stage_col),
        stage_part=table(stage_part),
        square_x=table(x[order]),
        square_y=table(y[order]),
        square_word=table((part_row | column << 8 | within_col << 16)[order]),
        split_row=table(split.row),
        split_head=table(np.zeros_like(split.row)),
        split_first=table(split.first),
        split_count=table(split.count),
    )


class Strips(NamedTuple):
    """What a :class:`StripPlan` is made for."""

    rows: int  # of a tile of the result, in elements
    side: int  # of a square; divides R and C
    wide: int  # squares side by side in a strip
    unit: int  # strips that are multiplied together: items are cut between these
    most: int  # strips of an item, a multiple of ``unit``
    ctas: int  # that run at a time
    by_place: bool  # whether items run by their place in a row of tiles


class StripPlan(NamedTuple):
    """Work items of the sampled product: rows against strips of columns (Hopper).

    The result is cut into tiles of ``rows`` rows. A tile has the strips, ``side *
    wide`` columns each, in which one of its rows has a block; an item is a run of them.

    Items run ``ctas`` at a time: longest first, or (``by_place``) the first runs of all
    tiles, then the second ones: what runs together then has columns in common. What is
    left for the last time is cut finer, so that all have a share of it; no sum depends
    on these cuts.

    Invariants: every square of every block lies in exactly one strip, every strip
    belongs to exactly one item.
    """

    item_row: np.ndarray  # (items,) int32, first row, in elements
    item_first: np.ndarray  # (items,) int32, first strip
    item_count: np.ndarray  # (items,) int32, strips; at least 1
    strip_col: np.ndarray  # (strips,) int32, first column, in elements
    strip_block: np.ndarray  # (strips, rows / side * wide) int32, the block of each
    # square of the tile, row by row; -1: it has none


def strip_plan(
    indptr: np.ndarray,
    indices: np.ndarray,
    shape: tuple[int, int],
    blocksize: tuple[int, int],
    strips: Strips,
) -> StripPlan:
    """Cut a CSR structure into tiles of rows and strips of columns.

    Parameters
    ----------
    indptr : (block_rows + 1,) where each row's blocks begin
    indices : (blocks,) block columns
    shape : (M, K) of the matrix
    blocksize : (R, C)
    strips : Strips
    """
    rows, side, wide, unit, most, ctas, by_place = strips
    tile_rows, (down, across) = rows // side, (each // side for each in blocksize)
    tiles, per_tile = -(-shape[0] // rows), -(-shape[1] // (side * wide))
    block_row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    i, j = np.divmod(np.arange(down * across), across)
    row = (block_row[:, None] * down + i).ravel()
    col = (np.asarray(indices, np.int64)[:, None] * across + j).ravel()
    block = np.repeat(np.arange(len(block_row)), down * across)

    # A strip: the squares that share tile and column. (Rows come sorted, and a stable
    # sort merges what is sorted.)
    key = row // tile_rows * per_tile + col // wide
    order = np.argsort(key, kind="stable")
    row, col, block, key = (each[order] for each in (row, col, block, key))
    fresh = _changes(key)
    tile, strip_col = np.divmod(key[fresh], per_tile)
    strip_block = np.full((len(tile), tile_rows * wide), -1)
    place = row % tile_rows * wide + col % wide
    strip_block[np.cumsum(fresh) - 1, place] = block

    length = np.bincount(tile, minlength=tiles)
    units = -(-length // unit)
    item, _ = _cut(units, most // unit)
    item = _Items(*(each[item.count > 0] for each in item))
    order = np.argsort(item.begin if by_place else -item.count, kind="stable")
    item = _Items(*(each[order] for each in item))
    item = _last_cut(item, ctas)

    begin = item.begin * unit
    count = np.minimum(item.count * unit, length[item.row] - begin)
    return StripPlan(
        item_row=table(item.row * rows),
        item_first=table((np.cumsum(length) - length)[item.row] + begin),
        item_count=table(count),
        strip_col=table(strip_col * (side * wide)),
        strip_block=table(strip_block),
    )


def _last_cut(item, ctas) -> _Items:
    """Cut what remains after whole rounds of ``ctas`` items into as many, at most."""
    whole = len(item.count) // ctas * ctas
    rest = item.count[whole:]
    limit = 1
    while (-(-rest // limit)).sum() > ctas:
        limit += 1
    part, _ = _cut(rest, limit)
    of, begin = whole + part.row, item.begin[whole:][part.row] + part.begin
    longest_first = np.argsort(-part.count, kind="stable")
    part = _Items(item.row[of], begin, part.count, item.slot[of])
    return _Items(
        *(
            np.concatenate([each[:whole], cut[longest_first]])
            for each, cut in zip(item, part, strict=True)
        )
    )


def _changes(*keys):
    """Return where a run of equal keys begins."""
    begins = np.zeros(len(keys[0]), bool)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def _runs(begins):
    """Return first place and length of each run."""
    first = np.flatnonzero(begins)
    return first, np.diff(first, append=len(begins))
