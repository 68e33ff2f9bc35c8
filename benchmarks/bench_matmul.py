"""Time `matmul` and `sddmm` as a layer uses them: forward, dX and dW, beside peers.

Run `python -m benchmarks.bench_matmul --help` in the root of the repository.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from . import peers as peer_module
from .cases import SETS
from .harness import (
    RESULTS,
    HostMachine,
    Results,
    find_machine,
    make_header,
    open_results,
)
from .peers import Unserved, find_peers, short
from .problems import OPS, Problem, check
from .report import matmul_table
from .summary import summarise


class GpuLost(Exception):  # noqa: N818 - it ends the process, not the run
    """A peer broke the CUDA context: nothing more runs in this process."""


class OutOfTime(Exception):  # noqa: N818
    """The time given by --seconds is spent."""


def main(argv=None) -> int:
    """Run the benchmark; see README.md. Return 0 if every result was right."""
    argv = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if options.list:
        # Points of a GPU can be listed anywhere.
        is_gpu = options.device == "gpu" or find_machine(options.device).is_gpu
        for case in _choose_cases(options, is_gpu)[1]:
            console.print(case.name, markup=False, highlight=False)
        return 0
    try:
        machine = find_machine(options.device)
        header = make_header(machine, options.commit)
        # Git ignores results of a CPU, by this name.
        stem = "matmul" if machine.is_gpu else "matmul_cpu"
        results = open_results(options.out, stem, header)
    except (RuntimeError, ValueError) as error:
        console.print(escape(str(error)))
        return 2
    name, cases = _choose_cases(options, machine.is_gpu)
    wanted = len(cases) * len(options.ops)
    # So that a report can tell when the run was stopped.
    known = results.content.setdefault("wanted", {}).setdefault(name, {})
    known.update({op: max(len(cases), known.get(op, 0)) for op in options.ops})

    folder = results.path.parent
    tuned = peer_module.TUNED
    if folder.resolve() != RESULTS.resolve():
        tuned = folder / tuned.name  # so that one folder holds all that a run leaves
    peers, missing = _choose_peers(
        find_peers(machine, tuned, options.tune_seconds), options.peers
    )
    _print_header(console, results, missing)
    results.content.setdefault("missing", {}).update(missing)

    deadline = time.monotonic() + options.seconds
    try:
        done = _run(console, machine, cases, options, peers, results, deadline)
    except GpuLost as lost:
        console.print(f"{escape(str(lost))}; starting again without it")
        _restart(argv, results, deadline)
    console.print(matmul_table(results.content, [case.name for case in cases]))
    if done < wanted:
        console.print(
            f"Stopped by --seconds after {done} of {wanted} points; "
            "the same command goes on."
        )
    console.print(f"Results: {results.path}", soft_wrap=True)
    wrong = _wrong(results, cases, options.ops)
    for line in wrong:
        console.print(f"WRONG: {line}", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_matmul", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--device", choices=("auto", "gpu", "cpu"), default="auto")
    add(
        "--set",
        choices=sorted(SETS),
        help="points to time (default: 'default', on a CPU 'cpu')",
    )
    add("--quick", action="store_true", help="a few small points")
    add("--only", metavar="REGEX", help="only points whose name this is found in")
    add("--ops", type=_names(OPS), default=OPS, metavar="OP,...", help=", ".join(OPS))
    add("--peers", type=_names(None), metavar="PEER,...", help="only these peers")
    add(
        "--seconds",
        type=float,
        default=float("inf"),
        help="stop after that time; the same command goes on later",
    )
    add(
        "--each",
        type=float,
        default=0.15,
        metavar="SECONDS",
        help="time for one measurement (default: 0.15)",
    )
    add(
        "--tune-seconds",
        type=float,
        default=6.0,
        metavar="SECONDS",
        help="most time for finding a peer's parameters, per product (default: 6)",
    )
    add(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder, or .json file, for the results (default: benchmarks/results)",
    )
    add("--again", action="store_true", help="measure points again that are there")
    add("--commit", help="name of the commit, where git cannot tell")
    add("--list", action="store_true", help="print the points and stop")
    return parser


def _names(known):
    """Return a parser of names with commas between, checked against ``known``."""

    def parse(text):
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if known is not None and name not in known:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is none of {', '.join(known)}"
                )
        return names

    return parse


def _choose_cases(options, is_gpu):
    """Return the set that the options ask for, and its points that they ask for."""
    ordinary = "quick" if options.quick else "default"
    if not is_gpu:
        ordinary = "cpu-quick" if options.quick else "cpu"
    name = options.set or ordinary
    pattern = re.compile(options.only or "")
    return name, [case for case in SETS[name] if pattern.search(case.name)]


def _choose_peers(peers, names):
    """Return peers that can run, and why the others cannot."""
    ours, *others = peers
    if names is not None:
        others = [peer for peer in others if peer.name in names]
    reasons = {peer.name: peer.missing() for peer in others}
    installed = [peer for peer in others if reasons[peer.name] is None]
    return [ours, *installed], {n: why for n, why in reasons.items() if why}


def _print_header(console, results: Results, missing):
    header = results.header
    versions = header["versions"]
    shown = ("numba_bs", "numba-cuda", "torch", "triton", "numpy", "scipy")
    parts = [header["device"]]
    parts += [f"driver {header['driver']}"] if header.get("driver") else []
    parts += [f"{name} {versions[name]}" for name in shown if name in versions]
    parts += [f"commit {header['commit']}", f"inputs {header['inputs']}"]
    console.print(", ".join(parts), markup=False, highlight=False)
    for name, why in missing.items():
        line = f"left out: {name} ({why})"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _run(console, machine, cases, options, peers, results, deadline) -> int:
    """Measure every point that is not there yet; return how many are."""
    wanted = [(case, op) for case in cases for op in options.ops]
    names = {peer.name for peer in peers}

    def there(case, op):
        point = results.find(case.name, op)
        complete = point is not None and point["complete"]
        return complete and names <= set(point["peers"])

    due = {item for item in wanted if options.again or not there(*item)}
    done = len(wanted) - len(due)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(wanted), completed=done)
        for case in cases:
            ops = [op for op in options.ops if (case, op) in due]
            if not ops:
                continue
            if time.monotonic() > deadline:
                return done
            progress.update(task, description=case.name)
            if not results.ceilings:
                results.ceilings["copy_gbs"] = machine.copy_rate() / 1e9
            problem = Problem(case, machine)
            for op in ops:
                try:
                    point = run_point(
                        problem, op, peers, results, options.each, deadline
                    )
                except OutOfTime:
                    return done
                done += 1
                progress.advance(task)
                line = f"{case.name} {op}: {_brief(point)}"
                progress.console.print(
                    line, markup=False, highlight=False, soft_wrap=True
                )
    return done


def run_point(problem, op, peers, results, seconds, deadline=float("inf")) -> dict:
    """Measure all peers at one point, in this process, and store the entry."""
    began = time.monotonic()
    case, layout = problem.case, problem.layout
    old = results.find(case.name, op) or {"peers": {}}
    point = {
        "case": case.name,
        "op": op,
        **case._asdict(),
        "density": layout.density,
        "blocks": layout.blocks,
        "flops": problem.flops,
        "bytes": problem.bytes,
        "complete": False,
        # A peer that took the GPU with it is not tried again.
        "peers": {k: v for k, v in old["peers"].items() if v.get("lost")},
    }
    for peer in peers:
        if peer.name in point["peers"]:
            continue
        if time.monotonic() > deadline:
            raise OutOfTime
        entry = point["peers"][peer.name] = run_peer(problem, op, peer, seconds)
        if entry.get("lost"):
            results.put(point)
            raise GpuLost(f"{peer.name} broke the GPU's context: {entry['reason']}")
    point["complete"] = True
    point["seconds"] = round(time.monotonic() - began, 2)
    results.put(point)
    return point


def run_peer(problem, op, peer, seconds) -> dict:
    """Check and measure one peer; whatever goes wrong becomes its reason."""
    machine = problem.machine
    try:
        return _measure_peer(problem, op, peer, seconds)
    except Exception as error:
        entry = {"reason": short(error)}
        if not isinstance(error, Unserved):
            entry["failed"] = True
    try:
        machine.synchronise()
        machine.free()
    except Exception as error:
        entry.update(lost=True, reason=f"{entry['reason']}; then {short(error)}")
    return entry


def _measure_peer(problem, op, peer, seconds):
    machine = problem.machine
    start = time.perf_counter()
    prepared = peer.prepare(op, problem)
    machine.synchronise()
    prepared_in = time.perf_counter() - start

    # The first call compiles; its result is the one that is checked.
    start = time.perf_counter()
    result = prepared.call()
    machine.synchronise()
    first = time.perf_counter() - start
    checked = {}
    if prepared.columns is None:
        output = prepared.output(result)
        found = check(problem, op, output, peer.rounding(problem.case))
        del output
        checked = {
            "passed": found.within(peer.slack),
            "error": found.error,
            "share_of_bound": found.share,
        }
    del result

    clock = machine if peer.gpu else HostMachine()
    timing = clock.measure(prepared.call, seconds)
    share = 1 if prepared.columns is None else prepared.columns / problem.case.N
    entry = {
        "first_ms": first * 1e3,
        "kernel_ms": [t * 1e3 for t in timing.kernel],
        "called_ms": [t * 1e3 for t in timing.called],
        "host_us": [t * 1e6 for t in timing.host],
        "repeats": timing.repeats,
        "held": timing.held,
        "tflops": share * problem.flops / timing.kernel.median / 1e12,
        "gbs": share * problem.bytes / timing.kernel.median / 1e9,
        "tflops_called": share * problem.flops / timing.called.median / 1e12,
        **checked,
        "comparable": peer.comparable(problem.case) and peer.gpu == machine.is_gpu,
        "prepare_ms": prepared_in * 1e3,
        "copies_bytes": prepared.copies_bytes,
        "note": prepared.note,
    }
    if prepared.refresh is not None:
        timing = machine.measure(prepared.refresh, seconds / 3)
        entry["refresh_ms"] = timing.kernel.median * 1e3
    return _rounded(entry)


def _rounded(entry):
    """Return the entry with floats cut to what they are good for."""

    def cut(value):
        if isinstance(value, list):
            return [cut(v) for v in value]
        return float(f"{value:.5g}") if isinstance(value, float) else value

    return {key: cut(value) for key, value in entry.items()}


def _brief(point) -> str:
    """Return a point in one line, as a log of a run that is cut off."""
    parts = []
    for name, entry in point["peers"].items():
        if "reason" in entry:
            parts += [f"{name} failed: {entry['reason']}"] if "failed" in entry else []
            continue
        wrong = "" if entry.get("passed", True) else " WRONG"
        parts.append(f"{name} {entry['tflops']:.3g}{wrong}")
    return f"{'; '.join(parts)} TFLOP/s ({point['seconds']:.1f} s)"


def _wrong(results, cases, ops):
    """Return where numba_bs gave a wrong result, or none."""
    lines = []
    for case in cases:
        for op in ops:
            point = results.find(case.name, op)
            if point is None or not point["complete"]:
                continue
            entry = summarise(point).entry
            if "reason" in entry:
                lines.append(f"{case.name} {op}: {entry['reason']}")
            elif not entry["passed"]:
                lines.append(
                    f"{case.name} {op}: relative error {entry['error']:.2g}, "
                    f"{entry['share_of_bound']:.3g} of what rounding explains"
                )
    return lines


def _restart(argv, results: Results, deadline: float):
    """Run the same command in a new process in place of this one."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    left = deadline - time.monotonic()
    command = [sys.executable, "-m", "benchmarks.bench_matmul", *argv]
    command += ["--out", str(results.path), f"--seconds={left:.0f}"]
    command += [f"--commit={results.header['commit']}"]
    command = [argument for argument in command if argument != "--again"]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    sys.exit(main())
