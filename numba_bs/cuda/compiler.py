"""All that kernel files need of Numba, and the way from a kernel to a cubin.

This is the only file that imports ``cuda`` from numba. A kernel file takes from it

- ``cuda``, to be used under that name as a global: the simulator swaps it;
- dtype names (``float32``, ...) for arrays in shared and local memory, and
  :func:`numba_type` for one that is a constant of the kernel;
- casts (``f32``, ``i64``, ...; :func:`cast` for a dtype) that do in the simulator what
  they do on a GPU: integers wrap;
- :func:`maker`, :func:`jit` and :func:`device`.

:func:`compile` needs no GPU. :func:`load` puts a cache on disk in front of it.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import config, types
from numba import cuda as cuda
from numba.cuda.np.numpy_support import from_dtype

from ..arrays import Operand
from ..dtypes import bfloat16, words
from .tensor_map import TensorMap

SIMULATED = bool(config.ENABLE_CUDASIM)
STATIC_SHARED_LIMIT = 48 * 1024  # bytes of a CTA; dynamic ones have the device's limit

float16, float32, float64 = types.float16, types.float32, types.float64
complex64, complex128 = types.complex64, types.complex128
int8, int16, int32, int64 = types.int8, types.int16, types.int32, types.int64
uint8, uint16, uint32, uint64 = types.uint8, types.uint16, types.uint32, types.uint64

if SIMULATED:
    from . import simulator


class TensorMapType(types.Type):
    """A tensor map (``tensor_map.py``) as parameter of a kernel, passed by value."""

    def __init__(self, parameter):
        super().__init__(f"TensorMap({parameter})")
        self.parameter = parameter  # its place among the parameters


# --------------------------------------------------------------- what kernels call


@functools.cache
def numba_type(dtype):
    """Return Numba's type of a NumPy dtype; 16-bit words for bfloat16."""
    return from_dtype(words(np.dtype(dtype)))


@functools.cache
def cast(dtype):
    """Return the function by which a kernel converts to ``dtype``.

    Parameters
    ----------
    dtype : NumPy dtype or Numba type
    """
    if not isinstance(dtype, types.Type):
        if np.dtype(dtype) == bfloat16:
            raise TypeError(
                "cast: dtype must be a number that Numba knows, got bfloat16; kernels "
                "convert it by ptx.bf16_to_f32 and ptx.f32_to_bf16"
            )
        dtype = numba_type(dtype)
    if not SIMULATED:
        return dtype
    return simulator.converter(str(dtype))


i32, i64, u32, u64 = map(cast, (int32, int64, uint32, uint64))
f32, f64 = map(cast, (float32, float64))

# A device function is inlined where it is called: as a function of its own Numba
# would compile it for the current device, and compiling must not need one.
device = (
    simulator.device_function if SIMULATED else cuda.jit(device=True, inline="always")
)


# The same for what is called so often that inlining its source would take a minute:
# Numba compiles it once, and LLVM inlines it.
inlined_late = (
    simulator.device_function if SIMULATED else cuda.jit(device=True, forceinline=True)
)


class Kernel:
    """A kernel function with what a launch of it needs; made by :func:`jit`."""

    __slots__ = (
        "alone",
        "cluster",
        "dynamic_shared",
        "function",
        "key",
        "ready",
        "threads",
    )

    def __init__(self, function, threads, dynamic_shared=0, alone=False, cluster=1):
        self.function = function
        self.threads = threads  # of a CTA, one number an axis
        self.dynamic_shared = dynamic_shared  # bytes
        self.alone = alone
        self.cluster = cluster  # CTAs that share what they load, neighbours along x
        self.key = None  # (module, maker, arguments), set by the maker
        self.ready = {}  # what launch.py prepared, by types of arguments and device

    def __repr__(self):
        return f"<kernel {self.key or self.function.__qualname__}>"


