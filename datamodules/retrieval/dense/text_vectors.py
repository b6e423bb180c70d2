"""Texts as vectors: blocks of them, copies once, by an encoder that is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.embeddings import Embeddings
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_encoder import TextEncoder, inference, load_encoder


class TextVectors:
    """Turns texts into vectors, with an encoder that is loaded when it is needed.

    Args:
        ranking: names the encoder.
        batch_size: texts encoded at once.
        device: where the encoder runs, such as `cpu` or `cuda:1`; None takes a GPU if there is one.
        threads: of the encoder on a CPU; None leaves torch's setting.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(
        self, ranking: DenseRanking, batch_size: int, device: str | None, threads: int | None
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: use 1 or more")
        if threads is not None and threads < 1:
            raise InputError(f"threads={threads}: use 1 or more, or null")
        self.ranking = ranking
        self.batch_size = batch_size
        self.device = device
        self.threads = threads
        self._encoder: TextEncoder | None = None
        self._known: Embeddings | None = None

    def describe(self) -> dict[str, Any]:
        """The arguments of a retriever that make this again."""
        return {
            "encoder": self.ranking.encoder,
            "pooling": self.ranking.pooling,
            "batch_size": self.batch_size,
            "max_length": self.ranking.max_length,
            "device": self.device,
            "threads": self.threads,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoder": None, "_known": None}

    def use(self, known: Embeddings) -> None:
        """Take the vectors of texts that were encoded before, in place of encoding them again.

        Raises:
            InputError: another encoder made them, or they are of queries.
        """
        made_by, encoder = known.made_by, self.ranking.encoder
        if made_by.side == "query":
            raise InputError(
                f"{known.folder}: embeddings of queries; what is searched is encoded with --side document"
            )
        if self.ranking.describe()["encoder"] != made_by.contents:
            size = self._loaded().size
            differ = (
                f"holds vectors of {known.size} numbers, but the encoder {encoder} makes {size}"
                if size != known.size
                else f"was not made by the encoder {encoder}"
            )
            raise InputError(f"{known.folder}: {differ}; encode the table with it, or name {made_by.encoder}")
        self._known = known

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return self._loaded().size if self._known is None else self._known.size

    @property
    def has_query_side(self) -> bool:
        """Whether a text has another vector as a query than as a text of the collection."""
        return Path(self.ranking.encoder).is_file() and self._loaded().query_encoder is not None

    @property
    def loaded(self) -> bool:
        """Whether the encoder takes up memory."""
        return self._encoder is not None

    def check_size(self, made: int, there: int, index: str) -> None:
        """Refuse to compare vectors of different sizes.

        Args:
            made: numbers in the vectors of queries.
            there: numbers in those of an index.
            index: what messages call it.

        Raises:
            InputError: they differ.
        """
        if made != there:
            raise InputError(
                f"{index} holds vectors of {there} numbers, but the encoder {self.ranking.encoder} makes {made};"
                " build the index again with `zoo index`, or name the encoder that it was built with"
            )

    def close(self) -> None:
        """Give back the encoder's memory; it is loaded again when it is needed."""
        self._encoder = self._known = None

    def of(self, texts: Sequence[str], block: int, queries: bool = False) -> NDArray[np.float32]:
        """The vectors of at least one text [n, d]; copies are encoded once. Shows progress if it takes long.

        Args:
            texts: n texts.
            block: texts of one round of tokenisation.
            queries: whether they are queries, which some models encode in a way of their own.
        """
        number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
        encoded = np.concatenate(
            list(self.blocks(list(number), block, progress=True, delay=5, queries=queries))
        )
        vectors: NDArray[np.float32] = encoded[[number[text] for text in texts]]
        return vectors

    def blocks(
        self, texts: Sequence[str], block: int, progress: bool, delay: float, queries: bool = False
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the vectors of the texts, float32 [at most `block`, d] at a time.

        A vector has length 1; that of a text without tokens is 0.
        """
        with tqdm(
            total=len(texts), desc="encode", unit="text", delay=delay, disable=None if progress else True
        ) as bar:
            for first in range(0, len(texts), block):
                with inference(self.threads):
                    vectors = self._block(list(texts[first : first + block]), queries, bar)
                yield vectors

    def _block(self, texts: list[str], queries: bool, bar: tqdm[Any]) -> NDArray[np.float32]:
        """The vectors [n, d] of some texts; what is known is not encoded."""
        if queries and self.has_query_side:
            encode = self._loaded().query_encoder
            assert encode is not None
            return encode(texts, self.batch_size, bar)
        if self._known is None:
            return self._loaded()(texts, self.batch_size, bar)
        rows = self._known.rows_of(texts)
        vectors = np.empty((len(texts), self.size), np.float32)
        vectors[rows >= 0] = self._known.vectors[rows[rows >= 0]]
        bar.update(int((rows >= 0).sum()))
        if unknown := [texts[place] for place in np.flatnonzero(rows < 0).tolist()]:
            vectors[rows < 0] = self._loaded()(unknown, self.batch_size, bar)
        return vectors

    def _loaded(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = load_encoder(self.ranking, self.device)
        return self._encoder
