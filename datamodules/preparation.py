"""The preparation on rank 0: read the tables, find the memory, prepare each split, choose the vocabulary.

Every result is a cache folder under a fingerprint of its inputs. The plan names the folders; every rank maps them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from datamodules.core import storage
from datamodules.core.lightning import TrainerFn
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.corpora.rows import Rows
from datamodules.duplicates import digest, prepare_keys
from datamodules.memory_source import MemorySource
from datamodules.options import DataOptions
from datamodules.prepared import Origin, PreparedSplit
from datamodules.retrieval import Memory, Retriever, contents_of_memory, is_memory, pointer_of
from datamodules.retrieval.folding import FOLDING
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.words import Words


class Stage(NamedTuple):
    """The tables that a command reads."""

    splits: list[str]
    #: True if the model is trained on the rows of the training table.
    training: bool

    @classmethod
    def of(cls, function: TrainerFn | None, options: DataOptions, memory_needs_training: bool) -> Stage:
        """The stage of a trainer's function; None = all tables that are named."""
        if function == TrainerFn.FITTING:
            return cls(["train", "validation"], True)
        if function == TrainerFn.VALIDATING:
            # The validation rows, or the memory, may have to come from the training table.
            needs_training = options.is_split_off("validation") or memory_needs_training
            return cls(["train", "validation"] if needs_training else ["validation"], False)
        if function == TrainerFn.TESTING:
            return cls(["test"], False)
        named = ["train", "validation"] if options.tables["train"] is not None else []
        has_test = options.tables["test"] is not None or options.is_split_off("test")
        return cls([*named, "test"] if has_test else named, True)


class Table(Protocol):
    """A table as it is read."""

    @property
    def source(self) -> str:
        """Name for messages."""

    def __len__(self) -> int: ...

    def select(self, row_numbers: ArrayLike, /) -> Self:
        """The rows with these numbers, in the order given."""


TableT = TypeVar("TableT", bound=Table)
SplitT = TypeVar("SplitT", bound=PreparedSplit)


