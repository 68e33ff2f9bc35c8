"""What is installed, which GPU there is, and what keeps the two from working.

Nothing here needs numba, a GPU or a driver: it is asked when one of them fails.
"""

import ctypes
import importlib
import os
import re
import sys
from importlib import metadata
from typing import NamedTuple

# As in setup.cfg, which a test compares; here as well because the question is asked
# where the package runs from a source tree and no metadata is installed.
REQUIREMENTS = {
    "ml_dtypes": ">=0.5",
    "numpy": ">=2,<2.5",
    "rich": ">=13",
    "scipy": ">=1.15",
    "numba": ">=0.68",
    "numba-cuda": ">=0.30.4,<0.31",
}
ONLY_FOR_GPU = ("numba", "numba-cuda")
OPTIONAL = (
    "llvmlite",
    "cuda-bindings",
    "cuda-core",
    "nvidia-nvvm",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "matplotlib",
)
_WHY = {
    "numpy": "numba-cuda 0.30 calls np.row_stack, which NumPy 2.5 removed",
    "numba-cuda": "kernels are compiled and launched through its interfaces",
}
_OLDEST_CUDA = (12, 0)  # of numba-cuda's extras
_OLDEST_CAPABILITY_OF_CUDA_13 = (7, 5)


class Gpu(NamedTuple):
    """One device that the driver offers."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    def __str__(self):
        major, minor = self.capability
        size = self.memory_bytes / 2**30
        return f"{self.name}, compute capability {major}.{minor}, {size:.0f} GiB"


class Driver(NamedTuple):
    """What the NVIDIA driver says."""

    found: bool
    cuda: tuple[int, int]  # newest CUDA version that it serves; (0, 0) if unknown
    error: int  # of cuInit, 0 for none
    gpus: tuple[Gpu, ...]


class Finding(NamedTuple):
    """Something in the way of running on a GPU."""

    what: str
    fix: str
    problem: bool = True  # False: nothing is wrong, this machine just has no GPU


def version(package: str) -> str | None:
    """Return the version of an installed package, None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version is within bounds like ``>=2,<2.5``.

    Examples
    --------
    >>> satisfies("2.4.6", ">=2,<2.5"), satisfies("2.5.0", ">=2,<2.5")
    (True, False)
    """
    found = _release(version)
    low, _, high = bounds.partition(",")
    above = found >= _release(low.removeprefix(">="))
    return above and (not high or found < _release(high.removeprefix("<")))


def _release(version):
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", version)[0])))


def driver() -> Driver:
    """Ask the NVIDIA driver about itself and its GPUs, without creating a context."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(name)
    except OSError:
        return Driver(False, (0, 0), 0, ())
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    newest = divmod(number.value // 10, 100)
    error = cuda.cuInit(0)
    if error:
        return Driver(True, newest, error, ())
    cuda.cuDeviceGetCount(ctypes.byref(number))
    return Driver(True, newest, 0, tuple(_gpu(cuda, i) for i in range(number.value)))


def _gpu(cuda, index):
    device, value = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Gpu(name.value.decode(), tuple(capability), memory.value)


def simulated() -> bool:
    """Whether Numba's simulator is switched on."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def findings(machine: Driver | None = None) -> list[Finding]:
    """Return all that keeps kernels from running on a GPU here; none: they run.

    Parameters
    ----------
    machine : Driver, optional
        What :func:`driver` says, by default.

    Notes
    -----
    In the order in which things are to be mended. What could only be tried with the
    former ones mended is not tried.
    """
    machine = driver() if machine is None else machine
    found = [*_packages(machine), *_driver(machine)]
    if sys.platform == "darwin":
        return found
    if machine.gpus and not found:
        found += _toolkit(machine)
    if not found or not any(finding.problem for finding in found):
        found += _importing()
    if not found:
        found += _trial()
    return found


def _install(extra):
    """Return the command that installs numba-cuda with one of its extras."""
    extra = f"[{extra}]" if extra else ""
    return f"python -m pip install 'numba-cuda{extra}{REQUIREMENTS['numba-cuda']}'"


def _extra(machine):
    """Return the extra whose CUDA version serves this driver and its GPUs."""
    if not machine.gpus:
        return ""
    old = any(g.capability < _OLDEST_CAPABILITY_OF_CUDA_13 for g in machine.gpus)
    return "cu12" if machine.cuda < (13, 0) or old else "cu13"


def _packages(machine):
    """Check what setup.cfg requires."""
    for package, bounds in REQUIREMENTS.items():
        if sys.platform == "darwin" and package in ONLY_FOR_GPU:
            continue
        found = version(package)
        fix = f"python -m pip install '{package}{bounds}'"
        if package == "numba-cuda":
            fix = _install(_extra(machine))
        if found is None:
            yield Finding(f"{package} is not installed", fix)
        elif not satisfies(found, bounds):
            why = f": {_WHY[package]}" if package in _WHY else ""
            yield Finding(f"{package} {found} is not {bounds}{why}", fix)


def _driver(machine):
    """Check driver and GPUs."""
    if sys.platform == "darwin":
        yield Finding(
            "macOS has no CUDA; everything runs on the CPU",
            "use a Linux or Windows machine with an NVIDIA GPU",
            problem=False,
        )
    elif simulated():
        yield Finding(
            "NUMBA_ENABLE_CUDASIM is set: Numba simulates a GPU in Python",
            "unset NUMBA_ENABLE_CUDASIM",
            problem=bool(machine.gpus),
        )
    elif not machine.found:
        yield Finding(
            "no NVIDIA driver was found; everything runs on the CPU",
            "on a machine with an NVIDIA GPU install its driver, 580 or newer, then: "
            + _install("cu13"),
            problem=False,
        )
    elif machine.error == 100:  # CUDA_ERROR_NO_DEVICE
        hidden = "CUDA_VISIBLE_DEVICES" in os.environ
        yield Finding(
            "the NVIDIA driver finds no GPU; everything runs on the CPU",
            "unset CUDA_VISIBLE_DEVICES" if hidden else "run on a machine with a GPU",
            problem=False,
        )
    elif machine.error:
        yield Finding(
            f"the NVIDIA driver does not start: cuInit returned {machine.error}",
            "see that nvidia-smi works; after an update of the driver, reboot",
        )
    elif machine.cuda < _OLDEST_CUDA:
        major, minor = machine.cuda
        yield Finding(
            f"the NVIDIA driver is too old: it serves CUDA {major}.{minor}, "
            "numba-cuda needs 12.0",
            "install driver 525 or newer",
        )


def _toolkit(machine):
    """Check the compiler and linker that kernels go through."""
    # A requirement of numba-cuda, so it is there if numba-cuda is.
    pathfinder = importlib.import_module("cuda.pathfinder")
    paths = {}
    for library, job in (("nvvm", "compiler"), ("nvJitLink", "linker")):
        try:
            paths[library] = pathfinder.load_nvidia_dynamic_lib(library).abs_path
        except Exception:  # its own, of several kinds
            yield Finding(
                f"the {job} of kernels, {library}, is missing: numba-cuda was "
                "installed without an extra",
                _install(_extra(machine)),
            )
    if "nvJitLink" not in paths:
        return
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    ctypes.CDLL(paths["nvJitLink"]).nvJitLinkVersion(
        ctypes.byref(major), ctypes.byref(minor)
    )
    if major.value > int(_extra(machine).removeprefix("cu")):
        served = ".".join(map(str, machine.cuda))
        yield Finding(
            f"the CUDA {major.value} compiler is installed, but the driver serves CUDA "
            f"{served} and the GPU is {machine.gpus[0]}",
            _install(_extra(machine)),
        )


def _importing():
    """Check that the kernels' side of the package imports."""
    try:
        importlib.import_module("numba_bs.cuda.launch")
    except Exception as error:  # whatever a broken installation raises
        yield Finding(
            f"numba or numba-cuda cannot be imported: {type(error).__name__}: {error}",
            "python -m pip install --force-reinstall "
            + " ".join(f"'{name}{REQUIREMENTS[name]}'" for name in ONLY_FOR_GPU),
        )


def _trial():
    """Run one small product on the GPU."""
    import numpy as np

    import numba_bs as bs

    try:
        a = bs.bsr_array(np.eye(4, dtype=np.float32), blocksize=(2, 2)).to_device()
        x = bs.arrays.from_numpy(np.ones((4, 4), np.float32), "numba", 0)
        y = bs.arrays.describe("matmul", "y", bs.matmul(a, x))
        right = (bs.arrays.to_numpy(y) == 1).all()
        found = None if right else "its result is wrong"
    except Exception as error:  # whatever keeps it from running is what to tell
        found = f"{type(error).__name__}: {error}"
    if found:
        yield Finding(
            f"a product of 4x4 matrices on the GPU fails: {found}",
            "report this together with the table above",
        )
