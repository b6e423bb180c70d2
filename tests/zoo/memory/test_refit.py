"""`zoo memory tune --refit true`: members that need no gradients are fitted to the rows of a grown memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import LABELS, Result, done, sentences, write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from tests.zoo.ensemble.conftest import run as run
from zoo.ensemble.member import Readings
from zoo.ensemble.members import Encoder
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.refit import refit_members

Run = Callable[..., Path]
Zoo = Callable[..., Result]

FIRST = distinct_sentences(40, seed=1)
MORE = distinct_sentences(60, seed=2)
TEXTS = [text for text, _ in distinct_sentences(30, seed=3)]
LEXICAL = "--model.members=[lexical,lexical_vote]"


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    return write_table(tmp_path / "dev.csv", distinct_sentences(40, seed=4))


@pytest.fixture
def train(run: Run, dev: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains on all rows of a table."""

    def train(name: str, rows: list[tuple[str, str]], *options: str) -> Path:
        table = write_table(tmp_path / f"{name}.csv", rows)
        return run(name, f"--data.validation_file={dev}", "--data.validation_split=0", *options, table=table)

    return train


@pytest.fixture
def grow(zoo_command: Zoo, dev: Path, tmp_path: Path) -> Callable[..., str]:
    """Adds rows to the memory of a model, and fits its members again; returns the report."""

    def grow(folder: Path, rows: list[tuple[str, str]] = MORE, new_labels: bool = False) -> str:
        more = write_table(tmp_path / "more.csv", rows)
        for command in (
            ["add", folder, more, f"--new_labels={str(new_labels).lower()}"],
            ["tune", folder, dev, "--refit=true"],
        ):
            result = done(zoo_command("memory", *command))
        return str(result.out)

    return grow


def scores_of(network: EnsembleNetwork, name: str) -> torch.Tensor:
    scores: torch.Tensor = network.members[name](Readings(TEXTS, network.ngrams(TEXTS))).scores
    return scores


def probabilities(folder: Path, version: int | None = None) -> list[dict[str, float]]:
    return [each.probabilities for each in zoo.load(folder, memory_version=version).predict(TEXTS)]


