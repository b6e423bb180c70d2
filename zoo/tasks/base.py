"""What every model needs around its network: when it is made, how it is kept, how it is trained and measured."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric
from typing_extensions import Self, override

from callbacks.chart import Chart
from datamodules.base import TextDataModule
from datamodules.core.errors import InputError
from datamodules.core.storage import write_json
from datamodules.corpora.rows import Rows
from datamodules.retrieval import Memory
from zoo.layers.encoders import transformer_of
from zoo.layers.lora import is_adapter
from zoo.saving.checkpoint import CHECKPOINT_KEY, making_of, plain, read_checkpoint
from zoo.tasks.predictor import Predictor
from zoo.training.sharding import is_sharded, shard
from zoo.training.trained_parts import count_parameters, freeze, parameter_groups
from zoo.training.warm_start import check_frozen, numbered, start_from

log = logging.getLogger("zoo")

#: Weights in half precision are too coarse, and in double precision nothing is gained.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

#: Scores of single classes that the loggers are told at most; the file of --output has all.
MOST_CLASS_SCORES = 300


class Task(pl.LightningModule):
    """Base of all models.

    A model says in `build_network` how its network is made. The network is made late: when the data is known
    (`setup`), or when a checkpoint is read, which carries what is needed to make it again. A network keeps
    its `WordEncoder` in an attribute `words` and a pre-trained transformer in an attribute `transformer`, its
    own or a part's: that is how checkpoints find them.

    What differs between kinds of tasks, the rest of the zoo asks through the attributes and methods here: it knows
    no task by name.
    """

    #: what the Hugging Face Hub calls the task; "" where it has no name for it.
    pipeline_tag: ClassVar[str] = ""
    #: the publication that the model is from.
    paper: ClassVar[str] = ""
    #: what the task is called in `zoo list`.
    task: ClassVar[str]
    #: the NamedTuple that describes the task's data, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    #: texts in, predictions out.
    predictor_type: ClassVar[type[Predictor]]
    #: whether batches must carry the texts as strings.
    reads_strings: ClassVar[bool] = False
    #: whether they must carry what the memories say.
    reads_memory_texts: ClassVar[bool] = True
    #: whether another seed gives another model.
    depends_on_seed: ClassVar[bool] = True
    #: whether `refit` fits something.
    takes_refit: ClassVar[bool] = False
    #: whether rows of classes that training lacked can be added to the memory, and are predicted from then on.
    takes_new_labels: ClassVar[bool] = False
    #: whether the model keeps its best epoch by itself: its last checkpoint is then its best.
    keeps_best: ClassVar[bool] = False
    #: whether the weights can be cut in parts over several devices: all processes call the network, and all of it.
    can_be_sharded: ClassVar[bool] = False
    #: figures of the validation rows that the progress bar shows.
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)

    #: the model's options, as attributes and by name.
    options: Any
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
            init_from: a checkpoint, run, exported folder or name on the Hugging Face Hub whose weights the model starts
                from, as far as they fit; what was taken is logged. `--ckpt_path` resumes a run instead.
            optimizer: makes the optimizer. Adam's `fused=True` does the same in one pass: with a trained table of
                word vectors, PyTorch's usual version takes most of a step on a CPU.
            lr_scheduler: makes a schedule, stepped once an epoch.
            freeze: names of parts of the network that stay as they are, also as shell-like patterns, such as `encoder`
                or `encoder.transformer.encoder.layer.[0-3]`; they have no dropout either.
            learning_rates: learning rates of parts of the network, named likewise; of several that mean a weight, the
                last counts. All else is trained at the optimizer's own rate, and a schedule is of all of them.
            compile: backend of `torch.compile` for training, such as `inductor`; null: none. Names of weights stay as
                they are. It needs a C++ compiler, pays on GPUs, and costs the first steps a minute or more.
        """
        super().__init__()
        if optimizer is None:  # as YAML may have it
            raise InputError(
                "model.optimizer=null: name one, such as torch.optim.Adam, or leave the option out"
            )
        # Of all constructors before this one: every class names its own options and passes the rest on.
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        self.options = self.hparams
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.network = None
        self.spec: Any = None
        #: the data's plain description (vocabulary, memory, options), kept in checkpoints.
        self.data_state: dict[str, Any] = {}
        #: the last evaluation's scores of single classes, by name.
        self.class_scores: dict[str, float] = {}
        #: the last evaluation's figure of each query, by its id, where models are compared query by query.
        self.query_scores: dict[str, float] = {}
        #: where these two are written after an evaluation: a process that is forked for a device leaves nothing else
        #: of them behind.
        self.scores_file: Path | None = None
        # Whether all losses were finite so far: a number, or a truth value on the device.
        self._is_finite: Any = True
        #: the checkpoint that `zoo fit` goes on with: the trainer tells it too late where weights are cut in parts.
        self.resumed_from: str | None = None
        # The sum of an epoch's losses so far, and of how many texts.
        self._epoch_loss: Any = 0.0
        self._epoch_count = 0

    # --- what a model says ---

    @abstractmethod
    def build_network(
        self, spec: Any, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
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

    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        """Refuse what the options of a data module show to be of no use for this model.

        `zoo fit` and `zoo prepare` ask before anything is read; `setup` asks again. A model that wants more of
        its data says so here.

        Args:
            data: a data module, not prepared yet.

        Raises:
            InputError: names the option to change.
        """
        if data.spec_type is not self.spec_type:
            raise InputError(
                f"{type(self).__name__} is a model for {self.task}, which a {type(data).__name__} is not for"
            )

    # --- starting from another model ---

    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        """What the rows of a weight stand for: `init_from` takes those that both models have.

        Args:
            name: of the weight.
            weight: this model's, or another model's of the same name.
            data: the state of that model's data.

        Returns:
            A name for each row; None where it is the rows' order that counts.
        """
        vocabulary = data["vocabulary"]
        if name.endswith(".words.table"):
            return vocabulary["words"] or ()
        if name.endswith(".char_table.weight"):
            return vocabulary["characters"] or ()
        if name.endswith(".bigrams.table"):  # buckets of pairs of words' numbers
            return numbered(range(len(weight)), vocabulary["words"])
        return None

    #: how the names of the weights begin of which only `take_head` takes something.
    head: ClassVar[str | None] = None

    def describe_head(self) -> Any:
        """What `take_head` must know of the checkpoint's head: plain values."""
        return None

    def take_head(self, checkpoint: Mapping[str, Any]) -> list[str]:
        """Take what fits of the head of another model's checkpoint.

        Returns:
            What was taken, for people.
        """
        return []

    def use_memory(
        self, data: TextDataModule[Any, Any], memory: Memory | None, texts: int | None = None
    ) -> None:
        """Take from the memory what batches do not bring; called before texts are predicted.

        Args:
            data: the model's.
            memory: that predictions are made with, open; None = there is none.
            texts: how many; None = many.
        """

    def before_reading(self, split: str) -> None:
        """Say what batches of a validation or test shall bring; asked when their loader is made.

        Args:
            split: `validation` or `test`.
        """

    def answer_of(self, scores: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The table of a model that compares itself with others (None = no such model), and the scores beside it."""
        return None, scores

    def refit(self, predictor: Any, rows: Rows) -> str | None:
        """Fit again how much the memories count, on labelled rows, without any training.

        Args:
            predictor: of this model, with its memory.
            rows: labelled rows.

        Returns:
            What was found, for people; None where the model has nothing of its own that could be fitted.
        """
        return None

    @property
    def frozen(self) -> list[str]:
        """Patterns of the names of the parts that stay as they are."""
        return list(self.options.freeze or ())

    def describe_size(self) -> str:
        """How many parameters the model has by default, for `zoo list`."""
        spec, data = self.example_spec()
        parameters = sum(weight.numel() for weight in self.build_network(spec, None, None).parameters())
        return f"{parameters:,} by default, with {data}"

    # --- what a kind of task says ---

    @classmethod
    @abstractmethod
    def example_spec(cls) -> tuple[Any, str]:
        """Data of a usual size, and what to call it: sizes of models are told for it."""

    @abstractmethod
    def new_scores(self) -> Metric:
        """The metrics of a table.

        `compute` returns name -> value; or a vector of values, one for each of the metric's `labels`, NaN where a class
        has none.
        """

    @abstractmethod
    def count(self, scores: Any, batch: Any) -> None:
        """Count a batch of an evaluation."""

    @abstractmethod
    def shown_predictions(
        self, data: TextDataModule[Any, Any], rows: int
    ) -> tuple[list[str], list[list[Any]]]:
        """A table for people: predictions of the first validation rows, beside the truth.

        Args:
            data: prepared.
            rows: of how many.

        Returns:
            Names of the columns, and the lines.
        """

    def charts(self, data: TextDataModule[Any, Any], rows: int) -> Iterable[Chart]:
        """What the model does with the first validation rows, for `callbacks.Charts`; none unless a kind has some.

        Args:
            data: prepared.
            rows: of how many.
        """
        return ()

    # --- from data or checkpoint to network ---

    @override
    def setup(self, stage: str) -> None:
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise InputError("pass a data module to the trainer: the model reads its sizes")
        data.with_strings, data.with_memory_texts = self.reads_strings, self.reads_memory_texts
        data.forget_encodings()  # of a model that read the same data before
        if self.network is not None:
            if self.data_state:
                data.use_state(self.data_state)
            self._make_scores()  # other data may ask for others
        elif stage == "fit":
            self.check_data(data)
            self._build(data.spec, data.word_vectors(), None)
            self.data_state = data.state()
        if stage == "fit" and str(self.trainer.precision) not in PRECISIONS:
            raise InputError(
                f"trainer.precision={self.trainer.precision}: the weights of these models are float32; use one of"
                f" {', '.join(PRECISIONS)}"
            )

    @override
    def configure_model(self) -> None:
        # `load_from_checkpoint` calls this, too, without a trainer.
        if self._trainer is not None and is_sharded(self.trainer.strategy):
            if self.resumed_from is None:
                self._start()  # which reads and writes whole weights
            else:
                # Lightning loads the weights before it asks the model whether they fit.
                checkpoint = read_checkpoint(self.resumed_from)
                with making_of(self.resumed_from):
                    assert self.data is not None
                    self.data.check_resumed(self.data.state(), checkpoint[CHECKPOINT_KEY]["data"])
                    self._check_shapes(checkpoint)
                    self._check_training(checkpoint)
            shard(self)

    def _build(
        self, spec: Any, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> None:
        self.spec = spec
        try:
            self.network = self.build_network(spec, word_vectors, transformer_config)
        except InputError:
            raise
        except ValueError as error:  # PyTorch's own checks: a size of 0, a probability of 3
            raise InputError(f"model: {error}") from error
        freeze(self.network, self.frozen)
        self._make_scores()

    def _start(self) -> None:
        """Take another model's weights, if they are wanted, and say how much is trained."""
        start = self.options.init_from
        check_frozen(self, set() if start is None else start_from(self, start))
        adapters = [weight for name, weight in self.named_parameters() if is_adapter(name)]
        if adapters and not any(weight.requires_grad for weight in adapters):
            raise InputError(
                f"model.lora_rank trains what model.freeze={self.options.freeze} keeps as it is; leave out one of the"
                " two"
            )
        trained, all_parameters = count_parameters(self.network)
        if self.frozen or adapters:
            log.info("trained: %s of %s parameters", f"{trained:,}", f"{all_parameters:,}")

    @override
    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode and self.network is not None:
            freeze(self.network, self.frozen)  # which has no training mode
        return self

    def _make_scores(self) -> None:
        self.validation_scores, self.test_scores = self.new_scores(), self.new_scores()

    @property
    def data(self) -> TextDataModule[Any, Any] | None:
        """The trainer's data module, if there is a trainer."""
        return getattr(self._trainer, "datamodule", None) if self._trainer is not None else None

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # What makes the checkpoint load alone: model name, sizes, labels, vocabulary, memory.
        transformer = transformer_of(self.network)
        checkpoint[CHECKPOINT_KEY] = {
            "model": type(self).__name__,
            "spec": dict(self.spec._asdict()),
            "data": self.data_state,
            "head": self.describe_head(),
            "sharded": self._trainer is not None and is_sharded(self.trainer.strategy),
            "transformer_config": None if transformer is None else plain(transformer.config.to_dict()),
        }

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Make the network that the weights fit, and give the data its vocabulary.
        ours = checkpoint.get(CHECKPOINT_KEY)
        if ours is None or ours["model"] != type(self).__name__:
            kind = "not of this project" if ours is None else f"of a {ours['model']}"
            raise InputError(f"the checkpoint is {kind}, but the model is a {type(self).__name__}")
        if self._trainer is None or self.trainer.ckpt_path is None:
            self._use_checkpoint(checkpoint)  # the caller knows its name
            return
        with making_of(self.trainer.ckpt_path):
            self._use_checkpoint(checkpoint)

    def _use_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours = checkpoint[CHECKPOINT_KEY]
        if self.data is not None and self.trainer.state.fn == TrainerFn.FITTING:
            self.data.check_resumed(self.data.state(), ours["data"])
        self.data_state = ours["data"]
        spec = self.spec_type(**ours["spec"])
        if self.network is None or spec != self.spec:
            weights = checkpoint["state_dict"]
            vectors = next((weights[name] for name in weights if name.endswith(".words.table")), None)
            self._build(
                spec, None if vectors is None else torch.empty_like(vectors), ours["transformer_config"]
            )
            self.to(self.device)
        if "state_dict" in checkpoint:  # parts of weights are read, and compared, before this
            self._check_shapes(checkpoint)
        if self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            self._check_training(checkpoint)
        if self.data is not None:
            self.data.use_state(self.data_state)

    def _check_training(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on where the optimizer's state would not fit: how it is kept, and of which optimizer."""
        if is_sharded(self.trainer.strategy) != checkpoint[CHECKPOINT_KEY].get("sharded", False):
            raise InputError(
                "the checkpoint was trained with weights cut in parts (FSDP) and this run has whole ones, or the other"
                " way round; resume with the same trainer.strategy, or start from the weights alone with"
                " --model.init_from"
            )
        self._check_optimizer(checkpoint)

    def _check_optimizer(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on with another optimizer: its settings, by which it is known, would be missing."""
        mine = self.make_optimizer([nn.Parameter(torch.zeros(1))])
        groups = [
            group for state in checkpoint.get("optimizer_states", []) for group in state["param_groups"]
        ]
        if any(mine.defaults.keys() - group.keys() for group in groups):
            raise InputError(
                f"model.optimizer={type(mine).__name__}: the checkpoint was trained with another optimizer; name that"
                " one, or start from the weights alone with --model.init_from"
            )
        sizes = [
            len(group["params"]) for group in parameter_groups(self.network, self.options.learning_rates)
        ]
        if groups and sizes != [len(group["params"]) for group in groups]:
            raise InputError(
                "the checkpoint was trained with other model.freeze or model.learning_rates; give it the same, or start"
                " from the weights alone with --model.init_from"
            )

    def _check_shapes(self, checkpoint: dict[str, Any]) -> None:
        mine, stored = (
            {name: value.shape for name, value in weights.items() if isinstance(value, Tensor)}
            for weights in (self.state_dict(), checkpoint["state_dict"])
        )
        if mine == stored:
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

    # --- training ---

    def log_loss(self, loss: Tensor, count: int) -> None:
        """Log a step's loss as `train/loss`, and its mean over the epoch as `train/loss_epoch`.

        Of steps, Lightning writes one in `log_every_n_steps`; the mean is there in a shorter run, too.

        Args:
            loss: scalar.
            count: how many texts, pairs or questions it is of: what it weighs in the mean.
        """
        self.log("train/loss", loss, prog_bar=True, batch_size=count)
        # Lightning's own mean would take a third of a millisecond of every step.
        self._epoch_loss = self._epoch_loss + count * loss.detach()
        self._epoch_count += count

    @override
    def on_train_epoch_end(self) -> None:
        if self._epoch_count:
            self.log("train/loss_epoch", self._epoch_loss / self._epoch_count, sync_dist=True)
        self._epoch_loss, self._epoch_count = 0.0, 0

    @override
    def forward(self, batch: Any) -> Any:
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a checkpoint with zoo.load")
        return self.network(batch)

    @override
    def on_fit_start(self) -> None:
        self._is_finite = True
        self._epoch_loss, self._epoch_count = 0.0, 0
        if self.options.compile is not None:
            self.network.compile(backend=self.options.compile, dynamic=True)
        if self.trainer.ckpt_path is None and not is_sharded(self.trainer.strategy):
            self._start()  # a resumed run has its own weights by now

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # What a step draws (dropout) is seeded by the run's seed, the epoch, the step and the process. So nothing
        # that a process did before, an earlier epoch or a callback, changes what is learned, and a resumed run
        # learns what an uninterrupted one does. Without `seed_everything`, nothing is fixed.
        if (seed := os.environ.get("PL_GLOBAL_SEED")) is not None:
            place = [int(seed), self.current_epoch, batch_idx, self.global_rank]
            torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Looked at as rarely as the loss is logged: to look is to wait for the device.
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:
            return
        self._is_finite = loss.isfinite() & self._is_finite
        last = self.trainer.is_last_batch
        every = max(1, self.trainer.log_every_n_steps)  # type: ignore[attr-defined]
        if not last and (batch_idx + 1) % every:
            return
        is_finite = bool(self._is_finite)
        # Of several processes, all end.
        if not self.trainer.strategy.reduce_boolean_decision(is_finite, all=True):
            raise self._diverged("the loss")

    def _diverged(self, figure: str) -> InputError:
        return InputError(
            f"training diverged: {figure} is no finite number in epoch {self.current_epoch}, step {self.global_step};"
            " use a lower learning rate (--model.optimizer.lr) or --trainer.gradient_clip_val; checkpoints from"
            " before are kept"
        )

    @override
    def configure_optimizers(self) -> Any:
        groups = parameter_groups(self.network, self.options.learning_rates)
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
                f"model.lr_scheduler: {type(scheduler).__name__} has one rate for all weights, which"
                " model.learning_rates has not; leave out one of the two"
            )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}

    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """What is trained with in place of the optimizer that the user chose, with the same result."""
        return optimizer

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
        self._write_single_scores()

    @override
    def on_test_end(self) -> None:
        self._write_single_scores()

    def _write_single_scores(self) -> None:
        if self.scores_file is not None and self.trainer.is_global_zero:
            write_json(self.scores_file, {"classes": self.class_scores, "queries": self.query_scores})

    def _log_scores(self, scores: Metric, stage: str, split: str) -> None:
        values = scores.compute()
        scores.reset()
        loss = values.get("loss")
        if self.trainer.state.fn == TrainerFn.FITTING and loss is not None and bool(loss.isnan()):
            raise self._diverged("the validation loss")
        if self.data is not None:
            # Beside the scores, how many rows they say little of.
            values |= {name: torch.tensor(count) for name, count in self.data.copy_counts(split).items()}
        # Apple's GPUs know no float64.
        precision = torch.float32 if self.device.type == "mps" else torch.float64
        self.class_scores = {}
        for name, value in values.items():
            if value.ndim:
                self.class_scores |= _by_class(name, value, scores)
                continue
            # compute() has already summed over processes: nothing is left to reduce.
            bar = stage == "val" and name in self.shown
            self.log(f"{stage}/{name}", value.to(precision), prog_bar=bar, rank_zero_only=False)
        # A name of Lightning's costs a millisecond, and nobody reads thousands.
        if len(self.class_scores) <= MOST_CLASS_SCORES:
            logged = {
                f"{stage}/{name}": torch.tensor(value, dtype=precision)
                for name, value in self.class_scores.items()
            }
            self.log_dict(logged, rank_zero_only=False)


def _by_class(name: str, values: Tensor, scores: Any) -> dict[str, float]:
    """A metric's value for each class that has one."""
    named = zip(scores.labels, values.tolist(), strict=True)
    return {f"{name}/{label}": value for label, value in named if value == value}


def check_sizes(options: Mapping[str, Any], *names: str) -> None:
    """Refuse sizes of a model that are below 1, alone or in lists, and empty lists.

    Raises:
        InputError: names the option.
    """
    for name in names:
        value = options[name]
        sizes = [value] if isinstance(value, int) else value
        if len(sizes) == 0 or min(sizes) < 1:
            raise InputError(f"model.{name}={value}: must be at least 1")


def check_choices(options: Mapping[str, Any], **choices: tuple[str, ...]) -> None:
    """Refuse values that are none of an option's choices.

    Raises:
        InputError: names the option and its choices.
    """
    for name, known in choices.items():
        if options[name] not in known:
            raise InputError(f"model.{name}={options[name]!r}: choose one of {', '.join(known)}")
