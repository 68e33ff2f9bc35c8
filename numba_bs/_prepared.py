"""Prepared calls: what a call comes to is found out once and then done again.

Which checks pass, which kernels run and all their parameters but the addresses follow
from the *key* of a call: the signatures of its arrays, the layout, the keyword
arguments. So the first call with a key runs the operation as it is written, and what it
does on the way is recorded: the arrays it makes, the kernels it starts or the
reference function it calls. Further calls with that key do just this.

What the key does not tell is looked at every time: whether an array that is written
may overlap another, which streams are current. Records live with their layout and die
with it; they hold no array.
"""

import contextlib
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

from . import arrays
from ._explain import explaining, only_explained
from .arrays import Operand
from .bsr import bsr_array
from .layout import Layout, LayoutStack

# Records of one layout: when there are more, the oldest goes.
RECORDS = 128
# Kernels may be chosen by alignment: so much of an address belongs to the key.
ALIGNMENT = 128

_keeping = threading.Lock()

# Types of options: whose repr stands in a key (1, 1.0 and True are equal, as are 0.0
# and -0.0), and those that stand there themselves. Others are not prepared.
_BY_REPR = frozenset((bool, int, float, complex, tuple))
_BY_VALUE = frozenset((type(None), str, type, np.dtype))


def call(op, body, inputs, out, workspace, options, stream):
    """Return ``body(op, *inputs, out, workspace, *options, stream)``.

    Parameters
    ----------
    op : str
    body : the operation as it is written
    inputs : tuple of arrays, bsr_arrays and layouts
    out, workspace : what may be written, or None
    options : tuple
        The other arguments.
    stream : as the user gave it
    """
    given = (*inputs, out, workspace)
    known = None if explaining() else _key(op, given, options, stream)
    if known is None:
        return body(op, *given, *options, stream)
    key, layout, bases, addresses = known
    records = layout.__dict__.setdefault("_prepared", {})
    record = records.get(key)
    if record is None:
        with _recorded(on_device=addresses is not None) as notes:
            result = body(op, *given, *options, stream)
        record = notes.record(op, given, bases, result)
        if record is not None:
            _keep(records, key, record)
        return result
    if record.apart and addresses is None:  # asked last: NumPy is slow to tell
        addresses = [None if base is None else arrays.address(base) for base in bases]
    if _may_overlap(record.apart, addresses):  # the checks look closer
        return body(op, *given, *options, stream)
    return record.again(given, layout, addresses, stream)


def _key(op, given, options, stream):
    """Return the key, the layout, the arrays and, on a device, their addresses.

    The array of what is given is itself, the values of a bsr_array, None of a layout.
    None if the call cannot be prepared.
    """
    key, bases, addresses = [op, stream is None], [], []
    layout, on_device = None, False
    for each in given:
        base = each
        if isinstance(each, bsr_array):
            if layout is not None and each.layout is not layout:
                return None
            layout, base = each._layout, each._values
            key.append(each._transposed)
        elif isinstance(each, (Layout, LayoutStack)):
            layout, base = each, None
        signature = address = None
        if base is not None:
            signature = arrays.signature(base)
            if signature is None:
                return None
            if signature[1] is not None:
                on_device, address = True, arrays.address(base)
                key.append(address % ALIGNMENT)
        key.append(signature)
        bases.append(base)
        addresses.append(address)
    for option in options:
        if type(option) in _BY_REPR:
            option = repr(option)
        elif type(option) not in _BY_VALUE:
            return None
        key.append(option)
    if layout is None:
        return None
    return tuple(key), layout, bases, addresses if on_device else None


def _keep(records, key, record):
    with _keeping:
        if len(records) >= RECORDS:
            del records[next(iter(records))]
        records[key] = record


# ------------------------------------------------------------------ the first call


