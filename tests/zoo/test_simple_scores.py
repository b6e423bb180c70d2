"""Rows that need no training, by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from zoo.simple_scores import SIMPLE_SCORES, best_threshold, bm25, word_overlap

TRAIN = ["the cat sat", "the dog ran far away", "the cat sat"]
FIRST = ["The cat, a cat!", "dog", "", "bird"]
SECOND = ["cat cat dog", "", "dog", "the cat"]


def test_word_overlap_is_a_share_of_the_first_texts_words() -> None:
    # "the", "cat", ",", "a", "!": one of five.
    assert word_overlap(TRAIN, FIRST, SECOND).tolist() == [1 / 5, 0, 0, 0]


def test_bm25_by_hand() -> None:
    # Two distinct training texts, of 3 and 5 words; "cat" is in one of them. The query has it twice, the
    # document twice in three words.
    base = 1.2 * (1 - 0.75 + 0.75 * 3 / 4)
    expected = 2 * math.log(1 + 1.5 / 1.5) * 2 / (2 + base)
    assert bm25(TRAIN, FIRST, SECOND) == pytest.approx([expected, 0, 0, 0])


def test_order_of_the_file_falls_and_random_is_one_tie() -> None:
    assert (np.diff(SIMPLE_SCORES["file_order"](TRAIN, FIRST, SECOND)) < 0).all()
    assert len(set(SIMPLE_SCORES["random"](TRAIN, FIRST, SECOND))) == 1


@pytest.mark.parametrize("name", SIMPLE_SCORES)
def test_nothing_to_score_or_to_learn_from(name: str) -> None:
    assert SIMPLE_SCORES[name]([], FIRST, SECOND).shape == (4,)
    assert SIMPLE_SCORES[name](TRAIN, [], []).shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    score, target = random.integers(0, 5, 30).astype(float), random.integers(0, 2, 30).astype(float)
    right = {t: ((score > t) == (target > 0)).sum() for t in [-1, *np.arange(-0.5, 6)]}
    found = best_threshold(score, target)
    assert ((score > found) == (target > 0)).sum() == max(right.values())
    assert best_threshold(score, np.ones(30)) < score.min()
    assert best_threshold(np.zeros(3), np.array([0.0, 0.0, 1.0])) > 0
