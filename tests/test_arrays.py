"""Whose array is it: NumPy, ml_dtypes, torch, CuPy, Numba and other exporters."""

import ml_dtypes
import numpy as np
import pytest
from backends import EACH, Device, Exporter, device_copy, host_copy
from bounds import assert_within, widened
from patterns import FLOATS, INTEGERS, MASKS, dense, label, make, strided, values
from products import check_matmul, check_matmul_backward, check_sddmm

import numba_bs as bs
from numba_bs import arrays

bfloat16 = bs.dtypes.bfloat16
MASK = MASKS["empty_row_and_column"]
on_a_device = pytest.mark.parametrize("backend", EACH[1:])


def close(actual, exact, magnitude, terms, sums):
    """Require the bound of a host array of any library."""
    operand = arrays.describe("test", "actual", actual)
    assert_within(arrays.to_numpy(operand), exact, magnitude, terms, sums)


def check_product(actual, a, x):
    """Require that ``actual`` is the product of host arrays a and x."""
    left, right = dense(a), widened(x)
    moduli = np.abs(left) @ np.abs(right)
    sums = bs.dtypes.accumulator(np.result_type(a.dtype, x.dtype))
    close(actual, left @ right, moduli, x.shape[-2] + 2, sums)


# ---------------------------------------------------------------------------- NumPy


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
@pytest.mark.parametrize("kind", ["as_is", "transposed", "reversed", "every_second"])
def test_numpy_arrays_become_operands_without_a_copy(rng, dtype, kind):
    x = strided(values(rng, (4, 6), dtype), kind)
    operand = arrays.describe("op", "x", x)
    assert operand.pointer == x.ctypes.data
    assert operand[1:4] == (x.shape, x.strides, x.dtype)
    assert (operand.device, operand.library, operand.conj) == (None, "numpy", False)
    assert operand.owner is x
    view = operand.as_array()
    assert np.shares_memory(view, x)
    assert view.dtype == dtype
    np.testing.assert_array_equal(view, x)
    assert not operand.readonly
    assert operand.contiguous == x.flags.c_contiguous


def test_read_only_and_broadcast_arrays():
    operand = arrays.describe("op", "x", np.broadcast_to(np.arange(3.0), (4, 3)))
    assert operand.readonly
    assert operand.strides == (0, 8)
    assert not operand.as_array().flags.writeable


def test_views_of_operands(rng):
    x = values(rng, (2, 3, 4), np.complex64)
    operand = arrays.describe("op", "x", x)
    np.testing.assert_array_equal(operand.mT.as_array(), np.swapaxes(x, 1, 2))
    np.testing.assert_array_equal(operand.first_blocks(1).as_array(), x[:1])
    every_other = operand.view((2, 2), (96, 16), 8)
    np.testing.assert_array_equal(every_other.as_array(), x[:, 0, 1::2])
    assert operand.conjugate().conj
    assert not operand.conjugate().conjugate().conj
    np.testing.assert_array_equal(arrays.to_numpy(operand.conjugate()), x.conj())
    real = arrays.describe("op", "x", x.real)
    assert real.conjugate() is real
    half = arrays.describe("op", "x", np.ones(2, bfloat16)).as_words()
    assert half.dtype == np.uint16
    assert half.as_array().tolist() == [0x3F80] * 2


def test_lists_and_scalars_are_numpys():
    assert arrays.describe("op", "x", [[1, 2], [3, 4]]).shape == (2, 2)
    assert arrays.describe("op", "x", 2.5).shape == ()
    assert arrays.describe("op", "x", np.float32(2.5)).dtype == np.float32


def test_two_bytes_without_a_name_are_bfloat16():
    """As torch and ml_dtypes arrays say it through an array interface."""
    bits = np.array([0x3F80, 0x4000, 0xC060, 0x42C8], np.uint16)
    for x in (bits.view("V2"), bits.view(bfloat16)):
        operand = arrays.describe("op", "x", x)
        assert operand.dtype == bfloat16
        assert operand.as_array().tolist() == [1, 2, -3.5, 100]


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        ({"a": 1}, TypeError, r"op: x must be an array of .*, got builtins\.dict"),
        (None, TypeError, r"op: x must be an array of .*, got builtins\.NoneType"),
        (np.ones(2, ">f4"), TypeError, "op: x must have native byte order, got >f4"),
        (np.ma.ones(2), TypeError, r"got numpy\.ma\.MaskedArray"),
        (
            np.zeros(3, [("a", "f4"), ("b", "i1")])["a"],
            ValueError,
            "op: strides of x must be multiples of its item size 4, got .*; copy it",
        ),
    ],
    ids=["dict", "none", "byte_order", "masked", "field"],
)
def test_what_is_no_operand(x, error, match):
    with pytest.raises(error, match=match):
        arrays.describe("op", "x", x)


