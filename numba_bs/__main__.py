"""``python -m numba_bs``: see :mod:`numba_bs.cli`."""

import sys

from .cli import main

sys.exit(main())
