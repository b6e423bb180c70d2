"""Tests that every model of the zoo passes, of any task and any inner structure."""

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
from callbacks import Charts, GradientNorms, PredictionTable, RunFolder, Throughput
from tests.zoo.adapters import ADAPTERS, Adapter
from tests.zoo.conftest import trainer
from zoo.ensemble.model import MemoryEnsemble
from zoo.registry import MODELS, model_class
from zoo.runs.finishing import fit
from zoo.tasks.base import Task
from zoo.tasks.fitted import Fitted
from zoo.tasks.model import Given


@dataclass(frozen=True, eq=False)
class Case:
    """A model with some options, on the data of a kind of task."""

    kind: str
    name: str
    options: dict[str, Any]


def parameter(kind: str, name: str, variant: str, options: dict[str, Any]) -> Any:
    label = "-".join(filter(None, (kind, name, variant)))
    # One process runs all tests of a case, which share its model.
    return pytest.param(Case(kind, name, options), id=label, marks=pytest.mark.xdist_group(label))


CASES = [
    parameter(kind, name, variant, options)
    for kind, adapter in ADAPTERS.items()
    for name, variants in adapter.variants.items()
    for variant, options in variants.items()
]
#: Models with parts that are fitted without gradients.
FITTED = {name for name in MODELS if issubclass(model_class(name), Fitted | MemoryEnsemble)}
LEARNERS = [case for case in CASES if case.values[0].name not in FITTED]


def first_variants(cases: list[Any]) -> list[Any]:
    """One case of each kind and model: what is the same for all options of a model."""
    return list({(case.values[0].kind, case.values[0].name): case for case in reversed(cases)}.values())[::-1]


every_variant = pytest.mark.parametrize("case", CASES)
every_learning_variant = pytest.mark.parametrize("case", LEARNERS)
every_model = pytest.mark.parametrize("case", first_variants(CASES))
every_learner = pytest.mark.parametrize("case", first_variants(LEARNERS))
#: The first model of each kind, for what is the same for all of them; M1 reads no memory.
READERS = [case for case in LEARNERS if case.values[0].options.get("features") != "M1"]
every_kind = pytest.mark.parametrize("case", list({c.values[0].kind: c for c in reversed(READERS)}.values()))


def test_every_model_is_tested() -> None:
    # A transformer needs a folder: tests/zoo/baselines/test_transformer_matcher.py has the same tests.
    tested = {name for adapter in ADAPTERS.values() for name in adapter.variants}
    assert tested | {"TransformerMatcher"} == set(MODELS)


@pytest.fixture
def adapter(case: Case, adapters: Any) -> Adapter:
    return adapters(case.kind)


def new_model(case: Case) -> Any:
    pl.seed_everything(5, verbose=False)
    return model_class(case.name)(**case.options)


@pytest.fixture(scope="module")
def models(adapters: Any, runs: Any) -> Any:
    """case -> its model: with random weights, or fitted."""

    def build(case: Case) -> Any:
        if case.name in FITTED:
            return zoo.load(runs(case).saved).model
        model = new_model(case)
        model._build(Given(adapters(case.kind).data.spec))
        # Weights that start at zero (attention, gates) would hide their inputs.
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad and not weight.any():
                    weight.normal_(std=0.3)
        return model.eval()

    return cache(build)


@pytest.fixture
def model(case: Case, models: Any) -> Task:
    """A copy that a test may change."""
    model = deepcopy(models(case))
    pl.seed_everything(5, verbose=False)
    return model


def evaluate(adapter: Adapter, model: Task, batch: Any) -> Tensor:
    with torch.no_grad():
        results = adapter.results(model, batch)
    assert results.dtype == torch.float32
    assert results.isfinite().all()
    return results


def trained(model: Task) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def assert_close(results: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=2e-6)


class Run(NamedTuple):
    model: Any
    trainer: pl.Trainer
    checkpoint: Path
    #: the model folder.
    saved: Path


def train(case: Case, adapter: Adapter, folder: Path, *callbacks: pl.Callback) -> Run:
    model, run = new_model(case), trainer(folder, max_epochs=1, callbacks=list(callbacks))
    fit(run, model, adapter.data)
    run.save_checkpoint(folder / "model.ckpt")
    model.save(folder / "saved", adapter.data)
    return Run(model, run, folder / "model.ckpt", folder / "saved")


