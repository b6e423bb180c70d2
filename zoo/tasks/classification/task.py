"""Base of the text classifiers: steps, loss, scores."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import asdict
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from callbacks.chart import Cell, Chart
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.state import DataState
from zoo.tasks.base import PredictionTable, Task
from zoo.tasks.classification.metrics import ClassificationScores, MultilabelScores
from zoo.tasks.classification.predictor import ClassificationPredictor, Prediction, lines_of

#: Texts in a chart of single texts.
MOST_TEXTS = 30


class ClassificationTask(Task[ClassificationDataModule]):
    """Base of the classifiers."""

    task = "classification"
    pipeline_tag = "text-classification"
    spec_type = ClassificationSpec
    predictor_type: ClassVar[type[ClassificationPredictor]] = ClassificationPredictor

    #: the options that disable the memory; "" = the model also runs without one, None = it does not.
    without_memory: ClassVar[str | None] = None
    #: the options with words of labels and texts without labels that the model learns from.
    guides_read: Collection[str] = ()
    #: predicts sets of labels where the data has them.
    takes_sets: ClassVar[bool] = False
    #: meaning of the output's `memory_weight`, for charts.
    memory_weight: str = "weight"
    spec: ClassificationSpec
    #: labels that only the memory has; their classes follow those of the training.
    new_labels: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The classes that the model predicts, in the order of its logits."""
        return [*self.spec.labels, *self.new_labels]

    @override
    def idle_options(self, data: ClassificationDataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        readers = {"label_texts": "members named and self_trained", "unlabelled_file": "member self_trained"}
        for name in readers:
            if name not in self.guides_read and getattr(data.options, name, None) is not None:
                members = f"only the {readers[name]} of MemoryEnsemble can read it"
                yield f"data.{name}", f"{members}, self_trained with model.transformer"

    @override
    def check_data(self, data: ClassificationDataModule) -> None:
        super().check_data(data)
        if getattr(data.options, "label_separator", None) is not None and not self.takes_sets:
            kind, advice = type(self).__name__, "use a MemoryEnsemble or a KNNBiLSTM"
            raise InputError(f"data.label_separator: a {kind} predicts one label a text; {advice}")
        if getattr(data.options, "is_described", False) and "unlabelled_file" not in self.guides_read:
            raise InputError(
                "data.train_file: name a table; from data.label_texts alone, only the member self_trained of"
                " MemoryEnsemble learns, which needs model.transformer"
            )
        if self.uses_memory and self.without_memory != "" and not data.has_memory:
            instead = "" if self.without_memory is None else f", or {self.without_memory}"
            raise InputError(
                f"a {type(self).__name__} with these options reads memories, but data.num_memories is 0; set"
                f" --data.num_memories{instead}"
            )

    @override
    def new_scores(self) -> ClassificationScores:
        kind = ClassificationScores if self.spec.label_separator is None else MultilabelScores
        return kind(self.labels)

    @override
    def count(self, scores: ClassificationScores, batch: ClassificationBatch) -> None:
        scores.update(self(batch), batch)

    @override
    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        calibration = self.metrics.calibration
        self.evaluation.calibration = {} if calibration is None else asdict(calibration)
        # One process predicts them again.
        if self.evaluation.lists_errors and self.trainer.is_global_zero:
            wrong = np.array(self.metrics.wrong_rows, np.int64)
            columns, lines = self._predictions(self.training_data, "test", wrong)
            self.evaluation.errors = {"columns": columns, "lines": lines}

    @override
    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch).logits, batch.target)
        self.log_loss(loss, len(batch.target))
        return loss

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name in ("network.classifier.weight", "network.classifier.bias"):
            return data.facts.get("labels", [])
        if name == "network.label":  # vectors of the memories' labels
            return data.facts.get("memory_labels", [])
        return super().row_names(name, weight, data)

    @override
    def charts(self, data: ClassificationDataModule, rows: int) -> Iterator[Chart]:
        split = data.split("validation")
        predictions = list(self.predictor_type(self, data).predict_split(split, rows=rows))
        labels = [split.rows.label(row) for row in range(len(predictions))]
        return charts_of(predictions, labels, self.memory_weight)

    @override
    def shown_predictions(self, data: ClassificationDataModule, rows: int) -> PredictionTable:
        number = min(rows, len(data.split("validation").rows))
        (_, *columns), lines = self._predictions(data, "validation", np.arange(number))
        return columns, [line[1:] for line in lines]

    def _predictions(
        self, data: ClassificationDataModule, name: str, rows: NDArray[np.int64]
    ) -> PredictionTable:
        """The predictions for rows of a split, with the truth."""
        split, lines = data.split(name), list[list[object]]()
        predictions = self.predictor_type(self, data).predict_split(split, rows=rows)
        for row, prediction in zip(rows.tolist(), predictions, strict=True):
            answer = [prediction.label, prediction.probability, lines_of(prediction.memories)]
            lines.append([split.rows.ids[row], prediction.text, split.rows.label(row), *answer])
        return ["id", "text", "label", "predicted", "probability", "memories"], lines


def charts_of(
    predictions: Sequence[Prediction], labels: Sequence[str | None], weight: str = "weight"
) -> Iterator[Chart]:
    """Charts of the memories behind predictions, with the right labels; none for a model without memories.

    A map has the weight of each memory of the first texts. Curves have, by rank, the share of memories with the text's
    label, and the share of texts with such a memory up to the rank.
    """
    ranks = max((len(prediction.memories) for prediction in predictions), default=0)
    if not ranks:
        return
    # bool [n, ranks]: there is a memory, and it has the text's label.
    exists, same = np.zeros((2, len(predictions), ranks), bool)
    rows: list[list[Cell]] = []
    marked: list[list[int]] = []
    for row, (prediction, label) in enumerate(zip(predictions, labels, strict=True)):
        number = len(prediction.memories)
        exists[row, :number] = True
        same[row, :number] = [memory.label == label for memory in prediction.memories]
        if number and len(rows) < MOST_TEXTS:
            weights = [memory.weight for memory in prediction.memories]
            rows.append([prediction.text, *weights, *[None] * (ranks - number)])
            marked.append(np.flatnonzero(same[row]).tolist())
    title, numbers = f"The {weight} of each memory, for {len(rows)} texts", list(range(1, ranks + 1))
    columns, across, mark = ["text", *map(str, numbers)], "rank of the memory", "has the text's label"
    yield Chart(
        "attention", title, columns, rows, "map", value=weight, across=across, mark=mark, marked=marked
    )
    if any(memory.label is not None for prediction in predictions for memory in prediction.memories):
        share = same.sum(axis=0) / exists.sum(axis=0)
        hits = np.logical_or.accumulate(same, axis=1).mean(axis=0)
        columns = ["rank", "memories with the text's label", "texts with such a memory up to here"]
        lines = list(zip(numbers, share.tolist(), hits.tolist(), strict=True))
        yield Chart("retrieval", "Labels of the memories, by rank", columns, lines, "lines", value="share")
