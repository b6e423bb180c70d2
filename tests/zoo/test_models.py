"""What holds for every classifier of the zoo, whatever is inside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional

import zoo
from callbacks import RunFolder, Throughput
from datamodules import ClassificationDataModule
from datamodules.batch import ClassificationBatch
from tests.zoo.conftest import sentences, write_table
from zoo.tasks.classification import ClassificationTask

SIZES = {"hidden_size": 8, "word_size": 10, "char_size": 4, "char_hidden_size": 6, "num_perspectives": 3}

#: model -> name of a variant -> constructor arguments. A new model adds its line.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "KNNBiLSTM": {
        **{
            features: {**SIZES, "features": features}
            for features in ("M1", "M2", "M3", "M4", "M5", "M6", "M7")
        },
        "plain-cosine": {**SIZES, "num_perspectives": 0},
        "no-characters": {**SIZES, "characters": False},
        "sharp": {**SIZES, "features": "M5", "attention": "softmax", "text_dropout": 0.5},
    },
}

CASES = [
    pytest.param(name, options, id=f"{name}-{variant}")
    for name, variants in VARIANTS.items()
    for variant, options in variants.items()
]
every_model = pytest.mark.parametrize(("name", "options"), CASES)


def test_every_model_is_tested() -> None:
    assert set(VARIANTS) == {
        name for name, model in zoo.list_models().items() if issubclass(model, ClassificationTask)
    }


# --- a model on the data of 60 texts, and a batch of them ---


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ClassificationDataModule:
    folder = tmp_path_factory.mktemp("models")
    data = ClassificationDataModule(
        train_file=str(write_table(folder / "train.csv", sentences(60, seed=3))),
        validation_split=0.2,
        num_memories=3,
        batch_size=12,
        cache_dir=str(folder / "cache"),
        seed=0,
    )
    data.prepare_data()
    data.setup("fit")
    return data


def fresh_model(
    name: str, options: dict[str, Any], data: ClassificationDataModule, **more: Any
) -> ClassificationTask:
    pl.seed_everything(5, verbose=False)
    model: Any = zoo.list_models()[name](**{**options, **more})
    model._build(data.spec, None, None)
    model.data_state = data.state()
    return model.eval()


@pytest.fixture
def model(name: str, options: dict[str, Any], data: ClassificationDataModule) -> ClassificationTask:
    return fresh_model(name, options, data)


@pytest.fixture(scope="module")
def batch(data: ClassificationDataModule) -> ClassificationBatch:
    """A batch in which one text has no memory, one has two, one memory's label is unknown."""
    batch = next(iter(data.train_dataloader()))
    mask = batch.memory_mask.clone()
    assert mask.all()
    mask[0] = False
    mask[1, 2] = False
    target = batch.memory_target.masked_fill(~mask, -100)
    target[2, 0] = -100
    return batch._replace(
        memory_mask=mask,
        memory_target=target,
        memory=batch.memory.masked_fill(~mask, 0),
        memory_score=batch.memory_score.masked_fill(~mask, 0),
    )


def logits_of(model: ClassificationTask, batch: ClassificationBatch) -> Tensor:
    with torch.no_grad():
        return model(batch).logits


# --- training ---


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        **silent,
        **options,
    }
    return pl.Trainer(default_root_dir=folder, **given)


def trained(model: ClassificationTask) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


@every_model
def test_fast_dev_run(
    name: str, options: dict[str, Any], data: ClassificationDataModule, tmp_path: Path
) -> None:
    run = trainer(tmp_path, fast_dev_run=2)
    run.fit(zoo.list_models()[name](**options), datamodule=data)
    assert run.global_step == 2
    assert math.isfinite(run.callback_metrics["train/loss"])
    assert run.callback_metrics["val/rows"] == 12


@every_model
def test_overfits_one_batch(model: ClassificationTask, batch: ClassificationBatch) -> None:
    # A row without memories gives a model that sees nothing but memories nothing to learn from.
    rows = torch.arange(3, len(batch.target))
    batch = batch._replace(
        **{
            key: getattr(batch, key)[rows]
            for key in batch._fields
            if getattr(batch, key) is not None and len(getattr(batch, key)) == len(batch.target)
        }
    )
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch).logits, batch.target)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert (logits_of(model, batch).argmax(dim=1) == batch.target).all()


@every_model
def test_every_trained_parameter_gets_a_gradient(
    model: ClassificationTask, batch: ClassificationBatch
) -> None:
    functional.cross_entropy(model(batch).logits, batch.target).backward()
    for name, weight in trained(model):
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


