"""What every text classifier needs around its network: steps, loss, metrics, optimizer, checkpoint."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.errors import InputError
from zoo.checkpoints import CHECKPOINT_KEY
from zoo.warm_start import start_from

if TYPE_CHECKING:
    from datamodules.classification import ClassificationDataModule


class ClassificationOutput(Protocol):
    """What a classification network returns."""

    @property
    def logits(self) -> Tensor:
        """float32 [B, C]."""

    @property
    def memory_weight(self) -> Tensor:
        """float32 [B, K]: what each memory counted for; 0 where there is none."""


class ClassificationScores(Metric):
    """Accuracy, micro- and macro-F1, per-class scores and loss from counts, exact on any number of processes.

    A label that the model does not know is a class that it never predicts: such a row is an error, and has
    no loss.
    """

    full_state_update = False
    confusion: Tensor
    loss_sum: Tensor
    loss_rows: Tensor

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = list(labels)
        n = len(self.labels)
        # Rows are true classes (the last: unknown labels), columns predicted ones.
        self.add_state("confusion", torch.zeros(n + 1, n, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("loss_sum", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        self.add_state("loss_rows", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor, weight: Tensor) -> None:
        """Count a batch.

        Args:
            logits: [B, C].
            target: [B] classes; C = unknown label.
            weight: [B], 0 for rows that only pad a batch.
        """
        n = len(self.labels)
        counted = (weight > 0) & (target >= 0)
        cells = target[counted] * n + logits.argmax(dim=1)[counted]
        self.confusion += torch.bincount(cells, minlength=(n + 1) * n).view(n + 1, n)
        known = counted & (target < n)
        losses = functional.cross_entropy(logits[known].float(), target[known], reduction="none")
        self.loss_sum += losses.double().sum()
        self.loss_rows += known.sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value. A class without rows and without predictions has no F1 and is left out."""
        n = len(self.labels)
        correct = self.confusion[:n].diagonal().double()
        rows = self.confusion.sum(dim=1).double()  # [C+1]
        predicted = self.confusion.sum(dim=0).double()  # [C]
        f1 = 2 * correct / (rows[:n] + predicted).clamp(min=1)
        present = (rows[:n] + predicted) > 0
        # Unknown labels are one more class, of F1 0, in the mean.
        classes = (present.sum() + (rows[n] > 0)).clamp(min=1)
        accuracy = correct.sum() / rows.sum().clamp(min=1)
        scores = {
            "loss": self.loss_sum / self.loss_rows.clamp(min=1),
            "accuracy": accuracy,
            # With one label a row, micro-F1 is the accuracy; both names are printed, as papers do.
            "micro_f1": accuracy,
            "macro_f1": f1[present].sum() / classes,
            "rows": rows.sum(),
            "unknown_labels": rows[n],
        }
        for i, label in enumerate(self.labels):
            if present[i]:
                scores[f"f1/{label}"] = f1[i]
                scores[f"precision/{label}"] = correct[i] / predicted[i].clamp(min=1)
                scores[f"recall/{label}"] = correct[i] / rows[i].clamp(min=1)
        return {name: value.double() for name, value in scores.items()}


class RetrievedMemory(NamedTuple):
    """One piece of evidence for a prediction."""

    text: str
    #: None where the memory has no label.
    label: str | None
    #: the retriever's score of the memory for the text.
    retrieval_score: float
    #: what the memory counted for in the network; see the model's output.
    weight: float


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


