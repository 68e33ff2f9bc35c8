"""How the benchmarks time: machines, ceilings, what ran where, result files."""

import json
import os
import platform
import re
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .cases import DTYPES

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
_PACKAGES = (
    "numba_bs",
    "numba",
    "numba-cuda",
    "cuda-core",
    "cuda-bindings",
    "numpy",
    "scipy",
    "ml_dtypes",
    "torch",
    "triton",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "stanford-stk",
    "blksprs",
)


class Quartiles(NamedTuple):
    """Of repeated measurements, in seconds."""

    low: float
    median: float
    high: float


class Timing(NamedTuple):
    """What repeated calls took, in seconds."""

    kernel: Quartiles  # on the GPU, its queue kept full; on the host, the call
    called: Quartiles  # from the call until the result is there, caches cold
    host: Quartiles  # from the call until it returns
    repeats: int
    held: bool  # the GPU's queue was full at every kernel measurement


def quartiles(samples) -> Quartiles:
    """Return lower quartile, median and upper quartile."""
    return Quartiles(*(float(q) for q in np.percentile(samples, (25, 50, 75))))


def repeats_within(seconds: float, once: float, least: int = 3, most: int = 100) -> int:
    """Return how often something that takes ``once`` is repeated in ``seconds``."""
    return int(np.clip(seconds / max(once, 1e-9), least, most))


class HostMachine:
    """The CPU: NumPy arrays, the host's clock."""

    is_gpu = False

    def __init__(self):
        self.name = _processor()

    def normal(self, dtype: str, seed: int):
        """Return a function that fills a shape with standard normal numbers."""
        rng, kind = np.random.default_rng(seed), DTYPES[dtype]
        drawn = np.float64 if kind == np.float64 else np.float32
        return lambda shape: rng.standard_normal(shape, drawn).astype(kind)

    def index(self, array):
        """Return an index array where the operands are."""
        return np.asarray(array, np.int64)

    def copy(self, x):
        """Return a contiguous copy."""
        return np.array(x, order="C", copy=True)

    def zeros(self, shape, like):
        """Return zeros of the dtype of ``like``."""
        return np.zeros(shape, like.dtype)

    def empty(self, shape, like):
        """Return an array full of NaN: what is left unwritten shows."""
        return np.full(shape, np.nan, like.dtype)

    def to_host(self, x):
        """Return a NumPy array."""
        return np.asarray(x)

    def sum_by(self, rows, products, count):
        """Add up ``products`` that share a row."""
        out = np.zeros((count, *products.shape[1:]))
        np.add.at(out, rows, products)
        return out

    def all_finite(self, x) -> bool:
        """Whether every element is a number."""
        return bool(np.isfinite(np.asarray(x, np.float32)).all())

    def synchronise(self):
        """Do nothing: host calls return when they are done."""

    def free(self):
        """Do nothing: arrays are freed when nothing refers to them."""

    def measure(self, call, seconds: float = 0.15) -> Timing:
        """Time a call over about ``seconds``."""
        _timed(call)  # warm up
        repeats = repeats_within(seconds, _timed(call))
        spans = quartiles([_timed(call) for _ in range(repeats)])
        return Timing(spans, spans, spans, repeats, True)

    def copy_rate(self, size: int = 2**27) -> float:
        """Return bytes a second that a copy reads and writes."""
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        spans = self.measure(lambda: np.copyto(target, source), 0.3)
        return 2 * size / spans.kernel.median

    def header(self) -> dict:
        """Return what this machine is."""
        return {"device": self.name, "gpu": None, "cpus": os.cpu_count()}


