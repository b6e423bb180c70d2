"""MatchPyramid against loops over the positions of an image."""

from __future__ import annotations

import numpy as np
import pytest

from tests.zoo.baselines.pairs import (
    UNKNOWN,
    classify,
    convolve_image,
    make_batch,
    make_network,
    pool_image,
    score,
    words_of,
)
from tests.zoo.plain import cosine, numbers
from zoo.baselines.match_pyramid import MatchPyramid, MatchPyramidNetwork

SMALL = {
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


@pytest.mark.parametrize("name", SMALL)
def test_equations(name: str) -> None:
    network, batch = make_network(SMALL[name]), make_batch()
    output = score(network, batch)
    for pair, (first, second) in enumerate(zip(batch.first, batch.second, strict=True)):
        question, answer = words_of(batch.first_text[first]), words_of(batch.second_text[second])
        pooled = np.zeros(network.classifier[1].in_features)
        if question and answer:
            image = np.array([[[similarity(network, q, a)] for a in answer] for q in question])
            assert output.interaction is not None
            shown = output.interaction[pair, : len(question), : len(answer)]
            np.testing.assert_allclose(shown, image[:, :, 0], atol=1e-5)
            for layer in network.convolutions:
                image = convolve_image(image, layer)
            pooled = pool_image(image, network.grid)
        expected = classify(network.classifier, pooled)
        np.testing.assert_allclose(output.logits[pair], expected, rtol=1e-5, atol=1e-4)
