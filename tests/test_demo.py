"""The demo on small matrices: right where it is right, and it says so where not."""

import io
import sys
import threading

import numpy as np
import pytest
import scipy.sparse
from rich.console import Console

import numba_bs as bs
from numba_bs import demo, environment, gallery


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Make timing short; nobody reads the numbers here."""
    monkeypatch.setattr(demo, "_BATCH_SECONDS", 1e-5)


@pytest.fixture
def console():
    """Return a console that keeps what is printed."""
    return Console(file=io.StringIO(), width=100, highlight=False)


def printed(console):
    return console.file.getvalue()


def words(console):
    """Return what was printed as if the line were endless."""
    return " ".join(printed(console).split())


def complex_matrix():
    a = gallery.pruned_layer(24, 36, blocksize=(4, 6), density=0.3).astype(np.complex64)
    a.data *= np.exp(1j * np.arange(a.data.size)).reshape(a.data.shape)
    return a


CASES = {
    "elasticity": demo.Case("box", gallery.elasticity(3, 3, 4), 5),
    "layer": demo.Case("layer", gallery.pruned_layer(96, 64, blocksize=(8, 16)), 9),
    "complex": demo.Case("wave", complex_matrix(), 3),
    "empty": demo.Case(
        "pruned to nothing", scipy.sparse.bsr_array((6, 4), blocksize=(3, 2)), 2
    ),
    "one column": demo.Case("vector", gallery.elasticity(2, 2, 2), 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_host_is_right(case, console):
    assert demo.run([case], on_device=False, console=console)
    text = words(console)
    assert "GPU" not in text
    assert "at most 1 is right" in text
    for word in (case.name, "forward", "dX", "dA", "vs SciPy", "NumPy, all threads"):
        assert word in text
    assert text.count(" ok") == 3
    R, C = case.matrix.blocksize
    assert f"blocks of {R}x{C}" in text


@pytest.mark.parametrize("name", ["layer", "complex", "empty", "one column"])
def test_kernels_are_right(name, console, monkeypatch):
    """In the simulator where there is no GPU."""
    pytest.importorskip("numba.cuda")
    case = CASES[name]
    small = demo.Case(case.name, case.matrix, min(case.columns, 2))
    # Of the dense product some rows are enough, and torch would hide our own kernels.
    monkeypatch.setattr(demo, "_DENSE_BYTES", 256)
    monkeypatch.setattr(demo, "_optional", lambda name: None)
    monkeypatch.setattr(demo, "_BATCHES", 1)
    assert demo.run([small], on_device=True, console=console)
    text = words(console)
    assert "the same kernels with all blocks stored" in text
    assert "Kernel: " in text or case.name == "pruned to nothing"


@pytest.mark.parametrize("which", ["forward", "dX", "dA"])
@pytest.mark.parametrize("fault", [1.00001, np.nan])
def test_a_wrong_result_is_called_wrong(which, fault, console, monkeypatch):
    def matmul(*args, **options):
        return bs.reference.matmul(*args) * (fault if which == "forward" else 1)

    def matmul_backward(*args, **options):
        grad_a, grad_x = bs.reference.matmul_backward(*args)
        if which == "dX":
            grad_x = grad_x * fault
        if which == "dA":
            grad_a.data[-1, -1, -1] *= fault
        return grad_a, grad_x

    monkeypatch.setattr(demo.bs, "matmul", matmul)
    monkeypatch.setattr(demo.bs, "matmul_backward", matmul_backward)
    case = CASES["elasticity"]
    assert not demo.run([case], on_device=False, console=console)
    wrong = [
        line.split()[0] for line in printed(console).splitlines() if "WRONG" in line
    ]
    assert wrong == [which]


def test_a_large_dense_matrix_is_timed_in_part(console, monkeypatch):
    monkeypatch.setattr(demo, "_DENSE_BYTES", 8 * 72 * 9)
    assert demo.run([CASES["elasticity"]], on_device=False, console=console)
    assert "timed on 9 rows and scaled" in words(console)


def test_default_cases():
    box, layer = demo.default_cases(on_device=False)
    assert box.matrix.blocksize == (3, 3)
    assert box.matrix.dtype == np.float64
    assert layer.matrix.blocksize == (32, 32)


@pytest.mark.parametrize("late", [False, True], ids=["quick", "long"])
def test_progress_shows_up_when_it_takes_long(late, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(demo, "_QUIET_SECONDS", 0 if late else 60)
    with demo._progress(console, "a long product") as advance:
        for timer in threading.enumerate():
            if late and isinstance(timer, threading.Timer):
                timer.join()
        advance()
    assert ("a long product" in printed(console)) == late


# --------------------------------------------------------------------- own matrices


@pytest.mark.parametrize(
    ("stored", "dtype", "expected"),
    [
        (np.float32, None, np.float32),
        (np.int64, None, np.float64),
        (np.complex128, None, np.complex128),
        (np.float64, "complex64", np.complex64),
        (np.complex128, "complex64", np.complex64),
    ],
)
def test_own_case_dtype(tmp_path, stored, dtype, expected):
    a = scipy.sparse.kron(scipy.sparse.eye_array(4), np.ones((2, 2)))
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(a, dtype=stored))
    case = demo.own_case(tmp_path / "a.npz", dtype=dtype)
    assert case.name == "a.npz"
    assert case.matrix.blocksize == (2, 2)
    assert case.matrix.dtype == expected
    assert np.array_equal(case.matrix.toarray(), a.toarray())


def test_own_case_sums_duplicates(tmp_path):
    data = np.arange(1.0, 17).reshape(4, 2, 2)
    a = scipy.sparse.bsr_array((data, [1, 0, 1, 0], [0, 3, 4]), shape=(4, 4))
    scipy.sparse.save_npz(tmp_path / "a.npz", a)
    case = demo.own_case(tmp_path / "a.npz")
    assert case.matrix.data.shape == (3, 2, 2)
    assert np.array_equal(case.matrix.toarray(), a.toarray())


def test_own_case_errors(tmp_path):
    a = scipy.sparse.csr_array(np.eye(6, dtype=np.complex64))
    scipy.sparse.save_npz(tmp_path / "a.npz", a)
    with pytest.raises(ValueError, match="shape must be a multiple of blocksize"):
        demo.own_case(tmp_path / "a.npz", blocksize=(4, 4))
    with pytest.raises(ValueError, match="dtype must be complex for a complex matrix"):
        demo.own_case(tmp_path / "a.npz", dtype="float32")


@pytest.mark.parametrize(("cols", "tip"), [(16, "8x8"), (4, "8x4"), (1, "8x1")])
def test_own_case_without_values_and_blocks(tmp_path, cols, tip):
    path = tmp_path / "a.SMTX"
    path.write_text(f"8, {cols}, 1\n0 1 1 1 1 1 1 1 1\n0\n")
    (note,) = demo.own_case(path).notes
    assert "values: they are made up" in note
    assert note.endswith(f"try --blocksize {tip}")
    (note,) = demo.own_case(path, blocksize=(8, 1)).notes
    assert "try" not in note


@pytest.mark.parametrize(
    ("name", "blocksize"),
    [
        ("pyamg_bar.mat", None),
        ("dlmc_l0_98_dec0_q.smtx", (8, 8)),
        ("dlmc_rn50_mp95_initial_conv.smtx", (8, 7)),
        ("dlmc_vd98_dec0_k_all_zero.smtx", None),
    ],
)
def test_real_matrix(cases, console, name, blocksize):
    case = demo.own_case(cases / "files" / name, blocksize=blocksize, columns=7)
    assert demo.run([case], on_device=False, console=console)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["pyamg_bar.mat", "dlmc_l0_98_dec0_q.smtx"])
def test_real_matrix_on_the_gpu(cases, console, name):
    case = demo.own_case(cases / "files" / name)
    assert demo.run([case], on_device=True, console=console)


@pytest.mark.gpu
def test_the_gpu_is_found_usable():
    assert environment.findings() == []


# --------------------------------------------------------------------------- plots


def test_plot(tmp_path):
    matplotlib = pytest.importorskip("matplotlib.image")
    demo.save_plot([CASES["elasticity"], CASES["layer"]], tmp_path / "layout.png")
    picture = matplotlib.imread(tmp_path / "layout.png")
    assert picture.shape[1] > picture.shape[0]  # side by side
    assert picture[..., :3].std() > 0.1  # something is drawn


@pytest.mark.parametrize("name", ["layout", "layout.xyz", "absent/layout.png"])
def test_plot_to_a_bad_path(tmp_path, name):
    pytest.importorskip("matplotlib")
    with pytest.raises((ValueError, OSError), match=r"^--plot: path must"):
        demo.save_plot([CASES["layer"]], tmp_path / name)


def test_plot_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"numba-bs\[plot\]"):
        demo.save_plot([CASES["layer"]], tmp_path / "layout.png")
