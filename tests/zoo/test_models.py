"""What holds for every model of the zoo, whatever its task and whatever is inside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

import zoo
from callbacks import RunFolder, Throughput
from tests.zoo.adapters import ADAPTERS, Adapter
from zoo.tasks.base import Task
from zoo.tasks.fitted import Fitted


@dataclass(frozen=True, eq=False)
class Case:
    """A model with some options, on the data of a kind of task."""

    kind: str
    name: str
    options: dict[str, Any]


def parameter(kind: str, name: str, variant: str, options: dict[str, Any]) -> Any:
    label = "-".join(filter(None, (kind, name, variant)))
    # One process does all tests of a case, since they share what is made for it.
    return pytest.param(Case(kind, name, options), id=label, marks=pytest.mark.xdist_group(label))


CASES = [
    parameter(kind, name, variant, options)
    for kind, adapter in ADAPTERS.items()
    for name, variants in adapter.variants.items()
    for variant, options in variants.items()
]
#: Those that learn by gradients alone.
LEARNERS = [case for case in CASES if not hasattr(zoo.list_models()[case.values[0].name], "fit_to")]

every_model = pytest.mark.parametrize("case", CASES)
every_learner = pytest.mark.parametrize("case", LEARNERS)


def test_every_model_is_tested() -> None:
    # A transformer comes from a folder: tests/zoo/baselines/test_transformer_matcher.py asks the same of it.
    tested = {name for adapter in ADAPTERS.values() for name in adapter.variants}
    assert tested | {"TransformerMatcher"} == set(zoo.list_models())


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """kind -> its adapter, made when it is asked for."""
    return cache(lambda kind: ADAPTERS[kind](tmp_path_factory.mktemp("models")))


@pytest.fixture
def adapter(case: Case, adapters: Any) -> Adapter:
    made: Adapter = adapters(case.kind)
    return made


def new_model(case: Case) -> Any:
    pl.seed_everything(5, verbose=False)
    return zoo.list_models()[case.name](**case.options)


@pytest.fixture(scope="module")
def models(adapters: Any) -> Any:
    """case -> its model, with weights that are drawn, or fitted."""

    def build(case: Case) -> Any:
        model, data = new_model(case), adapters(case.kind).data
        model._build(data.spec, None, None)
        # Weights that start at zero (attention, gates) would hide what does not depend on them yet.
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad and not weight.any() and not hasattr(model, "fit_to"):
                    weight.normal_(std=0.3)
        if hasattr(model, "fit_to"):
            data.with_strings = model.reads_strings
            data.with_memory_texts = model.reads_memory_texts
            model.fit_to(data)
        return model.eval()

    return cache(build)


@pytest.fixture
def model(case: Case, models: Any) -> Task:
    """A copy that a test may change."""
    model = deepcopy(models(case))
    pl.seed_everything(5, verbose=False)
    assert isinstance(model, Task)
    return model


def say(adapter: Adapter, model: Task, batch: Any) -> Tensor:
    with torch.no_grad():
        found = adapter.results(model, batch)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    return found


def trained(model: Task) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


# --- runs ---


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    return pl.Trainer(default_root_dir=folder, **given)


class Run(NamedTuple):
    model: Any
    trainer: pl.Trainer
    checkpoint: Path


def train(case: Case, adapter: Adapter, folder: Path, *callbacks: pl.Callback) -> Run:
    """One epoch."""
    model, run = new_model(case), trainer(folder, max_epochs=1, callbacks=list(callbacks))
    run.fit(model, datamodule=adapter.data)
    run.save_checkpoint(folder / "model.ckpt")
    return Run(model, run, folder / "model.ckpt")


@pytest.fixture(scope="module")
def runs(adapters: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """case -> its run without callbacks."""
    return cache(lambda case: train(case, adapters(case.kind), tmp_path_factory.mktemp("run")))


@pytest.fixture
def run(case: Case, runs: Any) -> Run:
    made: Run = runs(case)
    return made


@every_model
def test_a_run_of_an_epoch(run: Run) -> None:
    if isinstance(run.model, Fitted):
        assert run.trainer.global_step == 1
    else:
        # An ensemble has stages with steps of their own.
        assert run.trainer.global_step >= run.trainer.num_training_batches > 1
    metrics = run.trainer.callback_metrics
    assert math.isfinite(metrics["val/loss"])
    assert max(metrics.get(f"val/{name}", 0) for name in ("rows", "pairs", "questions", "queries")) > 3


@every_model
def test_loads_alone_with_the_same_outputs(case: Case, run: Run, adapter: Adapter) -> None:
    loaded = zoo.load(run.checkpoint).model
    assert type(loaded) is type(run.model)
    assert torch.equal(say(adapter, loaded, adapter.batch), say(adapter, run.model.eval(), adapter.batch))
    contents = torch.load(run.checkpoint, weights_only=True)
    assert contents["memory_zoo"]["model"] == case.name
    assert contents["memory_zoo"]["spec"] == adapter.data.spec._asdict()


@every_learner
def test_callbacks_change_no_weight(case: Case, run: Run, adapter: Adapter, tmp_path: Path) -> None:
    watched = train(case, adapter, tmp_path, RunFolder(tmp_path / "run", {"a": 1}), Throughput())
    assert (tmp_path / "run" / "summary.json").exists()
    weights, expected = watched.model.state_dict(), run.model.state_dict()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


# --- learning ---


@every_learner
def test_overfits_one_batch(model: Task, adapter: Adapter) -> None:
    batch = adapter.learnable(adapter.batch)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(400):
        optimizer.zero_grad()
        loss = adapter.loss(model, batch)
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    assert loss < 0.2
    with torch.no_grad():
        if any("running_mean" in name for name, _ in model.named_buffers()):
            for _ in range(50):  # what evaluation normalises by lags behind the weights
                adapter.loss(model, batch)
        assert adapter.is_learned(model.eval(), batch)


@every_learner
def test_every_trained_parameter_gets_a_gradient(model: Task, adapter: Adapter) -> None:
    # Each number by itself: a bias after the last layer has no say in which of two pairs is first.
    found = adapter.results(model, adapter.batch)
    (found * torch.linspace(-1, 2, found.numel()).view_as(found)).sum().backward()
    for name, weight in trained(model):
        assert weight.grad is not None, name
        gradient = weight.grad.to_dense()
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


# --- what changes nothing ---


@every_model
def test_rows_differ(case: Case, model: Task, adapter: Adapter) -> None:
    """Or the tests of what changes nothing would test nothing."""
    if case.name in ("Majority", "RandomOrder"):
        pytest.skip("says the same of every row")
    found = say(adapter, model, adapter.batch)
    assert len(torch.unique(found, dim=0)) > 1


@every_model
def test_padding_changes_nothing(model: Task, adapter: Adapter) -> None:
    assert_close(say(adapter, model, adapter.padded(adapter.batch)), say(adapter, model, adapter.batch))


@every_model
def test_what_is_behind_a_mask_changes_nothing(model: Task, adapter: Adapter) -> None:
    for batch in adapter.hidden(adapter.batch):
        assert torch.equal(say(adapter, model, batch), say(adapter, model, adapter.batch))


@every_model
def test_other_rows_of_the_batch_change_nothing(model: Task, adapter: Adapter) -> None:
    together = say(adapter, model, adapter.batch)
    for row in range(len(together)):
        assert_close(say(adapter, model, adapter.alone(adapter.batch, row))[0], together[row])


@every_model
def test_orders_change_nothing(model: Task, adapter: Adapter) -> None:
    """Of rows, of memories, of words in a batch's table."""
    found = say(adapter, model, adapter.batch)
    for batch, order in adapter.reordered(adapter.batch):
        assert_close(say(adapter, model, batch), found[order])


@every_model
def test_texts_and_memories_of_nothing_are_finite(model: Task, adapter: Adapter) -> None:
    found = say(adapter, model, adapter.batch)
    for batch, unaware in adapter.emptied(adapter.batch):
        model.zero_grad()
        results = adapter.results(model, batch)
        assert results.isfinite().all()
        assert_close(results.detach()[unaware], found[unaware])
        if results.requires_grad:
            results.sum().backward()
            assert all(
                weight.grad.isfinite().all() for _, weight in trained(model) if weight.grad is not None
            )


# --- precision ---


@every_learner
def test_bfloat16_is_close_to_float32(model: Task, adapter: Adapter) -> None:
    exact = say(adapter, model, adapter.batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = say(adapter, model, adapter.batch)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
