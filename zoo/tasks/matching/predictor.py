"""Predictions of a trained matching model: pairs in, scores out; a question in, ranked candidates out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from datamodules.batch import MatchingBatch
from datamodules.core.errors import InputError, check_count, excerpt
from datamodules.core.progress import progress_bar
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.types import PlainDict
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_identified
from datamodules.corpora.trec_runs import read_candidates
from datamodules.matching import MatchingDataModule, MatchingSplit, read_pair_table
from datamodules.retrieval import FolderMemory, is_existing_index
from datamodules.retrieval.base import MOST_HITS
from datamodules.text.vocabulary import Vocabulary
from zoo.tasks.predictor import Predictor, memory_of
from zoo.tasks.records import as_record, as_texts, blocks_of, records_or_lines, texts_in

#: Questions whose candidates are ranked together.
_LISTS = 64
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


class _List(NamedTuple):
    """A question and its candidates."""

    question: str
    texts: Sequence[str]
    #: of the candidates.
    ids: Sequence[str | None]
    #: the retriever's; empty where the candidates were given.
    scores: Sequence[float] = ()
    #: of the question.
    id: str | None = None


class MatchingPredictor(Predictor[MatchingDataModule]):
    """Scores pairs, ranks given candidates, or retrieves candidates from the memory and ranks them."""

    example = 'model.predict([("a question", "an answer")])[0]'
    answers_from_memory = True
    ranked = "candidates"

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
        return list(progress_bar(predictions, "predicting", len(pairs), " pairs"))

    def rank(self, question: str, candidates: Sequence[str]) -> list[Candidate]:
        """Order the candidates for a question, best first; among equal scores the earlier one."""
        (question,), candidates = as_texts(question, "question"), as_texts(candidates, "candidate")
        (ranked,) = self._ranked([_List(question, candidates, [None] * len(candidates))], 256)
        return ranked[1]

    def answer(
        self, questions: str | Sequence[str], candidates: int = 20, batch_size: int = 256
    ) -> list[list[Candidate]]:
        """Order candidates from the memory for each question, best first; raises an `InputError` without a memory."""
        questions = as_texts(questions, "question")
        check_count("candidates", candidates, MOST_HITS)
        check_count("batch_size", batch_size)
        ranked = self._ranked(self._retrieved(questions, candidates), batch_size)
        bar = progress_bar(ranked, "ranking", len(questions), " questions")
        return [candidates for _, candidates in bar]

    def _retrieved(self, questions: Iterable[str], number: int) -> Iterator[_List]:
        """Each question with a number of candidates from the memory."""
        if self.memory is None:
            self.memory = memory_of(self.data).open()
        for block in blocks_of(questions):
            neighbors = self.memory.search(block, number)
            ids, texts = neighbors.memories.ids, neighbors.memories.texts
            for question, rows, scores in zip(block, neighbors.rows, neighbors.scores, strict=True):
                own = rows[rows >= 0]
                yield _List(question, texts.take(own), [ids[row] for row in own], scores[rows >= 0].tolist())

    def _ranked(self, lists: Iterable[_List], batch_size: int) -> Iterator[tuple[_List, list[Candidate]]]:
        """Each list with its candidates, best first; among equal scores the earlier one."""
        for block in blocks_of(lists, _LISTS):
            pairs = [(each.question, text) for each in block for text in each.texts]
            predictions = self._predictions(pairs, batch_size)
            for each in block:
                scores = each.scores or repeat(None, len(each.ids))
                # The predictions of the next lists remain.
                candidates = [
                    Candidate(name, pair.second, pair.score, retrieval_score, pair.words)
                    for name, retrieval_score, pair in zip(each.ids, scores, predictions, strict=False)
                ]
                yield each, sorted(candidates, key=lambda candidate: -candidate.score)

    def predict_split(self, split: MatchingSplit, lists: int | None = None) -> dict[int, PairPrediction]:
        """Predictions for the pairs of the first lists (None: all): row -> prediction."""
        predictions: dict[int, PairPrediction] = {}
        pairs, dataset = split.pairs, self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, max(1, len(dataset)), lists):
            score = output.score.float().cpu()
            probability = self.model.probability(score)
            probabilities = [None] * len(score) if probability is None else probability.tolist()
            words: Iterable[list[WordPair]] = [[]] * len(score)
            if output.interaction is not None:
                words = _strongest(output.interaction.float().cpu(), batch, split, self.data.words.vocabulary)
            values = zip(score.tolist(), probabilities, words, strict=True)
            for row, own in zip(batch.row.tolist(), values, strict=True):
                first = pairs.first.texts[int(pairs.first_row[row])]
                second = pairs.second.texts[int(pairs.second_row[row])]
                predictions[row] = PairPrediction(first, second, *own)
        return predictions

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
        question_column: Column | None = None,
        id_column: Column | None = None,
        candidates: int = 20,
        rerank: str | None = None,
        documents: str | None = None,
        run_name: str | None = None,
        shard: Shard = WHOLE,
    ) -> Iterator[PlainDict] | Iterator[str]:
        """The score of each pair of a table; or of texts alone, each with candidates from the memory, ranked.

        Args:
            source: see `Predictor.records`; a .txt file or standard input holds texts alone.
            text_column: column or columns of texts alone; null: the table holds pairs.
            first_column: a pair's first text; null: as in training.
            second_column: a pair's second text; null: as in training.
            question_column: the id of a pair's first text; null: as in training, if a run is written.
            id_column: the id of a pair's second text; null: as in training, if a run is written.
            candidates: number of candidates that are retrieved for a text.
            rerank: a TREC run, whose documents are ranked for its queries; the source is a table of queries with ids.
            documents: with `rerank`, a table of the documents with ids; null: the rows of the memory.
            run_name: write lines of a TREC run, `query Q0 document rank score name`, with this name.
        """
        check_count("candidates", candidates, MOST_HITS)
        if rerank is not None:
            queries = read_identified(source, text_column)
            lists = self._lists_of(rerank, queries, documents, shard)
            return records_or_lines(self._list_records(lists, batch_size), "candidates", run_name)
        if documents is not None:
            raise InputError("--documents: are those of a run; name it with --rerank")
        if text_column is not None or source == "-" or source.endswith(".txt"):
            if run_name is not None:
                raise InputError(f"--output: a TREC run needs ids, and {source} has none; name it .jsonl")
            texts = texts_in(source, {"text_column": text_column or "text"}, shard)
            return self._list_records(self._retrieved(texts, candidates), batch_size)
        columns = {
            "first_column": first_column,
            "second_column": second_column,
            "question_column": question_column,
            "id_column": id_column,
        }
        named: PlainDict = {name: column for name, column in columns.items() if column is not None}
        options = self.data.options
        if named:
            options = replace(options, layout="table", header=None, quotes=None, **named)
        with_ids = run_name is not None or {"question_column", "id_column"} <= named.keys()
        pairs = read_pair_table(source, options, labelled=False, with_ids=with_ids)
        if run_name is None:
            return self._scores(pairs, batch_size, shard.rows(len(pairs), batch_size))
        lists = shard.of(_lists_in(pairs), len(pairs.question_ids), _LISTS)
        return records_or_lines(self._list_records(lists, batch_size), "candidates", run_name)

    def _lists_of(self, run: str, queries: Rows, documents: str | None, shard: Shard) -> Iterator[_List]:
        """The candidates of each query of a shard of a run."""
        if documents is not None:
            rows = read_identified(documents, self.data.options.document_column)
        else:
            memory = self.memory or memory_of(self.data).open()
            if not isinstance(memory, FolderMemory):
                raise InputError("--rerank: the texts of your own index are not available; name --documents")
            rows = memory.rows
        ranked = read_candidates(run, queries, rows, documents or "the model's memory (see --documents)")
        ids, names, numbers = queries.ids, rows.ids, np.flatnonzero(ranked.lists.counts)
        for number in shard.of(numbers.tolist(), len(numbers), _LISTS):
            own = ranked.document[ranked.lists[number]]
            candidates = [names[row] for row in own.tolist()]
            yield _List(queries.texts[number], rows.texts.take(own), candidates, id=ids[number])

    def _list_records(self, lists: Iterable[_List], batch_size: int) -> Iterator[PlainDict]:
        """A record of each list, with its candidates ranked."""
        for each, ranked in self._ranked(lists, batch_size):
            name = {} if each.id is None else {"id": each.id}
            yield {**name, "text": each.question, "candidates": list(map(as_record, ranked))}

    def _scores(self, pairs: Pairs, batch_size: int, rows: range) -> Iterator[PlainDict]:
        first, second = pairs.first.texts, pairs.second.texts
        texts = ((first[int(pairs.first_row[row])], second[int(pairs.second_row[row])]) for row in rows)
        for row, prediction in zip(rows, self._predictions(texts, batch_size), strict=True):
            question = pairs.question_ids[int(pairs.question[row])].as_py()
            yield {"id": pairs.ids[row].as_py(), "question": question, **as_record(prediction)}

    @override
    def text_records(self, texts: Sequence[str]) -> Iterator[PlainDict]:
        return self._list_records(self._retrieved(texts, 20), 256)


def _lists_in(pairs: Pairs) -> Iterator[_List]:
    """The candidates of each question of a table."""
    ids, second, offsets = pairs.ids.to_pylist(), pairs.second.texts, pairs.lists.offsets.tolist()
    for number, id_ in enumerate(pairs.question_ids.to_pylist()):
        rows = pairs.lists.values[offsets[number] : offsets[number + 1]].tolist()
        question = pairs.first.texts[int(pairs.question_row[number])]
        yield _List(question, second.take(pairs.second_row[rows]), [ids[row] for row in rows], id=id_)


def _strongest(
    interaction: Tensor, batch: MatchingBatch, split: MatchingSplit, vocabulary: Vocabulary
) -> Iterator[list[WordPair]]:
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
    pairs = zip(batch.row.tolist(), strengths.tolist(), positions.tolist(), strict=True)
    for row, row_strengths, row_positions in pairs:
        first = split.first_tokens.words(int(split.pairs.first_row[row]))
        second = split.second_tokens.words(int(split.pairs.second_row[row]))
        yield [
            WordPair(first[position // width - before], second[position % width - before], strength)
            for strength, position in zip(row_strengths, row_positions, strict=True)
            if strength != -torch.inf
        ]
