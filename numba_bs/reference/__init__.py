"""What every operation means, in NumPy and SciPy; also the backend for host arrays.

Same names and signatures as the public operations. Nothing here knows of tiles,
threads or devices.
"""

from ._matmul import matmul as matmul
from ._matmul import matmul_backward as matmul_backward
from ._matmul import sddmm as sddmm
from ._matmul import sddmm_backward as sddmm_backward
