"""Starting from another model, frozen parts, learning rates of parts, and adapters."""

import logging
import runpy
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

import zoo
from datamodules import ClassificationDataModule, MatchingDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.table import read_table
from tests.zoo.conftest import LABELS, Fit, last, pair_rows, sentences, trainer, write_pairs, write_table
from tests.zoo.examples.test_readme import write_wikiqa
from zoo.model_folder.export import export
from zoo.registry import model_class
from zoo.tasks import encoders
from zoo.tasks.base import Task
from zoo.tasks.predictor import evaluating
from zoo.training.checkpoints import Start

OLD, NEW = ("metal", "fruit"), LABELS
keeping = partial(torch.optim.SGD, lr=0.0)
one_cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1e-3, total_steps=9)
SMALL: dict[str, dict[str, Any]] = {
    "KNNBiLSTM": {"hidden_size": 4, "word_size": 6, "characters": False, "features": "M1"},
    "TextCNN": {"word_size": 6, "windows": (2,), "filters": 4},
    "FastText": {"num_buckets": 20, "word_size": 6},
    "MemNet": {"word_size": 6, "hops": 1, "label_vectors": True},
    "CharCRNN": {"filters": 4, "hidden_size": 4, "windows": (3,)},
}
#: Data of models whose words are characters.
CHARACTERS = {"tokenizer": "characters", "characters": False, "max_length": 30}
DATA: dict[str, dict[str, Any]] = {"MemNet": {"num_memories": 2}, "CharCRNN": CHARACTERS}


def table(name: str, labels: tuple[str, ...], rows: int = 30, **options: Any) -> ClassificationDataModule:
    file = write_table(Path(f"{name}.csv"), sentences(rows, seed=len(labels), labels=labels))
    given: dict[str, Any] = {"num_memories": 0, "characters": False, "validation_split": 3, "batch_size": 8}
    return ClassificationDataModule(train_file=str(file), **given | options)


def train(model: Task, data: Any, **options: Any) -> Task:
    pl.seed_everything(1, verbose=False)
    run = trainer(**{"max_epochs": 1, "limit_train_batches": 1, "limit_val_batches": 1, **options})
    run.fit(model, datamodule=data)
    return model


def train_bert(bert: Path, max_epochs: int = 1, **options: Any) -> Task:
    """A classifier by the transformer in a folder."""
    model = zoo.KNNBiLSTM(transformer=str(bert), features="M1", **options)
    return train(model, table("new", NEW, tokenizer=str(bert)), max_epochs=max_epochs)


def keep(model: Task, name: str = "old.ckpt") -> Start:
    model.trainer.save_checkpoint(name)
    model.save(Path(name).with_suffix(""), model.trainer.datamodule)  # type: ignore[attr-defined]
    return Start.open(name)


def weights(model: Task) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", SMALL)
def test_old_classes_keep_rows_and_new_ones_get_own(name: str, caplog: pytest.LogCaptureFixture) -> None:
    options, kind = SMALL[name], model_class(name)
    start = keep(train(kind(**options), table("old", OLD, **DATA.get(name, {}))))
    words = start.meta.data.vocabulary["words"]
    model = kind(**options, init_from="old.ckpt", optimizer=keeping)
    caplog.set_level(logging.INFO, logger="zoo")
    train(model, table("new", NEW, **DATA.get(name, {})))
    state, data = model.state_dict(), model.data_state
    labels, old_labels = data.facts["labels"], start.meta.data.facts["labels"]
    assert labels != old_labels
    for weight in [name for name in state if name.startswith("network.classifier.")]:
        for label in OLD:
            row = state[weight][labels.index(label)]
            assert torch.equal(row, start.weights[weight][old_labels.index(label)]), weight
    tables = [name for name in state if name.endswith((".words.table", "network.characters.weight"))]
    assert tables
    for weight in tables:
        for row, word in enumerate(data.vocabulary["words"]):
            if word in words:
                assert torch.equal(state[weight][row], start.weights[weight][words.index(word)]), word
    assert "fruit, metal" in caplog.text
    assert "new here" in caplog.text


def test_rows_of_hashed_numbers_are_taken_only_where_the_numbers_mean_the_same() -> None:
    """Buckets of word pairs and columns of a one-hot convolution belong to one vocabulary."""
    options = SMALL["FastText"]
    old = train(zoo.FastText(**options), table("old", OLD))
    keep(old)
    for data, same in ((table("old", OLD), True), (table("new", NEW), False)):
        model = train(zoo.FastText(**options, init_from="old.ckpt", optimizer=keeping), data)
        buckets = next(name for name in weights(model) if name.endswith("bigrams.table"))
        assert torch.equal(weights(model)[buckets], weights(old)[buckets]) == same


