"""Base of the data modules: from the user's tables to batches, and to the state that a checkpoint keeps."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import TypeVar

from datamodules.batch import BatchContents, TextBatch
from datamodules.core import storage
from datamodules.core.errors import InputError
from datamodules.core.lightning import LightningDataModule, TrainerFn
from datamodules.core.storage import Part
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import stratified_split
from datamodules.dataset import BatchDataset, Plan, PreparedSplit, RowTable
from datamodules.duplicates import decode_keys, encode_keys, groups_to_split
from datamodules.memory_source import DEFAULT_RETRIEVER, MemorySource
from datamodules.options import DataOptions, MemoryOptions
from datamodules.retrieval import (
    EmbeddedRetriever,
    Memory,
    Retriever,
    contents_of_memory,
    is_existing_index,
    is_memory,
    pointer_of,
)
from datamodules.retrieval.folding import FOLDING
from datamodules.sampling import LengthBucketSampler
from datamodules.state import DataState
from datamodules.text.encodings import Encodings, StoredEncodings
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.words import Words

log = logging.getLogger(__name__)

# Where nothing depends on the kind, a plain `DataModule` is one of any kind.
OptionsT = TypeVar("OptionsT", bound=DataOptions, default=Any)
TableT = TypeVar("TableT", bound=RowTable, default=Any)
SplitT = TypeVar("SplitT", bound=PreparedSplit, default=Any)


class DataModule(LightningDataModule, Generic[OptionsT, TableT, SplitT]):
    """Base of the kinds; type parameters: the options, a table as it is read, and a table as it is prepared."""

    options_type: ClassVar[type[DataOptions]]
    #: the NamedTuple that describes the data to a model, see `datamodules.batch`.
    spec_type: ClassVar[type[NamedTuple]]
    split_type: type[SplitT]
    #: the validation score, higher = better, that selects an epoch.
    monitor: str
    #: a split's token stores, those of memories last -> options with the number of tokens that are read of a text.
    length_options: ClassVar[Mapping[str, str]]
    #: True where a trained model can use another memory with any ranking.
    any_ranking: ClassVar[bool] = False

    def __init__(self, options: OptionsT, retriever: Retriever = DEFAULT_RETRIEVER) -> None:
        """Make the parts: a memory for `MemoryOptions`. Nothing is read yet."""
        super().__init__()
        self.options = options
        self.cache = storage.cache_folder(options.cache_dir)
        # A retriever holds an open index: every data module has its own.
        self.retriever = EmbeddedRetriever() if retriever is DEFAULT_RETRIEVER else retriever
        self.words = Words(options, self.cache)
        #: sorted keys of the rows that the model was trained on, see `duplicate_keys`; None = unknown.
        self.seen: NDArray[np.uint64] | None = None
        #: None for kinds without a memory.
        self.memory: MemorySource | None = None
        inherited: object = options
        if isinstance(inherited, MemoryOptions):
            self.memory = MemorySource(inherited, self.retriever, self.cache, self.any_ranking)
        #: seed of the training order and of all other draws; `zoo.runs.train` sets it to that of the run.
        self.seed = 0
        self.facts: PlainDict = {}
        self._splits: dict[str, SplitT] = {}
        self._file_contents: PlainDict | None = None
        #: on after the last epoch of a fit, where Lightning only validates, but the training rows are still read.
        self.is_finishing = False

    # --- written by each kind ---

    @abstractmethod
    def read_splits(self, names: Sequence[str]) -> dict[str, TableT]:
        """Read the tables that the options name for some of `train`, `validation` and `test`; shared files once."""

    @abstractmethod
    def prepare_split(
        self, name: str, table: TableT, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, Part]:
        """Write a table to cache folders, which `split_type` maps.

        `seen` are keys of the rows that the model is trained on; `memory` is open where `retrieves` is True.
        """

    @abstractmethod
    def learn(self, train: SplitT, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict:
        """Facts about the training rows that a model needs: plain values, kept in checkpoints."""

    @abstractmethod
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> NamedTuple:
        """The description for a model, of type `spec_type`."""

    @abstractmethod
    def dataset(
        self, split: SplitT, contents: BatchContents = BatchContents(), training: bool = False
    ) -> BatchDataset[Any]:
        """The batches of a split: to evaluate on or, if `training`, to train on."""

    # --- may be refined by a kind ---

    def strata(self, table: TableT) -> Sequence[str]:
        """A class for each row; a split takes the same share of each class."""
        return [""] * len(table)

    def duplicate_keys(self, table: TableT) -> NDArray[np.uint64] | None:
        """A number for each row of a table, equal for duplicates; None where rows are not compared."""
        return None

    @property
    def has_memory(self) -> bool:
        """True for data with a memory, for training or for predictions."""
        return self.memory is not None

    @property
    def retrieves(self) -> bool:
        """True if the preparation of a split searches the memory."""
        return False

    def memory_columns(self) -> PlainDict:
        """Arguments of `read_table` for the table that the memory is made of."""
        return {}

    def own_memory(self, tables: Mapping[str, TableT]) -> Rows | None:
        """Rows that the memory is made of where the user names none, from the tables that were read."""
        return None

    @property
    def memory_needs_training(self) -> bool:
        """True for a memory that is made of the training table."""
        return self.memory is not None and self.memory.location is None and not self.memory.is_users

    def describe_split(self, name: str, split: SplitT) -> Iterator[Message]:
        """Lines for the log about a prepared split; raises an `InputError` where a model cannot learn from it."""
        return iter(())

    def count_words(self, train: SplitT) -> Mapping[str, int] | None:
        """Word -> number that the option `min_count` refers to; None = its occurrences in the training texts."""
        return None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that are read of a text, for each of `length_options`; an option's None = as the first."""
        lengths = [getattr(self.options, option) for option in self.length_options.values()]
        return tuple(length or lengths[0] for length in lengths)

    def lengths_by_option(self) -> dict[str, int]:
        """Option -> number of tokens that are read of a text."""
        return dict(zip(self.length_options.values(), self.lengths, strict=True))

    def texts_of(self, split: SplitT) -> list[tuple[TokenStore, int]]:
        """The token stores of a split, each with the number of tokens that are read of a text."""
        lengths = zip(self.length_options, self.lengths, strict=True)
        return [(store, length) for name, length in lengths if (store := getattr(split, name)) is not None]

    def read_tables(self, wanted: Sequence[str]) -> dict[str, TableT]:
        """Read the wanted splits; those that no table is named for are split off the training table."""
        shares = self.options.split_shares
        named = [name for name in wanted if name not in shares]
        if "train" not in named and len(named) < len(wanted):
            named.append("train")
        tables = self.read_splits(named)
        if "train" in tables:
            for name, part in shares.items():
                tables["train"], tables[name] = self.split_off(tables["train"], part)
        return {name: tables[name] for name in wanted}

    def split_off(self, table: TableT, part: int | float) -> tuple[TableT, TableT]:
        """Split a table into the rest and a part: a share, or a number of rows per class."""
        keys = self.duplicate_keys(table)
        groups = None if keys is None else groups_to_split(keys)
        rest, chosen = stratified_split(self.strata(table), part, self.options.split_seed, groups)
        return table.select(rest), table.select(chosen)

    def prepare_data(self) -> None:
        """Read, retrieve and tokenize what the stage needs, unless the cache has it."""
        if self.is_finishing and "train" in self._splits:
            return
        self._file_contents = None
        for level, line in _prepare(self).messages:
            log.log(level, "%s", line)

    def setup(self, stage: str) -> None:
        """Map what `prepare_data` made."""
        if self.is_finishing and "train" in self._splits:
            return
        self._file_contents = None
        file = _plan_file(self)
        plan = Plan.read(file)
        if plan is None:
            raise InputError(f"{file}: the data is not prepared; call prepare_data() first")
        if self.memory is not None and plan.memory is not None:
            self.memory.location = plan.memory
        if plan.seen is not None:
            self.seen = decode_keys(plan.seen)
        for name, parts in plan.splits.items():
            self._splits[name] = self.split_type.open(self.cache, **parts)
        if not self.words.are_known and plan.vocabulary is not None:
            self.words.use(self.words.open(plan.vocabulary))
            self.facts = plan.facts

    @property
    def file_contents(self) -> PlainDict:
        """Contents of the files that the options name, by option; the Hub is queried once per preparation."""
        if self._file_contents is None:
            named = {name: getattr(self.options, name) for name in self.options.files}
            self._file_contents = {name: _contents_of(files) for name, files in named.items()}
        return self._file_contents

    def open_memory(self) -> Memory | None:
        """Open the memory; None where the data has none. Raises an `InputError` if it is missing."""
        return self.memory.open() if self.memory is not None and self.has_memory else None

    @property
    def uses_retriever(self) -> bool:
        """True if the retriever searches something, in the preparation or for a model."""
        return self.has_memory

    @property
    def has_own_retriever(self) -> bool:
        """True if the retriever is another than the default."""
        return self.retriever.describe() != EmbeddedRetriever().describe()

    def idle_options(self) -> Iterator[tuple[str, str]]:
        """Options that are set and change nothing, each with the reason; logged when a training begins."""
        if not self.uses_retriever and self.has_own_retriever:
            name = type(self.retriever).__name__
            yield "retriever", f"{name} is set, but nothing is retrieved with these options"

    def split(self, name: str) -> SplitT:
        """A prepared table: `train`, `validation` or `test`."""
        return self._splits[name]

    def duplicate_counts(self, name: str) -> dict[str, int]:
        """Number of rows of a split that have duplicates elsewhere, as figures; empty where nothing is compared."""
        marks = self._splits[name].duplicates if name in self._splits else None
        return {} if marks is None else marks.counts()

    @property
    def spec(self) -> Any:
        """Sizes and labels, of type `spec_type`; after `setup` or `use_state`."""
        return self.make_spec(self.words.vocabulary, self.facts)

    def state(self) -> DataState:
        """Everything that prepares new rows for the model."""
        return DataState(
            kind=type(self).__name__,
            options=self.options.to_dict(),
            retriever=self.retriever.describe(),
            memory_is_users=self.memory is not None and self.memory.is_users,
            memory_columns=self.memory_columns(),
            files=self.file_contents,
            vocabulary=self.words.vocabulary.to_dict(),
            seen=encode_keys(self.seen),
            facts=self.facts,
        )

    def portable_state(self) -> DataState:
        """The state without names of files, for a model folder."""
        state = self.state()
        dropped = {*self.options.files, "cache_dir"}
        return replace(state, options={n: value for n, value in state.options.items() if n not in dropped})

    def remember(self, seen: str | None) -> None:
        """Take the training rows of a trained model, see `DataState.seen`, unless some are known."""
        if self.seen is None:
            self.seen = decode_keys(seen)

    def use_state(self, state: DataState) -> None:
        """Take vocabulary and facts of a trained model."""
        if self.memory is not None:
            self.memory.was_users = state.memory_is_users
        self.remember(state.seen)
        # A fact with the name of an option is what the model was built for.
        built = {name: value for name, value in state.facts.items() if name in state.options}
        self.options = replace(self.options, **built)
        self.words.use(Vocabulary.from_dict(state.vocabulary))
        self.facts = state.facts

    def train_dataloader(self) -> DataLoader[object]:
        """Shuffled batches to train on."""
        return self._loader("train")

    def val_dataloader(self) -> DataLoader[object]:
        """All of the validation table."""
        return self._loader("validation")

    def test_dataloader(self) -> DataLoader[object]:
        """All of the test table."""
        return self._loader("test")

    def _loader(self, name: str) -> DataLoader[object]:
        options, trainer, training = self.options, self.trainer, name == "train"
        model: Any = None if trainer is None else trainer.lightning_module
        contents = BatchContents()
        if hasattr(model, "batch_contents"):  # see `zoo.tasks.model.Model`; other models read plain batches
            model.attach(name)
            contents = model.batch_contents(name)
        dataset = self.dataset(self.split(name), contents, training)
        for level, line in dataset.messages():
            log.log(level, "%s", line)
        if not contents.strings:  # which are read whole
            _log_cut_texts(self, name)
        evaluated = options.eval_batch_size or options.eval_batches * options.batch_size
        sampler = LengthBucketSampler(
            dataset.lengths if dataset.is_redrawn else dataset.lengths(),
            options.batch_size if training else evaluated,
            training=training,
            seed=self.seed,
            process=0 if trainer is None else trainer.global_rank,
            num_processes=1 if trainer is None else trainer.world_size,
        )
        if training and model is not None:
            if model.trainer.overfit_batches:
                sampler.sampler = None  # the same batches in every epoch
            else:  # in a resumed run, workers request the first batches before Lightning sets the epoch
                sampler.set_epoch(model.trainer.fit_loop.epoch_progress.current.processed)
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=_unchanged,
            num_workers=options.num_workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=options.num_workers > 0,
        )

    def encode_texts(
        self, encode: Callable[[TextBatch], Tensor], encoder: str, contents: BatchContents = BatchContents()
    ) -> StoredEncodings:
        """Encode every text of the open splits once; the cache keeps the encodings: 4 l bytes per vector.

        `encode` returns vectors [B, l] of the texts of a batch, or of their tokens [B, T, l]; those of padding are not
        read. `encoder` is its fingerprint. Texts that `contents` encode already are skipped.
        """
        encoded: dict[tuple[str, int], Encodings] = {}
        for split in self._splits.values():
            # A store of memories comes second.
            texts = self.texts_of(split) if contents.encoded_memory is None else self.texts_of(split)[:1]
            for tokens, length in texts:
                if len(tokens) and (key := (tokens.part[1], length)) not in encoded:
                    encoded[key] = self.words.encode(tokens, length, encode, encoder)
        return encoded


