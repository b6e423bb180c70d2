"""Base of all models, whose networks are made when the data is known or a checkpoint is restored."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self, TypeVar, override

from callbacks.chart import Chart
from datamodules.base import DataModule
from datamodules.batch import BatchContents
from datamodules.core.errors import InputError
from datamodules.core.lightning import (
    LightningModule,
    LRSchedulerCallable,
    Metric,
    OptimizerCallable,
    TrainerFn,
)
from datamodules.core.sharing import SharedLock
from datamodules.core.storage import write_json
from datamodules.core.types import PlainDict
from datamodules.core.uncompiled import exclude_uncompiled
from datamodules.retrieval import Memory
from datamodules.state import DataState, check_resumed
from zoo.layers.encoders import transformer_config_of
from zoo.layers.lora import is_adapter
from zoo.model_folder.meta import Meta
from zoo.tasks.fits_weights import FitsWeights
from zoo.tasks.predictor import Predictor
from zoo.training.checkpoints import CHECKPOINT_KEY, meta_of, plain
from zoo.training.trained_parts import count_parameters, freeze_parts, parameter_groups
from zoo.training.warm_start import check_frozen, numbered, start_from

log = logging.getLogger("zoo")

#: Weights in half precision are too coarse, and double precision gains nothing.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

#: Arguments that are no plain values.
_OF_TRAINING = ("optimizer", "lr_scheduler")

#: Maximum number of scores of single classes that are logged; the file of --output has all.
MAX_CLASS_SCORES = 300


DataT = TypeVar("DataT", bound=DataModule, default=Any)


class Task(LightningModule, Generic[DataT]):
    """Base of all models; checkpoints find a network's `WordEncoder` in `words`, and a transformer in `transformer`."""

    #: the task's name on the Hugging Face Hub; "" where it has none.
    pipeline_tag: ClassVar[str] = ""
    #: the task's name in `zoo list`.
    task: ClassVar[str]
    #: the NamedTuple that describes the task's data, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    predictor_type: ClassVar[type[Predictor[Any, Any]]]
    #: batches must carry the texts as strings.
    reads_strings: ClassVar[bool] = False
    #: the network reads memories.
    uses_memory: bool = True
    #: whether another seed gives another model.
    depends_on_seed: ClassVar[bool] = True
    #: the metric that selects the best epoch; None = the data's `monitor`.
    monitor: ClassVar[str | None] = None
    #: validation scores in the progress bar.
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)

    network: Any
    validation_scores: Any
    test_scores: Any

    def __init__(
        self,
        init_from: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
        lr_scheduler: LRSchedulerCallable | None = None,
        freeze: list[str] | None = None,
        learning_rates: dict[str, float] | None = None,
        compile: str | None = None,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            init_from: a run folder, a model folder, a name on the Hugging Face Hub or a checkpoint, whose weights the
                model starts from, as far as they fit; the log lists them. `--ckpt_path` resumes a run instead.
            optimizer: makes the optimizer; with trained word vectors, `fused=True` saves most of a step on CPUs.
            lr_scheduler: makes a schedule, stepped once an epoch.
            freeze: names of parts of the network that are not trained, also as shell patterns, such as `encoder` or
                `encoder.transformer.encoder.layer.[0-3]`; they have no dropout either.
            learning_rates: rates of parts by such patterns; the last match counts, and others have the optimizer's.
            compile: backend of `torch.compile` for training, such as `inductor`; null: none. It needs a C++ compiler,
                pays on GPUs, and adds a minute or more to the first steps.
        """
        super().__init__()
        if optimizer is None:  # as YAML may have it
            raise InputError("model.optimizer=null: name one, such as torch.optim.Adam, or omit the option")
        # Lightning collects the arguments of every `__init__` in the MRO: a checkpoint makes the model from them.
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        self.init_from, self.learning_rates = init_from, learning_rates
        #: patterns of the names of the parts that are not trained.
        self.freeze_patterns = list(freeze or [])
        self.compile_backend = compile
        self.make_optimizer, self.make_lr_scheduler = optimizer, lr_scheduler
        self.network = None
        #: on while `zoo.runs.finishing` fits what needs no gradients, and validates the result.
        self.is_finishing = False
        #: held by the thread in which the model predicts.
        self.in_use = SharedLock()
        self.spec: Any = None
        #: state of the data, kept in checkpoints; after `setup` or `restore`.
        self.data_state: DataState | None = None
        self.evaluation = Evaluation()
        #: seed of the run; None without `zoo.runs.train`: nothing is fixed.
        self.run_seed: int | None = None
        # True while all losses were finite; on the device, once there was one.
        self._is_finite: Tensor | bool = True
        self._epoch_loss: Tensor | float = 0.0
        self._epoch_count: Tensor | int = 0

    # --- written by each model ---

    @abstractmethod
    def build_network(
        self, spec: Any, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> nn.Module:
        """Make the network; `word_vectors` [num_words, d] are pre-trained; the config is a checkpoint's, or None."""

    @property
    def vector_size(self) -> int | None:
        """Size of the vectors of the model's text encoder; None where it has none."""
        return None

    def check_data(self, data: DataT) -> None:
        """Raise an `InputError` that names the option to change if the data do not fit; called before they are read."""
        if data.spec_type is not self.spec_type:
            raise InputError(
                f"{type(self).__name__} is a model for {self.task}; a {type(data).__name__} has other data"
            )

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
        if self._trainer is None:
            return False
        return self.is_finishing or self.trainer.state.fn == TrainerFn.FITTING

    def idle_options(self, data: DataT) -> Iterator[tuple[str, str]]:
        """Options of the model (`model...`) or the data (`data...`) that are set and change nothing; the reason."""
        return ((f"data.{name}", reason) for name, reason in data.idle_options())

    def attach(self, split: str) -> None:
        """Open and encode what batches carry; see `datamodules.base.ReadsBatches`."""

    def batch_contents(self, split: str) -> BatchContents:
        """The contents of batches; see `datamodules.base.ReadsBatches`."""
        return BatchContents(strings=self.reads_strings)

    def read_memory(self, data: DataT, memory: Memory | None, num_texts: int | None = None) -> None:
        """Take from the open memory, if any, what batches lack, before `num_texts` texts (None: many) are predicted."""

    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        """Names of the rows of a weight of this or another model, by which `init_from` matches them; None: by order."""
        if name.endswith(".words.table"):
            return data.vocabulary["words"] or ()
        if name.endswith(".char_table.weight"):
            return data.vocabulary["characters"] or ()
        if name.endswith(".bigrams.table"):  # buckets of pairs of words' numbers
            return numbered(range(len(weight)), data.vocabulary["words"])
        return None

    # --- written by each kind of task ---

    @abstractmethod
    def new_scores(self) -> Metric:
        """The metrics of a table; `compute` returns name -> value, or values of its `labels`, NaN where it has none."""

    @abstractmethod
    def count(self, scores: Any, batch: Any) -> None:
        """Add a batch of an evaluation to the metrics."""

    @abstractmethod
    def shown_predictions(self, data: DataT, rows: int) -> tuple[list[str], list[list[object]]]:
        """A table of predictions for the first `rows` validation rows, with the truth: column names, and lines."""

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
            self._make_scores()  # other data may have others
        elif stage == "fit":
            self.check_data(data)
            self._build(data.spec, data.words.vectors(), None)
            self.data_state = data.state()
        if stage == "fit" and str(self.trainer.precision) not in PRECISIONS:
            raise InputError(
                f"trainer.precision={self.trainer.precision}: the weights of these models are float32; use one of"
                f" {', '.join(PRECISIONS)}"
            )

    @property
    def data(self) -> DataT | None:
        """The trainer's data module, if there is a trainer."""
        return None if self._trainer is None else getattr(self._trainer, "datamodule", None)

    @property
    def training_data(self) -> DataT:
        """The trainer's data module; raises an `InputError` if there is none."""
        if (data := self.data) is None:
            raise InputError("pass a data module to the trainer: the model reads its sizes")
        return data

    def _build(self, spec: Any, word_vectors: Tensor | None, transformer_config: PlainDict | None) -> None:
        self.spec = spec
        try:
            self.network = self.build_network(spec, word_vectors, transformer_config)
        except InputError:
            raise
        except ValueError as error:  # PyTorch's own checks: a size of 0, a probability of 3
            raise InputError(f"model: {error}") from error
        freeze_parts(self.network, self.freeze_patterns)
        if self._trainer is not None:  # predictions need no scores
            self._make_scores()

    def _make_scores(self) -> None:
        self.validation_scores, self.test_scores = self.new_scores(), self.new_scores()

    def restore(self, meta: Meta, weights: Mapping[str, Any]) -> None:
        """Make the network of a trained model, with its weights; an `InputError` if these do not fit."""
        self._rebuild(meta, weights)
        self.load_state_dict(weights)

    def _rebuild(self, meta: Meta, weights: Mapping[str, Any]) -> None:
        if meta.model != type(self).__name__:
            raise InputError(f"the trained model is a {meta.model}, but the model is a {type(self).__name__}")
        if meta.spec.keys() != {*self.spec_type._fields}:
            raise InputError(f"the trained {meta.model} is of another version of the zoo; use that version")
        self.data_state = meta.data
        spec = self.spec_type(**meta.spec)
        if self.network is None or spec != self.spec:
            tables = (value for name, value in weights.items() if name.endswith(".words.table"))
            vectors = next(tables, None)
            empty = None if vectors is None else torch.empty_like(vectors)
            self._build(spec, empty, meta.transformer_config)
            self.to(self.device)
        self._check_shapes(meta, weights)

    def _check_shapes(self, meta: Meta, weights: Mapping[str, Any]) -> None:
        """Raise an `InputError` that names the options that differ if weights have other names or shapes."""
        own, others = (
            {name: value.shape for name, value in each.items() if isinstance(value, Tensor)}
            for each in (self.state_dict(), weights)
        )
        if own == others:
            return
        differences = [
            f"{name} {meta.options[name]}, not {value}"
            for name, value in self.hparams.items()
            if meta.options.get(name, value) != value
        ]
        raise InputError(
            "the trained weights do not fit the model, which was trained with "
            + ("; ".join(differences) or "other data or another version")
            + "; give the same model options as in training"
        )

    def describe(self) -> Meta:
        """The model without its weights, for checkpoints and model folders."""
        assert self.data_state is not None
        options = {
            name: value
            for name, value in self.hparams.items()
            if not name.startswith("_") and name not in _OF_TRAINING
        }
        return Meta(
            model=type(self).__name__,
            options=plain(options),
            spec=dict(self.spec._asdict()),
            data=self.data_state,
            transformer_config=plain(transformer_config_of(self.network)),
            extras=plain(self.describe_extras()),
            fits_weights=isinstance(self, FitsWeights),
            takes_new_labels=bool(getattr(self, "takes_new_labels", False)),
        )

    def describe_extras(self) -> PlainDict:
        """Further values that another model reads which starts from this one."""
        return {}

    def describe_held_out(self) -> PlainDict | None:
        """The held-out rows of the training, as plain values and tensors; None if there are none."""
        return None

    def encodings_to_keep(self, data: DataModule) -> str | None:
        """Fingerprint of the encoder whose vectors of the memory stay with the trained model; None = none do."""
        return None

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[CHECKPOINT_KEY] = {"model": self.describe().to_dict()}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
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
        check_frozen(self, set() if self.init_from is None else start_from(self, self.init_from))
        adapters = [weight for name, weight in self.named_parameters() if is_adapter(name)]
        if adapters and not any(weight.requires_grad for weight in adapters):
            raise InputError(
                f"model.lora_rank trains parts that model.freeze={self.freeze_patterns} excludes; omit one of the two"
            )
        trained, total = count_parameters(self.network)
        if self.freeze_patterns or adapters:
            log.info("trained: %s of %s parameters", f"{trained:,}", f"{total:,}")

    @override
    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode and self.network is not None:
            freeze_parts(self.network, self.freeze_patterns)  # frozen parts have no training mode
        return self

    # --- training ---

    @override
    def forward(self, batch: Any) -> Any:
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a trained one with zoo.load")
        return self.network(batch)

    def log_loss(self, loss: Tensor, count: int | Tensor) -> None:
        """Log the loss of a step on `count` texts as `train/loss`, and the epoch's mean as `train/loss_epoch`.

        A count that is computed on a GPU stays there: reading it would wait for the step.
        """
        # Only means over an epoch read the batch size.
        self.log("train/loss", loss, prog_bar=True, batch_size=1)
        # Lightning's own mean takes a third of a millisecond of every step.
        self._epoch_loss = self._epoch_loss + count * loss.detach()
        self._epoch_count += count

    @override
    def on_train_epoch_end(self) -> None:
        if self._epoch_count:
            self.log("train/loss_epoch", self._epoch_loss / self._epoch_count, sync_dist=True)
            if self.trainer.progress_bar_callback is None:
                self._show_epoch()
        self._epoch_loss, self._epoch_count = 0.0, 0

    def _show_epoch(self) -> None:
        """Log a line on the epoch, instead of a progress bar."""
        names = ["train/loss_epoch", "val/loss", *(f"val/{name}" for name in self.shown)]
        figures = self.trainer.callback_metrics  # computed in all processes together
        parts = [f"{name} {float(figures[name]):.4g}" for name in names if name in figures]
        if self.trainer.is_global_zero:
            log.info("epoch %d: %s", self.current_epoch + 1, ", ".join(parts))

    @override
    def on_fit_start(self) -> None:
        if self.data is not None and self.trainer.is_global_zero:
            for option, reason in self.idle_options(self.data):
                log.warning("%s has no effect: %s", option, reason)
        self._is_finite = True
        self._epoch_loss, self._epoch_count = 0.0, 0
        if self.compile_backend is not None:
            exclude_uncompiled(self.network)
            self.network.compile(backend=self.compile_backend, dynamic=True)
        if self.trainer.ckpt_path is None:
            self._start()  # a resumed run has its own weights by now

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Random draws of a step depend on seed, epoch, step and process alone: a resumed run equals an uninterrupted
        # one.
        if self.run_seed is not None:
            state = [self.run_seed, self.current_epoch, batch_idx, self.global_rank]
            torch.manual_seed(int(np.random.SeedSequence(state).generate_state(1)[0]))

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # The loss is read as rarely as it is logged: reading it waits for the device.
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:
            return
        self._is_finite = loss.isfinite() & self._is_finite
        every = max(1, self.trainer.log_every_n_steps)  # type: ignore[attr-defined]
        if not self.trainer.is_last_batch and (batch_idx + 1) % every:
            return
        # All processes end together.
        if not self.trainer.strategy.reduce_boolean_decision(bool(self._is_finite), all=True):
            raise self._diverged("the loss")

    def _diverged(self, figure: str) -> InputError:
        return InputError(
            f"training diverged: {figure} is not finite in epoch {self.current_epoch}, step {self.global_step}; use a"
            " lower learning rate (--model.optimizer.lr) or --trainer.gradient_clip_val; earlier checkpoints are kept"
        )

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
        wanted = [group["lr"] for group in optimizer.param_groups]
        scheduler = self.make_lr_scheduler(optimizer)
        begun = [group["lr"] for group in optimizer.param_groups]
        if any(not isclose(lr * wanted[0], begun[0] * rate) for lr, rate in zip(begun, wanted, strict=True)):
            raise InputError(
                f"model.lr_scheduler: {type(scheduler).__name__} has one rate for all weights, and"
                " model.learning_rates has several; omit one of the two"
            )
        self.check_schedule(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}

    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Replace the user's optimizer by a faster one with the same result."""
        return optimizer

    def check_schedule(self, optimizer: Optimizer) -> None:
        """Adapt to options of the optimizer that the schedule has changed; called if there is a schedule."""

    # --- evaluation ---

    @override
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.count(self.validation_scores, batch)

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_scores(self.validation_scores, "val", "validation")

    @override
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.count(self.test_scores, batch)

    @override
    def on_test_epoch_end(self) -> None:
        self._log_scores(self.test_scores, "test", "test")

    @override
    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero:
            self.evaluation.write()

    on_test_end = on_validation_end

    def _log_scores(self, scores: Metric, stage: str, split: str) -> None:
        values = scores.compute()
        scores.reset()
        loss = values.get("loss")
        if self.is_fitting and loss is not None and bool(loss.isnan()):
            raise self._diverged("the validation loss")
        if self.data is not None:
            counts = self.data.duplicate_counts(split)
            values |= {name: torch.tensor(count) for name, count in counts.items()}
        # Apple's GPUs have no float64.
        precision = torch.float32 if self.device.type == "mps" else torch.float64
        classes: dict[str, float] = {}
        for name, value in values.items():
            if value.ndim:
                named = zip(getattr(scores, "labels", ()), value.tolist(), strict=True)
                classes |= {f"{name}/{label}": number for label, number in named if number == number}
                continue
            # compute() has already summed over processes: nothing remains to be reduced.
            is_shown = stage == "val" and name in self.shown
            self.log(f"{stage}/{name}", value.to(precision), prog_bar=is_shown, rank_zero_only=False)
        self.evaluation.class_scores = classes
        # Each logged metric costs about 1 ms.
        if len(classes) <= MAX_CLASS_SCORES:
            logged = {
                f"{stage}/{name}": torch.tensor(value, dtype=precision)
                for name, value in classes.items()
                if not name.startswith("support/")  # the same in each epoch
            }
            self.log_dict(logged, rank_zero_only=False)


class Evaluation:
    """Scores of an evaluation besides those that Lightning logs."""

    def __init__(self) -> None:
        #: scores of single classes, by name.
        self.class_scores: dict[str, float] = {}
        #: the score of each query, by its id, where models are compared query by query.
        self.query_scores: dict[str, float] = {}
        #: a table in which the model compares itself with others, as plain values; empty where there is none.
        self.table: PlainDict = {}
        #: a comparison of probabilities with the accuracy, as plain values; empty where there is none.
        self.calibration: PlainDict = {}
        #: whether the rows with wrong predictions are listed; their columns and lines, empty where there are none.
        self.lists_errors = False
        self.errors: PlainDict = {}
        #: where `write` puts all: a process that is forked for a device leaves nothing else behind.
        self.file: Path | None = None

    def write(self) -> None:
        """Write the scores, if a file is set."""
        if self.file is not None:
            scores = {
                "classes": self.class_scores,
                "queries": self.query_scores,
                "table": self.table,
                "calibration": self.calibration,
                "errors": self.errors,
            }
            write_json(self.file, scores)


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raise an `InputError` for sizes of a model that are below 1, alone or in lists, and empty lists."""
    for name, value in sizes.items():
        numbers = [value] if isinstance(value, int) else value
        if len(numbers) == 0 or min(numbers) < 1:
            raise InputError(f"model.{name}={value}: must be at least 1")


def check_probability(**values: float) -> None:
    """Raise an `InputError` for probabilities below 0, and those of 1 and above."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InputError(f"model.{name}={value}: must be 0 or more and below 1")


def check_positive(**values: float) -> None:
    """Raise an `InputError` for values that are not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"model.{name}={value}: must be above 0")


def check_not_negative(**values: float) -> None:
    """Raise an `InputError` for values below 0."""
    for name, value in values.items():
        if value < 0:
            raise InputError(f"model.{name}={value}: must be 0 or more")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise an `InputError` for a value that is not one of an option's choices."""
    if value not in choices:
        raise InputError(f"model.{name}={value!r}: choose one of {', '.join(choices)}")
