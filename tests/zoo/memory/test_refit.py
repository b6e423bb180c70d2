"""`zoo memory tune --refit true`: members that need no gradients are fitted to the rows of a grown memory."""

import math
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import LABELS, Edit, Fit, Measure, Zoo, done, refusal, sentences, write_table
from tests.zoo.ensemble.conftest import distinct_sentences, write_vectors
from zoo.ensemble.member import Readings
from zoo.ensemble.members import Encoder
from zoo.ensemble.metric import EncoderMetric
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.refit import refit_members

FIRST, MORE = distinct_sentences(40, seed=1), distinct_sentences(60, seed=2)
DEV = distinct_sentences(40, seed=4)
TEXTS = [text for text, _ in distinct_sentences(30, seed=3)]
LEXICAL = "--model.members=[lexical,lexical_vote]"
METRIC = "the encoder's metric has learned"


@pytest.fixture
def grow(edit: Edit) -> Edit:
    """Adds rows to the memory of a model, and fits its members again; returns the report."""

    def grow(folder: Path, rows: list[tuple[str, str]] = MORE, *options: str) -> str:
        edit("add", folder, rows, *options)
        return edit("tune", folder, DEV, "--refit=true")

    return grow


def scores_of(network: EnsembleNetwork, name: str) -> torch.Tensor:
    return network.members[name](Readings(TEXTS, network.ngrams(TEXTS))).scores


def probabilities(folder: Path, version: int | None = None) -> list[dict[str, float]]:
    return [each.probabilities for each in zoo.load(folder, memory_version=version).predict(TEXTS)]


def test_members_equal_those_of_a_training_on_the_same_rows(
    shared_run: Fit, grow: Edit, zoo_command: Zoo, measure: Measure
) -> None:
    folder = shared_run(FIRST, LEXICAL, validation=DEV)
    checkpoints = {path: path.read_bytes() for path in folder.rglob("*.ckpt")}
    before = probabilities(folder)
    report = grow(folder)
    assert "lexical fitted to 100 rows of the memory; weights" in report
    assert "and 100 of the memory, each classified without it" in report
    assert "training texts" not in report
    assert "zoo fit" not in report
    assert {path: path.read_bytes() for path in folder.rglob("*.ckpt")} == checkpoints
    again = zoo.load(shared_run([*FIRST, *MORE], LEXICAL, validation=DEV, run_dir="again")).model.network
    refitted = zoo.load(folder).model.network
    for name in ("lexical", "six", "majority"):
        actual, expected = (scores_of(each, name) for each in (refitted, again))
        assert torch.equal(actual, expected)
    # An earlier version keeps its own members.
    after = probabilities(folder)
    assert after != before
    assert probabilities(folder, 1) == before
    # An exported folder has them, too; its memory can grow further.
    done(zoo_command("export", folder, "shared"))
    assert probabilities(Path("shared")) == after
    assert "fitted to 110 rows" in grow("shared", distinct_sentences(10, seed=5))
    assert probabilities(Path("shared"), 2) == after
    # `test` uses them.
    test = distinct_sentences(30, seed=3)
    rows = {row["name"]: row for row in measure(folder, test)["answer"]["rows"]}
    target = torch.tensor([sorted(LABELS).index(label) for _, label in test])
    right = scores_of(refitted, "lexical").argmax(dim=1) == target
    assert rows["lexical"]["right"] == int(right.sum())


@pytest.mark.usefixtures("float32")
def test_a_machine_on_a_frozen_encoder(shared_run: Fit, grow: Edit, tiny_bert: Path) -> None:
    """The rows of a class that training lacked stay the memory's alone."""
    options = (f"--model.transformer={tiny_bert}", "--model.metric_steps=0")
    folder = shared_run(FIRST, "--model.members=[encoder,dense_vote]", *options, validation=DEV)
    report = grow(folder, [*MORE, ("guitar solo", "music"), ("old drum", "music")], "--new_labels=true")
    assert "encoder fitted to 100 rows of the memory" in report
    assert METRIC not in report
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


