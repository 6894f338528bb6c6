"""numpy, without threads for linear algebra: to make them takes 0.06 s, and this engine multiplies no matrices."""

import os

THREADS = "OPENBLAS_NUM_THREADS"
"""Read when numpy is imported."""

_given = os.environ.get(THREADS)
os.environ.setdefault(THREADS, "1")
try:
    import numpy as np
    from numpy.typing import NDArray
finally:
    if _given is None:
        del os.environ[THREADS]  # programs that this process starts have their own

__all__ = ["NDArray", "np"]
