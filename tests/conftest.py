"""Which tiers can run here, and the fixtures that every test file may use.

Without a usable GPU the kernels run in the simulator: ``NUMBA_ENABLE_CUDASIM`` is set
here, before numba is imported, unless it is set already.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

HAS_NUMBA = all(map(importlib.util.find_spec, ("numba", "numba_cuda")))


def find_gpu():
    """Return the compute capability and name of the first GPU, or why there is none."""
    if not HAS_NUMBA:
        return None, "numba-cuda is not installed"
    try:
        from cuda.bindings import driver
    except ImportError:
        return None, "cuda-bindings is not installed"
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # the loader's own class, which it does not export
        return None, f"no NVIDIA driver ({type(error).__name__})"
    if status != driver.CUresult.CUDA_SUCCESS:
        return None, f"no usable GPU ({status.name})"
    if driver.cuDeviceGetCount()[1] == 0:
        return None, "no GPU"
    _, device = driver.cuDeviceGet(0)
    attribute = driver.CUdevice_attribute
    major = attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    minor = attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    found = tuple(driver.cuDeviceGetAttribute(a, device)[1] for a in (major, minor))
    name = driver.cuDeviceGetName(100, device)[1].split(b"\0")[0].decode()
    return found, name


CAPABILITY, GPU = find_gpu()
if CAPABILITY is None:
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def why_not(tier):
    """Return why a marker's tests cannot run here, or None if they can."""
    if tier == "simulator" and HAS_NUMBA:
        on = f"kernels run on the {GPU}; NUMBA_ENABLE_CUDASIM=1 runs them as threads"
        return None if SIMULATED else on if CAPABILITY else f"switched off; {GPU}"
    if CAPABILITY is None:
        return GPU
    if SIMULATED:
        return f"NUMBA_ENABLE_CUDASIM=1 hides the {GPU}"
    if tier == "sm90" and CAPABILITY[0] != 9:
        return "compute capability must be 9.0, got {}.{}".format(*CAPABILITY)
    return None


def pytest_configure(config):
    """Register the markers."""
    for line in (
        "gpu: runs kernels on a real GPU",
        "sm90: needs a GPU of compute capability 9.0",
        "simulator: runs kernels as Python threads that take turns, without a GPU",
        "compile: compiles kernels in a child process, without a GPU",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items):
    """Skip what cannot run here, and say why."""
    for item in items:
        for tier in ("gpu", "sm90", "simulator"):
            reason = why_not(tier) if item.get_closest_marker(tier) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"{tier}: {reason}"))


def pytest_terminal_summary(terminalreporter):
    """Say which tiers ran, and why the others did not."""
    passed = terminalreporter.stats.get("passed", [])
    compiled = sum("compile" in report.keywords for report in passed)
    on_gpu = f"kernels on the {GPU}"
    lines = {
        "reference": "ran",
        "simulator": why_not("simulator") or "ran, kernels as Python threads",
        "compile": None if compiled else "no such test passed in this run",
        "gpu": why_not("gpu") or f"ran, {on_gpu}",
    }
    terminalreporter.section("tiers")
    for tier, text in lines.items():
        ran = text is None or text.startswith("ran")
        text = f"ran, {compiled} tests" if text is None else text
        terminalreporter.line(f"{tier:10} {text if ran else 'did not run: ' + text}")


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def cases():
    """Folder of the field reports' files."""
    folder = os.environ.get("NUMBA_BS_CASES")
    if not folder:
        pytest.skip("NUMBA_BS_CASES must name the folder of the field reports")
    return Path(folder)


SCHEDULES = {
    "first-late": {"order": "first", "late": True},
    "last-early": {"order": "last", "late": False},
}


@pytest.fixture(params=list(SCHEDULES) if SIMULATED else ["hardware"])
def schedule(request):
    """Run the test under each schedule of the simulator; once on a GPU."""
    if not SIMULATED:
        yield request.param
        return
    pytest.importorskip("numba.cuda")
    from numba_bs.cuda import simulator

    with simulator.schedule(**SCHEDULES[request.param]):
        yield request.param
