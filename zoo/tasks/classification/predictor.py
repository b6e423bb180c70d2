"""Predictions of a trained classifier: texts in, labels with their evidence out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from itertools import tee
from operator import attrgetter, itemgetter, length_hint
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from typing_extensions import override

from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError, check_count, excerpt
from datamodules.core.progress import progress_bar
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.types import PlainDict
from datamodules.corpora.multilabel import distinct_labels, join_labels
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.retrieval.dense.text_vectors import ProgressBar
from datamodules.text_rows import TextSplit
from zoo.tasks.classification.held_out import (
    TUNE_ADVICE,
    HeldOutRows,
    answer_threshold,
    check_level,
    contents_of,
    drift,
    familiarity_of,
    set_threshold,
    unknown_threshold,
)
from zoo.tasks.classification.multilabel import probabilities_of
from zoo.tasks.outputs import ClassificationOutput
from zoo.tasks.predictor import Predictor, collecting_later, evaluating, on_device
from zoo.tasks.records import Counted, as_record, as_texts, blocks_of, texts_and_ids_in

log = logging.getLogger("zoo")


class RetrievedMemory(NamedTuple):
    """One piece of evidence for a prediction."""

    #: of its row in the memory; `zoo memory remove` and `relabel` take it.
    id: str
    text: str
    #: None where the memory has no label.
    label: str | None
    #: the retriever's score of the memory for the text.
    retrieval_score: float
    #: weight of the memory in the network; see the model's output.
    weight: float
    #: the weight in each hop of a network that reads its memories in hops; None for other networks.
    hop_weights: list[float] | None = None
    #: `words`, `vectors` or `words and vectors`, where a model retrieves in several ways.
    found_by: str | None = None


class LabelEvidence(NamedTuple):
    """One label of a predicted set."""

    label: str
    probability: float
    #: member of an ensemble -> its contribution to the log odds of the label.
    contributions: dict[str, float] | None = None


class Prediction(NamedTuple):
    """A text's predicted label with its evidence."""

    text: str
    #: None where the model abstains. Of a set, its labels with the table's separator between them; "" has none.
    label: str | None
    #: of `label`, or of the label that the model would have answered; of the whole set that it would have answered, as
    #: if its labels were independent.
    probability: float
    #: label -> probability.
    probabilities: dict[str, float]
    #: in retrieval order.
    memories: list[RetrievedMemory]
    #: member of an ensemble -> its contribution to the score of `label`; contributions to all labels have the mean 0,
    #: and the probabilities are the softmax of the scores. None: the model is no ensemble.
    contributions: dict[str, float] | None = None
    #: whether only the memory has the label, in rows that were added after the training. None: of no such model.
    known_by_memory_alone: bool | None = None
    #: share of the held-out rows that look as little as this text, or less, like the model's classes: few of a text
    #: of another kind, all of one that stands in the memory. None: of a model without held-out rows.
    familiarity: float | None = None
    #: why the model abstains: the text is `unknown`, of another kind than the classes; or its label is too `uncertain`.
    #: "" = it does not. None: no level was given.
    reason: str | None = None
    #: the labels that the text may have, so that its own is seldom missing. None: no such set was wanted.
    labels: list[str] | None = None
    #: the labels of a set, the most probable first. None: of a model that predicts one label.
    of_labels: list[LabelEvidence] | None = None

    def __repr__(self) -> str:
        answer = f"label={self.label!r}, probability={self.probability:.3f}, text={excerpt(self.text, 60)!r}"
        evidence = f"{len(self.probabilities)} probabilities, {len(self.memories)} memories"
        return f"Prediction({answer}; {evidence})"


