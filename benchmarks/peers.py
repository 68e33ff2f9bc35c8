"""What numba_bs is compared with: each peer a small class, used when installed.

A peer's `prepare(op, problem)` builds what it needs (conversions happen there, outside
every measurement) and returns the call to be timed. ``op`` is "forward" (A @ x),
"grad_x" (A.T @ grad_y) or "grad_w" (grad_y @ x.T, stored blocks only). It raises
Unserved with a reason where the peer cannot do the case.
"""

import ctypes
import glob
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

import numba_bs as bs

from .harness import write_json
from .problems import ROUNDING, Rounding

TUNED = Path(__file__).parent / "tuned_torch.json"
TF32_ROUNDOFF = 2.0**-10  # of an operand: the hardware may truncate


class Unserved(Exception):  # noqa: N818 - an answer, not an error
    """The peer does not serve this case; the message says why."""


class Prepared(NamedTuple):
    """A call to be timed, and what it cost to get there."""

    call: Callable[[], Any]
    # What the call returned, as (rows, N) or (blocks, R, C) like numba_bs's own.
    output: Callable[[Any], Any] = lambda result: result
    copies_bytes: int = 0  # memory of copies that numba_bs does not need
    # What must be done again when the values change: remaking a transposed copy.
    refresh: Callable[[], Any] | None = None
    note: str = ""
    columns: int | None = None  # it makes only that many columns, and is not checked


class Peer:
    """A way to make the three products."""

    name = ""
    modules: tuple[str, ...] = ()  # must be importable
    gpu = True  # where it runs
    sparse = True  # skips absent blocks
    # Bounds within which its results count as right: a peer may round a partial sum
    # to 16 bits, which costs it nothing here; what is wrong is far beyond.
    slack = 8.0
    input_roundoff = 0.0  # beyond the dtype's own
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64")

    def missing(self) -> str | None:
        """Return what is not installed, if anything."""
        absent = [m for m in self.modules if importlib.util.find_spec(m) is None]
        return f"{', '.join(absent)} is not installed" if absent else None

    def prepare(self, op: str, problem) -> Prepared:
        """Return the call that makes ``op`` of ``problem``."""
        if problem.case.dtype not in self.dtypes:
            raise Unserved(f"{' and '.join(self.dtypes)} only")
        return getattr(self, op)(problem)

    def rounding(self, case) -> Rounding:
        """Return what it does to operands before it multiplies them."""
        return Rounding(self.input_roundoff)

    def comparable(self, case) -> bool:
        """Whether it may be "the best peer": sparse, and as exact as was asked for."""
        return self.sparse and (not self.input_roundoff or case.precision == "tf32")


class NumbaBs(Peer):
    """numba_bs on the GPU."""

    name = "numba_bs"
    slack = 1.0

    def rounding(self, case):
        """Return what the precision of the case allows."""
        return ROUNDING[case.precision]

    def _array(self, problem):
        return bs.bsr_array((problem.values, problem.layout))

    def forward(self, problem):
        """Make A @ x."""
        a, x, case = self._array(problem), problem.x, problem.case
        out = problem.machine.empty((case.M, case.N), x)
        return Prepared(lambda: bs.matmul(a, x, out=out, precision=case.precision))

    def grad_x(self, problem):
        """Make A.T @ grad_y, on A's own values."""
        a, grad_y, case = self._array(problem), problem.grad_y, problem.case
        out = problem.machine.empty((case.K, case.N), grad_y)
        return Prepared(
            lambda: bs.matmul(a.T, grad_y, out=out, precision=case.precision)
        )

    def grad_w(self, problem):
        """Make the sampled product."""
        grad_y, x_t, layout = problem.grad_y, problem.x.T, problem.layout
        values = problem.machine.empty(problem.values.shape, problem.values)
        out = bs.bsr_array((values, layout))
        precision = problem.case.precision
        return Prepared(
            lambda: bs.sddmm(grad_y, x_t, layout, out=out, precision=precision),
            lambda grad_w: grad_w.data,
        )