def test_members_equal_those_of_a_training_on_the_same_rows(
    train: Callable[..., Path], grow: Callable[..., str], zoo_command: Zoo, dev: Path, tmp_path: Path
) -> None:
    folder = train("run", FIRST, LEXICAL)
    checkpoints = {path: path.read_bytes() for path in folder.rglob("*.ckpt")}
    before = probabilities(folder)
    report = grow(folder)
    assert "lexical fitted to 100 rows of the memory; weights" in report
    assert "and 100 of the memory, each classified without it" in report
    assert "training texts" not in report
    assert "zoo fit" not in report
    assert {path: path.read_bytes() for path in folder.rglob("*.ckpt")} == checkpoints
    again = zoo.load(train("again", [*FIRST, *MORE], LEXICAL)).model.network
    refitted = zoo.load(folder).model.network
    for name in ("lexical", "svm", "majority"):
        actual, expected = (scores_of(each, name) for each in (refitted, again))
        assert torch.equal(actual, expected)
    # An earlier version keeps its own members.
    after = probabilities(folder)
    assert after != before
    assert probabilities(folder, 1) == before
    # An exported folder has them, too, in a new process; its memory can grow further.
    assert zoo_command("export", folder, "shared").code == 0
    predict = f"[each.probabilities for each in zoo.load('shared').predict({TEXTS})]"
    script = f"import json, zoo; print(json.dumps({predict}))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert json.loads(output) == after
    third = write_table(tmp_path / "third.csv", distinct_sentences(10, seed=5))
    assert zoo_command("memory", "add", "shared", third).code == 0
    result = zoo_command("memory", "tune", "shared", dev, "--refit=true")
    assert "fitted to 110 rows" in result.out, result.err
    assert probabilities(Path("shared"), 2) == after
    # `test` uses them.
    test = write_table(tmp_path / "test.csv", distinct_sentences(30, seed=3))
    result = done(zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={test}", "--output=s.json"))
    rows = {row["name"]: row for row in json.loads(Path("s.json").read_text())["answer"]["rows"]}
    target = torch.tensor([sorted(LABELS).index(label) for _, label in distinct_sentences(30, seed=3)])
    right = scores_of(refitted, "lexical").argmax(dim=1) == target
    assert rows["lexical"]["right"] == int(right.sum())


@pytest.mark.usefixtures("float32")
def test_a_kernel_machine_on_a_frozen_encoder(
    train: Callable[..., Path], grow: Callable[..., str], tiny_bert: Path
) -> None:
    """The rows of a class that training lacked stay the memory's alone."""
    options = (f"--model.transformer={tiny_bert}", "--model.metric_steps=0")
    folder = train("run", FIRST, "--model.members=[encoder,dense_vote]", *options)
    report = grow(folder, [*MORE, ("guitar solo", "music"), ("old drum", "music")], new_labels=True)
    assert "encoder fitted to 100 rows of the memory" in report
    predictor = zoo.load(folder)
    assert "music" in predictor.predict("guitar solo")[0].probabilities
    predictor.model.search_memory(predictor.data, predictor.memory)
    network = predictor.model.network
    expected = Encoder(network.sizes)
    target = network.memory.target.numpy()
    rows = np.flatnonzero(target < len(LABELS))
    expected.fit(Readings([], vectors=torch.from_numpy(network.memory.encoded.vectors[rows])), target[rows])
    queries = Readings([], vectors=torch.from_numpy(predictor.model.encode(predictor.data, TEXTS)))
    assert len(rows) == 100
    # Texts are encoded in other batches.
    torch.testing.assert_close(
        network.members["encoder"](queries).scores, expected(queries).scores, rtol=1e-4, atol=1e-5
    )


def test_a_bag_counts_words_in_the_memory(
    train: Callable[..., Path], grow: Callable[..., str], tmp_path: Path
) -> None:
    """Words of the training only; the other rows have more."""
    random = np.random.default_rng(0)
    words = sorted({word for text, _ in FIRST for word in text.split()})
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(
        "".join(f"{word} {' '.join(f'{x:.4f}' for x in random.normal(size=7))}\n" for word in words)
    )
    folder = train("run", FIRST, "--model.members=[bag,lexical_vote]", f"--data.word_vectors={vectors}")
    assert "bag fitted to 100 rows" in grow(folder)
    for version, pairs in ((1, FIRST), (2, [*FIRST, *MORE])):
        counts = [sum(word in text.split() for text, _ in pairs) for word in words]
        expected = [1 + math.log((1 + len(pairs)) / (1 + count)) for count in counts]
        idf = zoo.load(folder, memory_version=version).model.network.bag.idf
        assert sorted(idf[idf > 0].tolist()) == pytest.approx(sorted(expected))


def test_a_learned_metric_is_named(
    train: Callable[..., Path], grow: Callable[..., str], tiny_bert: Path
) -> None:
    folder = train("run", FIRST, f"--model.transformer={tiny_bert}", "--model.metric_steps=1")
    is_learned = zoo.load(folder).model.network.encoder_before is not None
    assert ("the encoder's metric has learned" in grow(folder)) == is_learned


def test_rows_that_the_members_know_are_not_held_out(
    train: Callable[..., Path], grow: Callable[..., str], zoo_command: Zoo, dev: Path
) -> None:
    """Members that had learned these random labels by heart would be trusted."""
    noise = distinct_sentences(200, seed=6, noise=True)
    folder = train("run", distinct_sentences(40, seed=7, noise=True), LEXICAL)
    grow(folder, noise)
    sure = [max(each.values()) for each in probabilities(folder)]
    assert np.mean(sure) < 0.7
    # The next tuning keeps the members, and holds out no row that they know.
    members = zoo.load(folder).model.network.describe_members()
    result = done(zoo_command("memory", "tune", folder, dev))
    assert "of the memory, each" not in result.out
    kept = zoo.load(folder).model.network.describe_members()
    assert kept.keys() == members.keys()
    assert kept["version"] == members["version"] == 2


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damaged_members_are_named(
    damage: str, train: Callable[..., Path], grow: Callable[..., str], zoo_command: Zoo
) -> None:
    folder = train("run", FIRST, LEXICAL)
    before = probabilities(folder)
    grow(folder)
    (file,) = folder.glob("model/fitted/members-*.safetensors")
    contents = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(contents[:100] if damage == "truncated" else contents[:-1] + b"?")
    for command in (["export", folder, "shared"], ["memory", "show", folder]):
        result = zoo_command(*command)
        assert (result.code == 2) == (command[0] == "export")
    with pytest.raises(
        InputError, match=r"safetensors: missing or damaged; restore it, use an earlier version"
    ):
        zoo.load(folder)
    assert probabilities(folder, 1) == before


def test_refusals(run: Run, zoo_command: Zoo, dev: Path, tmp_path: Path) -> None:
    folder = run("votes", "--model.members=[lexical_vote]")
    result = zoo_command("memory", "tune", folder, dev, "--refit=true")
    assert result.code == 2
    assert "members that need no gradients, and this model has none" in result.err
    unlabelled = tmp_path / "unlabelled.csv"
    unlabelled.write_text("text\n" + "\n".join(text for text, _ in sentences(20, seed=5)) + "\n")
    folder = run("unlabelled", LEXICAL, f"--data.memory={unlabelled}")
    result = zoo_command("memory", "tune", folder, dev, "--refit=true")
    assert result.code == 2
    assert "rows with the labels of the training, and the memory has none" in result.err
    result = zoo_command("memory", "tune", run("alone", "--model.members=[lexical]"), dev, "--refit=true")
    assert result.code == 2
    assert "this model reads no memory" in result.err
    folder = run("run", LEXICAL)
    predictor = zoo.load(folder)
    with pytest.raises(InputError, match="an index of your own can only be searched"):
        refit_members(predictor.model, predictor.data, None, crosses=True)
    assert not list(folder.glob("members-*"))
