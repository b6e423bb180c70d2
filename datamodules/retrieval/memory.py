"""A memory: texts with labels that a model can retrieve, and the index that finds them.

A memory is a thing of its own. It may hold the training rows, another corpus, or an Elasticsearch index
that was there before us; it has a version, so that it can grow while a trained model keeps its weights.
Models never see a memory: they see what was retrieved, through the batch.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from datamodules.corpora.table import Rows
from datamodules.errors import InputError
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.elasticsearch import Document, ElasticsearchRetriever
from datamodules.retrieval.embedded import EmbeddedRetriever
from datamodules.retrieval.folding import fold_hashes
from datamodules.storage import check_folder, fingerprint_of, is_whole, lock, new_folder

POINTER = "memory.json"


class Neighbors(NamedTuple):
    """What a memory returns for n texts: the best k memories of each, best first."""

    #: int32 [n, k]: rows of `memories`, -1 where there are fewer than k.
    rows: NDArray[np.int32]
    #: float32 [n, k]: retrieval scores, 0 where there is no memory.
    scores: NDArray[np.float32]
    #: the distinct memories that were retrieved, with their texts and labels.
    memories: Rows


class Memory(ABC):
    """Texts with labels, searchable."""

    #: identifies the rows and the ranking: equal fingerprints give equal neighbours.
    fingerprint: str
    retriever: Retriever

    @abstractmethod
    def search(self, texts: Sequence[str], k: int, leave_out_copies: bool = False) -> Neighbors:
        """The k best memories of each text.

        Args:
            texts: n query texts.
            k: memories a text at most.
            leave_out_copies: a text gets neither itself nor an exact copy of itself (case and white space
                folded). On for training texts, whose own labels must not leak through the memory.
        """

    @abstractmethod
    def labels(self) -> list[str]:
        """The distinct labels of the memory, sorted; empty if it has none."""

    @abstractmethod
    def location(self) -> str:
        """Where `open_memory` finds it again: a folder, or `index:NAME`. Holds no secret."""


class FolderMemory(Memory):
    """A memory whose rows lie in a local folder; their index lies beside them or in Elasticsearch.

    The folder holds one sub-folder a version (`rows-<n>`: rows, hashes, manifest) and `memory.json`, which
    points to the current version. Versions are never changed once written.
    """

    def __init__(self, folder: Path, retriever: Retriever, version: int | None = None) -> None:
        """Open a memory.

        Args:
            folder: what `build` made.
            retriever: the back end with the ranking that the memory was built with.
            version: None opens the current one.

        Raises:
            InputError: there is no memory, it is damaged, or its ranking is another.
        """
        pointer = read_pointer(folder)
        self.folder = folder
        self.retriever = retriever
        self.version = int(pointer["version"] if version is None else version)
        rows_folder = folder / f"rows-{self.version}"
        if not rows_folder.exists():
            raise InputError(
                f"{folder}: has no version {self.version}; the current one is {pointer['version']}"
            )
        manifest = check_folder(rows_folder)
        self.rows = Rows.load(rows_folder / "rows.arrow")
        self.fingerprint = fingerprint_of({"rows": manifest["fingerprint"], **retriever.ranking.describe()})
        self._hashes: NDArray[np.uint64] = np.load(rows_folder / "hashes.npy", mmap_mode="r")
        self._hash_order: NDArray[np.int32] = np.load(rows_folder / "hash_order.npy", mmap_mode="r")
        retriever.open(self._index_folder(), self.fingerprint)

    @classmethod
    def build(cls, rows: Rows, retriever: Retriever, folder: Path, progress: bool = True) -> FolderMemory:
        """Write the rows, index them and open the memory. What is there already is used, not built again.

        Args:
            rows: the memories.
            retriever: an unopened retriever: back end and ranking.
            folder: the memory's own folder.
            progress: show progress on standard error.
        """
        if len(rows) == 0:
            raise InputError(f"{rows.source}: a memory needs at least one row")
        _check_ids(rows)
        with lock(folder):
            rows_folder = folder / "rows-1"
            if not is_whole(rows_folder, rows.fingerprint):
                with new_folder(rows_folder, rows.fingerprint, rows=len(rows)) as partial:
                    rows.save(partial / "rows.arrow")
                    hashes = fold_hashes(rows.texts)
                    order = np.argsort(hashes, kind="stable").astype(np.int32)
                    np.save(partial / "hashes.npy", hashes[order])
                    np.save(partial / "hash_order.npy", order)
            fingerprint = fingerprint_of({"rows": rows.fingerprint, **retriever.ranking.describe()})
            index_folder = folder / f"index-{fingerprint[:16]}"
            # Not built again: another process may have it open.
            if not is_whole(index_folder, fingerprint):
                labels = rows.table.column("label").to_pylist()
                retriever.index(rows.texts, index_folder, fingerprint, progress, ids=rows.ids, labels=labels)
            # A memory that has grown since stays grown; whoever builds gets the rows that he gave.
            version = read_pointer(folder)["version"] if (folder / POINTER).exists() else 1
            write_pointer(folder, {"version": version, "retriever": retriever.describe()})
        return cls(folder, retriever, version=1)

    def __len__(self) -> int:
        return len(self.rows)

    def _index_folder(self) -> Path:
        return self.folder / f"index-{self.fingerprint[:16]}"

    def labels(self) -> list[str]:
        """The distinct labels, sorted; empty if the memory has none."""
        return self.rows.distinct_labels()

    def location(self) -> str:
        """What `open_memory` opens; holds no secret."""
        return str(self.folder)

    def copies(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The rows that are exact copies of each text, case and white space folded."""
        wanted = fold_hashes(texts)
        first = np.searchsorted(self._hashes, wanted, side="left")
        last = np.searchsorted(self._hashes, wanted, side="right")
        return [self._hash_order[a:b] for a, b in zip(first, last, strict=True)]

    def search(self, texts: Sequence[str], k: int, leave_out_copies: bool = False) -> Neighbors:
        """The k best memories of each text; see `Memory.search`."""
        exclude: Sequence[Any] | None = self.copies(texts) if leave_out_copies else None
        hits = self.retriever.search(texts, k, exclude)
        # Keep what was found, numbered from 0, so that the result needs no more of the memory.
        found, inverse = np.unique(hits.rows, return_inverse=True)
        start = int(found.size > 0 and found[0] == -1)
        return Neighbors(
            rows=(inverse.reshape(hits.rows.shape) - start).astype(np.int32),
            scores=hits.scores,
            memories=self.rows.select(found[start:]),
        )


