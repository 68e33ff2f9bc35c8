"""Makers, casts, compiling without a GPU, and the cache on disk."""

import os
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from compile_child import Job, compile_all, run_child

import numba_bs
from numba_bs.arrays import describe
from numba_bs.cuda import compiler, ptx
from numba_bs.cuda.compiler import (
    cast,
    cuda,
    device,
    float32,
    int64,
    jit,
    maker,
    numba_type,
    signature_of,
)
from numba_bs.cuda.launch import flatten
from numba_bs.dtypes import STORAGE, bfloat16


def on_device(array):
    return describe("test", "array", array)._replace(device=0)


# -------------------------------------------------------------------------- kernels


@device
def _plus(x, y):
    return x + y


@maker
def make_copy(dtype, threads=64, offset=0):
    number = cast(dtype)

    @jit(threads)
    def copy(x, out):
        tid = cuda.threadIdx.x
        out[tid] = _plus(number(x[tid]), number(offset))

    return copy


@maker
def make_everything():
    """Every kind of parameter."""

    @jit((32, 2))
    def everything(a, b, n, alpha, beta, gamma, delta, c):
        if n > 0:
            a[0, 0, 0, 0, 0] = alpha
            b[0] = beta
            c[0, 0] = gamma * delta

    return everything


@maker
def make_bits():
    @jit(32)
    def bits(words, values, out):
        tid = cuda.threadIdx.x
        values[tid] = ptx.bf16_to_f32(words[tid])
        out[tid] = ptx.f32_to_bf16(values[tid])

    return bits


@maker
def make_spiller():
    """Index an array at run time: it must live in local memory."""

    @jit(32)
    def spiller(x, out):
        local = cuda.local.array(64, float32)
        for i in range(64):
            local[i] = x[i]
        out[0] = local[int64(x[0])]

    return spiller


@maker
def make_shared(items):
    @jit(32)
    def shared(out):
        tile = cuda.shared.array(items, float32)
        tile[cuda.threadIdx.x] = out[0]
        cuda.syncthreads()
        out[0] = tile[5]

    return shared


@maker
def make_casts(source, target):
    number = cast(target)

    @jit(32)
    def casts(x, out):
        out[cuda.threadIdx.x] = number(x[cuda.threadIdx.x])

    return casts


# --------------------------------------------------------------------------- makers


def test_maker_makes_one_kernel_of_each_set_of_constants():
    assert make_copy(np.dtype("f4")) is make_copy(np.dtype("f4"))
    assert make_copy(np.dtype("f4")) is not make_copy(np.dtype("f8"))
    assert make_copy(np.dtype("f4"), offset=1) is not make_copy(np.dtype("f4"))


def test_equal_constants_of_other_types_are_other_constants():
    kernels = {make_copy(np.dtype("f4"), 64, x) for x in (1, 1.0, True)}
    assert len(kernels) == 3
    assert len({kernel.key for kernel in kernels}) == 3


def test_key_says_all_constants_however_they_were_passed():
    f4 = np.dtype("f4")
    kernels = make_copy(f4), make_copy(f4, 64), make_copy(f4, threads=64, offset=0)
    assert len({kernel.key for kernel in kernels}) == 1
    module, name, arguments = kernels[0].key
    assert (module, name) == (__name__, "make_copy")
    assert arguments == "{'dtype': dtype('float32'), 'threads': 64, 'offset': 0}"


def test_maker_takes_constants_only():
    with pytest.raises(TypeError, match=r"make_copy: arguments of a maker .* function"):
        make_copy(lambda: 1)
    with pytest.raises(TypeError, match=r"make_copy: arguments of a maker .* object"):
        make_copy(np.dtype("f4"), (64, object()))


@pytest.mark.parametrize("threads", [0, 1025, (32, 33), (1, 1, 1, 1), (32, 0)])
def test_jit_refuses_a_cta_that_cannot_be(threads):
    with pytest.raises(ValueError, match="a CTA must have 1 to 1024 threads, got"):
        jit(threads)


def test_jit_refuses_negative_shared_memory():
    with pytest.raises(ValueError, match="dynamic_shared must be bytes, got -1"):
        jit(32, -1)


