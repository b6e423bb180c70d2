"""The stage that learns the metric of a frozen encoder."""

import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, DistilBertConfig, DistilBertModel, T5Config, T5Model

import zoo
from tests.zoo.conftest import LABELS as ALL_LABELS
from tests.zoo.conftest import Fit, Zoo, done, read_json, refusal, sentences, write_table
from tests.zoo.ensemble.conftest import SMALL
from zoo.ensemble.metric import FOLDS, EncoderMetric
from zoo.model_folder.folder import ModelFolder

LABELS = ("fruit", "metal")


def layer_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the transformer's layers in the checkpoint of a run, by their own names."""
    prefix = "network.encoder.transformer."
    weights = ModelFolder.open(folder).weights()
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def accuracies(folder: Path) -> dict[str, float]:
    rows = read_json(folder / "answer.json")["rows"]
    return {row["name"]: row["accuracy"] for row in rows}


def test_the_metric_is_learned_unless_it_is_worse(
    run: Fit, tiny_bert: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuned encoder encodes the memory, too."""
    own = AutoModel.from_pretrained(tiny_bert).state_dict()
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=5"]
    with caplog.at_level(logging.INFO, logger="zoo"):
        # By half of the layers, then by all, which is behind on the first fold; then by the best of these once more.
        gains = iter([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
        monkeypatch.setattr(EncoderMetric, "_gains", lambda *_: np.array([next(gains)]))
        tuned = layer_weights(run("tuned", *options))
        assert "the encoder's metric is learned: 5 steps, half of the layers" in caplog.text
        # With steps of the user's, the first plan is given up last.
        for name, given, more in (
            ("forced", options, [-2.0, -1.0, -1.0]),
            ("kept", options[:1], [-2.0] * FOLDS),
        ):
            gains = iter([-1.0] * FOLDS + more)
            caplog.clear()
            kept = layer_weights(run(name, *given))
            assert "the encoder is as it was" in caplog.text
            assert next(gains, None) is None
        # All layers are ahead, and still more so in twice as many steps.
        gains = iter([1.0] * FOLDS + [2.0, 1.0] * FOLDS + [3.0, 2.0] * FOLDS + [3.0])
        run("far", options[0])
        first, *_, learned = re.findall(r"(\d+) steps, ", caplog.text)
        assert int(learned) == 2 * int(first)
    layers = [name for name in own if name.startswith("encoder.layer.1.")]
    assert layers
    assert all(torch.equal(kept[name], own[name]) for name in own if name in kept)
    assert not any(torch.equal(tuned[name], own[name]) for name in layers if name.endswith("dense.weight"))
    predictor = zoo.load("tuned")
    predictor.model.search_memory(predictor.data, predictor.memory)
    memory = predictor.model.network.memory.encoded
    texts = memory.memory.rows.texts[:10]
    np.testing.assert_allclose(predictor.encode(texts), memory.vectors[:10], atol=2e-2)


def test_the_reference_is_that_of_the_published_encoder(
    run: Fit, tiny_bert: Path, test_csv: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the table of the fit shows the gain of the learned metric; a test has no such vectors."""
    own = AutoModel.from_pretrained(tiny_bert).state_dict()
    gains = iter([1.0, 0.0, 1.0, 1.0] + [1.0] * FOLDS + [2.0, 1.0] * FOLDS + [2.0])
    monkeypatch.setattr(EncoderMetric, "_gains", lambda *_: np.array([next(gains)]))
    weights = {}
    for name, steps, *more in (("tuned", 14), ("plain", 0), ("adapted", 3, "--model.lora_rank=2")):
        folder = run(name, f"--model.transformer={tiny_bert}", f"--model.metric_steps={steps}", *more)
        weights[name] = ModelFolder.open(folder).weights()
        tested = done(zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={test_csv}")).out
        assert ("transformer as published" in tested) == (name == "plain")
        if name == "plain":  # no step leaves the encoder as it is
            assert all(torch.equal(value, own[key]) for key, value in layer_weights(folder).items())
    refusal(zoo_command("audit", folder), "low-rank adapters tuned (model.lora_rank) has no audit")
    planes = "network.members.regression.linear.weight"
    torch.testing.assert_close(weights["tuned"][planes], weights["plain"][planes], atol=2e-2, rtol=2e-2)


def test_texts_without_labels_are_learned_from(
    run: Fit, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With classes that rows outside of the fold give them; words of classes keep theirs."""
    texts = [text for text, _ in sentences(40, seed=7)]
    file = write_table(tmp_path / "texts.csv", [(text,) for text in texts], ["text"])
    learned: list[NDArray[np.int64]] = []
    monkeypatch.setattr(
        "zoo.ensemble.metric.learn_metric", lambda encoder, read, target, *_, **__: learned.append(target)
    )
    monkeypatch.setattr(EncoderMetric, "_likelihoods", lambda *_: np.zeros(1))
    monkeypatch.setattr("zoo.ensemble.fit.Guides.without_misleading", lambda guides, *_: guides)
    folder = run(
        "run", f"--model.transformer={tiny_bert}", "--model.metric_steps=5", f"--data.unlabelled_file={file}"
    )
    rows = len(zoo.load(folder).memory)
    distinct = len(set(texts))
    words = np.arange(len(ALL_LABELS))
    assert all(len(target) < rows for target in learned[-FOLDS:])  # the best plan without these texts
    for target in learned[:-FOLDS]:
        guides = target[-distinct - len(words) :]
        assert (guides[: len(words)] == words).all()
        assert set(guides[len(words) :]) <= set(words)
        assert len(target) - len(guides) < rows


def test_random_labels_stay_random(shared_run: Fit, tiny_bert: Path) -> None:
    """An encoder that has seen the rows would classify them nearly always right."""
    random = np.random.default_rng(0)
    rows = [(text, str(random.choice(LABELS))) for text, _ in sentences(150, seed=5)]
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=60", "--data.validation_split=0.4"]
    assert accuracies(shared_run(rows, *options))["all"] < 0.6


@pytest.mark.parametrize(
    "counts", [(1, 1), (1, 1, 1), (300, 3), (9, 1)], ids=lambda counts: "-".join(map(str, counts))
)
def test_few_rows_of_some_class(shared_run: Fit, tiny_bert: Path, counts: tuple[int, ...]) -> None:
    drawn = sentences(2000, seed=1, labels=ALL_LABELS)
    by_label = [[row for row in drawn if row[1] == label] for label in ALL_LABELS]
    rows = [row for count, of_label in zip(counts, by_label, strict=False) for row in of_label[:count]]
    options = [f"--model.transformer={tiny_bert}", "--data.validation_split=0", "--data.num_memories=20"]
    folder = shared_run(rows, *options)
    assert zoo.load(folder).predict(rows[0][0])[0].label in ALL_LABELS


def test_an_encoder_without_a_tokenizer_or_with_a_decoder(
    zoo_command: Zoo, train_csv: Path, tiny_bert: Path
) -> None:
    options = ["fit", *SMALL, f"--data.train_file={train_csv}", "--model.transformer"]
    config = T5Config(vocab_size=200, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(shutil.copytree(tiny_bert, "both"))
    refusal(zoo_command(*options, "both"), "has a decoder")
    for file in tiny_bert.glob("*token*"):
        file.unlink()
    refusal(zoo_command(*options, tiny_bert), tiny_bert, "tokenizer's files")


def test_an_encoder_without_pooling_layer_or_sentences(run: Fit, tiny_bert: Path) -> None:
    """A DistilBERT of random weights: another architecture, which no sentence has trained."""
    config = DistilBertConfig(vocab_size=200, dim=16, hidden_dim=16, n_layers=2, n_heads=2)
    DistilBertModel(config).save_pretrained(tiny_bert)
    folder = run("run", f"--model.transformer={tiny_bert}", "--model.metric_layers=1")
    assert "regression" in accuracies(folder)
