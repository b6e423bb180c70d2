"""Predictions of a trained matching model: pairs in, scores out; a question in, ranked candidates out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from datamodules.batch import MatchingBatch
from datamodules.core.errors import InputError, check_count, excerpt
from datamodules.core.types import PlainDict
from datamodules.corpora.pair_readers import read_pairs
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.records import Column, TextColumn
from datamodules.matching.datamodule import MatchingDataModule
from datamodules.matching.dataset import MatchingSplit
from datamodules.matching.tables import read_pair_table
from datamodules.retrieval import is_existing_index
from datamodules.retrieval.base import MOST_HITS
from datamodules.text.vocabulary import Vocabulary
from zoo.tasks.predictor import Predictor, as_record, as_texts, blocks_of, memory_of, texts_in

if TYPE_CHECKING:
    from zoo.tasks.matching.task import MatchingOutput, MatchingTask  # noqa: F401 - as a string below

#: Word pairs that explain a score.
NUM_WORD_PAIRS = 5


class WordPair(NamedTuple):
    """A word of each text, and the strength of their interaction."""

    first: str
    second: str
    strength: float


class PairPrediction(NamedTuple):
    """Prediction for two texts."""

    first: str
    second: str
    #: higher = matches better; comparable between pairs of one first text.
    score: float
    #: probability of a match; None where the model was trained to rank and its score is no probability.
    probability: float | None
    #: the strongest interactions, strongest first; empty where the model compares no words.
    words: list[WordPair]


class Candidate(NamedTuple):
    """A text that was ranked for a question."""

    #: of its row in the memory; None where the candidates were given.
    id: str | None
    text: str
    score: float
    #: the retriever's score; None where the candidates were given.
    retrieval_score: float | None
    words: list[WordPair]


class MatchingPredictor(Predictor["MatchingTask", MatchingDataModule]):
    """Scores pairs, ranks given candidates, or retrieves candidates from the memory and ranks them."""

    example = 'model.predict([("a question", "an answer")])[0]'
    answers_from_memory = True

    @classmethod
    @override
    def needs_memory(cls, data: MatchingDataModule) -> bool:
        return is_existing_index(data.retriever)

    def predict(self, pairs: Sequence[tuple[str, str]], batch_size: int = 256) -> list[PairPrediction]:
        """Score pairs of first and second texts; raises an `InputError` if one is not a pair of strings."""
        check_count("batch_size", batch_size)
        for number, pair in enumerate(pairs):
            if isinstance(pair, str) or len(as_texts(pair, f"pair {number}: text")) != 2:
                raise InputError(f"pair {number}: {excerpt(repr(pair))} is not two texts")
        predictions = self._predictions(pairs, batch_size)
        return list(tqdm(predictions, "predicting", len(pairs), unit=" pairs", delay=2, disable=None))

    def rank(self, question: str, candidates: Sequence[str], batch_size: int = 256) -> list[Candidate]:
        """Order the candidates for a question, best first; among equal scores the earlier one."""
        scored = self.predict([(question, candidate) for candidate in candidates], batch_size)
        return _ranked(scored, [None] * len(scored), [None] * len(scored))

    def answer(
        self, questions: str | Sequence[str], candidates: int = 20, batch_size: int = 256
    ) -> list[list[Candidate]]:
        """Order candidates from the memory for each question, best first; raises an `InputError` without a memory."""
        questions = as_texts(questions, "question")
        check_count("candidates", candidates, MOST_HITS)
        check_count("batch_size", batch_size)
        if self.memory is None:
            self.memory = memory_of(self.data).open()
        if not questions:
            return []
        neighbors = self.memory.search(questions, candidates)
        # All pairs of all questions together, so that batches are full.
        pairs = [
            (question, neighbors.memories.texts[int(row)])
            for question, rows in zip(questions, neighbors.rows, strict=True)
            for row in rows[rows >= 0]
        ]
        predictions, ids = iter(self.predict(pairs, batch_size)), neighbors.memories.ids
        return [
            _ranked(
                islice(predictions, int((rows >= 0).sum())),
                [ids[row] for row in rows[rows >= 0].tolist()],
                scores[rows >= 0].tolist(),
            )
            for rows, scores in zip(neighbors.rows, neighbors.scores, strict=True)
        ]

    def predict_split(self, split: MatchingSplit, lists: int | None = None) -> dict[int, PairPrediction]:
        """Predictions for the pairs of the first lists (None: all): row -> prediction."""
        predictions: dict[int, PairPrediction] = {}
        dataset = self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, max(1, len(dataset)), lists):
            predictions |= self._of_batch(split, batch, output)
        return predictions

    def _of_batch(
        self, split: MatchingSplit, batch: MatchingBatch, output: MatchingOutput
    ) -> dict[int, PairPrediction]:
        score = output.score.float().cpu()
        probability = self.model.probability(score)
        words: list[list[WordPair]] = [[]] * len(score)
        if output.interaction is not None:
            words = _strongest(output.interaction.float().cpu(), batch, split, self.data.words.vocabulary)
        firsts, seconds = split.pairs.first.texts, split.pairs.second.texts
        return {
            row: PairPrediction(
                first=firsts[int(split.pairs.first_row[row])],
                second=seconds[int(split.pairs.second_row[row])],
                score=float(score[position]),
                probability=None if probability is None else float(probability[position]),
                words=words[position],
            )
            for position, row in enumerate(batch.row.tolist())
        }

    def _predictions(self, pairs: Iterable[tuple[str, str]], batch_size: int) -> Iterator[PairPrediction]:
        for block in blocks_of(pairs, batch_size):
            firsts, seconds = zip(*block, strict=True)
            split = self.data.split_of(Pairs.from_lists(firsts, seconds, source="pairs to predict"))
            predictions = self.predict_split(split)
            yield from (predictions[row] for row in range(len(block)))

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        first_column: Column | None = None,
        second_column: Column | None = None,
        candidates: int = 20,
    ) -> Iterator[PlainDict]:
        """The score of each pair of a table; or of texts alone, each with candidates from the memory, ranked.

        Args:
            source: see `Predictor.records`; a .txt file or standard input holds texts alone.
            batch_size: pairs that pass through the network together.
            text_column: column or columns of texts alone; null: the table holds pairs.
            first_column: a pair's first text; null: as in training.
            second_column: a pair's second text; null: as in training.
            candidates: number of candidates that are retrieved for a text.
        """
        check_count("candidates", candidates, MOST_HITS)
        if text_column is not None or source == "-" or source.endswith(".txt"):
            texts = texts_in(source, {"text_column": text_column or "text"})
            return self._answers(texts, candidates, batch_size)
        if first_column is None and second_column is None:
            return self._scores(read_pair_table(source, self.data.options, labelled=False), batch_size)
        options = self.data.options
        first = options.first_column if first_column is None else first_column
        second = options.second_column if second_column is None else second_column
        return self._scores(read_pairs(source, first, second), batch_size)

    def _scores(self, pairs: Pairs, batch_size: int) -> Iterator[PlainDict]:
        texts = (
            (pairs.first.texts[int(first)], pairs.second.texts[int(second)])
            for first, second in zip(pairs.first_row, pairs.second_row, strict=True)
        )
        for row, prediction in enumerate(self._predictions(texts, batch_size)):
            question = pairs.question_ids[int(pairs.question[row])].as_py()
            yield {"id": pairs.ids[row].as_py(), "question": question, **as_record(prediction)}

    @override
    def table_rows(self, record: PlainDict) -> Iterator[PlainDict]:
        (own,) = super().table_rows(record)
        if "candidates" not in record:
            yield own
        for rank, candidate in enumerate(record.get("candidates", ()), 1):
            (row,) = super().table_rows(candidate)
            yield {**own, "rank": rank, **{f"candidate_{key}": value for key, value in row.items()}}

    @override
    def text_records(self, texts: Sequence[str], batch_size: int = 256) -> Iterator[PlainDict]:
        return self._answers(texts, 20, batch_size)

    def _answers(self, texts: Iterable[str], candidates: int, batch_size: int) -> Iterator[PlainDict]:
        for block in blocks_of(texts):
            for question, ranked in zip(block, self.answer(block, candidates, batch_size), strict=True):
                yield {"text": question, "candidates": [as_record(candidate) for candidate in ranked]}


def _ranked(
    pairs: Iterable[PairPrediction], ids: Iterable[str | None], retrieval_scores: Iterable[float | None]
) -> list[Candidate]:
    """The second texts of pairs, best first; among equal scores the earlier one."""
    candidates = [
        Candidate(name, pair.second, pair.score, retrieval_score, pair.words)
        for pair, name, retrieval_score in zip(pairs, ids, retrieval_scores, strict=True)
    ]
    return sorted(candidates, key=lambda candidate: -candidate.score)


def _strongest(
    interaction: Tensor, batch: MatchingBatch, split: MatchingSplit, vocabulary: Vocabulary
) -> list[list[WordPair]]:
    """The strongest word pairs of each pair of texts, without a transformer's special tokens."""
    before, after = len(vocabulary.prefix), len(vocabulary.suffix)
    masks = []
    for text in (batch.first_text[batch.first], batch.second_text[batch.second]):
        position = torch.arange(text.shape[1])
        masks.append((position >= before) & (position < (text != 0).sum(dim=1, keepdim=True) - after))
    is_word_pair = masks[0][:, :, None] & masks[1][:, None, :]
    flat = interaction.masked_fill(~is_word_pair, -torch.inf).flatten(1)  # [P, T*S]
    strengths, positions = flat.topk(min(NUM_WORD_PAIRS, flat.shape[1]), dim=1)
    width = interaction.shape[2]
    word_pairs = []
    pairs = zip(batch.row.tolist(), strengths.tolist(), positions.tolist(), strict=True)
    for row, row_strengths, row_positions in pairs:
        first = split.first_tokens.words(int(split.pairs.first_row[row]))
        second = split.second_tokens.words(int(split.pairs.second_row[row]))
        word_pairs.append(
            [
                WordPair(first[position // width - before], second[position % width - before], strength)
                for strength, position in zip(row_strengths, row_positions, strict=True)
                if strength != -torch.inf
            ]
        )
    return word_pairs
