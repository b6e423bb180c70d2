"""Scores of pairs of texts that need no training: what a model of matching must beat to have learned anything.

A function takes the second texts of the training pairs (for the words' frequencies) and the pairs to score; it
returns a score a pair. Words are those of the word tokenizer, lower-cased.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.corpora.pairs import Pairs
from datamodules.matching import MatchingDataModule
from datamodules.text.tokenization import Lexicon, make_tokenizer
from zoo.tasks.ranking import new_scores

Scores: TypeAlias = NDArray[np.float64]


def random_order(train: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Scores:
    """The same score for all pairs: since ties count the mean over their orders, a random order's expectation."""
    return np.zeros(len(first))


def file_order(train: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Scores:
    """Pairs that come earlier in the table first; what a constant score seems to earn where ties follow it."""
    return -np.arange(len(first), dtype=np.float64)


def word_overlap(train: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Scores:
    """Share of the first text's distinct words that are in the second one; 0 of a text without words."""
    tokens = _tokens(first), _tokens(second)
    shares = [len(set(a) & set(b)) / max(1, len(set(a))) for a, b in zip(*tokens, strict=True)]
    return np.array(shares, dtype=np.float64)


def bm25(
    train: Sequence[str], first: Sequence[str], second: Sequence[str], k1: float = 1.2, b: float = 0.75
) -> Scores:
    """BM25 of the second text for the first as its query; frequencies and lengths of distinct training texts.

    log(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 (1 - b + b length / mean length)), summed over the query's
    words, each as often as the query has it.
    """
    documents = [Counter(words) for words in _tokens(list(dict.fromkeys(train)))]
    frequency = Counter(word for document in documents for word in document)
    mean_length = sum(document.total() for document in documents) / max(1, len(documents)) or 1.0
    scores = np.zeros(len(first))
    for row, (query, words) in enumerate(zip(_tokens(first), _tokens(second), strict=True)):
        document = Counter(words)
        base = k1 * (1 - b + b * len(words) / mean_length)
        for word in query:
            if tf := document[word]:
                df = frequency[word]
                scores[row] += np.log1p((len(documents) - df + 0.5) / (df + 0.5)) * tf / (tf + base)
    return scores


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    lexicon = Lexicon()
    encoded = list(make_tokenizer("words", lowercase=True).encode(texts, lexicon))
    words = list(lexicon)
    return [[words[number] for number in text] for text in encoded]


#: name in a table's YAML -> function.
SIMPLE_SCORES: dict[str, Callable[[Sequence[str], Sequence[str], Sequence[str]], Scores]] = {
    "random": random_order,
    "file_order": file_order,
    "word_overlap": word_overlap,
    "bm25": bm25,
}


def simple_metrics(name: str, data: MatchingDataModule, splits: Mapping[str, str]) -> dict[str, float]:
    """What a model with such scores would have logged.

    Args:
        name: of the function.
        data: prepared. Pairs are classified by the threshold that is best on the training pairs.
        splits: what figures of a split are called -> the split, e.g. `{"val": "validation"}`.

    Returns:
        `val/map`, ..., as `MatchingTask` names them, but for the loss.
    """
    train = data.split("train").pairs
    known = train.second.texts[:]
    threshold = 0.0
    if data.spec.goal == "classification":
        threshold = best_threshold(SIMPLE_SCORES[name](known, *texts_of(train)), train.target)
    found: dict[str, float] = {}
    for key, split in splits.items():
        pairs = data.split(split).pairs
        score = SIMPLE_SCORES[name](known, *texts_of(pairs)) - threshold
        scores = new_scores(data.spec.goal, data)
        scores.update(
            torch.from_numpy(score),
            torch.from_numpy(np.array(pairs.target)),
            torch.ones(len(pairs)),
            torch.from_numpy(np.array(pairs.question)).long(),
            loss=torch.zeros(0),
        )
        found |= {f"{key}/{metric}": float(value) for metric, value in scores.compute().items()}
        del found[f"{key}/loss"]
    return found


def texts_of(pairs: Pairs) -> tuple[list[str], list[str]]:
    """First and second text of every pair."""
    sides = (pairs.first.texts[:], pairs.first_row), (pairs.second.texts[:], pairs.second_row)
    first, second = ([texts[row] for row in rows] for texts, rows in sides)
    return first, second


def best_threshold(score: Scores, target: NDArray[np.floating]) -> float:
    """The score above which pairs are to be called matches for most of them to be called right.

    Args:
        score: [P].
        target: [P]; above 0 = matches.

    Returns:
        The threshold, halfway between two scores, or 1 beyond the last where all or none should match.
    """
    values, group = np.unique(score, return_inverse=True)
    matches = np.bincount(group, weights=target > 0, minlength=len(values))
    others = np.bincount(group, minlength=len(values)) - matches
    # Right with a threshold below value i: the others below it, and the matches from it on.
    right = np.concatenate([[0], others.cumsum()]) + matches.sum() - np.concatenate([[0], matches.cumsum()])
    if not len(values):
        return 0.0
    edges = np.concatenate([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])
    return float(edges[int(right.argmax())])
