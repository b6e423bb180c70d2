"""Small tables of made-up texts, a tiny trained run, and the command line called in this process."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from datamodules.core import storage
from tests.dialogues import write_lines
from tests.sentence_folders import write_bert
from zoo.cli import main
from zoo.model_folder.export import export

LABELS = ("fruit", "metal", "weather")
TOPIC_WORDS = {
    "fruit": ["apple", "pear", "plum", "cherry", "peach", "grape", "melon", "fig"],
    "metal": ["iron", "copper", "zinc", "silver", "gold", "nickel", "cobalt", "lead"],
    "weather": ["rain", "snow", "wind", "storm", "cloud", "fog", "hail", "sun"],
}
COMMON_WORDS = ["the", "a", "of", "with", "in", "near", "old", "new", "some", "very"]

SMALL_MODEL = [
    "--model=KNNBiLSTM",
    "--model.hidden_size=6",
    "--model.word_size=8",
    "--model.char_hidden_size=5",
    "--model.num_perspectives=2",
    "--model.optimizer=torch.optim.Adam",
    "--model.optimizer.lr=0.02",
]
SMALL_DATA = ["--data=ClassificationDataModule", "--data.num_memories=3", "--data.batch_size=16"]
SMALL_DATA += ["--data.validation_split=0.2"]
QUIET_TRAINER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
QUIET_TRAINER += ["--trainer.enable_model_summary=false", "--trainer.log_every_n_steps=1"]
#: A model and data so small that a run takes about a second.
SMALL = [*SMALL_MODEL, *SMALL_DATA, *QUIET_TRAINER]

#: Types of the fixtures `zoo_command`, `fit`, `edit` and `measure`.
Zoo: TypeAlias = Callable[..., "Result"]
Fit: TypeAlias = Callable[..., Path]
Edit: TypeAlias = Callable[..., str]
Measure: TypeAlias = Callable[[str | Path, Sequence[Sequence[str]]], dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def _own_checkout() -> None:
    # Processes import this checkout from any folder.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own working directory and cache, and no run's settings from another test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ZOO_RUN_DIR", raising=False)


def sentences(number: int, seed: int, labels: Sequence[str] = LABELS) -> list[tuple[str, str]]:
    """Made-up (text, label) pairs: common words and one to three words of the label's topic."""
    random = np.random.default_rng(seed)
    pairs = []
    for i in range(number):
        label = labels[i % len(labels)]
        words = [
            *random.choice(TOPIC_WORDS[label], size=random.integers(1, 4)),
            *random.choice(COMMON_WORDS, size=random.integers(1, 6)),
        ]
        random.shuffle(words)
        pairs.append((" ".join(words), label))
    return pairs


def write_table(
    path: Path, pairs: Sequence[Sequence[str]], columns: Sequence[str] = ("text", "label")
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *pairs])
    return path


def read_csv(path: str | Path, separator: str = ",") -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=separator))


def read_json(path: str | Path) -> Any:
    return json.loads(Path(path).read_text())


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def read_run(path: str) -> dict[str, dict[str, float]]:
    """The scores of the documents of each query in a TREC run."""
    run: dict[str, dict[str, float]] = {}
    for query, _, document, _, score, _ in map(str.split, Path(path).read_text().splitlines()):
        run.setdefault(query, {})[document] = float(score)
    return run


def pair_rows(questions: int, seed: int) -> list[tuple[str, str, int]]:
    """Questions that name a word, each with candidates; at most one candidate of a question names the word."""
    random = np.random.default_rng(seed)
    words = [word for topic in TOPIC_WORDS.values() for word in topic]
    rows = []
    for number in range(questions):
        topic = str(random.choice(words))
        question = f"where is {topic} {number}"
        for position in range(int(random.integers(2, 6))):
            good = position == number % 7
            named = topic if good else str(random.choice([word for word in words if word != topic]))
            texts = [named, *map(str, random.choice(COMMON_WORDS, size=random.integers(1, 5)))]
            random.shuffle(texts)
            rows.append((question, " ".join(texts), int(good)))
    return rows


def write_pairs(path: Path, rows: list[tuple[str, str, int]]) -> Path:
    return write_lines(path, "first\tsecond\tlabel", *("\t".join(map(str, row)) for row in rows))


@pytest.fixture
def train_csv(tmp_path: Path) -> Path:
    """90 labelled texts."""
    return write_table(tmp_path / "train.csv", sentences(90, seed=1))


@pytest.fixture
def test_csv(tmp_path: Path) -> Path:
    """31 labelled texts: a prime number."""
    return write_table(tmp_path / "test.csv", sentences(31, seed=2))


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the new contents of a file go to a device that is always full."""
    opens = Path.open

    def open_full(path: Path, *given: Any, **options: Any) -> Any:
        return opens(Path("/dev/full") if path.name.startswith(f".{name}.") else path, *given, **options)

    monkeypatch.setattr(Path, "open", open_full)


def renew_manifest(folder: Path) -> None:
    """Give the manifest of a folder the checksums of its files, as anybody can."""

    def renewed(manifest: dict[str, Any]) -> dict[str, Any]:
        files = [folder / name for name in manifest["files"]]
        facts = {
            each.name: {"bytes": each.stat().st_size, "xxh3": storage.checksum_of(each)} for each in files
        }
        return {**manifest, "files": facts}

    storage.update(folder / storage.MANIFEST, renewed)


class Result(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def done(result: Result) -> Result:
    """The result of a command that succeeded."""
    assert result.code == 0, (result.out, result.err)
    return result


def written_scores(zoo_command: Zoo, *arguments: object) -> dict[str, Any]:
    """The scores that `zoo test` or `zoo validate` writes to a file."""
    done(zoo_command(*arguments, "--output=scores.json"))
    return read_json("scores.json")


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which succeeds."""
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


