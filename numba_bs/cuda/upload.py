"""Lookup tables on the device: each layout's, once per device, at first use."""

import threading

import numpy as np

from .. import arrays
from ..arrays import Operand
from .compiler import SIMULATED, cuda
from .launch import Table, is_capturing

_uploading = threading.Lock()


def resident(layout, like: Operand, stream: int, name: str, *args):
    """Return a plan or index array of ``layout`` on the device of ``like``.

    ``name`` is that of an attribute, or with ``args`` of a method.

    Returns
    -------
    Operand for an index array; the plan's named tuple of them for a plan

    Raises
    ------
    RuntimeError
        ``stream`` is being captured and the tables are not there yet.
    """
    held = layout.__dict__.setdefault("_resident", {})
    tables = held.get((name, args, like.device))
    if tables is None:
        if is_capturing(like.device, stream):
            raise RuntimeError(
                "upload: the lookup tables of a layout must be on the device before a "
                "graph is captured; make the same call once first"
            )
        with _uploading:
            # Another thread may have been faster; launches count on tables that stay.
            tables = held.get((name, args, like.device))
            if tables is None:
                tables = _upload(layout._tables(name, *args), like.device)
                if not SIMULATED:  # a copy may be under way when its call returns
                    cuda.default_stream().synchronize()
                held[name, args, like.device] = tables
    return tables


def _upload(tables, device: int):
    if isinstance(tables, tuple):
        return type(tables)(*(_upload(table, device) for table in tables))
    index = np.ascontiguousarray(tables, np.int32)
    owner = arrays.from_numpy(index, "numba", device)
    return Table(*arrays.describe("upload", "table", owner))
