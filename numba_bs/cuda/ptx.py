"""PTX instructions as functions of a kernel, each declared once, as data.

:func:`declare` takes name, PTX text, types and the section of the PTX ISA manual
that describes the instruction. For a GPU it makes an intrinsic that emits inline PTX
and casts its operands to the declared types; in the simulator a call of the function
of the same name in ``ptx_emulated.py``. Kernels cannot tell which they got. A
declaration without an emulation fails when it is made in the simulator.

Constants that are part of the text (how many to wait for, how an operand lies) are
arguments of a ``make_...`` function, and keywords of the emulation.

This is the only file that imports llvmlite.
"""

import functools
import inspect
from typing import NamedTuple

from numba import types

from .compiler import (
    SIMULATED,
    TensorMapType,
    cast,
    device,
    float32,
    float64,
    int32,
    int64,
    u32,
    uint32,
    uint64,
)


class Instruction(NamedTuple):
    """``$0, $1, ...`` in the PTX count the results, then the operands.

    A tuple counts as one number per element.
    """

    name: str
    ptx: str
    section: str  # of the PTX ISA manual
    result: object  # Numba type, or None
    operands: dict  # name -> Numba type, TENSOR_MAP or ARRAY
    immediates: dict  # name -> constant that the text holds
    pure: bool  # without side effect: may be moved, merged or dropped
    in_place: bool  # the results live in the registers of the first operand


INSTRUCTIONS: list[Instruction] = []

TENSOR_MAP = "tensor map"  # an operand: a kernel's parameter of that kind, its address
ARRAY = "array"  # an operand: an array, of which the instruction gets the address


def declare(
    name,
    ptx,
    *,
    section,
    result=None,
    immediates=None,
    pure=False,
    in_place=False,
    **operands,
):
    """Declare an instruction; return the function that kernels call."""
    instruction = Instruction(
        name, ptx, section, result, operands, immediates or {}, pure, in_place
    )
    made = _bind(instruction)
    made.__doc__ = f"{ptx.rstrip(';')} (PTX ISA, {section})"
    INSTRUCTIONS.append(instruction)
    return made


if SIMULATED:
    from . import ptx_emulated

    def _bind(instruction):
        emulation = getattr(ptx_emulated, instruction.name, None)
        if emulation is None:
            raise NotImplementedError(
                f"declare: {instruction.name} must have an emulation of that name in "
                f"ptx_emulated.py, got none"
            )
        if instruction.immediates:
            emulation = functools.partial(emulation, **instruction.immediates)
        casts = [_emulated_cast(type_) for type_ in instruction.operands.values()]

        def emulated(*operands):
            pairs = zip(casts, operands, strict=True)
            return emulation(*[to(operand) for to, operand in pairs])

        return emulated

    def _emulated_cast(type_):
        if isinstance(type_, types.UniTuple) or type_ in (TENSOR_MAP, ARRAY):
            return lambda operand: operand
        return cast(type_)

    def make_zeros(count):
        """Return the function that makes a tuple of ``count`` float32 zeros."""
        return functools.partial(ptx_emulated.zeros, count=count)

    def make_spread(count):
        """Return the function that copies a tuple of registers to a local array."""
        return ptx_emulated.spread

