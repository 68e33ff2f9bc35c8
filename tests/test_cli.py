"""The command line, and what it finds out about the machine."""

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import numba_bs as bs
from numba_bs import cli, demo, environment
from numba_bs.environment import Driver, Gpu

ROOT = Path(__file__).parent.parent
NO_GPU = Driver(False, (0, 0), 0, ())
H200 = Driver(True, (13, 0), 0, (Gpu("NVIDIA H200", (9, 0), 140 * 2**30),))
V100 = H200._replace(gpus=(Gpu("Tesla V100", (7, 0), 16 * 2**30),))
OLDER_DRIVER = H200._replace(cuda=(12, 4))


@pytest.fixture(autouse=True)
def ordinary_machine(monkeypatch):
    """Take away what the tests' own simulator would add to every finding."""
    with contextlib.suppress(ImportError):
        importlib.import_module("numba.cuda")  # once, with the simulator
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    monkeypatch.setattr(demo, "_BATCH_SECONDS", 1e-5)


def run(*arguments, before=""):
    """Run ``numba-bs`` in a process of its own, after a line of Python."""
    environ = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    program = f"{before}\nimport sys\nfrom numba_bs.cli import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environ,
        timeout=120,
    )


def words(text):
    return " ".join(text.split())


# ------------------------------------------------------------------------ findings


@pytest.fixture
def installed(monkeypatch):
    """Return the versions that seem to be installed, to be changed."""
    versions = {
        "ml_dtypes": "0.6.0",
        "numpy": "2.4.6",
        "rich": "15.0.0",
        "scipy": "1.17.1",
        "numba": "0.68.1",
        "numba-cuda": "0.30.4",
    }
    monkeypatch.setattr(environment, "version", versions.get)
    monkeypatch.setattr(environment.sys, "platform", "linux")
    for later in ("_toolkit", "_importing", "_trial"):
        monkeypatch.setattr(environment, later, lambda *machine: [])
    return versions


def test_nothing_is_found_where_all_is_well(installed):
    assert environment.findings(H200) == []


def test_numpy_too_new(installed):
    installed["numpy"] = "2.5.0"
    (found,) = environment.findings(H200)
    assert found.problem
    assert "numpy 2.5.0 is not >=2,<2.5" in found.what
    assert "row_stack" in found.what
    assert found.fix == "python -m pip install 'numpy>=2,<2.5'"


@pytest.mark.parametrize("version", [None, "0.29.0", "0.31.0"])
@pytest.mark.parametrize(
    ("machine", "extra"),
    [(NO_GPU, ""), (H200, "[cu13]"), (OLDER_DRIVER, "[cu12]"), (V100, "[cu12]")],
    ids=["no GPU", "H200", "older driver", "V100"],
)
def test_numba_cuda_missing_or_unfit(installed, version, machine, extra):
    installed["numba-cuda"] = version
    found = environment.findings(machine)[0]
    assert found.problem
    assert found.what.startswith("numba-cuda ")
    assert found.fix == f"python -m pip install 'numba-cuda{extra}>=0.30.4,<0.31'"


def test_macos_is_a_note(installed, monkeypatch):
    installed["numba"] = installed["numba-cuda"] = None
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    (found,) = environment.findings(NO_GPU)
    assert not found.problem
    assert "macOS" in found.what


def test_no_driver_is_a_note(installed):
    (found,) = environment.findings(NO_GPU)
    assert not found.problem
    assert "no NVIDIA driver was found" in found.what
    assert "numba-cuda[cu13]" in found.fix


@pytest.mark.parametrize("hidden", [False, True])
def test_no_gpu_is_a_note(installed, monkeypatch, hidden):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = environment.findings(Driver(True, (13, 0), 100, ()))
    assert not found.problem
    assert ("unset CUDA_VISIBLE_DEVICES" in found.fix) == hidden


def test_driver_that_does_not_start(installed):
    (found,) = environment.findings(Driver(True, (13, 0), 803, ()))
    assert found.problem
    assert "cuInit returned 803" in found.what


def test_driver_too_old(installed):
    (found,) = environment.findings(H200._replace(cuda=(11, 4)))
    assert found.problem
    assert "serves CUDA 11.4" in found.what
    assert "525 or newer" in found.fix


