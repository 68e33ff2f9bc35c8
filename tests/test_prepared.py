"""Prepared calls: later calls do what the first one did, and look where they must."""

import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest
from backends import EACH, HAVE_GPU, HOST, Exporter
from patterns import MASKS

import numba_bs as bs
from numba_bs import _matmul, arrays
from numba_bs import _prepared as prepared
from numba_bs.dtypes import bfloat16

each_backend = pytest.mark.parametrize("backend", EACH)
on_a_device = pytest.mark.parametrize("backend", EACH[1:])
MASK = MASKS["empty_row_and_column"]  # 3 x 4 blocks
F32, F64 = np.float32, np.float64


def new_layout(blocksize=(2, 3)):
    return bs.Layout.from_mask(MASK, blocksize)


def records(layout):
    """Return the records that a layout holds."""
    return layout.__dict__.get("_prepared", {})


@pytest.fixture(autouse=True)
def alignment(monkeypatch):
    """Let NumPy's arrays, of which the simulator's are made, all be aligned."""
    monkeypatch.setattr(prepared, "ALIGNMENT", 16)


@pytest.fixture
def bodies(monkeypatch):
    """List the calls that run an operation as it is written."""
    ran = []

    def counting(body):
        def counted(op, *args):
            ran.append(op)
            return body(op, *args)

        return counted

    for name in ("_matmul", "_matmul_backward", "_sddmm", "_sddmm_backward"):
        monkeypatch.setattr(_matmul, name, counting(getattr(_matmul, name)))
    return ran


def flat(result):
    """Return the arrays of a result."""
    if isinstance(result, tuple):
        return [array for each in result if each is not None for array in flat(each)]
    return [result._values if isinstance(result, bs.bsr_array) else result]


def form(result):
    """Return all of a result but where it is and its values."""
    if isinstance(result, tuple):
        return [form(each) for each in result]
    if isinstance(result, bs.bsr_array):
        return result.layout, result._transposed, form(result._values)
    return None if result is None else arrays.describe("test", "result", result)[1:7]


class Problem:
    """Operands of random values on one layout, placed where a backend computes."""

    def __init__(self, backend, layout, seed, dtype=F32):
        self.backend, self.layout, self.dtype = backend, layout, dtype
        self.rng = np.random.default_rng(seed)

    def dense(self, *shape):
        return self.backend.place(self.rng.standard_normal(shape).astype(self.dtype))

    def sparse(self):
        shape = self.layout.blocks, *self.layout.blocksize
        return bs.bsr_array((self.dense(*shape), self.layout))


def to_out(p):
    return bs.matmul(p.sparse(), p.dense(12, 5), out=p.dense(6, 5), alpha=2, beta=0.5)


def to_stored(p):
    x, y = p.dense(6, 5), p.dense(5, 12)
    return bs.sddmm(x, y, p.layout, out=p.sparse(), beta=1)


def to_stored_transposed(p):
    x, y = p.dense(12, 5), p.dense(5, 6)
    return bs.sddmm(x, y, p.layout.T, out=p.sparse().T, alpha=3)


CALLS = {
    "matmul": lambda p: p.sparse() @ p.dense(12, 5),
    "vector": lambda p: p.sparse() @ p.dense(12),
    "transposed": lambda p: p.sparse().T @ p.dense(6, 5),
    "from the left": lambda p: bs.matmul(p.dense(5, 6), p.sparse(), dtype=F64),
    "leading axes": lambda p: p.sparse() @ p.dense(2, 12, 3),
    "out": to_out,
    "backward": lambda p: bs.matmul_backward(p.dense(6, 5), p.sparse(), p.dense(12, 5)),
    "backward from the left": lambda p: bs.matmul_backward(
        p.dense(5, 12), p.dense(5, 6), p.sparse(), needs=["b"]
    ),
    "leading axes backward": lambda p: bs.matmul_backward(
        p.dense(2, 3, 6, 2), p.sparse(), p.dense(2, 3, 12, 2), needs=("a",)
    ),
    "sddmm": lambda p: bs.sddmm(p.dense(6, 5), p.dense(5, 12), p.layout),
    "sddmm, a long sum": lambda p: bs.sddmm(
        p.dense(6, 1500), p.dense(1500, 12), p.layout
    ),
    "sddmm to out": to_stored,
    "sddmm to a transposed out": to_stored_transposed,
    "sddmm_backward": lambda p: bs.sddmm_backward(
        p.sparse(), p.dense(6, 5), p.dense(5, 12)
    ),
}


