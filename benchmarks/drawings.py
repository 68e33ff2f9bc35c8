"""Two drawings of a result file: rate against density, and the roofline."""

from pathlib import Path
from statistics import median

import numpy as np

from .summary import LABELS, block_name, kind, points_of, summarise

# From the smallest block to the largest, light to dark; told apart without colour too.
_BLOCK_COLOURS = ("#f0a202", "#d95d39", "#8f2d83", "#1b2a6b")
_KIND_COLOURS = {
    "bf16": "#1b4f9c",
    "fp16": "#3fa7d6",
    "fp32": "#c8553d",
    "tf32": "#e0a100",
    "tf32x3": "#4d8b31",
    "fp64": "#6b4c9a",
}
_MARKERS = {"forward": "o", "grad_x": "s", "grad_w": "^"}
_DENSITY_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def draw_density(content: dict, path: Path):
    """Draw the forward rate against density, a line for each block size.

    At density d the dense product takes as long as a block-sparse one that runs at
    d times the dense rate: that line is drawn, and where each block size crosses it.

    Raises
    ------
    ValueError
        There is no uniform forward point in the file.
    """
    plt = _pyplot()
    found = points_of(content, "default", "densities") or points_of(content)
    points = [p for p in found if p["op"] == "forward" and p["pattern"] == "uniform"]
    panels: dict[tuple, list] = {}
    for p in points:
        panels.setdefault((kind(p), p["M"], p["K"], p["N"]), []).append(p)
    if not panels:
        raise ValueError(f"{path}: no uniform forward points to draw")
    figure, axes = plt.subplots(
        *(1, len(panels)),
        figsize=(5.2 * len(panels), 5.2),
        squeeze=False,
        layout="constrained",
    )
    for ax, ((name, M, K, N), here) in zip(axes[0], panels.items(), strict=True):
        _draw_density_panel(ax, here)
        ax.set_title(f"{name}, {M} x {K} x {N}")
    axes[0][0].set_ylabel("TFLOP/s of stored blocks")
    _density_legend(figure, plt, points)
    figure.suptitle(f"{content['header']['device']}: A @ X with block-sparse A")
    _save(plt, figure, path)


def _draw_density_panel(ax, points):
    lines: dict[tuple, list] = {}
    for p in sorted(points, key=lambda p: p["density"]):
        lines.setdefault(tuple(p["blocksize"]), []).append((p["density"], summarise(p)))
    rates = [s.dense for line in lines.values() for _, s in line if s.dense]
    dense = median(rates) if rates else None
    low = min(density for line in lines.values() for density, _ in line) * 0.8
    top = max([dense or 0, *_rates(lines)]) * 1.06
    if dense:
        # Densities at which the dense product is as fast as a given rate.
        densities = np.geomspace(low, 1, 200)
        ax.fill_between(densities, densities * dense, color="0.92", lw=0)
        ax.plot(densities, densities * dense, color="0.45", lw=1.2)
        text = f"dense product faster\n(it runs at {dense:.0f})"
        ax.text(0.96, 0.04, text, **_AT_CORNER, transform=ax.transAxes)
    for block, colour in _colours(lines).items():
        densities, found = zip(*lines[block], strict=True)
        ours = [float("nan") if s.ours is None else s.ours for s in found]
        best = [(d, s.best) for d, s in lines[block] if s.best]
        if best:
            ax.plot(*zip(*best, strict=True), "x:", color=colour, lw=1.3, ms=5)
        ax.plot(densities, ours, "o-", color=colour, lw=2, ms=5)
        crossing = dense and break_even(densities, ours, dense)
        if crossing:
            density, rate, measured = crossing
            if not measured:
                ends = (densities[-1], density), (ours[-1], rate)
                ax.plot(*ends, "-", color=colour, lw=1, alpha=0.6)
            face = colour if measured else "white"
            ax.plot(density, rate, "D", color=colour, mfc=face, ms=7, zorder=4)
    ticks = [tick for tick in _DENSITY_TICKS if tick >= low]
    ax.set(xscale="log", xlim=(low, 1.04), ylim=(0, top), xlabel="density")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.grid(color="0.85", lw=0.6)
    ax.set_axisbelow(True)


