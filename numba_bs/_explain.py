"""What a call would run, without running it."""

from contextvars import ContextVar
from typing import NamedTuple

_steps: ContextVar[list | None] = ContextVar("steps", default=None)


class Explanation(NamedTuple):
    """What :func:`explain` found."""

    op: str
    backend: str  # "reference" or "cuda"
    launches: tuple  # one Launch each
    workspace_bytes: int  # the most that one launch needs

    def __str__(self):
        lines = [f"{self.op}: {self.backend}, workspace {self.workspace_bytes} bytes"]
        lines += [f"  {launch}" for launch in self.launches]
        return "\n".join(lines)


class Launch(NamedTuple):
    """One kernel of a call."""

    kernel: str  # file of numba_bs/cuda
    constants: dict
    reason: str

    def __str__(self):
        constants = ", ".join(f"{key}={value}" for key, value in self.constants.items())
        return f"{self.kernel}({constants}): {self.reason}"


def explain(op: str, *args, **keywords) -> Explanation:
    """Return which kernels and constants a call would run, and why.

    Parameters
    ----------
    op : str
        Name of the operation: "matmul", "matmul_backward", "sddmm",
        "sddmm_backward".
    *args, **keywords
        As for the operation. Nothing is computed and nothing is written.

    Returns
    -------
    Explanation
        ``print`` it; ``workspace_bytes`` is what ``workspace=`` must hold.

    Raises
    ------
    ValueError
        An unknown operation; and whatever the operation itself would raise.

    Examples
    --------
    >>> import numpy as np, numba_bs as bs
    >>> a = bs.bsr_array(np.eye(4), blocksize=2)
    >>> print(bs.explain("matmul", a, np.ones((4, 3))))
    matmul: reference, workspace 0 bytes
      reference.matmul(): the operands are on the host
    """
    known = ("matmul", "matmul_backward", "sddmm", "sddmm_backward")
    if op not in known:
        raise ValueError(f"explain: op must be one of {', '.join(known)}, got {op!r}")
    from . import _matmul

    steps = []
    token = _steps.set(steps)
    try:
        getattr(_matmul, op)(*args, **keywords)
    finally:
        _steps.reset(token)
    on_host = any(launch.kernel.startswith("reference") for launch, _ in steps)
    return Explanation(
        op=op,
        backend="reference" if on_host else "cuda",
        launches=tuple(launch for launch, _ in steps),
        workspace_bytes=max((needed for _, needed in steps), default=0),
    )


def explaining() -> bool:
    """Whether :func:`explain` asks."""
    return _steps.get() is not None


def only_explained(kernel: str, constants: dict, reason: str, needed: int = 0) -> bool:
    """Note a step if :func:`explain` asks; the caller then leaves it undone."""
    steps = _steps.get()
    if steps is None:
        return False
    steps.append((Launch(kernel, constants, reason), needed))
    return True
