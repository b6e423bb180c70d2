"""Ranking by meaning: which encoder makes vectors of texts, and when it is loaded.

PyTorch is imported with the encoder and not before: lexical retrieval does without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.errors import InputError

if TYPE_CHECKING:
    from datamodules.retrieval.encoder import TextEncoder

Pooling: TypeAlias = Literal["mean", "cls"]

#: The score of an opposite direction: above 0, because 0 means no hit and models take logarithms.
LEAST_SCORE = 1e-6


@dataclass(frozen=True)
class DenseRanking:
    """Texts ranked by the cosine of their vectors and the query's: the score is (1 + cos) / 2.

    Attributes:
        encoder: what makes vectors of texts: a `transformers` encoder, by its name on the Hub or its folder,
            or a checkpoint of this zoo.
        pooling: a text's vector is the `mean` of its tokens' last states, or that of the first (`cls`). A
            checkpoint has a way of its own.
        max_length: tokens kept of a text; fewer if the encoder can't read as many. A checkpoint keeps as many
            as in its training.
        num_candidates: texts that an approximate search compares with a query; None compares all.
    """

    encoder: str
    pooling: Pooling = "mean"
    max_length: int = 256
    num_candidates: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise InputError(f"pooling {self.pooling!r}: use mean or cls")
        if self.max_length < 3:
            raise InputError(f"max_length={self.max_length}: use 3 or more, the special tokens count")

    def describe(self) -> dict[str, Any]:
        """Plain values that change whenever the ranking could: the encoder's weights, not its place."""
        described: dict[str, Any] = {"similarity": "dense", "encoder": self._contents}
        if not Path(self.encoder).is_file():
            described |= {"pooling": self.pooling, "max_length": self.max_length}
        if self.num_candidates is not None:
            described["num_candidates"] = self.num_candidates
        return described

    @cached_property
    def _contents(self) -> str:
        """Identifies the encoder: a hash of the file or the files of a folder, or the Hub's name and revision."""
        if self.revision is not None:
            return f"{self.encoder}@{self.revision}"
        path = Path(self.encoder)
        digest = sha256()
        if path.is_file():
            _update(digest, path)
        else:
            for one in sorted(path.iterdir()):
                if one.suffix in (".json", ".txt", ".model", ".safetensors", ".bin"):
                    digest.update(one.name.encode())
                    _update(digest, one)
        return f"sha256:{digest.hexdigest()}"

    @cached_property
    def revision(self) -> str | None:
        """The commit of an encoder of the Hub; None for files.

        It is the one that was downloaded before, if there is one: no question to the network at each start,
        and no other ranking because someone has uploaded something.
        """
        path = Path(self.encoder)
        if path.exists():
            return None
        if path.suffix == ".ckpt":
            raise InputError(f"encoder {self.encoder!r}: there is no such checkpoint")
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        try:
            config = try_to_load_from_cache(self.encoder, "config.json")
            if not isinstance(config, str):
                config = hf_hub_download(self.encoder, "config.json")
        except Exception as error:  # The network, the name and the cache fail in their own ways.
            raise unreadable(self.encoder, error) from error
        return Path(config).parent.name


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
        from datamodules.retrieval.encoder import inference

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
            from datamodules.retrieval.encoder import load_encoder

            self._encoder = load_encoder(self.ranking, self.device)
        return self._encoder


def unreadable(encoder: str, error: Exception) -> InputError:
    """What to say of an encoder that can't be loaded."""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return InputError(
        f"encoder {encoder!r}: use the name or folder of a transformers encoder, or a checkpoint of this zoo"
        f" (transformers said: {reason})"
    )


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each text [n], the same on every machine."""
    digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _update(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