class ClassificationTask(pl.LightningModule):
    """Base of the classifiers.

    A subclass says in `build_network` how its network is made. The network is made late: when the data is
    known (`setup`), or when a checkpoint is read, which carries what is needed to make it again.
    """

    #: the publication that the model is from.
    paper: str = ""
    network: nn.Module | None

    def __init__(self, optimizer: OptimizerCallable, lr_scheduler: LRSchedulerCallable | None = None) -> None:
        super().__init__()
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.network = None
        self.spec: ClassificationSpec | None = None
        #: the data's plain description (vocabulary, memory, options), kept in checkpoints.
        self.data_state: dict[str, Any] = {}

    @abstractmethod
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        """Make the network.

        Args:
            spec: sizes and labels.
            word_vectors: [num_words, d] pre-trained values of the word table, or None.
            transformer_config: configuration of the transformer whose weights a checkpoint holds, or None.
        """

    @property
    def uses_memory(self) -> bool:
        """Whether the network reads memories at all."""
        return True

    # --- from data or checkpoint to network ---

    def setup(self, stage: str) -> None:
        """Make the network for the trainer's data, unless it is there already."""
        data: ClassificationDataModule | None = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise InputError("pass a ClassificationDataModule to the trainer: the model reads its sizes")
        if self.network is not None:
            if self.data_state:
                data.use_state(self.data_state)
        elif stage == "fit":
            self._build(data.spec, data.word_vectors(), None)
            self.data_state = data.state()
            # A resumed run gets its own weights next.
            if self.hparams.get("init_from") is not None and self.trainer.ckpt_path is None:
                start_from(self, self.hparams["init_from"])

    def _build(
        self,
        spec: ClassificationSpec,
        word_vectors: Tensor | None,
        transformer_config: dict[str, Any] | None,
    ) -> None:
        self.spec = spec
        try:
            self.network = self.build_network(spec, word_vectors, transformer_config)
        except InputError:
            raise
        except ValueError as error:  # PyTorch's own checks: a size of 0, a probability of 3
            raise InputError(f"model: {error}") from error
        self._make_scores(spec.labels)

    def _make_scores(self, labels: Sequence[str]) -> None:
        # Metrics have no entries in the state dict (their states are not persistent).
        self.validation_scores = ClassificationScores(labels)
        self.test_scores = ClassificationScores(labels)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes the checkpoint load alone: model name, sizes, labels, vocabulary, memory."""
        assert self.spec is not None
        encoder = getattr(self.network, "encoder", None)
        transformer = getattr(encoder, "transformer", None)
        checkpoint[CHECKPOINT_KEY] = {
            "model": type(self).__name__,
            "spec": dict(self.spec._asdict()),
            "data": self.data_state,
            # Width of each part of the classifier's input, for models that start from this one.
            "feature_sizes": getattr(self.network, "sizes", None),
            "transformer_config": None if transformer is None else _plain(transformer.config.to_dict()),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the network that the checkpoint's weights fit, and give the data its vocabulary."""
        ours = checkpoint.get(CHECKPOINT_KEY)
        if ours is None or ours["model"] != type(self).__name__:
            kind = "not of this project" if ours is None else f"of a {ours['model']}"
            raise InputError(f"the checkpoint is {kind}, but the model is a {type(self).__name__}")
        self.data_state = ours["data"]
        spec = ClassificationSpec(**ours["spec"])
        if self.network is None or spec != self.spec:
            vectors = checkpoint["state_dict"].get("network.encoder.words.table")
            self._build(
                spec, None if vectors is None else torch.empty_like(vectors), ours["transformer_config"]
            )
            self.to(self.device)
        self._check_shapes(checkpoint)
        data = getattr(self._trainer, "datamodule", None) if self._trainer is not None else None
        if data is not None:
            data.use_state(self.data_state)

    def _check_shapes(self, checkpoint: dict[str, Any]) -> None:
        weights, stored = self.state_dict(), checkpoint["state_dict"]
        shapes = {name: weight.shape for name, weight in weights.items()}
        if shapes == {name: weight.shape for name, weight in stored.items()}:
            return
        theirs = checkpoint["hyper_parameters"]
        other = [
            f"{name} {theirs[name]}, not {value}"
            for name, value in self.hparams.items()
            if name in theirs and theirs[name] != value and not name.startswith("_")
        ]
        raise InputError(
            "the checkpoint's weights do not fit the model: the checkpoint was trained with "
            + ("; ".join(other) or "other data or another version")
            + ". Give --ckpt_path the same model options as in training"
        )

    # --- steps ---

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Run the network on a batch."""
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a checkpoint with zoo.load")
        output: ClassificationOutput = self.network(batch)
        return output

    def on_train_batch_start(self, batch: ClassificationBatch, batch_idx: int) -> None:
        """Seed what a step draws (dropout) by the run's seed, the epoch, the step and the process.

        So nothing that a process did before, an earlier epoch or a callback, changes what is learned, and a
        resumed run learns what an uninterrupted one does. Without `seed_everything`, nothing is fixed.
        """
        if (seed := os.environ.get("PL_GLOBAL_SEED")) is not None:
            place = [int(seed), self.current_epoch, batch_idx, self.global_rank]
            torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        loss = functional.cross_entropy(self(batch).logits, batch.target)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.target))
        return loss

    def validation_step(self, batch: ClassificationBatch, batch_idx: int) -> None:
        """Count a batch."""
        self.validation_scores.update(self(batch).logits, batch.target, batch.weight)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the validation rows."""
        self._log_scores(self.validation_scores, "val")

    def test_step(self, batch: ClassificationBatch, batch_idx: int) -> None:
        """Count a batch."""
        self.test_scores.update(self(batch).logits, batch.target, batch.weight)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test rows."""
        self._log_scores(self.test_scores, "test")

    def _log_scores(self, scores: ClassificationScores, stage: str) -> None:
        values = scores.compute()
        scores.reset()
        shown = "accuracy" if stage == "val" else ""
        for name, value in values.items():
            # compute() has already summed over processes: nothing is left to reduce.
            self.log(
                f"{stage}/{name}", value.to(self._log_dtype()), prog_bar=name == shown, rank_zero_only=False
            )

    def _log_dtype(self) -> torch.dtype:
        # Apple's GPUs know no float64.
        return torch.float32 if self.device.type == "mps" else torch.float64

    def predict_step(self, batch: ClassificationBatch, batch_idx: int) -> dict[str, Tensor]:
        """Probabilities [B, C], memory weights [B, K] and row numbers [B] of a batch, on the CPU."""
        output = self(batch)
        return {
            "probability": output.logits.softmax(dim=1).cpu(),
            "memory_weight": output.memory_weight.cpu(),
            "index": batch.index.cpu(),
            "weight": batch.weight.cpu(),
        }

    def configure_optimizers(self) -> Any:
        """The optimizer over what is trained, and the schedule, if one is configured."""
        try:
            optimizer = self.make_optimizer(p for p in self.parameters() if p.requires_grad)
        except ValueError as error:
            raise InputError(f"model.optimizer: {error}") from error
        if self.make_lr_scheduler is None:
            return optimizer
        scheduler = self.make_lr_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}


def _plain(value: Any) -> Any:
    """The value with everything that `torch.load(weights_only=True)` refuses made a string."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
