"""Heavy packages are imported where they are used."""

import subprocess
import sys
from pkgutil import iter_modules

import pytest

import datamodules.corpora
import datamodules.text

HEAVY = [
    "datasets",
    "fsspec",
    "huggingface_hub",
    "nltk",
    "numba",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sklearn",
    "torch",
    "transformers",
]


def imported(*modules: str) -> list[str]:
    """The heavy packages that a new process has after it imported some modules."""
    code = f"import sys, {', '.join(modules)}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.split()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("datamodules.corpora", []),
        ("datamodules.core.storage", []),
        ("datamodules.core.files", []),
        ("datamodules.corpora.table", ["pyarrow"]),
        ("datamodules.text", []),
        ("datamodules.text.tokenization", []),
        ("datamodules.text.vectors", []),
    ],
)
def test_a_module_imports_little(module: str, expected: list[str]) -> None:
    assert imported(module) == expected


def test_all_readers_and_tokenizers_together_import_little() -> None:
    modules = [
        f"{package.__name__}.{module.name}"
        for package in (datamodules.corpora, datamodules.text)
        for module in iter_modules(package.__path__)
        if module.name not in ("token_models", "gather", "trigrams")  # networks, batches
    ]
    assert len(modules) > 10
    assert imported(*modules) == ["numba", "pyarrow"]
