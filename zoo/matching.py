"""A trained matching model with its data side: pairs in, scores out; a question in, ranked candidates out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from torch import Tensor

from datamodules.batch import MatchingBatch
from datamodules.corpora.pairs import Pairs
from datamodules.matching import MatchingDataModule
from datamodules.matching_dataset import MatchingSplit
from datamodules.retrieval.memory import Memory
from datamodules.text.vocabulary import Vocabulary
from zoo.tasks.ranking import MatchingTask

#: Word pairs that explain a score.
NUM_WORD_PAIRS = 5


class WordPair(NamedTuple):
    """A word of each text, and how strongly the model sees them interact."""

    first: str
    second: str
    strength: float


class PairPrediction(NamedTuple):
    """What a model says of two texts."""

    first: str
    second: str
    #: higher = matches better; comparable between pairs of one first text.
    score: float
    #: that they match; None where the model was trained to rank and its score is no probability.
    probability: float | None
    #: the strongest interactions, strongest first; empty where the model compares no words.
    words: list[WordPair]


class Candidate(NamedTuple):
    """A text that was ranked for a question."""

    text: str
    score: float
    #: the retriever's score; None where the candidates were given.
    retrieval_score: float | None
    words: list[WordPair]


class MatchingPredictor:
    """A trained matching model: scores pairs, ranks given candidates, or finds and ranks them."""

    def __init__(self, model: MatchingTask, data: MatchingDataModule, memory: Memory | None = None) -> None:
        """Put the two together.

        Args:
            model: with its network.
            data: the model's.
            memory: where candidates of questions alone are found; None = the data's own, opened when it is first
                needed.
        """
        self.model = model.eval()
        self.data = data
        self.memory = memory

    def score(self, pairs: Sequence[tuple[str, str]], batch_size: int = 256) -> list[PairPrediction]:
        """Score pairs of texts.

        Args:
            pairs: first and second texts.
            batch_size: pairs that go through the network together.

        Returns:
            For each pair its score, and the word pairs that speak for it.
        """
        found: list[PairPrediction] = []
        for start in range(0, len(pairs), batch_size):
            found.extend(self._score(pairs[start : start + batch_size]))
        return found

    def rank(self, question: str, candidates: Sequence[str], batch_size: int = 256) -> list[Candidate]:
        """Put a question's candidates in order, the best first; of equal scores the earlier one.

        Args:
            question: the first text.
            candidates: the second texts.
            batch_size: pairs that go through the network together.
        """
        scored = self.score([(question, candidate) for candidate in candidates], batch_size)
        ranked = [Candidate(pair.second, pair.score, None, pair.words) for pair in scored]
        return sorted(ranked, key=lambda candidate: -candidate.score)

    def answer(
        self, questions: str | Sequence[str], candidates: int = 20, batch_size: int = 256
    ) -> list[list[Candidate]]:
        """Find candidates for questions in the memory and put them in order.

        Args:
            questions: one or several.
            candidates: how many the memory is asked for; fewer where it has fewer that share a word.
            batch_size: pairs that go through the network together.

        Returns:
            For each question its candidates, the best first.

        Raises:
            InputError: there is no memory, or its folder is gone.
        """
        if self.memory is None:
            self.memory = self.data.open_memory()
        questions = [questions] if isinstance(questions, str) else list(questions)
        if not questions:
            return []
        found = self.memory.search(questions, candidates)
        # All pairs of all questions together, so that batches are full.
        hits = [
            (question, int(row), float(score))
            for question, rows, scores in zip(questions, found.rows, found.scores, strict=True)
            for row, score in zip(rows, scores, strict=True)
            if row >= 0
        ]
        scored = iter(
            self.score([(question, found.memories.texts[row]) for question, row, _ in hits], batch_size)
        )
        retrieval_scores = iter(score for _, _, score in hits)
        answers = []
        for rows in found.rows:
            ranked = [
                Candidate(pair.second, pair.score, next(retrieval_scores), pair.words)
                for pair in (next(scored) for row in rows if row >= 0)
            ]
            answers.append(sorted(ranked, key=lambda candidate: -candidate.score))
        return answers

    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[PairPrediction]:
        firsts, seconds = zip(*pairs, strict=True)
        split = self.data.split_of(Pairs.from_lists(firsts, seconds, source="pairs to predict"))
        found = predict_pairs(self.model, self.data, split)
        return [found[row] for row in range(len(pairs))]


def predict_pairs(
    model: MatchingTask, data: MatchingDataModule, split: MatchingSplit, lists: int | None = None
) -> dict[int, PairPrediction]:
    """Predictions for the pairs of the first lists (None: all), as one batch.

    Args:
        model: with its network.
        data: the model's.
        split: the pairs; a list is all pairs of a question, or where pairs are classified one pair.
        lists: how many.

    Returns:
        row number -> prediction, list after list.
    """
    training = model.training
    model.eval()
    try:
        with data.dataset_for_now(split) as dataset:
            total = len(dataset) if lists is None else min(lists, len(dataset))
            batch = dataset.__getitems__(range(total))
        with torch.inference_mode():
            output = model(move_data_to_device(batch, model.device))
    finally:
        model.train(training)
    score = output.score.float().cpu()
    probability = model.probability(score)
    words: list[list[WordPair]] = [[]] * len(score)
    if output.interaction is not None:
        words = _strongest(output.interaction.float().cpu(), batch, split, data.vocabulary)
    firsts, seconds = split.pairs.first.texts, split.pairs.second.texts
    return {
        row: PairPrediction(
            first=firsts[int(split.pairs.first_row[row])],
            second=seconds[int(split.pairs.second_row[row])],
            score=float(score[at]),
            probability=None if probability is None else float(probability[at]),
            words=words[at],
        )
        for at, row in enumerate(batch.index.tolist())
    }


def _strongest(
    interaction: Tensor, batch: MatchingBatch, split: MatchingSplit, vocabulary: Vocabulary
) -> list[list[WordPair]]:
    """The strongest word pairs of each pair of texts, without a transformer's special tokens."""
    before, after = len(vocabulary.prefix), len(vocabulary.suffix)
    masks = []
    for text in (batch.first_text[batch.first], batch.second_text[batch.second]):
        place = torch.arange(text.shape[1])
        masks.append((place >= before) & (place < (text != 0).sum(dim=1, keepdim=True) - after))
    real = masks[0][:, :, None] & masks[1][:, None, :]
    flat = interaction.masked_fill(~real, -torch.inf).flatten(1)  # [P, T*S]
    strengths, places = flat.topk(min(NUM_WORD_PAIRS, flat.shape[1]), dim=1)
    width = interaction.shape[2]
    found = []
    for row, of_pair, at in zip(batch.index.tolist(), strengths.tolist(), places.tolist(), strict=True):
        first = split.first_tokens.words(int(split.pairs.first_row[row]))
        second = split.second_tokens.words(int(split.pairs.second_row[row]))
        found.append(
            [
                WordPair(first[place // width - before], second[place % width - before], strength)
                for strength, place in zip(of_pair, at, strict=True)
                if strength != -torch.inf
            ]
        )
    return found
