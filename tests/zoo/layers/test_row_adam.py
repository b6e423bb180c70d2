"""Updates by rows against the same optimizer's updates of the whole table."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

import zoo
from datamodules.batch import ClassificationSpec
from tests.zoo.conftest import trainer
from tests.zoo.papers.test_expanet import make_data
from zoo.layers.encoders import WordEncoder
from zoo.layers.row_adam import RowAdam, can_update_by_rows, update_by_rows, update_densely
from zoo.tasks import encoders
from zoo.tasks.model import Given

ROWS, SIZE = 40, 6


class Reader(nn.Module):
    """A table of which each step reads a few rows, some of them twice, and a weight that every step reads."""

    def __init__(self) -> None:
        super().__init__()
        self.words = WordEncoder(ROWS + 1, SIZE)
        self.weight = nn.Parameter(torch.randn(SIZE))

    def loss(self, ids: Tensor) -> Tensor:
        return (self.words.rows(ids) @ self.weight - ids.float() / ROWS).square().mean()


def readings(steps: int, seed: int = 0) -> list[Tensor]:
    """Rows by Zipf's law: some are read at every step, others once in a hundred."""
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, ROWS + 1)
    chances /= chances.sum()
    return [torch.from_numpy(random.choice(ROWS, size=4, p=chances)) for _ in range(steps)]


def learn(
    make: Callable[..., Optimizer],
    by_rows: bool,
    steps: int = 300,
    schedule: Callable[[Optimizer], Any] | None = None,
    dense_every: int | None = None,
) -> tuple[Reader, Optimizer, list[float]]:
    """The trained weights, the optimizer and the losses; each such step has a dense gradient in both ways."""
    torch.manual_seed(0)
    reader, losses = Reader(), []
    optimizer = make(reader.parameters())
    if by_rows:
        optimizer = update_by_rows(optimizer, [reader.words])
    scheduler = None if schedule is None else schedule(optimizer)
    for step, ids in enumerate(readings(steps)):
        optimizer.zero_grad()
        reader.words.is_sparse = by_rows and (dense_every is None or step % dense_every != 0)
        loss = reader.loss(ids)
        loss.backward()
        assert reader.words.table.grad.is_sparse == reader.words.is_sparse
        optimizer.step()
        if scheduler is not None and step % 10 == 9:
            scheduler.step()
        losses.append(loss.item())
    return reader, optimizer, losses