@pytest.mark.parametrize("machine", [NO_GPU, H200])
def test_simulator(installed, monkeypatch, machine):
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    (found,) = environment.findings(machine)
    assert found.problem == bool(machine.gpus)
    assert found.fix == "unset NUMBA_ENABLE_CUDASIM"


def test_several_problems_are_all_named(installed):
    installed["numpy"], installed["numba"] = "2.5.0", None
    found = environment.findings(NO_GPU)
    assert [f.problem for f in found] == [True, True, False]


# numba-cuda's own libraries, as they are installed here


@pytest.fixture
def pathfinder():
    """Return the module that looks for NVIDIA's libraries, if CUDA 13's are there."""
    if environment.version("nvidia-nvjitlink") is None:
        pytest.skip("the extra cu13 is not installed")
    return pytest.importorskip("cuda.pathfinder")


@pytest.mark.parametrize("missing", [("nvvm",), ("nvJitLink",), ("nvvm", "nvJitLink")])
def test_toolkit_is_missing(pathfinder, monkeypatch, missing):
    find = pathfinder.load_nvidia_dynamic_lib

    def without(name):
        if name in missing:
            raise pathfinder.DynamicLibNotFoundError(name)
        return find(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", without)
    found = list(environment._toolkit(H200))
    assert len(found) == len(missing)
    for each, library in zip(found, missing, strict=True):
        assert f"{library}, is missing" in each.what
        assert "numba-cuda[cu13]" in each.fix


@pytest.mark.parametrize("machine", [OLDER_DRIVER, V100], ids=["driver", "GPU"])
def test_toolkit_is_too_new(pathfinder, machine):
    assert list(environment._toolkit(H200)) == []
    (found,) = environment._toolkit(machine)
    assert "CUDA 13 compiler" in found.what
    assert "numba-cuda[cu12]" in found.fix


@pytest.mark.parametrize("module", ["numba", "numba.cuda"])
def test_info_without_numba(module):
    done = run("info", before=f"import sys; sys.modules[{module!r}] = None")
    assert done.stderr == ""
    assert done.returncode == 1
    assert "numba or numba-cuda cannot be imported" in done.stdout
    assert "python -m pip install --force-reinstall 'numba>=" in done.stdout


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("2.4.6", ">=2,<2.5", True),
        ("2", ">=2,<2.5", True),
        ("2.5.0rc1", ">=2,<2.5", False),
        ("1.26.4", ">=2,<2.5", False),
        ("0.30.10", ">=0.30.4,<0.31", True),
        ("13", ">=13", True),
    ],
)
def test_satisfies(version, bounds, expected):
    assert environment.satisfies(version, bounds) == expected


# -------------------------------------------------------------------- info and demo


def test_info():
    done = run("info")
    assert done.stderr == ""
    for word in ("numba_bs", bs.__version__, "numpy", np.__version__, "NVIDIA driver"):
        assert word in done.stdout
    usable = not environment.findings()
    assert ("Kernels run on the GPU" in done.stdout) == usable


@pytest.mark.parametrize("problem", [False, True])
def test_info_status(monkeypatch, capsys, problem):
    found = [environment.Finding("a thing", "a [cure]", problem)]
    monkeypatch.setattr(environment, "findings", lambda driver: found)
    assert cli.main(["info"]) == problem
    out = capsys.readouterr().out
    assert ("Problem: a thing" in out) == problem
    assert "-> a [cure]\n" in out


def test_demo_by_default(monkeypatch, capsys):
    small = [demo.Case("a small one", demo.gallery.elasticity(3, 3, 3), 4)]
    monkeypatch.setattr(demo, "default_cases", lambda on_device: small)
    assert cli.main(["demo", "--host"]) == 0
    out = words(capsys.readouterr().out)
    assert "a small one: A is 54 x 54 float64" in out
    assert "Ran on the CPU, as --host asks: the reference" in out
    assert "Note: " not in out


def test_demo_says_why_no_gpu_ran(monkeypatch, capsys):
    small = [demo.Case("a small one", demo.gallery.elasticity(3, 3, 3), 4)]
    monkeypatch.setattr(demo, "default_cases", lambda on_device: small)
    found = [environment.Finding("no driver", "python -m pip install something", False)]
    monkeypatch.setattr(environment, "findings", lambda: found)
    assert cli.main(["demo"]) == 0
    out = words(capsys.readouterr().out)
    assert "Ran on the CPU: the reference" in out
    assert "Note: no driver -> python -m pip install something" in out