@pytest.fixture(scope="module")
def runs(adapters: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """case -> its run without callbacks."""
    return cache(lambda case: train(case, adapters(case.kind), tmp_path_factory.mktemp("run")))


@pytest.fixture
def run(case: Case, runs: Any) -> Run:
    return runs(case)


@every_model
def test_a_run_of_an_epoch(run: Run) -> None:
    if not run.model.has_epochs:
        assert run.trainer.global_step == run.trainer.current_epoch == 0
    else:
        assert run.trainer.global_step == run.trainer.num_training_batches > 1
    metrics = run.trainer.callback_metrics
    assert math.isfinite(metrics["val/loss"])
    assert max(metrics.get(f"val/{name}", 0) for name in ("rows", "pairs", "questions", "queries")) > 3


@every_model
def test_loads_alone_with_the_same_outputs(case: Case, run: Run, adapter: Adapter) -> None:
    expected = evaluate(adapter, run.model.eval(), adapter.batch)
    for loaded in (zoo.load(run.saved).model, zoo.from_pretrained(run.saved)):
        assert type(loaded) is type(run.model)
        assert torch.equal(evaluate(adapter, loaded, adapter.batch), expected)
    meta = torch.load(run.checkpoint, weights_only=True)["memory_zoo"]["model"]
    assert meta["model"] == case.name
    assert meta["spec"] == adapter.data.spec._asdict()


@every_kind
def test_callbacks_change_no_weight(case: Case, run: Run, adapter: Adapter, tmp_path: Path) -> None:
    others = (Throughput(), GradientNorms(), Charts(), PredictionTable())
    watched = train(case, adapter, tmp_path, RunFolder(tmp_path / "run", {"a": 1}), *others)
    assert (tmp_path / "run" / "summary.json").exists()
    assert (tmp_path / "charts" / "predictions.csv").exists()
    weights, expected = watched.model.state_dict(), run.model.state_dict()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


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
            for _ in range(50):  # running means lag behind the weights
                adapter.loss(model, batch)
        assert adapter.is_learned(model.eval(), batch)


@every_learning_variant
def test_every_trained_parameter_gets_a_gradient(model: Task, adapter: Adapter) -> None:
    # Each number has another weight: a bias after the last layer has no effect on the order of two pairs.
    results = adapter.results(model, adapter.batch)
    (results * torch.linspace(-1, 2, results.numel()).view_as(results)).sum().backward()
    for name, weight in trained(model):
        assert weight.grad is not None, name
        gradient = weight.grad.to_dense()
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


@every_variant
def test_rows_differ(case: Case, model: Task, adapter: Adapter) -> None:
    """Otherwise the tests below would test nothing."""
    if case.name in ("Majority", "RandomOrder"):
        pytest.skip("has the same output for every row")
    assert len(torch.unique(evaluate(adapter, model, adapter.batch), dim=0)) > 1


@every_variant
def test_what_is_not_of_a_row_changes_nothing(model: Task, adapter: Adapter) -> None:
    """Padding, masked values, other rows, and the order of rows, of memories, of words in a batch's table."""
    results = evaluate(adapter, model, adapter.batch)
    assert_close(evaluate(adapter, model, adapter.padded(adapter.batch)), results)
    for batch in adapter.hidden(adapter.batch):
        assert torch.equal(evaluate(adapter, model, batch), results)
    for row in range(len(results)):
        assert_close(evaluate(adapter, model, adapter.alone(adapter.batch, row))[0], results[row])
    for batch, order in adapter.reordered(adapter.batch):
        assert_close(evaluate(adapter, model, batch), results[order])


@every_variant
def test_empty_texts_and_memories_are_finite(model: Task, adapter: Adapter) -> None:
    expected = evaluate(adapter, model, adapter.batch)
    for batch, is_unaware in adapter.emptied(adapter.batch):
        model.zero_grad()
        results = adapter.results(model, batch)
        assert results.isfinite().all()
        assert_close(results.detach()[is_unaware], expected[is_unaware])
        if results.requires_grad:
            results.sum().backward()
            assert all(w.grad.isfinite().all() for _, w in trained(model) if w.grad is not None)


@every_learning_variant
def test_bfloat16_is_close_to_float32(model: Task, adapter: Adapter) -> None:
    exact = evaluate(adapter, model, adapter.batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = evaluate(adapter, model, adapter.batch)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
