"""Base of the kinds of data whose rows are single texts with memories; see examples/your_own_kind for a small kind."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, TextBatch, as_tensors
from datamodules.core.storage import Part, prepared_folder
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.corpora.table import read_table
from datamodules.dataset import BatchDataset, BatchT_co, PreparedSplit, Side, rows_and_weights
from datamodules.duplicates import DuplicateMarks
from datamodules.options import TextOptions
from datamodules.retrieval import FolderMemory, Memory, Neighbors, build_neighbors
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories.near_duplicates import are_near_neighbors
from datamodules.sampling import LengthBucketSampler
from datamodules.text.gather import distinct_rows, gather, gather_texts
from datamodules.text.tokens import TokenStore

log = logging.getLogger(__name__)

TextOptionsT = TypeVar("TextOptionsT", bound=TextOptions)


@dataclass(frozen=True)
class TextSplit(PreparedSplit):
    """One table of texts, ready for batches: rows, tokens and retrieved memories."""

    rows: Rows
    tokens: TokenStore
    #: None where the model runs without memories.
    neighbors: Neighbors | None = None
    memory_tokens: TokenStore | None = None

    @property
    def independent_rows(self) -> NDArray[np.int64]:
        """Numbers of the rows with neither a duplicate nor a near-duplicate elsewhere, as far as rows were compared."""
        if self.duplicates is None:
            return np.arange(len(self.rows))
        return np.flatnonzero(self.duplicates.is_independent)


class TextRowsDataModule(DataModule[TextOptionsT, Rows, TextSplit]):
    """Base of the data modules whose rows are single texts, each with K memories."""

    split_type = TextSplit
    length_options: ClassVar = {"tokens": "max_length", "memory_tokens": "memory_max_length"}
    dataset_type: type[TextDataset[Any]]

    @override
    def read_splits(self, names: Sequence[str]) -> dict[str, Rows]:
        columns = self.table_columns()
        return {name: read_table(self.options.file_of(name), **columns) for name in names}

    def table_columns(self) -> PlainDict:
        """Arguments of `read_table` for the tables that are split."""
        names = ("text_column", "label_column", "id_column", "header", "quotes")
        return {name: getattr(self.options, name) for name in names}

    @override
    def memory_columns(self) -> PlainDict:
        return self.table_columns()

    @property
    @override
    def has_memory(self) -> bool:
        return self.options.num_memories > 0

    @property
    @override
    def retrieves(self) -> bool:
        return self.has_memory

    def disable_memory(self) -> None:
        """Retrieve no memories: the model reads none."""
        self.options = replace(self.options, num_memories=0)

    @override
    def own_memory(self, tables: Mapping[str, Rows]) -> Rows | None:
        return tables.get("train")

    @override
    def duplicate_keys(self, table: Rows) -> NDArray[np.uint64]:
        return fold_hashes(table.texts)

    def excludes_duplicates(self, name: str) -> bool:
        """Return True if the rows of a split must not retrieve themselves or duplicates of themselves."""
        # A memory that the user names may hold the table that the rows were split off.
        is_users = self.memory is not None and self.memory.is_users
        return name == "train" or (self.options.is_split_off(name) and is_users)

    def is_memory_table(self, table: object) -> bool:
        """Return True if the memory was made of this table: equal ids are then the same row."""
        memory = self.options.memory
        return table is not None and memory is not None and _resolved(table) == _resolved(memory)

    def own_ids(self, name: str, rows: Rows) -> list[str] | None:
        """Ids of a split's rows, if the memory was made of the same table; None for another table's memory."""
        split = "train" if self.options.is_split_off(name) else name
        return rows.ids if self.is_memory_table(self.options.file_of(split)) else None

    def marks_of(
        self,
        rows: Rows,
        neighbors: Neighbors | None,
        memory: Memory | None,
        seen: NDArray[np.uint64] | None,
        same_table: bool = False,
    ) -> DuplicateMarks:
        """Mark the rows with duplicates among `seen` or in the memory; `memory` None = no duplicates were retrieved."""
        in_memory, near = np.zeros(len(rows), bool), None
        if neighbors is not None:
            near = np.logical_or.reduce(are_near_neighbors(rows.texts, neighbors), axis=1)
            if memory is not None:
                in_memory = memory.has_duplicates_of(rows, same_table, neighbors)
        return DuplicateMarks.of(self.duplicate_keys(rows), seen, in_memory, near)

    @override
    def dataset(
        self, split: TextSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> TextDataset[Any]:
        return self.dataset_type(self, split, contents)

    @override
    def prepare_split(
        self, name: str, table: Rows, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, Part]:
        length, memory_length = self.lengths
        parts: dict[str, Part] = {"rows": prepare_rows(table, self.cache)}
        parts["tokens"] = self.words.tokenize(table, length).part
        neighbors = None
        same_table = self.own_ids(name, table) is not None
        excludes_duplicates = self.excludes_duplicates(name)
        if memory is not None:
            k = self.num_retrieved(memory)
            if name == "train" and k < self.options.num_memories:
                log.info("data.num_memories=%d: the memory has only %d rows", self.options.num_memories, k)
            part = build_neighbors(table, memory, k, excludes_duplicates, self.cache, same_table)
            neighbors = Neighbors.open(self.cache / part[0], part[1])
            parts["neighbors"] = part
            parts["memory_tokens"] = self.words.tokenize(neighbors.memories, memory_length).part
        if name != "train":
            searched = None if excludes_duplicates else memory
            marks = self.marks_of(table, neighbors, searched, seen, same_table)
            parts["duplicates"] = prepared_folder(self.cache, "marks", marks.fingerprint, marks.save)
        return parts

    def num_retrieved(self, memory: Memory) -> int:
        """Return the number of memories that are retrieved for a text: at most all rows of a folder."""
        k = self.options.num_memories
        return min(k, max(len(memory), 1)) if isinstance(memory, FolderMemory) else k

    def split_of(
        self,
        rows: Rows,
        memory: Memory | None,
        contents: BatchContents = BatchContents(),
        exclude_duplicates: bool = False,
    ) -> TextSplit:
        """A split in memory, for prediction; without a memory, texts alone."""
        length, memory_length = self.lengths
        neighbors = memory_tokens = None
        if memory is not None:
            neighbors = memory.search(rows.texts[:], self.num_retrieved(memory), exclude_duplicates)
            if contents.memory_texts and contents.encoded_memory is None:
                memory_tokens = self.words.tokenize_now(neighbors.memories, memory_length)
        return TextSplit(rows, self.words.tokenize_now(rows, length), neighbors, memory_tokens)

    def text_batches(
        self, texts: Sequence[str], length: int, batch_size: int
    ) -> Iterator[tuple[NDArray[np.int64], TextBatch]]:
        """Row numbers and texts in batches of similar length, for an encoder; texts without words are skipped."""
        tokens = self.words.tokenize_now(Rows.from_lists(texts, source="texts to encode"), length)
        (table,) = self.words.bind([(tokens, length)])
        lengths = table.sizes
        full = np.flatnonzero(lengths)
        for positions in LengthBucketSampler(lengths[full], batch_size, training=False):
            rows = full[positions]
            yield rows, gather_texts(table, rows)


class TextDataset(BatchDataset[BatchT_co]):
    """Base of the datasets of texts: `read` builds the fields of a batch that hold texts and memories."""

    def __init__(self, data: TextRowsDataModule[Any], split: TextSplit, contents: BatchContents) -> None:
        """Bind a split to the vocabulary in use."""
        self.split, self.contents = split, contents
        self.is_duplicate = None if split.duplicates is None else split.duplicates.is_duplicate
        reads_memories = contents.memory_texts and contents.encoded_memory is None
        texts, *memories = data.words.bind(data.texts_of(split)[: 1 + reads_memories])
        self.texts = Side(split.rows.texts, texts, contents)
        self.memories: Side | None = None
        # Row in `contents.encoded_memory` of each of `split.neighbors.memories`.
        self.memory_rows: NDArray[np.int64] | None = None
        # Rows of equal text share one encoding: each stands for its first; row -1 stays -1.
        self.distinct_memory = np.array([-1])
        if split.neighbors is not None:
            retrieved = split.neighbors.memories
            self.distinct_memory = np.append(first_of_equal_texts(retrieved), -1)
            if memories:
                self.memories = Side(retrieved.texts, memories[0], contents)
            if contents.encoded_memory is not None:
                self.memory_rows = contents.encoded_memory.rows_of(retrieved.texts)
                assert (self.memory_rows >= 0).all(), "the neighbors come from another memory"

    def __len__(self) -> int:
        return len(self.split.rows)

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        return self.texts.tokens.sizes

    def read(
        self, indices: Sequence[int] | NDArray[np.int64]
    ) -> tuple[dict[str, Tensor | list[str] | None], NDArray[np.int64]]:
        """Read B rows: fields as in `ClassificationBatch`, and the rows of their memories, int64 [B, K], -1 = none."""
        row, weight = rows_and_weights(indices)
        neighbors = self.split.neighbors
        memories, scores = np.zeros((len(row), 0), np.int64), np.zeros((len(row), 0), np.float32)
        if neighbors is not None:
            memories = np.asarray(neighbors.rows[row], dtype=np.int64)
            scores = np.asarray(neighbors.scores[row])
        distinct, memory = distinct_rows(self.distinct_memory[memories])
        arrays: dict[str, NDArray[np.generic]] = {
            "memory": memory,
            "memory_mask": memories >= 0,
            "memory_score": scores,
            "weight": weight,
            "row": row,
        }
        if self.is_duplicate is not None:
            arrays["is_duplicate"] = self.is_duplicate[row]
        fields = {**self._words(row, distinct), **as_tensors(arrays), "text_string": self.texts.strings(row)}
        if self.contents.strings and self.contents.memory_texts and neighbors is not None:
            fields["memory_string"] = neighbors.memories.texts.take(distinct)
        return fields, memories

    def _words(
        self, rows: NDArray[np.int64], memories: NDArray[np.int64]
    ) -> dict[str, Tensor | list[str] | None]:
        """Words of the texts and of the distinct memories; vectors where these were encoded before."""
        vectors = None
        if self.memory_rows is not None and self.contents.encoded_memory is not None:
            vectors = torch.from_numpy(self.contents.encoded_memory.vectors[self.memory_rows[memories]])
        elif self.memories is not None and self.memories.encodings is not None:
            vectors = self.memories.encodings.of(memories)
        if (encodings := self.texts.encodings) is not None:
            return {
                "word": torch.zeros(1, dtype=torch.int64),
                "char": torch.zeros(1, 0, dtype=torch.int64),
                "text": torch.zeros(len(rows), 1, dtype=torch.int64),
                "memory_text": torch.zeros(len(memories), 1, dtype=torch.int64),
                "text_vector": encodings.of(rows),
                "memory_vector": torch.zeros(0, 1) if vectors is None else vectors,
            }
        groups = [(self.texts.tokens, rows)]
        if self.memories is not None:
            groups.append((self.memories.tokens, memories))
        word, char, (text, *more) = gather(*groups)
        memory_text = more[0] if more else np.zeros((len(memories), 1), np.int64)
        arrays = {"word": word, "char": char, "text": text, "memory_text": memory_text}
        return {**as_tensors(arrays), "memory_vector": vectors}


def first_of_equal_texts(rows: Rows) -> NDArray[np.int64]:
    """For each row the first row with the same text [n]."""
    chunks = rows.table.column("text").dictionary_encode().chunks
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks] or [np.empty(0, np.int64)])
    return np.unique(codes, return_index=True)[1][codes]


def _resolved(table: object) -> object:
    """Return the same name for all names of a file."""
    return str(Path(table).resolve()) if isinstance(table, str) and Path(table).exists() else table