else:
    import llvmlite.ir as ir
    from numba.cuda.extending import intrinsic, models, register_model

    @register_model(TensorMapType)
    class _TensorMapModel(models.PrimitiveModel):
        def __init__(self, manager, type_):
            super().__init__(manager, type_, ir.VectorType(ir.IntType(64), 16))

    # Of each type that PTX holds in a register: LLVM's type, the letter of its
    # register class in an inline assembly constraint.
    _REGISTERS = {
        float32: (ir.FloatType(), "f"),
        float64: (ir.DoubleType(), "d"),
        uint32: (ir.IntType(32), "r"),
        int32: (ir.IntType(32), "r"),
        uint64: (ir.IntType(64), "l"),
        int64: (ir.IntType(64), "l"),
    }

    def _elements(type_):
        """Return the types of the registers that a value is held in."""
        if type_ is None:
            return []
        if isinstance(type_, types.UniTuple):
            return [type_.dtype] * type_.count
        return [uint64 if type_ in (TENSOR_MAP, ARRAY) else type_]

    def _bind(instruction):
        results = _elements(instruction.result)
        operands = [_elements(type_) for type_ in instruction.operands.values()]
        operands = [each for group in operands for each in group]
        outputs = [_REGISTERS[type_][0] for type_ in results]
        if len(outputs) > 1:
            returned = ir.LiteralStructType(outputs)
        else:
            returned = outputs[0] if outputs else ir.VoidType()
        function = ir.FunctionType(returned, [_REGISTERS[t][0] for t in operands])
        tied = len(results) if instruction.in_place else 0
        constraints = ["=" + _REGISTERS[type_][1] for type_ in results]
        constraints += [str(i) for i in range(tied)]
        constraints += [_REGISTERS[type_][1] for type_ in operands[tied:]]
        if not instruction.pure:
            constraints.append("~{memory}")

        def define(typingctx, *args):
            given = [
                actual if declared in (TENSOR_MAP, ARRAY) else declared
                for actual, declared in zip(
                    args, instruction.operands.values(), strict=True
                )
            ]

            def codegen(context, builder, signature, values):
                assembly = ir.InlineAsm(
                    function,
                    instruction.ptx,
                    ",".join(constraints),
                    side_effect=not instruction.pure,
                )
                registers = [
                    each
                    for type_, value in zip(signature.args, values, strict=True)
                    for each in _registers(context, builder, type_, value)
                ]
                value = builder.call(assembly, registers)
                if not outputs:
                    return context.get_dummy_value()
                if not isinstance(instruction.result, types.UniTuple):
                    return value
                each = [value]
                if len(outputs) > 1:
                    each = [
                        builder.extract_value(value, i) for i in range(len(outputs))
                    ]
                return context.make_tuple(builder, signature.return_type, each)

            return (instruction.result or types.void)(*given), codegen

        return _intrinsic(define, instruction.name, instruction.operands)

    def _intrinsic(define, name, operands):
        # Numba reads from the signature how many operands an intrinsic takes.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(n, kind) for n in ("typingctx", *operands)]
        define.__name__ = name
        define.__signature__ = inspect.Signature(parameters)
        return intrinsic(define)

    def _registers(context, builder, type_, value):
        """Return the LLVM values that hold an operand."""
        if isinstance(type_, types.UniTuple):
            return [builder.extract_value(value, i) for i in range(type_.count)]
        if isinstance(type_, types.Array):
            data = context.make_array(type_)(context, builder, value).data
            return [builder.ptrtoint(data, ir.IntType(64))]
        if isinstance(type_, TensorMapType):
            # A parameter of the kernel has an address, which its value does not show.
            place = f"{builder.function.name}_param_{type_.parameter}"
            text = f"{{ .reg .b64 t; mov.b64 t, {place}; cvta.param.u64 $0, t; }}"
            function = ir.FunctionType(ir.IntType(64), [])
            return [builder.call(ir.InlineAsm(function, text, "=l"), [])]
        return [value]

    def make_zeros(count):
        """Return the function that makes a tuple of ``count`` float32 zeros."""
        registers = types.UniTuple(float32, count)

        @intrinsic
        def zeros(typingctx):
            def codegen(context, builder, signature, values):
                zero = ir.Constant(ir.FloatType(), 0.0)
                return context.make_tuple(builder, registers, [zero] * count)

            return registers(), codegen

        return zeros

    def make_spread(count):
        """Return the function that copies a tuple of registers to a local array.

        A loop over the array that the compiler unrolls leaves it in registers; the
        same loop over a tuple becomes a branch for each element.
        """

        @intrinsic
        def spread(typingctx, registers, array):
            def codegen(context, builder, signature, values):
                data = context.make_array(signature.args[1])(
                    context, builder, values[1]
                ).data
                for i in range(count):
                    place = builder.gep(data, [ir.Constant(ir.IntType(32), i)])
                    builder.store(builder.extract_value(values[0], i), place)
                return context.get_dummy_value()

            return types.void(registers, array), codegen

        return spread


# ------------------------------------------------------- conversion, memory by address

