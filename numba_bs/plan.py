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
    limit = segment_limit(lengths, depth)
    rows = len(lengths)
    pieces = np.maximum(-(-lengths // limit), 1)  # work items of each row

    # One line per item, row by row: the piece-th part of its row.
    row = np.repeat(np.arange(rows), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Parts of a row differ by one entry at most.
    begin = lengths[row] * piece // pieces[row]
    end = lengths[row] * (piece + 1) // pieces[row]
    count = end - begin
    cut = pieces[row] > 1
    slot = np.where(cut, np.cumsum(cut) - 1, -1)

    longest_first = np.argsort(-count, kind="stable")
    split = np.flatnonzero(pieces > 1)
    split_count = pieces[split]
    block_rows = max(rows // heads, 1)

    return RowPlan(
        item_row=table((row % block_rows)[longest_first]),
        item_head=table((row // block_rows)[longest_first]),
        item_first=table((indptr[row] + begin)[longest_first]),
        item_count=table(count[longest_first]),
        item_slot=table(slot[longest_first]),
        entry_col=table(entry_col),
        entry_block=table(entry_block),
        split_row=table(split % block_rows),
        split_head=table(split // block_rows),
        split_first=table(np.cumsum(split_count) - split_count),
        split_count=table(split_count),
    )
