"""The supervised contrastive loss, its batches, and the tuning of an encoder."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from datamodules.core.errors import InputError
from zoo.layers.encoders import TransformerEncoder, fast_precision
from zoo.layers.lora import is_adapter
from zoo.tasks.classification.metric_learning import (
    MetricPlan,
    balanced_batches,
    learn_metric,
    steps_for,
    supervised_contrastive_loss,
)

# Token ids of `tiny_bert`: two texts of each of three classes, which share no word with each other.
TEXTS = torch.tensor([[4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15], [16, 17, 18], [19, 20, 21]])
TARGET = np.array([0, 0, 1, 1, 2, 2])


def batch_of(rows: NDArray[np.int64]) -> ClassificationBatch:
    """The batch of some of `TEXTS`, as far as an encoder reads it."""
    word = torch.cat([torch.zeros(1, dtype=torch.int64), TEXTS[rows].flatten()])
    text = torch.arange(1, len(word)).reshape(len(rows), 3)
    nothing = torch.zeros(len(rows), 0)
    fields = dict.fromkeys(ClassificationBatch._fields, nothing)
    fields |= {"word": word, "char": torch.zeros(len(word), 0), "text": text}
    return ClassificationBatch(**{**fields, "target": torch.from_numpy(TARGET[rows])})  # type: ignore[arg-type]


def cosines(encoder: TransformerEncoder) -> torch.Tensor:
    batch = batch_of(np.arange(len(TEXTS)))
    with torch.inference_mode():
        vectors = functional.normalize(encoder(batch.word, batch.char, batch.text), dim=1)
    return vectors @ vectors.T


def test_the_loss_is_equation_2() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    vectors = functional.normalize(drawn, dim=1).requires_grad_(True)
    target = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    cosines, losses = (vectors @ vectors.T).tolist(), []
    for i in range(7):
        others = [a for a in range(7) if a != i]
        positives = [p for p in others if target[p] == target[i]]
        if positives:
            total = sum(math.exp(cosines[i][a] / 0.1) for a in others)
            logs = [math.log(math.exp(cosines[i][p] / 0.1) / total) for p in positives]
            losses.append(-sum(logs) / len(positives))
    loss = supervised_contrastive_loss(vectors, target, 0.1)
    assert float(loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    loss.backward()  # type: ignore[no-untyped-call]
    assert vectors.grad.isfinite().all()


def test_texts_without_a_second_one_of_their_class_have_no_loss() -> None:
    assert float(supervised_contrastive_loss(torch.eye(3), torch.arange(3), 0.1)) == 0


def test_batches_are_balanced() -> None:
    target = np.array([0] * 100 + [1] * 5 + [2])
    for rows in balanced_batches(target, 12, 20, seed=1):
        assert np.bincount(target[rows]).tolist() == [4, 4, 1]
        assert len(set(rows.tolist())) == len(rows)
    again = [list(balanced_batches(target, 12, 3, seed)) for seed in (1, 1, 2)]
    assert all(np.array_equal(*pair) for pair in zip(again[0], again[1], strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(again[0], again[2], strict=True))


def test_some_classes_are_drawn_where_all_do_not_fit() -> None:
    target = np.repeat(np.arange(40), 3)
    batches = [target[rows] for rows in balanced_batches(target, 8, 50, seed=0)]
    assert all(len(set(drawn)) == 4 and np.bincount(drawn).max() == 2 for drawn in batches)
    assert len(set(np.concatenate(batches))) == 40


def test_texts_of_a_class_become_neighbors(tiny_bert: Path) -> None:
    encoder = TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval()
    before, weights = cosines(encoder), {name: value.clone() for name, value in encoder.state_dict().items()}
    plan = MetricPlan(60, batch_size=6, layers=2, learning_rate=1e-2)
    learn_metric(encoder, batch_of, TARGET, plan, seed=0)
    after = cosines(encoder)
    is_same = torch.from_numpy(TARGET[:, None] == TARGET[None])
    others, same = ~is_same, is_same & ~torch.eye(6, dtype=torch.bool)
    assert before[same].min() < before[others].max()
    assert after[same].min() > after[others].max()
    assert not any(weight.requires_grad for weight in encoder.parameters())
    assert not encoder.training
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, weights[name])}
    assert not any("embeddings" in name for name in changed)
    assert any("layer.0." in name for name in changed)


@pytest.mark.parametrize(("layers", "lora_rank"), [(None, None), (1, None), (None, 2)])
def test_upper_layers_or_adapters_alone(tiny_bert: Path, layers: int | None, lora_rank: int | None) -> None:
    encoder = TransformerEncoder(str(tiny_bert), lora_rank=lora_rank).requires_grad_(False).eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    learn_metric(encoder, batch_of, TARGET, MetricPlan(2, batch_size=6, layers=layers), seed=0)
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("layer.1." in name and is_adapter(name) == (lora_rank is not None) for name in changed)


def test_an_encoder_that_is_trained_stays_so(tiny_bert: Path) -> None:
    encoder = TransformerEncoder(str(tiny_bert)).requires_grad_(True).train()
    learn_metric(encoder, batch_of, TARGET, MetricPlan(1, batch_size=6), seed=0)
    assert all(weight.requires_grad for weight in encoder.parameters())
    assert encoder.training


def test_the_same_seed_gives_the_same_weights(tiny_bert: Path) -> None:
    encoders = [TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval() for _ in range(2)]
    for number, encoder in enumerate(encoders):
        torch.manual_seed(number)  # the state of the run's random numbers has no effect, and stays as it is
        expected = torch.random.get_rng_state()
        learn_metric(encoder, batch_of, TARGET, MetricPlan(3, batch_size=6), seed=5)
        assert torch.equal(torch.random.get_rng_state(), expected)
    for first, second in zip(encoders[0].parameters(), encoders[1].parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_the_trainer_decides_the_precision_on_a_gpu_alone(tiny_bert: Path) -> None:
    gpu = fast_precision(torch.device("cuda"), "bf16-mixed")
    assert isinstance(gpu, torch.autocast)
    assert (gpu.device, gpu.fast_dtype) == ("cuda", torch.bfloat16)
    # Without a precision, a GPU keeps that of Lightning's step.
    for precision in (None, "32-true", "16-mixed"):
        other = fast_precision(torch.device("cuda"), precision)
        assert isinstance(other, torch.autocast)
        assert other.device == "cpu"
        assert not other._enabled
    encoders = [TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval() for _ in range(2)]
    for precision, encoder in zip((None, "bf16-mixed"), encoders, strict=True):
        learn_metric(encoder, batch_of, TARGET, MetricPlan(2, batch_size=6), seed=0, precision=precision)
    for first, second in zip(*(encoder.parameters() for encoder in encoders), strict=True):
        assert torch.equal(first, second)


def test_a_loss_that_is_not_finite_is_refused(tiny_bert: Path) -> None:
    encoder = TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval()
    with pytest.raises(InputError, match=r"model\.metric_steps: the loss of the metric is not finite"):
        learn_metric(encoder, batch_of, TARGET, MetricPlan(5, batch_size=6, learning_rate=1e30), seed=0)


def test_more_rows_have_more_steps() -> None:
    steps = [steps_for(rows) for rows in (2, 48, 300, 3000, 10**6)]
    assert steps == sorted(steps)
    assert steps[0] == 6
    assert steps[-1] == 60
