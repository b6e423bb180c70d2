"""A small batch of pairs, and what all baselines are asked beside their own equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from zoo.tasks.ranking import MatchingOutput, MatchingTask

from datamodules.batch import MatchingBatch, MatchingSpec

U, NUM_CHARS = 14, 9
#: Position, and vocabulary id, of the word that stands for all unknown ones.
UNKNOWN = 1
N, T = 4, 6
M, S = 7, 9

Vector = NDArray[np.float64]


def make_spec(goal: str = "ranking") -> MatchingSpec:
    return MatchingSpec(U, NUM_CHARS, goal, T, S)


def make_batch() -> MatchingBatch:
    """Texts of 1 word up to the longest; the last first text and the last second text are empty."""
    random = np.random.default_rng(1)

    def texts(number: int, longest: int) -> NDArray[np.int64]:
        table = random.integers(1, U, size=(number, longest))
        lengths = random.integers(1, longest + 1, size=number)
        lengths[0], lengths[1], lengths[-1] = longest, 1, 0
        return np.where(np.arange(longest) < lengths[:, None], table, 0)

    char = random.integers(1, NUM_CHARS, size=(U, 5)) * (np.arange(5) < random.integers(1, 6, size=(U, 1)))
    char[0] = 0
    first = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    second = np.array([0, 1, 6, 2, 3, 4, 0, 6, 5])
    target = np.array([1, 0, 0, 0, 1, 0, 1, 1, 0])
    batch = MatchingBatch(
        word=np.arange(U),
        char=char,
        idf=random.random(U).astype(np.float32),
        first_text=texts(N, T),
        second_text=texts(M, S),
        first=first,
        second=second,
        query=first,
        place=np.array([0, 1, 2, 0, 1, 0, 1, 0, 1]),
        target=target.astype(np.float32),
        weight=np.ones(len(first), np.float32),
        row=np.arange(len(first)),
    )
    return MatchingBatch(*(torch.from_numpy(array) for array in batch if array is not None))


def make_network(model: MatchingTask, goal: str = "ranking", table: Tensor | None = None) -> Any:
    """The model's network with large weights, so that no term of an equation hides behind the others."""
    network = model.build_network(make_spec(goal), table, None)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.uniform_(-1, 1, generator=generator)
    return network.eval()


def score(network: nn.Module, batch: MatchingBatch) -> MatchingOutput:
    with torch.no_grad():
        output: MatchingOutput = network(batch)
    return output


def words_of(text: Tensor) -> list[int]:
    return [position for position in text.tolist() if position != 0]


def numbers(module: nn.Module) -> dict[str, Vector]:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def cosine(a: Vector, b: Vector) -> float:
    norm = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return float(a @ b) / norm if norm else 0.0


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def parts(length: int, number: int) -> list[range]:
    """The places of each of so many even parts of a text."""
    return [range(i * length // number, -(-(i + 1) * length // number)) for i in range(number)]


def check_all(network: nn.Module, goal: str = "ranking") -> None:
    """Any batch gives the same scores and finite ones, and every weight learns."""
    batch = make_batch()
    output = score(network, batch)
    assert output.logits.dtype == torch.float32
    assert output.logits.shape == (len(batch.first), make_spec(goal).num_outputs)
    assert output.logits.isfinite().all()  # two of the texts are empty

    # More padding, of texts and of words, is nothing.
    padded = batch._replace(
        char=functional.pad(batch.char, (0, 3)),
        first_text=functional.pad(batch.first_text, (0, 5)),
        second_text=functional.pad(batch.second_text, (0, 4)),
    )
    torch.testing.assert_close(score(network, padded).logits, output.logits)

    # A pair alone scores as it does among others.
    for pair in range(len(batch.first)):
        first = batch.first_text[batch.first[pair]]
        second = batch.second_text[batch.second[pair]]
        zero = torch.zeros(1, dtype=torch.long)
        alone = batch._replace(
            first_text=first[: max(1, len(words_of(first)))].unsqueeze(0),
            second_text=second[: max(1, len(words_of(second)))].unsqueeze(0),
            first=zero,
            second=zero,
            query=zero,
            place=zero,
            target=batch.target[pair : pair + 1],
            weight=batch.weight[pair : pair + 1],
            row=zero,
        )
        torch.testing.assert_close(score(network, alone).logits, output.logits[pair : pair + 1])

    # The interaction is nothing where there is no word.
    if output.interaction is not None:
        real = (batch.first_text[batch.first] != 0).unsqueeze(2) & (
            batch.second_text[batch.second] != 0
        ).unsqueeze(1)
        assert output.interaction.shape == real.shape
        assert (output.interaction[~real] == 0).all()

    network.zero_grad()
    weights = torch.linspace(-1, 2, output.logits.numel()).view_as(output.logits)
    (network(batch).logits * weights).sum().backward()
    for name, weight in network.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None, name
            gradient = weight.grad.to_dense()
            assert gradient.isfinite().all(), name
            assert gradient.any(), name
