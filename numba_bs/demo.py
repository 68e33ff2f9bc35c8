"""The main job once, start to end: a block-sparse layer forward and backward.

``numba-bs demo`` runs this. It multiplies real block-sparse matrices, checks the
result and both gradients against the reference within rounding, and times them beside
a dense product and SciPy.
"""

import importlib
import math
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import numba_bs as bs

from . import arrays, checks, dtypes, files, gallery

_BATCH_SECONDS = 0.025  # a timed batch of calls takes at least this long
_BATCHES = 3
_DENSE_BYTES = 2**28  # a larger dense matrix is timed in part (on a GPU: 4 times this)
_QUIET_SECONDS = 2  # the progress bar shows up after this time
_STEPS = 11  # of a case, for the progress bar


class Case(NamedTuple):
    """One matrix of the demo."""

    name: str
    matrix: scipy.sparse.bsr_array
    columns: int  # of the dense operand
    notes: tuple[str, ...] = ()  # what a reader of the table should know


class Result(NamedTuple):
    """One line of the table."""

    product: str
    seconds: float
    flops: float  # useful ones: of stored blocks
    moved_bytes: float  # each operand and the result once
    dense_seconds: float
    scipy_seconds: float | None
    error: float  # largest error over its bound; up to 1 is right

    @property
    def right(self) -> bool:
        """Whether every element is within its bound."""
        return self.error <= 1  # False for NaN too


class Measurement(NamedTuple):
    """What was found with one case."""

    results: list[Result]
    launches: tuple  # what the forward product runs, from explain()
    dense_by: str  # who multiplied dense matrices, for comparison


def own_case(
    path: str | Path,
    *,
    blocksize: tuple[int, int] | None = None,
    columns: int = 64,
    dtype=None,
    key: str | None = None,
) -> Case:
    """Return the case of a user's file; see :func:`numba_bs.files.read`.

    Parameters
    ----------
    path : str or Path
    blocksize : (R, C), optional
        By default that of the file, or the one :func:`numba_bs.files.guess_blocksize`
        picks.
    columns : int
        Of the dense operand.
    dtype : optional
        Converted to; by default that of the file, or float64 for integers.
    key : str, optional
        Which variable of a .mat file.

    Raises
    ------
    ValueError
        The file is not what it should be, ``blocksize`` does not divide the shape, or
        ``dtype`` is real and the matrix is not.
    """
    matrix, notes = files.read_with_notes(path, key=key)
    if blocksize is None:
        blocksize = files.guess_blocksize(matrix)
        R, C = (math.gcd(n, 8) for n in matrix.shape)
        if blocksize == (1, 1) != (R, C) and Path(path).suffix.lower() == ".smtx":
            notes[-1] += f"; it has no blocks of its own: try --blocksize {R}x{C}"
    checks.divides("demo", matrix.shape, blocksize)
    if dtype is None:
        dtype = matrix.dtype if matrix.dtype.kind in "fc" else np.float64
    if matrix.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise ValueError(
            f"demo: dtype must be complex for a complex matrix, got {np.dtype(dtype)}"
        )
    matrix = scipy.sparse.bsr_array(matrix.tobsr(blocksize), dtype=dtype)
    matrix.sum_duplicates()
    return Case(Path(path).name, matrix, columns, tuple(notes))


def default_cases(on_device: bool) -> list[Case]:
    """Return the matrices that the package makes itself, larger ones for a GPU."""
    nodes, side, columns = (40, 8192, 1024) if on_device else (16, 2048, 256)
    box = gallery.elasticity(nodes, nodes, nodes)
    layer = gallery.pruned_layer(side, side)
    return [
        Case(f"elastic box, {nodes}x{nodes}x{nodes} nodes", box, 64),
        Case("pruned linear layer", layer, columns),
    ]


def run(cases: list[Case], *, on_device: bool, console: Console) -> bool:
    """Run cases and print their tables; return whether all results are right.

    Parameters
    ----------
    cases : list of Case
    on_device : bool
        Whether kernels on the GPU do it, or the reference on the CPU.
    console : rich.console.Console
        Where tables go.
    """
    right = True
    for case in cases:
        with _progress(console, case.name) as advance:
            found = _measure(case, on_device, advance)
        console.print(_table(case, found, on_device))
        for note in case.notes:
            console.print(f"Note: {note}", markup=False)
        if on_device:
            for launch in found.launches:
                console.print(f"Kernel: {launch}", markup=False)
        right &= all(result.right for result in found.results)
    return right