@pytest.mark.parametrize("cluster", [0, 9])
def test_jit_refuses_a_cluster_that_cannot_be(cluster):
    with pytest.raises(ValueError, match="a cluster must have 1 to 8 CTAs, got"):
        jit(32, cluster=cluster)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_numba_type(dtype):
    expected = "uint16" if dtype == bfloat16 else str(dtype)
    assert str(numba_type(dtype)) == expected


def test_cast_refuses_bfloat16():
    with pytest.raises(TypeError, match="got bfloat16; kernels convert it by ptx"):
        cast(bfloat16)


def test_signature():
    x = on_device(np.zeros((2, 3), np.complex64))
    args = ((x,), 5, np.float32(1), (np.complex128(1), (x,)))
    names = [str(each) for each in signature_of(args)]
    array = "array(complex64, 2d, A)"
    assert names == [array, "int64", "float32", "complex128", array]


@pytest.mark.parametrize("arg", [1.0, np.int32(1), True, np.zeros(3), None], ids=repr)
def test_signature_refuses_what_run_does_not_take(arg):
    with pytest.raises(TypeError, match="run: arguments must be Operands, Python ints"):
        signature_of((arg,))


# ------------------------------------------------------------------------- compiling

ARGUMENTS = (
    on_device(np.zeros((1, 2, 1, 3, 2), np.complex64)),
    on_device(np.zeros(4, np.float16)),
    7,
    np.complex64(2 + 3j),
    np.float32(0.5),
    np.complex128(4 - 1j),
    np.float64(0.25),
    on_device(np.zeros((3, 3), np.complex128)),
)
TYPES = (
    "complex64[:, :, :, :, :]",
    "float16[:]",
    "int64",
    "complex64",
    "float32",
    "complex128",
    "float64",
    "complex128[:, :]",
)


@pytest.fixture(scope="module")
def facts():
    """Compile the kernels above; by maker, its arguments and capability."""
    f4 = np.dtype("f4")
    jobs = [
        Job(make_copy, (f4,), ("float32[:]", "float32[:]")),
        Job(make_copy, (f4,), ("float32[:]", "float32[:]"), (8, 0)),
        Job(make_copy, (f4,), ("float32[:]", "float32[:]"), (1, 3)),
        Job(make_everything, (), TYPES),
        Job(make_bits, (), ("bfloat16[:]", "float32[:]", "bfloat16[:]"), (8, 0)),
        Job(make_spiller, (), ("float32[:]", "float32[:]")),
        Job(make_shared, (12288,), ("float32[:]",)),
        Job(make_shared, (16384,), ("float32[:]",)),
    ]
    found = compile_all(jobs, errors=True)
    return {
        (job.maker.__name__, *job.args, job.capability): each
        for job, each in zip(jobs, found, strict=True)
    }


@pytest.mark.compile
@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm_80"), ((9, 0), "sm_90a")]
)
def test_compiles_without_a_gpu(facts, capability, target):
    copy = facts["make_copy", np.dtype("f4"), capability]
    assert copy.error is None
    assert copy.target == target
    assert copy.max_threads == 64
    assert 0 < copy.registers < 64
    assert copy.count("ld.global") == copy.count("st.global") == 1  # none is generic
    assert copy.count("setp") == copy.count("selp") == 0  # no test for index < 0
    assert not copy.local
    assert copy.spill_bytes == copy.stack_bytes == 0


@pytest.mark.compile
def test_parameters_are_those_that_launch_passes(facts):
    """Numba's calling convention, as it is documented in launch.py."""
    everything = facts["make_everything", (9, 0)]
    assert everything.error is None
    parameters, _ = flatten(ARGUMENTS)
    letters = {int: "u64", np.float32: "f32", np.float64: "f64"}
    assert list(everything.parameters) == [letters[type(p)] for p in parameters]
    assert everything.max_threads == 64  # of both axes together


def test_flattened_parameters():
    a, b = ARGUMENTS[0], ARGUMENTS[1]
    parameters, _ = flatten((a, (7, (b,)), np.complex64(2 + 3j)))
    expected = [0, 0, 12, 8, a.pointer, 1, 2, 1, 3, 2, 96, 48, 48, 16, 8]
    expected += [7, 0, 0, 4, 2, b.pointer, 4, 2, 2.0, 3.0]
    assert parameters == expected


