"""Labelled texts with their memories: from the user's files to batches.

Rank 0 does the work once, in `prepare_data`: read and split the rows, build or open the memory, retrieve,
tokenise, choose the vocabulary. Every result is a folder in the cache under a fingerprint of what it was made
from, so a second run starts at once and a changed input makes new folders. Every rank then maps those folders
in `setup`, and a batch is put together by compiled code: no query, no string, no loop over examples.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.corpora.published import load_published
from datamodules.corpora.split import limit_classes, select_classes, stratified_split
from datamodules.corpora.table import Column, Rows, read_table
from datamodules.errors import InputError
from datamodules.preparation import (
    are_whole,
    check_least,
    file_state,
    given_memory,
    kept_tokens,
    memory_folder,
    open_vocabulary,
    prepare_rows,
    prepare_tokens,
    prepare_vocabulary,
)
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.embedded import EmbeddedRetriever
from datamodules.retrieval.memory import (
    POINTER,
    FolderMemory,
    Memory,
    is_existing_index,
)
from datamodules.retrieval.neighbors import NeighborStore, build_neighbors
from datamodules.sampling import LengthBucketSampler
from datamodules.storage import (
    cache_folder,
    check_folder,
    fingerprint_of,
    lock,
    named_disk_errors,
    write_json,
)
from datamodules.text.gather import TextGroup, TokenTable, WordTable, distinct_rows, gather
from datamodules.text.tokenization import WORD_TOKENIZERS, make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

#: What a command line starts from when it sets `--data.retriever.similarity` alone.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)
#: Class of a label that the model does not know, before it is replaced by the number of classes.
UNKNOWN = -1
NO_TARGET = -100

#: Smallest value of each option that is a number.
_LEAST = {
    "num_memories": 0,
    "max_length": 1,
    "memory_max_length": 1,
    "min_count": 1,
    "max_words": 1,
    "vector_words": 0,
    "max_characters": 1,
    "batch_size": 1,
    "eval_batch_size": 1,
    "num_workers": 0,
}


@dataclass(frozen=True)
class Split:
    """One table of texts, ready for batches: rows, tokens, and what the memory returned for them."""

    rows: Rows
    tokens: TokenStore
    neighbors: NeighborStore | None
    memory_tokens: TokenStore | None
    #: cache folder, and folder name and fingerprint of each part; None for texts that came just now.
    origin: tuple[Path, Mapping[str, Any]] | None = None

    @classmethod
    def open(cls, cache: Path, parts: Mapping[str, Any]) -> Split:
        """Map the parts that `prepare_data` made.

        Raises:
            InputError: a part is missing or damaged.
        """
        folder = {name: part and (cache / part[0], part[1]) for name, part in parts.items()}
        check_folder(*folder["rows"])
        return cls(
            rows=Rows.load(folder["rows"][0] / "rows.arrow"),
            tokens=TokenStore.open(*folder["tokens"]),
            neighbors=folder["neighbors"] and NeighborStore.open(*folder["neighbors"]),
            memory_tokens=folder["memory_tokens"] and TokenStore.open(*folder["memory_tokens"]),
            origin=(cache, parts),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that is spawned (not forked) gets its data set pickled: let it map the same files.
        if self.origin is not None:
            return Split.open, self.origin
        return Split, (self.rows, self.tokens, self.neighbors, self.memory_tokens)


class ClassificationDataset(Dataset[ClassificationBatch]):
    """Row numbers in, a finished batch out."""

    def __init__(
        self,
        split: Split,
        words: WordTable,
        spec: ClassificationSpec,
        max_length: int,
        memory_max_length: int,
        encodings: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Bind a split to a model's vocabulary and labels.

        Args:
            split: texts and neighbours.
            words: the table of the model's vocabulary; the split's words are added to it.
            spec: the model's labels and number of memories.
            max_length: words kept of a text.
            memory_max_length: words kept of a memory text.
            encodings: float32 [n, l] and [m, l], what a frozen encoder makes of the texts and of the memories;
                batches then carry these in place of words.
        """
        self.split = split
        self.encodings = encodings
        self.spec = spec
        self.max_length = max_length
        self.memory_max_length = memory_max_length
        self.texts: TokenTable = words.add(split.tokens)
        self.memories = None if split.memory_tokens is None else words.add(split.memory_tokens)
        targets = label_numbers(split.rows, spec.labels)
        self.unknown_labels = int((targets == UNKNOWN).sum())
        self.targets = np.where(targets == UNKNOWN, len(spec.labels), targets)
        if split.neighbors is not None:
            targets = label_numbers(split.neighbors.memories, spec.memory_labels)
            # The last entry is what row -1 (no memory) reads.
            self.memory_targets = np.append(np.where(targets == UNKNOWN, NO_TARGET, targets), NO_TARGET)
            # Rows of equal text share one encoding: each stands for its first; row -1 stays -1.
            self.memory_texts = np.append(first_of_equal_texts(split.neighbors.memories), -1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words of each text [n], as kept."""
        lengths: NDArray[np.int64] = np.minimum(np.diff(self.split.tokens.offsets), self.max_length)
        return lengths

    def __len__(self) -> int:
        return len(self.split.rows)

    def __getitems__(self, indices: Sequence[int]) -> ClassificationBatch:
        """Put a batch together; an index ~i (negative) is row i as padding, with weight 0."""
        index = np.asarray(indices, dtype=np.int64)
        weight = (index >= 0).astype(np.float32)
        index = np.where(index < 0, ~index, index)
        if self.split.neighbors is None or self.memories is None:
            rows = np.zeros((len(index), 0), np.int64)
            scores = np.zeros((len(index), 0), np.float32)
            targets = np.zeros((len(index), 0), np.int64)
            distinct, memory = np.zeros(0, np.int64), rows
        else:
            rows = np.asarray(self.split.neighbors.rows[index], dtype=np.int64)
            scores = np.asarray(self.split.neighbors.scores[index])
            targets = self.memory_targets[rows]
            distinct, memory = distinct_rows(self.memory_texts[rows])
        word, char, text, memory_text = self._words(index, distinct)
        batch = ClassificationBatch(
            word=torch.from_numpy(word),
            char=torch.from_numpy(char),
            text=torch.from_numpy(text),
            memory_text=torch.from_numpy(memory_text),
            memory=torch.from_numpy(memory),
            memory_mask=torch.from_numpy(rows >= 0),
            memory_score=torch.from_numpy(scores),
            memory_target=torch.from_numpy(targets),
            target=torch.from_numpy(self.targets[index]),
            weight=torch.from_numpy(weight),
            index=torch.from_numpy(index),
        )
        if self.encodings is None:
            return batch
        texts, memories = self.encodings
        return batch._replace(
            text_vector=texts[batch.index], memory_vector=memories[torch.from_numpy(distinct)]
        )

    def _words(self, index: NDArray[np.int64], memories: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """The fields `word`, `char`, `text` and `memory_text` of a batch."""
        empty = np.zeros((len(memories), 1), np.int64)
        if self.encodings is not None:
            return (
                np.zeros(1, np.int64),
                np.zeros((1, 0), np.int64),
                np.zeros((len(index), 1), np.int64),
                empty,
            )
        groups = [TextGroup(self.texts, index, self.max_length)]
        if self.memories is not None:
            groups.append(TextGroup(self.memories, memories, self.memory_max_length))
        gathered = gather(groups)
        return (
            gathered.word,
            gathered.char,
            gathered.texts[0],
            gathered.texts[1] if len(groups) > 1 else empty,
        )


def label_numbers(rows: Rows, labels: Sequence[str]) -> NDArray[np.int64]:
    """The position of each row's label in `labels` [n]: -1 = not there, -100 = the row has none."""
    column = rows.table.column("label")
    found = pc.fill_null(pc.index_in(column, value_set=pa.array(labels, pa.string())), UNKNOWN)
    numbers: NDArray[np.int64] = found.to_numpy().astype(np.int64)
    numbers[pc.is_null(column).to_numpy()] = NO_TARGET
    return numbers


def first_of_equal_texts(rows: Rows) -> NDArray[np.int64]:
    """For each row the first row with the same text [n]."""
    codes = np.concatenate(
        [chunk.indices.to_numpy() for chunk in rows.table.column("text").dictionary_encode().chunks]
        or [np.empty(0, np.int64)]
    )
    _, first = np.unique(codes, return_index=True)
    same: NDArray[np.int64] = first[codes]
    return same


class ClassificationDataModule(TextDataModule[Split, ClassificationDataset]):
    """Texts to classify, each with the memories that a retriever found for it.

    Example:
        >>> data = ClassificationDataModule(train_file="train.csv", text_column="text", num_memories=5)
    """

    spec_type = ClassificationSpec
    #: the validation figure, higher = better, by which an epoch is chosen.
    monitor = "val/accuracy"

    def __init__(
        self,
        train_file: str | None = None,
        validation_file: str | None = None,
        test_file: str | None = None,
        dataset: str | None = None,
        dataset_folder: str | None = None,
        text_column: Column | list[Column] = "text",
        label_column: Column = "label",
        id_column: Column | None = None,
        header: bool | None = None,
        class_names: str | list[str] | None = None,
        validation_split: int | float = 0.1,
        split_seed: int = 0,
        classes: list[str] | None = None,
        rows_per_class: int | float | dict[str, int] | None = None,
        num_memories: int = 5,
        memory: str | None = None,
        memory_text_column: Column | list[Column] | None = None,
        memory_label_column: Column | None = None,
        retriever: Retriever = DEFAULT_RETRIEVER,
        tokenizer: str = "words",
        lowercase: bool | None = None,
        max_length: int = 64,
        memory_max_length: int | None = None,
        min_count: int = 1,
        max_words: int | None = None,
        word_vectors: str | None = None,
        vector_words: int = 100_000,
        characters: bool = True,
        max_characters: int = 16,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        bucket_by_length: bool = True,
        num_workers: int = 0,
        seed: int | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """Describe the data; nothing is read yet.

        Args:
            train_file: table of labelled texts: .csv, .tsv, .jsonl (also .gz, .xz), .parquet, a folder saved
                by `datasets`, or `hub:NAME[:SPLIT]`.
            validation_file: the same for validation; without it, rows are split off the training table.
            test_file: the same for the test.
            dataset: a published data set by name instead of files: ag_news, sogou_news, dbpedia,
                yelp_polarity, yelp_full, yahoo_answers, amazon_polarity, amazon_full.
            dataset_folder: where its published CSV folder is; without it, it comes from the Hub.
            text_column: name or number (from 0) of the text, or several, which are joined.
            label_column: name or number of the label.
            id_column: name or number of an id; row numbers otherwise.
            header: whether CSV files have a header line; None finds out.
            class_names: names for labels that are numbers from 1: a list, or a file with one a line.
            validation_split: rows split off for validation, stratified: a share (0.1) or rows a class (500).
            split_seed: seed of that split and of `rows_per_class`; independent of the training's seed.
            classes: keep these classes only.
            rows_per_class: keep so many training rows a class, or this share, or so many of each class named
                (`{World: 2000, Sports: 4000}`).
            num_memories: K, memories a text; 0 = none.
            memory: where memories come from: None = the training rows; a table (with
                `memory_text_column`, `memory_label_column`); a folder that `zoo index` built. A retriever
                with an index of its own (`ElasticsearchRetriever(index=...)`) is its own memory.
            memory_text_column: text of the memory table; None = `text_column`.
            memory_label_column: label of the memory table; None = its texts have no labels.
            retriever: back end and ranking: EmbeddedRetriever or ElasticsearchRetriever.
            tokenizer: `words` (Unicode words and punctuation), `whitespace`, or a `transformers` tokenizer by
                name or folder.
            lowercase: fold case before words are looked up; None = yes, but a `transformers` tokenizer keeps
                to its own rule.
            max_length: words kept of a text.
            memory_max_length: words kept of a memory text; None = `max_length`.
            min_count: words that occur less often are unknown words.
            max_words: largest vocabulary; None = no limit.
            word_vectors: file of pre-trained GloVe or word2vec vectors (text, plain, .gz, .xz, .zip).
            vector_words: how many of the most frequent words of that file join the vocabulary although the
                training rows lack them: they may come up later.
            characters: give the model the characters of words.
            max_characters: characters kept of a word.
            batch_size: texts a training batch of one device.
            eval_batch_size: texts a batch otherwise; None = 4 x `batch_size`.
            bucket_by_length: put texts of like length into a batch.
            num_workers: processes that put batches together; 0 = the training process.
            seed: of the training order; None = the run's seed.
            cache_dir: where prepared data is kept; None = $ZOO_CACHE_DIR or ~/.cache/memory-zoo.
        """
        super().__init__()
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        arguments.pop("retriever")
        # A retriever holds an open index: the default is a new one for each data module.
        self.retriever = EmbeddedRetriever() if retriever is DEFAULT_RETRIEVER else retriever
        self.options = arguments
        self.num_memories = num_memories
        check_least(arguments, _LEAST)
        if dataset is not None and train_file is not None:
            raise InputError("data.dataset and data.train_file: give one of them")
        self.cache = cache_folder(cache_dir)
        if lowercase is None:
            lowercase = tokenizer in WORD_TOKENIZERS
        self.tokenizer = make_tokenizer(tokenizer, lowercase)
        #: where the memory is, after `setup` or `use_state`; see `open_memory`.
        self.memory_location: str | None = None
        #: of a split (by its identity), see `cache_encodings`.
        self._encodings: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def _memory_length(self) -> int:
        """Words kept of a memory text."""
        length: int = self.options["memory_max_length"] or self.options["max_length"]
        return length

    # --- reading the user's tables ---

    def _read(self, path: str) -> Rows:
        options = self.options
        return read_table(
            path,
            text_column=options["text_column"],
            label_column=options["label_column"],
            id_column=options["id_column"],
            header=options["header"],
            class_names=options["class_names"],
        )

    def _training_tables(self) -> dict[str, Rows]:
        """Training and validation rows, split and limited as configured."""
        options = self.options
        if options["dataset"] is not None:
            table = load_published(options["dataset"], options["dataset_folder"])[0]
        elif options["train_file"] is not None:
            table = self._read(options["train_file"])
        else:
            raise InputError("data.train_file: name a table of labelled texts, or a published --data.dataset")
        if options["classes"]:
            table = select_classes(table, options["classes"])
        if options["validation_file"] is not None:
            train, validation = table, self._read(options["validation_file"])
            if options["classes"]:
                validation = select_classes(validation, options["classes"])
        else:
            labels = table.labels
            assert labels is not None  # label_column is no option here
            train_rows, validation_rows = stratified_split(
                labels, options["validation_split"], options["split_seed"]
            )
            train, validation = table.select(train_rows), table.select(validation_rows)
        if options["rows_per_class"] is not None:
            train = limit_classes(train, options["rows_per_class"], options["split_seed"])
        if len(train.distinct_labels()) < 2:
            raise InputError(
                f"{table.source}: all rows have the label {train.distinct_labels()[0]!r}; a classifier needs"
                " two classes"
            )
        return {"train": train, "validation": validation}

    def _test_table(self) -> Rows:
        if self.options["test_file"] is not None:
            return self._read(self.options["test_file"])
        if self.options["dataset"] is not None:
            return load_published(self.options["dataset"], self.options["dataset_folder"])[1]
        raise InputError("data.test_file: name a table of labelled texts")

    # --- rank 0: everything that takes long ---

    def prepare_data(self) -> None:
        """Read, index, retrieve and tokenise what the stage needs, unless the cache has it."""
        wanted = self._wanted_splits()
        plan_file = self._plan_file(wanted)
        if plan_file.exists() and self._plan_is_whole(plan_file):
            return
        tables = self._training_tables() if "train" in wanted else {}
        if "validation" in wanted and not tables:
            tables["validation"] = self._read(self.options["validation_file"])
        if "test" in wanted:
            tables["test"] = self._test_table()
        memory = self._open_or_build_memory(tables.get("train"))
        plan: dict[str, Any] = {
            "memory": None if memory is None else memory.location(),
            "memory_labels": [] if memory is None else memory.labels(),
            "splits": {},
        }
        memory_is_given = self.options["memory"] is not None or is_existing_index(self.retriever)
        for name in wanted:
            # A memory that the user names may hold the table that the validation rows were split off.
            split_off = name == "validation" and self.options["validation_file"] is None
            plan["splits"][name] = self._prepare_split(
                tables[name], memory, leave_out_copies=name == "train" or (split_off and memory_is_given)
            )
        if "train" in tables:
            plan["labels"] = in_natural_order(tables["train"].distinct_labels())
            parts = (plan["splits"]["train"][name] for name in ("tokens", "memory_tokens"))
            plan["vocabulary"] = prepare_vocabulary(
                [part for part in parts if part is not None], self.options, self.tokenizer, self.cache
            )
        # Training needs neither its connections nor the memory that an encoder takes.
        self.retriever.close()
        with lock(plan_file), named_disk_errors(plan_file):
            write_json(plan_file, plan)

    def _wanted_splits(self) -> list[str]:
        """The tables that the trainer's stage needs; without a trainer, all that are named."""
        function = self.trainer.state.fn if self.trainer is not None else None
        if function == TrainerFn.FITTING:
            return ["train", "validation"]
        if function == TrainerFn.VALIDATING:
            # Memories or validation rows may have to come from the training table.
            has_memory = self.num_memories == 0 or self.options["memory"] or is_existing_index(self.retriever)
            alone = has_memory and self.options["validation_file"] is not None
            return ["validation"] if alone else ["train", "validation"]
        if function == TrainerFn.TESTING:
            return ["test"]
        named = ["train", "validation"] if self.options["train_file"] or self.options["dataset"] else []
        return [*named, "test"] if self.options["test_file"] or self.options["dataset"] else named

    def _plan_file(self, splits: Sequence[str]) -> Path:
        """Where rank 0 tells the others what it prepared: named by options, sizes and times of the files."""
        no_effect = ("batch_size", "eval_batch_size", "num_workers", "seed", "bucket_by_length", "cache_dir")
        options = {key: value for key, value in self.options.items() if key not in no_effect}
        tables = ("train_file", "validation_file", "test_file", "memory")
        files = [self.options[name] for name in (*tables, "word_vectors", "class_names")]
        state = {path: file_state(path) for path in files if isinstance(path, str)}
        if self.options["dataset_folder"] is not None:
            folder = Path(self.options["dataset_folder"])
            state |= {path.name: file_state(path) for path in sorted(folder.glob("*"))}
        memory = self._memory_given("train" in splits)
        description = {
            "options": options,
            "num_memories": self.num_memories,
            "files": state,
            "splits": list(splits),
            "retriever": self.retriever.describe(),
            # The ranking too: it knows what is in the folder that an encoder is named by.
            "ranking": self.retriever.ranking.describe() if self.num_memories else None,
            "memory": memory and [memory, file_state(Path(memory) / POINTER)],
            "without": "copies of split-off rows",  # how it is done: plans from before did it otherwise
            "tokenizer": self.tokenizer.describe(),
        }
        return self.cache / f"plan-{fingerprint_of(description)[:16]}.json"

    def _plan_is_whole(self, plan_file: Path) -> bool:
        """False if a folder of the plan was deleted (it is made again); a damaged one is named."""
        try:
            plan = json.loads(plan_file.read_text())
        except ValueError:
            return False
        parts = [part for split in plan["splits"].values() for part in split.values()]
        parts.append(plan.get("vocabulary"))
        if self.num_memories and is_existing_index(self.retriever):
            return False  # An index that is not ours may have changed: ask it again.
        if plan["memory"] is not None and not (Path(plan["memory"]) / POINTER).exists():
            return False
        return are_whole(self.cache, parts)

    def _memory_given(self, with_training: bool) -> str | None:
        """The memory that is configured or, to test after training, the one that the training used."""
        given: str | None = self.options["memory"]
        return given if given is not None or with_training else self.memory_location

    def _open_or_build_memory(self, train: Rows | None) -> Memory | None:
        if self.num_memories == 0:
            return None
        options = self.options
        text_column = options["memory_text_column"]
        memory = given_memory(
            self.retriever,
            self._memory_given(train is not None),
            options["text_column"] if text_column is None else text_column,
            options["memory_label_column"],
        )
        if memory is None:
            if train is None:
                raise InputError("data.memory: name a memory folder or a table of memories")
            memory = train
        if isinstance(memory, Rows):
            self._check_num_memories(len(memory))
            memory = FolderMemory.build(
                memory, self.retriever, memory_folder(memory, self.retriever, self.cache)
            )
        if isinstance(memory, FolderMemory):
            self._check_num_memories(len(memory))
        return memory

    def _check_num_memories(self, rows: int) -> None:
        if self.num_memories > rows:
            raise InputError(
                f"data.num_memories={self.num_memories}: the memory has only {rows} rows; choose fewer"
            )

    def _prepare_split(
        self, rows: Rows, memory: Memory | None, leave_out_copies: bool
    ) -> dict[str, tuple[str, str] | None]:
        """Folder names and fingerprints of a split's parts."""
        parts: dict[str, tuple[str, str] | None] = {
            "rows": prepare_rows(rows, self.cache),
            "tokens": prepare_tokens(rows, self.tokenizer, self.cache, self.options["max_length"])[0],
            "neighbors": None,
            "memory_tokens": None,
        }
        if memory is not None:
            folder, fingerprint = build_neighbors(
                rows, memory, self.num_memories, leave_out_copies, self.cache
            )
            parts["neighbors"] = (folder.name, fingerprint)
            memories = NeighborStore.open(folder, fingerprint).memories
            length = self._memory_length
            parts["memory_tokens"] = prepare_tokens(memories, self.tokenizer, self.cache, length)[0]
        return parts

    # --- every rank: open the maps ---

    def setup(self, stage: str) -> None:
        """Map what `prepare_data` made."""
        plan = self._read_plan(self._plan_file(self._wanted_splits()))
        self.memory_location = plan["memory"]
        self._splits.update({name: Split.open(self.cache, parts) for name, parts in plan["splits"].items()})
        self._encodings.clear()  # of splits that may be gone: another object may get a dead one's identity
        if self._spec is None and "labels" in plan:
            vocabulary, self._vectors_file = open_vocabulary(self.cache, plan["vocabulary"])
            self._bind(vocabulary, plan["labels"], plan["memory_labels"])

    def _bind(self, vocabulary: Vocabulary, labels: list[str], memory_labels: list[str]) -> None:
        # Memories of the same task are numbered as its classes; another task's labels are their own list.
        same_task = set(memory_labels) <= set(labels)
        self._vocabulary = vocabulary
        self._words = WordTable(vocabulary, self.options["max_characters"])
        self._spec = ClassificationSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            labels=labels,
            memory_labels=labels if memory_labels and same_task else memory_labels,
            num_memories=self.num_memories,
        )

    # --- what a model asks, and what it keeps in its checkpoint ---

    @property
    def spec(self) -> ClassificationSpec:
        """Sizes and labels; after `setup` or `use_state`."""
        spec: ClassificationSpec = self._known_spec()
        return spec

    def state(self) -> dict[str, Any]:
        """Plain values that make this data again for new texts; they go into a model's checkpoint."""
        spec = self.spec
        return {
            "class": type(self).__name__,
            "options": self.options,
            "retriever": self.retriever.describe(),
            "memory": self.memory_location,
            "vocabulary": self.vocabulary.to_dict(),
            "labels": spec.labels,
            "memory_labels": spec.memory_labels,
            "num_memories": spec.num_memories,
        }

    def use_state(self, state: Mapping[str, Any]) -> None:
        """Take vocabulary and labels, and unless another is configured the memory, of a trained model."""
        if self._spec is not None and self._vocabulary is not None:
            same = self._vocabulary.to_dict() == state["vocabulary"] and self._spec.labels == state["labels"]
            if same:
                return
        self.num_memories = state["num_memories"]
        self.memory_location = state["memory"]
        vocabulary = Vocabulary.from_dict(state["vocabulary"])
        self._bind(vocabulary, list(state["labels"]), list(state["memory_labels"]))

    # --- batches ---

    def dataset(self, split: Split) -> ClassificationDataset:
        """A split under the vocabulary and labels in use."""
        spec, options = self.spec, self.options
        assert self._words is not None
        return ClassificationDataset(
            split,
            self._words,
            spec,
            options["max_length"],
            self._memory_length,
            self._encodings.get(id(split)),
        )

    def cache_encodings(self, encode: Callable[[ClassificationBatch], Tensor]) -> None:
        """Encode all training and validation texts and their memories once, for a model whose encoder is frozen.

        Batches made afterwards carry the encodings in place of words. They are kept in memory: 4 bytes x l a
        text.

        Args:
            encode: text vectors [B, l] of a batch.
        """
        for split in (self._splits["train"], self._splits["validation"]):
            memories = torch.zeros(0, 1)
            if split.neighbors is not None and split.memory_tokens is not None:
                alone = Split(split.neighbors.memories, split.memory_tokens, None, None)
                length = self._memory_length
                memories = self._encode_all(alone, encode, length)
            texts = self._encode_all(
                Split(split.rows, split.tokens, None, None), encode, self.options["max_length"]
            )
            self._encodings[id(split)] = texts, memories

    def _encode_all(
        self, split: Split, encode: Callable[[ClassificationBatch], Tensor], max_length: int
    ) -> Tensor:
        assert self._words is not None
        dataset = ClassificationDataset(split, self._words, self.spec, max_length, max_length)
        vectors: Tensor | None = None
        sampler = LengthBucketSampler(dataset.lengths, 256, training=False)
        for rows in tqdm(sampler, desc="encoding", unit="batch", delay=2, disable=None):
            encoded = encode(dataset.__getitems__(rows)).float().cpu()
            if vectors is None:
                vectors = torch.empty(len(dataset), encoded.shape[1])
            vectors[rows] = encoded
        assert vectors is not None
        return vectors

    def split_of(self, rows: Rows, memory: Memory | None) -> Split:
        """A split in memory, for texts that come now (prediction)."""
        neighbors = memory_tokens = None
        if memory is not None:
            neighbors = NeighborStore.from_neighbors(memory.search(rows.texts[:], self.num_memories))
            memory_tokens = TokenStore.from_texts(
                neighbors.memories.texts, self.tokenizer, max_tokens=kept_tokens(self._memory_length)
            )
        tokens = TokenStore.from_texts(
            rows.texts, self.tokenizer, max_tokens=kept_tokens(self.options["max_length"])
        )
        return Split(rows, tokens, neighbors, memory_tokens)

    def _loader(self, name: str, training: bool) -> DataLoader[ClassificationBatch]:
        options = self.options
        dataset = self.dataset(self._splits[name])
        if dataset.unknown_labels:
            log.warning(
                "%s: %d of %d rows have a label that training lacks; they count as errors",
                dataset.split.rows.source,
                dataset.unknown_labels,
                len(dataset),
            )
        eval_batch_size = options["eval_batch_size"] or 4 * options["batch_size"]
        sampler = LengthBucketSampler(
            dataset.lengths,
            options["batch_size"] if training else eval_batch_size,
            training=training,
            bucket=options["bucket_by_length"],
            seed=self._seed(),
            **self._place(),
        )
        return self._load(dataset, sampler)


def in_natural_order(labels: Sequence[str]) -> list[str]:
    """Labels sorted; as numbers, if all are."""
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