@pytest.mark.parametrize(
    "dtype", [np.longdouble, bool, "S2", ml_dtypes.float8_e4m3fn, "M8[s]"], ids=label
)
def test_dtypes_that_no_kernel_stores(dtype):
    a = bs.bsr_array(np.eye(2))
    with pytest.raises(TypeError, match=r"^matmul: b must have one of the dtypes"):
        bs.matmul(a, np.zeros((2, 1), dtype))


# ------------------------------------------------------------------ torch on the CPU


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def to_torch(x):
    """Return a tensor on the values of ``x``; bfloat16 too."""
    return arrays.from_numpy(x, "torch", None)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=label)
def test_torch_dtypes(torch, rng, dtype):
    x = values(rng, (3, 4), dtype)
    tensor = to_torch(x)
    operand = arrays.describe("op", "x", tensor)
    assert (operand.dtype, operand.library, operand.device) == (dtype, "torch", None)
    assert operand.pointer == tensor.data_ptr() == x.ctypes.data
    np.testing.assert_array_equal(operand.as_array(), x)
    again = arrays.empty((2,), operand.dtype, operand)
    assert again.dtype == tensor.dtype


@pytest.mark.parametrize("kind", ["transposed", "reversed", "read_only"])
@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=label)
def test_to_torch_from_any_strides(torch, rng, dtype, kind):
    x = strided(values(rng, (3, 4), dtype), kind)
    operand = arrays.describe("op", "x", to_torch(x))
    np.testing.assert_array_equal(operand.as_array(), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_torch_products(torch, rng, dtype):
    a, x = make(rng, MASK, (2, 3), dtype), values(rng, (12, 4), dtype)
    b, tensor = a._view(to_torch(a.data)), to_torch(x)
    y = b @ tensor
    assert isinstance(y, torch.Tensor)
    check_product(y, a, x)
    g = values(rng, (6, 4), dtype)
    grad_a, grad_x = bs.matmul_backward(to_torch(g), b, tensor)
    assert isinstance(grad_a.data, torch.Tensor)
    assert grad_x.dtype == grad_a.data.dtype == tensor.dtype
    ours = bs.matmul_backward(g, a, x)
    assert arrays.to_numpy(grad_a._operand()).tobytes() == ours[0].data.tobytes()
    sampled = bs.sddmm(to_torch(g), tensor.mT, a.layout)
    assert isinstance(sampled.data, torch.Tensor)
    theirs = bs.sddmm_backward(sampled, to_torch(g), tensor.mT)
    assert all(isinstance(grad, torch.Tensor) for grad in theirs)


def test_torch_from_the_left(torch, rng):
    a, x = make(rng, MASK, (2, 3)), values(rng, (4, 6), np.float64)
    exact = bs.matmul(x, a)
    for y in (to_torch(x) @ a, torch.matmul(to_torch(x), a), bs.matmul(to_torch(x), a)):
        assert isinstance(y, torch.Tensor)
        np.testing.assert_array_equal(y.numpy(), exact)
    assert isinstance(
        (a @ to_torch(x).T[:, :1].expand(-1, 3).repeat(2, 1)), torch.Tensor
    )


def test_the_result_belongs_to_the_library_of_the_dense_operand(torch, rng):
    a, x = make(rng, MASK, (2, 3)), values(rng, (12, 4), np.float64)
    b = a._view(to_torch(a.data))
    assert isinstance(a @ to_torch(x), torch.Tensor)
    assert isinstance(b @ x, np.ndarray)
    grad_b, grad_x = bs.matmul_backward(b @ x, b, x)
    assert isinstance(grad_b.data, torch.Tensor)  # each like its input
    assert isinstance(grad_x, np.ndarray)


@pytest.mark.parametrize(
    "turn",
    [
        lambda t: t.T.contiguous().T,
        lambda t: t[:, ::2],
        lambda t: t[:, :1].expand(-1, 5),
        lambda t: t.as_strided((12, 2), (1, 3)),
        lambda t: t[:, 1:3],
    ],
    ids=["transposed", "every_second", "expanded", "overlapping", "sliced"],
)
def test_torch_strides(torch, rng, turn):
    a = make(rng, MASK, (2, 3))
    x = turn(to_torch(values(rng, (12, 4), np.float64)))
    check_product(a @ x, a, x.numpy())


def test_torch_out(torch, rng):
    a, x = make(rng, MASK, (2, 3)), values(rng, (12, 4), np.float64)
    out = torch.full((4, 6), float("nan"), dtype=torch.float64).T
    assert bs.matmul(a, to_torch(x), out=out) is out
    check_product(out, a, x)
    with pytest.raises(ValueError, match="elements of out must not share memory"):
        bs.matmul(a, x, out=torch.zeros(6, 1, dtype=torch.float64).expand(6, 4))
    with pytest.raises(ValueError, match=r"lazy conjugate; call \.resolve_conj\(\)"):
        bs.matmul(a, x, out=torch.zeros(6, 4, dtype=torch.complex128).conj())


def test_torch_lazy_conjugates(torch, rng):
    a = make(rng, MASK, (2, 3), np.complex64)
    x = values(rng, (12, 4), np.complex64)
    lazy = to_torch(x).conj()
    assert lazy.is_conj()
    check_product(a @ lazy, a, x.conj())
    np.testing.assert_array_equal((lazy.T @ a.T).numpy(), (x.conj().T @ a.T))
    b = a.with_data(to_torch(a.data).conj())
    conjugate = a.with_data(a.data.conj())
    check_product(b @ to_torch(x), conjugate, x)
    np.testing.assert_array_equal(b.T.data.numpy(), conjugate.T.data)
    np.testing.assert_array_equal(b.to_host().data, conjugate.data)
    np.testing.assert_array_equal(b.to_torch().values().numpy(), conjugate.data)
    g = values(rng, (6, 4), np.complex64)
    for ours, theirs in zip(
        bs.matmul_backward(g, conjugate, x.conj()),
        bs.matmul_backward(to_torch(g), b, lazy),
        strict=True,
    ):
        if isinstance(ours, bs.bsr_array):
            ours, theirs = ours.data, theirs.data
        np.testing.assert_array_equal(theirs.resolve_conj().numpy(), ours)


def test_torch_negative_bit(torch, rng):
    a, x = make(rng, MASK, (2, 3)), values(rng, (12, 4), np.complex128)
    imaginary = to_torch(x).conj().imag
    assert imaginary.is_neg()
    check_product(a @ imaginary, a, -x.imag)


def test_a_tensor_that_requires_grad(torch, rng):
    a = make(rng, MASK, (2, 3))
    x = torch.ones(12, 4, dtype=torch.float64, requires_grad=True)
    match = r"^matmul: b must not require grad, .* pass b\.detach\(\)"
    for call in (lambda: a @ x, lambda: bs.matmul(a, x), lambda: bs.matmul(a, x * 2)):
        with pytest.raises(TypeError, match=match):
            call()
    with pytest.raises(TypeError, match=r"^matmul: a must not require grad"):
        x[:6].T @ a
    with pytest.raises(TypeError, match=r"^bsr_array: data must not require grad"):
        a.with_data(a.data) and bs.bsr_array(
            (torch.ones(4, 2, 3, requires_grad=True), a.layout)
        )
    with pytest.raises(TypeError, match=r"^sddmm: y must not require grad"):
        bs.sddmm(a @ np.ones((12, 4)), x.T, a.layout)
    out = torch.zeros(6, 4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match=r"^matmul: out must not require grad"):
        bs.matmul(a, x.detach(), out=out)
    assert not out.any()
    check_product(a @ x.detach(), a, x.detach().numpy())
    with torch.no_grad():
        check_product(a @ x, a, x.numpy())


def test_values_that_come_to_require_grad_later(torch, rng):
    a = make(rng, MASK, (2, 3))
    b = a._view(to_torch(a.data))
    b @ np.ones((12, 1))
    b.data.requires_grad_()
    with pytest.raises(TypeError, match="must not require grad"):
        b @ np.ones((12, 1))


def test_values_that_move_in_memory(torch, rng):
    """An optimiser may give a tensor other memory: ``parameter.data = ...``."""
    a = make(rng, MASK, (2, 3))
    b = a._view(to_torch(a.data))
    x = values(rng, (12, 4), np.float64)
    check_product(b @ x, a, x)
    other = a.with_data(values(rng, (4, 2, 3), np.float64))
    b.data.data = to_torch(other.data)
    check_product(b @ x, other, x)


def test_tensors_that_are_no_operands(torch):
    a = bs.bsr_array(np.eye(2))
    for x, match in (
        (torch.eye(2).to_sparse(), "b must be a strided tensor, got layout torch.spar"),
        (torch.empty(2, 2, device="meta"), "b must be on cpu or cuda, got meta"),
        (torch.ones(2, 2, dtype=torch.bool), "got bool; cast booleans"),
        (torch.ones(2, 2).to(torch.float8_e4m3fn), "must have a dtype NumPy knows"),
    ):
        with pytest.raises(TypeError, match=f"^matmul: .*{match}"):
            bs.matmul(a, x)


def test_torch_arithmetic(torch, rng):
    a = make(rng, MASK, (2, 3), bfloat16)
    b = a._view(to_torch(a.data))
    for got, exact in (
        (b + b, a + a),
        (b * b, a * a),
        (2 * b, 2 * a),
        (b * torch.tensor(2.0), 2 * a),
        (torch.tensor(2.0) * b, 2 * a),
        (-b, -a),
        (b.astype(np.float32), a.astype(np.float32)),
        (b.copy(), a),
    ):
        assert isinstance(got.data, torch.Tensor)
        np.testing.assert_array_equal(got.to_host().data, exact.data)


# ---------------------------------------------------------------- device arrays here


@on_a_device
@pytest.mark.parametrize("kind", ["as_is", "transposed", "reversed", "every_second"])
@pytest.mark.parametrize("dtype", [bfloat16, np.complex128, np.uint8], ids=label)
def test_numba_arrays(backend, rng, dtype, kind):
    x = strided(values(rng, (4, 6), dtype), kind)
    array = backend.place(x)
    operand = arrays.describe("op", "x", array)
    assert (operand.device, operand.library) == (0, "numba")
    assert operand[1:4] == (x.shape, x.strides, x.dtype)
    np.testing.assert_array_equal(host_copy(array), x)
    again = arrays.empty((2, 3), operand.dtype, operand)
    operand = arrays.describe("op", "x", again)
    assert (operand.device, operand.library, operand.shape) == (0, "numba", (2, 3))


@on_a_device
def test_round_trip_of_every_dtype(backend, rng):
    for dtype in (*FLOATS, *INTEGERS):
        x = values(rng, (3, 2), dtype)
        there = arrays.from_numpy(x, "numba", 0)
        np.testing.assert_array_equal(host_copy(there), x)
        empty = arrays.from_numpy(x[:0], "numba", 0)
        assert host_copy(empty).shape == (0, 2)


def test_other_objects_of_numba_are_no_arrays():
    pytest.importorskip("numba")
    from numba.typed import List

    with pytest.raises(
        TypeError, match=r"^matmul: b must be an array of NumPy, .*List"
    ):
        bs.matmul(bs.bsr_array(np.eye(2)), List([1.0, 2.0]))


@on_a_device
@pytest.mark.parametrize("kind", ["as_is", "transposed", "reversed"])
def test_other_exporters(backend, rng, kind):
    a = make(rng, MASK, (2, 3), np.float32)
    x = strided(values(rng, (12, 4), np.float32), kind)
    exported = Exporter(device_copy(x), stream=1)
    operand = arrays.describe("op", "x", exported)
    assert (operand.library, operand.device) == ("foreign", 0)
    assert operand[1:4] == (x.shape, x.strides, x.dtype)
    with backend.computing():
        y = backend.place(a) @ exported
        check_product(backend.take(y), a, x)  # a Numba array
        out = Exporter(device_copy(np.full((6, 4), np.nan, np.float32)))
        assert bs.matmul(backend.place(a), exported, out=out) is out
        check_product(host_copy(out), a, x)
        b = bs.bsr_array((Exporter(device_copy(a.data)), a.layout))
        assert b.library == "foreign"
        check_product(backend.take(b @ backend.place(x)), a, x)


@on_a_device
def test_exporters_of_bfloat16(backend, rng):
    """Torch says <V2 through the interface."""
    a, x = make(rng, MASK, (2, 3), bfloat16), values(rng, (12, 4), bfloat16)
    exported = Exporter(device_copy(x), typestr="<V2")
    with backend.computing():
        got = backend.take(backend.place(a) @ exported)
    assert got.dtype == bfloat16
    check_product(got, a, x)


@on_a_device
def test_exporters_without_memory_and_without_access(backend):
    empty = Exporter(device_copy(np.ones((4, 0), np.float32)))
    empty.__cuda_array_interface__["data"] = (0, False)
    a = bs.bsr_array(np.eye(4, dtype=np.float32), blocksize=2)
    with backend.computing():
        assert host_copy(backend.place(a) @ empty).shape == (4, 0)
        x = np.ones((4, 2), np.float32)
        exported = Exporter(device_copy(x), readonly=True)
        with pytest.raises(ValueError, match=r"^matmul: out must be writable"):
            bs.matmul(backend.place(a), backend.place(x), out=exported)


# -------------------------------------------------------------------------- streams


class Handle:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Protocol:
    def __cuda_stream__(self):
        return 0, 7


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (7, 7),
        (Handle(cuda_stream=7), 7),
        (Handle(ptr=7), 7),
        (Handle(handle=7), 7),
        (Handle(handle=Handle(value=7)), 7),
        (Handle(handle=Handle(value=None)), 0),
        (Protocol(), 7),
    ],
    ids=["int", "torch", "cupy", "numba", "ctypes", "default", "protocol"],
)
def test_handles_of_streams(stream, handle):
    assert arrays.stream_handle("op", stream) == handle


