"""Predictions of a trained classifier: texts in, labels with their evidence out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import tee
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from tqdm import tqdm
from typing_extensions import override

from datamodules.core.errors import check_count
from datamodules.core.types import PlainDict
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.retrieval.dense.text_encoder import ProgressBar
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.tasks.predictor import (
    Predictor,
    as_record,
    as_texts,
    blocks_of,
    collecting_later,
    evaluating,
    on_device,
    texts_and_ids_in,
)

if TYPE_CHECKING:
    from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask  # noqa: F401 - as a string below


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


class Prediction(NamedTuple):
    """A text's predicted label with its evidence."""

    text: str
    label: str
    #: of `label`.
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


@runtime_checkable
class ExplainsPredictions(Protocol):
    """A model with more evidence than the memories of a batch."""

    def explain(self, predictions: Sequence[Prediction], output: Any) -> list[Prediction]:
        """Add evidence to the predictions of a batch, from the output of the network."""


class ClassificationPredictor(Predictor["ClassificationTask", TextRowsDataModule[Any]]):
    """Texts in, labels with their evidence out."""

    example = 'model.predict(["a text"])[0]'

    def predict(self, texts: str | Sequence[str], batch_size: int = 256) -> list[Prediction]:
        """Classify texts, `batch_size` at a time; raises an `InputError` if one is not a string."""
        texts = as_texts(texts)
        check_count("batch_size", batch_size)
        predictions = self._predictions(iter(texts), batch_size, len(texts))
        return list(tqdm(predictions, "predicting", len(texts), unit=" texts", delay=2, disable=None))

    def _predictions(self, texts: Iterator[str], batch_size: int, total: int = 0) -> Iterator[Prediction]:
        """Predictions for texts, one block in memory at a time; `total` is their number, if it is known."""
        count = 0
        for block in blocks_of(texts):
            count += len(block)
            rows = Rows.from_lists(block, source="texts to predict")
            # What the model reads of a memory must not change before its texts are predicted.
            with self.model.in_use, collecting_later():
                self.model.read_memory(self.data, self.memory, max(total, count))
                split = self.data.split_of(rows, self.memory, self.model.batch_contents("predict"))
                predictions = list(self.predict_split(split, batch_size))
            yield from predictions

    def predict_split(
        self, split: TextSplit, batch_size: int = 256, rows: int | None = None
    ) -> Iterator[Prediction]:
        """Predictions for the first rows of a prepared table, in row order; None = for all."""
        start = 0
        dataset = self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, batch_size, rows):
            texts = split.rows.texts[start : start + len(batch.row)]
            memories = _memories(split, start, output)
            yield from self._of_batch(texts, memories, output)
            start += len(batch.row)

    def _of_batch(
        self, texts: list[str], memories: list[list[RetrievedMemory]], output: ClassificationOutput
    ) -> Sequence[Prediction]:
        labels, predictions = self.model.labels, []
        for text, probability, retrieved in zip(
            texts, output.logits.softmax(dim=1).cpu().tolist(), memories, strict=True
        ):
            best = max(range(len(labels)), key=probability.__getitem__)
            probabilities = dict(zip(labels, probability, strict=True))
            predictions.append(Prediction(text, labels[best], probability[best], probabilities, retrieved))
        if isinstance(self.model, ExplainsPredictions):
            return self.model.explain(predictions, output)
        return predictions

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        id_column: Column | None = None,
    ) -> Iterator[PlainDict]:
        """A text's label, probabilities and memories, in the order of the texts; for a table with ids, the text's id.

        Args:
            source: see `Predictor.records`.
            batch_size: texts that pass through the network together.
            text_column: the table's text column or columns; null: as in training.
            id_column: the table's column of ids, written next to the predictions; null: none.
        """
        options = self.data.options.to_dict()
        columns = {name: options[name] for name in ("text_column", "header", "quotes")}
        if text_column is not None:
            columns |= {"text_column": text_column, "header": None}
        check_count("batch_size", batch_size)
        texts, named = tee(texts_and_ids_in(source, {**columns, "id_column": id_column}))
        predictions = self._predictions((text for text, _ in texts), batch_size)
        for prediction, (_, name) in zip(predictions, named, strict=True):
            yield as_record(prediction) if name is None else {"id": name, **as_record(prediction)}

    @override
    def text_records(self, texts: Sequence[str], batch_size: int = 256) -> Iterator[PlainDict]:
        return map(as_record, self.predict(texts, batch_size))

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


def _memories(split: TextSplit, start: int, output: ClassificationOutput) -> list[list[RetrievedMemory]]:
    """The memories of the texts of a batch, which starts at a row of the split."""
    weights = output.memory_weight.cpu().tolist()
    if split.neighbors is None:
        return [[] for _ in weights]
    batch = slice(start, start + len(weights))
    rows, scores = split.neighbors.rows[batch], split.neighbors.scores[batch]
    columns = columns_of(split.neighbors.memories, rows)
    # [B, H, K]; H is 0 where the network has no hops.
    by_hop = output.memory_weight.unsqueeze(1)[:, :0] if output.hop_weight is None else output.hop_weight
    hops = by_hop.transpose(1, 2).cpu().tolist()
    return [
        [
            RetrievedMemory(name, text, label, score, weight, of_hops or None)
            for number, name, text, label, score, weight, of_hops in zip(*row, strict=True)
            if number >= 0
        ]
        for row in zip(rows.tolist(), *columns, scores.tolist(), weights, hops, strict=True)
    ]


def columns_of(
    memories: Rows, rows: NDArray[np.integer]
) -> tuple[list[list[str]], list[list[str]], list[list[str | None]]]:
    """The ids, texts and labels of rows [n, K] of a memory; None where a row is negative."""
    exists = rows >= 0
    selected, columns = memories.select(rows[exists]).table, []
    for name in ("id", "text", "label"):
        values = np.full(rows.shape, None, object)
        values[exists] = selected.column(name).to_pylist()
        columns.append(values.tolist())
    ids, texts, labels = columns
    return ids, texts, labels
