"""The preparation on rank 0: read the tables, locate the memory, prepare each split, choose the vocabulary.

Every result is a cache folder under a fingerprint of its inputs. The plan names the folders; every rank maps them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.lightning import TrainerFn
from datamodules.core.storage import (
    Part,
    are_whole,
    contents_of,
    fingerprint_of,
    lock,
    named_disk_errors,
    write_json,
)
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.duplicates import digest
from datamodules.prepared import Origin
from datamodules.retrieval import contents_of_memory, is_memory, pointer_of
from datamodules.retrieval.folding import FOLDING

if TYPE_CHECKING:
    from datamodules.base import AnyDataModule


@dataclass
class Plan:
    """The folders that were prepared; plain values, written for the other ranks."""

    #: see `MemorySource.location`.
    memory: str | None
    #: keys of the training rows.
    seen: Part | None
    #: split -> `source` and `parts` of its `Origin`.
    splits: dict[str, PlainDict] = field(default_factory=dict)
    #: None where no training table was read.
    vocabulary: Part | None = None
    #: see `DataModule.learn`.
    facts: PlainDict = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Plan | None:
        """The plan in a file; None where there is none, or half of one."""
        try:
            return cls(**json.loads(file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def prepare(data: AnyDataModule) -> Plan:
    """Prepare what the trainer's stage needs, unless the cache has it."""
    wanted = wanted_splits(data)
    file = plan_file(data, wanted)
    plan = Plan.read(file)
    if plan is None or not _is_valid(data, plan):
        plan = _make_plan(data, wanted)
        file = plan_file(data, wanted)  # a memory may be there now
        with lock(file), named_disk_errors(file):
            write_json(file, asdict(plan))
    return plan


def wanted_splits(data: AnyDataModule) -> list[str]:
    """The tables that the trainer's stage needs; without a trainer, all that are named."""
    stage = None if data.trainer is None else data.trainer.state.fn
    if stage == TrainerFn.FITTING or data.is_finishing:
        return ["train", "validation"]
    if stage == TrainerFn.VALIDATING:
        # The validation rows, or the memory, may have to come from the training table.
        needs_training = data.is_split_off("validation") or (data.retrieves and data.memory_needs_training)
        return ["train", "validation"] if needs_training else ["validation"]
    if stage == TrainerFn.TESTING:
        return ["test"]
    tables = data.options.tables
    has_test = tables["test"] is not None or data.is_split_off("test")
    named = ["train", "validation"] if tables["train"] is not None else []
    return [*named, "test"] if has_test else named


def _make_plan(data: AnyDataModule, wanted: Sequence[str]) -> Plan:
    tables = data.read_tables(wanted)
    training = data.is_finishing or data.trainer is None or data.trainer.state.fn == TrainerFn.FITTING
    location = None
    if data.memory is not None and (data.retrieves or (data.has_memory and "train" in tables)):
        data.memory.locate(data.own_memory(tables), training="train" in tables)
        location = data.memory.location
    keys = data.duplicate_keys(tables["train"]) if "train" in tables else None
    seen = data.duplicates.with_training(keys, training)
    plan = Plan(location, data.duplicates.prepare_seen(seen))
    for name in wanted:
        table = tables.pop(name)
        parts = data.prepare_split(name, table, seen)
        plan.splits[name] = {"source": table.source, "parts": parts}
        split = data.split_type.open(Origin(data.cache, parts, table.source))
        lines = data.describe_split(name, split)
        plan.messages += [(level, f"{table.source}: {line}") for level, line in lines]
        if split.duplicates is not None:
            plan.messages += split.duplicates.describe(name)
        if name == "train":
            stores = [tokens for tokens, _ in data.texts_of(split)]
            plan.vocabulary = data.words.prepare(stores, data.count_words(split))
            plan.facts = data.learn(split, data.words.open(plan.vocabulary))
    data.release_memory()
    return plan


def _is_valid(data: AnyDataModule, plan: Plan) -> bool:
    """Return True if a plan still describes the data, and its folders are all there."""
    if data.retrieves and data.memory is not None:
        if data.memory.is_index:
            return False  # the index is the user's, and may have changed
        if not is_memory(plan.memory):
            return False
    splits = [part for parts in plan.splits.values() for part in parts["parts"].values()]
    parts = [*splits, plan.seen, plan.vocabulary]
    return are_whole(data.cache, [part for part in parts if part is not None])


def plan_file(data: AnyDataModule, splits: Sequence[str]) -> Path:
    """The file of a plan, named by the options and the contents of the files."""
    options = {
        name: value for name, value in data.options.to_dict().items() if name not in data.options.unprepared
    }
    description = {
        "class": type(data).__name__,
        "options": options,
        "files": data.file_contents,
        "splits": list(splits),
        "tokenizer": data.words.tokenizer.describe(),
        "folding": FOLDING,
        "seen": None if data.duplicates.seen is None else digest(data.duplicates.seen),
        "start": data.words.describe_start(),
        "memory": _describe_memory(data, "train" in splits),
    }
    return data.cache / f"plan-{fingerprint_of(description)[:16]}.json"


def _describe_memory(data: AnyDataModule, training: bool) -> PlainDict | None:
    if (source := data.memory) is None:
        return {"ranking": data.retriever.ranking.describe()} if data.uses_retriever else None
    path = source.options.memory
    if source.location is not None and (source.pointer is not None or not (path or training)):
        path = source.location
    pointer = source.pointer or (None if path is None else pointer_of(Path(path)))
    return {
        "retriever": source.retriever.describe(),
        # An encoder is named by its folder, whose contents only the ranking knows.
        "ranking": source.retriever.ranking.describe() if data.retrieves else None,
        "path": path,
        "contents": contents_of(pointer),
    }


def contents_of_files(names: object) -> object:
    """Identify the contents of a file, a folder, a Hub dataset, or a list of them; None for anything else."""
    if isinstance(names, (list, tuple)):
        return [contents_of_files(name) for name in names]
    if not isinstance(names, str):
        return None
    if names.startswith(HUB):
        return hub_fingerprint(names)
    return contents_of_memory(names) if is_memory(names) else contents_of(names)