def _contents_of(names: object) -> object:
    """Identify the contents of a file, a folder, a Hub dataset, or a list of them; None for anything else."""
    if isinstance(names, (list, tuple)):
        return [_contents_of(name) for name in names]
    if not isinstance(names, str):
        return None
    if names.startswith(HUB):
        return hub_fingerprint(names)
    return contents_of_memory(names) if is_memory(names) else storage.contents_of(names)


def _splits_to_read(data: DataModule) -> tuple[list[str], bool]:
    """The tables that the trainer reads, without one all that are named; and whether a model is trained on the rows."""
    function, options = None if data.trainer is None else data.trainer.state.fn, data.options
    if data.is_finishing or function == TrainerFn.FITTING:
        return ["train", "validation"], True
    if function == TrainerFn.VALIDATING:
        # The validation rows, or the memory, may have to come from the training table.
        needs_training = options.is_split_off("validation") or (data.retrieves and data.memory_needs_training)
        return ["train", "validation"] if needs_training else ["validation"], False
    if function == TrainerFn.TESTING:
        return ["test"], False
    named = ["train", "validation"] if options.tables["train"] is not None else []
    has_test = options.tables["test"] is not None or options.is_split_off("test")
    return [*named, "test"] if has_test else named, True


def _prepare(data: DataModule) -> Plan:
    """Prepare what the trainer needs on rank 0, unless the cache has it.

    Read the tables, find the memory, prepare each split, choose the vocabulary. Every result is a cache folder under a
    fingerprint of its inputs. The plan names the folders; every rank maps them.
    """
    file = _plan_file(data)
    plan = Plan.read(file)
    if plan is None or not _is_valid(data, plan):
        plan = _make_plan(data)
        with storage.lock(file), storage.named_disk_errors(file):
            storage.write_json(file, storage.with_checksum(asdict(plan)))
    return plan


