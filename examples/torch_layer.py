"""A block-sparse linear layer in torch: the written-out backward as an autograd node.

numba_bs keeps no tape; :func:`numba_bs.matmul_backward` takes what it needs. So the
node is short: save the inputs, call forward, call backward.

Run: ``python examples/torch_layer.py`` (on a GPU if torch has one).
"""

import torch

import numba_bs as bs


class BlockSparseProduct(torch.autograd.Function):
    """``y = x @ W`` for a block-sparse W, given as its values and its layout."""

    @staticmethod
    def forward(ctx, values, x, layout):
        """Return ``x @ W``."""
        ctx.save_for_backward(values, x)
        ctx.layout = layout
        w = bs.bsr_array((values.detach(), layout))
        return bs.matmul(x.detach(), w)

    @staticmethod
    def backward(ctx, grad_y):
        """Return the gradients of values and x (a layout has none)."""
        values, x = (saved.detach() for saved in ctx.saved_tensors)
        w = bs.bsr_array((values, ctx.layout))
        needed = ("b",) * ctx.needs_input_grad[0] + ("a",) * ctx.needs_input_grad[1]
        grad_x, grad_w = bs.matmul_backward(grad_y.detach(), x, w, needs=needed)
        return None if grad_w is None else grad_w.data, grad_x, None


class BlockSparseLinear(torch.nn.Module):
    """``y = x @ W + bias``; W (inputs, outputs) stores the blocks of ``layout``."""

    def __init__(self, layout, **options):
        super().__init__()
        R, C = layout.blocksize
        scale = (layout.shape[0] * max(layout.density, 1e-9)) ** -0.5
        values = scale * torch.randn(layout.blocks, R, C, **options)
        self.layout, self.values = layout, torch.nn.Parameter(values)
        self.bias = torch.nn.Parameter(torch.zeros(layout.shape[1], **options))

    def forward(self, x):
        """Return the layer's output for ``x`` (batch, inputs)."""
        return BlockSparseProduct.apply(self.values, x, self.layout) + self.bias


def check_gradients(device):
    """Compare the written-out backward with finite differences in float64."""
    layout = bs.patterns.random(3, 4, (2, 3), density=0.5, seed=0)
    values = torch.randn(layout.blocks, 2, 3, dtype=torch.float64, device=device)
    x = torch.randn(5, 6, dtype=torch.float64, device=device)
    inputs = values.requires_grad_(), x.requires_grad_()
    return torch.autograd.gradcheck(
        lambda v, x: BlockSparseProduct.apply(v, x, layout), inputs
    )


def train(device, steps=200):
    """Fit a random teacher of the same layout; return first and last loss."""
    torch.manual_seed(0)
    layout = bs.patterns.random(8, 8, 16, density=0.3, seed=1)
    teacher, student = (BlockSparseLinear(layout, device=device) for _ in range(2))
    optimiser = torch.optim.Adam(student.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, layout.shape[0], device=device)
        loss = (student(x) - teacher(x).detach()).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def main():
    """Check gradients, then train."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}: gradcheck in float64: {check_gradients(device)}")
    first, last = train(device)
    print(f"loss of a student of the teacher's layout: {first:.3f} -> {last:.2e}")


if __name__ == "__main__":
    main()
