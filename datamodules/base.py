"""The skeleton of every data module: from the user's tables to batches, and to the state that a checkpoint keeps.

Rank 0 does the work once, in `prepare_data`: read and split the tables, find the memory, prepare each split, choose
the vocabulary. Every result is a folder in the cache under a fingerprint of what it was made from, so a second run
starts at once and a changed input makes new folders. A plan names the folders. Every rank then reads the plan and maps
the folders in `setup`, and a batch is put together by compiled code: no query, no string, no loop over examples.

What is common stands here and in `datamodules.parts`. A kind of data (`datamodules.classification`, ...) says which
tables it reads, how a table becomes a split, how a split becomes batches, and what a checkpoint needs to know.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from datamodules.batch import TextBatch
from datamodules.core.errors import InputError
from datamodules.core.storage import (
    are_whole,
    cache_folder,
    contents_of,
    fingerprint_of,
    lock,
    named_disk_errors,
    write_json,
)
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.duplicates import CopyPart, Message
from datamodules.encodings import Encodings
from datamodules.loaders import LoaderPart
from datamodules.memory_source import MemoryPart
from datamodules.options import Configured, check_least
from datamodules.prepared import PreparedSplit
from datamodules.retrieval import POINTER, contents_of_memory, is_existing_index, is_memory
from datamodules.retrieval.folding import FOLDING
from datamodules.text.gather import TextGroup, gather
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.words import WordPart

log = logging.getLogger(__name__)


TableT = TypeVar("TableT")
SplitT = TypeVar("SplitT", bound=PreparedSplit)


class TextDataModule(WordPart, MemoryPart, LoaderPart, CopyPart, Configured, Generic[TableT, SplitT]):
    """Base of the data modules: `TableT` is what it reads, `SplitT` what it prepares of a table."""

    #: the NamedTuple that describes the data to a model, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    #: the validation figure, higher = better, by which an epoch is chosen.
    monitor: str
    #: options that name files, folders or tables, or lists of them.
    files: ClassVar[tuple[str, ...]] = (
        "train_file",
        "validation_file",
        "test_file",
        "memory",
        "word_vectors",
    )
    #: those of them whose lists hold no files.
    no_file_lists: ClassVar[tuple[str, ...]] = ()
    #: the files that a test is read from, or split off from.
    test_files: ClassVar[tuple[str, ...]] = ("test_file", "train_file")
    #: options that change nothing of what is prepared.
    no_effect: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "eval_batch_size",
        "num_workers",
        "seed",
        "bucket_by_length",
        "cache_dir",
    )
    #: what a checkpoint keeps of the training rows beside the vocabulary: names of plain values.
    fact_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        train_file: str | None = None,
        validation_file: str | None = None,
        test_file: str | None = None,
        validation_split: int | float = 0.1,
        split_seed: int = 0,
        cache_dir: str | None = None,
        **shared: Any,
    ) -> None:
        """Choose the tables.

        Args:
            train_file: the table to train on.
            validation_file: the same for validation; without it, rows are split off the training table.
            test_file: the same for the test.
            validation_split: what is split off for validation.
            split_seed: seed of that split; independent of the training's seed.
            cache_dir: where prepared data is kept; None = $ZOO_CACHE_DIR or ~/.cache/memory-zoo.
            **shared: options of words, memory and loaders.
        """
        super().__init__(**shared)
        check_least(self.options, {"split_seed": 0})
        self.cache = cache_folder(cache_dir)
        #: whether batches carry the texts as strings, for models that read these.
        self.with_strings = False
        #: whether they must carry what the memories say.
        self.with_memory_texts = True
        self._splits: dict[str, SplitT] = {}
        self._facts: dict[str, Any] = {}
        self._spec: Any = None
        self._held: dict[str, Any] | None = None
        # Of the texts of a store, cut to a length, by its fingerprint and that length; and whose they are.
        self._encodings: dict[tuple[str, int], Encodings] = {}
        self._encoder: str | None = None

    # --- what a kind of data says ---

    @abstractmethod
    def read_tables(self, wanted: Sequence[str]) -> dict[str, TableT]:
        """Read the wanted splits: `train`, `validation`, `test`."""

    @abstractmethod
    def prepare_split(self, name: str, table: TableT) -> SplitT:
        """Prepare a table in folders of the cache, unless it is done."""

    @abstractmethod
    def open_split(self, parts: Mapping[str, Any]) -> SplitT:
        """Map what `prepare_split` made."""

    def describe_split(self, name: str, split: SplitT) -> Iterator[Message]:
        """What deserves a word about a split, in the log."""
        return iter(())

    @abstractmethod
    def texts_of(self, split: SplitT) -> list[tuple[TokenStore, int]]:
        """All texts of a split, with the tokens that a model reads of each: those of training make the vocabulary."""

    def count_words(self, train: SplitT) -> Mapping[str, int] | None:
        """What `min_count` counts of each word that may join the vocabulary; None: its occurrences in training."""
        return None

    @abstractmethod
    def learn(self, train: SplitT, vocabulary: Vocabulary) -> dict[str, Any]:
        """What a model must know of the training rows: a value for each of `fact_names`."""

    @abstractmethod
    def make_spec(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> Any:
        """The description for a model, of type `spec_type`."""

    @abstractmethod
    def text_lengths(self) -> dict[str, int]:
        """The options that say how many tokens are kept of a text, with their values."""

    @property
    def has_training_table(self) -> bool:
        """Whether a table to train on is named."""
        return self.options.train_file is not None

    @property
    def has_test_table(self) -> bool:
        """Whether a test of the data's own is named."""
        return self.options.test_file is not None

    @property
    def has_validation_table(self) -> bool:
        """Whether validation needs no row of the training table."""
        return self.options.validation_file is not None

    def leave_out_memory(self) -> None:
        """The model reads no memory: retrieve none."""

    # --- rank 0: everything that takes long ---

    def prepare_data(self) -> None:
        """Read, retrieve and tokenise what the stage needs, unless the cache has it."""
        self._held = None
        wanted = self.wanted_splits()
        plan_file = self._plan_file(wanted)
        plan = self._whole_plan(plan_file)
        if plan is None:
            plan = self._make_plan(wanted)
            plan_file = self._plan_file(wanted)  # a memory may be there now
            with lock(plan_file), named_disk_errors(plan_file):
                write_json(plan_file, plan)
        for level, line in plan["messages"]:
            log.log(level, "%s", line)

    def _make_plan(self, wanted: Sequence[str]) -> dict[str, Any]:
        tables = self.read_tables(wanted)
        if self.retrieves or (self.has_memory and "train" in tables):
            self.locate_memory(tables)
        training = self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING
        plan: dict[str, Any] = {
            "memory": self.memory_location,
            "memory_rows": self.memory_rows,
            "memory_version": self.memory_version,
            "seen": self.prepare_seen(tables.get("train"), training),
            "splits": {},
            "messages": [],
        }
        for name in wanted:
            split = self.prepare_split(name, tables.pop(name))
            plan["splits"][name] = dict(split.parts)
            plan["messages"] += self.describe_split(name, split)
            if (marks := self.copies_of(split)) is not None:
                plan["messages"] += marks.describe(name)
            if name == "train":
                stores = [tokens for tokens, _ in self.texts_of(split)]
                plan["vocabulary"] = self.prepare_vocabulary(stores, self.count_words(split))
                plan["facts"] = self.learn(split, self.open_vocabulary(plan["vocabulary"]))
        self.close_memory()
        return plan

    def wanted_splits(self) -> list[str]:
        """The tables that the trainer's stage needs; without a trainer, all that are named."""
        function = self.trainer.state.fn if self.trainer is not None else None
        if function == TrainerFn.FITTING:
            return ["train", "validation"]
        if function == TrainerFn.VALIDATING:
            # Validation rows, or the memory, may have to come from the training table.
            has_memory = not self.retrieves or self.options.memory or is_existing_index(self.retriever)
            alone = self.has_validation_table and has_memory
            return ["validation"] if alone else ["train", "validation"]
        if function == TrainerFn.TESTING:
            return ["test"]
        named = ["train", "validation"] if self.has_training_table else []
        return [*named, "test"] if self.has_test_table else named

    def _plan_file(self, splits: Sequence[str]) -> Path:
        """Where rank 0 tells the others what it prepared: named by options and the contents of the files."""
        options = {key: value for key, value in self.options.items() if key not in self.no_effect}
        training = "train" in splits
        memory = self.options.memory if self.options.memory or training else self.memory_location
        description = {
            "class": type(self).__name__,
            "options": options,
            "files": self.held,
            "splits": list(splits),
            "retriever": self.retriever.describe(),
            # The ranking too: it knows what is in the folder that an encoder is named by.
            "ranking": self.retriever.ranking.describe() if self.retrieves else None,
            "memory": memory and [memory, contents_of(Path(memory) / POINTER)],
            "tokenizer": self.tokenizer.describe(),
            "folding": FOLDING,
            **self.describe_past(),
            "start": self.describe_start(),
        }
        return self.cache / f"plan-{fingerprint_of(description)[:16]}.json"

    @property
    def held(self) -> dict[str, Any]:
        """The contents of the files that the options name, by option, as of the last `prepare_data` or `setup`."""
        if self._held is None:
            self._held = {name: _contents(self.options[name]) for name in self.files}
        return self._held

    def _whole_plan(self, plan_file: Path) -> dict[str, Any] | None:
        """A plan whose folders are all there; a damaged one is named."""
        try:
            plan: dict[str, Any] = json.loads(plan_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        if self.retrieves and is_existing_index(self.retriever):
            return None  # An index that is not ours may have changed: ask it again.
        if self.retrieves and not (Path(plan["memory"]) / POINTER).exists():
            return None
        values = [value for parts in plan["splits"].values() for value in parts.values()]
        folders = [value for value in values if isinstance(value, list)]
        more = [
            part for part in (plan["memory_rows"], plan["seen"], plan.get("vocabulary")) if part is not None
        ]
        return plan if are_whole(self.cache, [*folders, *more]) else None

    # --- every rank: open the maps ---

    def setup(self, stage: str) -> None:
        """Map what `prepare_data` made."""
        self._held = None
        plan_file = self._plan_file(self.wanted_splits())
        if not plan_file.exists():
            raise InputError(f"{plan_file}: the data is not prepared; call prepare_data() first")
        plan = json.loads(plan_file.read_text())
        self.memory_location = None
        self.use_memory_of(plan)
        self.use_seen_of(plan)
        self._splits.update({name: self.open_split(parts) for name, parts in plan["splits"].items()})
        if self._spec is None and "vocabulary" in plan:
            self._bind(self.open_vocabulary(plan["vocabulary"]), plan["facts"])

    def _bind(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> None:
        self.use_vocabulary(vocabulary)
        self._facts = {name: facts[name] for name in self.fact_names}
        self._spec = self.make_spec(vocabulary, self._facts)

    def split(self, name: str) -> SplitT:
        """A prepared table: `train`, `validation` or `test`."""
        return self._splits[name]

    def copy_counts(self, name: str) -> dict[str, int]:
        """How many rows of an open split have copies elsewhere, as figures; none where rows are not compared."""
        marks = self.copies_of(self._splits[name]) if name in self._splits else None
        return {} if marks is None else marks.counts()

    @contextmanager
    def dataset_for_now(self, split: SplitT) -> Iterator[Any]:
        """A split's data set whose new words are forgotten afterwards."""
        with self.forgetting_words():
            yield self.dataset(split)

    # --- what a model asks, and what it keeps in its checkpoint ---

    @property
    def spec(self) -> Any:
        """Sizes and the like, of type `spec_type`; after `setup` or `use_state`."""
        if self._spec is None:
            raise InputError("the data has no vocabulary yet: train a model on it, or give a checkpoint")
        return self._spec

    def state(self) -> dict[str, Any]:
        """Plain values that make this data again for new texts; they go into a model's checkpoint."""
        return {
            "class": type(self).__name__,
            "options": dict(self.options),
            "retriever": self.retriever.describe(),
            "memory": self.memory_location,
            "memory_rows": None if self.memory_rows is None else list(self.memory_rows),
            "memory_version": self.memory_version,
            "files": self.held,
            "vocabulary": self.vocabulary.to_dict(),
            "seen": self.seen,
            **self._facts,
        }

    def use_state(self, state: Mapping[str, Any]) -> None:
        """Take vocabulary and facts of a trained model and, unless another is there, the memory."""
        self.use_memory_of(state)
        self.remember(state)
        facts = {name: state[name] for name in self.fact_names}
        if self._vocabulary is not None and self._vocabulary.to_dict() == state["vocabulary"]:
            if facts != self._facts:
                self._facts, self._spec = facts, self.make_spec(self._vocabulary, facts)
        else:
            self._bind(Vocabulary.from_dict(state["vocabulary"]), facts)

    @classmethod
    def check_resumed(cls, state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Refuse to go on with a run on other data than it began with.

        Args:
            state: what `state` gives now.
            before: what it gave when the checkpoint was written.

        Raises:
            InputError: names the options.
        """
        now, then = state["options"], before["options"]
        free = {*cls.no_effect, *cls.files}
        changed = [name for name in now if name not in free and name in then and now[name] != then[name]]
        others = [f"data.{name}={now[name]}, not {then[name]}" for name in changed]
        # Files may have moved, but must hold what they held.
        held = before.get("files", {})
        for name in cls.files:
            if name in held and not name.startswith("test_") and held[name] != state["files"][name]:
                others.append(f"data.{name}={now[name]} holds something else than then")
        if not others and (state["memory_rows"], before["memory_rows"]) != (None, None):
            names = [one["memory"] and Path(one["memory"]).name for one in (state, before)]
            if names[0] != names[1]:
                others.append("data.retriever ranks otherwise")
        if others:
            raise InputError(
                f"the run that is resumed had other data options: {'; '.join(others)}. Give it the same ones, or begin"
                " a new run with --model.init_from"
            )

    @classmethod
    def options_after_training(
        cls, state: Mapping[str, Any], command: str, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Options for `zoo validate` and `zoo test` of a trained model, below those that the user gives.

        Nothing of the training is read again, unless rows were split off its table: the memory is where the
        checkpoint says.

        Args:
            state: what `state` gave.
            command: `validate` or `test`.
            given: the user's options of the data, by name.

        Raises:
            InputError: the training table has gone, and validation rows were split off it.
        """
        # Runs from before copies were kept together split without.
        options = {"split_copies": True, **state["options"], "retriever": state["retriever"]}
        memory = state["memory"] if is_memory(state["memory"]) else options["memory"]
        if options.get("test_split") and given.get("test_file"):
            options["test_split"] = None  # the file takes its place
        if command == "test":
            return {**options, "memory": memory, "test_file": None}
        train_file = options["train_file"]
        if state.get("own_memory") or given.get("validation_file") or options["validation_file"]:
            return {**options, "memory": memory}
        files = [train_file] if isinstance(train_file, str) else train_file or []
        # One that the user gives is read, or found missing, like any other.
        if given.get("train_file") or all(file.startswith(HUB) or Path(file).exists() for file in files):
            return options
        raise InputError(
            f"{train_file}: no such file, and the validation rows were split off it; say where it is now"
            " (--data.train_file), or name other rows (--data.validation_file)"
        )

    # --- encodings of a frozen encoder ---

    def cache_encodings(self, encode: Callable[[TextBatch], Tensor], encoder: str) -> None:
        """Encode every text of the open splits once, for a model whose encoder is frozen.

        Batches made afterwards carry the encodings. They are kept in the cache folder, for this and every later
        run of the same encoder: 4 l bytes a vector.

        Args:
            encode: vectors [B, l] of the texts of a batch, or of their tokens [B, T, l]; what it makes of padding is
                not read. It is called with texts of like length, cut to what a model reads.
            encoder: fingerprint of the encoder: another encoder, another fingerprint.
        """
        if encoder != self._encoder:
            self._encodings, self._encoder = {}, encoder
        for split in self._splits.values():
            for tokens, length in self.texts_to_encode(split):
                if len(tokens) and (tokens.part[1], length) not in self._encodings:
                    self._encodings[tokens.part[1], length] = self._encode_all(tokens, length, encode)

    def forget_encodings(self) -> None:
        """Have batches carry texts again: another model is about to read them. What is in the cache folder stays."""
        self._encodings, self._encoder = {}, None

    def texts_to_encode(self, split: SplitT) -> list[tuple[TokenStore, int]]:
        """The texts of a split that `cache_encodings` encodes, as `texts_of` has them."""
        return self.texts_of(split)

    def encodings_of(self, tokens: TokenStore | None, length: int) -> Encodings | None:
        """What the frozen encoder made of a store's texts; None where there is no such encoder."""
        if tokens is None or not self._encodings or not tokens.is_kept:
            return None
        return self._encodings.get((tokens.part[1], length))

    def _encode_all(
        self, tokens: TokenStore, length: int, encode: Callable[[TextBatch], Tensor]
    ) -> Encodings:
        table = self.words.add(tokens)

        def encode_rows(rows: NDArray[np.int64]) -> Tensor:
            gathered = gather([TextGroup(table, rows, length)])
            batch = (gathered.word, gathered.char, gathered.texts[0])
            return encode(TextBatch(*map(torch.from_numpy, batch)))

        description = {
            "encoder": self._encoder,
            "tokens": tokens.part[1],
            "vocabulary": self.vocabulary.fingerprint,
            "length": length,
        }
        mark = fingerprint_of(description)
        size = np.minimum(np.diff(tokens.offsets) + self.special_tokens, length)
        return Encodings.build(size, encode_rows, self.cache / f"encodings-{mark[:16]}", mark)


def _contents(files: Any) -> Any:
    """Identifies what a file, a folder, a data set of the Hub, or several of them hold; None for what is none."""
    if isinstance(files, (list, tuple)):
        return [_contents(file) for file in files]
    if not isinstance(files, str):
        return None
    if files.startswith(HUB):
        return hub_fingerprint(files)
    return contents_of_memory(files) if is_memory(files) else contents_of(files)