class GpuMachine:
    """A CUDA GPU, its arrays and clocks by way of torch.

    Kernel time is taken between two events while the GPU is kept busy before the
    first, so that the time the host takes to launch is not in it: a call's kernels
    are all in the queue by the time the GPU reaches them. Whether that held is
    looked at after each call and kept with the result.
    """

    is_gpu = True

    def __init__(self, torch, device: int = 0):
        self.torch = torch
        torch.cuda.set_device(device)
        properties = torch.cuda.get_device_properties(device)
        self.device = f"cuda:{device}"
        self.name = properties.name
        self.capability = f"{properties.major}.{properties.minor}"
        self.multiprocessors = properties.multi_processor_count
        cache = getattr(properties, "L2_cache_size", 0) or 2**26
        # Twice the cache, rewritten before each call: nothing of it stays.
        self._flush = torch.empty(2 * cache, dtype=torch.uint8, device=self.device)
        # fp32 means IEEE here; peers.DenseTF32 switches for its own calls.
        torch.backends.cuda.matmul.allow_tf32 = False

    def _dtype(self, dtype: str):
        return getattr(self.torch, DTYPES[dtype].name)

    def normal(self, dtype: str, seed: int):
        """Return a function that fills a shape with standard normal numbers."""
        generator = self.torch.Generator(device=self.device).manual_seed(seed)
        return lambda shape: self.torch.randn(
            shape, generator=generator, device=self.device, dtype=self._dtype(dtype)
        )

    def index(self, array):
        """Return an index array where the operands are."""
        array = np.array(array, np.int64)  # torch warns about read-only arrays
        return self.torch.from_numpy(array).to(self.device)

    def copy(self, x):
        """Return a contiguous copy."""
        return x.clone(memory_format=self.torch.contiguous_format)

    def zeros(self, shape, like):
        """Return zeros of the dtype of ``like``."""
        return like.new_zeros(shape)

    def empty(self, shape, like):
        """Return an array full of NaN: what is left unwritten shows."""
        return like.new_full(shape, float("nan"))

    def to_host(self, x):
        """Return a NumPy array (float32 for bfloat16)."""
        if x.dtype == self.torch.bfloat16:
            x = x.float()
        return x.cpu().numpy()

    def sum_by(self, rows, products, count):
        """Add up ``products`` that share a row."""
        out = products.new_zeros((count, *products.shape[1:]))
        return out.index_add_(0, rows, products)

    def all_finite(self, x) -> bool:
        """Whether every element is a number."""
        return bool(self.torch.isfinite(x).all())

    def synchronise(self):
        """Wait for the GPU; raises if anything before went wrong there."""
        self.torch.cuda.synchronize()

    def free(self):
        """Give memory that nothing refers to back to the GPU."""
        self.torch.cuda.empty_cache()

    def measure(self, call, seconds: float = 0.15) -> Timing:
        """Time a call over about ``seconds``, half of them each way."""
        self._called(call)  # warm up
        once = self._called(call)[1]
        flush = self._called(self._flush.zero_)[1]
        repeats = repeats_within(seconds / 2, once + flush)
        host, called = zip(*(self._called(call) for _ in range(repeats)), strict=True)
        kernel, held = zip(
            *(self._kernel(call, max(host)) for _ in range(repeats)), strict=True
        )
        return Timing(
            quartiles(kernel),
            quartiles(called),
            quartiles(host),
            repeats,
            all(held),
        )

    def quick(self, call, repeats: int = 3) -> float:
        """Return the median kernel time of a few calls; for sweeps."""
        host, _ = self._called(call)
        return quartiles([self._kernel(call, host)[0] for _ in range(repeats)]).median

    def _called(self, call):
        """Return seconds until the call returned, and until the GPU was done."""
        self._flush.zero_()
        self.synchronise()
        start = time.perf_counter()
        call()
        returned = time.perf_counter()
        self.synchronise()
        return returned - start, time.perf_counter() - start

    def _kernel(self, call, host: float):
        """Return the seconds the GPU took, and whether its queue was full."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        # Keep the GPU busy for longer than the host will take (cycles, at 2 GHz).
        self.torch.cuda._sleep(int((2 * min(host, 0.01) + 2e-4) * 2e9))
        start.record()
        call()
        end.record()
        held = not start.query()
        self.synchronise()
        return start.elapsed_time(end) / 1e3, held

    def copy_rate(self, size: int = 2**30) -> float:
        """Return bytes a second that a copy reads and writes."""
        torch = self.torch
        source, target = (
            torch.ones(size, dtype=torch.uint8, device=self.device) for _ in range(2)
        )
        spans = self.measure(lambda: target.copy_(source), 0.3)
        return 2 * size / spans.kernel.median

    def header(self) -> dict:
        """Return what this machine is."""
        return {
            "device": self.name,
            "gpu": self.name,
            "capability": self.capability,
            "multiprocessors": self.multiprocessors,
            "driver": _driver(),
            "cuda": self.torch.version.cuda,
            "cpus": os.cpu_count(),
        }


def find_machine(kind: str = "auto"):
    """Return the machine to run on: "gpu", "cpu", or "auto" for a GPU if any.

    Raises
    ------
    RuntimeError
        A GPU was asked for and there is none, or no torch to drive it with.
    """
    if kind == "cpu":
        return HostMachine()
    try:
        import torch
    except ImportError:
        reason = "torch, which the benchmarks use on a GPU, is not installed"
    else:
        if torch.cuda.is_available():
            return GpuMachine(torch)
        reason = f"torch {torch.__version__} sees no CUDA GPU"
    if kind == "auto":
        return HostMachine()
    raise RuntimeError(f"--device gpu: {reason}; --device cpu runs without one")


def versions() -> dict:
    """Return the versions of what takes part, where it is installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "numba_bs" not in found:
        import numba_bs

        found["numba_bs"] = numba_bs.__version__
    return found


