"""The memory of an ensemble grows: votes, fitted weights, new labels, encodings."""

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import zoo
from datamodules.batch import ClassificationBatch
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from tests.zoo.conftest import Edit, Fit, Measure, Zoo, done, refusal, sentences, write_table
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.new_labels import NEVER, with_new_classes
from zoo.ensemble.outputs import Votes
from zoo.ensemble.pool import Pool
from zoo.tasks.outputs import ClassificationOutput

MUSIC = ["guitar", "violin", "drum", "flute"]


def test_added_rows_are_encoded_once_vote_at_once_and_weights_are_fitted_again(
    run: Fit,
    zoo_command: Zoo,
    edit: Edit,
    measure: Measure,
    tiny_bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = (f"--model.transformer={tiny_bert}", "--model.metric_steps=0")
    folder = run("run", "--model.members=[lexical_vote,dense_vote]", *options)
    encode = create_autospec(MemoryEnsemble.encode, side_effect=MemoryEnsemble.encode)
    monkeypatch.setattr(MemoryEnsemble, "encode", encode)
    measure(folder, sentences(31, seed=2))
    zoo.load(folder).predict("apple")
    encode.assert_not_called()
    checkpoints = {path: path.read_bytes() for path in folder.rglob("*.ckpt")}
    trained = zoo.load(folder).model.network.pool.describe()
    edit("add", folder, [("quince quince jam", "fruit"), ("quince tart", "fruit")])
    (prediction,) = zoo.load(folder).predict("quince")
    zoo.load(folder).predict("pear")
    encoded = [text for call in encode.call_args_list for text in call.args[2]]
    assert encoded == ["quince quince jam", "quince tart"]
    assert "quince tart" in [memory.text for memory in prediction.memories]
    assert prediction.label == "fruit"
    printed = edit("tune", folder, sentences(40, seed=79))
    assert "weights lexical_vote" in printed
    assert "and 2 of the memory, each classified without it" in printed
    tuned = zoo.load(folder).model.network.pool.describe()
    assert tuned != trained
    assert zoo.load(folder, memory_version=1).model.network.pool.describe() == trained
    assert {path: path.read_bytes() for path in folder.rglob("*.ckpt")} == checkpoints
    # `test` uses them as well.
    assert measure(folder, sentences(40, seed=79))["answer"]["weights"] == tuned["weights"]["all"]
    other = write_table(tmp_path / "other.csv", [("a", "sport")])
    refusal(zoo_command("memory", "tune", folder, other), "does not know the label 'sport'")


def test_a_new_label_is_predicted_by_the_memory_alone(
    folder: Path, zoo_command: Zoo, edit: Edit, measure: Measure, tmp_path: Path
) -> None:
    music = [(f"{MUSIC[i % 4]} {MUSIC[(i // 4) % 4]} the {i}", "music") for i in range(12)]
    music_csv = write_table(tmp_path / "music.csv", music)
    texts = [text for text, _ in sentences(60, seed=9)]
    before = zoo.load(folder).predict(texts)
    refusal(zoo_command("memory", "add", folder, music_csv), "--new_labels true")
    assert "labels that only the memory has: music" in edit("add", folder, music, "--new_labels=true")
    predictor = zoo.load(folder)
    for prediction in predictor.predict(["guitar and violin", "a drum"]):
        assert (prediction.label, prediction.known_by_memory_alone) == ("music", True)
        assert set(prediction.contributions) >= {"known by memory alone"}
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
    same = [one.label == other.label for one, other in zip(before, predictor.predict(texts), strict=True)]
    assert np.mean(same) >= 0.95
    # Without a memory of the label it is impossible; the memory as it was before does not have it.
    assert predictor.predict("")[0].probabilities["music"] == 0
    for one, other in zip(before, zoo.load(folder, memory_version=1).predict(texts), strict=True):
        assert other.probabilities == pytest.approx(one.probabilities, abs=1e-6)
    scores = measure(folder, [*sentences(30, seed=11), ("violin solo", "music"), ("x", "sport")])
    assert scores["unknown_labels"] == 1
    assert scores["recall/music"] == 1
    # The next addition knows the label; an exported model has it, too, and its memory can grow.
    more = [("a cello", "music"), ("old bronze", "metal")]
    assert "version 3, 86 memories, 2 new" in edit("add", folder, more)
    assert zoo.load(folder).predict("cello")[0].label == "music"
    done(zoo_command("export", folder, "shared"))
    assert zoo.load("shared").predict("cello")[0].label == "music"
    edit("add", "shared", [("an oboe", "music")])
    assert zoo.load("shared").predict("oboe")[0].label == "music"
    edit("tune", folder, [*sentences(40, seed=79), ("flute", "music")])
    assert zoo.load(folder).predict("guitar")[0].label == "music"


def test_each_version_keeps_its_predictions(
    run: Fit, edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[ClassificationOutput] = []
    forward = EnsembleNetwork.forward

    def record(self: EnsembleNetwork, batch: ClassificationBatch) -> ClassificationOutput:
        outputs.append(forward(self, batch))
        return outputs[-1]

    monkeypatch.setattr(EnsembleNetwork, "forward", record)
    # Labels with noise give the votes a weight.
    rows = [(text, "metal" if i % 4 == 0 else label) for i, (text, label) in enumerate(sentences(90, 1))]
    folder = run("run", table=write_table(tmp_path / "noisy.csv", rows))
    new = {label: [(f"{word} {label} near {i}", label) for i, word in enumerate(MUSIC)] for label in "xy"}
    texts = [*(text for text, _ in sentences(20, seed=9)), *(text for text, _ in new["x"] + new["y"]), ""]

    def predict(version: int) -> tuple[list[Any], list[Any]]:
        predictions = zoo.load(folder, memory_version=version).predict(texts)
        for output in outputs:
            is_possible = output.logits > output.logits.amax(dim=1, keepdim=True) + NEVER / 2
            for part in output.contributions.values():
                mean = (part * is_possible).sum(dim=1) / is_possible.sum(dim=1)
                torch.testing.assert_close(mean, torch.zeros(len(mean)), rtol=0, atol=1e-5)
        outputs.clear()
        return [each.probabilities for each in predictions], [each.contributions for each in predictions]

    expected = [predict(1)]
    for label, table in new.items():
        edit("add", folder, table, "--new_labels=true")
        expected.append(predict(len(expected) + 1))
        edit("tune", folder, [*sentences(40, seed=79), (f"flute {label}", label)])
        # The version that the weights were fitted for has them, and no other.
        tuned = predict(len(expected))
        assert tuned != expected[-1]
        expected[-1] = tuned
        assert [predict(version) for version in range(1, len(expected) + 1)] == expected


def test_contributions_to_possible_classes_add_up_and_have_the_mean_0() -> None:
    random = np.random.default_rng(0)
    old = {name: torch.from_numpy(random.normal(size=(6, 3))).float() for name in ("lexical", "lexical_vote")}
    old = {name: part - part.mean(dim=1, keepdim=True) for name, part in old.items()}
    logits = torch.stack(list(old.values())).sum(dim=0)
    classes = torch.from_numpy(random.integers(0, 5, size=(6, 4)))
    votes = {"lexical_vote": Votes(torch.rand(6, 4), torch.ones(6, 4, dtype=torch.bool), classes, 3)}
    pool = Pool({"lexical_vote": (1.0, 0.1)}, {"memory": {"lexical_vote": 0.7}})
    new, contributions = with_new_classes(logits, old, votes, pool, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(torch.stack(list(contributions.values())).sum(dim=0), new)
    old_share = new[:, :3].softmax(dim=1)
    torch.testing.assert_close(old_share, logits.softmax(dim=1))
    for row in range(6):
        possible = [0, 1, 2, *(c for c in (3, 4) if c in classes[row])]
        assert new[row].softmax(dim=0)[possible].sum() == pytest.approx(1, abs=1e-6)
        for part in contributions.values():
            assert float(part[row, possible].mean()) == pytest.approx(0, abs=1e-5)


def test_other_models_refuse_new_labels_and_tuning(
    trained_run: Path, zoo_command: Zoo, train_csv: Path
) -> None:
    result = zoo_command("memory", "add", trained_run, train_csv, "--new_labels=true")
    refusal(result, "a KNNBiLSTM cannot predict labels that it was not trained with")
    refusal(zoo_command("memory", "tune", trained_run, train_csv), "a KNNBiLSTM has no weights")


def test_vectors_of_known_texts_are_looked_up(tmp_path: Path) -> None:
    encoded: list[str] = []

    def encode(texts: list[str]) -> NDArray[np.float32]:
        encoded.extend(texts)
        vectors = np.array([[len(text), 1.0] for text in texts], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    rows = Rows.from_lists(["a", "bbb", "a"], ["x", "y", "x"])
    memory = FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "m")
    encodings = EncodedMemory.open(memory, "f" * 64, encode)
    assert encoded == ["a", "bbb", "a"]
    vectors = encodings.vectors_of(["bbb", "cc", "a", "cc"])
    assert encoded[3:] == ["cc"]
    np.testing.assert_allclose(vectors, encode(["bbb", "cc", "a", "cc"]))
    assert encodings.search(vectors[:1], 2, exclude=[[1]]).rows.tolist() == [[0, 2]]
