"""explain: what a call would run; nothing is computed and nothing is written."""

import numpy as np
import pytest
from backends import EACH, HOST, bits
from patterns import MASKS, make, values

import numba_bs as bs

MASK = MASKS["empty_row_and_column"]
HEADS = np.stack([MASK, MASK])
each_backend = pytest.mark.parametrize("backend", EACH)
on_a_device = pytest.mark.parametrize("backend", EACH[1:])


def operands(backend, rng, lead=(), n=3):
    a = make(rng, MASK, (2, 3), np.float32)
    x = values(rng, (*lead, 12, n), np.float32)
    g = values(rng, (*lead, 6, n), np.float32)
    return [backend.place(each) for each in (g, a, x, np.swapaxes(x, -1, -2))]


def test_host_calls(rng):
    g, a, x, y = operands(HOST.values[0], rng)
    for op, args in (
        ("matmul", (a, x)),
        ("matmul_backward", (g, a, x)),
        ("sddmm", (g, y, a.layout)),
        ("sddmm_backward", (a, g, y)),
    ):
        found = bs.explain(op, *args)
        assert (found.op, found.backend, found.workspace_bytes) == (op, "reference", 0)
        assert [launch.kernel for launch in found.launches] == [f"reference.{op}"]
        assert "the operands are on the host" in str(found)


@on_a_device
def test_device_calls_name_kernels_and_constants(backend, rng):
    g, a, x, y = operands(backend, rng)
    found = bs.explain("matmul", a, x)
    assert found.backend == "cuda"
    (launch,) = found.launches
    assert launch.kernel == "matmul_dsd_simt"
    assert launch.constants["accumulator"] == np.float32
    assert launch.constants["tile_n"] >= 1
    assert launch.reason
    assert "matmul_dsd_simt(tile_m=" in str(found)
    found = bs.explain("matmul_backward", g, a, x)
    kernels = [launch.kernel for launch in found.launches]
    assert kernels == ["matmul_sdd_simt", "matmul_dsd_simt"]
    found = bs.explain("matmul_backward", g, a, x, needs="b")
    assert [launch.kernel for launch in found.launches] == ["matmul_dsd_simt"]
    (launch,) = bs.explain("sddmm", g, y, a.layout, variant="simt").launches
    assert launch.kernel == "matmul_sdd_simt"
    assert launch.reason == "asked for"
    assert len(bs.explain("sddmm_backward", a, g, y).launches) == 2


@on_a_device
def test_what_is_summed_afterwards_is_named(backend, rng):
    a = backend.place(make(rng, HEADS, (2, 3), np.float32))
    x = backend.place(values(rng, (12, 3), np.float32))  # one for all heads
    g = backend.place(values(rng, (2, 6, 3), np.float32))
    found = bs.explain("matmul_backward", g, a, x, needs="b")
    kernels = [launch.kernel for launch in found.launches]
    assert kernels == ["matmul_dsd_simt", "elementwise_simt"]
    assert "summed in order" in found.launches[1].reason


@on_a_device
def test_the_workspace_is_what_the_call_needs(backend, rng):
    layout = bs.Layout.from_mask(MASKS["last_corner"], (2, 3))
    x, y = (
        backend.place(values(rng, shape, np.float32))
        for shape in ((6, 5000), (5000, 12))
    )
    needed = bs.explain("sddmm", x, y, layout).workspace_bytes
    assert needed > 0
    with backend.computing():
        exact = backend.take(bs.sddmm(x, y, layout))
        workspace = backend.place(np.zeros(needed, np.uint8))
        got = backend.take(bs.sddmm(x, y, layout, workspace=workspace))
    np.testing.assert_array_equal(got.data, exact.data)
    with pytest.raises(
        ValueError, match=rf"at least {needed} bytes, got {needed - 4} b"
    ):
        bs.sddmm(x, y, layout, workspace=backend.place(np.zeros(needed // 4 - 1, "f4")))


@each_backend
def test_nothing_is_written(backend, rng):
    _, a, x, y = operands(backend, rng)
    out = backend.place(np.full((6, 3), np.nan, np.float32))
    before = bits(out)
    bs.explain("matmul", a, x, out=out)
    stored = a._view(backend.place(np.full((4, 2, 3), np.nan, np.float32)))
    g = backend.place(np.ones((6, 3), np.float32))
    bs.explain("sddmm", g, y, a.layout, out=stored)
    assert bits(out) == before
    assert np.isnan(backend.take(stored).data).all()


@each_backend
def test_a_call_after_explain_computes(backend, rng):
    g, a, x, _ = operands(backend, rng)
    bs.explain("matmul", a, x)
    with pytest.raises(ValueError, match=r"^matmul: a\.shape"):
        bs.explain("matmul", a, g)
    with backend.computing():
        assert backend.take(a @ x).shape == (6, 3)


def test_unknown_operations():
    with pytest.raises(
        ValueError, match=r"^explain: op must be one of matmul, .* 'dot'"
    ):
        bs.explain("dot", 1, 2)
