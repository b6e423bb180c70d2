"""A trained classifier with its data side: texts in, labels with their evidence out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from typing_extensions import override

from datamodules.corpora.rows import Rows
from datamodules.sampling import LengthBucketSampler
from datamodules.texts import TextSplit
from zoo.tasks.predictor import (
    BLOCK,
    Predictor,
    TextColumn,
    as_texts,
    check_count,
    evaluating,
    on_device,
    texts_in,
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
        predictions = self._predictions(iter(texts), batch_size)
        return list(tqdm(predictions, "predicting", len(texts), unit=" texts", delay=2, disable=None))

    def _predictions(self, texts: Iterator[str], batch_size: int) -> Iterator[Prediction]:
        """Predictions for texts, of which a block at a time is in memory."""
        self.model.use_memory(self.data, self.memory)
        while block := list(islice(texts, BLOCK)):
            split = self.data.split_of(Rows.from_lists(block, source="texts to predict"), self.memory)
            yield from self.predict_split(split, batch_size)

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
                probabilities = output.logits.softmax(dim=1).cpu().tolist()
                weights = output.memory_weight.cpu().tolist()
                hops = _by_memory(output.memory_weight, output.hop_weight)
                for place, (probability, weight, of_hops) in enumerate(
                    zip(probabilities, weights, hops, strict=True)
                ):
                    row = start + place
                    best = max(range(len(labels)), key=probability.__getitem__)
                    yield Prediction(
                        text=split.rows.texts[row],
                        label=labels[best],
                        probability=probability[best],
                        probabilities=dict(zip(labels, probability, strict=True)),
                        memories=self.model.with_found(_memories(split, row, weight, of_hops), output, place),
                        contributions=self.model.contributions(output, place, best),
                        known_by_memory_alone=(
                            best >= len(self.data.spec.labels) if self.model.takes_new_labels else None
                        ),
                    )

    @override
    def records(
        self, source: str, batch_size: int = 256, text_column: TextColumn | None = None
    ) -> Iterator[dict[str, Any]]:
        """A text's label, probabilities and memories.

        Args:
            source: see `Predictor.records`.
            batch_size: texts that go through the network together.
            text_column: the table's text column or columns; null: as in training.
        """
        options = self.data.options
        columns = {"text_column": options.text_column, "header": options.header}
        texts = texts_in(source, columns if text_column is None else {"text_column": text_column})
        check_count("batch_size", batch_size)
        for prediction in self._predictions(texts, batch_size):
            yield _plain(prediction) | {"memories": [_plain(memory) for memory in prediction.memories]}

    @property
    @override
    def vector_size(self) -> int:
        return self.model.vector_size or super().vector_size

    @override
    def encode(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.vector_size), np.float32)
        # Encoding needs no memories.
        split = self.data.split_of(Rows.from_lists(texts, source="texts to encode"), None)
        with self.data.dataset_for_now(split) as dataset, evaluating(self.model):
            full = np.flatnonzero(dataset.lengths)
            for places in LengthBucketSampler(dataset.lengths[full], batch_size, training=False):
                rows = full[places]
                batch = on_device(dataset.__getitems__(rows.tolist()), self.model)
                encoded = functional.normalize(self.model.encode_texts(batch).float(), dim=1)
                vectors[rows] = encoded.cpu().numpy()
                if bar is not None:
                    bar.update(len(rows))
        if bar is not None:
            bar.update(len(texts) - len(full))
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


def _memories(
    split: TextSplit, row: int, weights: Sequence[float], hops: Sequence[list[float]]
) -> list[RetrievedMemory]:
    if split.neighbors is None:
        return []
    memories = split.neighbors.memories
    return [
        RetrievedMemory(
            text=memories.texts[int(number)],
            label=memories.label(int(number)),
            retrieval_score=float(score),
            weight=weight,
            hop_weights=of_hops or None,
        )
        for number, score, weight, of_hops in zip(
            split.neighbors.rows[row], split.neighbors.scores[row], weights, hops, strict=True
        )
        if number >= 0
    ]
