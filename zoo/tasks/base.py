"""What every model needs around its network: when it is made, how it is kept, how it is trained."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from datamodules.errors import InputError
from datamodules.text.tokenization import WORD_TOKENIZERS, make_tokenizer
from zoo.checkpoints import CHECKPOINT_KEY
from zoo.layers.encoders import positions_of
from zoo.warm_start import start_from


class Task(pl.LightningModule):
    """Base of all models.

    A model says in `build_network` how its network is made. The network is made late: when the data is known
    (`setup`), or when a checkpoint is read, which carries what is needed to make it again. A network keeps
    its `WordEncoder` in an attribute `words` and a pre-trained transformer in an attribute `transformer`, its
    own or a part's: that is how checkpoints find them.
    """

    #: the publication that the model is from.
    paper: str = ""
    #: what the task is called in `zoo list`.
    task: ClassVar[str]
    #: the NamedTuple that describes the task's data, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    network: nn.Module | None

    def __init__(self, optimizer: OptimizerCallable, lr_scheduler: LRSchedulerCallable | None = None) -> None:
        super().__init__()
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.network = None
        self.spec: Any = None
        #: the data's plain description (vocabulary, memory, options), kept in checkpoints.
        self.data_state: dict[str, Any] = {}

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

    @abstractmethod
    def make_scores(self) -> None:
        """Make the metrics of validation and test; they have no entries in the state dict."""

    @property
    def uses_memory(self) -> bool:
        """Whether the network reads memories at all."""
        return True

    def check_data(self, data: Any) -> None:
        """Refuse what the options of a data module show to be of no use for this model.

        `zoo fit` and `zoo prepare` ask before anything is read; `setup` asks again. A model that wants more of
        its data says so here.

        Args:
            data: a data module, not prepared yet.

        Raises:
            InputError: names the option to change.
        """
        name = type(self).__name__
        if data.spec_type is not self.spec_type:
            raise InputError(f"{name} is a model for {self.task}, which a {type(data).__name__} is not for")
        transformer, tokenizer = self.hparams.get("transformer"), data.options["tokenizer"]
        if transformer is not None and tokenizer in WORD_TOKENIZERS:
            raise InputError(
                f"data.tokenizer={tokenizer}: a pre-trained transformer wants its own tokens: set"
                f" --data.tokenizer {transformer}"
            )
        if transformer is not None and tokenizer != transformer:
            # Two names of the same tokens are fine; ids of another vocabulary would be other words.
            theirs = make_tokenizer(transformer, lowercase=False).describe()["contents"]
            if data.tokenizer.describe()["contents"] != theirs:
                raise InputError(
                    f"data.tokenizer={tokenizer}: has other tokens than the pre-trained transformer: set"
                    f" --data.tokenizer {transformer}"
                )
        if transformer is not None and (positions := positions_of(transformer)) is not None:
            wanted, options = self.tokens_at_once(data.options)
            if wanted > positions:
                raise InputError(
                    f"{options}: {transformer} reads {positions} tokens at most, not {wanted}; set fewer"
                )

    def tokens_at_once(self, options: Mapping[str, Any]) -> tuple[int, str]:
        """How many tokens a transformer has to read together at most, and the data's options that say so."""
        lengths = ("max_length", "memory_max_length", "first_length", "second_length")
        given = {name: options[name] for name in lengths if options.get(name)}
        longest = max(given, key=given.__getitem__)
        return given[longest], f"data.{longest}"

    # --- from data or checkpoint to network ---

    def setup(self, stage: str) -> None:
        """Make the network for the trainer's data, unless it is there already."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise InputError("pass a data module to the trainer: the model reads its sizes")
        if self.network is not None:
            if self.data_state:
                data.use_state(self.data_state)
        elif stage == "fit":
            self.check_data(data)
            self._build(data.spec, data.word_vectors(), None)
            self.data_state = data.state()
        if stage == "fit" and str(self.trainer.precision) in ("16-true", "bf16-true"):
            half, bits = self.trainer.precision, self.trainer.precision.split("-")[0]
            raise InputError(
                f"trainer.precision={half}: weights in half precision are too coarse for these models; use"
                f" {bits}-mixed"
            )

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
        self.make_scores()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes the checkpoint load alone: model name, sizes, labels, vocabulary, memory."""
        assert self.spec is not None
        assert self.network is not None
        parts = (getattr(module, "transformer", None) for module in self.network.modules())
        transformer = next((part for part in parts if part is not None), None)
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
        spec = self.spec_type(**ours["spec"])
        if self.network is None or spec != self.spec:
            weights = checkpoint["state_dict"]
            vectors = next((weights[name] for name in weights if name.endswith(".words.table")), None)
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

    # --- training ---

    def on_fit_start(self) -> None:
        """Start from the weights of `init_from`; a resumed run has its own by now."""
        if self.hparams.get("init_from") is not None and self.trainer.ckpt_path is None:
            start_from(self, self.hparams["init_from"])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed what a step draws (dropout) by the run's seed, the epoch, the step and the process.

        So nothing that a process did before, an earlier epoch or a callback, changes what is learned, and a
        resumed run learns what an uninterrupted one does. Without `seed_everything`, nothing is fixed.
        """
        if (seed := os.environ.get("PL_GLOBAL_SEED")) is not None:
            place = [int(seed), self.current_epoch, batch_idx, self.global_rank]
            torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def _log_dtype(self) -> torch.dtype:
        # Apple's GPUs know no float64.
        return torch.float32 if self.device.type == "mps" else torch.float64

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


def check_sizes(hparams: Mapping[str, Any], *options: str) -> None:
    """Refuse sizes of a model that are below 1, alone or in lists, and empty lists.

    Raises:
        InputError: names the option.
    """
    for option in options:
        value = hparams[option]
        sizes = [value] if isinstance(value, int) else value
        if len(sizes) == 0 or min(sizes) < 1:
            raise InputError(f"model.{option}={value}: must be at least 1")


def _plain(value: Any) -> Any:
    """The value with everything that `torch.load(weights_only=True)` refuses made a string."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