class _Notes:
    """What a call does, as far as it is to be done again."""

    def __init__(self):
        self.launches = []  # launch.Launch of each kernel
        self.made = []  # (array, _Empty) of each array that was made
        self.stream_of = None  # Operand on whose current stream the kernels are
        self.reference = None  # function, its keywords and the library of its result

    def record(self, op, given, bases, result):
        """Return the record, or None if it cannot be told what to do again."""
        operands = [
            None if base is None else arrays.describe(op, "array", base)
            for base in bases
        ]
        apart = _apart(operands)
        if self.reference is not None:
            return _Reference(apart, *self.reference)
        operands += [arrays.describe(op, "array", array) for array, _ in self.made]
        sources = {
            id(each.owner): (which, each.pointer)
            for which, each in enumerate(operands)
            if each is not None
        }
        if len(sources) < len(operands) - operands.count(None):
            return None  # one array given twice: next time it may be two
        launches = [launch.repeatable(sources) for launch in self.launches]
        if not launches or None in launches:
            return None
        return _Kernels(
            apart=apart,
            op=op,
            stream_of=self.stream_of,
            streams_of=_one_of_each_library(operands[: len(bases)]),
            made=tuple(how for _, how in self.made),
            launches=tuple(launches),
            result=_template(result, given, [array for array, _ in self.made]),
        )


_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)


@contextlib.contextmanager
def _recorded(on_device):
    """Give notes of what is done meanwhile."""
    notes = _Notes()
    token = _notes.set(notes)
    try:
        if on_device:
            from .cuda.launch import recording

            with recording() as notes.launches:
                yield notes
        else:
            yield notes
    finally:
        _notes.reset(token)


def empty(shape, dtype, like: Operand, stream: int | None = None):
    """Return an array from ``arrays.empty``, and note it."""
    array = arrays.empty(shape, dtype, like, stream)
    notes = _notes.get()
    if notes is not None:
        how = _Empty(shape, dtype, _without_memory(like), stream is not None)
        notes.made.append((array, how))
    return array


def stream_of(like: Operand) -> int:
    """Return the current stream of the library of ``like``, and note whose it is."""
    notes = _notes.get()
    if notes is not None:
        notes.stream_of = _without_memory(like)
    return arrays.stream_of(like)


def run_reference(function, inputs, out, library, **keywords):
    """Compute on the host, and note how; None under :func:`explain`.

    Parameters
    ----------
    function : of the reference
    inputs : tuple of host arrays, bsr_arrays and layouts
    out : array or bsr_array that is written, or None
    library : of a dense result
    """
    name = f"reference.{function.__name__}"
    if only_explained(name, {}, "the operands are on the host"):
        return None
    notes = _notes.get()
    if notes is not None:
        notes.reference = function, keywords, library
    return _on_host(function, keywords, library, inputs, out)


def _without_memory(operand):
    return operand._replace(pointer=0, owner=None)


def _one_of_each_library(operands):
    """Return an Operand of each library, () if there is but one."""
    found = {
        each.library: _without_memory(each) for each in operands if each is not None
    }
    return tuple(found.values()) if len(found) > 1 else ()


def _template(result, given, made):
    """Return where a result comes from; :func:`_filled` makes the next of it."""
    if isinstance(result, tuple):
        return tuple([_template(each, given, made) for each in result])
    if result is None:
        return None
    for which, each in enumerate(given):
        if result is each:
            return _Result(which, None)
    values = result._values if isinstance(result, bsr_array) else result
    (which,) = (which for which, array in enumerate(made) if array is values)
    return _Result(
        len(given) + which, result._transposed if values is not result else None
    )


# ------------------------------------------------------------------- further calls


class _Empty(NamedTuple):
    """An array that a call makes."""

    shape: tuple
    dtype: np.dtype
    like: Operand
    scratch: bool  # used on the call's stream, nowhere else


class _Result(NamedTuple):
    """Where a result comes from."""

    which: int  # of what is given and, after those, of what is made
    transposed: bool | None  # None: itself; else the values of a bsr_array


