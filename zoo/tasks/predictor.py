"""Base of the predictors: a trained model with its data module; plain values in, plain values out."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from datamodules.base import DataModule
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.dataset import BatchDataset
from datamodules.memory_source import MemorySource
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.dense.text_vectors import ProgressBar
from zoo.tasks.model import DataT, Model
from zoo.tasks.records import plain_values

if TYPE_CHECKING:
    from zoo.tasks.classification.held_out import HeldOutRows

BatchT = TypeVar("BatchT", bound=NamedTuple)


class Predictor(ABC, Generic[DataT]):
    """Base of the predictors, one for each kind of task.

    Any number of threads may use a predictor. Another process that receives it (pickled) opens the saved model again.
    """

    #: use of a predictor `model`, for the model card.
    example: ClassVar[str] = "model"
    #: whether a text has different vectors as a query and as a text to be retrieved.
    has_query_side: ClassVar[bool] = False
    #: whether texts alone are answered with texts of the memory, which is then opened.
    answers_from_memory: ClassVar[bool] = False
    #: the name by which the model was opened; None where it is not on the disk.
    source: str | None = None
    #: where a run folder has the table of the training's results.
    answer_file: Path | None = None
    #: name of the ranked list of a record; "" where it has none.
    ranked: ClassVar[str] = ""
    #: options of `records` whose default is another one if its output is a table.
    table_options: ClassVar[Mapping[str, Any]] = {}
    #: opens the same model again; None where the model is not on the disk.
    reopen: Callable[[], Self] | None = None
    #: of the saved model; None where the model is not on the disk.
    held_out: HeldOutRows | None = None

    #: the trained model, of the class that names the predictor in its `predictor_type`.
    model: Any

    def __init__(self, model: Model, data: DataT, memory: Memory | None = None) -> None:
        """Put a model and its data together; without a memory, the predictor opens the model's when it needs it."""
        self.model, self.data, self.memory = model, data, memory

    @classmethod
    def needs_memory(cls, data: DataT) -> bool:
        """Return whether every prediction needs the memory, which is then opened at once."""
        return data.retrieves

    def with_memory(self, memory: Memory) -> Self:
        """A predictor with the same network and data, and another memory, or another version of it.

        Threads may go on using this predictor: each prediction first gives the network what it reads of its memory.
        """
        other = type(self)(self.model, self.data, memory)
        other.source, other.answer_file, other.held_out = self.source, self.answer_file, self.held_out
        return other

    def export(self, folder: str | Path) -> Path:
        """Write the model as a new folder that works alone on another machine, as `zoo export` does."""
        from zoo.model_folder.export import export

        if self.source is None:
            raise InputError("export: this model is not on the disk; train it with `zoo.fit`")
        return export(self.source, folder)

    def __repr__(self) -> str:
        facts = {"model": f"{type(self.model).__name__} from {self.source or 'this process'}"}
        if self.memory is not None:
            facts["memory"] = self.memory.location()
            if isinstance(self.memory, FolderMemory):
                rows, version = len(self.memory), self.memory.version
                facts["memory"] = f"{rows:,} rows, version {version}, {self.memory.location()}"
        if self.data.has_memory:
            facts["retriever"] = type(self.data.retriever).__name__
        encoder = getattr(self.model, "transformer", None)
        if encoder is not None or self.model.vector_size is not None:
            facts["encoder"] = encoder or f"trained here, {self.model.vector_size} numbers a text"
        lines = [f"  {name:9}  {value}" for name, value in facts.items()]
        return "\n".join([type(self).__name__, *lines])

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        if self.reopen is None:
            raise InputError(
                f"a predictor of a {type(self.model).__name__} that was not loaded from the disk can't be pickled; save"
                " the model, and open it with zoo.load"
            )
        return self.reopen, ()

    @abstractmethod
    def records(self, source: str, batch_size: int = 256) -> Iterator[PlainDict] | Iterator[str]:
        """The output of `zoo predict`: a JSON object each, or lines; further arguments become its options.

        With an argument `shard: Shard = WHOLE`, a kind predicts a part of the source (`zoo predict --shard`).

        Args:
            source: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text per line, or - for standard input.
            batch_size: rows (texts, pairs, dialogues) that pass through the network together.
        """

    def table_rows(self, record: PlainDict) -> Iterator[PlainDict]:
        """Rows of a table for an object of `records`: its plain values, without the evidence; or one by rank."""
        own = plain_values(record)
        if self.ranked not in record:
            yield own
        for rank, item in enumerate(record.get(self.ranked, ()), 1):
            prefix = self.ranked.removesuffix("s")
            yield {**own, "rank": rank, **{f"{prefix}_{n}": value for n, value in plain_values(item).items()}}

    def text_records(self, texts: Sequence[str]) -> Iterator[PlainDict]:
        """The output of `zoo predict` for texts alone; an `InputError` if the model reads no texts alone."""
        raise InputError(f"a {type(self.model).__name__} reads no texts alone")

    def outputs(
        self, dataset: BatchDataset[BatchT], batch_size: int, rows: int | NDArray[np.int64] | None = None
    ) -> Iterator[tuple[BatchT, Any]]:
        """The first rows of a dataset, those with these numbers, or all, in batches with the network's outputs."""
        for batch in dataset.batches(batch_size, rows):
            with evaluating(self.model):
                output = self.model(on_device(batch, self.model))
            yield batch, output

    @property
    def vector_size(self) -> int:
        """Size of a vector of `encode`; raises an `InputError` if the model has no text encoder."""
        if (size := self.model.vector_size) is None:
            raise InputError(f"a {type(self.model).__name__} has no text encoder")
        return size

    def encode(
        self, texts: list[str], batch_size: int = 256, bar: ProgressBar | None = None, queries: bool = False
    ) -> NDArray[np.float32]:
        """The texts' vectors [n, size], of length 1, or 0 without words; raises an `InputError` without a text encoder.

        `bar` is updated by the number of finished texts. `queries` counts only where the model `has_query_side`.
        """
        raise InputError(f"a {type(self.model).__name__} has no text encoder")

    def encode_queries(self, texts: list[str]) -> NDArray[np.float32]:
        """The texts' vectors as queries; those of `encode`, unless the model `has_query_side`."""
        return self.encode(texts, queries=True)


def memory_of(data: DataModule) -> MemorySource:
    """The memory of a model's data; raises an `InputError` if it has none."""
    if data.memory is None:
        raise InputError(f"a {type(data).__name__} has no memory; omit --memory")
    return data.memory


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Switch to evaluation mode without gradients; afterwards every module has its old mode. Other threads wait."""
    with model.in_use:
        # Frozen modules have no training mode, so the modes differ.
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def collecting_later() -> Iterator[None]:
    """Postpone garbage collection: among many small objects that all stay, it would run over and over."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def on_device(batch: BatchT, model: Model) -> BatchT:
    """Move a batch to the model's device."""
    if model.device.type == "cpu":
        return batch
    from lightning_fabric.utilities.apply_func import move_data_to_device

    return move_data_to_device(batch, model.device)
