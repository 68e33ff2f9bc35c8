"""Read sparse matrices from files, and find the blocks of one that has none."""

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse

_BLOCK_SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)


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
        without values).
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
        There is no such file.
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
    path = Path(path)
    if key is not None and path.suffix != ".mat":
        raise ValueError(
            "read: key names a variable of a .mat file, "
            f"got key {key!r} for {path.name}"
        )
    if seed is not None and path.suffix != ".smtx":
        raise ValueError(
            "read: seed makes the values of an .smtx file, which has none, "
            f"got seed {seed} for {path.name}"
        )
    if path.suffix == ".npz":
        return _compressed(_parse(path, scipy.sparse.load_npz), path)
    if path.suffixes[-1:] == [".mtx"] or path.suffixes[-2:] == [".mtx", ".gz"]:
        return _compressed(_parse(path, scipy.io.mmread, spmatrix=False), path)
    if path.suffix == ".mat":
        return _compressed(_largest(path, key), path)
    if path.suffix == ".smtx":
        return _read_smtx(path, seed)
    raise ValueError(
        f"read: path must end in .npz, .mtx, .mtx.gz, .mat or .smtx, got {path.name!r}"
    )


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


def _parse(path, load, **options):
    """Call a reader of SciPy's; what it says of a broken file becomes a ValueError."""
    if not path.is_file():  # SciPy's own words for it are three
        raise FileNotFoundError(f"read: path must be a file, got {str(path)!r}")
    try:
        return load(path, **options)
    except PermissionError:
        raise  # it says enough
    except NotImplementedError:  # MATLAB's second file format
        raise NotImplementedError(
            "read: a .mat file must be of version 7 or older, got version 7.3 (HDF5) "
            f"in {path.name}; save it with the option '-v7'"
        ) from None
    except Exception as error:
        raise ValueError(
            f"read: {path.name} must be a {path.suffix} file with a sparse matrix, "
            f"got {type(error).__name__}: {error}"
        ) from error


def _compressed(a, path):
    """Return BSR as BSR and everything else sparse as CSR, both as sparse arrays."""
    if not scipy.sparse.issparse(a):
        raise ValueError(
            f"read: {path.name} must hold a sparse matrix, got a dense one of shape "
            f"{np.shape(a)}"
        )
    if a.format == "bsr":
        return scipy.sparse.bsr_array(a)
    return scipy.sparse.csr_array(a)


def _largest(path, key):
    """Return the variable ``key`` of a .mat file, or its largest sparse matrix."""
    variables = _parse(path, scipy.io.loadmat, spmatrix=False)
    sparse = {name: v for name, v in variables.items() if scipy.sparse.issparse(v)}
    if key is None and sparse:
        return max(sparse.values(), key=lambda a: a.nnz)
    if key not in sparse:
        wanted = "a sparse matrix" if key is None else f"a sparse matrix named {key!r}"
        raise ValueError(
            f"read: {path.name} must hold {wanted}, got sparse: {sorted(sparse)}, "
            f"other: {sorted(k for k in variables.keys() - sparse if k[:2] != '__')}"
        )
    return sparse[key]


def _read_smtx(path, seed):
    """Read sizes, row pointers and column indices, one line each."""
    lines = [*path.read_text().splitlines(), "", "", ""][:3]
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