def refusal(result: Result, *words: object) -> str:
    """The message of a refused command, which is one line and contains these words."""
    assert result.code == 2, (result.out, result.err)
    # Progress bars aside.
    lines = [line for line in result.err.splitlines() if line and "%|" not in line]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("zoo: error: ")
    assert len(lines[0]) < 1100
    message = lines[0].removeprefix("zoo: error: ")
    for word in words:
        assert str(word) in message, message
    return message


def trainer(folder: Path | None = None, **options: Any) -> Any:
    """Lightning's trainer that prints and keeps nothing, in tests that need no run folder."""
    import pytorch_lightning as pl

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "enable_checkpointing": False, "use_distributed_sampler": False, **quiet}
    return pl.Trainer(default_root_dir=folder, **{**given, **options})


def best(run: Path) -> Path:
    return run / "checkpoints" / "best.ckpt"


def last(run: Path) -> Path:
    return run / "checkpoints" / "last.ckpt"


@pytest.fixture
def _wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let W&B write to the test's folder, and nothing to the screen."""
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def zoo_command(capfd: pytest.CaptureFixture[str]) -> Zoo:
    """Run `zoo ...` in this process."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def edit(zoo_command: Zoo) -> Edit:
    """Run `zoo memory COMMAND MODEL TABLE` on a table of labelled texts, and return what it prints."""

    def run(command: str, model: str | Path, rows: Sequence[Sequence[str]], *options: object) -> str:
        table = write_table(Path("edit.csv"), rows)
        return done(zoo_command("memory", command, model, table, *options)).out

    return run


@pytest.fixture
def measure(zoo_command: Zoo) -> Measure:
    """Run `zoo test` on a table of labelled texts, and return the scores."""

    def run(model: str | Path, rows: Sequence[Sequence[str]]) -> dict[str, Any]:
        table = write_table(Path("test.csv"), rows)
        return written_scores(zoo_command, "test", f"--ckpt_path={model}", f"--data.test_file={table}")

    return run


def fit_options(table: Path, *options: object) -> list[object]:
    """The arguments of `zoo` that train the small model for an epoch into the folder `run`."""
    return ["fit", *SMALL, f"--data.train_file={table}", "--trainer.max_epochs=1", "--run_dir=run", *options]


@pytest.fixture
def fit(zoo_command: Zoo, train_csv: Path) -> Fit:
    """Train the small model on `train_csv`, and return the run folder."""

    def run(run_dir: str | Path, *options: object) -> Path:
        done(zoo_command(*fit_options(train_csv, "--run_dir", run_dir, *options)))
        return Path(run_dir).absolute()

    return run


def resume(zoo_command: Zoo, run: str | Path, max_epochs: int) -> Path:
    """Resume a run from its last checkpoint, up to a number of epochs, and return its folder."""
    done(zoo_command("fit", "--ckpt_path", last(Path(run)), f"--trainer.max_epochs={max_epochs}"))
    return Path(run).absolute()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train by the command line, once for equal arguments, and return the run folder, which tests only read."""

    @cache
    def train(*arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("ZOO_CACHE_DIR", str(folder / "cache"))
            patch.delenv("ZOO_RUN_DIR", raising=False)
            assert main([*arguments, "--run_dir=run"]) == 0
        return folder / "run"

    return train


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """kind -> its adapter, made at the first use, which tests only read."""
    from tests.zoo.adapters import ADAPTERS

    return cache(lambda kind: ADAPTERS[kind](tmp_path_factory.mktemp("adapter")))


@pytest.fixture(scope="session")
def kept_table(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write rows as a CSV file, once for equal rows, for runs that tests share."""

    @cache
    def write(*rows: Sequence[str], columns: Sequence[str] = ("text", "label")) -> Path:
        return write_table(tmp_path_factory.mktemp("table") / "table.csv", rows, columns)

    return write


@pytest.fixture(scope="session")
def trained_run(trained: Callable[..., Path], kept_table: Callable[..., Path]) -> Path:
    """The run folder of a small model, for tests that only read it and its memory."""
    return trained(*map(str, fit_options(kept_table(*sentences(90, seed=1)))))


@pytest.fixture
def exported(trained_run: Path, tmp_path: Path) -> Path:
    """The model folder of that run, which tests may change."""
    return export(trained_run, tmp_path / "exported")


@pytest.fixture
def copied_run(trained_run: Path) -> Path:
    """A copy of that run as `run` in the working directory, for tests that change it."""
    return shutil.copytree(trained_run, Path("run").absolute())


def write_tiny_bert(folder: Path) -> Path:
    """A BERT of two layers with the words of the made-up texts and random weights."""
    return write_bert(folder, [*COMMON_WORDS, *(word for topic in TOPIC_WORDS.values() for word in topic)])


@pytest.fixture
def tiny_bert(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "tiny-bert")


@pytest.fixture(scope="session")
def kept_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for runs that tests share."""
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny-bert")