class IndexMemory(Memory):
    """A memory that is an Elasticsearch index of the user's; nothing is written to it."""

    retriever: ElasticsearchRetriever

    def __init__(self, retriever: ElasticsearchRetriever) -> None:
        if retriever.existing_index is None:
            raise InputError("data.retriever: name the index that is the memory (--data.retriever.index)")
        self.retriever = retriever
        self.fingerprint = fingerprint_of({**retriever.ranking.describe(), **retriever.describe_index()})

    def labels(self) -> list[str]:
        """The distinct labels, sorted; empty if the memory has none."""
        return self.retriever.distinct_labels()

    def location(self) -> str:
        """What `open_memory` opens; holds no secret."""
        return f"index:{self.retriever.existing_index}"

    def search(self, texts: Sequence[str], k: int, leave_out_copies: bool = False) -> Neighbors:
        """The k best memories of each text; see `Memory.search`."""
        documents = self.retriever.search_documents(texts, k, leave_out_copies=leave_out_copies)
        rows = np.full((len(texts), k), -1, np.int32)
        scores = np.zeros((len(texts), k), np.float32)
        position: dict[str, int] = {}
        found: list[Document] = []
        for query, hits in enumerate(documents):
            for rank, hit in enumerate(hits):
                if hit.id not in position:
                    position[hit.id] = len(found)
                    found.append(hit)
                rows[query, rank] = position[hit.id]
                scores[query, rank] = hit.score
        memories = Rows.from_lists(
            texts=[hit.text for hit in found],
            labels=[hit.label for hit in found],
            ids=[hit.id for hit in found],
            source=self.location(),
        )
        return Neighbors(rows, scores, memories)


def _check_ids(rows: Rows) -> None:
    """Neighbours are told apart by their ids."""
    counts = pc.value_counts(rows.table.column("id"))
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise InputError(
            f"{rows.source}: the id {repeated[0]['values'].as_py()!r} stands for"
            f" {repeated[0]['counts'].as_py()} rows; give each row of a memory its own, or name no id column"
        )


def read_pointer(folder: Path) -> dict[str, Any]:
    """The contents of a memory folder's `memory.json`.

    Raises:
        InputError: the folder is no memory.
    """
    path = folder / POINTER
    if not path.exists():
        raise InputError(
            f"{folder}: no memory here (it has no {POINTER}); build one with `zoo index` or name another"
            " with --data.memory"
        )
    try:
        pointer: dict[str, Any] = json.loads(path.read_text())
        int(pointer["version"])
        pointer["retriever"]["class_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged; build the memory again with `zoo index`") from error
    return pointer


def write_pointer(folder: Path, pointer: dict[str, Any]) -> None:
    """Switch the memory to a version in one atomic step."""
    partial = folder / f".{POINTER}.{os.getpid()}"
    with partial.open("w") as file:
        json.dump(pointer, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / POINTER)


def is_existing_index(retriever: Retriever) -> TypeGuard[ElasticsearchRetriever]:
    """True for a retriever that reads an Elasticsearch index of the user's."""
    return isinstance(retriever, ElasticsearchRetriever) and retriever.existing_index is not None


def open_memory(location: str, retriever: Retriever | None = None) -> Memory:
    """The memory at a location that `Memory.location` gave, or at a folder.

    Args:
        location: a folder that `FolderMemory.build` made, or `index:NAME`.
        retriever: back end and ranking; None takes those that the folder was built with.

    Raises:
        InputError: nothing there, or built with another ranking than the retriever's.
    """
    if location.startswith("index:"):
        if retriever is None or not is_existing_index(retriever):
            raise InputError(
                f"{location}: needs --data.retriever ElasticsearchRetriever with --data.retriever.index"
            )
        return IndexMemory(retriever)
    folder = Path(location)
    built_with = make_retriever(read_pointer(folder)["retriever"])
    if retriever is None:
        retriever = built_with
    elif retriever.ranking.describe() != built_with.ranking.describe():
        raise InputError(
            f"{folder}: the memory was built for {built_with.ranking.describe()}, but the retriever is set to"
            f" {retriever.ranking.describe()}; make them equal or build another memory with `zoo index`"
        )
    return FolderMemory(folder, retriever)


def make_retriever(description: Mapping[str, Any]) -> Retriever:
    """The retriever that `Retriever.describe` described."""
    classes = {made.__name__: made for made in (EmbeddedRetriever, ElasticsearchRetriever)}
    name = str(description["class_path"]).rpartition(".")[2]
    retriever: Retriever = classes[name](**description["init_args"])
    return retriever
