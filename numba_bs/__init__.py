"""Block-sparse computing on NVIDIA GPUs in Python that you can read.

SciPy's BSR is the format; :func:`matmul` and :func:`sddmm` are the products, each with
a written-out ``_backward``. Where the data lives decides where
it runs: host arrays are computed by :mod:`numba_bs.reference`, device arrays by the
kernels of :mod:`numba_bs.cuda`.
"""

from . import files as files
from . import gallery as gallery
from . import patterns as patterns
from . import reference as reference
from ._explain import explain as explain
from ._matmul import matmul as matmul
from ._matmul import matmul_backward as matmul_backward
from ._matmul import sddmm as sddmm
from ._matmul import sddmm_backward as sddmm_backward
from .bsr import bsr_array as bsr_array
from .layout import Layout as Layout
from .layout import LayoutStack as LayoutStack
from .layout import canonicalise as canonicalise

__version__ = "0.1.0"
