"""Base of the text classifiers: steps, loss, scores."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict
from typing import ClassVar, NamedTuple

from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from callbacks.chart import Chart
from datamodules.base import AnyDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from datamodules.state import DataState
from datamodules.text_rows import TextRowsDataModule
from zoo.tasks.base import Task
from zoo.tasks.classification.charts import charts_of
from zoo.tasks.classification.metrics import ClassificationScores
from zoo.tasks.classification.predictor import ClassificationPredictor


class ClassificationOutput(NamedTuple):
    """Output of a classification network."""

    #: float32 [B, C].
    logits: Tensor
    #: float32 [B, K]: weight of each memory; 0 where there is none.
    memory_weight: Tensor
    #: float32 [B, H, K]: the weights in each of H hops; None where a network reads its memories once.
    hop_weight: Tensor | None = None


class ClassificationTask(Task):
    """Base of the classifiers."""

    task = "classification"
    pipeline_tag = "text-classification"
    spec_type = ClassificationSpec
    predictor_type = ClassificationPredictor
    spec: ClassificationSpec | None

    #: the options that disable the memory; "" = the model also runs without one, None = it does not.
    without_memory: ClassVar[str | None] = None
    #: meaning of the output's `memory_weight`, for charts.
    memory_weight: str = "weight"
    #: labels that only the memory has; their classes follow those of the training.
    new_labels: tuple[str, ...] = ()

    @override
    def check_data(self, data: AnyDataModule) -> None:
        super().check_data(data)
        if self.uses_memory and self.without_memory != "" and not data.has_memory:
            instead = "" if self.without_memory is None else f", or {self.without_memory}"
            raise InputError(
                f"a {type(self).__name__} with these options reads memories, but data.num_memories is 0; set"
                f" --data.num_memories{instead}"
            )

    @property
    def labels(self) -> list[str]:
        """The classes that the model predicts, in the order of its logits."""
        assert self.spec is not None
        return [*self.spec.labels, *self.new_labels]

    @override
    def new_scores(self) -> ClassificationScores:
        return ClassificationScores(self.labels)

    @override
    def count(self, scores: ClassificationScores, batch: ClassificationBatch) -> None:
        scores.update(self(batch).logits, batch.target, batch.weight, batch.is_duplicate)

    @override
    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        calibration = self.test_scores.calibration
        self.evaluation.calibration = {} if calibration is None else asdict(calibration)

    @override
    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch).logits, batch.target)
        self.log_loss(loss, len(batch.target))
        return loss

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name in ("network.classifier.weight", "network.classifier.bias"):
            labels: list[str] = data.facts.get("labels", [])
            return labels
        return super().row_names(name, weight, data)

    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, vector_size]."""
        raise NotImplementedError(f"a {type(self).__name__} has no text encoder")

    @override
    def charts(self, data: AnyDataModule, rows: int) -> Iterator[Chart]:
        assert isinstance(data, TextRowsDataModule)
        split = data.split("validation")
        predictions = list(ClassificationPredictor(self, data).predict_split(split, rows=rows))
        labels = [split.rows.label(row) for row in range(len(predictions))]
        return charts_of(predictions, labels, self.memory_weight)

    @override
    def shown_predictions(self, data: AnyDataModule, rows: int) -> tuple[list[str], list[list[object]]]:
        assert isinstance(data, TextRowsDataModule)
        split, lines = data.split("validation"), list[list[object]]()
        for row, prediction in enumerate(ClassificationPredictor(self, data).predict_split(split, rows=rows)):
            memories = "\n".join(
                f"{m.weight:+.3f} [{m.label}] {m.text} (id {m.id}, score {m.retrieval_score:.2f})"
                for m in prediction.memories
            )
            truth = split.rows.label(row)
            lines.append([prediction.text, truth, prediction.label, prediction.probability, memories])
        return ["text", "label", "predicted", "probability", "memories"], lines