@every_model
def test_callbacks_change_no_weight(
    name: str, options: dict[str, Any], data: ClassificationDataModule, tmp_path: Path
) -> None:
    weights = []
    for callbacks in ([], [RunFolder(tmp_path / "run", {"a": 1}), Throughput()]):
        pl.seed_everything(5, verbose=False)
        model = zoo.list_models()[name](**options, dropout=0.3)
        trainer(tmp_path, max_epochs=1, callbacks=callbacks).fit(model, datamodule=data)
        weights.append(model.state_dict())
    assert (tmp_path / "run" / "summary.json").exists()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


# --- masks ---


@every_model
def test_padding_changes_nothing(model: ClassificationTask, batch: ClassificationBatch) -> None:
    padded = batch._replace(
        char=functional.pad(batch.char, (0, 3)),
        text=functional.pad(batch.text, (0, 4)),
        memory_text=functional.pad(batch.memory_text, (0, 5)),
    )
    torch.testing.assert_close(logits_of(model, padded), logits_of(model, batch), rtol=1e-5, atol=1e-6)


@every_model
def test_memories_behind_the_mask_change_nothing(
    model: ClassificationTask, batch: ClassificationBatch
) -> None:
    hidden = ~batch.memory_mask
    other = batch._replace(
        memory=torch.where(hidden, len(batch.memory_text) - 1, batch.memory),
        memory_score=torch.where(hidden, 99.0, batch.memory_score),
        memory_target=torch.where(hidden, 1, batch.memory_target),
    )
    torch.testing.assert_close(logits_of(model, other), logits_of(model, batch), rtol=0, atol=0)


@every_model
def test_other_rows_of_the_batch_change_nothing(
    model: ClassificationTask, batch: ClassificationBatch
) -> None:
    together = logits_of(model, batch)
    shared = ("word", "char", "memory_text", "text_vector", "memory_vector")
    by_row = [key for key in batch._fields if key not in shared]
    for row in range(len(batch.target)):
        alone = batch._replace(**{key: getattr(batch, key)[row : row + 1] for key in by_row})
        torch.testing.assert_close(logits_of(model, alone)[0], together[row], rtol=1e-5, atol=1e-6)


@every_model
def test_order_of_memories_changes_nothing(model: ClassificationTask, batch: ClassificationBatch) -> None:
    order = torch.tensor([2, 0, 1])
    fields = ("memory", "memory_mask", "memory_score", "memory_target")
    shuffled = batch._replace(**{key: getattr(batch, key)[:, order] for key in fields})
    torch.testing.assert_close(logits_of(model, shuffled), logits_of(model, batch), rtol=1e-5, atol=1e-6)


@every_model
def test_no_memory_at_all_is_finite(model: ClassificationTask, batch: ClassificationBatch) -> None:
    none = batch._replace(
        memory=torch.zeros_like(batch.memory),
        memory_mask=torch.zeros_like(batch.memory_mask),
        memory_score=torch.zeros_like(batch.memory_score),
        memory_target=torch.full_like(batch.memory_target, -100),
    )
    for given in (none, none._replace(memory_text=batch.memory_text[:0])):
        output = model(given)
        assert output.logits.isfinite().all()
        assert (output.memory_weight == 0).all()
        output.logits.sum().backward()
        assert all(weight.grad.isfinite().all() for _, weight in trained(model) if weight.grad is not None)


@every_model
def test_a_text_without_words_is_finite(model: ClassificationTask, batch: ClassificationBatch) -> None:
    text = batch.text.clone()
    text[0] = 0
    logits = model(batch._replace(text=text)).logits
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(weight.grad.isfinite().all() for _, weight in trained(model) if weight.grad is not None)


# --- checkpoints and precision ---


@every_model
def test_loads_alone_with_the_same_outputs(
    name: str,
    options: dict[str, Any],
    data: ClassificationDataModule,
    batch: ClassificationBatch,
    tmp_path: Path,
) -> None:
    model = zoo.list_models()[name](**options)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(model, datamodule=data)
    run.save_checkpoint(tmp_path / "model.ckpt")
    loaded = zoo.load(tmp_path / "model.ckpt").model
    assert type(loaded) is type(model)
    assert torch.equal(logits_of(loaded, batch), logits_of(model.eval(), batch))
    contents = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert contents["memory_zoo"]["model"] == name
    assert contents["memory_zoo"]["spec"]["labels"] == data.spec.labels


@every_model
def test_bfloat16_is_close_to_float32(model: ClassificationTask, batch: ClassificationBatch) -> None:
    exact = logits_of(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits_of(model, batch)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)  # autocast had an effect
    torch.testing.assert_close(rounded, exact, rtol=0.03, atol=0.03)