def test_demo_with_a_wrong_result(monkeypatch, capsys):
    small = [demo.Case("a small one", demo.gallery.elasticity(3, 3, 3), 4)]
    monkeypatch.setattr(demo, "default_cases", lambda on_device: small)
    monkeypatch.setattr(bs, "matmul", lambda a, x: 2 * bs.reference.matmul(a, x))
    assert cli.main(["demo", "--host"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "A result is wrong" in out


def test_demo_of_a_file(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    a = scipy.sparse.kron(scipy.sparse.eye_array(6), np.ones((2, 2)))
    scipy.sparse.save_npz(tmp_path / "own.npz", scipy.sparse.csr_array(a))
    picture = tmp_path / "own.png"
    arguments = ["demo", str(tmp_path / "own.npz"), "--plot", str(picture), "--host"]
    arguments += ["--blocksize", "4x2", "--columns", "3", "--dtype", "complex64"]
    assert cli.main(arguments) == 0
    out = words(capsys.readouterr().out)
    assert "own.npz: A is 12 x 12 complex64, 6 blocks of 4x2" in out
    assert "X has 3 columns" in out
    assert f"Layout drawn: {picture}" in out
    assert picture.stat().st_size > 1000


def test_demo_names_the_variable_of_a_mat_file(tmp_path, capsys):
    scipy.io.savemat(tmp_path / "a.mat", {"B": scipy.sparse.eye_array(4).tocsc()})
    assert cli.main(["demo", str(tmp_path / "a.mat"), "--key", "C"]) == 2
    assert "named 'C', got sparse: ['B']" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["absent.mtx", "unknown.txt"])
def test_demo_of_an_unusable_file(tmp_path, capsys, name):
    assert cli.main(["demo", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("numba-bs: read: path must ")
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "required: info | demo | bench"),
        ("demo --blocksize 3", "--blocksize is about FILE, which is missing"),
        ("demo --key A", "--key is about FILE, which is missing"),
        ("demo a.mtx --blocksize 3x3x3", "must be two positive whole numbers like 3x3"),
        ("demo a.mtx --blocksize 0x3", "must be two positive whole numbers like 3x3"),
        ("demo a.mtx --columns 0", "must be a positive whole number"),
        ("demo a.mtx --dtype int8", "invalid choice: 'int8'"),
    ],
)
def test_wrong_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments.split())
    assert stopped.value.code == 2
    assert message in words(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "expected"), [("3x3", (3, 3)), ("8X16", (8, 16)), ("5", (5, 5))]
)
def test_blocksize_argument(text, expected):
    assert cli._blocksize(text) == expected


def test_help_has_no_markup(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert ":func:" not in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"{bs.__version__}\n"


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "numba_bs", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, f"{bs.__version__}\n")


# ------------------------------------------------------------------------- bench


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Lay out a source checkout with two benchmarks, one of which fails."""
    folder = tmp_path / "checkout" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    show = "import sys; open('ran', 'w').write(' '.join(sys.argv[1:]))"
    (folder / "bench_fine.py").write_text(show)
    (folder / "bench_broken.py").write_text("raise SystemExit(3)")
    package = tmp_path / "checkout" / "numba_bs" / "__init__.py"
    monkeypatch.setattr(bs, "__file__", str(package))
    return tmp_path / "checkout"


def test_bench_runs_the_one_that_is_named(checkout, capsys):
    assert cli.main(["bench", "fine", "--quick", "--seconds", "3"]) == 0
    assert (checkout / "ran").read_text() == "--quick --seconds 3"
    command = "python -m benchmarks.bench_fine --quick --seconds 3\n"
    assert capsys.readouterr().out == f"cd {checkout} && {command}"


def test_bench_runs_all_and_says_what_failed(checkout, capfd):
    assert cli.main(["bench"]) == 1
    assert (checkout / "ran").exists()
    assert "failed: broken" in capfd.readouterr().err


def test_bench_with_an_unknown_name(checkout, capsys):
    assert cli.main(["bench", "softmax"]) == 2
    assert "must be one of broken, fine, got softmax" in capsys.readouterr().err


def test_bench_outside_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bs, "__file__", str(tmp_path / "site" / "numba_bs" / "x.py"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench"]) == 2
    assert "part of the source checkout" in capsys.readouterr().err
