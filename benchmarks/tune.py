"""Find the constants of Hopper's rungs and rewrite ``numba_bs/choose/tables.py``.

    python -m benchmarks.tune                    all of them, some minutes
    python -m benchmarks.tune --only dsd/64      those of block 64
    python -m benchmarks.tune --print            say what is best, write nothing

Needs a GPU of compute capability 9.0. Each candidate is a call of `matmul` or `sddmm`
as a user makes it, checked like every benchmark, cold cache; what is wrong or does not
compile is left out. Users' calls never tune: `choose` looks the constants up.
"""

import argparse
import itertools
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import numba_bs as bs
from numba_bs.choose import tables

from .cases import Case
from .harness import find_machine
from .peers import short
from .problems import Problem, check

FILE = Path(tables.__file__)
DENSITIES = {False: 0.1, True: 0.3}  # sparser than tables.DENSE, or not

# rows, chunks, row_groups, wide, stage_cols, cap, out_tiles of choose.wgmma.WgmmaConfig
_STRAIGHT = [
    (1, 4, 2, 1, 1, 2, 2),
    (1, 4, 2, 1, 1, 2, 1),
    (1, 4, 3, 1, 1, 2, 1),
    (1, 4, 3, 1, 1, 3, 1),
    (2, 3, 2, 1, 1, 3, 2),
    (2, 2, 2, 1, 1, 4, 2),
]
DSD = {
    128: _STRAIGHT,
    64: _STRAIGHT,
    32: [
        (rows, chunks, 2, wide, cols, cap, out_tiles)
        for rows, chunks, out_tiles in ((4, 3, 3), (4, 2, 4), (3, 4, 4), (6, 2, 4))
        for wide, cols, cap in ((1, 2, 8), (2, 1, 8))
    ],
    16: [
        (rows, chunks, 2, wide, cols, cap, out_tiles)
        for rows, chunks, out_tiles in ((6, 4, 6), (4, 4, 4), (8, 3, 6), (8, 2, 4))
        for wide, cols, cap in ((1, 4, 20), (4, 1, 20))
    ],
}
# width, parts, row_groups, col_groups, by_place of choose.wgmma_sdd.SampleConfig
_SAMPLED = [(256, 1, 2, 1), (128, 2, 1, 2), (128, 2, 2, 1), (256, 1, 1, 1)]
SDD = [(*each, by_place) for each in _SAMPLED for by_place in (False, True)]


def keys() -> dict[str, tuple]:
    """Return the name of every entry of the tables, and (table, key, candidates)."""
    entries = {}
    for block, candidates in DSD.items():
        for key in itertools.product((False, True), repeat=3):
            dense, along_k, whole = key
            name = f"dsd/{block}/d{DENSITIES[dense]}/{'k' if along_k else 'n'}"
            name += "" if whole else "/one-by-one"
            entries[name] = tables.DSD, (block, *key), candidates
        for dense in (False, True):
            name = f"sdd/{block}/d{DENSITIES[dense]}"
            entries[name] = tables.SDD, (block, dense), SDD
    return entries


def call_of(problem, name, key):
    """Return the call that looks ``key`` up, its operation and what it writes."""
    machine, x = problem.machine, problem.x
    # Calls are prepared for a layout: another one of the same blocks is asked anew.
    layout = bs.Layout.from_mask(problem.layout.mask(), problem.layout.blocksize)
    if name.startswith("sdd"):
        out = machine.empty(problem.values.shape, problem.values)
        target = bs.bsr_array((out, layout))
        grad_y, x_t = problem.grad_y, x.T

        def sampled():
            bs.sddmm(grad_y, x_t, layout, out=target, variant="wgmma")

        return sampled, "grad_w", out
    _, _, along_k, whole = key
    a = bs.bsr_array((problem.values, layout))
    x = machine.copy(x.T).T if along_k else x
    out = machine.empty((problem.case.M, problem.case.N), x if whole else x.float())
    out = machine.copy(out.T).T if along_k else out
    return lambda: bs.matmul(a, x, out=out, variant="wgmma"), "forward", out


