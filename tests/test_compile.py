"""Every kernel to machine code, without a GPU: no spill, no local memory.

The cases cover each maker, dtype, orientation of operands and kind of block size, for
the oldest and the newest compute capability served; not their product, which would
take an hour.
"""

import importlib
import pkgutil

import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from compile_child import Job, compile_all

from numba_bs import cuda
from numba_bs.choose import simt
from numba_bs.cuda import (
    elementwise_simt,
    gather_blocks_simt,
    matmul_dsd_simt,
    matmul_sdd_simt,
    sum_partials_simt,
)
from numba_bs.dtypes import accumulator, bfloat16

pytestmark = pytest.mark.compile

AMPERE, HOPPER = (8, 0), (9, 0)
STATIC_SHARED = 48 * 1024  # what a kernel may declare with a fixed shape
REGISTERS = 65536  # of a multiprocessor

F16, BF16, F32, F64 = np.dtype(np.float16), bfloat16, np.dtype("f4"), np.dtype("f8")
C64, C128 = np.dtype(np.complex64), np.dtype(np.complex128)
I8, I64, U64 = np.dtype(np.int8), np.dtype(np.int64), np.dtype(np.uint64)

# Whether each operand lies in memory along k (second: along its other axis), and the
# result along its rows: A @ x, x @ A, A.T @ x, dW of the first two.
AX, XA, ATX = (True, False, False), (True, True, True), (False, False, False)


def array(dtype, axes):
    """Return the type of an array argument, as compile_child spells it."""
    return f"{np.dtype(dtype)}[{', '.join(':' * axes)}]"


def factor(sums):
    """Return the type of alpha and beta."""
    return "int64" if sums.kind in "iu" else str(sums)


def dsd(blocksize, N, dtypes, lie=AX, capability=HOPPER, conj=False):
    """Return the job of dsd with the constants that choose.py picks."""
    a, b, out = dtypes
    sums = np.result_type(accumulator(np.result_type(a, b)), accumulator(out))
    config = simt.simt_dsd(*blocksize, N, sums, along_k=lie[1])
    args = (*blocksize, *config[:6], config.k_run, sums, a, b, out, conj, False, *lie)
    signature = [array(np.int32, 1)] * 7
    signature += [array(a, 5), array(b, 5), array(out, 4), array(sums, 4)]
    signature += [factor(sums)] * 2
    return Job(matmul_dsd_simt._make_kernel, args, tuple(signature), capability)


def sdd(blocksize, dtypes, lie=AX, capability=HOPPER, conj=False):
    """Return the job of sdd with the constants that choose.py picks."""
    x, y, out = dtypes
    sums = np.result_type(accumulator(np.result_type(x, y)), accumulator(out))
    config = simt.simt_sdd(*blocksize, 1000, 8192, sums)
    args = (*blocksize, *config[:6], config.k_run, sums, x, y, out, conj, False, *lie)
    signature = [array(np.int32, 1)] * 3
    signature += [array(x, 5), array(y, 5), array(out, 4), array(sums, 5), "int64"]
    signature += [factor(sums)] * 2
    return Job(matmul_sdd_simt._make_kernel, args, tuple(signature), capability)


def second_pass(sums, out, rows, capability=HOPPER):
    """Return the job of the kernel that adds partial sums."""
    signature = [array(np.int32, 1)] * 4 if rows else []
    signature += [array(sums, 4 if rows else 5), array(out, 4)]
    signature += [factor(sums)] * 2
    args = (sums, out, rows)
    return Job(sum_partials_simt._make_kernel, args, tuple(signature), capability)


def gather(dtype):
    """Return the job of the kernel that puts blocks in order."""
    signature = (array(np.int32, 1), array(dtype, 4), array(dtype, 4))
    return Job(gather_blocks_simt._make_kernel, (), signature)


def elementwise(operation, sums, x, y, out, capability=HOPPER):
    """Return the job of an element-wise operation."""
    signature = [array(dtype, 3) for dtype in (x, y, out)] + [factor(sums)] * 2
    args = (operation, sums, x, y, out, False, x.kind == "c")
    return Job(elementwise_simt._make_kernel, args, tuple(signature), capability)