def commit() -> str:
    """Return the commit of the working tree, "+" if it was changed since.

    Results do not count as changes: a run that goes on is still of its commit.
    """
    folder = Path(__file__).parent
    run = {"cwd": folder.parent, "capture_output": True, "text": True, "check": True}
    written = [f":!{folder.name}/results", f":!{folder.name}/tuned_torch.json"]
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], **run)
        status = ["git", "status", "--porcelain", "--", ".", *written]
        changed = subprocess.run(status, **run)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip()[:12] + ("+" if changed.stdout.strip() else "")


class Results:
    """A result file: a header, and one entry for each point and operation.

    Written anew after each change, by way of a second file, so that a run that is
    stopped loses nothing and can be taken up again.
    """

    def __init__(self, path: Path, header: dict):
        self.path = path
        self.content = {
            "schema": SCHEMA,
            "header": header,
            "ceilings": {},
            "points": [],
        }
        if path.exists():
            self.content = json.loads(path.read_text())
        self.header = self.content["header"]
        self.ceilings = self.content["ceilings"]

    def find(self, case: str, op: str) -> dict | None:
        """Return the entry of a point, if there is one."""
        for point in self.content["points"]:
            if (point["case"], point["op"]) == (case, op):
                return point
        return None

    def put(self, point: dict):
        """Add an entry, or replace the one of the same point, and write the file."""
        old = self.find(point["case"], point["op"])
        points = self.content["points"]
        if old is None:
            points.append(point)
        else:
            points[points.index(old)] = point
        self.write()

    def write(self):
        """Write the file."""
        write_json(self.path, self.content)


def write_json(path: Path, content):
    """Replace a file by another, whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_text(_dump(content) + "\n")
    beside.replace(path)


def _dump(value, indent: str = "") -> str:
    """Return JSON with every innermost object on one line, for people and diffs."""
    inner = indent + " "
    if isinstance(value, dict) and any(_nested(v) for v in value.values()):
        items = (f"{json.dumps(k)}: {_dump(v, inner)}" for k, v in value.items())
        return f"{{\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        items = (_dump(v, inner) for v in value)
        return f"[\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}]"
    return json.dumps(value)


def _nested(value) -> bool:
    """Whether a value is an object, or a list of objects."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(v, dict) for v in value)
    )


def open_results(out: Path, stem: str, header: dict) -> Results:
    """Open the file of this machine, day and commit: an older one goes on.

    Parameters
    ----------
    out : Path
        A folder, in which the file is named by benchmark, device and date; or the
        file itself.
    stem : str
        Name of the benchmark.
    """
    if out.suffix == ".json":
        results = Results(out, header)
        if not _same_run(results.header, header):
            raise ValueError(
                f"{out}: the file must be of this machine, commit and versions to be "
                "gone on with, got another one's; give another name"
            )
        return results
    device = re.sub(r"[^a-z0-9]+", "-", header["device"].lower()).strip("-")
    day = header["date"][:10]
    for number in range(1, 1000):
        suffix = "" if number == 1 else f"-{number}"
        results = Results(out / f"{stem}_{device}_{day}{suffix}.json", header)
        if _same_run(results.header, header):
            return results
    raise ValueError(f"{out}: more than a thousand result files of this day")


def _same_run(old: dict, new: dict) -> bool:
    """Whether measurements under these headers may stand in one file."""
    ignored = ("date",)
    return all(
        old.get(key) == new.get(key) for key in {*old, *new} if key not in ignored
    )


def make_header(machine, commit_name: str | None = None) -> dict:
    """Return what every result file begins with."""
    return {
        **machine.header(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_name or commit(),
        "inputs": "standard normal",
        "versions": versions(),
    }


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _processor() -> str:
    """Return the name of the CPU, as far as the system tells."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _driver() -> str:
    """Return the version of the GPU's driver."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.split("\n")[0].strip()
