"""Heavy packages are imported where they are used."""

import subprocess
import sys
from pkgutil import iter_modules

import datamodules.corpora
import datamodules.retrieval
import datamodules.text

HEAVY = ["datasets", "elasticsearch", "fsspec", "huggingface_hub", "nltk", "numba", "pandas", "pyarrow"]
HEAVY += ["pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "sklearn", "torch", "transformers"]


def imported(*modules: str) -> list[list[str]]:
    """The heavy packages that a new process has after the import of each module."""
    lines = [
        "import sys",
        *(f"import {module}; print(*sorted({{*{HEAVY}}} & {{*sys.modules}}))" for module in modules),
    ]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return [line.split() for line in result.stdout.splitlines()]


def test_modules_import_little() -> None:
    core = ("corpora", "core.storage", "core.files", "text", "text.tokenization")
    modules = [f"datamodules.{name}" for name in (*core, "text.vectors", "corpora.table")]
    assert imported(*modules) == [*[[]] * len(core), ["numba"], ["numba", "pyarrow"]]


def test_all_readers_and_tokenizers_together_import_little() -> None:
    modules = [
        f"{package.__name__}.{module.name}"
        for package in (datamodules.corpora, datamodules.text)
        for module in iter_modules(package.__path__)
        if module.name not in ("token_models", "gather", "trigrams", "encodings")  # networks, batches
    ]
    assert len(modules) > 10
    assert imported(*modules)[-1] == ["numba", "pyarrow"]


def test_every_name_of_the_retrieval_package_can_be_imported() -> None:
    for name in datamodules.retrieval.RETRIEVERS:
        assert getattr(datamodules.retrieval, name) is not None
