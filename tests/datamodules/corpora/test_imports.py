"""What is imported before it is used."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

import datamodules.corpora
import datamodules.text

HEAVY = ["datasets", "pyarrow", "torch", "transformers"]


def imported(statements: str) -> list[str]:
    """Which heavy packages a new process has after some statements."""
    code = f"import sys; {statements}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_package_imports_nothing_heavy() -> None:
    assert imported("import datamodules.corpora, datamodules.text") == []


def test_readers_import_datasets_and_transformers_when_they_are_used() -> None:
    modules = [
        f"{package.__name__}.{module.name}"
        for package in (datamodules.corpora, datamodules.text)
        for module in iter_modules(package.__path__)
    ]
    assert len(modules) > 10
    assert imported(f"import {', '.join(modules)}") == ["pyarrow"]


@pytest.mark.parametrize("name", datamodules.corpora.__all__)
def test_names_of_the_package_are_those_of_its_modules(name: str) -> None:
    value = getattr(datamodules.corpora, name)
    module = import_module(f"datamodules.corpora.{datamodules.corpora._MODULES[name]}")
    assert value is getattr(module, name)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'read_tables'"):
        datamodules.corpora.read_tables  # noqa: B018