class NumbaBsHost(NumbaBs):
    """numba_bs on host arrays: its reference."""

    gpu = False


class Dense(Peer):
    """The dense product of the same shape: cuBLAS, by way of torch."""

    name = "dense"
    modules = ("torch",)
    sparse = False

    def _product(self, problem, a, dense):
        mm = problem.machine.torch.mm
        out = dense.new_empty((a.shape[0], dense.shape[1]))
        return Prepared(lambda: mm(a, dense, out=out))

    def forward(self, problem):
        """Make A @ x."""
        return self._product(problem, problem.dense(), problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y."""
        return self._product(problem, problem.dense().T, problem.grad_y)

    def grad_w(self, problem):
        """Make grad_y @ x.T, all of it."""
        prepared = self._product(problem, problem.grad_y, problem.x.T)
        return prepared._replace(output=problem.stored)


class DenseTF32(Dense):
    """The dense product with operands rounded to TF32."""

    name = "dense TF32"
    input_roundoff = TF32_ROUNDOFF
    dtypes = ("fp32",)

    def prepare(self, op, problem):
        """Return the call, which switches TF32 on for itself."""
        prepared = super().prepare(op, problem)
        switch = problem.machine.torch.backends.cuda.matmul

        def call():
            switch.allow_tf32 = True
            try:
                return prepared.call()
            finally:
                switch.allow_tf32 = False

        return prepared._replace(call=call)


class Torch(Peer):
    """torch.sparse_bsr as typed: `bsr @ x`, and its private sampled_addmm."""

    name = "torch"
    modules = ("torch", "triton")

    def forward(self, problem):
        """Make A @ x."""
        return self._product(problem, _torch_bsr(problem), problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y, which needs A.T as a second BSR array."""
        bsr_t, extra = _torch_bsr_transposed(problem)
        return self._product(problem, bsr_t, problem.grad_y)._replace(**extra)

    def _product(self, problem, bsr, dense):
        return Prepared(lambda: bsr @ dense)

    def grad_w(self, problem):
        """Make the sampled product; copies its pattern at each call."""
        from torch.sparse._triton_ops import sampled_addmm

        if sampled_addmm is None:
            raise Unserved("this torch finds no Triton")
        pattern, grad_y, x_t = _torch_bsr(problem), problem.grad_y, problem.x.T
        return Prepared(
            lambda: sampled_addmm(pattern, grad_y, x_t, beta=0.0, alpha=1.0),
            lambda grad_w: grad_w.values(),
        )


class TorchTuned(Torch):
    """torch's Triton kernel with parameters swept for each case.

    Found parameters are kept in a JSON file, by GPU and case.

    Parameters
    ----------
    tuned : Path
        Where parameters are kept; those of TUNED are read too.
    seconds, most : float, int
        Bounds of one sweep.
    """

    name = "torch tuned"

    def __init__(self, tuned: Path = TUNED, seconds: float = 6.0, most: int = 24):
        self.tuned, self.seconds, self.most = tuned, seconds, most

    def _product(self, problem, bsr, dense):
        from torch.sparse._triton_ops import bsr_dense_addmm

        R, C = bsr.values().shape[-2:]
        if min(R, C) < 16 or R & (R - 1) or C & (C - 1):
            raise Unserved("blocks of a power of two from 16 on only")
        out = dense.new_empty((bsr.shape[0], dense.shape[1]))

        def call(meta):
            return bsr_dense_addmm(out, bsr, dense, beta=0, alpha=1, out=out, meta=meta)

        # The precision that the case asks of numba_bs changes nothing here.
        name = problem.case._replace(precision=None).name
        name += f"/{bsr.shape[0]}x{bsr.shape[1]}"
        if dense is problem.grad_y:
            name += "/transposed"
        if self.input_roundoff:
            name += "/tf32"
        meta, note = self._parameters(problem.machine, name, dense.shape[1], call)
        return Prepared(lambda: call(meta), note=note)

    def grad_w(self, problem):
        """Refuse: sampled_addmm has no parameters."""
        raise Unserved("sampled_addmm has no parameters to tune: see torch")

    def _parameters(self, machine, name, N, call):
        """Return the parameters for a case, from the file or a sweep."""
        known = {}
        for path in (TUNED, self.tuned):
            if path.exists():
                for gpu, found in json.loads(path.read_text()).items():
                    known.setdefault(gpu, {}).update(found)
        here = known.setdefault(machine.name, {})
        if name not in here:
            configs = torch_configs(N, self.most)
            if not configs:
                raise Unserved("no tile of 16 columns or more divides N")
            here[name] = sweep(machine, call, configs, self.seconds)
            write_json(self.tuned, known)
        found = here[name]
        meta = {key: value for key, value in found.items() if key in _META}
        note = ", ".join(f"{key} {value}" for key, value in meta.items())
        return meta, f"{note}; best of {found['tried']}"


class TorchTunedTF32(TorchTuned):
    """torch's Triton kernels with TF32 allowed, which torch itself never asks for.

    Where float32 is multiplied it has them sum in float64 instead.
    """

    name = "torch tuned TF32"
    input_roundoff = TF32_ROUNDOFF
    dtypes = ("fp32",)

    def prepare(self, op, problem):
        """Return the call, which changes torch's kernels while it runs."""
        from torch.sparse import _triton_ops

        if problem.case.precision != "tf32":
            raise Unserved("points of precision tf32 only")
        if _triton_ops.sampled_addmm is None:
            raise Unserved("this torch finds no Triton")
        with tf32_kernels(_triton_ops):  # a sweep may run
            prepared = super().prepare(op, problem)

        def call():
            with tf32_kernels(_triton_ops):
                return prepared.call()

        return prepared._replace(call=call)

    def grad_w(self, problem):
        """Make the sampled product, which has no parameters to tune."""
        return Torch.grad_w(self, problem)


@contextmanager
def tf32_kernels(module):
    """Have the kernels of torch's module multiply in TF32 and sum in float32."""
    names = "_bsr_strided_addmm_kernel", "_sampled_addmm_kernel"
    kernels = {name: getattr(module, name) for name in names}
    forced = {"allow_tf32": True, "acc_dtype": module.tl.float32}
    try:
        for name, kernel in kernels.items():
            setattr(module, name, _Forced(kernel, forced))
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


class _Forced:
    """A Triton kernel some of whose arguments are decided here."""

    def __init__(self, kernel, arguments):
        self.kernel, self.arguments = kernel, arguments

    def __getitem__(self, grid):
        launch = self.kernel[grid]
        return lambda *given, **named: launch(*given, **{**named, **self.arguments})


_META = ("SPLIT_N", "GROUP_SIZE_ROW", "num_stages", "num_warps")


def torch_configs(N: int, most: int = 24) -> list[dict]:
    """Return parameters to try, the likeliest first.

    Tiles of 64 to 256 columns, 2 to 4 stages, 4 or 8 warps, row groups of 1 or 4;
    ordered by how many of them differ from what is usually best. Narrower tiles
    are there for an N that these do not divide. A tile must be a power of two.
    """
    tiles = [tile for tile in (128, 64, 256) if N % tile == 0]
    tiles = tiles or [tile for tile in (32, 16) if N % tile == 0]
    axes = (tiles, (3, 4, 2), (4, 8), (4, 1))
    choices = sorted(
        product(*axes),
        key=lambda c: sum(c[i] != axes[i][0] for i in range(len(axes))),
    )
    return [
        dict(zip(_META, (N // tile, group, stages, warps), strict=True))
        for tile, stages, warps, group in choices[:most]
    ]


def sweep(machine, call, configs, seconds: float) -> dict:
    """Return the fastest parameters, with how many were tried and their time in ms.

    Stops after ``seconds``, or three times that if none of them worked until then;
    the first is always tried. Parameters that do not compile (out of shared memory,
    say) are passed over.
    """
    began, best, tried, reason = time.perf_counter(), None, 0, ""
    for number, meta in enumerate(configs):
        most = 3 * seconds if best is None else seconds
        if number and time.perf_counter() - began > most:
            break
        try:
            call(meta)
            machine.synchronise()
            once = machine.quick(lambda m=meta: call(m), 1)
            if best is None or once < 1.5 * best["ms"] / 1e3:
                once = machine.quick(lambda m=meta: call(m), 3)
        except Exception as error:
            reason = short(error)
            machine.synchronise()  # if this raises too, the GPU is lost
            continue
        tried += 1
        if best is None or once * 1e3 < best["ms"]:
            best = {**meta, "ms": once * 1e3}
    if best is None:
        raise Unserved(f"no parameters worked, the last: {reason}")
    return {**best, "ms": round(best["ms"], 4), "tried": tried}


class Stk(Peer):
    """stanford-stk: blocks of 128, 16-bit floats."""

    name = "stk"
    modules = ("stk", "triton")
    dtypes = ("bf16", "fp16")

    def prepare(self, op, problem):
        """Return the call, after checking what stk takes."""
        case = problem.case
        if case.blocksize != (128, 128):
            raise Unserved("blocks of 128x128 only")
        if any(size % 128 for size in case[1:4]):
            raise Unserved("sizes must be multiples of 128")
        return super().prepare(op, problem)

    def _matrix(self, problem):
        import stk

        machine, layout = problem.machine, problem.layout
        rows, cols = layout.coordinates()
        return stk.Matrix(
            layout.shape,
            problem.values,
            machine.index(rows).short(),
            machine.index(cols).short(),
            machine.index(layout.indptr).int(),
        )

    def forward(self, problem):
        """Make A @ x."""
        import stk

        a = self._matrix(problem)
        return Prepared(lambda: stk.ops.dsd(a, problem.x))

    def grad_x(self, problem):
        """Make A.T @ grad_y; stk walks columns by an index, without a copy."""
        import stk

        a = self._matrix(problem).t()
        return Prepared(lambda: stk.ops.dsd(a, problem.grad_y))

    def grad_w(self, problem):
        """Make the sampled product."""
        import stk

        pattern, x_t = self._matrix(problem), problem.x.t()
        return Prepared(
            lambda: stk.ops.sdd(problem.grad_y, x_t, pattern), lambda w: w.data
        )


class Blksprs(Peer):
    """blksprs: its storage is not BSR, dense operands are blocks too.

    Turning dense operands into blocks is left out of its time.
    """

    name = "blksprs"
    modules = ("blksprs", "triton")
    dtypes = ("bf16", "fp16")

    def prepare(self, op, problem):
        """Return the call, after checking what blksprs takes."""
        case = problem.case
        R, C = case.blocksize
        if R != C or R < 16 or R & (R - 1):
            raise Unserved("square blocks of a power of two from 16 on only")
        if case.N % R:
            raise Unserved("N must be a multiple of the block size")
        return super().prepare(op, problem)

    def _operand(self, problem, dense):
        """Return a dense operand as (blocks, R, R) with a full layout."""
        R = problem.case.blocksize[0]
        rows, cols = dense.shape[0] // R, dense.shape[1] // R
        blocks = problem.machine.copy(
            dense.reshape(rows, R, cols, R).swapaxes(1, 2).reshape(-1, R, R)
        )
        layout = problem.machine.index(np.ones((1, rows, cols))).bool()
        return blocks, layout

    def _layout(self, problem, layout):
        return problem.machine.index(layout.mask()[None]).bool()

    def _call(self, problem, left, right, out):
        """Return a call of blksprs's matmul with its lookup tables cached."""
        import blksprs

        R, cache = problem.case.blocksize[0], {}
        return lambda: blksprs.ops.matmul(*left, *right, out, R, layout_cache=cache)

    def _dense_output(self, problem, rows):
        R, N = problem.case.blocksize[0], problem.case.N
        return lambda blocks: (
            _plain(problem, blocks)
            .reshape(rows // R, N // R, R, R)
            .swapaxes(1, 2)
            .reshape(rows, N)
        )

    def forward(self, problem):
        """Make A @ x."""
        a = problem.values, self._layout(problem, problem.layout)
        _, out = self._operand(problem, problem.grad_y)
        call = self._call(problem, a, self._operand(problem, problem.x), out)
        return Prepared(call, self._dense_output(problem, problem.case.M))

    def grad_x(self, problem):
        """Make A.T @ grad_y on a transposed copy, as its own backward makes one."""
        values = problem.transposed_values
        a_t = values, self._layout(problem, problem.layout.T)
        _, out = self._operand(problem, problem.x)
        call = self._call(problem, a_t, self._operand(problem, problem.grad_y), out)
        return Prepared(
            call,
            self._dense_output(problem, problem.case.K),
            **_copied(problem, values),
        )

    def grad_w(self, problem):
        """Make the sampled product, with a transposed copy of x."""
        x_t = self._operand(problem, problem.x.T)
        grad_y = self._operand(problem, problem.grad_y)
        out = self._layout(problem, problem.layout)
        call = self._call(problem, grad_y, x_t, out)
        extra = x_t[0].numel() * x_t[0].element_size()
        return Prepared(call, lambda w: _plain(problem, w), extra)


class BlksprsTF32(Blksprs):
    """blksprs for fp32: Triton's default there is TF32."""

    name = "blksprs TF32"
    input_roundoff = TF32_ROUNDOFF
    dtypes = ("fp32",)


class CupyCsr(Peer):
    """CuPy's CSR product of the same matrix (cuSPARSE), columns of x contiguous."""

    name = "CuPy CSR"
    modules = ("cupy", "torch")
    dtypes = ("fp32", "fp64")

    def _product(self, problem, layout, values, dense):
        import cupy
        import cupyx.scipy.sparse

        a = _scipy_bsr(problem, layout, values).tocsr()
        a = cupyx.scipy.sparse.csr_matrix(a)
        dense = cupy.asfortranarray(cupy.from_dlpack(dense.contiguous()))
        torch = problem.machine.torch
        stored = a.data.nbytes + a.indices.nbytes + a.indptr.nbytes
        return Prepared(
            lambda: a @ dense, lambda y: torch.from_dlpack(y), copies_bytes=stored
        )

    def forward(self, problem):
        """Make A @ x."""
        return self._product(problem, problem.layout, problem.values, problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y, with A.T converted on the host."""
        values = problem.transposed_values
        return self._product(problem, problem.layout.T, values, problem.grad_y)

    def grad_w(self, problem):
        """Refuse: CuPy has no sampled product."""
        raise Unserved("CuPy has no sampled product")


class CuSparseBsr(Peer):
    """cuSPARSE's generic BSR products, called by ctypes."""

    name = "cuSPARSE BSR"
    modules = ("torch",)

    def __init__(self):
        self._library = None

    def missing(self):
        """Return why the library cannot be used, if so."""
        absent = super().missing()
        if absent is None and self._library is None:
            try:
                self._library = CuSparse()
            except OSError as error:
                absent = f"libcusparse.so.12 is not found: {error}"
        return absent

    def forward(self, problem):
        """Make A @ x."""
        return self._product(problem, problem.layout, problem.values, problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y, which needs A.T as a second BSR array."""
        values = problem.transposed_values
        prepared = self._product(problem, problem.layout.T, values, problem.grad_y)
        return prepared._replace(**_copied(problem, values))

    def _product(self, problem, layout, values, dense):
        lib, machine = self._library, problem.machine
        kind, compute, scalar = _cuda_types(problem.case.dtype)
        out = dense.new_empty((layout.shape[0], dense.shape[1]))
        indptr = machine.index(layout.indptr).int()
        indices = machine.index(layout.indices).int()
        a = lib.bsr(layout, indptr, indices, values, kind)
        b, c = lib.dense(dense, kind), lib.dense(out, kind)
        one, zero = scalar(1), scalar(0)
        ref = ctypes.byref
        args = (0, 0, ref(one), a, b, ref(zero), c, compute, 14)  # BSR_ALG1
        size = ctypes.c_size_t()
        stream = machine.torch.cuda.current_stream().cuda_stream
        lib("cusparseSetStream", lib.handle, ctypes.c_void_p(stream))
        lib("cusparseSpMM_bufferSize", lib.handle, *args, ref(size))
        buffer = machine.index(np.zeros(size.value // 8 + 1))
        pointer = ctypes.c_void_p(buffer.data_ptr())

        def call(alive=(indptr, indices, values, dense, buffer)):
            lib("cusparseSpMM", lib.handle, *args, pointer)
            return out

        return Prepared(call)

    def grad_w(self, problem):
        """Make the sampled product, x.T by its strides."""
        lib, machine, layout = self._library, problem.machine, problem.layout
        kind, compute, scalar = _cuda_types(problem.case.dtype)
        out = problem.values.new_zeros(problem.values.shape)
        indptr = machine.index(layout.indptr).int()
        indices = machine.index(layout.indices).int()
        c = lib.bsr(layout, indptr, indices, out, kind)
        a, b = lib.dense(problem.grad_y, kind), lib.dense(problem.x.T, kind)
        one, zero = scalar(1), scalar(0)
        ref = ctypes.byref
        args = (0, 0, ref(one), a, b, ref(zero), c, compute, 0)
        size = ctypes.c_size_t()
        stream = machine.torch.cuda.current_stream().cuda_stream
        lib("cusparseSetStream", lib.handle, ctypes.c_void_p(stream))
        lib("cusparseSDDMM_bufferSize", lib.handle, *args, ref(size))
        buffer = machine.index(np.zeros(size.value // 8 + 1))
        pointer = ctypes.c_void_p(buffer.data_ptr())

        def call(alive=(indptr, indices, buffer)):
            lib("cusparseSDDMM", lib.handle, *args, pointer)
            return out

        return Prepared(call)


class CuSparse:
    """The few functions of libcusparse that the peer needs (signatures of 12.6)."""

    def __init__(self, library=None):
        self.library = library or _load_cusparse()
        self.library.cusparseGetErrorString.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        self("cusparseCreate", ctypes.byref(self.handle))

    def __call__(self, name, *args):
        """Call a function; anything but success is Unserved with its status."""
        status = getattr(self.library, name)(*args)
        if status:
            text = self.library.cusparseGetErrorString(status) or b""
            raise Unserved(f"{name} answers status {status}, {text.decode()}")

    def bsr(self, layout, indptr, indices, values, kind):
        """Return a descriptor of a BSR matrix, blocks stored by rows."""
        descriptor = ctypes.c_void_p()
        sizes = (layout.block_rows, layout.block_cols, layout.blocks, *layout.blocksize)
        self(
            "cusparseCreateBsr",
            ctypes.byref(descriptor),
            *map(ctypes.c_int64, sizes),
            *(ctypes.c_void_p(t.data_ptr()) for t in (indptr, indices, values)),
            *(2, 2, 0, kind, 2),  # int32 indices from 0, dtype, order of rows
        )
        return descriptor

    def dense(self, x, kind):
        """Return a descriptor of a dense matrix, by rows or by columns."""
        descriptor = ctypes.c_void_p()
        by_rows = x.stride(1) == 1
        leading = x.stride(0) if by_rows else x.stride(1)
        self(
            "cusparseCreateDnMat",
            ctypes.byref(descriptor),
            *map(ctypes.c_int64, (*x.shape, leading)),
            ctypes.c_void_p(x.data_ptr()),
            *(kind, 2 if by_rows else 1),
        )
        return descriptor


class Scipy(Peer):
    """SciPy's BSR product: one thread, on the host.

    On a machine with a GPU only so many columns of the right operand are multiplied
    as one core does in a fraction of a second; its rate does not depend on them.
    """

    name = "SciPy, one thread"
    gpu = False
    dtypes = ("fp32", "fp64")
    flops = 5e8

    def _product(self, problem, layout, values, dense):
        columns, N = None, problem.case.N
        if problem.machine.is_gpu:
            columns = min(N, max(16, int(self.flops * N / max(1, problem.flops))))
            dense = dense[:, :columns]
        a = _scipy_bsr(problem, layout, values)
        dense = np.ascontiguousarray(problem.machine.to_host(dense))
        note = "" if columns is None else f"{columns} columns of {N}"
        return Prepared(lambda: a @ dense, note=note, columns=columns)

    def forward(self, problem):
        """Make A @ x."""
        return self._product(problem, problem.layout, problem.values, problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y, with A.T made beforehand."""
        if problem.machine.is_gpu:
            raise Unserved("timed forward only where there is a GPU")
        values = problem.transposed_values
        return self._product(problem, problem.layout.T, values, problem.grad_y)

    def grad_w(self, problem):
        """Refuse: SciPy has no sampled product."""
        raise Unserved("SciPy has no sampled product")


class Numpy(Peer):
    """NumPy's dense product: BLAS, all its threads."""

    name = "dense"
    gpu = False
    sparse = False
    dtypes = ("fp32", "fp64")  # BLAS knows no others

    def forward(self, problem):
        """Make A @ x."""
        a = problem.dense()
        return Prepared(lambda: a @ problem.x)

    def grad_x(self, problem):
        """Make A.T @ grad_y."""
        a = problem.dense()
        return Prepared(lambda: a.T @ problem.grad_y)

    def grad_w(self, problem):
        """Make grad_y @ x.T, all of it."""
        return Prepared(lambda: problem.grad_y @ problem.x.T, problem.stored)


def find_peers(machine, tuned: Path = TUNED, tune_seconds: float = 6.0) -> list[Peer]:
    """Return all peers for a machine, numba_bs first, installed or not."""
    if not machine.is_gpu:
        return [NumbaBsHost(), Numpy(), Scipy()]
    return [
        NumbaBs(),
        Dense(),
        DenseTF32(),
        Torch(),
        TorchTuned(tuned, tune_seconds),
        TorchTunedTF32(tuned, tune_seconds),
        Stk(),
        CuSparseBsr(),
        CupyCsr(),
        Blksprs(),
        BlksprsTF32(),
        Scipy(),
    ]


def short(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, Unserved):
        return text
    text = text if len(text) <= 200 else text[:197] + "..."
    return f"{type(error).__name__}: {text}"


def _torch_bsr(problem, layout=None, values=None):
    torch, index = problem.machine.torch, problem.machine.index
    layout = problem.layout if layout is None else layout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "BSR tensor support is in beta state"
        return torch.sparse_bsr_tensor(
            index(layout.indptr).int(),
            index(layout.indices).int(),
            problem.values if values is None else values,
            size=layout.shape,
        )


def _torch_bsr_transposed(problem):
    """Return A.T as torch's BSR, and what this copy costs."""
    values = problem.transposed_values
    bsr = _torch_bsr(problem, problem.layout.T, values)
    return bsr, _copied(problem, values)


def _copied(problem, values):
    """Return the fields of Prepared that tell of a transposed copy."""
    layout = problem.layout.T
    return {
        "copies_bytes": values.numel() * values.element_size()
        + layout.indptr.nbytes
        + layout.indices.nbytes,
        "refresh": lambda: problem.transpose(values),
    }


def _scipy_bsr(problem, layout, values):
    values = problem.machine.to_host(values)
    return scipy.sparse.bsr_array(
        (values, layout.indices, layout.indptr), shape=layout.shape
    )


def _plain(problem, x):
    """Return a plain torch tensor of a subclass's elements."""
    return x.as_subclass(problem.machine.torch.Tensor)


def _cuda_types(dtype):
    """Return cudaDataType of operands and of sums, and the type of alpha and beta."""
    kind = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 14}[dtype]
    return (1, 1, ctypes.c_double) if kind == 1 else (kind, 0, ctypes.c_float)


def _load_cusparse():
    """Load libcusparse: torch's own, loaded already, or the wheel's."""
    try:
        return ctypes.CDLL("libcusparse.so.12")
    except OSError:
        spec = importlib.util.find_spec("nvidia")
        folders = list(spec.submodule_search_locations) if spec else []
        for folder in folders:
            for path in glob.glob(f"{folder}/*/lib/libcusparse.so.12"):
                return ctypes.CDLL(path)
        raise
