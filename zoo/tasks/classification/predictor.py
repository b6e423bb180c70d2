"""A trained classifier with its data side: texts in, labels with their evidence out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, tee
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from typing_extensions import override

from datamodules.core.errors import check_count
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.text_rows import TextSplit
from zoo.tasks.predictor import (
    BLOCK,
    Predictor,
    as_texts,
    collecting_later,
    evaluating,
    on_device,
    texts_and_ids_in,
)


class RetrievedMemory(NamedTuple):
    """One piece of evidence for a prediction."""

    text: str
    #: None where the memory has no label.
    label: str | None
    #: the retriever's score of the memory for the text.
    retrieval_score: float
    #: what the memory counted for in the network; see the model's output.
    weight: float
    #: the same for each hop of a network that reads its memories in hops; None where it does not.
    hop_weights: list[float] | None = None
    #: how it was found, where a model looks in several ways: `words`, `vectors` or `words and vectors`.
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
    #: what each of a model's witnesses adds to the score of `label`, the mean over all labels being 0; the
    #: probabilities are the softmax of the scores. None: the model has no witnesses.
    contributions: dict[str, float] | None = None
    #: whether training did not know the label: its rows came into the memory later. None: of no such model.
    known_by_memory_alone: bool | None = None


class ClassificationPredictor(Predictor):
    """Texts in, labels with their evidence out."""

    example = 'model.predict(["a text"])[0]'

    def predict(self, texts: str | Sequence[str], batch_size: int = 256) -> list[Prediction]:
        """Classify texts.

        Args:
            texts: one text or several.
            batch_size: texts that go through the network together.

        Returns:
            For each text its label, probabilities, and the memories that were retrieved for it.

        Raises:
            InputError: a text is no string, or batches are to hold none.
        """
        texts = as_texts(texts)
        check_count("batch_size", batch_size)
        predictions = self._predictions(iter(texts), batch_size, len(texts))
        return list(tqdm(predictions, "predicting", len(texts), unit=" texts", delay=2, disable=None))

    def _predictions(self, texts: Iterator[str], batch_size: int, total: int = 0) -> Iterator[Prediction]:
        """Predictions for texts, of which a block at a time is in memory; how many there are, where that is known."""
        seen = 0
        while block := list(islice(texts, BLOCK)):
            seen += len(block)
            self.model.use_memory(self.data, self.memory, max(total, seen))
            split = self.data.split_of(Rows.from_lists(block, source="texts to predict"), self.memory)
            with collecting_later():
                predictions = list(self.predict_split(split, batch_size))
            yield from predictions

    def predict_split(
        self, split: TextSplit, batch_size: int = 256, rows: int | None = None
    ) -> Iterator[Prediction]:
        """Predictions for the first rows of a prepared table, in row order; None = for all."""
        labels = [*self.data.spec.labels, *self.data.new_labels]
        total = len(split.rows) if rows is None else min(rows, len(split.rows))
        with self.data.dataset_for_now(split) as dataset:
            for start in range(0, total, batch_size):
                batch = dataset.__getitems__(range(start, min(start + batch_size, total)))
                with evaluating(self.model):
                    output = self.model(on_device(batch, self.model))
                texts = split.rows.texts[start : start + len(batch.row)]
                probabilities = output.logits.softmax(dim=1).cpu().tolist()
                memories = self.model.with_found(_memories(split, start, output), output)
                for place, (text, probability) in enumerate(zip(texts, probabilities, strict=True)):
                    best = max(range(len(labels)), key=probability.__getitem__)
                    yield Prediction(
                        text=text,
                        label=labels[best],
                        probability=probability[best],
                        probabilities=dict(zip(labels, probability, strict=True)),
                        memories=memories[place],
                        contributions=self.model.contributions(output, place, best),
                        known_by_memory_alone=(
                            best >= len(self.data.spec.labels) if self.model.takes_new_labels else None
                        ),
                    )

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        id_column: Column | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A text's label, probabilities and memories, in the order of the texts; of a table with ids, the text's id.

        Args:
            source: see `Predictor.records`.
            batch_size: texts that go through the network together.
            text_column: the table's text column or columns; null: as in training.
            id_column: the table's column of ids, to be written beside the predictions; null: none.
        """
        options = self.data.options
        columns = {"text_column": options.text_column, "header": options.header}
        if text_column is not None:
            columns = {"text_column": text_column}
        columns |= {"id_column": id_column, "quotes": options.quotes}
        check_count("batch_size", batch_size)
        texts, found = tee(texts_and_ids_in(source, columns))
        predictions = self._predictions((text for text, _ in texts), batch_size)
        for prediction, (_, name) in zip(predictions, found, strict=True):
            record = _plain(prediction) | {"memories": [_plain(memory) for memory in prediction.memories]}
            yield record if name is None else {"id": name, **record}

    @property
    @override
    def vector_size(self) -> int:
        return self.model.vector_size or super().vector_size

    @override
    def encode(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        vectors = torch.from_numpy(self.raw_vectors(texts, self.data.lengths[0], batch_size, bar))
        return functional.normalize(vectors, dim=1).numpy()

    def raw_vectors(
        self, texts: list[str], length: int, batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        """The texts' vectors [n, size] as the encoder makes them; 0 for a text without words.

        Args:
            texts: n texts.
            length: words that are read of each.
            batch_size: texts that go through the network together.
            bar: told of each text that is done.
        """
        vectors, done = np.zeros((len(texts), self.vector_size), np.float32), 0
        for rows, batch in self.data.batches_of(texts, length, batch_size):
            with evaluating(self.model):
                vectors[rows] = self.model.encode_texts(on_device(batch, self.model)).float().cpu().numpy()
            done += len(rows)
            if bar is not None:
                bar.update(len(rows))
        if bar is not None:
            bar.update(len(texts) - done)
        return vectors


def _by_memory(weight: Tensor, hop_weight: Tensor | None) -> list[list[list[float]]]:
    """The weights of each text's memories in each hop [B, K, H]; H is 0 where the network has no hops."""
    hops = weight.new_zeros(len(weight), 0, weight.shape[1]) if hop_weight is None else hop_weight
    by_memory: list[list[list[float]]] = hops.transpose(1, 2).cpu().tolist()
    return by_memory


def _plain(record: Prediction | RetrievedMemory) -> dict[str, Any]:
    """As JSON has it; without what only some models say, if this one does not."""
    optional = ("contributions", "known_by_memory_alone", "found_by", "hop_weights")
    return {
        name: value for name, value in record._asdict().items() if value is not None or name not in optional
    }


def _memories(split: TextSplit, start: int, output: Any) -> list[list[RetrievedMemory]]:
    """The memories of the texts of a batch, which starts at a row of the split."""
    weights = output.memory_weight.cpu().tolist()
    if split.neighbors is None:
        return [[] for _ in weights]
    several = slice(start, start + len(weights))
    rows, scores = split.neighbors.rows[several], split.neighbors.scores[several]
    texts, labels = texts_and_labels(split.neighbors.memories, rows)
    hops = _by_memory(output.memory_weight, output.hop_weight)
    return [
        [
            RetrievedMemory(text, label, score, weight, of_hops or None)
            for number, text, label, score, weight, of_hops in zip(*row, strict=True)
            if number >= 0
        ]
        for row in zip(rows.tolist(), texts, labels, scores.tolist(), weights, hops, strict=True)
    ]


def texts_and_labels(
    memories: Rows, rows: NDArray[np.integer[Any]]
) -> tuple[list[list[str]], list[list[str | None]]]:
    """The texts and labels of rows [n, K] of a memory; None where a row is negative."""
    there = rows >= 0
    found = memories.select(rows[there])
    texts, labels = np.full(rows.shape, None, object), np.full(rows.shape, None, object)
    texts[there], labels[there] = found.texts[:], found.table.column("label").to_pylist()
    return texts.tolist(), labels.tolist()