@each_backend
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_later_calls_give_the_bits_of_a_first_one(backend, bodies, call):
    layout = new_layout()
    keep = []  # so that no array takes the place of another
    with backend.computing():
        for seed in range(3):
            bodies.clear()
            found = call(Problem(backend, layout, seed))
            assert len(bodies) == (seed == 0)
            exact = call(Problem(backend, new_layout(), seed))
            keep += [found, exact]
            assert form(found) == form(exact)
            for left, right in zip(flat(found), flat(exact), strict=True):
                np.testing.assert_array_equal(backend.take(left), backend.take(right))
    assert len(records(layout)) == 1


def test_calls_on_torch_tensors_of_the_host(bodies):
    torch = pytest.importorskip("torch")
    layout = new_layout()
    for seed in range(3):
        p = Problem(HOST.values[0], layout, seed)
        a, x, g = p.sparse(), p.dense(12, 5), p.dense(6, 5)
        b = bs.bsr_array((torch.from_numpy(a.data), layout))
        out = torch.empty(6, 5)
        bodies.clear()
        assert bs.matmul(b, torch.from_numpy(x), out=out) is out
        grads = bs.matmul_backward(torch.from_numpy(g), b, torch.from_numpy(x))
        assert bool(bodies) == (seed == 0)
        np.testing.assert_array_equal(out, a @ x)
        assert all(isinstance(each, torch.Tensor) for each in flat(grads))
        for left, right in zip(
            flat(grads), flat(bs.matmul_backward(g, a, x)), strict=True
        ):
            np.testing.assert_array_equal(left, right)


# ------------------------------------------------------------------------ the key


def strided(x):
    wide = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
    wide[:, ::2] = x
    return wide[:, ::2]


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


OTHERS = {
    "shape": lambda x: x[:, :2],
    "strides": strided,
    "dtype": lambda x: x.astype(F64),
    "access": read_only,
    "axes": lambda x: x[:, 0],
}
OPTIONS = {
    "alpha": {"alpha": 2},
    "type of alpha": {"alpha": 1.0},
    "sign of alpha": {"alpha": -0.0},
    "dtype": {"dtype": F64},
    "precision": {"precision": "ieee"},
    "stream": {"stream": 0},
}


@each_backend
@pytest.mark.parametrize("field", OTHERS)
def test_another_array_is_another_call(backend, bodies, field):
    if field == "access" and HAVE_GPU and backend is not HOST.values[0]:
        pytest.skip("device arrays are never read-only")
    p = Problem(HOST.values[0], new_layout(), 0)
    a, x = backend.place(p.sparse()), p.dense(12, 5)
    other = OTHERS[field](x)
    with backend.computing():
        for each in (x, x, other, other):
            y = bs.matmul(a, backend.place(each))
            exact = HOST.values[0].run(bs.matmul, host(backend, a), each)
            np.testing.assert_allclose(backend.take(y), exact, rtol=1e-5, atol=1e-5)
    assert len(records(a.layout)) == 2


def host(backend, a):
    """Return ``a`` on the host, on a layout of its own."""
    return bs.bsr_array((arrays.to_numpy(a._operand()), new_layout()))


@each_backend
@pytest.mark.parametrize("option", OPTIONS)
def test_another_option_is_another_call(backend, bodies, option):
    p = Problem(backend, new_layout(), 0)
    a, x = p.sparse(), p.dense(12, 5)
    with backend.computing():
        for keywords in ({}, {}, OPTIONS[option], OPTIONS[option]):
            bs.matmul(a, x, **keywords)
    assert len(bodies) == 2
    assert len(records(p.layout)) == 2


@each_backend
def test_a_transposed_view_is_another_call(backend, bodies):
    p = Problem(backend, bs.Layout.from_mask(np.eye(3), 2), 0)
    a, x = p.sparse(), p.dense(6, 5)
    with backend.computing():
        for each in (a, a.T, a, a.T):
            each @ x
    assert len(bodies) == 2


@on_a_device
def test_alignment_belongs_to_the_key(backend):
    p = Problem(backend, new_layout(), 0)
    a, memory = p.sparse(), p.dense(100)
    keys = [
        prepared._key("matmul", (a, memory[begin : begin + 12], None, None), (), None)
        for begin in (0, 1, 4, 8)
    ]
    zero, one, four, eight = (key[0] for key in keys)
    assert zero == four == eight  # 16 bytes further
    assert one != zero


def test_other_libraries_and_devices_are_other_signatures():
    torch = pytest.importorskip("torch")
    x = np.ones((2, 3), F32)
    tensor = torch.from_numpy(x)
    seen = [arrays.signature(x), arrays.signature(tensor)]
    seen += [arrays.signature(tensor.to(torch.complex64))]
    seen += [arrays.signature(tensor.to(torch.complex64).conj())]
    assert len(set(seen)) == 4
    assert None not in seen
    for each in (tensor.to(torch.complex64).conj().imag, tensor.to_sparse(), [1.0]):
        assert arrays.signature(each) is None