def test_votes_of_a_grown_set_of_labels(caplog: pytest.LogCaptureFixture) -> None:
    """KNNBiLSTM's label feature has a column for each perspective and class: each is taken by name."""
    options = {**SMALL["KNNBiLSTM"], "features": "M5", "num_perspectives": 2}
    old = train(zoo.KNNBiLSTM(**options), table("old", OLD, num_memories=2))
    keep(old)
    model = zoo.KNNBiLSTM(**options, init_from="old.ckpt", optimizer=keeping)
    train(model, table("new", NEW, num_memories=2))
    before, after = (each.network.classifier.weight.detach() for each in (old, model))
    (old_labels, labels), size = (each.data_state.facts["labels"] for each in (old, model)), 8
    for label in OLD:
        source, target = before[old_labels.index(label)], after[labels.index(label)]
        assert torch.equal(source[:size], target[:size])
        for view in range(2):
            for memory in OLD:
                column = size + view * 3 + labels.index(memory)
                assert target[column] == source[size + view * 2 + old_labels.index(memory)]
            assert target[size + view * 3 + labels.index("weather")] == 0
    assert after[labels.index("weather")].abs().min() > 0


def test_a_classifier_starts_from_a_matcher(tiny_bert: Path) -> None:
    """Only the transformer is taken from a model of another task."""
    pairs = write_pairs(Path("pairs.tsv"), pair_rows(12, seed=1))
    data = MatchingDataModule(train_file=str(pairs), tokenizer=str(tiny_bert), validation_split=0.3)
    old = train(zoo.TransformerMatcher(transformer=str(tiny_bert), mode="bi"), data)
    keep(old)
    after, before = weights(train_bert(tiny_bert, freeze=["encoder"], init_from="old.ckpt")), weights(old)
    taken = [name for name in after if ".transformer." in name]
    assert taken
    assert all(torch.equal(after[name], before[name]) for name in taken)


def test_a_start_from_which_no_weight_fits_is_refused(tiny_bert: Path) -> None:
    keep(train(zoo.TextCNN(**SMALL["TextCNN"]), table("old", OLD)))
    with pytest.raises(InputError, match=r"init_from=old\.ckpt: is a TextCNN, none of whose weights fit"):
        train_bert(tiny_bert, init_from="old.ckpt")
    with pytest.raises(InputError, match=r"model\.init_from: a Majority has no trained weights"):
        train(zoo.Majority(init_from="old.ckpt"), table("old", OLD))


def test_words_of_the_start_are_kept_although_the_new_rows_lack_them(fit: Fit, tmp_path: Path) -> None:
    start = Start.open(str(last(fit("start", "--model.features=M1"))))
    few = write_table(tmp_path / "few.csv", sentences(9, seed=3))
    run = fit(
        "few", "--model.features=M1", "--model.init_from=start/checkpoints/last.ckpt", f"--data.train_file={few}",
        "--data.validation_split=1", "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.0",
    )  # fmt: skip
    after = Start.open(str(last(run)))
    before, words = (each.meta.data.vocabulary["words"] for each in (start, after))
    table = "network.encoder.words.table"
    assert len(before) > 30 > len({word for text, _ in sentences(9, seed=3) for word in text.split()})
    for word in before:
        row, rows = after.weights[table][words.index(word)], start.weights[table]
        assert torch.equal(row, rows[before.index(word)]), word


def test_frozen_parts_do_not_change() -> None:
    options = {**SMALL["KNNBiLSTM"], "dropout": 0.5}
    start = keep(train(zoo.KNNBiLSTM(**options), table("old", OLD)))
    model = zoo.KNNBiLSTM(**options, init_from="old.ckpt", freeze=["encoder.[!l]*", "*.lstm"])
    train(model, table("old", OLD))
    before, after = start.weights, weights(model)
    same = {name for name in after if torch.equal(before[name], after[name])}
    assert same == {name for name in after if ".encoder." in name}
    # `train` leaves frozen parts in evaluation mode.
    model.train()
    assert not model.network.encoder.dropout.training
    assert not model.network.encoder.lstm.training
    assert model.network.classifier.training


