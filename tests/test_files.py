"""Reading matrices from files, and guessing their blocks."""

import gzip
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from numba_bs import files


@pytest.fixture
def matrix(rng):
    """Return a CSR array with three empty rows."""
    a = scipy.sparse.random_array((9, 6), density=0.4, rng=rng)
    a = a.toarray()
    a[2:5] = 0
    return scipy.sparse.csr_array(a)


# ------------------------------------------------------------------------ formats


def test_npz(tmp_path, matrix):
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    found = files.read(tmp_path / "a.npz")
    assert found.format == "csr"
    assert isinstance(found, scipy.sparse.sparray)
    assert np.array_equal(found.toarray(), matrix.toarray())


def test_npz_keeps_the_blocks_of_bsr(tmp_path, matrix):
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix.tobsr((3, 2)))
    found = files.read(str(tmp_path / "a.npz"))
    assert found.format == "bsr"
    assert files.guess_blocksize(found) == (3, 2)
    assert np.array_equal(found.toarray(), matrix.toarray())


@pytest.mark.parametrize("zipped", [False, True], ids=["mtx", "mtx.gz"])
def test_matrix_market(tmp_path, matrix, zipped):
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, matrix)
    if zipped:
        path = path.with_suffix(".mtx.gz")
        path.write_bytes(gzip.compress((tmp_path / "a.mtx").read_bytes()))
    assert np.allclose(files.read(path).toarray(), matrix.toarray(), rtol=1e-14)


def test_mat_takes_the_largest_sparse_matrix_or_the_named_one(tmp_path, matrix):
    small = scipy.sparse.eye_array(3, format="csc")
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"small": small, "A": matrix.tocsc(), "x": np.ones(99)})
    assert np.array_equal(files.read(path).toarray(), matrix.toarray())
    assert np.array_equal(files.read(path, key="small").toarray(), np.eye(3))


def test_mat_says_which_matrix_was_taken(tmp_path, matrix):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"B": scipy.sparse.eye_array(3), "A": matrix})
    found, (note,) = files.read_with_notes(path)
    assert found.shape == matrix.shape
    assert "A of a.mat was taken" in note
    assert note.endswith("another: B")
    assert files.read_with_notes(path, key="A")[1] == []


def test_suffix_in_capitals(tmp_path, matrix):
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    scipy.io.savemat(tmp_path / "a.mat", {"A": matrix})
    zipped = gzip.compress((tmp_path / "a.mtx").read_bytes())
    (tmp_path / "a.mtx.gz").write_bytes(zipped)
    for name in ("a.npz", "a.mtx", "a.mat", "a.mtx.gz"):
        path = (tmp_path / name).rename(tmp_path / name.upper())
        assert np.allclose(files.read(path).toarray(), matrix.toarray(), rtol=1e-14)


