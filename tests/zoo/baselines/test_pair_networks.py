"""ARC-I, ARC-II, MatchPyramid and aNMM against loops over words, windows and parts."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from datamodules.batch import MatchingBatch
from tests.zoo.baselines.pairs import (
    UNKNOWN,
    classify,
    convolve_image,
    make_batch,
    make_network,
    pairs_of,
    pool_image,
    score,
    windows,
)
from tests.zoo.plain import Vector, cosine, numbers, relu, sigmoid
from zoo.baselines.convolution import WordConvolution
from zoo.baselines.pair_networks import (
    ANMM,
    ARCI,
    ARCII,
    ARCIINetwork,
    ARCINetwork,
    MatchPyramid,
    MatchPyramidNetwork,
    SentenceConvolution,
    sum_by_value,
)

SMALL_I = {
    "one-layer": ARCI(filters=(5,), hidden_size=4, word_size=6),
    "three-layers": ARCI(filters=(5, 4, 3), hidden_size=4, word_size=6),
    "even-window": ARCI(filters=(5, 4), window=4, hidden_size=4, word_size=6),
    "window-of-one": ARCI(filters=(5,), window=1, hidden_size=4, word_size=6),
}
SMALL_II = {
    "one-layer": ARCII(filters=(5,), grid=(2, 3), hidden_size=4, word_size=6),
    "three-layers": ARCII(filters=(5, 4, 3), grid=(1, 2), hidden_size=4, word_size=6),
    "even-window": ARCII(filters=(5, 4), window=4, grid=(2, 1), hidden_size=4, word_size=6),
}


def window_matrices(convolution: WordConvolution) -> NDArray[np.float64]:
    """[window, filters, word size]."""
    weight = numbers(convolution)["kernel.weight"]
    return weight.reshape(convolution.window, -1, weight.shape[1])


def table(network: ARCINetwork | ARCIINetwork, batch: MatchingBatch, text: list[int]) -> list[Vector]:
    rows = numbers(network.words)["table"]
    return [rows[batch.word[position]] for position in text]


def plain_sentence(model: SentenceConvolution, vectors: list[Vector]) -> Vector:
    if not vectors:
        return np.zeros(model.size)
    states = relu(windows(vectors, window_matrices(model.first)) + numbers(model.first)["bias"])
    for convolution in model.others:
        weights = numbers(convolution)
        pooled = [np.max(states[t : t + 2], axis=0) for t in range(0, len(states), 2)]
        states = relu(windows(pooled, weights["weight"].transpose(2, 0, 1)) + weights["bias"])
    return np.max(states, axis=0)


@pytest.mark.parametrize("name", SMALL_I)
def test_arc_i(name: str) -> None:
    network, batch = make_network(SMALL_I[name]), make_batch()
    logits = score(network, batch).logits
    for pair, texts in enumerate(pairs_of(batch)):
        sides = zip((network.first, network.second), texts, strict=True)
        joined = np.concatenate([plain_sentence(side, table(network, batch, text)) for side, text in sides])
        np.testing.assert_allclose(logits[pair], classify(network.classifier, joined), rtol=1e-5, atol=1e-4)


def plain_image(network: ARCIINetwork, first: list[Vector], second: list[Vector]) -> NDArray[np.float64]:
    """The last layer's image [rows, columns, filters]."""
    rows = windows(first, window_matrices(network.first))
    columns = windows(second, window_matrices(network.second))
    image = halve(relu(rows[:, None] + columns[None] + numbers(network.first)["bias"]))
    for number, convolution in enumerate(network.others):
        image = convolve_image(halve(image) if number > 0 else image, convolution)
    return image


def halve(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Max pooling by 2 x 2; an odd row or column is pooled by itself."""
    pooled = functional.max_pool2d(torch.from_numpy(image).movedim(2, 0), 2, ceil_mode=True)
    return pooled.movedim(0, 2).numpy()


@pytest.mark.parametrize("name", SMALL_II)
def test_arc_ii(name: str) -> None:
    network, batch = make_network(SMALL_II[name]), make_batch()
    logits = score(network, batch).logits
    for pair, texts in enumerate(pairs_of(batch)):
        first, second = (table(network, batch, text) for text in texts)
        pooled = np.zeros(network.classifier[1].in_features)
        if first and second:
            pooled = pool_image(plain_image(network, first, second), network.grid)
        expected = classify(network.classifier, pooled)
        np.testing.assert_allclose(logits[pair], expected, rtol=1e-5, atol=1e-3)


PYRAMIDS = {
    "cosine": MatchPyramid(filters=(4,), grid=(2, 3), hidden_size=5, word_size=6),
    "two-layers": MatchPyramid(filters=(4, 3), grid=(2, 3), hidden_size=5, word_size=6),
    "even-kernel": MatchPyramid(filters=(3, 4), kernel=2, grid=(1, 1), hidden_size=5, word_size=6),
    "more-parts-than-words": MatchPyramid(filters=(3,), grid=(8, 11), hidden_size=5, word_size=6),
}


def similarity(network: MatchPyramidNetwork, q: int, a: int) -> float:
    if q == a == UNKNOWN:
        return 0.0  # two unknown words need not be the same
    table = numbers(network.words)["table"]
    return cosine(table[q], table[a])


@pytest.mark.parametrize("name", PYRAMIDS)
def test_match_pyramid(name: str) -> None:
    network, batch = make_network(PYRAMIDS[name]), make_batch()
    output = score(network, batch)
    for pair, (question, answer) in enumerate(pairs_of(batch)):
        pooled = np.zeros(network.classifier[1].in_features)
        if question and answer:
            image = np.array([[[similarity(network, q, a)] for a in answer] for q in question])
            shown = output.interaction[pair, : len(question), : len(answer)]
            np.testing.assert_allclose(shown, image[:, :, 0], atol=1e-5)
            for layer in network.convolutions:
                image = convolve_image(image, layer)
            pooled = pool_image(image, network.grid)
        expected = classify(network.classifier, pooled)
        np.testing.assert_allclose(output.logits[pair], expected, rtol=1e-5, atol=1e-4)


def test_anmm() -> None:
    bins = 7
    network = make_network(ANMM(num_bins=bins, word_size=5))
    batch = make_batch()
    output = score(network, batch)
    weights = numbers(network)
    vectors = weights["words.table"]
    exact = 0
    for pair, (question, answer) in enumerate(pairs_of(batch)):
        energies = [math.exp(weights["gate"] @ vectors[q]) for q in question]
        total = 0.0
        for j, q in enumerate(question):
            x = np.zeros(bins + 1)
            for a in answer:
                if q == a == UNKNOWN:
                    continue  # two unknown words need not be the same
                similarity = cosine(vectors[q], vectors[a])
                exact += q == a
                x[bins if q == a else math.floor((similarity + 1) / 2 * bins)] += similarity
            total += energies[j] / sum(energies) * sigmoid(weights["weight.weight"][0] @ x)
        expected = weights["out.weight"][0, 0] * total
        assert float(output.logits[pair, 0]) == pytest.approx(expected, abs=1e-5)
    assert exact > 3


def test_sums_by_value() -> None:
    values = torch.tensor([[[-1.0, -0.9, 0.3, 1.0, 0.99, 0.5]]])
    mask = torch.tensor([[[True, True, True, True, True, False]]])
    # Two ranges and that of exact matches; the last position is padding.
    torch.testing.assert_close(sum_by_value(values, mask, 2), torch.tensor([[[-1.9, 1.29, 1.0]]]))
