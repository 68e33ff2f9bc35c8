"""Lookup tables on the device: each layout's, once per device, at first use."""

import threading

import numpy as np

from .. import arrays
from ..arrays import Operand
from .launch import Prepared, is_capturing

_uploading = threading.Lock()


def resident(layout, name: str, like: Operand, stream: int):
    """Return the plan ``name`` of ``layout`` with device arrays in place of NumPy's.

    Raises
    ------
    RuntimeError
        ``stream`` is being captured and the plan is not there yet.
    """
    held = layout.__dict__.setdefault("_resident", {})
    plan = held.get((name, like.device))
    if plan is None:
        if is_capturing(like.device, stream):
            raise RuntimeError(
                "upload: the lookup tables of a layout must be on the device before a "
                "graph is captured; make the same call once first"
            )
        with _uploading:
            tables = getattr(layout, name)
            plan = type(tables)(*(_upload(table, like.device) for table in tables))
            held[name, like.device] = plan
    return plan


def resident_array(layout, name: str, like: Operand) -> Operand:
    """Return the index array ``name`` of ``layout`` on the device of ``like``."""
    held = layout.__dict__.setdefault("_resident", {})
    if (name, like.device) not in held:
        table = np.ascontiguousarray(getattr(layout, name), np.int32)
        held[name, like.device] = _upload(table, like.device)
    return held[name, like.device]


def _upload(table: np.ndarray, device: int) -> Operand:
    """Copy to the device; the copy is over when this returns."""
    owner = arrays.from_numpy(table, "numba", device)
    return Prepared(*arrays.describe("upload", "table", owner))
