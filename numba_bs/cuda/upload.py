"""Lookup tables on the device: each layout's, once per device, at first use."""

import threading

import numpy as np

from .. import arrays
from ..arrays import Operand
from .compiler import SIMULATED, cuda
from .launch import Prepared, is_capturing

_uploading = threading.Lock()


def resident(layout, name: str, like: Operand, stream: int):
    """Return the plan ``name`` of ``layout`` with device arrays in place of NumPy's.

    Raises
    ------
    RuntimeError
        ``stream`` is being captured and the plan is not there yet.
    """
    tables = getattr(layout, name)
    return type(tables)(*_resident(layout, name, tables, like.device, stream))


def resident_array(layout, name: str, like: Operand, stream: int) -> Operand:
    """Return the index array ``name`` of ``layout`` on the device of ``like``."""
    table = np.ascontiguousarray(getattr(layout, name), np.int32)
    return _resident(layout, name, (table,), like.device, stream)[0]


def _resident(layout, name, tables, device, stream):
    held = layout.__dict__.setdefault("_resident", {})
    copies = held.get((name, device))
    if copies is None:
        if is_capturing(device, stream):
            raise RuntimeError(
                "upload: the lookup tables of a layout must be on the device before a "
                "graph is captured; make the same call once first"
            )
        with _uploading:
            copies = tuple(_upload(table, device) for table in tables)
            if not SIMULATED:  # a copy may still be under way when its call returns
                cuda.default_stream().synchronize()
            held[name, device] = copies
    return copies


def _upload(table: np.ndarray, device: int) -> Operand:
    owner = arrays.from_numpy(table, "numba", device)
    return Prepared(*arrays.describe("upload", "table", owner))
