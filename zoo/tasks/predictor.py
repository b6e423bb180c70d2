"""Base of the predictors: a trained model with its data module; plain values in, plain values out."""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TextIO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self, override

from datamodules.base import DataModule
from datamodules.batch import BatchContents
from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import existing_file
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.sharing import SharedLock
from datamodules.core.types import PlainDict
from datamodules.corpora.table import read_table
from datamodules.dataset import BatchDataset
from datamodules.memory_source import MemorySource
from datamodules.retrieval import FolderMemory, Memory, Retriever
from datamodules.retrieval.dense.text_encoder import ProgressBar

if TYPE_CHECKING:
    from zoo.tasks.classification.held_out import HeldOutRows

#: Texts that are retrieved and tokenized together.
BLOCK = 1024

DataT = TypeVar("DataT", bound=DataModule)
BatchT = TypeVar("BatchT", bound=NamedTuple)
ItemT = TypeVar("ItemT")


class TrainedModel(Protocol):
    """What a predictor reads of a model of any kind, which is a module of PyTorch."""

    #: held by the thread in which the model predicts.
    in_use: SharedLock

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def vector_size(self) -> int | None:
        """Size of the vectors of the text encoder; None where there is none."""

    def __call__(self, batch: Any) -> Any:
        """The network's output for a batch."""

    def eval(self) -> Any:
        """Switch to evaluation mode."""

    def modules(self) -> Iterator[torch.nn.Module]:
        """The model and its parts."""

    def batch_contents(self, split: str) -> BatchContents:
        """The contents of the batches of a split."""

    def read_memory(self, data: Any, memory: Memory | None, num_texts: int | None = None) -> None:
        """Take from the open memory, if any, what batches lack."""


ModelT = TypeVar("ModelT", bound=TrainedModel)


class Predictor(ABC, Generic[ModelT, DataT]):
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
    #: options of `records` whose default is another one if its output is a table.
    table_options: ClassVar[Mapping[str, Any]] = {}
    #: opens the same model again; None where the model is not on the disk.
    reopen: Callable[[], Self] | None = None
    #: of the saved model; None where the model is not on the disk.
    held_out: HeldOutRows | None = None

    def __init__(self, model: ModelT, data: DataT, memory: Memory | None = None) -> None:
        """Put a model and its data together; without a memory, the predictor opens the model's when it needs it."""
        self.model, self.data, self.memory = model, data, memory

    @classmethod
    def open(
        cls,
        model: ModelT,
        data: DataT,
        memory: str | None = None,
        version: int | None = None,
        retriever: Retriever | None = None,
    ) -> Self:
        """A predictor with its memory, or with another memory folder, in a version of it; None = the current one."""
        if memory is None and version is None and not cls.needs_memory(data):
            return cls(model, data)
        return cls(model, data, memory_of(data).open(memory, version, retriever))

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
            trained = f"trained here, {self.model.vector_size} numbers a text"
            facts["encoder"] = trained if encoder is None else encoder
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

        With an argument `shard: Shard = WHOLE`, a kind predicts parts of a table (`zoo predict --shard`).

        Args:
            source: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text per line, or - for standard input.
            batch_size: rows that pass through the network together.
        """

    def table_rows(self, record: PlainDict) -> Iterator[PlainDict]:
        """Rows of a table for an object of `records`: its plain values, without the evidence."""
        yield {name: value for name, value in record.items() if not isinstance(value, (dict, list))}

    def text_records(self, texts: Sequence[str], batch_size: int = 256) -> Iterator[PlainDict]:
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

    def encode_queries(
        self, texts: list[str], batch_size: int = 256, bar: ProgressBar | None = None
    ) -> NDArray[np.float32]:
        """The texts' vectors as queries; those of `encode`, unless the model `has_query_side`."""
        return self.encode(texts, batch_size, bar, queries=True)


