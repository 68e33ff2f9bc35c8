"""PTX instructions as functions of a kernel, each declared once, as data.

:func:`declare` takes name, PTX text, types and the section of the PTX ISA manual
that describes the instruction. For a GPU it makes an intrinsic that emits inline PTX
and casts its operands to the declared types; in the simulator a call of the function
of the same name in ``ptx_emulated.py``. Kernels cannot tell which they got. A
declaration without an emulation fails when this module is imported in the simulator.

This is the only file that imports llvmlite.
"""

import inspect
from typing import NamedTuple

from .compiler import SIMULATED, cast, device, float32, u32, uint32


class Instruction(NamedTuple):
    """``$0`` in the PTX is the result, ``$1, $2, ...`` are the operands."""

    name: str
    ptx: str
    section: str  # of the PTX ISA manual
    result: object  # Numba type
    operands: dict  # name -> Numba type
    pure: bool  # without side effect: may be moved, merged or dropped


INSTRUCTIONS: list[Instruction] = []


def declare(name, ptx, *, section, result, pure=False, **operands):
    """Declare an instruction; return the function that kernels call."""
    instruction = Instruction(name, ptx, section, result, operands, pure)
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
        casts = [cast(operand) for operand in instruction.operands.values()]

        def emulated(*operands):
            pairs = zip(casts, operands, strict=True)
            return emulation(*[to(operand) for to, operand in pairs])

        return emulated

else:
    import llvmlite.ir as ir
    from numba.cuda.extending import intrinsic

    # Of each type that PTX holds in a register: LLVM's type, the letter of its
    # register class in an inline assembly constraint.
    _REGISTERS = {float32: (ir.FloatType(), "f"), uint32: (ir.IntType(32), "r")}

    def _bind(instruction):
        result = instruction.result
        operands = list(instruction.operands.values())
        returned, letter = _REGISTERS[result]
        function = ir.FunctionType(returned, [_REGISTERS[t][0] for t in operands])
        constraints = ["=" + letter, *(_REGISTERS[t][1] for t in operands)]
        if not instruction.pure:
            constraints.append("~{memory}")

        def define(typingctx, *args):
            def codegen(context, builder, signature, values):
                assembly = ir.InlineAsm(
                    function,
                    instruction.ptx,
                    ",".join(constraints),
                    side_effect=not instruction.pure,
                )
                return builder.call(assembly, values)

            return result(*operands), codegen

        # Numba reads from the signature how many operands an intrinsic takes.
        names = ["typingctx", *instruction.operands]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in names]
        define.__name__ = instruction.name
        define.__signature__ = inspect.Signature(parameters)
        return intrinsic(define)


# --------------------------------------------------------------------- instructions

float_as_uint = declare(
    "float_as_uint",
    "mov.b32 $0, $1;",
    section="Data Movement and Conversion Instructions: mov",
    result=uint32,
    pure=True,
    x=float32,
)
uint_as_float = declare(
    "uint_as_float",
    "mov.b32 $0, $1;",
    section="Data Movement and Conversion Instructions: mov",
    result=float32,
    pure=True,
    bits=uint32,
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