class _Kernels(NamedTuple):
    """A call that starts kernels."""

    apart: tuple  # see _apart
    op: str
    stream_of: Operand | None  # None: the caller names the stream
    streams_of: tuple  # of operands, if they are of several libraries
    made: tuple  # of _Empty
    launches: tuple  # of launch.Repeatable
    result: object  # of _Result: one, or a tuple

    def again(self, given, layout, addresses, stream):
        """Make the call for these arguments."""
        others = ()
        if stream is not None:
            stream = arrays.stream_handle(self.op, stream)
        else:
            stream = arrays.stream_of(self.stream_of)
            if self.streams_of:
                others = arrays.streams_of(self.streams_of) - {stream}
        arguments = list(given)
        for shape, dtype, like, scratch in self.made:
            array = arrays.empty(shape, dtype, like, stream if scratch else None)
            arguments.append(array)
            addresses.append(arrays.address(array))
        if others:
            from .cuda.launch import ordered

            with ordered(self.stream_of.device, stream, sorted(others)):
                self._start(stream, addresses)
        else:
            self._start(stream, addresses)
        return _filled(self.result, arguments, layout)

    def _start(self, stream, addresses):
        for launch in self.launches:
            launch.start(stream, addresses)


class _Reference(NamedTuple):
    """A call that the reference computes."""

    apart: tuple
    function: Callable
    keywords: dict
    library: str

    def again(self, given, layout, addresses, stream):
        """Make the call for these arguments."""
        *inputs, out, _ = given
        return _on_host(self.function, self.keywords, self.library, inputs, out)


def _on_host(function, keywords, library, inputs, out):
    """Call a reference function on NumPy's views of arrays of any library."""
    plain = [_plain(each) for each in inputs]
    if out is not None:
        function(*plain, out=_plain(out), **keywords)
        return out
    return _given_back(function(*plain, **keywords), inputs, library)


def _plain(x):
    """Return ``x`` as the reference takes it."""
    if isinstance(x, bsr_array):
        return x.to_host()
    if isinstance(x, (Layout, LayoutStack)):
        return x
    if type(x) is np.ndarray and x.dtype.kind != "V":  # bfloat16 by its other name?
        return x
    return arrays.to_numpy(x if isinstance(x, Operand) else arrays.describe("", "", x))


def _given_back(result, inputs, library):
    """Return a result of the reference in the library of the operand it belongs to."""
    if isinstance(result, tuple):
        return tuple([_given_back(each, inputs, library) for each in result])
    if result is None:
        return None
    if not isinstance(result, bsr_array):
        return arrays.from_numpy(result, library, None)
    # Gradients of a sparse input belong to the library of its values.
    own = [each.library for each in inputs if isinstance(each, bsr_array)]
    return result._view(arrays.from_numpy(result._values, (*own, library)[0], None))


def _filled(template, arguments, layout):
    """Return the result that a template describes."""
    if template is None:
        return None
    if type(template) is tuple:
        return tuple([_filled(each, arguments, layout) for each in template])
    which, transposed = template
    found = arguments[which]
    if transposed is None:
        return found
    return object.__new__(bsr_array)._set(layout, found, transposed)


# ------------------------------------------------------------------------ overlaps


def _apart(operands):
    """Return the pairs that must not overlap: which, and where each begins and ends.

    The two last, ``out`` and ``workspace``, are written.
    """
    reach = []
    for each in operands:
        if each is None or each.size == 0:
            reach.append(None)
            continue
        axes = zip(each.shape, each.strides, strict=True)
        last = [step * (n - 1) for n, step in axes]
        begin = sum(step for step in last if step < 0)
        end = sum(step for step in last if step > 0) + each.dtype.itemsize
        reach.append((begin, end))
    written = len(operands) - 2, len(operands) - 1
    return tuple(
        (one, *reach[one], other, *reach[other])
        for one in written
        for other in range(one)
        if reach[one] and reach[other]
    )


def _may_overlap(apart, addresses) -> bool:
    """Whether the ranges of addresses of a pair meet."""
    for one, begin, end, other, other_begin, other_end in apart:
        x, y = addresses[one], addresses[other]
        if x + begin < y + other_end and y + other_begin < x + end:
            return True
    return False