def test_a_head_is_frozen_where_all_its_labels_are_known() -> None:
    start = keep(train(zoo.KNNBiLSTM(**SMALL["KNNBiLSTM"]), table("old", OLD)))
    options = {**SMALL["KNNBiLSTM"], "init_from": "old.ckpt", "freeze": ["classifier"]}
    model = train(zoo.KNNBiLSTM(**options), table("old", OLD))
    name = "network.classifier.weight"
    assert torch.equal(weights(model)[name], start.weights[name])
    columns = {**options, "features": "M5"}, table("old", OLD, num_memories=2)
    for given, data in ((options, table("new", NEW)), columns):
        with pytest.raises(InputError, match=r"has no classifier\.weight of this shape"):
            train(zoo.KNNBiLSTM(**given), data)


def test_freeze_and_freeze_encoder_are_equal(tiny_bert: Path) -> None:
    results = []
    for more in ({"freeze": ["encoder"]}, {"freeze_encoder": True}):
        model = train_bert(tiny_bert, **more)
        data = model.trainer.datamodule  # type: ignore[attr-defined]
        dataset = data.dataset(data.split("train"), model.batch_contents("train"))
        assert dataset.__getitems__([0]).text_vector is not None
        results.append(weights(model))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_a_prediction_during_training_changes_no_mode(tiny_bert: Path) -> None:
    """Callbacks that show predictions would otherwise switch on the dropout of frozen parts."""
    frozen = "encoder.transformer.embeddings"
    model = train_bert(tiny_bert, freeze=[frozen])
    before = {name: module.training for name, module in model.named_modules()}
    # Only the frozen part is in evaluation mode.
    evaluated = {name for name, training in before.items() if not training}
    assert evaluated == {name for name in before if name.startswith(f"network.{frozen}")}
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert {name: module.training for name, module in model.named_modules()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"freeze": ["decoder"]},
            r"model\.freeze: the network has no 'decoder'; it has classifier, .*encoder",
        ),
        ({"learning_rates": {"decoder": 0.1}}, r"model\.learning_rates: the network has no 'decoder'"),
        ({"learning_rates": {"encoder": 0.0}}, r"model\.learning_rates: encoder=0\.0: must be above 0"),
        ({"freeze": ["encoder"]}, r"model\.freeze_encoder is on, but the encoder's weights are fresh"),
        ({"freeze": ["encoder.lstm"]}, r"model\.freeze: the weights of encoder\.lstm.* are fresh"),
        ({"freeze": ["*"], "init_from": "old.ckpt"}, "no weight is left to train"),
        (
            {"freeze": ["encoder"], "learning_rates": {"encoder.lstm": 0.1}, "init_from": "old.ckpt"},
            "encoder.lstm is not trained",
        ),
        (
            {"learning_rates": {"encoder": 1e-5}, "lr_scheduler": one_cycle},
            "OneCycleLR has one rate for all weights",
        ),
    ],
)
def test_parts_that_are_refused(options: dict[str, Any], message: str) -> None:
    if "init_from" in options:
        keep(train(zoo.KNNBiLSTM(**SMALL["KNNBiLSTM"]), table("old", OLD)))
    with pytest.raises(InputError, match=message):
        train(zoo.KNNBiLSTM(**SMALL["KNNBiLSTM"], **options), table("old", OLD))


def test_each_part_has_its_rate_and_a_schedule_applies_to_all() -> None:
    parts = {"encoder": 0.01, "encoder.words": 0.1}
    sgd = partial(torch.optim.SGD, lr=1.0)
    halving = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    options = {"learning_rates": parts, "optimizer": sgd, "lr_scheduler": halving}
    model = zoo.KNNBiLSTM(**SMALL["KNNBiLSTM"], **options)
    train(model, table("old", OLD), max_epochs=2)
    rates = {id(each): group["lr"] for group in model.optimizers().param_groups for each in group["params"]}
    by_name = {name: rates[id(weight)] for name, weight in model.named_parameters()}
    assert by_name.pop("network.encoder.words.table") == pytest.approx(0.1 / 4)
    for name, rate in by_name.items():
        assert rate == pytest.approx(0.01 / 4 if ".encoder." in name else 1.0 / 4), name


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_rates_of_tables_that_are_updated_by_rows(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for smallest in (5000, 0):
        monkeypatch.setattr(encoders, "MANY_ROWS", smallest)
        rates = {"learning_rates": {"encoder.words": 0.3}, "optimizer": partial(optimizer, lr=0.01)}
        model = zoo.KNNBiLSTM(**SMALL["KNNBiLSTM"], **rates)
        train(model, table("old", OLD), max_epochs=2, limit_train_batches=1.0)
        results.append(weights(model))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-4, atol=1e-5)


