"""Turn result files into README's tables and two drawings.

    python -m benchmarks.report            rewrite what README.md shows
    python -m benchmarks.report --plot     and draw benchmarks/results/*.png

It stands between two comments in README.md and is never typed by hand: the drawings,
a table of the set `default`, and short ones of what other sets are there to tell.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from rich import box
from rich.table import Table

from . import drawings
from .cases import SETS
from .harness import RESULTS
from .summary import (
    LABELS,
    block_name,
    dense_name,
    kind,
    points_of,
    right,
    step,
    summarise,
)

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"
# By the end of the file's name, in the order of README; and what is said for those
# who cannot see them.
DRAWINGS = {
    "density": (
        drawings.draw_density,
        "forward rate against density for each block size, beside the best peer, and "
        "the line below which the dense product is faster",
    ),
    "roofline": (
        drawings.draw_roofline,
        "rates of forward, dX and dW under the limits set by a copy and by the dense "
        "product",
    ),
}


def _number(value, form="{:.3g}") -> str:
    """Return a number as text; three digits without exponents."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else form.format(value)


def _times(ratio: float) -> str:
    """Return a ratio as text."""
    return f"{ratio:.{2 if ratio < 9.995 else 1}f}x"


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


def markdown(content: dict, path: Path) -> str:
    """Return what README.md shows of one result file.

    The drawings that lie beside the file; the points of the set `default` (or all, if
    none are of it); what other sets tell.
    """
    shown = points_of(content, "default")
    parts = [
        f"**{content['header']['device']}**, {content['header']['date'][:10]}.",
        *(f"incomplete: {part}." for part in incomplete(content)),
        *_pictures(content, path),
        _main_table(shown or points_of(content)),
    ]
    if shown:
        parts += [_precisions(content), _scale_free(content), _odd_width(content)]
        parts += [_small(content), _rest(content)]
    parts.append(_provenance(content, path))
    return "\n\n".join(part for part in parts if part)


def _pictures(content, path) -> list[str]:
    device = content["header"]["device"]
    return [
        f"![{device}: {text}](benchmarks/results/{picture.name})"
        for name, (_, text) in DRAWINGS.items()
        if (picture := picture_path(path, name)).exists()
    ]


def picture_path(path: Path, name: str) -> Path:
    """Return where a drawing of a result file lies."""
    return path.with_name(f"{path.stem}_{name}.png")


def _main_table(points) -> str:
    text = (
        "TFLOP/s of stored blocks; in brackets: times the rate of the best peer, and "
        "its name. All three: time of forward + dX + dW of the best peer over that of "
        "numba_bs. Dense: the dense product; below the density in the last column "
        "forward is faster than it. What the peers are: "
        "[benchmarks/README.md](benchmarks/README.md#peers)."
    )
    table = _table(points, _against_best, dense=True)
    stars = (
        "`*`: this peer's time includes the host's: it launches more slowly than its "
        "kernels run, or waits for the GPU."
    )
    return "\n\n".join([text, table, *([stars] if "*" in table else [])])


def _precisions(content) -> str:
    points = points_of(content, "precisions")
    if not points:
        return ""
    return (
        "### Other precisions\n\n"
        'As above: float32 with `precision=` "tf32" (beside peers in TF32) and '
        '"tf32x3" (three products), and float64.\n\n'
        + _table(points, _against_best, dense=True)
    )


def _scale_free(content) -> str:
    def same(point, other):
        patterns = point["pattern"], other["pattern"]
        return patterns == ("power-law", "uniform") and _alike(
            point, other, "N", "blocks"
        )

    table = _twins_table(content, same)
    return table and (
        "### Scale-free layouts\n\n"
        "A few block rows much longer than the others (Barabasi-Albert). TFLOP/s; in "
        "brackets: over a uniform layout with as many blocks.\n\n" + table
    )


def _odd_width(content) -> str:
    def same(point, other):
        widths = point["N"], other["N"]
        return widths == (8191, 8192) and _alike(point, other, "pattern", "density")

    table = _twins_table(content, same)
    return table and (
        "### Odd sizes\n\nTFLOP/s where N is 8191; in brackets: over N = 8192.\n\n"
        + table
    )


def _alike(point, other, *more) -> bool:
    """Whether two points are of the same operation, dtype, A's shape and these."""
    names = "op", "dtype", "precision", "M", "K", "blocksize", *more
    return all(point.get(name) == other.get(name) for name in names)


def _twins_table(content, same) -> str:
    """Return a table of points beside others that ``same`` pairs them with."""
    points = points_of(content)
    twins = {}
    for point in points:
        found = [other for other in points if same(point, other)]
        if found:
            twins[point["case"], point["op"]] = found[0]

    def cell(point):
        ours = summarise(point).ours
        twin = summarise(twins[point["case"], point["op"]]).ours
        ratio = f" ({ours / twin:.2f})" if ours and twin else ""
        return f"{_number(ours)}{ratio}"

    chosen = [point for point in points if (point["case"], point["op"]) in twins]
    return _table(chosen, cell) if chosen else ""


def _small(content) -> str:
    points = points_of(content, "small")
    if not points:
        return ""
    return (
        "### Small products\n\n"
        "By the host's clock, from the call until the GPU is done: TFLOP/s, times "
        "the best peer.\n\n" + _table(points, _as_called)
    )


def _rest(content) -> str:
    """Return the points of sets that have no table of their own, folded away."""
    points = points_of(content, "blocks", "patterns", "dtypes", "widths")
    told = points_of(content, "default", "precisions", "scale-free")
    shown = {point["case"] for point in told}
    points = [p for p in points if p["case"] not in shown and p["N"] != 8191]
    if not points:
        return ""
    table = _table(points, _against_best, dense=True)
    summary = "Other blocks, patterns, dtypes and widths"
    return f"<details><summary>{summary}</summary>\n\n{table}\n\n</details>"


