"""What every text classifier needs around its network: steps, loss, scores."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from callbacks.chart import Chart
from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from zoo.tasks.base import Task
from zoo.tasks.classification.charts import charts_of
from zoo.tasks.classification.metrics import ClassificationScores
from zoo.tasks.classification.predictor import ClassificationPredictor, RetrievedMemory


class ClassificationOutput(NamedTuple):
    """What a classification network returns: the prediction and its evidence."""

    #: float32 [B, C].
    logits: Tensor
    #: float32 [B, K]: what each memory counted for; 0 where there is none.
    memory_weight: Tensor
    #: float32 [B, H, K]: the same for each of H hops; None where a network reads its memories once.
    hop_weight: Tensor | None = None


class ClassificationTask(Task):
    """Base of the classifiers."""

    task = "classification"
    pipeline_tag = "text-classification"
    spec_type = ClassificationSpec
    predictor_type = ClassificationPredictor
    spec: ClassificationSpec | None

    #: whether a model that reads memories wants data that has some.
    needs_memory: ClassVar[bool] = True
    #: the options by which a model does without.
    without_memory: ClassVar[str | None] = None

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        # Memories to read.
        super().check_data(data)
        if self.uses_memory and self.needs_memory and not data.has_memory:
            instead = "" if self.without_memory is None else f", or {self.without_memory}"
            raise InputError(
                f"a {type(self).__name__} of these options reads memories, but data.num_memories is 0; set"
                f" --data.num_memories{instead}"
            )

    @classmethod
    @override
    def example_spec(cls) -> tuple[ClassificationSpec, str]:
        classes = ["a", "b", "c", "d"]
        spec = ClassificationSpec(
            10_000, num_chars=100, labels=classes, memory_labels=classes, num_memories=5
        )
        return spec, "10,000 words and 4 classes"

    @override
    def new_scores(self) -> ClassificationScores:
        assert self.spec is not None
        return ClassificationScores(self.spec.labels)

    @override
    def count(self, scores: ClassificationScores, batch: ClassificationBatch) -> None:
        scores.update(self(batch).logits, batch.target, batch.weight, batch.is_copy)

    @override
    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self(batch).logits, batch.target)
        self.log_loss(loss, len(batch.target))
        return loss

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name in ("network.classifier.weight", "network.classifier.bias"):
            labels: list[str] = data.get("labels", [])
            return labels
        return super().row_names(name, weight, data)

    @property
    def vector_size(self) -> int | None:
        """Numbers in a vector of `encode_texts`; None where the model makes no vectors of texts."""
        return None

    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, vector_size]."""
        raise NotImplementedError(f"a {type(self).__name__} makes no vectors of texts")

    def contributions(self, output: Any, row: int, label: int) -> dict[str, float] | None:
        """What each witness adds to a label's score.

        Args:
            output: the network's, of a batch.
            row: of the batch.
            label: its number.
        """
        return None

    def with_found(self, memories: list[list[RetrievedMemory]], output: Any) -> list[list[RetrievedMemory]]:
        """The memories that the retriever found for each text of a batch, and those that the network itself found."""
        return memories

    @property
    def memory_weight(self) -> str:
        """What the output's `memory_weight` is, for people."""
        return "weight"

    @override
    def charts(self, data: TextDataModule[Any, Any], rows: int) -> Iterator[Chart]:
        split = data.split("validation")
        predictions = list(ClassificationPredictor(self, data).predict_split(split, rows=rows))
        labels = [split.rows.label(row) for row in range(len(predictions))]
        return charts_of(predictions, labels, self.memory_weight)

    @override
    def shown_predictions(
        self, data: TextDataModule[Any, Any], rows: int
    ) -> tuple[list[str], list[list[Any]]]:
        split, lines = data.split("validation"), []
        for row, prediction in enumerate(ClassificationPredictor(self, data).predict_split(split, rows=rows)):
            memories = "\n".join(
                f"{m.weight:+.3f} [{m.label}] {m.text} (score {m.retrieval_score:.2f})"
                for m in prediction.memories
            )
            truth = split.rows.label(row)
            lines.append([prediction.text, truth, prediction.label, prediction.probability, memories])
        return ["text", "label", "predicted", "probability", "memories"], lines
