"""A small ensemble, trained by the command."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.conftest import LABELS, QUIET_TRAINER, TOPIC_WORDS, Fit, Zoo, done, sentences

SMALL = ["--model=MemoryEnsemble", "--data=ClassificationDataModule", "--data.characters=false"]
SMALL += ["--data.num_memories=4", "--data.batch_size=16", "--data.validation_split=0.2", *QUIET_TRAINER]


#: So many that two drawn texts are never near-duplicates.
_WORDS = ["".join(letters) for letters in itertools.product(("ba", "ko", "ni", "su", "te"), repeat=4)]


def distinct_sentences(
    number: int, seed: int, labels: Sequence[str] = LABELS, noise: bool = False
) -> list[tuple[str, str]]:
    """Made-up (text, label) pairs without duplicates: the label's topic word and six others; `noise` draws labels."""
    random = np.random.default_rng(seed)
    pairs = []
    for i in range(number):
        label = labels[i % len(labels)]
        words = [str(random.choice(TOPIC_WORDS[label])), *random.choice(_WORDS, size=6)]
        pairs.append((" ".join(words), str(random.choice(labels)) if noise else label))
    return pairs


def write_vectors(path: Path, words: Sequence[str]) -> Path:
    """A file of random vectors of words."""
    random = np.random.default_rng(0)
    lines = (f"{word} {' '.join(f'{x:.4f}' for x in random.normal(size=7))}\n" for word in words)
    path.write_text("".join(lines))
    return path


@pytest.fixture
def run(zoo_command: Zoo, train_csv: Path) -> Fit:
    """Trains a small ensemble, and returns its run folder; `output.txt` there has what the command printed."""

    def train(run_dir: str, *options: object, table: Path = train_csv) -> Path:
        result = done(
            zoo_command("fit", *SMALL, f"--data.train_file={table}", f"--run_dir={run_dir}", *options)
        )
        (Path(run_dir) / "output.txt").write_text(result.out)
        return Path(run_dir).absolute()

    return train


@pytest.fixture
def shared_run(trained: Fit, kept_table: Fit) -> Fit:
    """Trains a small ensemble, once for equal rows and options; returns a copy of its run."""

    def train(
        rows: Sequence[tuple[str, str]],
        *options: str,
        validation: Sequence[tuple[str, str]] = (),
        run_dir: str = "run",
    ) -> Path:
        files = [f"--data.train_file={kept_table(*rows)}"]
        if validation:
            files += [f"--data.validation_file={kept_table(*validation)}", "--data.validation_split=0"]
        run = trained("fit", *SMALL, *files, *options)
        return Path(shutil.copytree(run, Path(run_dir).absolute()))

    return train


@pytest.fixture(scope="session")
def trained_ensemble(trained: Fit, kept_table: Fit) -> Path:
    """The run folder of a small ensemble, for tests that only read it."""
    return trained("fit", *SMALL, f"--data.train_file={kept_table(*sentences(90, seed=1))}")


@pytest.fixture
def folder(trained_ensemble: Path) -> Path:
    """A copy of that run as `run` in the working directory, for tests that change its memory."""
    return shutil.copytree(trained_ensemble, Path("run").absolute())