def test_a_bag_counts_words_in_the_memory(shared_run: Fit, grow: Edit, tmp_path: Path) -> None:
    """Words of the training only; the other rows have more."""
    words = sorted({word for text, _ in FIRST for word in text.split()})
    options = f"--data.word_vectors={write_vectors(tmp_path / 'vectors.txt', words)}"
    folder = shared_run(FIRST, "--model.members=[bag,lexical_vote]", options, validation=DEV)
    assert "bag fitted to 100 rows" in grow(folder)
    for version, pairs in ((1, FIRST), (2, [*FIRST, *MORE])):
        counts = [sum(word in text.split() for text, _ in pairs) for word in words]
        expected = [1 + math.log((1 + len(pairs)) / (1 + count)) for count in counts]
        idf = zoo.load(folder, memory_version=version).model.network.bag.idf
        assert sorted(idf[idf > 0].tolist()) == pytest.approx(sorted(expected))


def test_a_learned_metric_is_named(
    shared_run: Fit, grow: Edit, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    likelihoods = cycle([1.0, 0.0])  # tuned, as it is
    monkeypatch.setattr(EncoderMetric, "_likelihoods", lambda *_: np.array([next(likelihoods)]))
    options = (f"--model.transformer={tiny_bert}", "--model.metric_steps=1")
    folder = shared_run(FIRST, "--model.members=[encoder,dense_vote]", *options, validation=DEV)
    assert METRIC in grow(folder)


def test_rows_that_the_members_know_are_not_held_out(shared_run: Fit, grow: Edit, edit: Edit) -> None:
    """Members that had learned these random labels by heart would be trusted."""
    noise = distinct_sentences(200, seed=6, noise=True)
    folder = shared_run(distinct_sentences(40, seed=7, noise=True), LEXICAL, validation=DEV)
    grow(folder, noise)
    sure = [max(each.values()) for each in probabilities(folder)]
    assert np.mean(sure) < 0.7
    # The next tuning keeps the members, and holds out no row that they know.
    members = zoo.load(folder).model.network.describe_members()
    assert "of the memory, each" not in edit("tune", folder, DEV)
    kept = zoo.load(folder).model.network.describe_members()
    assert kept.keys() == members.keys()
    assert kept["version"] == members["version"] == 2


def test_damaged_members_are_named(shared_run: Fit, grow: Edit, zoo_command: Zoo) -> None:
    folder = shared_run(FIRST, LEXICAL, validation=DEV)
    before = probabilities(folder)
    grow(folder)
    (file,) = folder.glob("model/fitted/members-*.safetensors")
    contents = file.read_bytes()
    for damaged in (None, contents[:100], contents[:-1] + b"?"):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        for command in (["export", folder, "shared"], ["memory", "show", folder]):
            result = zoo_command(*command)
            assert (result.code == 2) == (command[0] == "export")
        with pytest.raises(
            InputError, match=r"safetensors: missing or damaged; restore it, use an earlier version"
        ):
            zoo.load(folder)
    assert probabilities(folder, 1) == before


def test_refusals(run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    dev, unlabelled = write_table(tmp_path / "dev.csv", DEV), tmp_path / "unlabelled.csv"
    unlabelled.write_text("text\n" + "\n".join(text for text, _ in sentences(20, seed=5)) + "\n")
    for name, options, message in (
        ("votes", ["[lexical_vote]"], "members without gradients, and this model has none"),
        (
            "unlabelled",
            ["[lexical,lexical_vote]", f"--data.memory={unlabelled}"],
            "rows with the labels of the training, and the memory has none",
        ),
        ("alone", ["[lexical]"], "this model reads no memory"),
    ):
        folder = run(name, f"--model.members={options[0]}", *options[1:])
        refusal(zoo_command("memory", "tune", folder, dev, "--refit=true"), message)
    predictor = zoo.load(folder)
    with pytest.raises(InputError, match="an index of your own can only be searched"):
        refit_members(predictor.model, predictor.data, None, crosses=True)
    assert not list(folder.glob("members-*"))
