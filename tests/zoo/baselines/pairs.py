"""A small batch of pairs, and plain versions of layers that several models share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import MatchingBatch, MatchingSpec
from tests.zoo.plain import Vector, drawn_spellings, drawn_texts, enlarge, numbers, relu
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput

U, NUM_CHARS = 14, 9
#: Position, and vocabulary id, of the unknown word.
UNKNOWN = 1
N, T = 4, 6
M, S = 7, 9


def make_spec(goal: str = "ranking") -> MatchingSpec:
    return MatchingSpec(U, NUM_CHARS, goal)


def make_batch() -> MatchingBatch:
    """Texts of 1 word up to the longest; the last first text and the last second text are empty."""
    random = np.random.default_rng(1)

    def texts(number: int, longest: int) -> NDArray[np.int64]:
        return drawn_texts(random, number, longest, U, {0: longest, 1: 1, -1: 0})

    char = drawn_spellings(random, U, 5, NUM_CHARS)
    first = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    second = np.array([0, 1, 6, 2, 3, 4, 0, 6, 5])
    target = np.array([1, 0, 0, 0, 1, 0, 1, 1, 0])
    batch = MatchingBatch(
        word=np.arange(U),
        char=char,
        idf=random.random(U).astype(np.float32) * (np.arange(U) > 0),  # padding has none
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
    """The model's network with large weights."""
    network = model.build_network(Given(make_spec(goal), table))
    torch.manual_seed(0)
    enlarge(network)
    return network.eval()


def score(network: nn.Module, batch: MatchingBatch) -> MatchingOutput:
    with torch.no_grad():
        output: MatchingOutput = network(batch)
    return output


def words_of(text: Tensor) -> list[int]:
    return [position for position in text.tolist() if position != 0]


def pairs_of(batch: MatchingBatch) -> list[tuple[list[int], list[int]]]:
    first, second = ([words_of(text) for text in texts] for texts in (batch.first_text, batch.second_text))
    return [(first[i], second[j]) for i, j in zip(batch.first, batch.second, strict=True)]


def windows(vectors: Sequence[Vector] | Vector, matrices: Vector) -> Vector:
    """Sums of the products of matrices [W, F, D] and the W words around each word [T, F]; zeros beyond the text."""
    words, before = np.reshape(vectors, (-1, matrices.shape[2])), (len(matrices) - 1) // 2
    padded = np.pad(words, ((before, len(matrices) - 1 - before), (0, 0)))
    return sum(padded[i : i + len(vectors)] @ matrix.T for i, matrix in enumerate(matrices))


def convolve_image(image: Vector, convolution: nn.Module) -> Vector:
    """ReLU of a convolution of an image [rows, columns, filters] with centered windows."""
    weight, bias = (torch.from_numpy(numbers(convolution)[name]) for name in ("weight", "bias"))
    sides = (weight.shape[2] - 1) // 2, weight.shape[2] // 2
    padded = functional.pad(torch.from_numpy(image).movedim(2, 0), sides * 2)
    return functional.conv2d(padded, weight, bias).relu().movedim(0, 2).numpy()


def pool_image(image: Vector, grid: tuple[int, int]) -> Vector:
    """The maxima of the parts of an image; the filters of a part stand together."""
    pooled = functional.adaptive_max_pool2d(torch.from_numpy(image).movedim(2, 0), grid)
    return pooled.movedim(0, 2).flatten().numpy()


def classify(classifier: nn.Module, features: Vector) -> Vector:
    """The logits of a perceptron of `PerceptronMatching`."""
    weights = numbers(classifier)
    hidden = relu(weights["1.weight"] @ features + weights["1.bias"])
    return weights["4.weight"] @ hidden + weights.get("4.bias", np.zeros(1))
