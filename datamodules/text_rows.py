"""Texts, one a row, each with the memories that a retriever found for it: prepared, opened, and put into batches.

What kinds of data share whose rows are single texts. A kind adds what its rows are labelled with: see
`datamodules.classification`, and examples/your_own_kind for a small one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import TextBatch
from datamodules.core.errors import InputError
from datamodules.core.storage import Part, check_folder
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.duplicates import CopyMarks
from datamodules.encodings import Encodings
from datamodules.options import check_least
from datamodules.prepared import PreparedSplit
from datamodules.retrieval import Memory, build_neighbors, is_existing_index, open_neighbors
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from datamodules.retrieval.memories.memory import Neighbors
from datamodules.retrieval.memories.near_duplicates import have_near_duplicates
from datamodules.sampling import LengthBucketSampler
from datamodules.text.gather import TextGroup, TokenTable, distinct_rows, gather
from datamodules.text.tokens import TokenStore


@dataclass(frozen=True)
class TextSplit(PreparedSplit):
    """One table of texts, ready for batches: rows, tokens, and what the memory returned for them."""

    rows: Rows
    tokens: TokenStore
    #: None where the model runs without memories.
    neighbors: Neighbors | None
    memory_tokens: TokenStore | None
    #: cache folder, and folder name and fingerprint of each part; None for texts that came just now.
    origin: tuple[Path, Mapping[str, Any]] | None = None
    #: None where nothing is measured: in training, and for texts that came just now.
    copies: CopyMarks | None = None

    @classmethod
    def open(cls, cache: Path, parts: Mapping[str, Any]) -> TextSplit:
        """Map what `prepare` made.

        Raises:
            InputError: a part is missing or damaged.
        """
        folder = cls.folders(cache, parts)
        check_folder(*folder["rows"])
        with_memories = "neighbors" in folder
        rows = Rows.load(folder["rows"][0] / "rows.arrow")
        return cls(
            # Messages name the user's table.
            rows=replace(rows, source=parts.get("source", rows.source)),
            tokens=TokenStore.open(*folder["tokens"]),
            neighbors=open_neighbors(*folder["neighbors"]) if with_memories else None,
            memory_tokens=TokenStore.open(*folder["memory_tokens"]) if with_memories else None,
            copies=CopyMarks.open(*folder["copies"]) if "copies" in folder else None,
            origin=(cache, parts),
        )


class TextRowsDataModule(TextDataModule[Rows, TextSplit]):
    """Base of the data modules whose rows are single texts, each with K memories."""

    def __init__(
        self,
        *,
        num_memories: int = 5,
        max_length: int = 64,
        memory_max_length: int | None = None,
        **shared: Any,
    ) -> None:
        """Choose how much is read.

        Args:
            num_memories: K, memories a text; 0 = none.
            max_length: words kept of a text.
            memory_max_length: words kept of a memory text; None = `max_length`.
            **shared: options of `TextDataModule`.
        """
        super().__init__(**shared)
        check_least(self.options, {"num_memories": 0, "max_length": 1, "memory_max_length": 1})
        #: what the model's encoder made of the memory: batches carry it in place of the memories' words. None = the
        #: model encodes these itself.
        self.encoded_memory: EncodedMemory | None = None

    @override
    def forget_encodings(self) -> None:
        super().forget_encodings()
        self.encoded_memory = None

    @property
    def new_labels(self) -> list[str]:
        """Labels that came into the memory after the training: the classes behind those of the spec."""
        return []

    @property
    def num_memories(self) -> int:
        """K; 0 = none."""
        return int(self.options.num_memories)

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens kept of a text and of a memory."""
        return self.options.max_length, self.options.memory_max_length or self.options.max_length

    @override
    def text_lengths(self) -> dict[str, int]:
        return dict(zip(("max_length", "memory_max_length"), self.lengths, strict=True))

    # --- memory ---

    @property
    @override
    def has_memory(self) -> bool:
        return self.num_memories > 0

    @property
    @override
    def retrieves(self) -> bool:
        # Every text is given its memories beforehand.
        return self.has_memory

    @override
    def leave_out_memory(self) -> None:
        self.options.num_memories = 0

    @override
    def check_memory_size(self, rows: int) -> None:
        if self.num_memories > rows:
            raise InputError(
                f"data.num_memories={self.num_memories}: the memory has only {rows} rows; choose fewer"
            )

    @override
    def own_memory(self, tables: Mapping[str, Rows]) -> Rows | None:
        return tables.get("train")

    # --- splits ---

    @override
    def prepare_split(self, name: str, table: Rows) -> TextSplit:
        length, memory_length = self.lengths
        tokens = self.tokenise(table, length)
        rows = prepare_rows(table, self.cache)
        parts: dict[str, Any] = {"rows": rows, "tokens": tokens.part, "source": table.source}
        neighbors = memory_tokens = copies = None
        if self.has_memory:
            folder, fingerprint = build_neighbors(
                table,
                self.opened_memory,
                self.num_memories,
                self.excludes_duplicates(name),
                self.cache,
                same_table=self._is_of_memory_table(name),
            )
            neighbors = open_neighbors(folder, fingerprint)
            memory_tokens = self.tokenise(neighbors.memories, memory_length)
            parts |= {"neighbors": (folder.name, fingerprint), "memory_tokens": memory_tokens.part}
        if name != "train":
            copies, parts["copies"] = self._mark_copies(name, table, neighbors)
        return TextSplit(table, tokens, neighbors, memory_tokens, (self.cache, parts), copies)

    def excludes_duplicates(self, name: str) -> bool:
        """Whether the rows of a split must not find themselves, nor copies of themselves."""
        # A memory that the user names may hold the table that the rows were split off.
        is_given = self.options.memory is not None or is_existing_index(self.retriever)
        return name == "train" or (self.is_split_off(name) and is_given)

    def _is_of_memory_table(self, name: str) -> bool:
        """Whether a split's rows are of the table that the memory was made of."""
        options = self.options
        file = options.train_file if name == "train" else options[f"{name}_file"]
        return self.is_memory_table(options.train_file if file is None else file)

    def _mark_copies(self, name: str, table: Rows, neighbors: Neighbors | None) -> tuple[CopyMarks, Part]:
        # What is left out can't be found.
        memory = None if neighbors is None or self.excludes_duplicates(name) else self.opened_memory
        marks = self.marks_of(table, neighbors, memory, self._is_of_memory_table(name))
        return marks, self.prepare_marks(marks)

    def marks_of(
        self, rows: Rows, neighbors: Neighbors | None, memory: Memory | None, same_table: bool = False
    ) -> CopyMarks:
        """Mark the rows of a table that have copies.

        Args:
            rows: the table.
            neighbors: the memories that were found for them, if any were asked for.
            memory: where; None = it can't have returned copies.
            same_table: the rows are of the table that the memory was made of.
        """
        in_memory, near = np.zeros(len(rows), bool), None
        if neighbors is not None:
            near = have_near_duplicates(rows.texts, neighbors)
            if memory is not None:
                in_memory = memory.contains_duplicates_of(rows, same_table, neighbors)
        return self.mark(self.copy_keys(rows), in_memory, near)

    @override
    def copy_keys(self, table: Rows) -> NDArray[np.uint64]:
        return fold_hashes(table.texts)

    @override
    def copies_of(self, split: TextSplit) -> CopyMarks | None:
        return split.copies

    @override
    def open_split(self, parts: Mapping[str, Any]) -> TextSplit:
        return TextSplit.open(self.cache, parts)

    def split_of(self, rows: Rows, memory: Memory | None, exclude_duplicates: bool = False) -> TextSplit:
        """A split in memory, for texts that come now (prediction); without a memory, texts alone.

        Args:
            rows: the texts.
            memory: where their memories are.
            exclude_duplicates: a text does not find itself nor a copy of itself.
        """
        length, memory_length = self.lengths
        neighbors = memory_tokens = None
        if memory is not None:
            neighbors = memory.search(rows.texts[:], self.num_memories, exclude_duplicates)
            if self.with_memory_texts and self.encoded_memory is None:
                memory_tokens = self.tokenise_now(neighbors.memories, memory_length)
        return TextSplit(rows, self.tokenise_now(rows, length), neighbors, memory_tokens)

    def batches_of(
        self, texts: Sequence[str], length: int, batch_size: int
    ) -> Iterator[tuple[NDArray[np.int64], TextBatch]]:
        """Texts that come now, in batches of like length, for an encoder; those without a word are left out.

        Args:
            texts: n texts.
            length: tokens kept of each.
            batch_size: how many make a batch.

        Yields:
            Row numbers, and these texts.
        """
        tokens = self.tokenise_now(Rows.from_lists(texts, source="texts to encode"), length)
        lengths = np.minimum(np.diff(tokens.offsets), length)
        full = np.flatnonzero(lengths)
        with self.forgetting_words():
            table = self.words.add(tokens)
            for places in LengthBucketSampler(lengths[full], batch_size, training=False):
                rows = full[places]
                gathered = gather([TextGroup(table, rows, length)])
                parts = (gathered.word, gathered.char, gathered.texts[0])
                yield rows, TextBatch(*map(torch.from_numpy, parts))

    @override
    def texts_to_encode(self, split: TextSplit) -> list[tuple[TokenStore, int]]:
        # What is kept beside the memory is not encoded again.
        texts = self.texts_of(split)
        return texts if self.encoded_memory is None else texts[:1]

    @override
    def texts_of(self, split: TextSplit) -> list[tuple[TokenStore, int]]:
        length, memory_length = self.lengths
        memories = [] if split.memory_tokens is None else [(split.memory_tokens, memory_length)]
        return [(split.tokens, length), *memories]