@pytest.mark.compile
def test_instructions_of_ptx_py(facts):
    bits = facts["make_bits", (8, 0)]
    assert bits.error is None
    assert bits.count("mov.b32") == 2
    assert bits.count("cvt.rn.f32") == 0


@pytest.mark.compile
def test_log_tells_of_local_memory(facts):
    spiller = facts["make_spiller", (9, 0)]
    assert spiller.local
    assert spiller.stack_bytes == 256


@pytest.mark.compile
def test_shared_memory_of_fixed_shape(facts):
    assert facts["make_shared", 12288, (9, 0)].shared_bytes == 48 * 1024
    refused = facts["make_shared", 16384, (9, 0)].error
    assert "NotImplementedError: compile: shared memory of fixed shape must" in refused


@pytest.mark.compile
def test_capability_that_the_compiler_does_not_serve(facts):
    refused = facts["make_copy", np.dtype("f4"), (1, 3)].error
    assert "NotImplementedError: compile: compute capability must be one" in refused
    assert "got 1.3" in refused


@pytest.mark.compile
def test_every_cast_compiles():
    """Those that kernels use: stored to sum, and sum to stored."""
    storage = [dtype for dtype in STORAGE if dtype != bfloat16]
    sums = [np.dtype(name) for name in ("f4", "f8", "c8", "c16", "i8", "u8")]
    pairs = {(a, b) for a in storage for b in sums}
    pairs |= {(b, a) for a, b in pairs}
    pairs = sorted((p for p in pairs if p[0].kind != "c" or p[1].kind == "c"), key=str)
    jobs = [Job(make_casts, pair, (f"{pair[0]}[:]", f"{pair[1]}[:]")) for pair in pairs]
    assert not any(each.local for each in compile_all(jobs))


@pytest.mark.simulator
def test_compile_refuses_the_simulator():
    with pytest.raises(RuntimeError, match="simulator must be off, got NUMBA_ENABLE"):
        compiler.compile(make_bits(), ())


# ---------------------------------------------------------------------- instructions


@pytest.mark.simulator
def test_declaration_needs_an_emulation():
    with pytest.raises(
        NotImplementedError, match="must have an emulation of that name"
    ):
        ptx.declare("ex2", "ex2.f32 $0, $1;", section="", result=float32, x=float32)


def test_every_instruction_is_described():
    named = [each for each in ptx.INSTRUCTIONS if hasattr(ptx, each.name)]
    assert len(named) > 20
    for instruction in named:
        made = getattr(ptx, instruction.name)
        assert instruction.section in made.__doc__
        assert instruction.ptx.rstrip(";") in made.__doc__


# --------------------------------------------------------------------- cache on disk

TOY = """
from .compiler import cuda, jit, maker, signature_of
from .toy_helper import TERM

@maker
def make_toy(FACTOR):
    @jit(32)
    def toy(out):
        out[cuda.threadIdx.x] = FACTOR * out[cuda.threadIdx.x] + TERM
    return toy
"""

CHILD = """
import json, os, pathlib, sys
import numpy as np
from numba_bs.arrays import describe
from numba_bs.cuda import compiler, toy

compiled = []
compile = compiler.compile
def counted(*args, **kwargs):
    compiled.append(args)
    return compile(*args, **kwargs)
compiler.compile = counted

def load(kernel, dtype="f4", capability=(9, 0)):
    signature = compiler.signature_of([describe("", "", np.zeros(32, dtype))])
    before = len(compiled)
    name, cubin = compiler.load(kernel, signature, capability)
    path = compiler._cache_path(kernel, signature, capability)
    return len(compiled) > before, path.name, cubin.hex()

report = {"folder": str(compiler.cache_folder())}
"""


@pytest.fixture
def copy_of_package(tmp_path):
    """Copy the package with a kernel file of its own; return what runs code there."""
    source = Path(numba_bs.__file__).parent
    package = tmp_path / "numba_bs"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "cuda" / "toy.py").write_text(TOY)
    (package / "cuda" / "toy_helper.py").write_text("TERM = 1\n")

    def run(code):
        script = CHILD + textwrap.dedent(code) + "\nprint(json.dumps(report))\n"
        (tmp_path / "child.py").write_text(script)
        path = os.pathsep.join(
            [str(tmp_path), *filter(None, [os.getenv("PYTHONPATH")])]
        )
        paths = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        # The toy's files are edited within the second that .pyc files can tell apart.
        return run_child("child", PYTHONDONTWRITEBYTECODE="1", **paths)

    run.package = package
    compile_all([])  # skips where nothing compiles
    return run