_MOV = "Data Movement and Conversion Instructions: mov"

float_as_uint = declare(
    "float_as_uint",
    "mov.b32 $0, $1;",
    section=_MOV,
    result=uint32,
    pure=True,
    x=float32,
)
uint_as_float = declare(
    "uint_as_float",
    "mov.b32 $0, $1;",
    section=_MOV,
    result=float32,
    pure=True,
    bits=uint32,
)
round_tf32 = declare(
    "round_tf32",
    "cvt.rna.tf32.f32 $0, $1;",
    section="Data Movement and Conversion Instructions: cvt",
    result=uint32,
    pure=True,
    x=float32,
)
smem_addr = declare(
    "smem_addr",
    "{ .reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t; }",
    section="Data Movement and Conversion Instructions: cvta",
    result=uint32,
    pure=True,
    array=ARRAY,
)
gmem_addr = declare(
    "gmem_addr",
    "cvta.to.global.u64 $0, $1;",
    section="Data Movement and Conversion Instructions: cvta",
    result=uint64,
    pure=True,
    array=ARRAY,
)
load_shared = declare(
    "load_shared",
    "ld.shared.u32 $0, [$1];",
    section="Data Movement and Conversion Instructions: ld",
    result=uint32,
    address=uint32,
)
store_shared = declare(
    "store_shared",
    "st.shared.u32 [$0], $1;",
    section="Data Movement and Conversion Instructions: st",
    address=uint32,
    value=uint32,
)
named_barrier = declare(
    "named_barrier",
    "bar.sync $0, $1;",
    section="Parallel Synchronization and Communication Instructions: bar",
    barrier=uint32,
    threads=uint32,
)


@functools.cache
def make_pack(dtype):
    """Return ``pack(low, high)``: two float32 rounded to ``"f16"`` or ``"bf16"``."""
    return declare(
        f"pack_{dtype}",
        f"cvt.rn.{dtype}x2.f32 $0, $2, $1;",
        section="Data Movement and Conversion Instructions: cvt",
        result=uint32,
        pure=True,
        low=float32,
        high=float32,
    )


# ------------------------------------------------------------------------- bfloat16
# A kernel sees bfloat16 as 16-bit words: the upper half of a float32. Integer
# arithmetic converts on every GPU; cvt.rn.bf16.f32 needs compute capability 8.0.


@device
def bf16_to_f32(word):
    """Return the value of a bfloat16 word, exactly."""
    return uint_as_float(word << 16)