def jit(threads, dynamic_shared=0, alone=False, cluster=1):
    """Make a kernel of a function; nothing is compiled yet.

    Parameters
    ----------
    threads : int or tuple of up to three
        Threads of a CTA. The compiler may use all registers they leave each other.
    dynamic_shared : int
        Bytes of ``cuda.shared.array(0, dtype)``.
    alone : bool
        No other CTA shares its multiprocessor. Then ptxas knows how many registers a
        thread begins with, without which it drops ``setmaxnreg`` and runs ``wgmma``
        one after the other.
    cluster : int
        CTAs that run together and reach each other's shared memory: neighbours along
        x. Needs compute capability 9.0. The grid must be whole clusters.
    """
    threads = threads if isinstance(threads, tuple) else (threads,)
    if len(threads) > 3 or min(threads) < 1 or math.prod(threads) > 1024:
        raise ValueError(f"jit: a CTA must have 1 to 1024 threads, got {threads}")
    if dynamic_shared < 0:
        raise ValueError(f"jit: dynamic_shared must be bytes, got {dynamic_shared}")
    if not 1 <= cluster <= 8:
        raise ValueError(f"jit: a cluster must have 1 to 8 CTAs, got {cluster}")
    return lambda function: Kernel(function, threads, dynamic_shared, alone, cluster)


# What may be an argument of a maker: its repr says all there is, in every process.
_CONSTANTS = (int, float, str, bool, type(None), np.dtype, types.Type)