def _make_plan(data: DataModule) -> Plan:
    splits, training = _splits_to_read(data)
    tables = data.read_tables(splits)
    memory = None
    if data.memory is not None and (data.retrieves or (data.has_memory and "train" in tables)):
        memory = data.memory.find(data.own_memory(tables), data.memory_columns(), "train" in tables)
    seen = data.seen
    if "train" in tables and (seen is None or training):
        keys = [keys for keys in (data.duplicate_keys(tables["train"]), seen) if keys is not None]
        seen = np.unique(np.concatenate(keys)) if keys else None
    plan = Plan(None if memory is None else memory.location(), encode_keys(seen))
    searched = memory if data.retrieves else None
    for name in splits:
        table = tables.pop(name)
        parts = data.prepare_split(name, table, seen, searched)
        plan.splits[name] = {"source": table.source, "parts": parts}
        split = data.split_type.open(data.cache, parts, table.source)
        lines = data.describe_split(name, split)
        plan.messages += [(level, f"{table.source}: {line}") for level, line in lines]
        if split.duplicates is not None:
            plan.messages += split.duplicates.describe(name)
        if name == "train":
            stores = [tokens for tokens, _ in data.texts_of(split)]
            plan.vocabulary = data.words.prepare(stores, data.count_words(split))
            plan.facts = data.learn(split, data.words.open(plan.vocabulary), searched)
    # Training needs neither connections nor encoders.
    data.retriever.close()
    return plan


