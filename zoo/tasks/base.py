"""Base of all models: the options, hooks and steps of their training and evaluation by Lightning."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Self, override

from callbacks.chart import Chart
from datamodules.core.errors import InputError
from datamodules.core.lightning import LRSchedulerCallable, Metric, OptimizerCallable, TrainerFn
from datamodules.core.storage import write_json
from datamodules.core.types import PlainDict
from datamodules.state import DataState, check_resumed, check_split
from zoo.layers.lora import is_adapter
from zoo.tasks.model import DataT, Given, Model
from zoo.tasks.predictor import Predictor
from zoo.training.checkpoints import Start, meta_of
from zoo.training.trained_parts import freeze_parts, make_schedule, parameter_groups
from zoo.training.warm_start import check_frozen, numbered, take_weights

log = logging.getLogger("zoo")

#: Weights in half precision are too coarse, and double precision gains nothing.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

#: Maximum number of scores of single classes that are logged; the file of --output has all.
MAX_CLASS_SCORES = 300

#: Predictions in a table: names of the columns, and lines.
PredictionTable: TypeAlias = tuple[list[str], list[list[object]]]


class Task(Model[DataT]):
    """Base of all models; checkpoints find a network's `WordEncoder` in `words`, and a transformer in `transformer`.

    Args:
        init_from: a run folder, a model folder, a name on the Hugging Face Hub or a checkpoint, whose weights the
            model starts from, as far as they fit; the log lists them. `--ckpt_path` resumes a run instead.
        optimizer: makes the optimizer; with trained word vectors, `fused=True` saves most of a step on CPUs.
        lr_scheduler: makes a schedule, stepped once an epoch.
        freeze: names of parts of the network that are not trained, also as shell patterns, such as `encoder` or
            `encoder.transformer.encoder.layer.[0-3]`; they have no dropout either.
        learning_rates: rates of parts by such patterns; the last match counts, and others have the optimizer's.
    """

    #: the task's name on the Hugging Face Hub; "" where it has none.
    pipeline_tag: ClassVar[str] = ""
    #: the task's name in `zoo list`.
    task: ClassVar[str]
    predictor_type: ClassVar[type[Predictor]]
    #: whether another seed gives another model.
    depends_on_seed: ClassVar[bool] = True
    #: validation scores in the progress bar.
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)

    #: metrics of the evaluation that runs.
    metrics: Any

    def __init__(
        self,
        init_from: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
        lr_scheduler: LRSchedulerCallable | None = None,
        freeze: list[str] | None = None,
        learning_rates: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        if optimizer is None:  # as YAML may have it
            raise InputError("model.optimizer=null: name one, such as torch.optim.Adam, or omit the option")
        # Lightning collects the arguments of every `__init__` in the MRO: a checkpoint makes the model from them.
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        self.init_from, self.learning_rates = init_from, learning_rates
        #: patterns of the names of the parts that are not trained.
        self.freeze_patterns = list(freeze or [])
        self.make_optimizer, self.make_lr_scheduler = optimizer, lr_scheduler
        #: on while `zoo.runs.finishing` fits what needs no gradients, and validates the result.
        self.is_finishing = False
        #: time of `time.monotonic` before which a fit without gradients ends; it skips what would take longer.
        self.deadline = math.inf
        self.evaluation = Evaluation()
        #: seed of the run; None without `zoo.runs.train`: nothing is fixed.
        self.run_seed: int | None = None
        self.epoch_loss = _EpochLoss()

    # --- written by each model ---

    def check_data(self, data: DataT) -> None:
        """Raise an `InputError` that names the option to change if the data do not fit; called before they are read."""
        if data.spec_type is not self.spec_type:
            raise InputError(f"{type(self).__name__} is for {self.task}, not for a {type(data).__name__}")

    @property
    def has_epochs(self) -> bool:
        """True for a model with weights that are trained by gradients."""
        return True

    def finish(self, data: DataT) -> None:
        """Fit what needs no gradients, after the last epoch; every process does it by itself, with the same result."""

    @property
    def finishes(self) -> bool:
        """True for a model of which some part is fitted without gradients."""
        return type(self).finish is not Task.finish

    @property
    def is_fitting(self) -> bool:
        """True in a fit, its last validation included; False in an evaluation and in a prediction."""
        is_training = self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        return self.is_finishing or is_training

    def idle_options(self, data: DataT) -> Iterator[tuple[str, str]]:
        """Options of the model (`model...`) or the data (`data...`) that are set and change nothing; the reason."""
        return ((f"data.{name}", reason) for name, reason in data.idle_options())

    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        """Names of the rows of a weight of this or another model, by which `init_from` matches them; None: by order."""
        if name.endswith((".words.table", ".characters.weight")):  # or characters that are the data's words
            return data.vocabulary["words"] or ()
        if name.endswith(".char_table.weight"):
            return data.vocabulary["characters"] or ()
        if name.endswith(".bigrams.table"):  # buckets of pairs of words' numbers
            return numbered(range(len(weight)), data.vocabulary["words"])
        if name.endswith(".hashing.table"):  # known letter trigrams, or buckets of them
            known = data.facts.get("trigrams", ())
            trigrams = known if len(known) == len(weight) else range(len(weight))
            return numbered(trigrams, data.vocabulary["characters"])
        return None

    def column_names(self, name: str, data: DataState, extras: PlainDict) -> Mapping[Hashable, bool] | None:
        """Names of the columns of a weight of a model with such data and `describe_extras`; None: by order.

        True for a column that keeps its fresh weights where the other model lacks it; others become 0.
        """
        return None

    # --- written by each kind of task ---

    @abstractmethod
    def new_scores(self) -> Metric:
        """The metrics of a table; `compute` returns name -> value, or values of its `labels`, NaN where it has none."""

    @abstractmethod
    def count(self, scores: Any, batch: Any) -> None:
        """Add a batch of an evaluation to the metrics."""

    @abstractmethod
    def shown_predictions(self, data: DataT, rows: int) -> PredictionTable:
        """The predictions for the first `rows` validation rows, with the truth."""

    def charts(self, data: DataT, rows: int) -> Iterable[Chart]:
        """Charts of the first `rows` validation rows, for `callbacks.Charts`."""
        return ()

    # --- from data or checkpoint to network ---

    @override
    def setup(self, stage: str) -> None:
        data = self.training_data
        if self.network is not None:
            if self.data_state is not None:
                data.use_state(self.data_state)
            self.metrics = self.new_scores()  # other data may have others
        elif stage == "fit":
            self.check_data(data)
            self._build(Given(data.spec, data.words.vectors()))
            self.data_state = data.state()
        precision = self.trainer.precision
        if stage == "fit" and precision not in PRECISIONS:
            of = ", ".join(PRECISIONS)
            raise InputError(f"trainer.precision={precision}: the weights are float32; use one of {of}")

    @override
    def _build(self, given: Given) -> None:
        super()._build(given)
        freeze_parts(self.network, self.freeze_patterns)
        if self._trainer is not None:  # predictions need no scores
            self.metrics = self.new_scores()

    @override
    def on_load_checkpoint(self, checkpoint: PlainDict) -> None:
        # Lightning resumes a run: make the network that the weights fit, and give the data its vocabulary.
        # `load_from_checkpoint` calls this without a trainer.
        trainer = self._trainer
        meta = meta_of(checkpoint, (trainer and trainer.ckpt_path) or "the checkpoint")
        data = self.data
        if data is not None and trainer is not None and trainer.state.fn == TrainerFn.FITTING:
            check_resumed(data.state(), meta.data)
        self._rebuild(meta, checkpoint["state_dict"])
        if data is not None:
            data.use_state(meta.data)

    # --- starting from another model ---

    def _start(self) -> None:
        """Take another model's weights, if `init_from` names one, and log how much is trained."""
        data, taken = self.training_data, set[str]()
        if self.init_from is not None:
            start, where = Start.open(self.init_from, self.device), f"model.init_from={self.init_from}"
            check_split(data.options, data.file_contents, start.meta.data, "validation", where)
            assert self.data_state is not None
            taken = take_weights(
                self, start, self.init_from, self.describe(), self.row_names, self.column_names
            )
        if self.freeze_patterns:
            check_frozen(self, taken, self.init_from, data.words.vectors() is not None)
        adapters = [weight for name, weight in self.named_parameters() if is_adapter(name)]
        if self.freeze_patterns and adapters and not any(weight.requires_grad for weight in adapters):
            raise InputError(
                f"model.lora_rank trains parts that model.freeze={self.freeze_patterns} excludes; omit one of the two"
            )
        if self.freeze_patterns or adapters:
            weights = list(self.network.parameters())
            trained = sum(weight.numel() for weight in weights if weight.requires_grad)
            total = sum(weight.numel() for weight in weights)
            log.info("trained: %s of %s parameters", f"{trained:,}", f"{total:,}")

    @override
    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode and self.network is not None:
            freeze_parts(self.network, self.freeze_patterns)  # frozen parts have no training mode
        return self

    # --- training ---

    def log_loss(self, loss: Tensor, count: int | Tensor) -> None:
        """Log the loss of a step on `count` texts as `train/loss`, and the epoch's mean as `train/loss_epoch`.

        A count that is computed on a GPU stays there: reading it would wait for the step.
        """
        # Only means over an epoch read the batch size.
        self.log("train/loss", loss, prog_bar=True, batch_size=1)
        self.epoch_loss.add(loss, count)

    @override
    def on_train_epoch_end(self) -> None:
        if (mean := self.epoch_loss.mean(self)) is not None:
            self.log("train/loss_epoch", mean)
            if self.trainer.progress_bar_callback is None:
                self._show_epoch()
        self.epoch_loss = _EpochLoss()

    def _show_epoch(self) -> None:
        """Log a line on the epoch, instead of a progress bar."""
        names = ["train/loss_epoch", "val/loss", *(f"val/{name}" for name in self.shown)]
        figures = self.trainer.callback_metrics  # computed in all processes together
        parts = [f"{name} {float(figures[name]):.4g}" for name in names if name in figures]
        if self.trainer.is_global_zero:
            log.info("epoch %d: %s", self.current_epoch + 1, ", ".join(parts))

    @override
    def on_fit_start(self) -> None:
        if self.trainer.is_global_zero:
            for option, reason in self.idle_options(self.training_data):
                log.warning("%s has no effect: %s", option, reason)
        self.epoch_loss = _EpochLoss()
        if self.trainer.ckpt_path is None:
            self._start()  # a resumed run has its own weights by now

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Random draws depend on seed, epoch, step and process alone: a resumed run equals an uninterrupted one.
        if self.run_seed is not None:
            state = [self.run_seed, self.current_epoch, batch_idx, self.global_rank]
            torch.manual_seed(int(np.random.SeedSequence(state).generate_state(1)[0]))

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        is_finite = self.epoch_loss.is_finite_after(outputs)
        # The loss is read as rarely as it is logged: reading it waits for the device.
        every = max(1, self.trainer.log_every_n_steps)  # type: ignore[attr-defined]
        is_read = self.trainer.is_last_batch or (batch_idx + 1) % every == 0
        # All processes end together.
        if is_read and not self.trainer.strategy.reduce_boolean_decision(bool(is_finite), all=True):
            raise diverged("the loss", self.current_epoch, self.global_step)

    @override
    def configure_optimizers(self) -> Any:
        groups = parameter_groups(self.network, self.learning_rates)
        try:
            optimizer = self.make_optimizer(groups)
        except ValueError as error:
            raise InputError(f"model.optimizer: {error}") from error
        optimizer = self.adapt_optimizer(optimizer)
        if self.make_lr_scheduler is None:
            return optimizer
        schedule = make_schedule(self.make_lr_scheduler, optimizer, self.trainer.check_val_every_n_epoch)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Replace the user's optimizer by a faster one with the same result."""
        return optimizer

    # --- evaluation ---

    @override
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.count(self.metrics, batch)

    test_step = validation_step

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_scores("val", "validation")

    @override
    def on_test_epoch_end(self) -> None:
        self._log_scores("test", "test")

    @override
    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero:
            self.evaluation.write()

    on_test_end = on_validation_end

    def _log_scores(self, stage: str, split: str) -> None:
        values = self.metrics.compute()
        self.metrics.reset()
        if self.is_fitting and "loss" in values and bool(values["loss"].isnan()):
            raise diverged("the validation loss", self.current_epoch, self.global_step)
        counts = self.training_data.duplicate_counts(split)
        values |= {name: torch.tensor(count) for name, count in counts.items()}
        figures = {name: value for name, value in values.items() if not value.ndim}
        # Apple's GPUs have no float64.
        precision = torch.float32 if self.device.type == "mps" else torch.float64
        classes = {
            f"{name}/{label}": number
            for name, value in values.items()
            if value.ndim
            for label, number in zip(getattr(self.metrics, "labels", ()), value.tolist(), strict=True)
            if not math.isnan(number)
        }
        self.evaluation.parts = classes
        # Each logged metric costs about 1 ms; the support is the same in each epoch.
        if len(classes) <= MAX_CLASS_SCORES:
            logged = {name: value for name, value in classes.items() if not name.startswith("support/")}
            figures |= {name: torch.tensor(value, dtype=precision) for name, value in logged.items()}
        for name, value in figures.items():
            # compute() has already summed over processes: nothing remains to be reduced.
            is_shown = stage == "val" and name in self.shown
            self.log(f"{stage}/{name}", value.to(precision), prog_bar=is_shown, rank_zero_only=False)