def _provenance(content, path) -> str:
    header = content["header"]
    versions, commit = header["versions"], header["commit"]
    shown = ("numba-cuda", "torch", "triton", "stanford-stk", "blksprs", "numpy")
    software = [f"{name} {versions[name]}" for name in shown if name in versions]
    if header.get("driver"):
        software.insert(0, f"driver {header['driver']}")
    changed = "+" if commit.endswith("+") else ""
    text = (
        f"Commit `{commit.rstrip('+')[:12]}{changed}`, {', '.join(software)}; inputs "
        f"{header['inputs']}. All that was measured: "
        f"[`{path.name}`](benchmarks/results/{path.name})."
    )
    missing = content.get("missing") or {}
    reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
    return f"{text} Peers left out: {reasons}." if missing else text


def _table(points, cell, dense=False) -> str:
    """Return a table with a row for each case and a column for each operation.

    Parameters
    ----------
    points : list
    cell : function
        Of a point: what stands in its column.
    dense : bool
        Whether to show the step of all three, and the dense product.
    """
    points = list(points)
    sizes = {(point["M"], point["K"], point["N"]) for point in points}
    patterns = {point["pattern"] for point in points}
    head = ["dtype", "block", "density", *LABELS.values()]
    if len(patterns) > 1:
        head.insert(1, "layout")
    if len(sizes) > 1:
        head.insert(1, "M x K x N")
    if dense:
        head += ["all three", "dense", "beats dense below"]
    rows: dict[tuple, dict[str, dict]] = {}
    for point in points:
        key = [kind(point), block_name(point), f"{point['density']:.2g}"]
        if len(patterns) > 1:
            key.insert(1, point["pattern"])
        if len(sizes) > 1:
            key.insert(1, f"{point['M']} x {point['K']} x {point['N']}")
        rows.setdefault(tuple(key), {})[point["op"]] = point
    lines = [head, ["---"] * len(head)]
    for key, row in rows.items():
        cells = [cell(row[op]) if op in row else "-" for op in LABELS]
        if dense:
            both = step(row)
            cells.append(f"{_times(both[0])} {both[1]}" if both else "-")
            cells += _dense_cells(row.get("forward"))
        lines.append([*key, *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if len(sizes) > 1:
        return table
    (M, K, N), *_ = sizes
    return f"A of {M} x {K}, times {K} x {N}:\n\n{table}"


def _against_best(point) -> str:
    """Return the rate, and the ratio to the best peer."""
    s = summarise(point)
    if s.speedup is None:
        return _number(s.ours)
    return f"{_number(s.ours)} ({_times(s.speedup)} {s.best_name})"


def _as_called(point) -> str:
    """Return the rate by the host's clock, and the ratio to the best peer's."""
    s = summarise(point)
    if s.speedup_called is None:
        return _number(s.ours_called)
    return f"{_number(s.ours_called)} ({_times(s.speedup_called)})"


def _dense_cells(point) -> list[str]:
    """Return the dense rate (TF32 too for fp32) and the break-even density."""
    if point is None:
        return ["-", "-"]
    s, tf32 = summarise(point), point["peers"].get("dense TF32", {"reason": ""})
    dense = _number(s.dense)
    if right(tf32) and point["density"] and dense_name(point) != "dense TF32":
        dense += f" (TF32 {_number(tf32['tflops'] / point['density'])})"
    return [dense, _density(s.break_even)]


def incomplete(content: dict) -> list[str]:
    """Return which sets of points were begun and not ended, in words.

    A file that does not say what was wanted is taken for the smallest set that has
    all its points.
    """
    done = points_of(content)
    wanted = content.get("wanted")
    if wanted is None:
        cases = {point["case"] for point in done}
        names = {name: {case.name for case in points} for name, points in SETS.items()}
        fitting = [name for name in names if cases <= names[name]]
        smallest = sorted(fitting, key=lambda name: len(names[name]))[:1]
        wanted = {name: dict.fromkeys(LABELS, len(names[name])) for name in smallest}
    parts = []
    for name, counts in wanted.items():
        names = {case.name for case in SETS.get(name, ())}
        ops = [point["op"] for point in done if point["case"] in names]
        if isinstance(counts, int):  # as older files have it: of all operations
            found, count = len(ops), counts
        else:
            count = sum(counts.values())
            found = sum(min(most, ops.count(op)) for op, most in counts.items())
        if found < count:
            parts.append(f"stopped after {found} of {count} points of set `{name}`")
    return parts


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


def main(argv=None) -> int:
    """Rewrite what README shows from the newest results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, help="result files (default: each GPU's newest)")
    add("--readme", type=Path, default=README)
    add("--plot", action="store_true", help="draw roofline and speed against density")
    add("--print", action="store_true", help="print it, leave README.md alone")
    options = parser.parse_args(argv)
    files = options.files or newest(RESULTS)
    if not files:
        print(f"no results of a GPU in {RESULTS}: run benchmarks.bench_matmul there")
        return 2
    contents = {path: json.loads(path.read_text()) for path in files}
    if options.plot:
        try:
            for path, content in contents.items():
                for name, (draw, _) in DRAWINGS.items():
                    draw(content, picture_path(path, name))
        except (ImportError, ValueError) as error:
            print(error)
            return 2
    text = "\n\n".join(markdown(c, path) for path, c in contents.items())
    if options.print:
        print(text)
    else:
        try:
            rewrite(options.readme, text)
        except (OSError, ValueError) as error:
            print(error)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