@pytest.mark.compile
def test_cache_notices_an_edited_helper(copy_of_package):
    code = "report['toy'] = load(toy.make_toy(2))"
    first = copy_of_package(code)
    again = copy_of_package(code)
    assert first["toy"][0]
    assert not again["toy"][0]  # another process found it on disk
    assert again["toy"][1:] == first["toy"][1:]

    (copy_of_package.package / "cuda" / "toy_helper.py").write_text("TERM = 5\n")
    edited = copy_of_package(code)
    assert edited["toy"][0]
    assert edited["toy"][1] != first["toy"][1]
    assert edited["toy"][2] != first["toy"][2]


@pytest.mark.compile
def test_cache(copy_of_package):
    report = copy_of_package(
        """
        folder = compiler.cache_folder()

        # Constants, signature and capability: each its own entry.
        report["entries"] = [
            load(toy.make_toy(2)), load(toy.make_toy(3)), load(toy.make_toy(2.0)),
            load(toy.make_toy(2), "f8"), load(toy.make_toy(2), "f4", (8, 0)),
        ]
        report["files"] = sorted(path.name for path in folder.iterdir())

        # A broken file is compiled anew, and mended.
        report["broken"] = []
        path = folder / load(toy.make_toy(2))[1]
        good = path.read_bytes()
        broken = good[:-1], good[:20], b"", b"{}\\n", b"[]\\n" + good, b"\\xff" * 99
        for bad in broken:
            path.write_bytes(bad)
            report["broken"].append([load(toy.make_toy(2)), load(toy.make_toy(2))])

        # The code in memory is not that of the files any more: not stored.
        sources = pathlib.Path(toy.__file__).with_name("toy_helper.py")
        sources.write_text("TERM = 9")
        report["edited"] = load(toy.make_toy(7)), load(toy.make_toy(7))
        sources.write_text("TERM = 1\\n")

        # Other kernels than the package's own are not kept: who knows what is in them.
        kernel = toy.make_toy(11)
        kernel.key = ("elsewhere.toy", *kernel.key[1:])
        report["foreign"] = compiler._cache_path(kernel, (), (9, 0))

        # Nowhere to write.
        for place in (__file__, os.devnull):
            os.environ["XDG_CACHE_HOME"] = place
            report[place == __file__] = load(toy.make_toy(2)), load(toy.make_toy(2))
        """
    )
    entries = report["entries"]
    assert all(compiled for compiled, _, _ in entries)
    assert sorted(name for _, name, _ in entries) == report["files"]
    assert len(report["files"]) == 5
    assert len(report["broken"]) == 6
    for compiled, read in report["broken"]:
        assert compiled[:2] == entries[0][:2]
        assert read == [False, *compiled[1:]]
    assert all(compiled for compiled, _, _ in report["edited"])
    assert report["foreign"] is None
    for unwritable in (report["true"], report["false"]):
        assert [compiled for compiled, _, _ in unwritable] == [True, True]


@pytest.mark.compile
def test_linker_that_is_too_old_is_named_with_the_cure(copy_of_package):
    report = copy_of_package(
        """
        x = describe("", "", np.zeros(32, "f4"))
        ptx = compiler.compile(toy.make_toy(2), compiler.signature_of([x])).ptx
        try:
            compiler._link(ptx.replace(".version ", ".version 9").encode(), "sm_90a")
        except RuntimeError as error:
            report["error"] = str(error)
        """
    )
    assert "compile: the linker must accept the code, got" in report["error"]
    assert "Unsupported .version 99" in report["error"]
    assert "pip install -U 'numba-cuda[cu13]'" in report["error"]


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("os.name", "posix")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiler.cache_folder() == tmp_path / "numba_bs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiler.cache_folder() == Path.home() / ".cache" / "numba_bs"

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert compiler.cache_folder() is None
