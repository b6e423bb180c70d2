"""The heavy packages that a command imports: none that it can do without."""

import json
from pathlib import Path

import pytest

import zoo
from datamodules.retrieval.registry import RETRIEVERS
from tests.zoo.conftest import Zoo, done, python, read_jsonl, write_table
from tests.zoo.ensemble.conftest import trained_ensemble as trained_ensemble

HEAVY = ["torch", "pytorch_lightning", "transformers", "datasets", "sklearn", "nltk", "torchmetrics"]
HEAVY += ["matplotlib", "wandb", "elasticsearch", "gensim"]


def imported(*commands: str, before: str = "from zoo.cli import main") -> list[set[str]]:
    """Run commands in a process, after another, and return the heavy packages that are imported after each."""
    lines = [before, "import json, sys"]
    lines += [f"loaded = lambda: [name for name in {HEAVY!r} if name in sys.modules]"]
    lines += ["imported = [loaded()]"]
    for command in commands:
        lines += [f"main({command.split()!r})", "imported.append(loaded())"]
    done = python("-c", "\n".join([*lines, "print(json.dumps(imported))"]))
    return [set(names) for names in json.loads(done.stdout.splitlines()[-1])]


def test_commands_that_train_nothing(zoo_command: Zoo) -> None:
    write_table(Path("more.csv"), [("an apple", "fruit"), ("old iron", "metal")])
    done(zoo_command("index", "--file=more.csv", "--memory=memory"))
    commands = [
        "--help",
        "list",
        "list --help",
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
    ]
    before = "import zoo, datamodules; datamodules.InputError, zoo.__version__; from zoo.cli import main"
    packages = imported(*commands, before=before)
    assert not any(packages), dict(zip(["", *commands], packages, strict=True))


def test_edits_of_the_memory_of_a_model(copied_run: Path) -> None:
    """An edit reads no network, whose packages cost ten times as much as the edit."""
    write_table(Path("more.csv"), [("an apple", "fruit"), ("old iron", "metal")])
    edits = ("add run more.csv", "remove run --ids=[1]", "relabel run --ids=2 --label=fruit", "compact run")
    assert imported(*(f"memory {edit}" for edit in edits)) == [set()] * 5
    assert zoo.load(copied_run).memory.version == 4


@pytest.mark.parametrize("command", ["index", "search", "predict"])
def test_help_lists_all_retrievers(command: str) -> None:
    """The parser lists the classes that it has imported, none of whose packages it needs."""
    code = f"from zoo.cli import main; main([{command!r}, '--help'])"
    code += f"; import sys; print({{*{HEAVY}}} & {{*sys.modules}})"
    *lines, heavy = python("-c", code).stdout.splitlines()
    assert heavy == "set()"
    assert not [name for name in RETRIEVERS if name not in "".join(lines)]


def test_a_process_that_only_predicts_imports_no_lightning(trained_run: Path, trained_ensemble: Path) -> None:
    Path("lines.txt").write_text("old iron\n")
    runs = {"network": trained_run, "ensemble": trained_ensemble}
    options = [f"predict --ckpt_path={run} --input=lines.txt --output={name}" for name, run in runs.items()]
    code = f"import sys; sys.argv[1:] = {options[0].split()!r}; from zoo.cli import main; main()"
    assert imported(options[1], before=code) == [{"torch"}, {"torch", "sklearn"}]
    for name, run in runs.items():
        (expected,) = zoo.load(run).predict("old iron")
        assert read_jsonl(name)[0]["probabilities"] == pytest.approx(expected.probabilities)
