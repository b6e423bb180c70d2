"""Importing the package imports none of its heavy parts."""

from __future__ import annotations

import subprocess
import sys

import datamodules.retrieval

PACKAGE = "datamodules.retrieval"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"""
import sys
import {PACKAGE}
print([name for name in ("numba", "elasticsearch", "pyarrow", "torch", "transformers") if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "[]\n"


def test_every_name_can_be_imported() -> None:
    for name in datamodules.retrieval.LAZY:
        assert getattr(datamodules.retrieval, name) is not None