def memory_of(data: DataModule) -> MemorySource:
    """The memory of a model's data; raises an `InputError` if it has none."""
    if data.memory is None:
        raise InputError(f"a {type(data).__name__} has no memory; omit --memory")
    return data.memory


def as_texts(texts: str | Iterable[str], what: str = "text") -> list[str]:
    """One text or several as a list; raises an `InputError` that names `what` if one is not a string."""
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1:
        # Iterating over a data frame would yield the names of its columns.
        shape = f" of shape {texts.shape}" if hasattr(texts, "shape") else ""
        raise InputError(
            f"{what}: a {type(texts).__name__}{shape} is not a sequence of strings; give one column, such as X['text']"
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"{what} {number} is a {type(text).__name__}, not a string: {excerpt(repr(text))}"
            )
    return texts


def blocks_of(items: Iterable[ItemT], size: int = BLOCK) -> Iterator[list[ItemT]]:
    """Consecutive items in lists of this size; the last one may be shorter."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


class Counted(Iterator[ItemT]):
    """An iterator with the number of its items, for a progress bar, and that of the whole table's."""

    def __init__(self, items: Iterable[ItemT], number: int, whole: int | None = None) -> None:
        self._items, self._number = iter(items), number
        self.whole = number if whole is None else whole

    @override
    def __next__(self) -> ItemT:
        return next(self._items)

    def __length_hint__(self) -> int:
        return self._number


def as_record(value: NamedTuple) -> PlainDict:
    """A result as a JSON object, without optional fields that have their default."""
    record: PlainDict = {}
    for name, field in value._asdict().items():
        if isinstance(field, list) and field and hasattr(field[0], "_asdict"):
            record[name] = [as_record(item) for item in field]
        elif name not in value._field_defaults or field != value._field_defaults[name]:
            record[name] = field
    return record


@contextmanager
def evaluating(model: TrainedModel) -> Iterator[None]:
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


def on_device(batch: BatchT, model: TrainedModel) -> BatchT:
    """Move a batch to the model's device."""
    if model.device.type == "cpu":
        return batch
    from lightning_fabric.utilities.apply_func import move_data_to_device

    moved: BatchT = move_data_to_device(batch, model.device)
    return moved


def texts_in(source: str, columns: Mapping[str, Any], shard: Shard = WHOLE) -> Iterator[str]:
    """The texts of a shard of a source of `Predictor.records`."""
    return (text for text, _ in texts_and_ids_in(source, columns, shard))


def texts_and_ids_in(
    source: str, columns: Mapping[str, Any], shard: Shard = WHOLE
) -> Iterator[tuple[str, str | None]]:
    """The texts of a shard of a source of `Predictor.records`, with their ids if `columns` name them.

    The columns are arguments of `read_table`. Shards consist of blocks of `BLOCK` texts.
    """
    has_ids = columns.get("id_column") is not None
    if source != "-" and not source.endswith(".txt"):
        table = read_table(source, label_column=None, **columns)
        rows = table.part(shard.rows(len(table), BLOCK))
        ids = rows.ids if has_ids else [None] * len(rows)
        return Counted(zip(rows.texts, ids, strict=True), len(rows), len(table))
    if has_ids:
        raise InputError(f"--id_column: {source} has lines of text and no columns; give a table")
    if source == "-":
        return ((line, None) for line in _lines(sys.stdin, "standard input"))
    with existing_file(source).open(encoding="utf-8", errors="replace") as file:
        number = sum(1 for _ in file)  # lines as `_lines_of` reads them: a carriage return ends one as well
    lines = shard.of(((line, None) for line in _lines_of(source)), number, BLOCK)
    return Counted(lines, len(shard.rows(number, BLOCK)), number)


def _lines_of(source: str) -> Iterator[str]:
    with Path(source).open(encoding="utf-8") as file:
        yield from _lines(file, source)


def _lines(file: TextIO, source: str) -> Iterator[str]:
    try:
        yield from (line.rstrip("\r\n") for line in file)
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8; convert it") from error