def maker(make):
    """Decorate a function that makes a kernel of compile-time constants.

    It is called once for each set of arguments; the kernel's ``key`` names them.
    """
    signature = inspect.signature(make)

    # typed: 1, 1.0 and True are three constants, though they are equal.
    @functools.lru_cache(maxsize=None, typed=True)
    @functools.wraps(make)
    def made(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        _check_constants(make.__qualname__, list(bound.arguments.values()))
        kernel = make(*args, **kwargs)
        kernel.key = (make.__module__, make.__qualname__, repr(dict(bound.arguments)))
        return kernel

    return made


def _check_constants(name, values):
    for value in values:
        if isinstance(value, tuple):
            _check_constants(name, value)
        elif not isinstance(value, _CONSTANTS):
            raise TypeError(
                f"{name}: arguments of a maker must be numbers, strings, dtypes or "
                f"tuples of them, got {type(value).__name__}"
            )


def leaves(args):
    """Yield the arguments of a kernel: tuples are passed element by element."""
    for arg in args:
        if isinstance(arg, tuple) and not isinstance(arg, (Operand, TensorMap)):
            yield from leaves(arg)
        else:
            yield arg


_SCALARS = (np.float32, np.float64, np.complex64, np.complex128)


def signature_of(args):
    """Return Numba's types of these arguments of ``launch.run``."""
    signature, parameters = [], 0
    for arg in leaves(args):
        if isinstance(arg, Operand):
            dtype = numba_type(arg.dtype)
            signature.append(types.Array(dtype, len(arg.shape), "A"))
            parameters += 5 + 2 * len(arg.shape)
            continue
        parameters += 2 if isinstance(arg, np.complexfloating) else 1
        if isinstance(arg, TensorMap):
            signature.append(TensorMapType(parameters - 1))
        elif type(arg) is int:
            signature.append(int64)
        elif type(arg) in _SCALARS:
            signature.append(numba_type(arg.dtype))
        else:
            raise TypeError(
                "run: arguments must be Operands, Python ints, float32, float64, "
                f"complex64 or complex128 scalars, got {type(arg).__name__}"
            )
    return tuple(signature)


# ----------------------------------------------------------------------- compiling


class Compiled(NamedTuple):
    """Machine code of one kernel for one signature and compute capability."""

    ptx: str | None  # if asked for
    cubin: bytes
    name: str  # of the entry point
    log: str  # of the linker: registers, spills, stack, shared memory


def compile(kernel, signature, capability=(9, 0), ptx=True):
    """Compile a kernel to PTX and on to a cubin, without a GPU.

    Parameters
    ----------
    kernel : Kernel
    signature : tuple of Numba types
    capability : (int, int)
        Compute capability. From 9.0 on the code may use what only this one has.
    ptx : bool
        Whether to return PTX where the cubin is made of something else (``alone``):
        Numba then compiles twice.

    Raises
    ------
    NotImplementedError
        The installed CUDA compiler does not serve this capability, or the kernel
        wants more shared memory of fixed shape than there is.
    RuntimeError
        In the simulator; or the linker refuses, with what to install if it is too
        old for the compiler.
    """
    if SIMULATED:
        raise RuntimeError(
            "compile: the simulator must be off, got NUMBA_ENABLE_CUDASIM=1"
        )
    _check_capability(capability)
    if kernel.alone and _links_whole_programs():
        # Of PTX, nvJitLink since CUDA 13.1 makes an object that others may call into,
        # with the loss that ``alone`` is there to avoid.
        code = _by_numba(kernel, signature, capability, "ltoir")
        cubin, log = _link(code, _target(capability))
        # Numba numbers what it compiles: the name is not the one in the PTX.
        pattern = rf"\.text\.(\w*{kernel.function.__name__}\w*)\0".encode()
        (name,) = set(re.findall(pattern, cubin))
        text = _by_numba(kernel, signature, capability, "ptx") if ptx else None
        return Compiled(text, cubin, name.decode(), log)
    text = _by_numba(kernel, signature, capability, "ptx")
    fixed = sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", text)))
    if fixed > STATIC_SHARED_LIMIT:  # ptxas refuses for some capabilities only
        raise NotImplementedError(
            f"compile: shared memory of fixed shape must fit {STATIC_SHARED_LIMIT} "
            f"bytes a CTA, got {fixed}; more must be dynamic"
        )
    cubin, log = _link(text.encode(), _target(capability))
    name = text.split(".entry ", 1)[1].split("(", 1)[0].strip()
    return Compiled(text, cubin, name, log)


def _by_numba(kernel, signature, capability, output):
    suffix = "a" if capability >= (9, 0) else ""
    threads = math.prod(kernel.threads)
    capability = (*capability, suffix) if suffix else capability
    with _addressing(), _for_device_functions(capability):
        code, _ = cuda.compile(
            kernel.function,
            signature,
            cc=capability,
            device=False,
            abi="numba",
            launch_bounds=(threads, 1) if kernel.alone else threads,
            debug=False,  # this and the next: not what the environment says
            opt=True,
            output=output,
        )
    return code


def _target(capability):
    return f"sm_{capability[0]}{capability[1]}{'a' if capability >= (9, 0) else ''}"


@contextlib.contextmanager
def _for_device_functions(capability):
    """Let Numba compile device functions for ``capability``, not the current GPU."""
    from types import SimpleNamespace

    from numba.cuda import dispatcher

    before = dispatcher.get_current_device
    stated = SimpleNamespace(compute_capability=capability)
    dispatcher.get_current_device = lambda: stated
    try:
        yield
    finally:
        dispatcher.get_current_device = before


@contextlib.contextmanager
def _addressing():
    """Let Numba compute the address of an array element as CUDA C does.

    Numba makes an integer of the pointer before it adds strides. After that NVVM no
    longer knows that the arrays of a kernel lie in global memory: every access is a
    generic one, and no load can move before a store to shared memory, so what a
    thread stages arrives one item after the other. Here strides are added to the
    pointer.

    Numba also takes negative indices from the end, which costs two instructions and
    the length of the axis at every access. Kernels of this package have no negative
    index (the simulator refuses them), so none is looked for.
    """
    from numba.cuda import cgutils
    from numba.cuda.core.compiler_lock import global_compiler_lock
    from numba.cuda.np import arrayobj

    def pointer_add(builder, pointer, offset, return_type=None):
        if isinstance(offset, int):
            offset = cgutils.intp_t(offset)
        address = builder.gep(builder.bitcast(pointer, cgutils.voidptr_t), [offset])
        return builder.bitcast(address, return_type or pointer.type)

    def fix_integer_index(context, builder, index_type, index, size):
        wide = types.intp if index_type.signed else types.uintp
        return context.cast(builder, index, index_type, wide)

    with global_compiler_lock:  # nothing else compiles meanwhile
        before = cgutils.pointer_add, arrayobj.fix_integer_index
        cgutils.pointer_add = pointer_add
        arrayobj.fix_integer_index = fix_integer_index
        try:
            yield
        finally:
            cgutils.pointer_add, arrayobj.fix_integer_index = before


def _check_capability(capability):
    from numba.cuda.cudadrv import nvrtc

    served = nvrtc.get_supported_ccs()
    if capability not in served:
        raise NotImplementedError(
            f"compile: compute capability must be one that the installed CUDA compiler "
            f"serves ({', '.join(f'{a}.{b}' for a, b in served)}), got "
            f"{capability[0]}.{capability[1]}; install a numba-cuda[cu12] or "
            f"numba-cuda[cu13] that fits the GPU"
        )


def _links_whole_programs():
    """Return whether the linker takes NVVM's intermediate code: nvJitLink does."""
    from cuda.core import Linker

    return "nvjitlink" in str(Linker.which_backend()).lower()


def _link(code, arch):
    """Return cubin and log. The linker is nvJitLink if installed, else the driver's."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    linker = None
    try:
        whole = not code.lstrip().startswith(b"//")  # PTX begins with a comment
        make = ObjectCode.from_ltoir if whole else ObjectCode.from_ptx
        options = LinkerOptions(
            arch=arch, verbose=True, link_time_optimization=True if whole else None
        )
        linker = Linker(make(code), options=options)
        cubin = linker.link("cubin").code
        return bytes(cubin), linker.get_info_log().rstrip("\0\n ")
    except Exception as error:
        text = str(error).rstrip("\0\n ")  # holds the linker's log
        raise RuntimeError(
            f"compile: the linker must accept the code, got {text}; if it is older "
            "than the compiler: pip install -U 'numba-cuda[cu13]' (or [cu12], what the "
            "driver serves) brings both of one CUDA version"
        ) from error
    finally:
        if linker is not None:
            linker.close()


# ------------------------------------------------------------------ cache on disk

_FOLDER = Path(__file__).parent
# Whose versions decide what a source file is compiled to.
_COMPILERS = (
    "numba",
    "numba-cuda",
    "llvmlite",
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink-cu12",
)


def _sources_hash():
    """Hash what a kernel may be made of: its file, those it imports, the makers."""
    digest = hashlib.sha256()
    for path in [*sorted(_FOLDER.glob("*.py")), _FOLDER.parent / "dtypes.py"]:
        with contextlib.suppress(OSError):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# Taken now, when the files are those that run.
_SOURCES = None if SIMULATED else _sources_hash()


@functools.cache
def _versions():
    found = [sys.version]
    with contextlib.suppress(Exception):  # those that no package version tells
        from cuda.core import Linker
        from numba.cuda.cudadrv import nvvm

        found += [str(Linker.which_backend()), str(nvvm.NVVM().get_version())]
    for name in _COMPILERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def cache_folder():
    """Return where cubins are kept, or None if the user has no home."""
    try:
        if os.name == "nt":
            root = Path(os.environ.get("LOCALAPPDATA") or Path.home())
        else:
            root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "numba_bs"


def load(kernel, signature, capability):
    """Return ``(entry name, cubin)``, from the cache on disk if it is there.

    Only kernels that a maker of this folder made are kept: of others the cache could
    not know all the source they depend on.
    """
    path = _cache_path(kernel, signature, capability)
    if path is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return _read(path)
    compiled = compile(kernel, signature, capability, ptx=False)
    # Edited since they were imported: the code is that of the old files.
    if path is not None and _sources_hash() == _SOURCES:
        with contextlib.suppress(OSError):  # works without a cache
            _write(path, compiled)
    return compiled.name, compiled.cubin


def _cache_path(kernel, signature, capability):
    folder = cache_folder()
    if folder is None or kernel.key is None:
        return None
    if kernel.key[0].rpartition(".")[0] != __package__:
        return None
    launch = (kernel.threads, kernel.dynamic_shared, kernel.alone)
    parts = (_SOURCES, _versions(), kernel.key, launch, signature, capability)
    return folder / hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


def _write(path, compiled):
    """One line of JSON, then the cubin; other processes see all of it or nothing."""
    digest = hashlib.sha256(compiled.cubin).hexdigest()
    header = json.dumps({"name": compiled.name, "sha256": digest})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header.encode() + b"\n" + compiled.cubin)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _read(path):
    header, _, cubin = path.read_bytes().partition(b"\n")
    header = json.loads(header)
    if hashlib.sha256(cubin).hexdigest() != header["sha256"]:
        raise ValueError(f"{path} is damaged")
    return header["name"], cubin
