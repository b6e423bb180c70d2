"""Encodings of a memory, stored next to it: they change the time of a prediction, and no result."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.zoo.conftest import Edit, Fit, Zoo, fit_options, sentences, written_scores
from zoo.model_folder.export import export
from zoo.tasks.classification.predictor import ClassificationPredictor

TEXTS = [text for text, _ in sentences(40, seed=3)] + ["", "?!", "apple"]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were encoded outside of batches."""
    encoded: list[str] = []
    encode = ClassificationPredictor.raw_vectors

    def counted(self: Any, texts: list[str], *others: Any, **named: Any) -> Any:
        encoded.extend(texts)
        return encode(self, texts, *others, **named)

    monkeypatch.setattr(ClassificationPredictor, "raw_vectors", counted)
    return encoded


@pytest.fixture
def run(copied_run: Path) -> Path:
    """A run without stored encodings."""
    for folder in copied_run.rglob("vectors-*"):
        shutil.rmtree(folder)
    return copied_run


def scores(zoo_command: Zoo, command: str, checkpoint: Path, *options: object) -> dict[str, Any]:
    written = written_scores(zoo_command, command, f"--ckpt_path={checkpoint}", *options)
    written.pop("calibration", None)
    return written


@pytest.mark.parametrize("encoder", ["bilstm", "transformer"])
def test_results_are_those_of_encoding_in_each_batch(
    encoder: str,
    fit: Fit,
    zoo_command: Zoo,
    encoded: list[str],
    tiny_bert: Path,
    test_csv: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Memories are cut to another length than texts.
    options = ["--data.max_length=6", "--data.memory_max_length=3"]
    if encoder == "transformer":
        options += ["--model.transformer", str(tiny_bert), "--data.tokenizer", str(tiny_bert)]
    checkpoint = fit("run", *options)
    assert encoded == []  # an encoder in training changes in each step
    commands = [("test", f"--data.test_file={test_csv}"), ("validate", f"--config={checkpoint}/config.yaml")]
    measured = [scores(zoo_command, command, checkpoint, *more) for command, *more in commands]
    predictor = zoo.load(checkpoint)
    predictions = predictor.predict(TEXTS)
    assert sorted(encoded) == sorted(predictor.memory.rows.texts)  # once, by the first command

    # Every batch encodes its memories.
    monkeypatch.setattr(zoo.KNNBiLSTM, "read_memory", lambda *arguments: None)
    other = zoo.load(checkpoint)
    for prediction, expected in zip(predictions, other.predict(TEXTS), strict=True):
        assert prediction.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert [each.text for each in prediction.memories] == [each.text for each in expected.memories]
        weights = [memory.weight for memory in prediction.memories]
        assert weights == pytest.approx([memory.weight for memory in expected.memories], abs=1e-5)
    for (command, *more), before in zip(commands, measured, strict=True):
        assert before == pytest.approx(scores(zoo_command, command, checkpoint, *more), abs=1e-5)


def test_for_a_few_texts_the_whole_memory_is_not_encoded(run: Path, encoded: list[str], edit: Edit) -> None:
    before = zoo.load(run).predict("old apple")
    assert encoded == []
    many = zoo.load(run).predict([*TEXTS, "old apple"])
    assert many[-1].probabilities == pytest.approx(before[0].probabilities, abs=1e-5)
    whole = list(encoded)
    assert len(whole) == 72
    # The stored encodings grow with the memory.
    edit("add", run, [("quince tart", "fruit")])
    assert zoo.load(run).predict("tart")[0].memories[0].text == "quince tart"
    assert encoded == [*whole, "quince tart"]


def test_other_weights_and_a_training_step_make_another_encoder(run: Path, encoded: list[str]) -> None:
    predictor = zoo.load(run)
    weights = list(predictor.model.network.encoder.lstm.parameters())
    predictor.predict(TEXTS)
    once = len(encoded)
    with torch.no_grad():
        weights[0].mul_(1.5)
    predictor.predict(TEXTS)
    assert len(encoded) == 2 * once
    # A fused optimizer does not change the versions of the weights that it writes to.
    predictor.model.train()
    sum(weight.square().sum() for weight in weights).backward()
    torch.optim.Adam(weights, lr=0.1, fused=True).step()
    predictor.model.eval()
    predictor.predict(TEXTS)
    assert len(encoded) == 3 * once


@pytest.fixture
def other_run(trained: Fit, kept_table: Fit) -> Path:
    """Another run on the same rows."""
    options = fit_options(kept_table(*sentences(90, seed=1)), "--seed_everything=2")
    return shutil.copytree(trained(*map(str, options)), Path("other").absolute())


def test_two_models_on_the_same_data_read_their_own(run: Path, other_run: Path) -> None:
    one, other = zoo.load(run), zoo.load(other_run)
    expected = one.predict(TEXTS)
    other.data = one.data
    for model in (one.model, other.model):
        model.read_memory(one.data, one.memory)
    assert one.predict(TEXTS) == expected


def test_an_exported_model_has_its_own_encodings(run: Path, other_run: Path, encoded: list[str]) -> None:
    one, other = zoo.load(run), zoo.load(other_run)
    expected = one.predict(TEXTS)
    other.with_memory(one.memory).predict(TEXTS)  # both read one memory
    encoded.clear()
    exported = export(run, "exported")
    assert len(list((exported / "memory").glob("vectors-*"))) == 1
    assert zoo.load(exported).predict(TEXTS) == expected
    assert encoded == []


def test_encodings_are_read_from_a_read_only_folder(
    run: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = zoo.load(run)
    expected = predictor.predict(TEXTS)
    assert encoded

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError("a read-only disk")

    monkeypatch.setattr("datamodules.core.storage.lock", refuse)
    monkeypatch.setattr("datamodules.core.storage.new_folder", refuse)
    assert zoo.load(Path("run")).predict(TEXTS) == expected
    # Without stored encodings, each batch encodes its memories.
    for folder in predictor.memory.folder.glob("vectors-*"):
        shutil.rmtree(folder)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    predictions = zoo.load(Path("run")).predict(TEXTS)
    assert [each.label for each in predictions] == [each.label for each in expected]


def test_training_with_a_frozen_encoder_shares_encodings_with_test_and_prediction(
    fit: Fit, encoded: list[str], zoo_command: Zoo, test_csv: Path
) -> None:
    start = fit("start", "--model.features=M1", "--data.num_memories=0")
    checkpoint = fit("run", f"--model.init_from={start}", "--model.freeze_encoder=true")
    assert len(encoded) == 72
    scores(zoo_command, "test", checkpoint, f"--data.test_file={test_csv}")
    zoo.load(checkpoint).predict(TEXTS)
    assert len(encoded) == 72
