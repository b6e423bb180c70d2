"""The ranking of dense retrieval: an encoder, its options, and the identity of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from datamodules.core.errors import InputError, reason
from datamodules.core.types import PlainDict
from datamodules.text.pooling import Pooling

#: The score of an opposite direction: above 0, because 0 means no hit and models take logarithms.
LEAST_SCORE = 1e-6

_ENCODER_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


@dataclass(frozen=True)
class DenseRanking:
    """Texts ranked by the cosine of their vectors and the query's; see `DenseRetriever`."""

    encoder: str
    pooling: Pooling = "mean"
    max_length: int = 256
    #: texts that an approximate search compares with a query; None compares all.
    num_candidates: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise InputError(f"pooling {self.pooling!r}: use mean or cls")
        if self.max_length < 3:
            raise InputError(f"max_length={self.max_length}: use 3 or more, the special tokens count")

    def describe(self) -> PlainDict:
        """Return plain values that depend on the encoder's weights, not on its location; see `AnyRanking`."""
        described: PlainDict = {"similarity": "dense", "encoder": self.contents}
        if not Path(self.encoder).is_file():
            described |= {"pooling": self.pooling, "max_length": self.max_length}
        if self.num_candidates is not None:
            described["num_candidates"] = self.num_candidates
        return described

    @cached_property
    def contents(self) -> str:
        """A hash of the encoder's files, or the Hub's name and revision."""
        if self.revision is not None:
            return f"{self.encoder}@{self.revision}"
        path = Path(self.encoder)
        if path.is_file():
            files = {"": path}  # its name does not count
        else:
            files = {file.name: file for file in sorted(path.iterdir()) if file.suffix in _ENCODER_FILES}
        digest = sha256()
        for name, file in files.items():
            digest.update(name.encode())
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        return f"sha256:{digest.hexdigest()}"

    def has_changed(self) -> bool:
        """Return whether the encoder's files have changed since `contents` was first read."""
        return Path(self.encoder).exists() and replace(self).contents != self.contents

    @cached_property
    def revision(self) -> str | None:
        """The commit of an encoder of the Hub, the downloaded one if there is one; None for files."""
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
        except Exception as error:  # the network, the name and the cache raise different exceptions
            raise unreadable(self.encoder, error) from error
        return Path(config).parent.name


def unreadable(encoder: str, error: Exception) -> InputError:
    """Return the error for an encoder that can't be loaded."""
    return InputError(
        f"encoder {encoder!r}: use the name or folder of a transformers encoder, or a checkpoint of this zoo"
        f" (transformers: {reason(error)})"
    )
