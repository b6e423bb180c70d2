"""What an encoder made of a memory is read from where it lies beside the memory: nothing changes but the time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from zoo.ensemble.letters import LetterVectors
from zoo.memory.tuning import tune

import zoo
from datamodules.corpora.table import read_table
from tests.zoo.conftest import SMALL, Result, sentences, write_table
from zoo.saving.export import export
from zoo.tasks.classification.predictor import ClassificationPredictor

Zoo = Callable[..., Result]
TEXTS = [text for text, _ in sentences(40, seed=3)] + ["", "?!", "apple"]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were encoded apart from any batch."""
    found: list[str] = []
    encode = ClassificationPredictor.raw_vectors

    def counted(self: Any, texts: list[str], *others: Any) -> Any:
        found.extend(texts)
        return encode(self, texts, *others)

    monkeypatch.setattr(ClassificationPredictor, "raw_vectors", counted)
    return found


@pytest.fixture
def fit(zoo_command: Zoo, train_csv: Path, encoded: list[str]) -> Callable[..., Path]:
    """Trains a small KNNBiLSTM; its checkpoint."""

    def train(name: str, *options: object) -> Path:
        arguments = [*SMALL, "--trainer.max_epochs=1", f"--data.train_file={train_csv}", f"--run_dir={name}"]
        result = zoo_command("fit", *arguments, *options)
        assert result.code == 0, result.err
        return Path(name, "checkpoints", "best.ckpt").absolute()

    return train