def test_smtx(tmp_path):
    path = tmp_path / "a.smtx"
    path.write_text("2, 4, 3\n0 2 3 \n0 1 3 \n")
    found = files.read(path)
    assert found.dtype == np.float32
    assert np.array_equal(found.toarray(), [[1, 1, 0, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("text", ["2, 4, 0\n0 0 0\n\n", "2, 4, 0\n0 0 0"])
def test_smtx_without_nonzeros(tmp_path, text):
    (tmp_path / "a.smtx").write_text(text)
    found = files.read(tmp_path / "a.smtx")
    assert found.shape == (2, 4)
    assert found.nnz == 0


def test_smtx_values_come_from_the_seed(tmp_path):
    path = tmp_path / "a.smtx"
    path.write_text("2, 4, 3\n0 2 3\n0 1 3\n")
    first, again, other = (files.read(path, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.data, again.data)
    assert not np.array_equal(first.data, other.data)
    assert np.array_equal(first.indices, [0, 1, 3])


# ------------------------------------------------------------------- real matrices

# Of cases/files/SOURCES.md: with x[j] = j mod 7 - 3, the sum and the norm of A @ x;
# the block size that is there to be found.
REAL = {
    "pyamg_bar.mat": (-1538.461538, 28654.35246, (3, 3)),
    "pyamg_helmholtz_2D.mat": (-36.68319895, 1345.716377, (3, 3)),
    "olm1000.mtx": (5070.74368, 2793865.478, (2, 2)),
    "amgx_matrix.mtx": (-383, 349.7384737, None),
    "dlmc_vd98_enc2_v.smtx": (17, 10.34408043, (1, 1)),
    "dlmc_vd98_dec0_k_all_zero.smtx": (0, 0, (1, 1)),
    "dlmc_rn50_mp95_initial_conv.smtx": (107, 45.94562003, (1, 1)),
    "dlmc_l0_98_dec0_q.smtx": (-203, 158.533908, (1, 1)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_matrix(cases, name):
    total, norm, blocksize = REAL[name]
    a = files.read(cases / "files" / name)
    y = a @ (np.arange(a.shape[1]) % 7 - 3)
    digits = {"rel": 1e-9, "abs": 0}  # as many as are quoted
    assert y.sum().real == pytest.approx(total, **digits)
    assert np.linalg.norm(y) == pytest.approx(norm, **digits)
    if blocksize is not None:
        assert files.guess_blocksize(a) == blocksize


# --------------------------------------------------------------------- block sizes


@pytest.mark.parametrize("side", [1, 2, 3, 5, 8, 16, 32])
def test_guess_finds_whole_blocks(rng, side):
    layout = scipy.sparse.random_array((12, 10), density=0.2, rng=rng)
    a = scipy.sparse.kron(layout, np.ones((side, side)))
    assert files.guess_blocksize(a) == (side, side)


def test_guess_accepts_blocks_that_are_not_full(rng):
    # 3x3 blocks with seven nonzeros of nine: SciPy's estimate gives up on some such.
    layout = scipy.sparse.random_array((40, 40), density=0.1, rng=rng)
    pattern = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    assert files.guess_blocksize(scipy.sparse.kron(layout, pattern)) == (3, 3)


def test_guess_divides_the_shape():
    # Full blocks of 4, but 6 rows: blocks of 4 or 5 do not fit.
    a = scipy.sparse.csr_array(np.ones((6, 8)))
    assert files.guess_blocksize(a) == (2, 2)


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (6, 0), (6, 6)])
def test_guess_without_nonzeros(shape):
    sides = files.guess_blocksize(scipy.sparse.csr_array(shape))
    assert sides == (1, 1)


# -------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", ".mtx"])
def test_unknown_suffix(tmp_path, name):
    with pytest.raises(ValueError, match=r"path must end in \.npz, \.mtx,"):
        files.read(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".mat", ".smtx"])
def test_missing_file(tmp_path, suffix):
    with pytest.raises(FileNotFoundError, match="read: path must be a file"):
        files.read(tmp_path / f"absent{suffix}")
    with pytest.raises(FileNotFoundError, match=re.escape(f"directory '{tmp_path}'")):
        files.read(tmp_path)


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".mat", ".smtx"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 99, b"just text\n" * 9],
    ids=["nothing", "no_text", "text"],
)
def test_broken_file(tmp_path, suffix, content):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"read: .*broken{suffix}") as caught:
        files.read(path)
    assert "pickle" not in str(caught.value)
    assert "codec" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 99, gzip.compress(b"text\n" * 9)],
    ids=["no_gzip", "gzip_of_text"],
)
def test_broken_zipped_file(tmp_path, content):
    (tmp_path / "a.mtx.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"read: a.mtx.gz must"):
        files.read(tmp_path / "a.mtx.gz")


def test_dense_matrix_market(tmp_path):
    scipy.io.mmwrite(tmp_path / "a.mtx", np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"sparse matrix, got a dense one .*\(2, 3\)"):
        files.read(tmp_path / "a.mtx")


def test_mat_without_a_sparse_matrix(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"x": np.ones(3)})
    with pytest.raises(
        ValueError, match=re.escape("got sparse: [], other: ['x']; scipy")
    ):
        files.read(tmp_path / "a.mat")


def test_mat_without_the_named_matrix(tmp_path, matrix):
    scipy.io.savemat(tmp_path / "a.mat", {"A": matrix})
    with pytest.raises(ValueError, match=r"named 'B', got sparse: \['A'\]"):
        files.read(tmp_path / "a.mat", key="B")


def test_mat_of_version_7_3(tmp_path):
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "a.mat").write_bytes(header.ljust(512, b"\0"))
    with pytest.raises(NotImplementedError, match=r"got version 7.3 \(HDF5\)"):
        files.read(tmp_path / "a.mat")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must be rows, columns, nonzeros in a.smtx, got ''"),
        ("2, 4\n0 0 0\n", "line 1 must be rows, columns, nonzeros"),
        ("-2, 4, 0\n0\n", "line 1 must be rows, columns, nonzeros"),
        ("2, 4, 1.5\n0 0 1\n0\n", "must hold integers alone"),
        ("2, 4, 3\n0 3\n0 1 3\n", "line 2 must hold 3 row pointers in a.smtx, got 2"),
        ("2, 4, 3\n0 2 2\n0 1 3\n", "row pointers must grow from 0 to 3"),
        ("2, 4, 3\n1 2 3\n0 1 3\n", "row pointers must grow from 0 to 3"),
        ("3, 4, 3\n0 2 1 3\n0 1 3\n", "row pointers must grow from 0 to 3"),
        ("2, 4, 3\n0 2 3\n0 1\n", "line 3 must hold 3 column indices in a.smtx, got 2"),
        ("2, 4, 3\n0 2 3\n0 1 4\n", re.escape("column indices must be in [0, 4)")),
        ("2, 4, 3\n0 2 3\n0 -1 3\n", re.escape("column indices must be in [0, 4)")),
    ],
)
def test_broken_smtx(tmp_path, text, message):
    (tmp_path / "a.smtx").write_text(text)
    with pytest.raises(ValueError, match=message):
        files.read(tmp_path / "a.smtx")


def test_arguments_that_mean_nothing(tmp_path, matrix):
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix)
    with pytest.raises(ValueError, match=r"key names a variable of a .mat file"):
        files.read(tmp_path / "a.npz", key="A")
    with pytest.raises(ValueError, match=r"seed makes the values of an .smtx file"):
        files.read(tmp_path / "a.npz", seed=1)
