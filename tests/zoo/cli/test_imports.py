"""The heavy packages that a command imports: none that it can do without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from tests.zoo.conftest import Zoo, python, write_table
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
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize(
    "edit", ["add run more.csv", "remove run --ids=[1]", "relabel run --ids=1 --label=fruit", "compact run"]
)
def test_edits_of_the_memory_of_a_model(edit: str, copied_run: Path) -> None:
    """An edit reads no network, whose packages cost ten times as much as the edit."""
    write_table(Path("more.csv"), [("an apple", "fruit"), ("old iron", "metal")])
    before = (copied_run / "model" / "state.json").read_text()
    assert imported(COMMAND.format(arguments=["memory", *edit.split()])) == set()
    assert ((copied_run / "model" / "state.json").read_text() == before) == edit.startswith("compact")


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
