"""Functions that numba compiles, and the place of their machine code."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numba

from datamodules.core.storage import cache_folder


def njit(**options: Any) -> Callable[[Any], Any]:
    """Compile a function by `numba.njit` without Python's lock, once for all processes where its code can be kept.

    numba writes it next to the source or into the user's home. Where both are read-only, as in containers, it is kept
    in `$ZOO_CACHE_DIR`; without one, each process compiles the function.
    """

    def compile_cached(function: Any) -> Any:
        chosen = numba.config.CACHE_DIR
        # Without a home, numba would use a folder `~` of the current folder.
        folders = [chosen] if os.path.isabs(os.path.expanduser("~")) else []
        if "ZOO_CACHE_DIR" in os.environ:
            folders.append(str(cache_folder(None) / "numba"))
        try:
            for numba.config.CACHE_DIR in folders:
                try:
                    return numba.njit(nogil=True, cache=True, **options)(function)
                except RuntimeError:  # no folder can be written
                    continue
            return numba.njit(nogil=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = chosen

    return compile_cached
