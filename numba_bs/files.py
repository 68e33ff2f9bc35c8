"""Read sparse matrices from files, and find the blocks of one that has none."""

import gzip
import os
import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy.io
import scipy.sparse

_BLOCK_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
_SPARSE = "scipy.sparse.csr_array(X) makes it sparse"


def read(
    path: str | Path, *, key: str | None = None, seed: int | None = None
) -> scipy.sparse.csr_array | scipy.sparse.bsr_array:
    r"""Read a sparse matrix.

    Parameters
    ----------
    path : str or Path
        What it holds is told by its suffix: ``.npz`` (:func:`scipy.sparse.save_npz`),
        ``.mtx`` (Matrix Market, also ``.mtx.gz``), ``.mat`` (MATLAB up to version 7),
        ``.smtx`` (the text form of the Deep Learning Matrix Collection: a layout
        without values). Capitals make no difference.
    key : str, optional
        Name of the variable in a ``.mat`` file; by default its largest sparse matrix.
    seed : int, optional
        An ``.smtx`` file gets normally distributed values from this seed instead of
        ones. Other files have values of their own, so that ``seed`` has no meaning
        there.

    Returns
    -------
    scipy.sparse.bsr_array or scipy.sparse.csr_array
        BSR if the file holds BSR (``.npz`` can), else CSR; float32 from ``.smtx``.

    Raises
    ------
    FileNotFoundError
        There is no such file, or it is a directory.
    PermissionError
        The file may not be read.
    ValueError
        The suffix is not one of the four, the file is not what its suffix says, or it
        holds no sparse matrix (named ``key``).
    NotImplementedError
        A ``.mat`` file of version 7.3.

    See Also
    --------
    guess_blocksize : the block size that suits a CSR matrix

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "layer.smtx")
    ...     _ = path.write_text("2, 4, 3\n0 2 3\n0 1 3\n")
    ...     read(path).toarray()
    array([[1., 1., 0., 0.],
           [0., 0., 0., 1.]], dtype=float32)
    """
    return read_with_notes(path, key=key, seed=seed)[0]


def read_with_notes(
    path: str | Path, *, key: str | None = None, seed: int | None = None
) -> tuple[scipy.sparse.csr_array | scipy.sparse.bsr_array, list[str]]:
    """As :func:`read`; return as well what was decided in the user's place.

    Parameters
    ----------
    path, key, seed
        As of :func:`read`.

    Returns
    -------
    matrix : scipy.sparse.bsr_array or scipy.sparse.csr_array
    notes : list of str
        Which variable of several was taken; that values are made up.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        raise FileNotFoundError(
            f"read: path must be a file, got the directory {str(path)!r}"
        )
    if key is not None and suffix != ".mat":
        raise ValueError(
            "read: key names a variable of a .mat file, "
            f"got key {key!r} for {path.name}"
        )
    if seed is not None and suffix != ".smtx":
        raise ValueError(
            "read: seed makes the values of an .smtx file, which has none, "
            f"got seed {seed} for {path.name}"
        )
    if suffix == ".gz":
        suffix = "".join(path.suffixes[-2:]).lower()
    if suffix not in (".npz", ".mtx", ".mtx.gz", ".mat", ".smtx"):
        raise ValueError(
            "read: path must end in .npz, .mtx, .mtx.gz, .mat or .smtx, "
            f"got {str(path)!r}"
        )
    if not path.is_file():  # SciPy's own words for it are three
        raise FileNotFoundError(f"read: path must be a file, got {str(path)!r}")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"read: path must be readable, got {str(path)!r}")
    notes = []
    if suffix == ".smtx":
        found = _read_smtx(path, seed)
        notes.append(f"{path.name} holds no values: they are made up")
    elif suffix == ".mat":
        found = _largest(path, key, notes)
    else:
        found = _parse(path, _load_npz if suffix == ".npz" else _load_mtx)
    return _compressed(found, path), notes


def guess_blocksize(a) -> tuple[int, int]:
    """Return the block size at which a product with ``a`` reads the fewest bytes.

    Parameters
    ----------
    a : scipy.sparse matrix or array, shape (M, K)
        BSR keeps the block size that it has.

    Returns
    -------
    tuple of int
        ``(R, C)``; both divide the shape. (1, 1) where the nonzeros form no blocks.

    Notes
    -----
    ``a @ x`` with one vector reads, for each stored block, R * C values, eight bytes
    of lookup table and C elements of x: larger blocks save table and x, but also
    read the zeros that fill them up. This is the whole rule. (The estimate behind
    SciPy's ``tobsr()`` asks for blocks that are 70 % full, and so misses the 3x3
    blocks of elasticity, which are often just under.) Square blocks of 1 to 8, 16, 32,
    64 and 128 rows are tried, as far as they divide the shape.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse
    >>> a = scipy.sparse.kron(scipy.sparse.eye_array(5), np.ones((3, 3)))
    >>> guess_blocksize(a)
    (3, 3)
    """
    if a.format == "bsr":
        return tuple(map(int, a.blocksize))
    a = scipy.sparse.coo_array(a)
    M, K = a.shape
    rows, cols = (index.astype(np.int64) for index in a.coords)
    itemsize = a.dtype.itemsize

    def cost(side):
        blocks = np.unique(rows // side * (K // side) + cols // side).size
        return blocks * (side * side * itemsize + 8 + side * itemsize)

    side = min((s for s in _BLOCK_SIDES if M % s == 0 and K % s == 0), key=cost)
    return side, side


def _load_npz(path):
    if not zipfile.is_zipfile(path):  # NumPy would advise to unpickle it
        raise ValueError("no zip archive")
    return scipy.sparse.load_npz(path)


def _load_mtx(path):
    if path.suffix.lower() != ".gz":
        return scipy.io.mmread(path, spmatrix=False)
    # By way of a file: SciPy aborts the process where a stream is no Matrix Market.
    with TemporaryDirectory() as folder, gzip.open(path) as packed:
        plain = Path(folder, "plain.mtx")
        with plain.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return scipy.io.mmread(plain, spmatrix=False)


def _load_mat(path):
    return scipy.io.loadmat(path, spmatrix=False)


def _parse(path, load):
    """Call a reader of SciPy's; what it says of a broken file becomes a ValueError."""
    try:
        return load(path)
    except NotImplementedError:  # MATLAB's second file format
        raise NotImplementedError(
            "read: a .mat file must be of version 7 or older, got version 7.3 (HDF5) "
            f"in {path.name}; save it with the option '-v7'"
        ) from None
    except Exception as error:
        raise ValueError(
            f"read: {path.name} must be a {path.suffix} file with a sparse matrix, "
            f"got {type(error).__name__}: {_without_advice(error)}"
        ) from error


