"""What every call promises: nothing half written, nothing read too early, no leaks."""

import weakref

import numpy as np
import pytest
from backends import EACH, SIMULATED, Exporter, device_copy

import numba_bs as bs
from numba_bs import arrays, plan
from numba_bs.choose import simt
from numba_bs.dtypes import STORAGE, accumulator

MASK = np.array([[1, 0], [1, 1]])
LAYOUT = bs.Layout.from_mask(MASK, 2)
each_backend = pytest.mark.parametrize("backend", EACH)
in_simulator = pytest.mark.skipif(not SIMULATED, reason="records launches, runs none")


def ones(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


# ----------------------------------------------------------------------- arguments


@each_backend
@pytest.mark.parametrize("beta", [1, 0.5])
def test_beta_needs_an_out_that_it_multiplies(backend, beta):
    a = bs.bsr_array((ones(3, 2, 2), LAYOUT))
    with pytest.raises(ValueError, match=r"^matmul: beta must be 0 without out"):
        backend.run(bs.matmul, a, ones(4, 3), beta=beta)
    with pytest.raises(ValueError, match=r"^sddmm: beta must be 0 without out"):
        backend.run(bs.sddmm, ones(4, 3), ones(3, 4), LAYOUT, beta=beta)


@each_backend
def test_a_stack_of_one_head_is_not_broadcast(backend):
    a = bs.bsr_array((ones(3, 2, 2), bs.LayoutStack([LAYOUT])))
    match = "the last leading axis must be the 1 heads"
    with pytest.raises(ValueError, match=match):
        backend.run(bs.matmul, a, ones(3, 4, 2))
    with pytest.raises(ValueError, match=match):
        backend.run(bs.matmul, ones(3, 5, 4), a)
    with pytest.raises(ValueError, match=match):
        backend.run(bs.matmul_backward, ones(3, 4, 2), a, ones(3, 4, 2))


@each_backend
def test_out_of_a_vector_from_the_left_with_heads(backend, rng):
    layout = bs.LayoutStack.from_mask(np.ones((4, 2, 2)), 2)
    a = bs.bsr_array((rng.standard_normal((16, 2, 2)), layout))
    x, out = rng.standard_normal(4), np.full((4, 4), np.nan)
    exact = x @ a.toarray()
    with backend.computing():
        target = backend.place(out)
        bs.matmul(backend.place(x), backend.place(a), out=target)
    np.testing.assert_allclose(backend.take(target), exact, rtol=1e-13)


@each_backend
def test_gradients_summed_over_an_axis_of_length_0_are_zeros(backend):
    layout = bs.LayoutStack.from_mask(np.stack([MASK, MASK]), 2)
    a = bs.bsr_array((ones(0, 6, 2, 2), layout))
    x, g = ones(4, 3), ones(0, 2, 4, 3)
    grad_a, grad_x = backend.run(bs.matmul_backward, g, a, x)
    assert grad_a.data.shape == (0, 6, 2, 2)
    np.testing.assert_array_equal(grad_x, np.zeros((4, 3)))


@pytest.mark.parametrize("backend", EACH[1:])
def test_a_workspace_overlaps_nothing(backend, rng):
    with backend.computing():
        x, y = (device_copy(rng.standard_normal(s)) for s in ((4, 3000), (3000, 4)))
        before = arrays.to_numpy(arrays.describe("test", "x", x)).copy()
        with pytest.raises(ValueError, match=r"workspace must not overlap x"):
            bs.sddmm(x, y, LAYOUT, workspace=x)
        np.testing.assert_array_equal(
            arrays.to_numpy(arrays.describe("test", "x", x)), before
        )


@pytest.mark.parametrize("backend", EACH[1:])
def test_what_is_summed_in_order_goes_to_the_workspace_too(backend, rng, monkeypatch):
    # Heads are summed in order, and a block column is long enough to be cut.
    mask = np.zeros((2, 40, 8))
    mask[:, :, 0] = mask[:, 0, :] = 1  # of its columns, one is long
    layout = bs.LayoutStack.from_mask(mask, (64, 1))
    blocks = rng.standard_normal((layout.blocks, 64, 1))
    a = backend.place(bs.bsr_array((blocks, layout)))
    x, g = (backend.place(rng.standard_normal(s)) for s in ((8, 1), (2, 2560, 1)))
    args = (g, a, x)
    explained = bs.explain("matmul_backward", *args, needs="b")
    whole, partial = 2 * 8 * 8, plan.slots(layout.column_plan) * 8
    assert partial > 0
    assert explained.workspace_bytes == whole + partial
    scratch = []
    monkeypatch.setattr(arrays, "empty", recorder(scratch, arrays.empty))
    with backend.computing():
        first, again = (bs.matmul_backward(*args, needs="b")[1] for _ in range(2))
        assert len(scratch) == 6  # the gradient and two of scratch
        workspace = backend.place(np.zeros(whole + partial, np.uint8))
        given = [
            bs.matmul_backward(*args, needs="b", workspace=workspace)[1]
            for _ in range(2)
        ]
    assert len(scratch) == 8
    for each in (again, *given):
        np.testing.assert_array_equal(backend.take(each), backend.take(first))
    small = backend.place(np.zeros(whole + partial - 8, np.uint8))
    with pytest.raises(ValueError, match=f"at least {whole + partial} bytes"):
        bs.matmul_backward(*args, needs="b", workspace=small)


def recorder(calls, function):
    """Return ``function``, which now keeps its arguments."""
    return lambda *args: (calls.append(args), function(*args))[1]


@in_simulator
def test_addresses_that_no_load_can_read_are_refused():
    exporter = Exporter(device_copy(ones(4, 3)))
    pointer, readonly = exporter.__cuda_array_interface__["data"]
    exporter.__cuda_array_interface__["data"] = (pointer + 1, readonly)
    a = bs.bsr_array((ones(3, 2, 2), LAYOUT)).to_device()
    with pytest.raises(ValueError, match=r"address of b must be a multiple of 8"):
        bs.matmul(a, exporter)


@pytest.mark.parametrize("backend", EACH[1:])
def test_masked_exporters_are_refused(backend):
    exporter = Exporter(device_copy(ones(4, 3)))
    exporter.__cuda_array_interface__["mask"] = exporter
    a = backend.place(bs.bsr_array((ones(3, 2, 2), LAYOUT)))
    with pytest.raises(TypeError, match="b must not be masked"):
        bs.matmul(a, exporter)


def test_a_result_cannot_go_through_torchs_lazy_minus():
    torch = pytest.importorskip("torch")
    a = bs.bsr_array((torch.ones(3, 2, 2, dtype=torch.float64), LAYOUT))
    x = torch.ones(4, 3, dtype=torch.float64)
    out = torch.zeros(4, 3, dtype=torch.complex128).conj().imag
    with pytest.raises(ValueError, match="out must be writable"):
        bs.matmul(a, x, out=out)


# ---------------------------------------------------------------------- infinities


@each_backend
def test_factors_of_one_make_no_nan_of_complex_infinities(backend):
    inf = np.full((3, 2, 2), complex(np.inf, 1))
    a = bs.bsr_array((inf, LAYOUT))
    one = bs.bsr_array((np.full((3, 2, 2), 1 + 1j), LAYOUT))
    for operation in (lambda a: a.copy(), lambda a: a.astype(np.complex128)):
        np.testing.assert_array_equal(backend.run(operation, a).data, inf)
    total = backend.run(lambda a, b: a + b, one, a).data
    np.testing.assert_array_equal(total, inf + (1 + 1j))
    rest = backend.run(lambda a, b: a - b, one, a).data
    np.testing.assert_array_equal(rest, (1 + 1j) - inf)
    single = bs.bsr_array(
        (np.full((1, 1, 1), 1 + 1j), bs.Layout([0, 1], [0], (1, 1), 1))
    )
    product = backend.run(bs.matmul, single, np.array([[complex(np.inf, 0)]]))
    assert product[0, 0].real == product[0, 0].imag == np.inf


# ------------------------------------------------------------------------- streams


@pytest.fixture
def log(monkeypatch):
    """Record which stream waits for which, and which runs kernels."""
    from numba_bs.cuda import elementwise_simt, launch, matmul_dsd_simt, matmul_sdd_simt

    steps = []

    def wait_for(device, stream, other):
        steps.append((stream, "waits for", other))

    monkeypatch.setattr(launch, "wait_for", wait_for)
    for module in (elementwise_simt, matmul_dsd_simt, matmul_sdd_simt):

        def run(kernel, grid, stream, *args):
            steps.append((stream, "runs"))

        monkeypatch.setattr(module, "run", run)
    return steps


def on_stream(number, *shape):
    return Exporter(device_copy(ones(*shape)), stream=number)


def sparse_on(number):
    return bs.bsr_array((on_stream(number, 3, 2, 2), LAYOUT))


@in_simulator
@pytest.mark.parametrize(
    "call",
    [
        lambda: sparse_on(12) + sparse_on(11),
        lambda: bs.matmul(sparse_on(11), on_stream(12, 4, 3)),
        lambda: bs.matmul(
            sparse_on(12), on_stream(12, 4, 3), out=on_stream(11, 4, 3), beta=1
        ),
        lambda: bs.sddmm(
            on_stream(12, 4, 3), on_stream(12, 3, 4), LAYOUT, out=sparse_on(11), beta=1
        ),
        lambda: bs.matmul_backward(
            on_stream(12, 4, 3), sparse_on(11), on_stream(12, 4, 3), needs="a"
        ),
    ],
    ids=["add", "matmul", "out", "sddmm_out", "backward"],
)
def test_operands_of_other_streams_are_ordered_before_and_after(log, call):
    call()
    before, run, after = (12, "waits for", 11), (12, "runs"), (11, "waits for", 12)
    assert log.index(before) < log.index(run) < log.index(after)
    assert log.count(run) == 1


@in_simulator
def test_an_explicit_stream_leaves_the_order_to_the_caller(log):
    bs.matmul(sparse_on(11), on_stream(12, 4, 3), stream=13)
    assert log == [(13, "runs")]


# ------------------------------------------------------------- memory and lifetimes


def test_a_layout_dies_with_its_last_user():
    layout = bs.Layout.from_mask(MASK, 2)
    transposed = layout.T
    assert transposed.T is layout
    gone = weakref.ref(layout)
    del layout
    assert gone() is None  # at once: no cycle waits for the garbage collector
    assert transposed == transposed.T.T


@pytest.mark.parametrize(
    "sums", sorted({accumulator(dtype) for dtype in STORAGE}, key=str), ids=str
)
def test_tiles_fit_shared_memory_for_every_block_size(sums):
    from numba_bs.cuda.tiles import pitch, staged

    def items(config, left_along, right_along):
        threads = config.tile_m // config.thread_m * (config.tile_n // config.thread_n)
        threads *= config.groups
        tiles = [
            staged(along, config.tile_k, rows, mine, threads, config.groups, sums)
            for along, rows, mine in (
                (left_along, config.tile_m, config.thread_m),
                (right_along, config.tile_n, config.thread_n),
            )
        ]
        sums_items = config.groups * config.tile_m * pitch(config.tile_n, sums)
        return max(tiles[0].items + tiles[1].items, sums_items)

    sizes = [*range(1, 129, 3), 32, 64, 96, 128]
    for R in sizes:
        for C in sizes:
            for N in (1, 17, 64, 1000):
                for left in (False, True):
                    for right in (False, True):
                        dsd = simt.simt_dsd(R, C, N, sums, right)
                        sdd = simt.simt_sdd(R, C, 100, N, sums)
                        for config in (dsd, sdd):
                            needed = items(config, left, right) * sums.itemsize
                            assert needed <= 48 * 1024, (R, C, N, left, right, config)
