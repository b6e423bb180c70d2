"""A trained model with its data side: what the user has goes in, plain values come out."""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TextIO

import numpy as np
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.base import TextDataModule
from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import existing_file
from datamodules.corpora.table import read_table
from datamodules.retrieval import Memory, Retriever

#: Texts that are retrieved and tokenised together.
BLOCK = 1024


class ReadText(NamedTuple):
    """What a recurrent network did while it read a text of T words."""

    text: str
    #: T words, as the network has them.
    words: list[str]
    #: name of a gate or of the like -> its values at each word, float32 [T, directions * H].
    parts: dict[str, NDArray[np.float32]]
    #: 1, or 2 where the text is read backwards as well: the second half of the values.
    directions: int


class Predictor(ABC):
    """Base of the predictors, one for each kind of task."""

    #: how a model card shows its use, of a predictor `model`.
    example: ClassVar[str] = "model"
    #: whether a text has another vector as a query than as a text to be found.
    has_query_side: ClassVar[bool] = False

    def __init__(self, model: Any, data: TextDataModule[Any, Any], memory: Memory | None = None) -> None:
        """Put the two together.

        Args:
            model: a `Task` with its network.
            data: the model's.
            memory: what predictions are made with; None = the predictor opens the model's when it needs it, if it
                ever does.
        """
        self.model = model
        #: of the model's kind, so it can do what this kind of predictor asks of it.
        self.data: Any = data
        self.memory = memory
        data.with_strings, data.with_memory_texts = model.reads_strings, model.reads_memory_texts

    @classmethod
    def open(
        cls,
        model: Any,
        data: TextDataModule[Any, Any],
        memory: str | None = None,
        version: int | None = None,
        retriever: Retriever | None = None,
    ) -> Predictor:
        """A predictor with the memory that was asked for.

        Args:
            model: a `Task` with its network.
            data: the model's.
            memory: a folder in place of the model's memory.
            version: of a memory that has grown; None = the current one.
            retriever: back end and ranking that the user names, if he does.

        Raises:
            InputError: the memory can't be opened.
        """
        if memory is None and version is None and not cls.opens_memory_at_once(data):
            return cls(model, data)
        return cls(model, data, data.open_memory(memory, version, retriever))

    @classmethod
    def opens_memory_at_once(cls, data: TextDataModule[Any, Any]) -> bool:
        """Whether every prediction needs the memory, so that it had better be there from the start."""
        return data.retrieves

    @abstractmethod
    def records(
        self, source: str, batch_size: int = 256, *args: Any, **options: Any
    ) -> Iterator[dict[str, Any]] | Iterator[str]:
        """What `zoo predict` writes, a JSON object each, or lines as they are; further arguments become its options.

        Args:
            source: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text a line, or - for such lines from
                standard input.
            batch_size: rows that go through the network together.
            *args: no more are given.
            **options: the kind's own.
        """

    def encode(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        """The texts' vectors [n, size], of length 1; 0 for a text without words.

        Args:
            texts: n texts.
            batch_size: texts that go through the network together.
            bar: told of each text that is done.

        Raises:
            InputError: the model makes no vectors of texts.
        """
        raise InputError(f"a {type(self.model).__name__} has no text encoder")

    def encode_queries(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        """The texts' vectors as queries, see `encode`; the same, unless the model `has_query_side`."""
        return self.encode(texts, batch_size, bar)

    def trace(self, texts: list[str], queries: bool = False, batch_size: int = 256) -> list[ReadText]:
        """What the network does word by word, for each text.

        Args:
            texts: n texts.
            queries: whether they are queries.
            batch_size: texts that go through the network together.

        Raises:
            InputError: the model has no cells that could be looked at.
        """
        raise InputError(f"a {type(self.model).__name__} has no cells to look at; name an LSTMRNN")

    @property
    def vector_size(self) -> int:
        """Numbers in a vector of `encode`."""
        raise InputError(f"a {type(self.model).__name__} has no text encoder")


def as_texts(texts: str | Sequence[str], what: str = "text") -> list[str]:
    """One text or several as a list.

    Args:
        texts: what a caller gave.
        what: what messages call one of them.

    Raises:
        InputError: one is no string.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"{what} {number} is a {type(text).__name__}, not a string: {excerpt(repr(text))}"
            )
    return texts


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without gradients and in evaluation mode; afterwards the model is as it was."""
    # Of each module: what is frozen has no training mode.
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
    """Look for garbage afterwards: among many small objects that all stay, it is looked for over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def on_device(batch: Any, model: Any) -> Any:
    """The batch where the model is."""
    return move_data_to_device(batch, model.device)


def texts_in(source: str, columns: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a source that `Predictor.records` reads."""
    return (text for text, _ in texts_and_ids_in(source, columns))


def texts_and_ids_in(source: str, columns: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The texts of a source that `Predictor.records` reads, each with its id; None where `columns` names no ids.

    Args:
        source: a table, a .txt file, or - for standard input.
        columns: `text_column` and further arguments of `read_table`, for a table.

    Raises:
        InputError: no such file, or not one that can be read.
    """
    has_ids = columns.get("id_column") is not None
    if source != "-" and not source.endswith(".txt"):
        rows = read_table(source, label_column=None, **columns)
        yield from zip(rows.texts, rows.ids if has_ids else [None] * len(rows), strict=True)
    elif has_ids:
        raise InputError(f"--id_column: {source} has lines of text and no columns; give a table")
    elif source == "-":
        yield from ((line, None) for line in _lines(sys.stdin, "standard input"))
    else:
        with existing_file(source).open(encoding="utf-8") as file:
            yield from ((line, None) for line in _lines(file, source))


def _lines(file: TextIO, source: str) -> Iterator[str]:
    try:
        yield from (line.rstrip("\r\n") for line in file)
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8; convert it") from error
    except IsADirectoryError as error:
        raise InputError(f"{source}: is a folder; give lines of text") from error