_AT_CORNER = {"ha": "right", "va": "bottom", "color": "0.35", "fontsize": 9}


def _rates(lines):
    return [
        r for line in lines.values() for _, s in line for r in (s.ours, s.best) if r
    ]


def _colours(blocks):
    """Return a colour for each block size, the same in every panel and drawing."""
    known = {(16, 16): 0, (32, 32): 1, (64, 64): 2, (128, 128): 3}
    return {
        block: _BLOCK_COLOURS[known[block]] if block in known else f"C{number}"
        for number, block in enumerate(sorted(blocks))
    }


def break_even(densities, rates, dense: float) -> tuple[float, float, bool] | None:
    """Return where a curve of rates falls below ``density * dense``.

    Parameters
    ----------
    densities, rates : sequences of float
        The curve, densities ascending; straight in the logarithm of the density.
    dense : float
        Rate of the dense product.

    Returns
    -------
    (density, rate, measured) or None
        Not measured: the curve ends above the line, and meets it if the last rate
        stays what it is. None: the line is below the whole curve, or above it.
    """
    ahead = [
        rate > density * dense for density, rate in zip(densities, rates, strict=True)
    ]
    for i in range(len(ahead) - 1):
        if ahead[i] and not ahead[i + 1] and rates[i + 1] == rates[i + 1]:
            share = np.linspace(0, 1, 1001)
            x = densities[i] * (densities[i + 1] / densities[i]) ** share
            y = rates[i] + share * (rates[i + 1] - rates[i])
            at = int(np.argmax(y <= x * dense))
            return float(x[at]), float(y[at]), True
    if ahead[-1] and rates[-1] <= dense:
        return rates[-1] / dense, rates[-1], False
    return None


def _density_legend(figure, plt, points):
    line = plt.Line2D
    blocks = sorted({tuple(p["blocksize"]) for p in points})
    handles = [
        line([], [], color=colour, marker="o", ms=5, lw=2, label=f"numba_bs, {R}x{C}")
        for (R, C), colour in _colours(blocks).items()
    ]
    grey = {"color": "0.4"}
    handles += [
        line([], [], ls=":", marker="x", ms=5, **grey, label="best peer"),
        line([], [], lw=1.2, color="0.45", label="a tie with the dense product"),
        line([], [], ls="", marker="D", **grey, label="break-even"),
        line(
            *([], []),
            **{"ls": "", "marker": "D", "mfc": "white", **grey},
            label="break-even if the rate stays",
        ),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )


def draw_roofline(content: dict, path: Path):
    """Draw rates under what a copy and the dense product of the same run allow.

    A colour for each dtype, a marker for each operation, a number for the block size.
    """
    plt = _pyplot()
    copy = content["ceilings"]["copy_gbs"] * 1e9
    found = points_of(content, "default", "precisions") or points_of(content)
    points = [
        (p, s) for p, s in zip(found, map(summarise, found), strict=True) if s.ours
    ]
    if not points:
        raise ValueError(f"{path}: no points to draw")
    figure, ax = plt.subplots(figsize=(8, 6), layout="constrained")
    intensities = [_intensity(p) for p, _ in points]
    low, high = min(intensities) / 1.6, max(intensities) * 1.6
    handles = []
    for name in dict.fromkeys(kind(p) for p, _ in points):
        colour = _KIND_COLOURS.get(name, "0.3")
        here = [(p, s) for p, s in points if kind(p) == name]
        handles += _draw_roof(ax, name, colour, copy, here, low, high)
        _draw_points(ax, colour, here)
    _name_densities(ax, points)
    handles += [
        plt.Line2D([], [], ls="", marker=marker, color="0.4", ms=size, label=label)
        for marker, size, label in (
            *((marker, 7, LABELS[op]) for op, marker in _MARKERS.items()),
            ("$64$", 12, "block size, beside forward"),
        )
    ]
    ax.set(
        **{"xscale": "log", "yscale": "log", "xlim": (low, high)},
        ylim=(min(s.ours for _, s in points) / 1.5, None),
        xlabel="useful FLOP per byte of operands and result (dX, dW: moved aside)",
        ylabel="TFLOP/s of stored blocks",
        title=f"{content['header']['device']}: numba_bs under the limits of the GPU",
    )
    _plain_ticks(ax)
    ax.grid(color="0.88", lw=0.6, which="both")
    ax.set_axisbelow(True)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    _save(plt, figure, path)