def train_adapters(tiny_bert: Path) -> Task:
    """A classifier whose transformer was trained by adapters, kept in `lora.ckpt`."""
    pytest.importorskip("peft")
    adam = partial(torch.optim.Adam, lr=0.05)
    model = train_bert(tiny_bert, max_epochs=3, lora_rank=2, optimizer=adam)
    keep(model, "lora.ckpt")
    return model


TEXTS = [text for text, _ in sentences(6, seed=9)]


def probabilities(source: Any) -> torch.Tensor:
    return torch.tensor(
        [list(each.probabilities.values()) for each in zoo.load(source).predict(TEXTS)], dtype=torch.float64
    )


def test_only_adapters_are_trained(tiny_bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="zoo")
    adapted = train_adapters(tiny_bert)
    from transformers import AutoModel

    before = AutoModel.from_pretrained(tiny_bert).state_dict()
    transformer = adapted.network.encoder.transformer
    names = {name for name, weight in transformer.named_parameters() if weight.requires_grad}
    assert names
    assert all(".lora_" in name for name in names)
    assert all(weight.abs().max() > 0 for name, weight in transformer.named_parameters() if name in names)
    assert not [name for name in names if name.startswith("pooler")]
    for name, weight in transformer.named_parameters():
        if name not in names:
            assert torch.equal(weight, before[name.replace(".base_layer.", ".")]), name
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert f"trained: {trained:,} of " in caplog.text


@pytest.mark.usefixtures("float32")
def test_a_model_trained_by_adapters_is_used_without_peft_and_its_start(
    tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_adapters(tiny_bert)
    expected = probabilities("lora")
    folder = export(tmp_path / "lora", tmp_path / "model")
    keep(train_bert(tiny_bert, init_from="lora.ckpt", optimizer=keeping), "plain.ckpt")
    monkeypatch.setitem(sys.modules, "peft", None)
    tiny_bert.rename(tiny_bert.with_name("gone"))
    for source in (folder, "plain", "lora"):
        torch.testing.assert_close(probabilities(source), expected, rtol=1e-4, atol=1e-6)


def test_adapters_start_from_a_model_without(tiny_bert: Path) -> None:
    pytest.importorskip("peft")
    keep(train_bert(tiny_bert))
    keep(train_bert(tiny_bert, lora_rank=2, init_from="old.ckpt", optimizer=keeping), "lora.ckpt")
    torch.testing.assert_close(probabilities("lora"), probabilities("old"))


def test_frozen_adapters_are_refused(tiny_bert: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(InputError, match=r"model\.lora_rank trains parts that model\.freeze"):
        train_bert(tiny_bert, lora_rank=2, freeze=["encoder.transformer"])


def test_tables_of_the_example_share_no_text(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "examples" / "fine_tuning"
    cut = runpy.run_path(str(page / "cut.py"))["main"]
    whole = write_table(tmp_path / "whole.csv", [*sentences(200, seed=1), *sentences(20, seed=1)])
    sizes = ["--rows=12", "--test_rows=30", "--source_rows=50"]
    cut([str(whole), str(tmp_path / "cut"), "--source=fruit,metal", f"--target={','.join(NEW)}", *sizes])
    tables = {name: read_table(tmp_path / "cut" / f"{name}.csv") for name in ("few", "dev", "test", "source")}
    assert [len(rows) for rows in tables.values()] == [12, 12, 30, 50]
    texts = [text for rows in tables.values() for text in rows.texts[:]]
    assert len(set(texts)) == len(texts)
    labels = {name: Counter(rows.labels) for name, rows in tables.items()}
    assert labels["few"] == dict.fromkeys(NEW, 4)
    assert labels["source"].keys() == {"fruit", "metal"}
    pairs = write_wikiqa(tmp_path / "WikiQA.tsv")
    cut(["--questions", str(pairs), str(tmp_path / "questions"), "--rows=5"])
    files = [tmp_path / "questions" / f"{name}.tsv" for name in ("few", "dev", "test")]
    questions = [{line.split("\t")[0] for line in file.read_text().splitlines()[1:]} for file in files]
    assert [len(part) for part in questions] == [5, 5, 10]
    assert len(set.union(*questions)) == 20