@on_a_device
def test_what_is_no_stream(backend):
    a = backend.place(bs.bsr_array(np.eye(4), blocksize=2))
    x = backend.place(np.ones((4, 2)))
    with pytest.raises(TypeError, match=r"^matmul: stream must be an integer or a str"):
        bs.matmul(a, x, stream="default")
    with backend.computing():
        y = bs.matmul(a, x, stream=0)
        np.testing.assert_array_equal(backend.take(y), np.ones((4, 2)))


# ------------------------------------------------------------- libraries on a GPU


@pytest.fixture
def library(request):
    module = pytest.importorskip(request.param)
    if request.param == "torch" and not module.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    return request.param


of_libraries = pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=pytest.mark.gpu) for name in ("torch", "cupy")],
    indirect=True,
)


class OnGpu(Device):
    """Device arrays of torch or CuPy."""

    def __init__(self, library):
        super().__init__()
        self.library = library

    def place(self, x):
        if isinstance(x, bs.bsr_array):
            return x._view(self.place(x._values))
        return arrays.from_numpy(x, self.library, 0) if isinstance(x, np.ndarray) else x


@of_libraries
@pytest.mark.parametrize("dtype", FLOATS, ids=label)
def test_gpu_libraries(library, rng, dtype):
    if library == "cupy" and dtype == bfloat16:
        pytest.skip("CuPy has no bfloat16")
    backend = OnGpu(library)
    a, x = make(rng, MASK, (2, 3), dtype), values(rng, (12, 4), dtype)
    g = values(rng, (6, 4), dtype)
    check_matmul(backend, a, x)
    check_matmul(backend, x.T, a.T)
    check_matmul(backend, a, x, out=values(rng, (6, 4), dtype), beta=0.5)
    check_matmul_backward(backend, g, a, x)
    check_sddmm(backend, g, x.T, a.layout)
    b = a.to_device(library)
    assert (b.library, b.device) == (library, 0)
    np.testing.assert_array_equal(b.T.to_host().data, a.T.data)


@of_libraries
def test_gpu_strides_and_streams(library, rng):
    a, x = make(rng, MASK, (2, 3), np.float32), values(rng, (12, 4), np.float32)
    b = a.to_device(library)
    if library == "torch":
        import torch

        x_ = torch.from_numpy(x.T.copy()).cuda().T
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = b @ (x_ * 1)
        stream.synchronize()
        check_product(y.cpu(), a, x)
        y = bs.matmul(b, x_, stream=stream)
        stream.synchronize()
        check_product(y.cpu(), a, x)
        lazy = torch.from_numpy(values(rng, (12, 4), np.complex64)).cuda().conj()
        check_product((b @ lazy).cpu(), a, lazy.resolve_conj().cpu().numpy())
    else:
        import cupy

        x_ = cupy.asarray(x.T.copy()).T
        with cupy.cuda.Stream(non_blocking=True) as stream:
            y = b @ (x_ * 1)
            stream.synchronize()
        check_product(y.get(), a, x)