@pytest.mark.parametrize("schedule", [None, partial(ExponentialLR, gamma=0.8)])
@pytest.mark.parametrize("dense_every", [None, 3])
@pytest.mark.parametrize(
    ("options", "atol"),
    [
        ({}, 2e-4),
        ({"fused": True}, 2e-4),
        ({"betas": (0.5, 0.9)}, 2e-4),
        ({"betas": (0.0, 0.99)}, 2e-4),
        # An epsilon in the size of the updates: its contribution is approximate.
        ({"eps": 1e-3}, 5e-3),
    ],
)
def test_adam_has_the_same_result_within_rounding(
    options: dict[str, Any], atol: float, schedule: Any, dense_every: int | None
) -> None:
    make = partial(Adam, lr=0.01, **options)
    dense, by_adam, losses = learn(make, False, schedule=schedule, dense_every=dense_every)
    by_rows, optimizer, others = learn(make, True, schedule=schedule, dense_every=dense_every)
    # A row that is read has the value of dense updates.
    assert others == pytest.approx(losses, rel=1e-2, abs=atol)
    state, expected = optimizer.state_dict()["state"], by_adam.state_dict()["state"]
    for name, value in dense.state_dict().items():
        torch.testing.assert_close(by_rows.state_dict()[name], value, rtol=2e-3, atol=atol)
    # Adam's own state, so that a checkpoint of one resumes the other.
    assert state.keys() == expected.keys()
    for number, of_weight in expected.items():
        assert state[number].keys() == of_weight.keys()
        for name, value in of_weight.items():
            torch.testing.assert_close(state[number][name], value, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("base_momentum", [0.85, 0.2])
def test_a_schedule_may_cycle_the_betas(base_momentum: float) -> None:
    """As `OneCycleLR` does by default; with 0.9 and 0.8, or 0.95 and 0.9, updates cannot be delayed at all."""
    momenta = {"base_momentum": base_momentum, "max_momentum": 0.95}
    schedule = partial(OneCycleLR, max_lr=0.02, total_steps=30, **momenta)
    for betas in ((0.9, 0.999), (0.9, 0.8)):
        make = partial(Adam, lr=0.01, betas=betas)
        dense, by_rows = (
            learn(make, way, schedule=schedule)[0].state_dict()["words.table"] for way in (False, True)
        )
        torch.testing.assert_close(by_rows, dense, rtol=2e-3, atol=2e-4)


def test_updates_are_those_of_adam_to_the_last_digits() -> None:
    """One gradient, then none for many steps: the row's updates, step by step in float64."""
    torch.manual_seed(0)
    reader = Reader()
    optimizer = update_by_rows(Adam(reader.parameters(), lr=0.01, eps=1e-8), [reader.words])
    start = reader.words.table.detach().clone()
    value, m, v, lr = start[3].double(), torch.zeros(SIZE).double(), torch.zeros(SIZE).double(), 0.01
    for step in range(1, 121):
        ids = torch.tensor([3] if step == 1 else [5])
        optimizer.zero_grad()
        reader.loss(ids).backward()
        gradient = reader.words.table.grad.to_dense()[3].double()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient.square()
        value = value - lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        if step == 1:
            assert not torch.equal(reader.words.table[3], start[3])
            moved = reader.words.table[3].detach().clone()
        elif step < 120:
            assert torch.equal(reader.words.table[3], moved)  # put off
    assert torch.equal(reader.words.rows(torch.tensor([5, 3, 3]))[1:], reader.words.table[[3, 3]])
    torch.testing.assert_close(reader.words.table[3].double(), value, rtol=1e-5, atol=2e-6)
    assert (reader.words.table[3] - moved).abs().max() > 0.05  # most of the way is made without a gradient


def test_a_state_dict_of_weights_is_up_to_date() -> None:
    reader, optimizer, _ = learn(partial(Adam, lr=0.01), True, steps=60)
    assert isinstance(optimizer, RowAdam)
    before = reader.words.table.detach().clone()
    kept = reader.state_dict()["words.table"].clone()
    assert not torch.equal(before, kept)
    optimizer.state_dict()
    assert torch.equal(reader.words.table, kept)
    update_densely([reader.words])
    assert reader.words.settle is None
    assert not reader.words.is_sparse


@pytest.mark.parametrize(
    "make",
    [partial(SGD, lr=0.1), AdamW, partial(Adam, amsgrad=True), partial(Adam, weight_decay=0.1)],
)
def test_optimizers_with_another_result(make: Callable[..., Optimizer]) -> None:
    assert not can_update_by_rows(make([nn.Parameter(torch.zeros(3, 2))]))


def run(
    folder: Path, sparse: bool | None, resumed: Path | None = None, **options: Any
) -> tuple[dict[str, Tensor], Any]:
    """Weights after two epochs; tables of all sizes are updated by rows (True), densely (False), by default (None)."""
    data = make_data(folder, num_memories=3, batch_size=8)
    pl.seed_everything(3, verbose=False)
    optimizer = options.pop("optimizer", partial(Adam, lr=0.01))
    model = zoo.ExpaNet(word_size=8, bigrams=60, optimizer=optimizer)
    made = trainer(folder, **{"max_epochs": 2, **options})
    with pytest.MonkeyPatch.context() as patch:
        if sparse is not None:
            patch.setattr(encoders, "MANY_ROWS", 0 if sparse else sys.maxsize)
        made.fit(model, datamodule=data, ckpt_path=resumed, weights_only=True)
    return model.state_dict(), made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_clip_val": 0.01},
        {"gradient_clip_val": 0.001, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 3},
        {"precision": "bf16-mixed"},
    ],
)
def test_a_run_learns_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    dense, _ = run(tmp_path, False, **options)
    by_rows, _ = run(tmp_path, True, **options)
    for name in dense:
        torch.testing.assert_close(by_rows[name], dense[name], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("first", [False, True])
def test_a_run_resumes_from_a_checkpoint_of_either_kind(first: bool, tmp_path: Path) -> None:
    whole, _ = run(tmp_path, False)
    _, made = run(tmp_path, first, max_epochs=1)
    made.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = run(tmp_path, not first, tmp_path / "half.ckpt")
    for name in whole:
        torch.testing.assert_close(resumed[name], whole[name], rtol=1e-2, atol=1e-4)


def test_small_tables_are_updated_densely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = run(tmp_path, None, max_epochs=1)
    assert type(made.optimizers[0]) is Adam
    monkeypatch.setattr(encoders, "MANY_ROWS", 20)
    _, made = run(tmp_path, None, max_epochs=1)
    assert type(made.optimizers[0]) is RowAdam
    _, made = run(tmp_path, None, max_epochs=1, optimizer=AdamW)
    assert type(made.optimizers[0]) is AdamW


@pytest.mark.parametrize(("processes", "device"), [(2, "cpu"), (1, "cuda")])
def test_several_processes_and_gpus_update_densely(processes: int, device: str) -> None:
    spec = ClassificationSpec(6000, 0, ["a", "b"], ["a", "b"], 3)
    made = SimpleNamespace(
        world_size=processes, strategy=SimpleNamespace(root_device=torch.device(device)), precision="32-true"
    )
    model = zoo.ExpaNet(word_size=4)
    model.network = model.build_network(Given(spec))
    model._trainer = made
    optimizer = Adam(model.network.parameters())
    assert model.adapt_optimizer(optimizer) is optimizer
    assert not model.network.text.words.is_sparse