@dataclass
class Evaluation:
    """The results of an evaluation, as plain values: a `Task` fills it, and `zoo.runs.evaluation` reads the file."""

    #: name -> value; Lightning has logged them.
    scores: dict[str, float] = field(default_factory=dict)
    #: scores of single classes, such as `f1/World`, or of the parts of a search, such as `map/BM25 alone`.
    parts: dict[str, float] = field(default_factory=dict)
    #: the score of each query, by its id, where models are compared query by query.
    queries: dict[str, float] = field(default_factory=dict)
    #: a table in which the model compares itself with others; empty where there is none.
    table: PlainDict = field(default_factory=dict)
    #: a comparison of probabilities with the accuracy; empty where there is none.
    calibration: PlainDict = field(default_factory=dict)
    #: columns and lines of the rows with wrong predictions; empty where there are none.
    errors: PlainDict = field(default_factory=dict)
    #: whether these rows are listed.
    lists_errors: bool = False
    #: where `write` puts all: a process that is forked for a device leaves nothing else behind.
    file: Path | None = None

    def write(self) -> None:
        """Write the scores, if a file is set."""
        if self.file is not None:
            write_json(self.file, {name: value for name, value in vars(self).items() if name != "file"})


class _EpochLoss:
    """Sums of the losses of an epoch, kept on the device: reading them would wait for each step.

    A `Task` makes it, and reads it at the end of an epoch, and as often as metrics are logged.
    """

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._count: Tensor | int = 0
        self._is_finite: Tensor | bool = True

    def add(self, loss: Tensor, count: int | Tensor) -> None:
        """Add the mean loss of a number of texts."""
        # Lightning's own mean takes a third of a millisecond of every step.
        self._sum = self._sum + count * loss.detach()
        self._count += count

    def mean(self, task: Task) -> Tensor | None:
        """Return the mean loss of a text of all processes; None before the first step."""
        if not isinstance(self._sum, Tensor):
            return None
        sums = torch.stack([self._sum, torch.as_tensor(self._count).to(self._sum)])
        total, count = task.trainer.strategy.reduce(sums, reduce_op="sum")
        return total / count

    def is_finite_after(self, outputs: Tensor | Mapping[str, Tensor] | None) -> Tensor | bool:
        """Return True if this result of a step is finite, and those of all steps before."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._is_finite = loss.isfinite() & self._is_finite
        return self._is_finite


def diverged(figure: str, epoch: int, step: int) -> InputError:
    """Return the error of a training with a figure that is not finite; epochs from 0."""
    return InputError(
        f"training diverged: {figure} is not finite in epoch {epoch + 1}, step {step}; use a lower learning rate"
        " (--model.optimizer.lr) or --trainer.gradient_clip_val; earlier checkpoints are kept"
    )
