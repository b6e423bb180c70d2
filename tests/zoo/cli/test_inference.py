"""`zoo.load` and what it returns."""

from pathlib import Path

import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever
from tests.zoo.conftest import LABELS, Zoo, done, sentences, write_table
from zoo.knn_bilstm import KNNBiLSTM


def test_predictions_do_not_depend_on_their_batch(trained_run: Path) -> None:
    predictor = zoo.load(trained_run)
    texts = [text for text, _ in sentences(20, seed=4)]
    together = predictor.predict(texts)
    assert [prediction.text for prediction in together] == texts
    for one, other in zip(together, predictor.predict(texts, batch_size=3), strict=True):
        assert one.label == other.label
        assert one.probability == pytest.approx(other.probability, abs=1e-6)
        assert [m.text for m in one.memories] == [m.text for m in other.memories]
    (alone,) = predictor.predict(texts[0])
    assert alone.probability == pytest.approx(together[0].probability, abs=1e-6)
    assert predictor.predict([]) == []


def test_lightnings_own_way_loads_a_checkpoint(trained_run: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    by_lightning = KNNBiLSTM.load_from_checkpoint(checkpoint, weights_only=True).network.state_dict()
    loaded = zoo.load(trained_run).model.network
    weights = loaded.state_dict()
    assert by_lightning.keys() == weights.keys()
    assert all(torch.equal(by_lightning[name], weight) for name, weight in weights.items())
    assert loaded.encoder.words.table.requires_grad  # drawn word vectors stay trained


def test_texts_without_known_words(trained_run: Path) -> None:
    model = zoo.load(trained_run)
    unseen, empty, _ = model.predict(["\u732b xyzzy \U0001f600", "", "a text"])
    assert unseen.memories == []
    assert model.predict("")[0].probabilities == pytest.approx(empty.probabilities, abs=1e-6)
    for prediction in (unseen, empty):
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_another_memory(trained_run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    table = write_table(tmp_path / "m.csv", [("plum jam", "fruit"), ("plum stone", "geology")])
    done(zoo_command("index", "--file", table, "--memory", "memory"))
    (answer,) = zoo.load(trained_run, memory="memory").predict("plum")
    # A label that the model does not know is shown, and counts as unknown.
    assert {(m.text, m.label) for m in answer.memories} == {("plum jam", "fruit"), ("plum stone", "geology")}
    assert set(answer.probabilities) == set(LABELS)
    with pytest.raises(InputError, match="LMDirichlet"):
        zoo.load(trained_run, memory="memory", retriever=EmbeddedRetriever(similarity="LMDirichlet"))