def _without_advice(error):
    """Return what an error says; NumPy's advice to unpickle would not help."""
    return "pickled objects" if "allow_pickle" in str(error) else error


def _compressed(a, path):
    """Return BSR as BSR and everything else sparse as CSR, both as sparse arrays."""
    if not scipy.sparse.issparse(a):
        raise ValueError(
            f"read: {path.name} must hold a sparse matrix, got a dense one of shape "
            f"{np.shape(a)}; {_SPARSE}"
        )
    if a.format == "bsr":
        return scipy.sparse.bsr_array(a)
    return scipy.sparse.csr_array(a)


def _largest(path, key, notes):
    """Return the variable ``key`` of a .mat file, or its largest sparse matrix."""
    variables = _parse(path, _load_mat)
    sparse = {name: v for name, v in variables.items() if scipy.sparse.issparse(v)}
    if key is None and sparse:
        key = max(sparse, key=lambda name: sparse[name].nnz)
        others = ", ".join(sorted(sparse.keys() - {key}))
        if others:
            notes.append(
                f"{key} of {path.name} was taken, its largest sparse matrix; key "
                f"names another: {others}"
            )
    if key not in sparse:
        wanted = "a sparse matrix" if key is None else f"a sparse matrix named {key!r}"
        other = sorted(k for k in variables.keys() - sparse if k[:2] != "__")
        raise ValueError(
            f"read: {path.name} must hold {wanted}, got sparse: {sorted(sparse)}, "
            f"other: {other}" + (f"; {_SPARSE}" if other and not sparse else "")
        )
    return sparse[key]


def _read_smtx(path, seed):
    """Read sizes, row pointers and column indices, one line each."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"read: {path.name} must hold integers alone, got bytes that are no text"
        ) from None
    lines = [*text.splitlines(), "", "", ""][:3]
    try:
        sizes, indptr, indices = (
            np.array(line.replace(",", " ").split(), dtype=np.int64) for line in lines
        )
    except ValueError as error:
        raise ValueError(
            f"read: {path.name} must hold integers alone, got {error}"
        ) from None

    def require(rule, holds, found):
        if not holds:
            raise ValueError(f"read: {rule} in {path.name}, got {found}")

    holds = len(sizes) == 3 and (sizes >= 0).all()
    require("line 1 must be rows, columns, nonzeros", holds, repr(lines[0]))
    rows, cols, nonzeros = map(int, sizes)
    holds = len(indptr) == rows + 1
    require(f"line 2 must hold {rows + 1} row pointers", holds, len(indptr))
    holds = indptr[0] == 0 and indptr[-1] == nonzeros and (np.diff(indptr) >= 0).all()
    require(f"row pointers must grow from 0 to {nonzeros}", holds, indptr)
    holds = len(indices) == nonzeros
    require(f"line 3 must hold {nonzeros} column indices", holds, len(indices))
    holds = ((indices >= 0) & (indices < cols)).all()
    require(f"column indices must be in [0, {cols})", holds, indices)

    values = np.ones(nonzeros, np.float32)
    if seed is not None:
        values = np.random.default_rng(seed).standard_normal(nonzeros, np.float32)
    return scipy.sparse.csr_array((values, indices, indptr), shape=(rows, cols))
