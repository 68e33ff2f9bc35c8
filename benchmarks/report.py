"""Turn result files into README's table and two drawings.

    python -m benchmarks.report            rewrite the table in README.md
    python -m benchmarks.report --plot     and draw benchmarks/results/*.png

The table stands between two comments in README.md and is never typed by hand.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from .cases import SETS
from .harness import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"
OURS, DENSE = "numba_bs", "dense"
LABELS = {"forward": "forward", "grad_x": "dX", "grad_w": "dW"}


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


def _right(entry) -> bool:
    return "reason" not in entry and entry.get("passed", True)


def summarise(point: dict) -> Summary:
    """Return what the entry of one point says."""
    peers = point["peers"]
    entry = peers.get(OURS, {"reason": "not measured"})
    ours = entry["tflops"] if _right(entry) else None
    called = entry["tflops_called"] if _right(entry) else None
    others = {
        name: found
        for name, found in peers.items()
        if name != OURS and _right(found) and found["comparable"]
    }
    best_name = max(others, key=lambda name: others[name]["tflops"], default="")
    best = others[best_name]["tflops"] if others else None
    if others and not others[best_name].get("held", True):
        best_name += "*"
    best_called = max((o["tflops_called"] for o in others.values()), default=None)
    dense = break_even = None
    if DENSE in peers and _right(peers[DENSE]):
        # The dense product does the work of absent blocks as well.
        share = peers[DENSE]["tflops"]
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
        right = [e for e in found if _right(e) and e["comparable"]]
        if not right:
            return None
        total += right[0]["kernel_ms"][1] + right[0].get("refresh_ms", 0.0)
    return total


def _number(value, form="{:.3g}") -> str:
    """Return a number as text; three digits without exponents."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else form.format(value)


def _density(value) -> str:
    """Return a break-even density as text: there is none above 1."""
    return ">1" if value and value > 1 else _number(value, "{:.2f}")


