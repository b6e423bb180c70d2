"""DSSM and CDSSM against trigram counts and plain loops."""

from collections import Counter

import numpy as np
import pytest
from torch import nn

from datamodules.batch import MatchingBatch
from tests.zoo.baselines.pairs import NUM_CHARS, make_batch, make_network, make_spec, pairs_of, score, windows
from tests.zoo.plain import Vector, cosine, numbers
from zoo.baselines.dssm import CDSSM, DSSM
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given

TRIGRAMS = 50
SMALL: dict[str, MatchingTask] = {
    "DSSM": DSSM(num_trigrams=TRIGRAMS, hidden_sizes=(6, 5, 4)),
    "DSSM-shallow": DSSM(num_trigrams=TRIGRAMS, hidden_sizes=(6,)),
    "CDSSM": CDSSM(num_trigrams=TRIGRAMS, hidden_sizes=(6, 4)),
    "CDSSM-even": CDSSM(num_trigrams=TRIGRAMS, window=4, hidden_sizes=(6, 5, 4)),
}
every_model = pytest.mark.parametrize("name", SMALL)


def counts(char: list[int]) -> Vector:
    """A word's counts of letter trigrams, in the buckets of the hash."""
    marked = [NUM_CHARS, *(c for c in char if c != 0), NUM_CHARS]
    trigrams = Counter(zip(marked, marked[1:], marked[2:], strict=False))
    vector = np.zeros(TRIGRAMS)
    for (a, b, c), number in trigrams.items():
        vector[(a * 73856093 ^ b * 19349663 ^ c * 83492791) % TRIGRAMS] += number
    return vector


def plain_tower(tower: nn.Module, kind: str, batch: MatchingBatch, words: list[int]) -> Vector:
    weights = numbers(tower)
    spelled = [counts(batch.char[word].tolist()) for word in words]
    if kind == "DSSM":
        state = np.tanh(sum(spelled, np.zeros(TRIGRAMS)) @ weights["hashing.table"] + weights["bias"])
    else:
        size = len(weights["bias"])
        matrices = weights["hashing.table"].reshape(TRIGRAMS, -1, size).transpose(1, 2, 0)
        outputs = np.tanh(windows(spelled, matrices) + weights["bias"])
        state = np.max(outputs, axis=0) if words else np.zeros(size)
    layer = 0
    while f"layers.{layer}.weight" in weights:
        state = np.tanh(weights[f"layers.{layer}.weight"] @ state + weights[f"layers.{layer}.bias"])
        layer += 1
    return state


@every_model
def test_equations(name: str) -> None:
    network, batch = make_network(SMALL[name]), make_batch()
    kind = name.partition("-")[0]
    logits = score(network, batch).logits
    for pair, texts in enumerate(pairs_of(batch)):
        q, d = (plain_tower(network.tower, kind, batch, text) for text in texts)
        expected = numbers(network.out)["scale"] * cosine(q, d)
        assert float(logits[pair, 0]) == pytest.approx(expected, abs=2e-5)


def test_pairs_to_classify() -> None:
    """Two logits, whose difference rises with the cosine."""
    model = DSSM(num_trigrams=TRIGRAMS, hidden_sizes=(6, 5), loss="cross_entropy")
    network, batch = model.build_network(Given(make_spec("classification"))), make_batch()
    words = network.tower.hashing(batch.char)
    vectors = [network.tower(words, text).detach().double().numpy() for text in batch[3:5]]
    similar = [cosine(vectors[0][i], vectors[1][j]) for i, j in zip(batch.first, batch.second, strict=True)]
    np.testing.assert_allclose(score(network, batch).score, 10.0 * (np.array(similar) - 0.5), atol=1e-5)
