"""What the points of a result file say: rates, ratios, break-even densities."""

from typing import NamedTuple

from .cases import SETS

OURS = "numba_bs"
LABELS = {"forward": "forward", "grad_x": "dX", "grad_w": "dW"}


def points_of(content: dict, *sets: str) -> list[dict]:
    """Return the finished points of these sets, in their order, or all as they come."""
    done = [point for point in content["points"] if point["complete"]]
    if not sets:
        return done
    cases = (case.name for name in sets for case in SETS[name])
    order = {name: place for place, name in enumerate(dict.fromkeys(cases))}
    chosen = [point for point in done if point["case"] in order]
    return sorted(chosen, key=lambda point: order[point["case"]])


def kind(point: dict) -> str:
    """Return what is multiplied: the dtype, or what stands in for it."""
    return point.get("precision") or point["dtype"]


def block_name(point: dict) -> str:
    """Return the block size in short: one number for a square."""
    R, C = point["blocksize"]
    return f"{R}" if R == C else f"{R}x{C}"


def dense_name(point: dict) -> str:
    """Return the dense product that is as exact as what was asked for."""
    return "dense TF32" if point.get("precision") == "tf32" else "dense"


def right(entry: dict) -> bool:
    """Whether a peer gave a result, and the right one."""
    return "reason" not in entry and entry.get("passed", True)


class Summary(NamedTuple):
    """What a point says: rates in TFLOP/s, None where there is none."""

    entry: dict  # numba_bs's own
    ours: float | None
    ours_called: float | None
    best: float | None  # the best peer that is sparse, right and as exact
    best_name: str  # with a star if its kernel time has host time in it
    best_called: float | None
    dense: float | None  # the dense product's own rate
    break_even: float | None  # the density below which numba_bs beats dense

    @property
    def speedup(self) -> float | None:
        """Return how many times faster than the best peer, kernels alone."""
        return self.ours / self.best if self.ours and self.best else None

    @property
    def speedup_called(self) -> float | None:
        """Return how many times faster than the best peer, as called."""
        both = self.ours_called and self.best_called
        return self.ours_called / self.best_called if both else None

    @property
    def share_of_dense(self) -> float | None:
        """Return the rate as a share of the dense product's rate."""
        return self.ours / self.dense if self.ours and self.dense else None


def summarise(point: dict) -> Summary:
    """Return what the entry of one point says."""
    peers = point["peers"]
    entry = peers.get(OURS, {"reason": "not measured"})
    ours = entry["tflops"] if right(entry) else None
    called = entry["tflops_called"] if right(entry) else None
    others = {
        name: found
        for name, found in peers.items()
        if name != OURS and right(found) and found["comparable"]
    }
    best_name = max(others, key=lambda name: others[name]["tflops"], default="")
    best = others[best_name]["tflops"] if others else None
    if others and not others[best_name].get("held", True):
        best_name += "*"
    best_called = max((o["tflops_called"] for o in others.values()), default=None)
    dense = break_even = None
    product = peers.get(dense_name(point), {"reason": "not measured"})
    if right(product):
        # The dense product does the work of absent blocks as well.
        share = product["tflops"]
        dense = share / point["density"] if point["density"] else None
        break_even = point["density"] * ours / share if ours else None
    return Summary(entry, ours, called, best, best_name, best_called, dense, break_even)


def step(points: dict[str, dict]) -> tuple[float, str] | None:
    """Return how much faster forward, dX and dW are together, and than which peer.

    A peer that needs a transposed copy of A for dX pays for making it anew: the
    values change at every step. torch's tuned product takes its dW from torch, since
    there is nothing to tune.
    """
    if set(points) != set(LABELS):
        return None
    names = {name: (name,) for name in points["forward"]["peers"] if name != OURS}
    if "torch tuned" in names:
        names["torch tuned"] = ("torch tuned", "torch")
    totals = {name: _total(points, wanted) for name, wanted in names.items()}
    totals = {name: total for name, total in totals.items() if total is not None}
    ours = _total(points, (OURS,))
    if ours is None or not totals:
        return None
    best = min(totals, key=totals.get)
    return totals[best] / ours, best


def _total(points, names) -> float | None:
    """Return the ms that three ops take, each by the first name that serves it."""
    total = 0.0
    for point in points.values():
        found = (point["peers"].get(name, {"reason": "not there"}) for name in names)
        usable = [e for e in found if right(e) and e["comparable"]]
        if not usable:
            return None
        total += usable[0]["kernel_ms"][1] + usable[0].get("refresh_ms", 0.0)
    return total
