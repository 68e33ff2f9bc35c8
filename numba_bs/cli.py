"""The command line: ``numba-bs info | demo | bench``, also ``python -m numba_bs``."""

import argparse
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

import numba_bs as bs

from . import environment

DTYPES = ("float32", "float64", "complex64", "complex128")
_FILE_OPTIONS = ("blocksize", "columns", "dtype", "key")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : list of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        0: as it should be. 1: ``info`` found a problem, a result of ``demo`` is wrong,
        a benchmark failed. 2: the arguments or the file are not usable.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is _demo and arguments.file is None:
        for option in _FILE_OPTIONS:
            if getattr(arguments, option) is not None:
                parser.error(f"--{option} is about FILE, which is missing")
    console = Console(highlight=False)
    return arguments.command(arguments, console)


def _parser():
    parser = argparse.ArgumentParser(
        prog="numba-bs",
        description="Block-sparse computing on NVIDIA GPUs; on the CPU where there is "
        "none.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=bs.__version__)
    commands = parser.add_subparsers(required=True, metavar="info | demo | bench")

    info = commands.add_parser(
        "info", help="versions, GPUs, what is missing or does not fit, how to mend it"
    )
    info.set_defaults(command=_info)

    demo = commands.add_parser(
        "demo",
        help="multiply a block-sparse matrix, forward and backward, checked and timed",
        description="Multiply a block-sparse matrix by a dense one, with both "
        "gradients: check them against the reference and time them beside a dense "
        "product and SciPy.",
    )
    demo.set_defaults(command=_demo)
    demo.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="matrix as .npz, .mtx, .mat or .smtx (default: an elastic box with 3x3 "
        "blocks, and a pruned linear layer with 32x32 blocks)",
    )
    demo.add_argument(
        "--blocksize",
        type=_blocksize,
        metavar="RxC",
        help="block size for FILE (default: that of the file, or one that fits it)",
    )
    demo.add_argument(
        "--columns", type=_positive, help="of the dense operand (default: 64)"
    )
    demo.add_argument("--dtype", choices=DTYPES, help="convert FILE to it")
    demo.add_argument("--key", help="which variable of a .mat file")
    demo.add_argument("--plot", metavar="PNG", help="draw the layouts into this file")
    demo.add_argument(
        "--host", action="store_true", help="compute on the CPU, even with a GPU"
    )

    bench = commands.add_parser(
        "bench", help="run the benchmarks of the source checkout"
    )
    bench.set_defaults(command=_bench)
    bench.add_argument(
        "name", nargs="?", help="run bench_NAME alone (default: every benchmark)"
    )
    bench.add_argument(
        "options", nargs=argparse.REMAINDER, help="passed on to the benchmark"
    )
    return parser


def _blocksize(text):
    """Parse ``3x3``, or ``3`` for the same."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(
            f"must be two positive whole numbers like 3x3, got {text!r}"
        )
    return int(sides[0]), int(sides[-1])


def _positive(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"must be a positive whole number, got {text!r}"
        )
    return int(text)


# ------------------------------------------------------------------------- info


def _info(arguments, console):
    driver = environment.driver()
    console.print(_versions(driver))
    found = environment.findings(driver)
    _print_findings(console, found)
    if not found:
        console.print("Kernels run on the GPU: a small product there was right.")
    return int(any(finding.problem for finding in found))


def _versions(driver):
    """Return the table of what is there."""
    table = Table(show_header=False)
    table.add_row("numba_bs", bs.__version__)
    table.add_row("Python", f"{platform.python_version()}, {platform.platform()}")
    for package, bounds in environment.REQUIREMENTS.items():
        table.add_row(
            package, f"{environment.version(package) or '-'} (wants {bounds})"
        )
    optional = {name: environment.version(name) for name in environment.OPTIONAL}
    for package, found in optional.items():
        if found is not None:
            table.add_row(package, found)
    absent = [package for package, found in optional.items() if found is None]
    table.add_row("optional, not installed", ", ".join(absent) or "none")
    served = "serves CUDA {}.{}".format(*driver.cuda) if driver.found else "none"
    table.add_row("NVIDIA driver", served)
    for number, gpu in enumerate(driver.gpus):
        table.add_row(f"GPU {number}", str(gpu))
    return table


def _print_findings(console, found):
    """Print each finding with its fix, which is kept on one line to be copied."""
    for finding in found:
        label = "[bold red]Problem[/]" if finding.problem else "[bold]Note[/]"
        console.print(f"{label}: ", end="")
        console.print(finding.what, markup=False)
        console.print(f"  -> {finding.fix}", markup=False, soft_wrap=True)


# ------------------------------------------------------------------------- demo


def _demo(arguments, console):
    from . import demo  # it loads rich's progress bars and SciPy's file formats

    found = [] if arguments.host else environment.findings()
    on_device = not found and not arguments.host
    try:
        if arguments.file is None:
            cases = demo.default_cases(on_device)
        else:
            cases = [
                demo.own_case(
                    arguments.file,
                    blocksize=arguments.blocksize,
                    columns=arguments.columns or 64,
                    dtype=arguments.dtype,
                    key=arguments.key,
                )
            ]
        if arguments.plot is not None:
            demo.save_plot(cases, arguments.plot)
    except (OSError, ValueError, NotImplementedError, ImportError) as error:
        print(f"numba-bs: {error}", file=sys.stderr)
        return 2
    if arguments.plot is not None:
        console.print(f"Layout drawn: {arguments.plot}", markup=False, soft_wrap=True)
    right = demo.run(cases, on_device=on_device, console=console)
    if on_device:
        console.print(f"Ran on the GPU: {environment.driver().gpus[0]}.")
    else:
        asked = ", as --host asks" if arguments.host else ""
        console.print(
            f"Ran on the CPU{asked}: the reference (NumPy and SciPy), not a kernel."
        )
        _print_findings(console, found)
    if not right:
        console.print("[bold red]A result is wrong.[/] Please report it.")
    return int(not right)


# ------------------------------------------------------------------------ bench


def _bench(arguments, console):
    for root in (Path(bs.__file__).parents[1], Path.cwd()):
        modules = sorted(path.stem for path in root.glob("benchmarks/bench_*.py"))
        if modules:
            break
    else:
        print(
            "numba-bs bench: the benchmarks are part of the source checkout, not of "
            "the installed package; run this in the folder that holds benchmarks/",
            file=sys.stderr,
        )
        return 2
    names = [stem.removeprefix("bench_") for stem in modules]
    if arguments.name is not None:
        if arguments.name not in names:
            print(
                f"numba-bs bench: the name must be one of {', '.join(names)}, "
                f"got {arguments.name}",
                file=sys.stderr,
            )
            return 2
        names = [arguments.name]
    failed = []
    for name in names:
        command = [sys.executable, "-m", f"benchmarks.bench_{name}"]
        shown = shlex.join(["python", *command[1:], *arguments.options])
        if root != Path.cwd():
            shown = f"cd {shlex.quote(str(root))} && {shown}"
        console.print(shown, markup=False, soft_wrap=True)
        if subprocess.run(command + arguments.options, cwd=root).returncode:
            failed.append(name)
    if failed:
        print(f"numba-bs bench: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))
