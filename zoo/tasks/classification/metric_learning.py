"""Learning the metric of a memory: a pre-trained encoder is tuned until texts of one class are neighbors.

Prannay Khosla et al.: "Supervised Contrastive Learning", NeurIPS 2020, Equation 2: each text of a batch attracts all
others of its class. A batch of 64 texts has 2,016 pairs for the price of 64 texts, so that ten to twenty steps are
enough where labels are few, and votes of rows that join the memory later count at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from datamodules.batch import ClassificationBatch
from datamodules.core.errors import InputError
from zoo.layers.encoders import TransformerEncoder, fast_precision, layers_of
from zoo.layers.lora import is_adapter


class MetricPlan(NamedTuple):
    """The training of a metric: how far, and how deep, an encoder moves away from its published weights.

    Attributes:
        steps: of the optimizer; 0 = the encoder stays as it is.
        batch_size: texts in a step.
        layers: number of upper layers that are trained; None = half of them, in two thirds of the time of all.
        learning_rate: the highest; it rises for a tenth of the steps, then falls linearly to 0.
        temperature: of the loss.
        kept: share of the way from the weights before the training to those after it; .75 is better where classes are
            topics (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022).
    """

    steps: int
    batch_size: int = 64
    layers: int | None = None
    learning_rate: float = 3e-4
    temperature: float = 0.1
    kept: float = 0.75

    def __str__(self) -> str:
        layers = "half of the layers" if self.layers is None else f"{self.layers} layers"
        return f"{self.steps} steps, {layers}, rate {self.learning_rate:g}"


def steps_for(num_rows: int) -> int:
    """Number of steps for n training rows: more bring nothing or lose a little (see `tests.benchmarks.few_labels`)."""
    return min(60, 6 + int(0.6 * math.sqrt(num_rows)))


def supervised_contrastive_loss(vectors: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Mean loss of the texts that share their class with another one (Khosla et al. 2020, Equation 2).

    Vectors [B, l] have the length 1. The target has classes [B], or sets of labels [B, C] of 0 and 1; a pair of sets
    counts by the share of its labels that both have. The loss is 0 if no two texts share a class.
    """
    own = torch.eye(len(target), dtype=torch.bool, device=vectors.device)
    # Equation 2 normalizes over all texts but the anchor.
    cosines = (vectors @ vectors.T / temperature).masked_fill(own, -torch.inf)
    logs = cosines - cosines.logsumexp(dim=1, keepdim=True)
    if target.ndim == 1:
        likeness = (target[:, None] == target[None, :]).float()
    else:
        sets, sizes = target.float(), target.sum(dim=1)
        shared = sets @ sets.T
        likeness = shared / (sizes[:, None] + sizes[None, :] - shared).clamp(min=1)
    likeness = likeness.masked_fill(own, 0.0)
    positives = likeness.sum(dim=1)
    is_anchor = positives > 0
    by_anchor = -(likeness * logs.masked_fill(own, 0.0)).sum(dim=1) / torch.where(is_anchor, positives, 1.0)
    return by_anchor.sum() / is_anchor.sum().clamp(min=1)


def balanced_batches(
    target: NDArray[np.int64], batch_size: int, steps: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Row numbers of batches with equally many texts of each class, at least two where a class has them.

    Of sets of labels [n, C], a text of several drawn labels is in a batch once.
    """
    random = np.random.default_rng(seed)
    if target.ndim == 1:
        rows_of = [np.flatnonzero(target == label) for label in np.unique(target)]
    else:
        rows_of = [np.flatnonzero(target[:, label]) for label in np.flatnonzero(target.any(axis=0))]
    texts = max(2, batch_size // len(rows_of))
    for _ in range(steps):
        drawn = random.permutation(len(rows_of))[: max(2, batch_size // texts)]
        sources = (rows_of[label] for label in drawn)
        rows = np.concatenate([random.choice(own, min(texts, len(own)), replace=False) for own in sources])
        yield rows if target.ndim == 1 else np.unique(rows)


def learn_metric(
    encoder: TransformerEncoder,
    read: Callable[[NDArray[np.int64]], ClassificationBatch],
    target: NDArray[np.int64],
    plan: MetricPlan,
    seed: int,
    precision: str | None = None,
) -> None:
    """Tune an encoder, in place; the same rows and seed give the same weights in every process.

    The encoder of an ensemble is in evaluation mode, without dropout: in so few steps its noise brings nothing, and
    costs a sixth of the time. Afterwards it is as frozen as it was. `read` returns the batch of some rows on its
    device; the precision is that of the trainer, for a GPU: `bf16-mixed` encodes in bfloat16, None in float32. An
    `InputError` is raised if the loss is not finite.
    """
    was_trained = {name: weight.requires_grad for name, weight in encoder.named_parameters()}
    trained = [weight for _, weight in trained_weights(encoder, plan.layers)]
    before = [weight.detach().clone() for weight in trained]
    encoder.requires_grad_(False)
    for weight in trained:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, plan.learning_rate)
    warm_up = max(1, plan.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (plan.steps - step) / max(1, plan.steps - warm_up))
    )
    device = trained[0].device
    is_finite = torch.ones((), dtype=torch.bool, device=device)
    # On a CPU, the backward pass of flash attention in bfloat16 takes longer than the whole step otherwise.
    attention = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    try:
        with torch.enable_grad(), attention:
            for rows in balanced_batches(target, plan.batch_size, plan.steps, seed):
                batch = read(rows)
                with fast_precision(device, precision):
                    states = encoder(batch.word, batch.char, batch.text)
                vectors = functional.normalize(states.float(), dim=1)
                classes = torch.from_numpy(target[rows]).to(device)
                loss = supervised_contrastive_loss(vectors, classes, plan.temperature)
                is_finite = is_finite & loss.isfinite()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                schedule.step()
        # Read once, at the end: each read waits for the device.
        if not bool(is_finite):
            raise InputError("model.metric_steps: the loss of the metric is not finite; set fewer steps")
        with torch.no_grad():
            for weight, original in zip(trained, before, strict=True):
                weight.copy_(torch.lerp(original, weight, plan.kept))
    finally:
        for name, weight in encoder.named_parameters():
            weight.requires_grad_(was_trained[name])


def trained_weights(encoder: TransformerEncoder, layers: int | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and weights of the upper layers (None: of half of them), or of their adapters where there are any.

    Word embeddings always stay: most of their rows occur in no batch.
    """
    stack = layers_of(encoder.transformer)
    if not stack:
        raise InputError(f"model.metric_steps: a {type(encoder.transformer).__name__} has no layers; set 0")
    upper = stack[-layers:] if layers else stack[len(stack) // 2 :]
    tuned = {id(weight) for layer in upper for weight in layer.parameters()}
    named = [(name, weight) for name, weight in encoder.named_parameters() if id(weight) in tuned]
    adapters = [(name, weight) for name, weight in named if is_adapter(name)]
    return iter(adapters or named)


@torch.no_grad()
def use_weights(encoder: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give an encoder these weights, by name."""
    own = dict(encoder.named_parameters())
    for name, value in weights.items():
        own[name].copy_(value)


@contextmanager
def using(encoder: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give an encoder other weights for a while."""
    own = dict(encoder.named_parameters())
    before = {name: own[name].detach().clone() for name in weights}
    try:
        use_weights(encoder, weights)
        yield
    finally:
        use_weights(encoder, before)