def rate(problem, name, key) -> float | None:
    """Return TFLOP/s with what the table says now; None if the result is wrong."""
    call, op, out = call_of(problem, name, key)
    call()
    if not check(problem, op, out).within(1):
        return None
    return problem.flops / problem.machine.quick(call, 5) / 1e12


def sweep(problem, name, entry, advance) -> list[tuple]:
    """Return (TFLOP/s, constants), best first; leave the table as it was."""
    table, key, candidates = entry
    before, found = table[key], []
    try:
        for candidate in candidates:
            table[key] = candidate
            try:
                speed = rate(problem, name, key)
            except Exception as error:  # of the compiler, or there is no room for it
                advance(f"{candidate}: {short(error)}")
                continue
            finally:
                problem.machine.synchronise()
            advance(None)
            if speed is not None:
                found.append((speed, candidate))
    finally:
        table[key] = before
    return sorted(found, reverse=True)


def text(found: dict[str, list]) -> str:
    """Return the file of the tables with what was found, and the rest as it stands."""
    source = FILE.read_text()
    for name, ranked in found.items():
        table, key, _ = keys()[name]
        which = "DSD" if table is tables.DSD else "SDD"
        (speed, best), *others = ranked
        after = f", next {others[0][0]:.0f}" if others else ""
        line = f"    {key}: {best},  # {speed:.0f}{after}"
        pattern = rf"(?<=^{which} = {{\n)(.*?)(?=^}})"
        body = re.search(pattern, source, re.MULTILINE | re.DOTALL)
        lines = body[0].splitlines()
        at = next(i for i, old in enumerate(lines) if old.startswith(f"    {key}:"))
        lines[at] = line
        new = "\n".join(lines) + "\n"
        source = source[: body.start()] + new + source[body.end() :]
    return source


def main(argv=None) -> int:
    """Sweep; return 0 if every entry found something that is right."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="some entries")
    parser.add_argument("--size", type=int, default=8192, help="of M, K and N")
    parser.add_argument("--print", action="store_true", help="leave the file alone")
    options = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 150)
    chosen = {n: e for n, e in keys().items() if re.search(options.only, n)}
    try:
        machine = find_machine("gpu")
    except RuntimeError as error:
        console.print(str(error), markup=False)
        return 2
    if machine.capability != "9.0":
        console.print(f"tune needs compute capability 9.0, got {machine.capability}")
        return 2
    found, missing = {}, []
    with Progress(console=console) as progress:
        total = sum(len(candidates) for _, _, candidates in chosen.values())
        task = progress.add_task("tuning", total=total)

        def advance(refused):
            progress.advance(task)
            if refused:
                progress.console.print(f"  {refused}", markup=False)

        by_case = itertools.groupby(sorted(chosen, key=_case_order), key=_case_order)
        for (block, dense), names in by_case:
            n = options.size
            case = Case("bf16", n, n, n, (block, block), DENSITIES[dense])
            problem = Problem(case, machine)
            for name in names:
                ranked = sweep(problem, name, chosen[name], advance)
                if not ranked:
                    missing.append(name)
                    continue
                found[name] = ranked
                best = "; ".join(f"{speed:.0f} {each}" for speed, each in ranked[:3])
                progress.console.print(f"{name}: {best}", markup=False)
            del problem
            machine.free()
    if missing:
        console.print(f"nothing is right for {', '.join(missing)}", markup=False)
    if not options.print:
        FILE.write_text(text(found))
    return 1 if missing else 0


def _case_order(name):
    """Return (block, dense): the entries that share a problem."""
    _, block, density, *_ = name.split("/")
    return int(block), density == f"d{DENSITIES[True]}"


if __name__ == "__main__":
    sys.exit(main())