@device
def f32_to_bf16(x):
    """Return ``x`` as a bfloat16 word, rounded to nearest even; NaN stays NaN."""
    bits = float_as_uint(x)
    # Half a unit of the last kept place, a little less if that place is even. A NaN
    # would carry into its exponent: it gets the quiet bit in place of the rounding.
    rounded = u32(bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    return u32(quiet if (bits & 0x7FFFFFFF) > 0x7F800000 else rounded)


# -------------------------------------------------------- asynchronous copies (8.0)

_COPY = "Data Movement and Conversion Instructions: Non-bulk copy"

# Of 16 bytes, ``size`` are read; the rest of the destination becomes zero.
cp_async16 = declare(
    "cp_async16",
    "cp.async.cg.shared.global [$0], [$1], 16, $2;",
    section=_COPY,
    destination=uint32,
    source=uint64,
    size=uint32,
)
cp_async8 = declare(
    "cp_async8",
    "cp.async.ca.shared.global [$0], [$1], 8, $2;",
    section=_COPY,
    destination=uint32,
    source=uint64,
    size=uint32,
)
cp_async4 = declare(
    "cp_async4",
    "cp.async.ca.shared.global [$0], [$1], 4, $2;",
    section=_COPY,
    destination=uint32,
    source=uint64,
    size=uint32,
)
# What cp.async is too coarse for: by way of a register, done when it returns.
copy2 = declare(
    "copy2",
    "{ .reg .pred p; .reg .b16 t; mov.b16 t, 0; setp.ne.u32 p, $2, 0; "
    "@p ld.global.b16 t, [$1]; st.shared.b16 [$0], t; }",
    section="Data Movement and Conversion Instructions: ld, st",
    destination=uint32,
    source=uint64,
    size=uint32,
)
cp_commit = declare("cp_commit", "cp.async.commit_group;", section=_COPY)


@functools.cache
def make_cp_wait(n):
    """Return the wait until all but this thread's latest ``n`` groups are there."""
    return declare(
        "cp_wait", f"cp.async.wait_group {n};", section=_COPY, immediates={"n": n}
    )


# ------------------------------------------------------- matrices of a warp (8.0)

_MATRIX = "Warp-Level Matrix Instructions"


@functools.cache
def make_ldmatrix(count, transposed=False):
    """Return ``ldmatrix(row)``: ``count`` 8x8 matrices of 16-bit words.

    Lane ``8 i + r`` gives the address of row r of matrix i.
    """
    registers = ",".join(f"${i}" for i in range(count))
    trans = ".trans" if transposed else ""
    return declare(
        "ldmatrix",
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 "
        f"{{{registers}}}, [${count}];",
        section=f"{_MATRIX}: ldmatrix",
        result=types.UniTuple(uint32, count),
        immediates={"count": count, "transposed": transposed},
        row=uint32,
    )


@functools.cache
def make_stmatrix(count, transposed=False):
    """Return ``stmatrix(row, words)``, the inverse of :func:`make_ldmatrix` (9.0)."""
    registers = ",".join(f"${i + 1}" for i in range(count))
    trans = ".trans" if transposed else ""
    return declare(
        "stmatrix",
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [$0], {{{registers}}};",
        section=f"{_MATRIX}: stmatrix",
        immediates={"count": count, "transposed": transposed},
        row=uint32,
        words=types.UniTuple(uint32, count),
    )


# Of each kind of operands: shape, registers of a, b and c, type of a and b, of c.
_MMA = {
    "f16": ("m16n8k16", 4, 2, 4, uint32, float32),
    "bf16": ("m16n8k16", 4, 2, 4, uint32, float32),
    "tf32": ("m16n8k8", 4, 2, 4, uint32, float32),
    "f64": ("m8n8k4", 1, 1, 2, float64, float64),
    "f64wide": ("m16n8k8", 4, 2, 4, float64, float64),
}


@functools.cache
def make_mma(dtype):
    """Return ``d = mma(a, b, c)`` of a warp; ``fragments.py`` says who holds what.

    ``dtype`` of a and b: "f16", "bf16" (16 x 8 x 16), "tf32" (16 x 8 x 8) with sums
    in float32, or "f64" (8 x 8 x 4), "f64wide" (16 x 8 x 8, compute capability 9.0).
    """
    shape, of_a, of_b, of_c, operand, sums = _MMA[dtype]
    names = [f"${i}" for i in range(2 * of_c + of_a + of_b)]
    d, a, b, c = (
        ",".join(names[:of_c]),
        ",".join(names[of_c : of_c + of_a]),
        ",".join(names[of_c + of_a : of_c + of_a + of_b]),
        ",".join(names[of_c + of_a + of_b :]),
    )
    total = "f64" if sums == float64 else "f32"
    item = total if sums == float64 else dtype
    return declare(
        "mma",
        f"mma.sync.aligned.{shape}.row.col.{total}.{item}.{item}.{total} "
        f"{{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};",
        section=f"{_MATRIX}: mma",
        result=types.UniTuple(sums, of_c),
        immediates={"dtype": dtype},
        pure=True,
        a=types.UniTuple(operand, of_a),
        b=types.UniTuple(operand, of_b),
        c=types.UniTuple(sums, of_c),
    )


# ------------------------------------------------------------ barriers in memory (9.0)

_MBARRIER = "Parallel Synchronization and Communication Instructions: mbarrier"

mbar_init = declare(
    "mbar_init",
    "mbarrier.init.shared::cta.b64 [$0], $1;",
    section=_MBARRIER,
    barrier=uint32,
    count=uint32,
)
mbar_fence = declare(
    "mbar_fence",
    "fence.mbarrier_init.release.cluster;",
    section="Parallel Synchronization and Communication Instructions: membar / fence",
)
mbar_arrive = declare(
    "mbar_arrive",
    "mbarrier.arrive.shared::cta.b64 _, [$0];",
    section=_MBARRIER,
    barrier=uint32,
)
mbar_expect = declare(
    "mbar_expect",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
    section=_MBARRIER,
    barrier=uint32,
    bytes=uint32,
)
mbar_wait = declare(
    "mbar_wait",
    "{ .reg .pred p; "
    "LW_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@p bra LD_${:uid}; bra LW_${:uid}; LD_${:uid}: }",
    section=_MBARRIER,
    barrier=uint32,
    parity=uint32,
)

# -------------------------------------------------- CTAs that know each other (9.0)

_CLUSTER = "Parallel Synchronization and Communication Instructions: barrier.cluster"

cluster_rank = declare(
    "cluster_rank",
    "mov.u32 $0, %cluster_ctarank;",
    section="Special Registers: %cluster_ctarank",
    result=uint32,
    pure=True,
)
cluster_arrive = declare(
    "cluster_arrive", "barrier.cluster.arrive.release;", section=_CLUSTER
)
cluster_wait = declare(
    "cluster_wait", "barrier.cluster.wait.acquire;", section=_CLUSTER
)
# The place in another CTA's shared memory of what lies here in one's own. In a cluster
# an address has the rank in bits 24 and up, one's own too; a descriptor takes 18 bits.
map_shared = declare(
    "map_shared",
    "mapa.shared::cluster.u32 $0, $1, $2;",
    section="Data Movement and Conversion Instructions: mapa",
    result=uint32,
    pure=True,
    address=uint32,
    rank=uint32,
)
# It says that something was read, and publishes nothing that was written: that is what
# ".release.cluster" does, by a fence of the whole GPU (a third of dsd's speed).
mbar_arrive_cluster = declare(
    "mbar_arrive_cluster",
    "mbarrier.arrive.shared::cluster.b64 _, [$0];",
    section=_MBARRIER,
    barrier=uint32,
)

# -------------------------------------------------------------- copies of tiles (9.0)

_TENSOR = "Data Movement and Conversion Instructions: Tensor copy"
_BULK = "Data Movement and Conversion Instructions: Bulk copy"

# A kernel that hands a map on to a function hands on its address.
map_address = declare(
    "map_address",
    "mov.b64 $0, $1;",
    section=_MOV,
    result=uint64,
    pure=True,
    tensor_map=TENSOR_MAP,
)
tma_load_3d = declare(
    "tma_load_3d",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile"
    ".mbarrier::complete_tx::bytes [$0], [$1, {$3, $4, $5}], [$2];",
    section=_TENSOR,
    destination=uint32,
    tensor_map=TENSOR_MAP,
    barrier=uint32,
    x=int32,
    y=int32,
    z=int32,
)
tma_load_3d_multicast = declare(
    "tma_load_3d_multicast",
    "{ .reg .b16 m; cvt.u16.u32 m, $6;\n"
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile"
    ".mbarrier::complete_tx::bytes.multicast::cluster "
    "[$0], [$1, {$3, $4, $5}], [$2], m; }",
    section=_TENSOR,
    destination=uint32,
    tensor_map=TENSOR_MAP,
    barrier=uint32,
    x=int32,
    y=int32,
    z=int32,
    ranks=uint32,
)
tma_store_3d = declare(
    "tma_store_3d",
    "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
    "[$0, {$2, $3, $4}], [$1];",
    section=_TENSOR,
    tensor_map=TENSOR_MAP,
    source=uint32,
    x=int32,
    y=int32,
    z=int32,
)
bulk_commit = declare("bulk_commit", "cp.async.bulk.commit_group;", section=_BULK)


@functools.cache
def make_bulk_wait(n, read):
    """Return the wait until all but ``n`` groups are written, or at least ``read``."""
    return declare(
        "bulk_wait",
        f"cp.async.bulk.wait_group{'.read' if read else ''} {n};",
        section=_BULK,
        immediates={"n": n, "read": read},
    )


# Ordinary writes to shared memory, made visible to what copies and multiplies tiles.
fence_async = declare(
    "fence_async",
    "fence.proxy.async.shared::cta;",
    section="Parallel Synchronization and Communication Instructions: membar / fence",
)

# --------------------------------------------------- matrices of a warpgroup (9.0a)

_WGMMA = "Asynchronous Warpgroup Level Matrix Instructions"

wgmma_fence = declare(
    "wgmma_fence", "wgmma.fence.sync.aligned;", section=f"{_WGMMA}: wgmma.fence"
)
wgmma_commit = declare(
    "wgmma_commit",
    "wgmma.commit_group.sync.aligned;",
    section=f"{_WGMMA}: wgmma.commit_group",
)


@functools.cache
def make_wgmma_wait(n):
    """Return the wait until all but the latest ``n`` groups of wgmma are done."""
    return declare(
        "wgmma_wait",
        f"wgmma.wait_group.sync.aligned {n};",
        section=f"{_WGMMA}: wgmma.wait_group",
        immediates={"n": n},
    )


@functools.cache
def make_setmaxnreg(action, registers):
    """Return the change ("inc", "dec") of a warpgroup's ``registers`` a thread."""
    return declare(
        "setmaxnreg",
        f"setmaxnreg.{action}.sync.aligned.u32 {registers};",
        section="Miscellaneous Instructions: setmaxnreg",
        immediates={"action": action, "registers": registers},
    )


@functools.cache
def make_wgmma(n, steps, rows, row_stride, a_major, b_major, dtype):
    """Return ``acc = wgmma(acc, row, a, b)``: one group of products of a warpgroup.

    ``acc`` holds tiles of 64 by n sums; each of ``steps`` is (tile, offset of a,
    offset of b), the offsets in the descriptors' units of 16 bytes. Added to the tile
    is ``row * row_stride``: registers have no index, so each row has instructions of
    its own, and a branch by index leads to them. The group is fenced and committed
    inside of its branch; else ptxas takes it for unfinished and serialises.

    Parameters
    ----------
    n : columns of a tile, a multiple of 8 up to 256
    steps : tuple of (tile, a offset, b offset)
    rows, row_stride : how many rows, and tiles from one to the next
    a_major, b_major : 0 for an operand along k, 1 along m or n
    dtype : "f16", "bf16" (16 inner steps an instruction) or "tf32" (8)
    """
    per = n // 2
    tiles = 1 + max(tile for tile, _, _ in steps) + (rows - 1) * row_stride
    count = tiles * per
    row_of, a, b = (f"${2 * count + i}" for i in range(3))
    majors = "" if dtype == "tf32" else f", {a_major}, {b_major}"
    k = 8 if dtype == "tf32" else 16
    lines = ["{ .reg .b64 x, y;"]
    if rows > 1:
        labels = ", ".join(f"R{row}_${{:uid}}" for row in range(rows))
        lines += [f"J_${{:uid}}: .branchtargets {labels};"]
        lines += [f"brx.idx.uni {row_of}, J_${{:uid}};"]
    for row in range(rows):
        lines += [f"R{row}_${{:uid}}:"] if rows > 1 else []
        lines += ["wgmma.fence.sync.aligned;"]
        for tile, a_offset, b_offset in steps:
            first = (tile + row * row_stride) * per
            sums = ",".join(f"${i}" for i in range(first, first + per))
            lines += [
                f"add.s64 x, {a}, {a_offset}; add.s64 y, {b}, {b_offset};",
                f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{dtype}.{dtype} "
                f"{{{sums}}}, x, y, 1, 1, 1{majors};",
            ]
        lines += ["wgmma.commit_group.sync.aligned;"]
        lines += ["bra.uni E_${:uid};"] if rows > 1 and row < rows - 1 else []
    lines += ["E_${:uid}:"] if rows > 1 else []
    registers = types.UniTuple(float32, count)
    return declare(
        "wgmma",
        "\n".join([*lines, "}"]),
        section=f"{_WGMMA}: wgmma.mma_async",
        result=registers,
        in_place=True,
        immediates={
            "n": n,
            "steps": steps,
            "row_stride": row_stride,
            "a_major": a_major,
            "b_major": b_major,
            "dtype": dtype,
        },
        accumulators=registers,
        row=uint32,
        a=uint64,
        b=uint64,
    )
