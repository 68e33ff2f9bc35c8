"""Compile kernels without a GPU and without the simulator; what came out, as data.

``NUMBA_ENABLE_CUDASIM`` is read when numba is imported, so this happens in a child
process: one for all the jobs of a call, since starting it costs more than a job.

    facts = compile_all([Job(_make_kernel, (32, 32), ("float32[:, :]", "int64"))])
"""

import json
import os
import pickle
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Job(NamedTuple):
    """One kernel to compile."""

    maker: Callable  # a function that the child can import by its name
    args: tuple  # of the maker
    signature: tuple[str, ...]  # "float32[:, :]", "int64", "TensorMap"
    capability: tuple[int, int] = (9, 0)


class Facts(NamedTuple):
    """What the PTX and the linker's log say of a compiled kernel."""

    error: str | None = None  # nothing below holds then
    registers: int = 0  # of a thread
    spill_bytes: int = 0  # stored and loaded
    stack_bytes: int = 0  # local memory of a thread
    serialized: bool = False  # wgmma waits for itself, and the log says so
    shared_bytes: int = 0  # of fixed shape
    local: bool = False  # whether the PTX declares local memory
    max_threads: int = 0
    target: str = ""  # "sm_90a"
    parameters: tuple[str, ...] = ()  # "u64", "f32", ... in order
    instructions: dict = {}  # noqa: RUF012 - mnemonic -> how often it stands in the PTX
    seconds: float = 0.0

    def count(self, prefix: str) -> int:
        """Return how many instructions begin with ``prefix``, such as "ld.global"."""
        return sum(
            n for name, n in self.instructions.items() if name.startswith(prefix)
        )


def compile_all(jobs: list[Job], errors: bool = False) -> list[Facts]:
    """Return the facts of each job; skip the test where nothing can compile.

    Parameters
    ----------
    jobs : list of Job
    errors : bool
        Leave a job that fails to the caller; else it raises.
    """
    results = run_child("compile_child", pickle.dumps(jobs))
    if "missing" in results:
        pytest.skip(f"no CUDA compiler: {results['missing']}")
    facts = [Facts(**each) for each in results["facts"]]
    for job, each in zip(jobs, facts, strict=True):
        if each.error and not errors:
            raise AssertionError(f"{job} does not compile:\n{each.error}")
    return facts


def run_child(module: str, stdin: bytes = b"", **environment: str) -> dict:
    """Run ``python -m module`` without the simulator; return the JSON it prints."""
    paths = [os.environ.get("PYTHONPATH", ""), *sys.path]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "NUMBA_ENABLE_CUDASIM": "0",
        **environment,
    }
    child = subprocess.run(
        [sys.executable, "-P", "-m", module],
        input=stdin,
        capture_output=True,
        env=variables,
        timeout=900,
    )
    if child.returncode:
        raise AssertionError(f"the child process failed:\n{child.stderr.decode()}")
    return json.loads(child.stdout.decode().splitlines()[-1])


# -------------------------------------------------------------------- in the child


def main():
    """Compile the jobs that come pickled on stdin."""
    missing = _missing()
    if missing:
        print(json.dumps({"missing": missing}))
        return
    facts = [_facts(job) for job in pickle.load(sys.stdin.buffer)]
    print(json.dumps({"facts": facts}))


def _missing():
    try:
        from numba.cuda.cudadrv import nvrtc, nvvm

        nvvm.NVVM()
        nvrtc.get_supported_ccs()
    except Exception as error:  # the loaders of these libraries agree on no class
        return f"{type(error).__name__}: {error}"
    return None


def _facts(job):
    from numba_bs.cuda import compiler

    start = time.perf_counter()
    try:
        kernel = job.maker(*job.args)
        signature = parse_signature(job.signature)
        compiled = compiler.compile(kernel, signature, job.capability)
    except Exception:
        return {"error": traceback.format_exc()}
    facts = {**of_ptx(compiled.ptx), **of_log(compiled.log)}
    return {**facts, "seconds": time.perf_counter() - start}


def parse_signature(texts):
    """Return Numba types; "TensorMap" knows which of the flat parameters it is."""
    from numba_bs.cuda.compiler import TensorMapType

    signature, parameters = [], 0
    for text in texts:
        if text == "TensorMap":
            signature.append(TensorMapType(parameters))
        else:
            signature.append(parse_type(text))
        axes = text.count(":")
        parameters += 5 + 2 * axes if axes else 1 + text.startswith("complex")
    return tuple(signature)


def parse_type(text):
    """Return the Numba type of "float32[:, :]" or "int64"."""
    from numba_bs.cuda import compiler
    from numba_bs.dtypes import bfloat16

    name, _, axes = text.partition("[")
    scalar = compiler.numba_type(bfloat16 if name == "bfloat16" else name)
    return compiler.types.Array(scalar, axes.count(":"), "A") if axes else scalar


def of_ptx(ptx):
    """Return what PTX says of its only kernel."""
    body = ptx[ptx.index(".entry") :]
    mnemonics = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s*[^:\n]*;", body, re.M)
    return {
        "local": ".local" in ptx,
        "shared_bytes": sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx))),
        "max_threads": int(re.search(r"\.maxntid (\d+)", ptx)[1]),
        "target": re.search(r"^\.target (\w+)", ptx, re.M)[1],
        "parameters": re.findall(r"^\s*\.param \.(?:align \d+ \.)?(\w+)", ptx, re.M),
        "instructions": Counter(mnemonics),
    }


def of_log(log):
    """Return what nvJitLink says of its only kernel."""

    def most(*patterns):
        found = [int(n) for pattern in patterns for n in re.findall(pattern, log)]
        return max(found, default=0)

    return {
        # Releases differ in what they print, and some print it twice.
        "registers": most(r"[Uu]sed (\d+) registers"),
        "spill_bytes": most(r"(\d+) bytes spill"),
        "serialized": "serialized" in log,
        "stack_bytes": most(r"(\d+) bytes stack frame", r"(\d+) stack"),
    }


if __name__ == "__main__":
    main()