# The sizes whose speed is a goal.
FAST = {
    "dsd-16": dsd((16, 16), 8192, (F32,) * 3),
    "dsd-32": dsd((32, 32), 8192, (F32,) * 3),
    "dsd-32-dds": dsd((32, 32), 8192, (F32,) * 3, XA),
    "dsd-64": dsd((64, 64), 8192, (F32,) * 3, ATX),
    "dsd-128": dsd((128, 128), 8192, (F32,) * 3),
    "sdd-32": sdd((32, 32), (F32,) * 3, XA),
    "sdd-32-ATX": sdd((32, 32), (F32,) * 3, ATX),
    "sdd-64": sdd((64, 64), (F32,) * 3, AX),
    "sdd-128": sdd((128, 128), (F32,) * 3, XA),
}
CASES = {
    "dsd-1": dsd((1, 1), 8192, (F32,) * 3),
    "dsd-1-column": dsd((3, 3), 1, (F64,) * 3),
    "dsd-3": dsd((3, 3), 64, (F64,) * 3, ATX),
    "dsd-8": dsd((8, 8), 8192, (F32,) * 3, AX, AMPERE),
    "dsd-13x9": dsd((13, 9), 17, (F32,) * 3, XA),
    "dsd-33x17": dsd((33, 17), 8192, (BF16,) * 3),
    "dsd-512": dsd((512, 512), 3, (F32,) * 3),
    "dsd-float16": dsd((32, 32), 8192, (F16,) * 3, XA, AMPERE),
    "dsd-bfloat16": dsd((64, 64), 8192, (BF16, F32, BF16), ATX, AMPERE),
    "dsd-float64": dsd((32, 32), 8192, (F64,) * 3),
    "dsd-complex64": dsd((16, 16), 8192, (C64,) * 3, conj=True),
    "dsd-complex128": dsd((16, 16), 8192, (C128,) * 3, ATX, AMPERE),
    "dsd-int8": dsd((8, 8), 8192, (I8,) * 3, XA),
    "dsd-mixed": dsd((32, 32), 8192, (F32, F64, F16)),
    "sdd-1": sdd((1, 1), (F32,) * 3, XA),
    "sdd-8": sdd((8, 8), (F32,) * 3, ATX, AMPERE),
    "sdd-13x9": sdd((13, 9), (F32,) * 3, AX),
    "sdd-33x17": sdd((33, 17), (BF16,) * 3, XA),
    "sdd-float16": sdd((32, 32), (F16,) * 3, XA, AMPERE),
    "sdd-float64": sdd((32, 32), (F64,) * 3, ATX),
    "sdd-complex64": sdd((16, 16), (C64,) * 3, XA, AMPERE, conj=True),
    "sdd-complex128": sdd((16, 16), (C128,) * 3, ATX),
    "sdd-int8": sdd((32, 32), (I8,) * 3, XA),
    "sdd-int64": sdd((64, 64), (I64,) * 3, ATX),
    "sum-rows": second_pass(F32, BF16, True),
    "sum-rows-complex": second_pass(C64, C64, True, AMPERE),
    "sum-blocks": second_pass(U64, np.dtype(np.uint8), False),
    "gather": gather(C64),
    "scale": elementwise("scale", C128, C64, C64, C128),
    "multiply": elementwise("multiply", F32, F16, F32, F16, AMPERE),
    "axpby": elementwise("axpby", I64, I8, I64, I8),
}


@pytest.fixture(scope="module")
def facts():
    """Return what the compiler says of every case: one child process for all."""
    jobs = {**FAST, **CASES}
    return dict(zip(jobs, compile_all(list(jobs.values())), strict=True))


@pytest.mark.parametrize("name", [*FAST, *CASES])
def test_all_is_in_registers(facts, name):
    found = facts[name]
    assert found.spill_bytes == found.stack_bytes == 0
    assert not found.local
    assert 0 < found.registers < 256
    assert found.shared_bytes <= STATIC_SHARED


@pytest.mark.parametrize("name", [*FAST, *CASES])
def test_the_compiler_knows_what_is_global(facts, name):
    # A load that might be of shared memory waits for every store before it.
    found = facts[name]
    assert found.count("ld.global") > 0
    generic = [
        mnemonic
        for mnemonic in found.instructions
        if mnemonic.split(".")[0] in ("ld", "st")
        and mnemonic.split(".")[1] not in ("global", "shared", "param")
    ]
    assert generic == []


@pytest.mark.parametrize("name", FAST)
def test_two_warps_a_scheduler_fit(facts, name):
    found = facts[name]
    ctas = 2 * 128 // found.max_threads
    assert ctas * found.max_threads * found.registers <= REGISTERS
    assert ctas * found.shared_bytes <= 227 * 1024


@pytest.mark.parametrize("name", FAST)
def test_the_inner_loop_reads_vectors(facts, name):
    # 32 reads of four neighbours at most, for 8 x 8 products of four steps or fewer.
    found = facts[name]
    products = found.count("fma.rn.f32")
    scalars = found.count("ld.shared.f32")
    vectors = found.count("ld.shared.v2") + found.count("ld.shared.v4")
    assert products >= 2 * 4 * 8
    assert vectors >= products // 32
    assert scalars <= 16  # of the epilogue, which reads sums one by one


def test_each_maker_is_here():
    makers = {job.maker for job in (*FAST.values(), *CASES.values())}
    for module in pkgutil.iter_modules(cuda.__path__, "numba_bs.cuda."):
        if module.name.endswith("_simt"):
            kernels = importlib.import_module(module.name)
            assert kernels._make_kernel in makers, module.name
