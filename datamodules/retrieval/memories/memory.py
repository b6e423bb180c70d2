"""A memory: texts with labels that a model can retrieve, and the index that finds them.

A memory is a thing of its own. It may hold the training rows, another corpus, or an Elasticsearch index
that was there before us; it has a version, so that it can grow while a trained model keeps its weights.
Models never see a memory: they see what was retrieved, through the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.folding import fold_hashes

UnknownLabels: TypeAlias = Literal["refuse", "skip"]


class Neighbors(NamedTuple):
    """What a memory returns for n texts: the best k memories of each, best first."""

    #: int32 [n, k]: rows of `memories`, -1 where there are fewer than k.
    rows: NDArray[np.int32]
    #: float32 [n, k]: retrieval scores, 0 where there is no memory.
    scores: NDArray[np.float32]
    #: the distinct memories that were retrieved, with their texts and labels.
    memories: Rows


class Addition(NamedTuple):
    """What `Memory.add` did with the rows that it got."""

    #: the memory's version now; without a new row it is the old one.
    version: int
    #: rows of the memory now.
    rows: int
    #: new rows.
    added: int
    #: rows left out because the memory has a copy of the text with the same label.
    copies: int
    #: of the new rows, those whose text the memory has with another label.
    relabelled: int
    #: rows left out because their label is not among those asked for.
    unknown: int


class Memory(ABC):
    """Texts with labels, searchable."""

    #: identifies the rows and the ranking: equal fingerprints give equal neighbours.
    fingerprint: str
    retriever: Retriever

    @abstractmethod
    def search(
        self,
        texts: Sequence[str],
        k: int,
        leave_out_copies: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        """The k best memories of each text.

        Args:
            texts: n query texts.
            k: memories a text at most.
            leave_out_copies: a text gets neither itself nor a copy of itself (see
                `datamodules.retrieval.folding`). On for training texts, whose own labels must not leak through
                the memory.
            own_ids: where the texts are rows of the table that the memory was made of, their ids: a text's own row
                and copies of it are then left out as well, even if the memory has other columns of them.
        """

    def holds(self, texts: Rows, same_table: bool, found: Neighbors) -> NDArray[np.bool_]:
        """Whether a copy of each text is in the memory, bool [n].

        This version looks at what was found: a copy has all of a text's words, so it is among the best.

        Args:
            texts: n texts.
            same_table: they are rows of the table that the memory was made of: equal ids are the same row.
            found: their memories.
        """
        del same_table  # an index of the user's is made of no table that we know
        hashes = np.append(fold_hashes(found.memories.texts), np.uint64(0))
        is_copy = hashes[found.rows] == fold_hashes(texts.texts)[:, None]
        held: NDArray[np.bool_] = (is_copy & (found.rows >= 0)).any(axis=1)
        return held

    @abstractmethod
    def add(
        self,
        rows: Rows,
        labels: Sequence[str] | None = None,
        unknown_labels: UnknownLabels = "refuse",
        keep_ids: bool = False,
        progress: bool = True,
    ) -> Addition:
        """Grow: searches find the new rows at once, and a model that uses the memory needs no training.

        A copy of a row that is there (or earlier in `rows`), with its label, is left out: it would take a
        neighbour's place and say nothing new. A copy with another label is kept beside the old row: people
        do disagree, and a model should see that they do.

        Args:
            rows: labelled if the memory is, without labels otherwise.
            labels: the labels that may be added, such as those that a model knows; None = any.
            unknown_labels: `refuse` all rows if a label is not among them, or `skip` those rows.
            keep_ids: keep the ids of `rows`. Otherwise a row is called VERSION:POSITION, so that 2:0 is the
                first row that was given to the addition that made version 2.
            progress: show progress on standard error.

        Raises:
            InputError: no rows, one without or with a label too many, an unknown label, an id that is taken,
                or a memory that is not ours to write to. The memory stays as it was.
        """

    def check_unchanged(self) -> None:
        """Refuse what was found so far if the memory has changed meanwhile.

        Raises:
            InputError: it has; only a memory that is not ours can.
        """
        return

    @abstractmethod
    def labels(self) -> list[str]:
        """The distinct labels of the memory, sorted; empty if it has none."""

    @abstractmethod
    def location(self) -> str:
        """Where `open_memory` finds it again: a folder, or `index:NAME`. Holds no secret."""
