"""What the installed package says about itself."""

import sys
from importlib import metadata, resources

import pytest

import numba_bs as bs
from numba_bs import environment

packaging = pytest.importorskip("packaging.requirements")  # pytest brings it


@pytest.fixture(scope="module")
def installed():
    """Return the installed distribution."""
    try:
        return metadata.distribution("numba_bs")
    except metadata.PackageNotFoundError:
        pytest.skip("numba_bs is not installed: pip install -e '.[test]'")


@pytest.fixture(scope="module")
def required(installed):
    """Return what is always required, by name."""
    every = map(packaging.Requirement, installed.requires)
    return {each.name: each for each in every if "extra" not in str(each.marker)}


def test_version(installed):
    assert installed.version == bs.__version__


def test_python(installed):
    assert installed.metadata["Requires-Python"] == ">=3.11"
    assert sys.version_info >= (3, 11)


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("1.26.4", False), ("2.0.0", True), ("2.4.6", True), ("2.5.0", False)],
)
def test_numpy_bound(required, version, allowed):
    # numba-cuda 0.30.4 calls np.row_stack, which NumPy 2.5 removed.
    assert required["numpy"].specifier.contains(version) == allowed


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("0.30.3", False), ("0.30.4", True), ("0.30.99", True), ("0.31.0", False)],
)
def test_numba_cuda_bound(required, version, allowed):
    assert required["numba-cuda"].specifier.contains(version) == allowed


@pytest.mark.parametrize("name", environment.ONLY_FOR_GPU)
def test_macos_needs_no_numba(required, name):
    for platform, needed in (("darwin", False), ("linux", True), ("win32", True)):
        marker = required[name].marker
        assert marker.evaluate({"sys_platform": platform}) == needed


def test_info_checks_what_the_metadata_asks(required):
    asked = {name: each.specifier for name, each in required.items()}
    checked = {
        name: packaging.Requirement(name + bounds).specifier
        for name, bounds in environment.REQUIREMENTS.items()
    }
    assert checked == asked


def test_extras(installed):
    extras = set(installed.metadata.get_all("Provides-Extra"))
    assert extras == {"bench", "cu12", "cu13", "examples", "plot", "test"}
    for extra in ("cu12", "cu13"):
        (line,) = (r for r in installed.requires if f'extra == "{extra}"' in r)
        assert packaging.Requirement(line).extras == {extra}


def test_command(installed):
    (script,) = installed.entry_points.select(group="console_scripts")
    assert (script.name, script.value) == ("numba-bs", "numba_bs.cli:main")


def test_the_package_is_typed():
    assert resources.files(bs).joinpath("py.typed").is_file()