def save_plot(cases: list[Case], path: str | Path) -> None:
    """Draw the layouts of cases side by side into a picture file.

    Raises
    ------
    ImportError
        matplotlib is not installed; the message names the extra that brings it.
    ValueError
        The suffix is not that of a kind of picture.
    OSError
        The file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "--plot: matplotlib must be installed; pip install 'numba-bs[plot]'"
        ) from error
    # A figure of its own, without pyplot: no window system, no global state.
    figure = Figure(figsize=(5.5 * len(cases), 5.5), layout="constrained")
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix.lower()[1:] not in kinds:
        raise ValueError(
            f"--plot: path must end in .{', .'.join(kinds)}, got {str(path)!r}"
        )
    axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for case, ax in zip(cases, axes, strict=True):
        layout = bs.Layout.from_scipy(case.matrix)
        layout.plot(ax)
        ax.set_title(f"{case.name}\n{ax.get_title()}")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise OSError(
            f"--plot: path must be a file that can be written, got {str(path)!r} "
            f"({error.strerror})"
        ) from error


# ---------------------------------------------------------------------- one case


def _measure(case, on_device, advance):
    """Multiply, check and time one case."""
    rng = np.random.default_rng(0)
    dtype = case.matrix.dtype
    M, K = case.matrix.shape
    x = _normal(rng, (K, case.columns), dtype)
    grad_y = _normal(rng, (M, case.columns), dtype)
    host = bs.bsr_array(case.matrix)
    operands = host, x, grad_y
    if on_device:
        operands = (
            host.to_device(),
            arrays.from_numpy(x, "numba", 0),
            arrays.from_numpy(grad_y, "numba", 0),
        )
    advance()

    # What a training step does.
    a, x_here, grad_here = operands
    y = bs.matmul(a, x_here)
    grad_a, grad_x = bs.matmul_backward(grad_here, a, x_here)
    found = [_numpy(array) for array in (y, grad_x, grad_a.data)]
    advance()
    errors = _errors(host, x, grad_y, found, judge=_reference if on_device else _scipy)
    advance()

    wait = _waiter(on_device)
    calls = (
        lambda: bs.matmul(a, x_here),
        lambda: bs.matmul_backward(grad_here, a, x_here, needs=("b",)),
        lambda: bs.matmul_backward(grad_here, a, x_here, needs=("a",)),
    )
    seconds = [_seconds(call, wait, advance) for call in calls]
    dense_by, dense = _dense_seconds(case, x, grad_y, on_device, advance)
    # SciPy has no product sampled at a layout, so the last line stays empty.
    adjoint = case.matrix.conj().T.tobsr()
    single = [
        _seconds(lambda: case.matrix @ x, _no_wait, advance),
        _seconds(lambda: adjoint @ grad_y, _no_wait, advance),
        None,
    ]

    layout = host.layout
    R, C = layout.blocksize
    flops = 2 * layout.blocks * R * C * case.columns
    if dtype.kind == "c":
        flops *= 4
    table_bytes = 8 * layout.blocks  # block column and place of each
    moved = (host.data.nbytes + x.nbytes + grad_y.nbytes) + table_bytes
    names = "forward", "dX", "dA"
    columns = zip(names, seconds, dense, single, errors, strict=True)
    results = [
        Result(name, here, flops, moved, dense, scipy, error)
        for name, here, dense, scipy, error in columns
    ]
    launches = bs.explain("matmul", a, x_here).launches
    return Measurement(results, launches, dense_by)


def _normal(rng, shape, dtype):
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def _numpy(array):
    return arrays.to_numpy(arrays.describe("demo", "result", array))


# ------------------------------------------------------------------------- right?


def _errors(a, x, grad_y, found, judge):
    """Return the largest error over its bound, for each of the three products.

    A sum of n products in arithmetic of unit roundoff u is off by at most
    ``(n + 2) u`` times the same sum of absolute values (Higham, "Accuracy and
    Stability of Numerical Algorithms", 2002, chapter 3). ``exact`` is such a sum too,
    in float64.
    """
    wide = np.result_type(a.dtype, np.float64)
    layout = a.layout
    longest_row = np.diff(layout.indptr).max(initial=0) * layout.blocksize[1]
    longest_col = np.diff(layout.T.indptr).max(initial=0) * layout.blocksize[0]
    terms = longest_row, longest_col, x.shape[1]
    exact = judge(a.astype(wide), x.astype(wide), grad_y.astype(wide))
    magnitude = judge(
        a.with_data(abs(a.data).astype(np.float64)),
        abs(x).astype(np.float64),
        abs(grad_y).astype(np.float64),
    )
    roundoff = dtypes.unit_roundoff(a.dtype) + dtypes.unit_roundoff(wide)
    if a.dtype.kind == "c":
        # Real and imaginary part are sums of twice as many products.
        terms = [2 * n for n in terms]
        roundoff *= np.sqrt(2)
    return [
        # The smallest number keeps sums of nothing, whose bound is 0, at 0 / tiny.
        float(np.max(abs(f - e) / ((n + 2) * roundoff * m + 1e-300), initial=0))
        for f, e, m, n in zip(found, exact, magnitude, terms, strict=True)
    ]


def _reference(a, x, grad_y):
    """Return the three products by the package's reference."""
    grad_a, grad_x = bs.reference.matmul_backward(grad_y, a, x)
    return bs.reference.matmul(a, x), grad_x, grad_a.data


def _scipy(a, x, grad_y):
    """Return the three products by SciPy and NumPy: the judge of the reference."""
    matrix = a.to_scipy().tocsr()  # not the format that the reference may use itself
    R, C = a.blocksize
    rows, cols = a.layout.coordinates()
    left, right = grad_y.reshape(-1, R, grad_y.shape[1]), x.reshape(-1, C, x.shape[1])
    grad_a = np.empty_like(a.data)
    step = max(1, _DENSE_BYTES // (left[:1].nbytes + right[:1].nbytes + 1))
    for i in range(0, len(grad_a), step):  # so many at a time fit in memory
        part = slice(i, i + step)
        grad_a[part] = left[rows[part]] @ right[cols[part]].conj().swapaxes(1, 2)
    return matrix @ x, matrix.conj().T @ grad_y, grad_a


# ------------------------------------------------------------------------- time


def _no_wait():
    """Wait for nothing: the host has finished when it returns."""


def _waiter(on_device):
    """Return a function that waits until the device has finished."""
    if not on_device:
        return _no_wait
    from .cuda.compiler import cuda

    return cuda.synchronize


def _seconds(call: Callable, wait: Callable, advance: Callable) -> float:
    """Return the time of one call: median of batches that wait for the device once."""
    start = time.perf_counter()
    call()  # on a device it compiles, uploads, warms up: no measurement
    wait()
    first = time.perf_counter() - start
    if wait is _no_wait and first >= 10 * _BATCH_SECONDS:
        advance()
        return first
    calls, batches = 1, []
    while len(batches) < _BATCHES:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        elapsed = time.perf_counter() - start
        if elapsed >= 10 * _BATCH_SECONDS:
            batches = [elapsed / calls]  # long enough to need no second look
            break
        if elapsed < _BATCH_SECONDS:
            calls *= 2
            batches = []
            continue
        batches.append(elapsed / calls)
    advance()
    return statistics.median(batches)


def _dense_seconds(case, x, grad_y, on_device, advance):
    """Return the times of the same products with a dense matrix, and who made them.

    Of a matrix too large for that, as many rows as are reasonable, and the time
    scaled: it grows with the number of rows in all three.
    """
    M, K = case.matrix.shape
    R = case.matrix.blocksize[0]
    rows, row_bytes = M, K * case.matrix.dtype.itemsize
    limit = _DENSE_BYTES * (4 if on_device else 1)
    if M * row_bytes > limit:
        rows = min(M, max(1, limit // (R * row_bytes)) * R)
    dense = case.matrix.tocsr()[:rows].toarray()
    who, calls = (_dense_on_device if on_device else _dense_on_host)(
        dense, x, grad_y[:rows]
    )
    if rows < M:
        who += f", timed on {rows} rows and scaled"
    wait = _waiter(on_device)
    return who, [_seconds(call, wait, advance) * (M / max(rows, 1)) for call in calls]


def _dense_on_host(dense, x, grad_y):
    """Return who multiplies dense matrices, and the three calls."""
    calls = (
        lambda: dense @ x,
        lambda: dense.conj().T @ grad_y,
        lambda: grad_y @ x.conj().T,
    )
    return "NumPy, all threads", calls


def _dense_on_device(dense, x, grad_y):
    """As :func:`_dense_on_host`: by cuBLAS if torch or CuPy brings it."""
    torch = _optional("torch")
    if torch is not None and torch.cuda.is_available():
        tensors = [torch.from_numpy(array).cuda() for array in (dense, x, grad_y)]
        return "cuBLAS through torch", _dense_on_host(*tensors)[1]
    cupy = _optional("cupy")
    if cupy is not None:
        copies = map(cupy.asarray, (dense, x, grad_y))
        return "cuBLAS through CuPy", _dense_on_host(*copies)[1]
    R, C = (max(s for s in (1, 2, 4, 8, 16, 32, 64) if n % s == 0) for n in dense.shape)
    layout = bs.Layout.from_mask(
        np.ones((dense.shape[0] // R, dense.shape[1] // C), bool), (R, C)
    )
    blocks = dense.reshape(-1, R, layout.block_cols, C).swapaxes(1, 2)
    a = bs.bsr_array((blocks.reshape(-1, R, C), layout)).to_device()
    x, grad_y = (arrays.from_numpy(array, "numba", 0) for array in (x, grad_y))
    calls = (
        lambda: bs.matmul(a, x),
        lambda: bs.matmul_backward(grad_y, a, x, needs=("b",)),
        lambda: bs.matmul_backward(grad_y, a, x, needs=("a",)),
    )
    return "the same kernels with all blocks stored", calls


def _optional(name):
    """Import a module if it is there and whole."""
    try:
        return importlib.import_module(name)
    except Exception:  # a broken installation of it is not this program's business
        return None


# ------------------------------------------------------------------------ shown


def _caption(case, found, on_device):
    """Return what the columns of a table mean."""
    adjoint = "^H" if case.matrix.dtype.kind == "c" else "^T"
    parts = [
        f"forward: Y = A X. dX: A{adjoint} dY. dA: dY X{adjoint} at the blocks of A.",
        "time: one call that allocates its result"
        + (", until the GPU is done." if on_device else "."),
        "rate: counts stored blocks only. traffic: counts each array once.",
        f"dense: {found.dense_by}. SciPy: one thread; it has no product for dA.",
        "error: largest error over its rounding bound; at most 1 is right.",
    ]
    if not on_device:
        parts.append("Small cases measure the overhead of a call.")
    return "\n".join(parts)


def _table(case, found, on_device):
    """Return the table of a case."""
    layout = bs.Layout.from_scipy(case.matrix)
    (M, K), (R, C) = layout.shape, layout.blocksize
    table = Table(
        title=f"{case.name}: A is {M} x {K} {case.matrix.dtype}, "
        f"{layout.blocks} blocks of {R}x{C}, density {layout.density:.3g}; "
        f"X has {case.columns} columns",
        caption=_caption(case, found, on_device),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),  # seven columns of numbers in 80 characters
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    headings = "time", "rate", "traffic", "vs dense", "vs SciPy", "error"
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=len("WRONG"))
    for result in found.results:
        verdict = "ok" if result.right else "[bold red]WRONG[/]"
        table.add_row(
            result.product,
            _quantity(result.seconds, "s"),
            _quantity(result.flops / result.seconds, "FLOP/s"),
            _quantity(result.moved_bytes / result.seconds, "B/s"),
            _times(result.dense_seconds, result.seconds),
            _times(result.scipy_seconds, result.seconds),
            f"{result.error:.2g}",
            verdict,
        )
    return table


def _times(other, seconds):
    return "-" if other is None else f"{other / seconds:.3g}x"


def _quantity(value, unit):
    """Write a quantity with three digits and a prefix.

    Examples
    --------
    >>> _quantity(0.00123, "s"), _quantity(45.6e9, "B/s"), _quantity(0, "B/s")
    ('1.23 ms', '45.6 GB/s', '0 B/s')
    """
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m")):
        if abs(value) >= 10.0**power:
            return f"{value / 10.0**power:.3g} {prefix}{unit}"
    return f"{value * 1e6:.3g} u{unit}" if value else f"0 {unit}"


@contextmanager
def _progress(console, what):
    """Give a function that marks a step as done; the bar shows up if it takes long."""
    progress = Progress(console=console, transient=True)
    task = progress.add_task(what, total=_STEPS)
    late = threading.Timer(_QUIET_SECONDS, progress.start)
    if console.is_terminal:
        late.start()
    try:
        yield lambda: progress.advance(task)
    finally:
        late.cancel()
        progress.stop()
