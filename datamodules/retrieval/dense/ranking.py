"""Ranking by meaning: which encoder makes vectors of texts, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from datamodules.core.errors import InputError

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


def _update(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)


def unreadable(encoder: str, error: Exception) -> InputError:
    """What to say of an encoder that can't be loaded."""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return InputError(
        f"encoder {encoder!r}: use the name or folder of a transformers encoder, or a checkpoint of this zoo"
        f" (transformers said: {reason})"
    )