class _Kind(Protocol[TableT, SplitT]):
    """The members of a kind's data module that the preparation reads; `DataModule` describes them."""

    @property
    def options(self) -> DataOptions: ...

    cache: Path
    retriever: Retriever
    memory: MemorySource | None
    words: Words
    seen: NDArray[np.uint64] | None
    split_type: type[SplitT]

    @property
    def file_contents(self) -> PlainDict: ...
    @property
    def has_memory(self) -> bool: ...
    @property
    def retrieves(self) -> bool: ...
    @property
    def uses_retriever(self) -> bool: ...
    def read_tables(self, wanted: Sequence[str]) -> dict[str, TableT]: ...
    def duplicate_keys(self, table: TableT) -> NDArray[np.uint64] | None: ...
    def memory_columns(self) -> PlainDict: ...
    def own_memory(self, tables: Mapping[str, TableT]) -> Rows | None: ...
    def prepare_split(
        self, name: str, table: TableT, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, storage.Part]: ...
    def describe_split(self, name: str, split: SplitT) -> Iterator[Message]: ...
    def texts_of(self, split: SplitT) -> list[tuple[TokenStore, int]]: ...
    def count_words(self, train: SplitT) -> Mapping[str, int] | None: ...
    def learn(self, train: SplitT, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict: ...


@dataclass
class Plan:
    """The folders that were prepared; plain values, written for the other ranks."""

    #: see `Memory.location`.
    memory: str | None
    #: keys of the training rows.
    seen: storage.Part | None
    #: split -> `source` and `parts` of its `Origin`.
    splits: dict[str, PlainDict] = field(default_factory=dict)
    #: None where no training table was read.
    vocabulary: storage.Part | None = None
    #: see `DataModule.learn`.
    facts: PlainDict = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Plan | None:
        """The plan in a file; None where there is none, or half of one."""
        try:
            return cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def prepare(kind: _Kind[TableT, SplitT], stage: Stage) -> Plan:
    """Prepare what a stage needs, unless the cache has it."""
    file = plan_file(kind, stage)
    plan = Plan.read(file)
    if plan is None or not _is_valid(kind, plan):
        plan = _make_plan(kind, stage)
        with storage.lock(file), storage.named_disk_errors(file):
            storage.write_json(file, asdict(plan))
    return plan


def _make_plan(kind: _Kind[TableT, SplitT], stage: Stage) -> Plan:
    tables = kind.read_tables(stage.splits)
    memory = None
    if kind.memory is not None and (kind.retrieves or (kind.has_memory and "train" in tables)):
        memory = kind.memory.find(kind.own_memory(tables), kind.memory_columns(), "train" in tables)
    seen = kind.seen
    if "train" in tables and (seen is None or stage.training):
        keys = [keys for keys in (kind.duplicate_keys(tables["train"]), seen) if keys is not None]
        seen = np.unique(np.concatenate(keys)) if keys else None
    plan = Plan(
        None if memory is None else memory.location(),
        None if seen is None else prepare_keys(seen, kind.cache),
    )
    searched = memory if kind.retrieves else None
    for name in stage.splits:
        table = tables.pop(name)
        parts = kind.prepare_split(name, table, seen, searched)
        plan.splits[name] = {"source": table.source, "parts": parts}
        split = kind.split_type.open(Origin(kind.cache, parts, table.source))
        lines = kind.describe_split(name, split)
        plan.messages += [(level, f"{table.source}: {line}") for level, line in lines]
        if split.duplicates is not None:
            plan.messages += split.duplicates.describe(name)
        if name == "train":
            stores = [tokens for tokens, _ in kind.texts_of(split)]
            plan.vocabulary = kind.words.prepare(stores, kind.count_words(split))
            plan.facts = kind.learn(split, kind.words.open(plan.vocabulary), searched)
    # Training needs neither connections nor encoders.
    kind.retriever.close()
    return plan


def _is_valid(kind: _Kind[TableT, SplitT], plan: Plan) -> bool:
    """Return True if a plan still describes the data, and its folders are all there."""
    if kind.retrieves and kind.memory is not None:
        if kind.memory.is_index:
            return False  # the index is the user's, and may have changed
        if not is_memory(plan.memory):
            return False
    splits = [part for parts in plan.splits.values() for part in parts["parts"].values()]
    parts = [*splits, plan.seen, plan.vocabulary]
    return storage.are_whole(kind.cache, [part for part in parts if part is not None])


def plan_file(kind: _Kind[TableT, SplitT], stage: Stage) -> Path:
    """The file of a plan, named by the options and the contents of the files."""
    options = {
        name: value for name, value in kind.options.to_dict().items() if name not in kind.options.unprepared
    }
    description = {
        "class": type(kind).__name__,
        "options": options,
        "files": kind.file_contents,
        "splits": stage.splits,
        "tokenizer": kind.words.tokenizer.describe(),
        "folding": FOLDING,
        "seen": None if kind.seen is None else digest(kind.seen),
        "start": kind.words.describe_start(),
        "memory": _describe_memory(kind, "train" in stage.splits),
    }
    return kind.cache / f"plan-{storage.fingerprint_of(description)[:16]}.json"


def _describe_memory(kind: _Kind[TableT, SplitT], training: bool) -> PlainDict | None:
    if (source := kind.memory) is None:
        return {"ranking": kind.retriever.describe_ranking()} if kind.uses_retriever else None
    path = source.options.memory
    if source.location is not None and (source.pointer is not None or not (path or training)):
        path = source.location
    pointer = source.pointer or (None if path is None else pointer_of(Path(path)))
    return {
        "retriever": source.retriever.describe(),
        # An encoder is named by its folder, whose contents only the ranking knows.
        "ranking": source.retriever.describe_ranking() if kind.retrieves else None,
        "path": path,
        "contents": storage.contents_of(pointer),
    }


def contents_of_files(names: object) -> object:
    """Identify the contents of a file, a folder, a Hub dataset, or a list of them; None for anything else."""
    if isinstance(names, (list, tuple)):
        return [contents_of_files(name) for name in names]
    if not isinstance(names, str):
        return None
    if names.startswith(HUB):
        return hub_fingerprint(names)
    return contents_of_memory(names) if is_memory(names) else storage.contents_of(names)
