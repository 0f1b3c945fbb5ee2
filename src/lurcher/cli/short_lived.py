"""How a command that is over in a moment runs: without what only a long-lived process has use for."""

from __future__ import annotations

import gc
import os

RARELY = 100_000
"""New objects between two passes over the garbage, instead of 700: modules and rows are no garbage, and every pass looks at them again."""
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def begin() -> None:
    """To be called before numpy is imported, once, by a process that runs one short command.

    numpy's OpenBLAS starts a thread for every core when it is loaded, and each spins for nearly a tenth of a second before it sleeps: on
    many cores that is seconds of CPU, and no analysis multiplies matrices that are worth a second thread. What the user has set stays.
    """
    os.environ.setdefault(BLAS_THREADS, "1")
    gc.set_threshold(RARELY)


def end() -> None:
    """To be called last: what is left goes with the process, and need not be looked through once more."""
    gc.freeze()
