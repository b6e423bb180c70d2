"""The heavy packages that a command imports: none that it can do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from tests.zoo.conftest import Zoo, write_table
from tests.zoo.ensemble.conftest import run as run

HEAVY = [
    "torch",
    "pytorch_lightning",
    "transformers",
    "datasets",
    "sklearn",
    "nltk",
    "torchmetrics",
    "matplotlib",
    "wandb",
    "elasticsearch",
    "gensim",
]
#: Lightning imports torchmetrics, which imports transformers and matplotlib where they are installed.
LIGHTNING = {"torch", "pytorch_lightning", "torchmetrics", "transformers", "matplotlib"}

COMMAND = "from zoo.cli import main; main({arguments!r})"
LOAD = "import zoo; zoo.load({model!r}).predict('old iron')"


def imported(code: str) -> set[str]:
    """Run code in a process of its own, and return the heavy packages that it imported."""
    code += f"\nimport json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(zoo.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "list",
        "list --help",
        "measure --help",
        "export --help",
        "search apple --memory=memory",
        "memory show memory",
        "memory add memory more.csv",
        "index --file=more.csv --memory=other",
        # Refused options.
        "train",
        "search apple --memory=memory --size=3",
        "memory show memory --size=3",
        "predict --input=more.csv",
        "validate",
        "fit --optimizer.lr=3",
        "fit --ckpt_path=gone",
    ],
)
def test_commands_that_train_nothing(arguments: str, zoo_command: Zoo) -> None:
    write_table(Path("more.csv"), [("an apple", "fruit"), ("old iron", "metal")])
    if "memory=memory" in arguments or " memory" in arguments:
        assert zoo_command("index", "--file=more.csv", "--memory=memory").code == 0
    assert imported(COMMAND.format(arguments=arguments.split())) == set()


@pytest.mark.parametrize("command", ["index", "search", "predict"])
def test_help_on_retrievers_imports_all_of_them(command: str) -> None:
    """The parser lists the classes that it has imported."""
    assert imported(COMMAND.format(arguments=[*command.split(), "--help"])) == {"elasticsearch"}


def test_the_package() -> None:
    assert imported("import zoo, datamodules; datamodules.InputError, zoo.__version__") == set()


def test_a_trained_model(trained_run: Path) -> None:
    assert imported(LOAD.format(model=str(trained_run))) == LIGHTNING


@pytest.mark.parametrize(
    ("model", "needed"), [("KNNBiLSTM", {"torch"}), ("MemoryEnsemble", {"torch", "sklearn"})]
)
def test_a_process_that_only_predicts_imports_no_lightning(
    model: str, needed: set[str], trained_run: Path, run: Callable[..., Path]
) -> None:
    folder = trained_run if model == "KNNBiLSTM" else run("ensemble")
    Path("lines.txt").write_text("old iron\n")
    options = ["predict", f"--ckpt_path={folder}", "--input=lines.txt", "--output=out.jsonl"]
    assert imported(f"import sys; sys.argv[1:] = {options!r}; from zoo.cli import main; main()") == needed
    (line,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    (expected,) = zoo.load(folder).predict("old iron")
    assert line["probabilities"] == pytest.approx(expected.probabilities)