def without_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every batch encode its memories."""
    monkeypatch.setattr(zoo.KNNBiLSTM, "use_memory", lambda *arguments: None)


def scores(zoo_command: Zoo, command: str, checkpoint: Path, *options: object) -> dict[str, Any]:
    result = zoo_command(command, f"--ckpt_path={checkpoint}", "--output=scores.json", *options)
    assert result.code == 0, result.err
    read: dict[str, Any] = json.loads(Path("scores.json").read_text())
    return read


@pytest.mark.parametrize("encoder", ["bilstm", "transformer"])
def test_results_are_those_of_encoding_in_each_batch(
    encoder: str,
    fit: Callable[..., Path],
    zoo_command: Zoo,
    encoded: list[str],
    tiny_bert: Path,
    test_csv: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Memories are cut to another length than texts.
    options = ["--data.max_length=6", "--data.memory_max_length=3", "--model.mix=0.3"]
    if encoder == "transformer":
        options += ["--model.transformer", str(tiny_bert), "--data.tokenizer", str(tiny_bert)]
    checkpoint = fit("run", *options)
    assert encoded == []  # an encoder that learns is no one's
    commands = [("test", f"--data.test_file={test_csv}"), ("validate",)]
    found = [scores(zoo_command, command, checkpoint, *more) for command, *more in commands]
    predictor = zoo.load(checkpoint)
    predictions = predictor.predict(TEXTS)
    rows = read_table(test_csv)
    tuned = tune(predictor, rows)
    assert sorted(encoded) == sorted(predictor.memory.rows.texts)  # once, by the first of them

    without_encodings(monkeypatch)
    other = zoo.load(checkpoint)
    for one, expected in zip(predictions, other.predict(TEXTS), strict=True):
        assert one.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert [memory.text for memory in one.memories] == [memory.text for memory in expected.memories]
        weights = [[memory.weight for memory in prediction.memories] for prediction in (one, expected)]
        assert weights[0] == pytest.approx(weights[1], abs=1e-5)
    assert tuned == tune(other, rows)
    for (command, *more), ours in zip(commands, found, strict=True):
        assert ours == pytest.approx(scores(zoo_command, command, checkpoint, *more), abs=1e-5)


def test_a_few_texts_do_not_have_the_whole_memory_encoded(
    fit: Callable[..., Path], encoded: list[str], zoo_command: Zoo, tmp_path: Path
) -> None:
    checkpoint = fit("run")
    before = zoo.load(checkpoint).predict("old apple")
    assert encoded == []
    many = zoo.load(checkpoint).predict([*TEXTS, "old apple"])
    assert many[-1].probabilities == pytest.approx(before[0].probabilities, abs=1e-5)
    whole = list(encoded)
    assert len(whole) == 72
    # They are there now, and grow with the memory.
    more = write_table(tmp_path / "more.csv", [("quince tart", "fruit")])
    assert zoo_command("memory", "add", checkpoint, more).code == 0
    assert zoo.load(checkpoint).predict("tart")[0].memories[0].text == "quince tart"
    assert encoded == [*whole, "quince tart"]


def test_another_encoder_has_other_encodings(fit: Callable[..., Path], encoded: list[str]) -> None:
    checkpoint = fit("run")
    predictor = zoo.load(checkpoint)
    predictor.predict(TEXTS)
    before = list(encoded)
    with torch.no_grad():
        next(iter(predictor.model.network.encoder.lstm.parameters())).mul_(1.5)
    predictor.predict(TEXTS)
    assert len(encoded) == 2 * len(before)


def test_a_training_step_in_between_makes_another_encoder(
    fit: Callable[..., Path], encoded: list[str]
) -> None:
    """A fused optimizer writes to weights without a trace in their versions."""
    predictor = zoo.load(fit("run"))
    predictor.predict(TEXTS)
    before = list(encoded)
    predictor.model.train()
    weights = list(predictor.model.network.encoder.lstm.parameters())
    optimizer = torch.optim.Adam(weights, lr=0.1, fused=True)
    sum(weight.square().sum() for weight in weights).backward()
    optimizer.step()
    predictor.model.eval()
    predictor.predict(TEXTS)
    assert len(encoded) == 2 * len(before)


def test_two_models_on_the_same_data_read_their_own(fit: Callable[..., Path]) -> None:
    one, other = zoo.load(fit("one")), zoo.load(fit("other", "--seed_everything=2"))
    expected = one.predict(TEXTS)
    other.data = one.data
    for model in (one.model, other.model):
        model.use_memory(one.data, one.memory)
    assert one.predict(TEXTS) == expected


def test_an_exported_model_takes_along_its_own(fit: Callable[..., Path], encoded: list[str]) -> None:
    """Both read one memory."""
    one, other = zoo.load(fit("one")), zoo.load(fit("other", "--seed_everything=2"))
    assert one.memory.folder == other.memory.folder
    expected = one.predict(TEXTS)
    other.predict(TEXTS)
    encoded.clear()
    exported = export("one/checkpoints/best.ckpt", "exported")
    assert len(list((exported / "memory").glob("encodings-*"))) == 1
    assert zoo.load(exported).predict(TEXTS) == expected
    assert encoded == []


def test_encodings_that_are_there_are_read_where_nothing_can_be_written(
    fit: Callable[..., Path], encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = zoo.load(fit("run"))
    expected = predictor.predict(TEXTS)
    assert encoded

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError("a read-only disk")

    monkeypatch.setattr("datamodules.retrieval.memories.encoded_memory.lock", refuse)
    monkeypatch.setattr("datamodules.retrieval.memories.encoded_memory.new_folder", refuse)
    assert zoo.load(Path("run/checkpoints/best.ckpt")).predict(TEXTS) == expected
    # And where they are not there, each batch encodes its own.
    for folder in predictor.memory.folder.glob("encodings-*"):
        shutil.rmtree(folder)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = zoo.load(Path("run/checkpoints/best.ckpt")).predict(TEXTS)
    assert [one.label for one in found] == [one.label for one in expected]


def test_another_model_reads_the_texts_again(fit: Callable[..., Path]) -> None:
    data = zoo.load(fit("run")).data
    data.encoded_memory = object()
    data.cache_encodings(lambda batch: batch.text.float(), "an encoder")
    data.forget_encodings()
    assert data.encoded_memory is None
    assert data.encodings_of(None, 5) is None


def test_a_frozen_encoder_shares_them_with_test_and_prediction(
    fit: Callable[..., Path], encoded: list[str], zoo_command: Zoo, test_csv: Path
) -> None:
    start = fit("start", "--model.features=M1", "--data.num_memories=0")
    checkpoint = fit("run", f"--model.init_from={start}", "--model.freeze_encoder=true")
    assert len(encoded) == 72
    scores(zoo_command, "test", checkpoint, f"--data.test_file={test_csv}")
    zoo.load(checkpoint).predict(TEXTS)
    assert len(encoded) == 72


@pytest.mark.parametrize("sizes", [(2, 5), (3, 3), (1, 2)])
def test_vectors_of_letters_are_those_of_scikit_learn(sizes: tuple[int, int]) -> None:
    texts = [text for text, _ in sentences(200, seed=1)]
    theirs = TfidfVectorizer(analyzer="char_wb", ngram_range=sizes, sublinear_tf=True, min_df=2).fit(texts)
    ours = LetterVectors(theirs.vocabulary_, theirs.idf_, sizes)
    new = ["", "  ", "x", "Apple APPLE pineapple", "aaaa\taaaaa\n aa", "ÀÉ ß İx zinc", "a b c", *texts[:20]]
    for _ in range(2):  # the words are known now
        np.testing.assert_allclose(
            ours.transform(new).toarray(), theirs.transform(new).toarray(), rtol=1e-12, atol=1e-15
        )
    assert ours.transform([]).shape == (0, len(theirs.vocabulary_))