class ClassificationPredictor(Predictor[ClassificationDataModule]):
    """Texts in, labels with their evidence out."""

    example = 'model.predict(["a text"])[0]'
    table_options: ClassVar[Mapping[str, Any]] = {"memories": 0, "top": 1}
    #: whether the user knows that the memory has changed since the held-out rows were classified.
    _has_named_change: bool = False

    @override
    def __repr__(self) -> str:
        labels = self.model.labels
        return f"{super().__repr__()}\n  labels     {len(labels):,}: {excerpt(', '.join(labels), 80)}"

    def predict(
        self,
        texts: str | Sequence[str],
        batch_size: int = 256,
        max_error: float | None = None,
        confidence: float = 0.95,
        label_sets: float | None = None,
        memories: int | None = None,
        top: int | None = None,
        unknown: float | None = None,
    ) -> list[Prediction]:
        """Classify one text or several, as `records` does; an `InputError` if one is not a string."""
        texts = as_texts(texts)
        check_count("batch_size", batch_size)
        present = self._presenter(max_error, confidence, label_sets, memories, top, unknown)
        predictions = self._predictions(iter(texts), batch_size, len(texts), memories != 0)
        return list(progress_bar(map(present, predictions), "predicting", len(texts)))

    def predict_and_encode(
        self, texts: list[str], batch_size: int = 256
    ) -> tuple[list[Prediction], NDArray[np.float32] | None]:
        """Classify texts, without their memories, and return the vectors of `encode`; None without a text encoder.

        A text passes through the encoder once.
        """
        vectors = list[torch.Tensor]()
        found = self._predictions(iter(texts), batch_size, len(texts), memories=False, vectors=vectors)
        predictions = list(progress_bar(found, "predicting", len(texts)))
        if vectors:
            return predictions, functional.normalize(torch.cat(vectors), dim=1).numpy()
        return predictions, None if self.model.vector_size is None else self.encode(texts, batch_size)

    def _predictions(
        self,
        texts: Iterator[str],
        batch_size: int,
        total: int = 0,
        memories: bool = True,
        vectors: list[torch.Tensor] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for texts, one block in memory at a time; `total` is their number, if it is known.

        `vectors` receives those that the network has made of the texts, of each batch.
        """
        count = 0
        for block in blocks_of(texts):
            count += len(block)
            rows = Rows.from_lists(block, source="texts to predict")
            # What the model reads of a memory must not change before its texts are predicted.
            with self.model.in_use, collecting_later():
                self.model.read_memory(self.data, self.memory, max(total, count))
                split = self.data.split_of(rows, self.memory, self.model.batch_contents("predict"))
                predictions = list(self.predict_split(split, batch_size, None, memories, vectors))
            yield from predictions

    def _presenter(
        self,
        max_error: float | None,
        confidence: float,
        label_sets: float | None,
        memories: int | None,
        top: int | None,
        unknown: float | None,
    ) -> Callable[[Prediction], Prediction]:
        """A function that abstains, adds a set of labels, and keeps the heaviest memories and most probable labels."""
        levels = {"max_error": max_error, "label_sets": label_sets, "unknown": unknown}
        for name, level in {**levels, "confidence": confidence}.items():
            check_level(name, level)
        if memories is not None and memories < 0:
            raise InputError(f"--memories {memories}: must be 0 or more")
        if top is not None:
            with self.model.in_use:
                self.model.read_memory(self.data, self.memory, 1)  # which may have further labels
                labels = len(self.model.labels)
            if not 1 <= top <= labels:
                raise InputError(f"--top {top}: must be 1 to {labels}, the number of the model's labels")
        of_unknown, of_set, bound = 0.0, None, None
        if any(level is not None for level in levels.values()):
            rows = self.held_out_rows()
            separator = self.model.spec.label_separator
            of_unknown = 0.0 if unknown is None else unknown_threshold(rows, unknown)
            of_set = None if label_sets is None else set_threshold(rows, label_sets)
            if max_error is not None:
                least = answer_threshold(rows, max_error, confidence)
                # Nothing is known about the error of a label that only the memory has, and no held-out row.
                known = {*distinct_labels(rows.labels, separator), *self.model.spec.labels}
                bound = partial(_bounded, least=least, known=known, most=rows.most, separator=separator)

        def present(prediction: Prediction) -> Prediction:
            changes: PlainDict = {}
            probabilities = prediction.probabilities.items()
            if max_error is not None or unknown is not None:
                answer = prediction if bound is None else bound(prediction)
                reason = "uncertain" if answer.label is None else ""
                if unknown is not None and (prediction.familiarity or 0.0) <= of_unknown:
                    reason = "unknown"
                changes = {"label": None if reason else answer.label, "reason": reason}
                if prediction.of_labels is not None:
                    changes["of_labels"] = [] if reason else answer.of_labels
            if of_set is not None:
                changes["labels"] = [label for label, probability in probabilities if probability >= of_set]
            if memories is not None:
                changes["memories"] = nlargest(memories, prediction.memories, key=attrgetter("weight"))
            if top is not None:
                changes["probabilities"] = dict(nlargest(top, probabilities, key=itemgetter(1)))
            return prediction._replace(**changes)

        return present

    def held_out_rows(self) -> HeldOutRows:
        """Results for the held-out rows of the training, or of the last `zoo memory tune`."""
        options = "max_error, label_sets, unknown"
        if self.held_out is None:
            kind = type(self.model).__name__
            advice = TUNE_ADVICE if self.model.fits_weights else "train a MemoryEnsemble"
            raise InputError(f"{options}, report: this {kind} has no held-out rows; {advice}")
        if self.held_out.memory != contents_of(self.memory) and not self._has_named_change:
            self._has_named_change = True
            log.info("%s: the memory changed after its rows were held out; %s", options, TUNE_ADVICE)
        return self.held_out

    def predict_split(
        self,
        split: TextSplit,
        batch_size: int = 256,
        rows: int | NDArray[np.int64] | None = None,
        memories: bool = True,
        vectors: list[torch.Tensor] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions for rows of a prepared table: the first ones, those with these numbers, or all (None)."""
        dataset = self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, batch_size, rows):
            numbers = batch.row.numpy()
            retrieved = _memories(split, numbers, output) if memories else None
            if vectors is not None and output.text_vector is not None:
                vectors.append(output.text_vector.float().cpu())
            yield from self._of_batch(split.rows.texts.take(numbers), retrieved, output)

    def _of_batch(
        self, texts: list[str], memories: list[list[RetrievedMemory]] | None, output: ClassificationOutput
    ) -> Iterable[Prediction]:
        labels, separator = self.model.labels, self.model.spec.label_separator
        memories, values = memories or [[] for _ in texts], probabilities_of(output.logits).cpu().tolist()
        sets = [None] * len(texts) if output.chosen is None else output.chosen.tolist()
        for text, probability, retrieved, in_set in zip(texts, values, memories, sets, strict=True):
            probabilities = dict(zip(labels, probability, strict=True))
            best = max(labels, key=probabilities.__getitem__)
            prediction = Prediction(text, best, probabilities[best], probabilities, retrieved)
            yield prediction if in_set is None else _with_set(prediction, in_set, separator)

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        id_column: Column | None = None,
        max_error: float | None = None,
        confidence: float = 0.95,
        label_sets: float | None = None,
        report: bool = False,
        memories: int | None = None,
        top: int | None = None,
        unknown: float | None = None,
        shard: Shard = WHOLE,
    ) -> Iterator[PlainDict]:
        """A text's label, probabilities and memories, in the order of the texts; for a table with ids, the text's id.

        Args:
            source: see `Predictor.records`.
            batch_size: texts that pass through the network together.
            text_column: the table's text column or columns; null: as in training.
            id_column: the table's column of ids, written next to the predictions; null: none.
            max_error: abstain (label null) where needed to keep the error among the answers below this level, such as
                0.05, for texts like the held-out rows of the training or of `zoo memory tune`; of sets, the share of
                wrong labels among those that are given; null: answer always.
            confidence: of this promise, over the draw of the held-out rows.
            label_sets: write the labels that a text may have, such that its own is missing with at most this
                probability, such as 0.1; null: no sets.
            report: at the end, log the share of texts that are of another kind, and whether that is drift.
            memories: write this number of memories, those with the largest weights; null: all, in a table 0.
            top: write the probabilities of this number of labels, the most probable ones; null: all, in a table 1.
            unknown: abstain (label null) where a text is of another kind than the classes, by a measure that takes at
                most this share of the texts like the held-out rows for unknown, such as 0.05; null: answer always.
            shard: the part of the source.
        """
        if report and shard.count > 1:
            raise InputError("--report: compares the texts of a whole table; omit it, or --shard")
        options = self.data.options.to_dict()
        columns = {name: options[name] for name in ("text_column", "header", "quotes")}
        if text_column is not None:
            columns |= {"text_column": text_column, "header": None}
        check_count("batch_size", batch_size)
        present = self._presenter(max_error, confidence, label_sets, memories, top, unknown)
        rows = texts_and_ids_in(source, {**columns, "id_column": id_column}, shard)
        # By the number of all rows, every shard makes the same choice to encode the memory first.
        total, whole = length_hint(rows), rows.whole if isinstance(rows, Counted) else 0
        texts, named = tee(rows)
        predictions = self._predictions((text for text, _ in texts), batch_size, whole, memories != 0)
        shown = map(present, self._reported(predictions) if report else predictions)
        pairs = zip(shown, (name for _, name in named), strict=True)
        return Counted((_record_of(each, name, memories != 0) for each, name in pairs), total)

    def _reported(self, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
        """Pass on predictions, and at the end log whether their texts are like the held-out rows."""
        self.held_out_rows()  # refuses a model without them before its predictions
        values = list[float]()
        for prediction in predictions:
            values.append(prediction.familiarity or 0.0)
            yield prediction
        log.info("%s", self.drift(values)["summary"])

    def drift(self, familiarity: Sequence[float]) -> PlainDict:
        """Compare the familiarity of predicted texts with that of the held-out rows; see `held_out.drift`."""
        rows = self.held_out_rows()
        return drift(familiarity_of(rows, rows.familiarity), familiarity)

    @override
    def table_rows(self, record: PlainDict) -> Iterator[PlainDict]:
        (row,) = super().table_rows(record)
        for name in ("known_by_memory_alone", "familiarity"):
            row.pop(name, None)
        if "labels" in record:
            row["labels"] = json.dumps(record["labels"], ensure_ascii=False)
        others = list(enumerate(record["probabilities"].items(), 1))
        for rank, (label, probability) in others["of_labels" not in record :]:  # a set is none of them
            row |= {f"label_{rank}": label, f"probability_{rank}": probability}
        if "memories" in record:
            row["memories"] = lines_of([RetrievedMemory(**memory) for memory in record["memories"]])
        yield row

    @override
    def text_records(self, texts: Sequence[str]) -> Iterator[PlainDict]:
        return map(as_record, self.predict(texts))

    @override
    def encode(
        self, texts: list[str], batch_size: int = 256, bar: ProgressBar | None = None, queries: bool = False
    ) -> NDArray[np.float32]:
        vectors = torch.from_numpy(self.raw_vectors(texts, self.data.lengths[0], batch_size, bar))
        return functional.normalize(vectors, dim=1).numpy()

    def raw_vectors(
        self, texts: list[str], length: int, batch_size: int = 256, bar: ProgressBar | None = None
    ) -> NDArray[np.float32]:
        """The texts' vectors [n, size] before normalization, from `length` words of each; 0 without words."""
        vectors, done = np.zeros((len(texts), self.vector_size), np.float32), 0
        for rows, batch in self.data.text_batches(texts, length, batch_size):
            with evaluating(self.model):
                vectors[rows] = self.model.encode_texts(on_device(batch, self.model)).float().cpu().numpy()
            done += len(rows)
            if bar is not None:
                bar.update(len(rows))
        if bar is not None:
            bar.update(len(texts) - done)
        return vectors


def _bounded(
    prediction: Prediction, least: float, known: set[str], most: int, separator: str | None
) -> Prediction:
    """The same with the labels of the answer that are as probable as this, and known; the label None without any."""
    if prediction.of_labels is None:
        is_given = prediction.probability >= least and prediction.label in known
        return prediction if is_given else prediction._replace(label=None)
    places = prediction.of_labels[:most]
    given = [each for each in places if each.probability >= least and each.label in known]
    label = join_labels([each.label for each in given], separator or "")
    return prediction._replace(label=label if given or not places else None, of_labels=given)


def _with_set(prediction: Prediction, in_set: list[int], separator: str) -> Prediction:
    """The same with the labels of a set, 0 or 1 for each label, as its answer."""
    values = prediction.probabilities
    kept = [label for label, is_in in zip(values, in_set, strict=True) if is_in]
    whole = math.prod(values[label] if label in kept else 1 - values[label] for label in values)
    best_first = sorted(kept, key=values.__getitem__, reverse=True)
    evidence = [LabelEvidence(label, values[label]) for label in best_first]
    return prediction._replace(label=join_labels(kept, separator), probability=whole, of_labels=evidence)


def _record_of(prediction: Prediction, name: str | None, has_memories: bool) -> PlainDict:
    record = as_record(prediction) if name is None else {"id": name, **as_record(prediction)}
    if not has_memories:
        del record["memories"]
    return record


def lines_of(memories: Sequence[RetrievedMemory]) -> str:
    """The memories of a prediction for a cell of a table, one a line."""
    return "\n".join(
        f"[{memory.label}] {memory.text} (id {memory.id}, score {memory.retrieval_score:.2f}, weight"
        f" {memory.weight:+.3f})"
        for memory in memories
    )


def _memories(
    split: TextSplit, batch: NDArray[np.int64], output: ClassificationOutput
) -> list[list[RetrievedMemory]]:
    """The memories of the texts of a batch, by their row numbers in the split."""
    weights = output.memory_weight.cpu().tolist()
    if split.neighbors is None:
        return [[] for _ in weights]
    rows, scores = split.neighbors.rows[batch], split.neighbors.scores[batch]
    hops = [[None] * rows.shape[1]] * len(rows)
    if output.hop_weight is not None:
        hops = output.hop_weight.transpose(1, 2).cpu().tolist()
    return retrieved_memories(split.neighbors.memories, rows, scores.tolist(), weights, hops)


def retrieved_memories(
    memories: Rows, rows: NDArray[np.integer], *values: Sequence[Sequence[Any]]
) -> list[list[RetrievedMemory]]:
    """The memories of n texts, by their rows [n, K], -1 = none; with scores, weights and further values [n][K]."""
    exists = rows >= 0
    found = zip(*(column.to_pylist() for column in memories.select(rows[exists]).table.columns), strict=True)
    return [
        [RetrievedMemory(*next(found), *own) for has_memory, *own in zip(*row, strict=True) if has_memory]
        for row in zip(exists.tolist(), *values, strict=True)
    ]