def test_a_tensor_that_requires_grad_is_refused_at_a_later_call():
    torch = pytest.importorskip("torch")
    p = Problem(HOST.values[0], new_layout(), 0)
    a, x = p.sparse(), torch.from_numpy(p.dense(12, 5))
    for _ in range(2):
        a @ x
    x.requires_grad_()
    with torch.no_grad():
        a @ x
    with pytest.raises(TypeError, match="b must not require grad"):
        a @ x
    values = torch.from_numpy(a.data).requires_grad_()
    with torch.no_grad():
        b = bs.bsr_array((values, p.layout))
        b @ x
    with pytest.raises(TypeError, match="must not require grad"):
        b @ x.detach()


# --------------------------------------------------------- looked at in every call


@each_backend
def test_overlaps_are_found_in_later_calls(backend, bodies):
    p = Problem(backend, new_layout(), 0)
    a, memory = p.sparse(), p.dense(40, 5)
    x, apart, overlapping = memory[:12], memory[20:26], memory[10:16]
    assert arrays.address(apart) % 8 == arrays.address(overlapping) % 8
    with backend.computing():
        for _ in range(2):
            bs.matmul(a, x, out=apart)
        before = backend.take(memory).copy()
        with pytest.raises(ValueError, match=r"^matmul: out must not overlap b"):
            bs.matmul(a, x, out=overlapping)
        np.testing.assert_array_equal(backend.take(memory), before)
        y = a @ x
        bs.matmul(a, x, out=apart)
        np.testing.assert_array_equal(backend.take(apart), backend.take(y))


@each_backend
def test_out_may_lie_between_the_elements_of_an_input(backend, bodies):
    p = Problem(backend, new_layout(), 0)
    a, memory = p.sparse(), p.dense(12, 8)
    x, out = memory[:, :4], memory[:6, 4:]
    with backend.computing():
        exact = backend.take(a @ x)
        for _ in range(2):
            bs.matmul(a, x, out=out)
            np.testing.assert_array_equal(backend.take(out), exact)