class TextReader:
    """Puts what batches say of texts and memories together; part of a data set."""

    def __init__(self, data: TextRowsDataModule, split: TextSplit) -> None:
        """Bind a split to the vocabulary in use; the split's words are added to its table."""
        self.split = split
        self.max_length, self.memory_max_length = data.lengths
        self.with_strings, self.with_memory_texts = data.with_strings, data.with_memory_texts
        self.is_copy = None if split.copies is None else split.copies.is_copy
        self.texts: TokenTable = data.words.add(split.tokens)
        # Vectors of a memory, and the row of each of `split.neighbors.memories` among them.
        self.memory_vectors: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None
        if split.neighbors is not None and data.encoded_memory is not None:
            rows = data.encoded_memory.rows_of(split.neighbors.memories.texts)
            assert (rows >= 0).all(), "the memories were found elsewhere"
            self.memory_vectors = data.encoded_memory.vectors, rows
        self.memories: TokenTable | None = None
        if split.memory_tokens is not None and self.with_memory_texts and self.memory_vectors is None:
            self.memories = data.words.add(split.memory_tokens)
        self.encodings: Encodings | None = data.encodings_of(split.tokens, self.max_length)
        self.memory_encodings = data.encodings_of(split.memory_tokens, self.memory_max_length)
        if split.neighbors is not None:
            # Rows of equal text share one encoding: each stands for its first; row -1 stays -1.
            self.distinct_memory = np.append(first_of_equal_texts(split.neighbors.memories), -1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words of each text [n], as kept."""
        lengths: NDArray[np.int64] = np.minimum(np.diff(self.split.tokens.offsets), self.max_length)
        return lengths

    def read(self, indices: Sequence[int]) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """The fields of a batch that say what its texts and memories are.

        Args:
            indices: B row numbers; ~i (negative) is row i as padding, with weight 0.

        Returns:
            The fields, as `ClassificationBatch` has them; and int64 [B, K], each memory's row in
            `split.neighbors.memories`, -1 where there is none.
        """
        given = np.asarray(indices, dtype=np.int64)
        row = np.where(given < 0, ~given, given)
        neighbors = self.split.neighbors
        if neighbors is None:
            memories = np.zeros((len(row), 0), np.int64)
            scores = np.zeros((len(row), 0), np.float32)
            distinct, memory = np.zeros(0, np.int64), memories
        else:
            memories = np.asarray(neighbors.rows[row], dtype=np.int64)
            scores = np.asarray(neighbors.scores[row])
            distinct, memory = distinct_rows(self.distinct_memory[memories])
        fields: dict[str, Any] = self._words(row, distinct)
        arrays = {
            "memory": memory,
            "memory_mask": memories >= 0,
            "memory_score": scores,
            "weight": (given >= 0).astype(np.float32),
            "row": row,
        }
        fields |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.is_copy is not None:
            fields["is_copy"] = torch.from_numpy(self.is_copy[row])
        if self.with_strings:
            texts = self.split.rows.texts
            fields["text_string"] = texts.take(row)
            if neighbors is not None and self.with_memory_texts:
                fields["memory_string"] = neighbors.memories.texts.take(distinct)
        return fields, memories

    def _words(self, rows: NDArray[np.int64], memories: NDArray[np.int64]) -> dict[str, Any]:
        """What the texts and the distinct memories say: words, or where these were encoded before, vectors."""
        vectors = self._vectors_of_memories(memories)
        if self.encodings is not None:
            return {
                "word": torch.zeros(1, dtype=torch.int64),
                "char": torch.zeros(1, 0, dtype=torch.int64),
                "text": torch.zeros(len(rows), 1, dtype=torch.int64),
                "memory_text": torch.zeros(len(memories), 1, dtype=torch.int64),
                "text_vector": self.encodings.of(rows),
                "memory_vector": torch.zeros(0, 1) if vectors is None else vectors,
            }
        groups = [TextGroup(self.texts, rows, self.max_length)]
        if self.memories is not None:
            groups.append(TextGroup(self.memories, memories, self.memory_max_length))
        gathered = gather(groups)
        memory_text = gathered.texts[1] if len(groups) > 1 else np.zeros((len(memories), 1), np.int64)
        return {
            "word": torch.from_numpy(gathered.word),
            "char": torch.from_numpy(gathered.char),
            "text": torch.from_numpy(gathered.texts[0]),
            "memory_text": torch.from_numpy(memory_text),
            "memory_vector": vectors,
        }

    def _vectors_of_memories(self, memories: NDArray[np.int64]) -> Tensor | None:
        """[M, l] of rows of `split.neighbors.memories`, where they were encoded before."""
        if self.memory_vectors is not None:
            vectors, rows = self.memory_vectors
            return torch.from_numpy(vectors[rows[memories]])
        return None if self.memory_encodings is None else self.memory_encodings.of(memories)


def first_of_equal_texts(rows: Rows) -> NDArray[np.int64]:
    """For each row the first row with the same text [n]."""
    codes = np.concatenate(
        [chunk.indices.to_numpy() for chunk in rows.table.column("text").dictionary_encode().chunks]
        or [np.empty(0, np.int64)]
    )
    _, first = np.unique(codes, return_index=True)
    same: NDArray[np.int64] = first[codes]
    return same
