"""A network with the data that it was made for: the part of a model that is restored, described, and predicts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Generic, get_type_hints

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypeVar, override

from datamodules.base import DataModule
from datamodules.batch import BatchContents
from datamodules.core.errors import InputError
from datamodules.core.lightning import LightningModule
from datamodules.core.sharing import SharedLock
from datamodules.core.types import PlainDict, check_value
from datamodules.retrieval import Memory
from datamodules.state import DataState
from zoo.layers.encoders import transformer_config_of
from zoo.model_folder.meta import Meta
from zoo.training.checkpoints import CHECKPOINT_KEY, check_shapes, plain

DataT = TypeVar("DataT", bound=DataModule, default=Any)
SpecT = TypeVar("SpecT", default=Any)


@dataclass(frozen=True)
class Given(Generic[SpecT]):
    """The facts from which a network is built: those of the data, or those that a trained model has kept."""

    spec: SpecT
    #: [num_words, d]: pre-trained word vectors.
    word_vectors: Tensor | None = None
    #: of a trained model; None where the transformer is read by its name.
    transformer_config: PlainDict | None = None


class Model(LightningModule, Generic[DataT]):
    """A network, its options, and the state of its data: what a model folder keeps and a predictor needs.

    The network is built when the data is known, or a trained model restored. `Task` trains and evaluates it.
    """

    #: batches must carry the texts as strings.
    reads_strings: ClassVar[bool] = False
    #: the network reads memories.
    uses_memory: bool = True
    #: members and their weights can be fitted again without training, by the methods of `MemoryEnsemble`.
    fits_weights: ClassVar[bool] = False
    #: the memory may have labels that the training lacks.
    takes_new_labels: ClassVar[bool] = False
    #: the NamedTuple that describes the task's data, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    #: the network, made from what is `Given` and from the model, whose attributes are its options.
    network_type: ClassVar[type[nn.Module]]
    network: Any

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse values of options that their types do not allow, before any base reads them."""
        names = list(signature(cls.__init__).parameters)[1:]
        options |= dict(zip(names, arguments, strict=False))
        for base in cls.__mro__:
            if issubclass(base, Model) and "__init__" in vars(base):
                with suppress(NameError):  # of a type that is imported for type checkers alone
                    kinds = get_type_hints(base.__init__, include_extras=True)
                    for name in kinds.keys() & options.keys():
                        check_value(f"model.{name}", options[name], kinds[name])
        return super().__new__(cls)

    def __init__(self) -> None:
        super().__init__()
        self.network = None
        self.spec: Any = None
        #: state of the data, kept in checkpoints; after the network is made.
        self.data_state: DataState | None = None
        #: held by the thread in which the model predicts.
        self.in_use = SharedLock()

    def build_network(self, given: Given) -> Any:
        """Make the network."""
        return self.network_type(given, self)

    @property
    def vector_size(self) -> int | None:
        """Size of the vectors of the model's text encoder; None where it has none."""
        return None

    def attach(self, split: str) -> None:
        """Open and encode what the batches of `train`, `validation` or `test` carry, before their loader is made."""

    def batch_contents(self, split: str) -> BatchContents:
        """The contents of the batches of a split."""
        return BatchContents(strings=self.reads_strings)

    def read_memory(self, data: DataT, memory: Memory | None, num_texts: int | None = None) -> None:
        """Take from the open memory, if any, what batches lack, before `num_texts` texts (None: many) are predicted."""

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

    @override
    def forward(self, batch: Any) -> Any:
        return self.built_network(batch)

    @property
    def built_network(self) -> Any:
        """The network; raises an `InputError` if the model is neither trained nor restored."""
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a trained one with zoo.load")
        return self.network

    def _build(self, given: Given) -> None:
        self.spec = given.spec
        try:
            self.network = self.build_network(given)
        except InputError:
            raise
        except ValueError as error:  # PyTorch's own checks: a size of 0, a probability of 3
            raise InputError(f"model: {error}") from error

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
            self._build(Given(spec, empty, meta.transformer_config))
            self.to(self.device)
        check_shapes(meta, self.hparams, self.state_dict(), weights)

    def save(self, folder: Path, data: DataT) -> None:
        """Write the model folder of a trained model, with the memory of its data; replace an earlier folder."""
        from zoo.model_folder.writing import write  # which imports PyTorch's file formats

        held_out, encoder = self.describe_held_out(), self.encodings_to_keep(data)
        write(folder, self.describe(), self.state_dict(), data, held_out, encoder)

    def describe(self) -> Meta:
        """The model without its weights, for checkpoints and model folders."""
        assert self.data_state is not None
        config = transformer_config_of(self.network)
        return Meta(
            model=type(self).__name__,
            options=self.hparams_initial,
            spec=dict(self.spec._asdict()),
            data=self.data_state,
            transformer_config=None if config is None else plain(config),
            extras=plain(self.describe_extras()),
            fits_weights=self.fits_weights,
            takes_new_labels=self.takes_new_labels,
        )

    @property
    @override
    def hparams_initial(self) -> Any:
        """The options, also for loggers: they write YAML, and the reader of a run refuses its tuples."""
        return plain(dict(self.hparams))

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
    def on_save_checkpoint(self, checkpoint: PlainDict) -> None:
        checkpoint[CHECKPOINT_KEY] = {"model": self.describe().to_dict()}
