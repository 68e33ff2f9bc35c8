"""NumPy emulations of the instructions that ``ptx.py`` declares, by the same names.

Operands arrive checked and cast: integers are Python ints of the declared width,
floats NumPy scalars. Immediates of an instruction arrive as keywords. What an
instruction has to remember sits in the ``state`` of the CTA or the thread; misuse
that hardware answers with wrong numbers is a SimulatedError, with the reason.
"""

import numpy as np


def float_as_uint(x):
    """Return the bits of a float32."""
    return int(x.view(np.uint32))


def uint_as_float(bits):
    """Return the float32 of these bits."""
    return np.uint32(bits).view(np.float32)