def _is_valid(data: DataModule, plan: Plan) -> bool:
    """Return True if a plan still describes the data, and its folders are all there."""
    # An index of the user's may have changed.
    if data.retrieves and (is_existing_index(data.retriever) or not is_memory(plan.memory)):
        return False
    splits = [part for parts in plan.splits.values() for part in parts["parts"].values()]
    parts = [part for part in (*splits, plan.vocabulary) if part is not None]
    return all(storage.is_whole(data.cache / name, fingerprint) for name, fingerprint in parts)


def _plan_file(data: DataModule) -> Path:
    """The file of a plan, named by the options and the contents of the files."""
    splits, _ = _splits_to_read(data)
    options = data.options.to_dict().items()
    description = {
        "kind": type(data).__name__,
        "options": {name: value for name, value in options if name not in data.options.unprepared},
        "files": data.file_contents,
        "splits": splits,
        "tokenizer": data.words.tokenizer.describe(),
        "folding": FOLDING,
        "seen": encode_keys(data.seen),
        "start": data.words.start_words,
        "memory": _describe_memory(data, "train" in splits),
    }
    return data.cache / f"plan-{storage.fingerprint_of(description)[:16]}.json"


def _describe_memory(data: DataModule, training: bool) -> PlainDict | None:
    if (source := data.memory) is None:
        return {"ranking": data.retriever.describe_ranking()} if data.uses_retriever else None
    path = source.options.memory
    if source.location is not None and (source.is_of_model or not (path or training)):
        path = source.location
    return {
        "retriever": source.retriever.describe(),
        # An encoder is named by its folder, whose contents only the ranking knows.
        "ranking": source.retriever.describe_ranking() if data.retrieves else None,
        "path": path,
        "contents": None if path is None else storage.contents_of(pointer_of(Path(path))),
    }


def _log_cut_texts(data: DataModule, name: str) -> None:
    """Log the number of a split's texts that are longer than a model of tokens reads."""
    for (store, option), length in zip(data.length_options.items(), data.lengths, strict=True):
        tokens, most = getattr(data.split(name), store), length - data.words.special_tokens
        if tokens is not None and (cut := int((np.diff(tokens.offsets) > most).sum())):
            log.info("%s: %d of %d texts are cut to data.%s=%d words", name, cut, len(tokens), option, length)


def _unchanged(batch: object) -> object:
    # A dataset returns whole batches.
    return batch
