"""CUDA graphs: forward, dX and dW captured once, replayed on new values."""

import pytest

import numba_bs as bs

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


# The SIMT kernels; those of tensor cores, on Hopper with tensor maps.
DTYPES = [torch.float32, torch.bfloat16]


def problem(seed, dtype=torch.float32):
    """Return a layer's values, input, output gradient and room for its output."""
    layout = bs.patterns.random(8, 6, (16, 32), density=0.4, seed=seed)
    generator = torch.Generator("cuda").manual_seed(seed)
    options = {"device": "cuda", "generator": generator}
    shapes = (layout.blocks, 16, 32), (192, 72), (128, 72)
    made = [torch.randn(shape, **options).to(dtype) for shape in shapes]
    return layout, *made, torch.empty(128, 72, device="cuda", dtype=dtype)


def step(layout, values, x, grad_y, y):
    """Run forward into ``y``; return the gradients."""
    a = bs.bsr_array((values, layout))
    bs.matmul(a, x, out=y)
    grad_a, grad_x = bs.matmul_backward(grad_y, a, x)
    return grad_a.data, grad_x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_captured_step_computes_again_on_new_values(dtype):
    layout, values, x, grad_y, y = problem(0, dtype)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # compiles, and uploads the lookup tables
        step(layout, values, x, grad_y, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grad_a, grad_x = step(layout, values, x, grad_y, y)
    for held in (values, x, grad_y):
        held.copy_(torch.randn_like(held))
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    again = torch.empty_like(y)
    values_again, x_again = step(layout, values, x, grad_y, again)
    assert torch.equal(y, again)
    assert torch.equal(grad_a, values_again)
    assert torch.equal(grad_x, x_again)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prepared_calls_are_captured_like_first_ones(dtype):
    layout, values, x, grad_y, y = problem(2, dtype)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = step(layout, values, x, grad_y, y)
    torch.cuda.synchronize()
    right = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(layout, values, x, grad_y, y)
    y.fill_(float("nan"))
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, right)
    assert all(map(torch.equal, found, expected))


def test_a_capture_before_the_first_call_says_so():
    layout, values, x, _, y = problem(1)
    a = bs.bsr_array((values, layout))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.zero_()  # torch warns of an empty graph
        with pytest.raises(RuntimeError, match="make the same call once first"):
            bs.matmul(a, x, out=y)
    torch.cuda.synchronize()
    bs.matmul(a, x, out=y)
    assert torch.isfinite(y).all()