def _draw_roof(ax, name, colour, copy, points, low, high):
    """Draw the limits of a dtype; return what the legend shows of it."""
    rates = [s.dense for p, s in points if s.dense and p["op"] == "forward"]
    line = ax.plot([], [], "-", color=colour, lw=4)[0]
    line.set_label(name)
    if rates and name != "tf32x3":  # no dense product is like it
        top = median(rates) * 1e12
        roof = np.geomspace(low, high, 400)
        ax.plot(roof, np.minimum(top, copy * roof) / 1e12, color=colour, lw=1.2)
        line.set_label(f"{name} (line: copy, dense at {median(rates):.0f})")
    return [line]


def _draw_points(ax, colour, points):
    """Draw the points of a dtype, with block sizes beside those of forward."""
    for p, s in points:
        aside = 1.05 ** list(_MARKERS).index(p["op"])
        ax.plot(
            *(_intensity(p) * aside, s.ours, _MARKERS[p["op"]]),
            **{"color": colour, "ms": 7, "mec": "white", "mew": 0.6},
        )
    for column in _columns(points):
        labels = [(s.ours, block_name(p)) for p, s in column if p["op"] == "forward"]
        for rate, text in _apart(labels):
            ax.annotate(
                *(text, (_intensity(column[0][0]), rate)),
                **{"xytext": (-6, 0), "textcoords": "offset points"},
                **{"ha": "right", "va": "center", "fontsize": 8.5, "color": colour},
            )


def _name_densities(ax, points):
    """Write below each column of points of one density which it is."""
    for column in _columns(points):
        densities = {f"{p['density']:.1g}" for p, _ in column}
        if len(densities) == 1:
            ax.annotate(
                f"density {densities.pop()}",
                (_intensity(column[0][0]) * 1.05, min(s.ours for _, s in column)),
                **{"xytext": (0, -10), "textcoords": "offset points"},
                **{"ha": "center", "va": "top", "fontsize": 8.5, "color": "0.4"},
            )


def _columns(points) -> list[list]:
    """Return points in groups of about the same intensity."""
    columns: list[list] = []
    for p, s in sorted(points, key=lambda point: _intensity(point[0])):
        if not columns or _intensity(p) > 1.1 * _intensity(columns[-1][0][0]):
            columns.append([])
        columns[-1].append((p, s))
    return columns


def _intensity(point) -> float:
    return point["flops"] / point["bytes"]


def _apart(labels, ratio: float = 1.09) -> list[tuple[float, str]]:
    """Return labels at heights that differ by ``ratio`` at least, close ones joined."""
    joined: list[tuple[float, str]] = []
    for height, text in sorted(labels):
        if joined and height < joined[-1][0] * ratio:
            joined[-1] = (joined[-1][0], f"{joined[-1][1]}, {text}")
        else:
            joined.append((height, text))
    return joined


def _plain_ticks(ax):
    """Put numbers at 1, 2 and 5 times powers of ten on both axes."""
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        marks = (m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5))
        ticks = [mark for mark in marks if low <= mark <= high]
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)


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
    figure.savefig(path, dpi=120)
    plt.close(figure)
