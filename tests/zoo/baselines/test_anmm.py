"""aNMM against loops over the words of question and answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.zoo.baselines.pairs import UNKNOWN, make_batch, make_network, score, words_of
from tests.zoo.plain import cosine, numbers, sigmoid
from zoo.baselines.anmm import ANMM, sum_by_value


def test_equations() -> None:
    bins = 7
    network = make_network(ANMM(num_bins=bins, word_size=5))
    batch = make_batch()
    output = score(network, batch)
    weights = numbers(network)
    vectors = weights["words.table"]
    exact = 0
    for pair, (first, second) in enumerate(zip(batch.first, batch.second, strict=True)):
        question, answer = words_of(batch.first_text[first]), words_of(batch.second_text[second])
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