@on_a_device
def test_workspaces_are_looked_at_in_later_calls(backend, bodies):
    p = Problem(backend, new_layout(), 0)
    x, y = p.dense(6, 1500), p.dense(1500, 12)
    needed = bs.explain("sddmm", x, y, p.layout).workspace_bytes
    assert needed > 0
    memory = p.dense(needed // 4)
    with backend.computing():
        for workspace in (memory, memory):
            bs.sddmm(x, y, p.layout, workspace=workspace)
        assert len(bodies) == 2  # explain's is one
        for wrong in (x, p.dense(needed // 4 - 1)):
            with pytest.raises(ValueError, match=r"^sddmm: workspace must"):
                bs.sddmm(x, y, p.layout, workspace=wrong)
        with pytest.raises(TypeError, match=r"^sddmm: stream must be"):
            bs.sddmm(x, y, p.layout, stream=object())
        bs.sddmm(x, y, p.layout, stream=0)
        with pytest.raises(TypeError, match=r"^sddmm: stream must be"):
            bs.sddmm(x, y, p.layout, stream=object())


@each_backend
def test_explain_does_not_compute_what_is_prepared(backend, bodies):
    p = Problem(backend, new_layout(), 0)
    a, x, out = p.sparse(), p.dense(12, 5), p.dense(6, 5)
    with backend.computing():
        bs.matmul(a, x, out=out)
        out = p.dense(6, 5)
        before = backend.take(out).copy()
        first = bs.explain("matmul", a, x, out=out)
        assert first == bs.explain("matmul", a, x, out=out)
    assert first.launches
    np.testing.assert_array_equal(backend.take(out), before)


# ------------------------------------------------------------- what is not prepared


@each_backend
def test_one_array_given_twice_is_not_taken_for_two(backend):
    layout = bs.Layout.from_mask(np.ones((2, 2)), 2)
    p = Problem(backend, layout, 0)
    x, y = p.dense(4, 4), p.dense(4, 4)
    with backend.computing():
        for pair in ((x, x), (x, y), (y, y), (y, x)):
            exact = np.matmul(*map(backend.take, pair))
            found = bs.sddmm(*pair, layout)
            found = bs.bsr_array((backend.take(found._values), layout)).toarray()
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@on_a_device
def test_other_exporters_are_described_every_time(backend, bodies):
    p = Problem(backend, new_layout(), 0)
    a, x = p.sparse(), p.dense(12, 5)
    with backend.computing():
        for _ in range(2):
            y = a @ Exporter(x)
        np.testing.assert_array_equal(backend.take(y), backend.take(a @ x))
    assert len(bodies) == 3


def test_lists_and_scipy_arrays_work_every_time(bodies):
    a = bs.bsr_array(np.eye(4), blocksize=2)
    for _ in range(2):
        assert (a @ [1, 2, 3, 4]).tolist() == [1, 2, 3, 4]
        assert bs.matmul(a.to_scipy(), np.arange(4)).tolist() == [0, 1, 2, 3]
    assert not records(a.layout)


def test_bfloat16_by_the_name_that_array_interfaces_have_for_it():
    a = bs.bsr_array(np.eye(4, dtype=bfloat16), blocksize=2)
    x = np.arange(4).astype(bfloat16)
    for _ in range(2):
        y = a @ x.view("V2")
        assert y.dtype == bfloat16
        np.testing.assert_array_equal(y, x)


@each_backend
def test_calls_that_fail_are_not_kept(backend):
    p = Problem(backend, new_layout(), 0)
    a, wrong = p.sparse(), p.dense(11, 5)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.shape\[-1\] must equal"):
            a @ wrong
    assert not records(p.layout)


# -------------------------------------------------------------- memory and threads


def test_records_are_bounded(monkeypatch):
    monkeypatch.setattr(prepared, "RECORDS", 3)
    p = Problem(HOST.values[0], new_layout(), 0)
    a = p.sparse()
    for n in (1, 2, 3, 4, 2, 5):
        a @ p.dense(12, n)
    assert len(records(p.layout)) == 3


@each_backend
def test_records_keep_nothing_alive(backend):
    layout = new_layout()
    p = Problem(backend, layout, 0)
    a, x, g, out = p.sparse(), p.dense(12, 5), p.dense(6, 5), p.dense(6, 5)
    sampled = None
    with backend.computing():
        for _ in range(2):
            bs.matmul(a, x, out=out)
            grads = bs.matmul_backward(g, a, x)
            sampled = bs.sddmm(p.dense(6, 3), p.dense(3, 12), layout)
    assert len(records(layout)) == 3
    arrays_given = [weakref.ref(each) for each in (x, g, out, *flat(grads))]
    gone = weakref.ref(layout)
    del x, g, out, grads
    gc.collect()
    assert [each() for each in arrays_given] == [None] * len(arrays_given)
    gc.disable()
    try:  # without a cycle: at once
        del layout, a, p, sampled
        assert gone() is None
    finally:
        gc.enable()


@each_backend
def test_threads_share_a_record(backend):
    layout = new_layout()
    problems = [Problem(backend, layout, seed) for seed in range(4)]
    pairs = [(p.sparse(), p.dense(12, 3)) for p in problems]
    with backend.computing():
        exact = [backend.take(a @ x).copy() for a, x in pairs]
    failed = []

    def work(pair, exact):
        try:
            for _ in range(3):
                y = pair[0] @ pair[1]
                np.testing.assert_array_equal(backend.take(y), exact)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=args)
        for args in zip(pairs, exact, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@on_a_device
@pytest.mark.parametrize("operation", ["matmul", "sddmm"])
def test_records_of_tensor_cores_keep_nothing_alive(backend, rng, operation):
    # Whatever rung runs: on Hopper its tensor maps name arrays too.
    layout = bs.Layout.from_mask(np.ones((2, 2), bool), (16, 16))
    shapes = [(32, 64), (64, 32)] if operation == "sddmm" else [(4, 16, 16), (32, 64)]
    given = [backend.place(rng.random(s).astype(bfloat16)) for s in shapes]
    if operation == "sddmm":
        result = bs.sddmm(*given, layout)
    else:
        result = bs.matmul(bs.bsr_array((given[0], layout)), given[1])
    held = [weakref.ref(each) for each in (*given, *flat(result))]
    assert records(layout)
    del given, result
    gc.collect()
    assert [ref() is None for ref in held] == [True] * 3


@on_a_device
def test_threads_that_upload_at_once_share_the_tables(backend, monkeypatch):
    from numba_bs.cuda import upload

    layout = new_layout()
    values = np.ones((layout.blocks, 2, 3), F32)
    a = bs.bsr_array((backend.place(values), layout))
    inside, made, real = threading.Barrier(2, timeout=1), [], upload._upload

    def slow(tables, device):
        if hasattr(tables, "item_row"):
            made.append(tables)
            with contextlib.suppress(threading.BrokenBarrierError):
                inside.wait()  # for another thread, if it came so far
        return real(tables, device)

    monkeypatch.setattr(upload, "_upload", slow)
    threads = [
        threading.Thread(target=bs.matmul, args=(a, backend.place(x)))
        for x in (np.ones((12, 3), F32), np.ones((12, 5), F32))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
