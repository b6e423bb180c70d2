"""Functions that numba compiles."""

from __future__ import annotations

import os
from typing import Any

import numba

from datamodules.core.storage import cache_folder


def njit(**options: Any) -> Any:
    """Compile a function by `numba.njit` without Python's lock; its code is kept next to the source or in the home.

    Where both are read-only, as in containers, it is kept in `$ZOO_CACHE_DIR`, or else nowhere.
    """
    chosen, options = numba.config.CACHE_DIR, {"nogil": True, **options}
    # Without a home, numba would make a folder `~` in the current one.
    folders = [chosen] if os.path.isabs(os.path.expanduser("~")) else []
    folders += [str(cache_folder(None) / "numba")] * ("ZOO_CACHE_DIR" in os.environ)

    def compile_cached(function: Any) -> Any:
        try:
            for numba.config.CACHE_DIR in folders:
                try:
                    return numba.njit(cache=True, **options)(function)
                except RuntimeError:  # no folder can be written
                    continue
            return numba.njit(**options)(function)
        finally:
            numba.config.CACHE_DIR = chosen

    return compile_cached