def matmul_table(content: dict, names: list[str]) -> Table:
    """Return the table that ends a run, one line for each point and operation.

    "its": the best peer's rate; "x best" and "called": rate over it, kernels alone and
    by the host's clock; "even at": the density below which dense is slower.
    """
    table = Table(
        title=f"TFLOP/s of stored blocks, {content['header']['device']}",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("point", no_wrap=True)
    table.add_column("op", no_wrap=True)
    for head in (
        *("numba_bs", "GB/s", "best peer", "its", "x best", "called"),
        *("dense", "of dense", "even at", "first s"),
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for point in content["points"]:
        if point["case"] not in names or not point["complete"]:
            continue
        s = summarise(point)
        ours = "WRONG" if s.entry.get("passed") is False else _number(s.ours)
        table.add_row(
            point["case"],
            LABELS[point["op"]],
            "failed" if "reason" in s.entry else ours,
            _number(s.entry.get("gbs")),
            s.best_name or "-",
            _number(s.best),
            _number(s.speedup, "{:.2f}"),
            _number(s.speedup_called, "{:.2f}"),
            _number(s.dense),
            _number(s.share_of_dense, "{:.2f}"),
            _density(s.break_even),
            _number(s.entry.get("first_ms", 0) / 1e3, "{:.2g}"),
        )
    return table


def markdown(content: dict, file: str) -> str:
    """Return the table of one result file for README.md."""
    header = content["header"]
    versions = header["versions"]
    shown = ("numba-cuda", "torch", "triton", "stanford-stk", "blksprs", "numpy")
    software = [f"{name} {versions[name]}" for name in shown if name in versions]
    if header.get("driver"):
        software.insert(0, f"driver {header['driver']}")
    lines = [
        f"{header['device']}, {header['date'][:10]}, commit `{header['commit']}`, "
        f"{', '.join(software)}; inputs {header['inputs']}. From "
        f"[`{file}`](benchmarks/results/{file}).",
        *(f"\nincomplete: {part}." for part in incomplete(content)),
        "",
        "TFLOP/s count stored blocks only; in brackets: over the best peer, and its "
        "name. All three: time of forward + dX + dW of the best peer over that of "
        "numba_bs. What torch tuned, stk, blksprs and the others are: "
        "[benchmarks/README.md](benchmarks/README.md#peers).",
        "",
        "`*`: this peer's time includes the host's: it launches more slowly than its "
        "kernels run, or waits for the GPU.",
        "",
        "| dtype | M x K x N | block | density | forward | dX | dW | all three | dense "
        "| beats dense below density |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows: dict[tuple, dict[str, dict]] = {}
    for point in content["points"]:
        if not point["complete"]:
            continue
        R, C = point["blocksize"]
        density = f"{point['density']:.2g}"
        if point["pattern"] != "uniform":
            density += f", {point['pattern']}"
        size = f"{point['M']} x {point['K']} x {point['N']}"
        key = (point["dtype"], size, f"{R}x{C}", density)
        rows.setdefault(key, {})[point["op"]] = point
    for key, points in rows.items():
        ops = {op: summarise(point) for op, point in points.items()}
        cells = [_cell(ops.get(op)) for op in LABELS]
        both = step(points)
        cells.append(f"{_number(both[0], '{:.2f}')}x {both[1]}" if both else "-")
        cells += _dense_cells(points.get("forward"))
        lines.append(f"| {' | '.join((*key, *cells))} |")
    missing = content.get("missing") or {}
    if missing:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        lines += ["", f"Peers left out: {reasons}."]
    return "\n".join(lines)


def incomplete(content: dict) -> list[str]:
    """Return which sets of points were begun and not ended, in words.

    A file that does not say what was wanted is taken for the smallest set that has
    all its points.
    """
    done = [point["case"] for point in content["points"] if point["complete"]]
    wanted = content.get("wanted")
    if wanted is None:
        names = {name: {case.name for case in cases} for name, cases in SETS.items()}
        fitting = [name for name in names if set(done) <= names[name]]
        smallest = sorted(fitting, key=lambda name: len(names[name]))[:1]
        wanted = {name: len(names[name]) * len(LABELS) for name in smallest}
    parts = []
    for name, count in wanted.items():
        names = {case.name for case in SETS.get(name, ())}
        found = sum(case in names for case in done)
        if found < count:
            parts.append(f"stopped after {found} of {count} points of set `{name}`")
    return parts


def _dense_cells(point) -> list[str]:
    """Return the dense rate (TF32 too for fp32) and the break-even density."""
    if point is None:
        return ["-", "-"]
    s, tf32 = summarise(point), point["peers"].get("dense TF32", {"reason": ""})
    dense = _number(s.dense)
    if _right(tf32) and point["density"]:
        dense += f" (TF32 {_number(tf32['tflops'] / point['density'])})"
    return [dense, _density(s.break_even)]


def _cell(s: Summary | None) -> str:
    if s is None or s.ours is None:
        return "-"
    if s.speedup is None:
        return _number(s.ours)
    ratio = _number(s.speedup, "{:.2f}")
    return f"{_number(s.ours)} ({ratio}x {s.best_name})"


def rewrite(readme: Path, text: str):
    """Put ``text`` between the two comments in ``readme``.

    Raises
    ------
    ValueError
        The comments are not there, once each and in order.
    """
    old = readme.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(old)) != 1:
        raise ValueError(
            f"{readme}: the comments {BEGIN} and {END} must stand there once, in "
            "this order"
        )
    readme.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", old))


def newest(folder: Path, stem: str = "matmul") -> list[Path]:
    """Return the newest result file of each GPU."""
    latest: dict[str, tuple] = {}
    for path in sorted(folder.glob(f"{stem}_*.json")):
        header = json.loads(path.read_text())["header"]
        if header["gpu"] is None:
            continue
        latest[header["gpu"]] = max(
            latest.get(header["gpu"], ("", path)), (header["date"], path)
        )
    return [path for _, path in sorted(latest.values(), reverse=True)]


def draw_density(content: dict, path: Path):
    """Draw speed against density, a line for each block size, a panel each dtype."""
    plt = _pyplot()
    points = [
        p
        for p in content["points"]
        if p["complete"] and p["op"] == "forward" and p["pattern"] == "uniform"
    ]
    panels = list(dict.fromkeys((p["dtype"], p["M"], p["K"], p["N"]) for p in points))
    if not panels:
        raise ValueError(f"{path}: no uniform forward points to draw")
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 4), squeeze=False
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        dtype, M, K, N = panel
        lines: dict[str, list] = {}
        for p in points:
            if (p["dtype"], p["M"], p["K"], p["N"]) != panel:
                continue
            s, (R, C) = summarise(p), p["blocksize"]
            lines.setdefault(f"{R}x{C}", []).append((p["density"], s.ours, s.best))
        for number, (block, found) in enumerate(lines.items()):
            density, ours, best = zip(*sorted(found, key=lambda f: f[0]), strict=True)
            colour = f"C{number}"
            ax.plot(density, _gaps(ours), "o-", color=colour, label=f"block {block}")
            ax.plot(density, _gaps(best), "x:", color=colour)
        ax.set(
            xlabel="density",
            ylabel="TFLOP/s of stored blocks",
            title=f"{dtype}, {M} x {K} x {N}, forward",
            ylim=(0, None),
        )
        ax.legend(title="line: numba_bs, dotted: best peer", fontsize="small")
    figure.suptitle(content["header"]["device"])
    _save(plt, figure, path)


def draw_roofline(content: dict, path: Path):
    """Draw every point against the measured copy and dense matmul of the same run."""
    plt = _pyplot()
    copy = content["ceilings"]["copy_gbs"] * 1e9
    points = [p for p in content["points"] if p["complete"]]
    figure, ax = plt.subplots(figsize=(7, 5))
    dtypes = list(dict.fromkeys(p["dtype"] for p in points))
    markers = {"forward": "o", "grad_x": "s", "grad_w": "^"}
    for number, dtype in enumerate(dtypes):
        colour, here = f"C{number}", [p for p in points if p["dtype"] == dtype]
        rates = [s.dense for s in map(summarise, here) if s.dense]
        if rates:
            top = max(rates) * 1e12
            low = min(p["flops"] / p["bytes"] for p in points) / 2
            high = max(p["flops"] / p["bytes"] for p in points) * 2
            roof = [low, min(max(top / copy, low), high), high]
            ax.plot(
                roof,
                [min(top, copy * i) / 1e12 for i in roof],
                color=colour,
                label=f"{dtype}: copy and dense matmul",
            )
        for op, marker in markers.items():
            found = [(p, summarise(p)) for p in here if p["op"] == op]
            xy = [(p["flops"] / p["bytes"], s.ours) for p, s in found if s.ours]
            if xy:
                label = f"{dtype} {LABELS[op]}"
                ax.plot(*zip(*xy, strict=True), marker, color=colour, label=label)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="useful FLOP per byte of operands",
        ylabel="TFLOP/s of stored blocks",
        title=content["header"]["device"],
    )
    ax.legend(fontsize="small")
    _save(plt, figure, path)


def _gaps(values):
    return [float("nan") if value is None else value for value in values]


def _pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "--plot: matplotlib must be installed; pip install 'numba-bs[plot]'"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(plt, figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv=None) -> int:
    """Rewrite README's table from the newest results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, help="result files (default: each GPU's newest)")
    add("--readme", type=Path, default=README)
    add("--plot", action="store_true", help="draw roofline and speed against density")
    add("--print", action="store_true", help="print the table, leave README.md alone")
    options = parser.parse_args(argv)
    files = options.files or newest(RESULTS)
    if not files:
        print(f"no results of a GPU in {RESULTS}: run benchmarks.bench_matmul there")
        return 2
    contents = {path: json.loads(path.read_text()) for path in files}
    text = "\n\n".join(markdown(c, path.name) for path, c in contents.items())
    if options.print:
        print(text)
    else:
        try:
            rewrite(options.readme, text)
        except (OSError, ValueError) as error:
            print(error)
            return 2
    if options.plot:
        try:
            for path, content in contents.items():
                draw_roofline(content, path.with_name(f"{path.stem}_roofline.png"))
                draw_density(content, path.with_name(f"{path.stem}_density.png"))
        except ImportError as error:
            print(error)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
