"""Texts as vectors: blocks of them, copies once, by an encoder that is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.errors import InputError
from datamodules.retrieval.dense_ranking import DenseRanking
from datamodules.retrieval.text_encoder import TextEncoder, inference, load_encoder


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
        return {**self.__dict__, "_encoder": None}

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return self._loaded().size

    @property
    def loaded(self) -> bool:
        """Whether the encoder takes up memory."""
        return self._encoder is not None

    def close(self) -> None:
        """Give back the encoder's memory; it is loaded again when it is needed."""
        self._encoder = None

    def of(self, texts: Sequence[str], block: int) -> NDArray[np.float32]:
        """The vectors of at least one text [n, d]; copies are encoded once. Shows progress if it takes long."""
        number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
        encoded = np.concatenate(list(self.blocks(list(number), block, progress=True, delay=5)))
        vectors: NDArray[np.float32] = encoded[[number[text] for text in texts]]
        return vectors

    def blocks(
        self, texts: list[str], block: int, progress: bool, delay: float
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the vectors of the texts, float32 [at most `block`, d] at a time.

        A vector has length 1; that of a text without tokens is 0.
        """
        encoder = self._loaded()
        with tqdm(
            total=len(texts), desc="encode", unit="text", delay=delay, disable=None if progress else True
        ) as bar:
            for first in range(0, len(texts), block):
                with inference(self.threads):
                    vectors = encoder(texts[first : first + block], self.batch_size, bar)
                yield vectors

    def _loaded(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = load_encoder(self.ranking, self.device)
        return self._encoder
