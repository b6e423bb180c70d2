"""The package is imported piece by piece, and its files in one direction."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import datamodules.retrieval

PACKAGE = "datamodules.retrieval"


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"""
import sys
import {PACKAGE}
from {PACKAGE}.text_encoder import FILE_ENCODERS
print([name for name in ("numba", "elasticsearch", "pyarrow", "torch", "transformers") if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "[]\n"


def test_every_name_can_be_imported() -> None:
    assert set(datamodules.retrieval.__all__) == set(datamodules.retrieval._MODULES)
    for name in datamodules.retrieval.__all__:
        assert getattr(datamodules.retrieval, name) is not None


def test_no_file_imports_one_that_imports_it() -> None:
    """Imports inside functions and for type checkers count."""
    files = {path.stem: path for path in Path(datamodules.retrieval.__file__).parent.glob("[a-z]*.py")}
    imports: dict[str, set[str]] = {}
    for name, path in files.items():
        imports[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                imports[name].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{PACKAGE}."):
                imports[name].add(str(node.module).rpartition(".")[2])
    assert len(imports) > 20
    assert set.union(*imports.values()) <= set(files)
    TopologicalSorter(imports).prepare()  # raises where there is a circle
