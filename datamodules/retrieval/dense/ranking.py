"""The ranking of dense retrieval: an encoder, its options, and the identity of its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from datamodules.core.errors import InputError, reason
from datamodules.core.sharing import cached_property
from datamodules.core.storage import checksum_of, fingerprint_of
from datamodules.core.types import PlainDict, check_fields
from datamodules.text.sentence_modules import MODULES, Pooling, SentenceModules

#: The score of an opposite direction: above 0, because 0 means no hit and models take logarithms.
LEAST_SCORE = 1e-6

Quantization: TypeAlias = Literal["int8", "bbq"]
#: Quantization -> texts of each shard that are scored exactly for each hit, which find 99 % of the nearest ones.
OVERSAMPLE: dict[Quantization, int] = {"int8": 4, "bbq": 8}

#: Files of a trained model of the zoo, see `zoo.model_folder`: those that its vectors depend on.
_MODEL_FILES = ("model.json", "vocabulary.json", "model.safetensors", "manifest.json")
_ENCODER_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


@dataclass(frozen=True)
class DenseRanking:
    """Texts ranked by the cosine of their vectors and the query's; see `DenseRetriever`."""

    encoder: str
    #: None = as published; so are the prompts.
    pooling: Pooling | None = None
    max_length: int = 256
    #: texts that an approximate search compares with a query; None compares all.
    num_candidates: int | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    #: coarse vectors of the first pass over the texts; None = exact ones.
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, str):
            raise InputError(f"encoder {self.encoder!r}: give the name of an encoder")
        if self.max_length < 3:
            raise InputError(f"max_length={self.max_length}: use 3 or more, the special tokens count")
        check_fields(self)

    def describe(self) -> PlainDict:
        """Return plain values that depend on the encoder's weights, not on its location."""
        described: PlainDict = {"similarity": "dense", **self.describe_vectors()}
        if self.num_candidates is not None:
            described["num_candidates"] = self.num_candidates
        if self.quantization is not None:
            described |= {"quantization": self.quantization, "oversample": OVERSAMPLE[self.quantization]}
        return described

    def describe_vectors(self) -> PlainDict:
        """Return plain values that change whenever the vectors of documents could."""
        described: PlainDict = {"encoder": self.contents}
        if trained_model(self.encoder) is None:
            described |= {"pooling": self.published.pooling, "max_length": self.max_length}
            if self.published.document_prompt:
                described["document_prompt"] = self.published.document_prompt
        return described

    @property
    def vectors_fingerprint(self) -> str:
        """Fingerprint of the encoder and of the options that change the vectors of documents."""
        return fingerprint_of(self.describe_vectors())

    @cached_property
    def published(self) -> SentenceModules:
        """The modules of an encoder that is no trained model of this zoo, with the options of this ranking."""
        options = {name: getattr(self, name) for name in ("pooling", "query_prompt", "document_prompt")}
        chosen = {name: value for name, value in options.items() if value is not None}
        return SentenceModules.read(self.encoder, self.revision)._replace(**chosen)

    @cached_property
    def contents(self) -> str:
        """A hash of the encoder's files, or the Hub's name and revision."""
        if self.revision is not None:
            return f"{self.encoder}@{self.revision}"
        files = files_of_encoder(self.encoder)
        return f"sha256:{fingerprint_of({name: checksum_of(file) for name, file in files.items()})}"

    def has_changed(self) -> bool:
        """Return whether the encoder's files have changed since `contents` was first read."""
        return Path(self.encoder).exists() and replace(self).contents != self.contents

    @cached_property
    def revision(self) -> str | None:
        """The commit of an encoder of the Hub, the downloaded one if there is one; None for files."""
        if (path := Path(self.encoder)).is_dir():
            return None
        if path.is_file() or path.suffix == ".ckpt":
            advice = "name a run folder, a model folder, or a transformers encoder"
            raise InputError(f"encoder {self.encoder!r}: not a folder; {advice}")
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError

        try:
            files = (try_to_load_from_cache(self.encoder, file) for file in ("config.json", MODULES))
            file = next((file for file in files if isinstance(file, str)), None)
            try:
                file = file or hf_hub_download(self.encoder, "config.json")
            except EntryNotFoundError:  # a static encoder has no configuration of a transformer
                file = hf_hub_download(self.encoder, MODULES)
        except Exception as error:  # the network, the name and the cache raise different exceptions
            raise unreadable(self.encoder, error) from error
        return Path(file).parent.name


def trained_model(encoder: str) -> Path | None:
    """Return the folder of the trained model that a name stands for: itself, or the one of a run; None for others."""
    path = Path(encoder)
    return next((folder for folder in (path, path / "model") if (folder / _MODEL_FILES[0]).is_file()), None)


def files_of_encoder(encoder: str) -> dict[str, Path]:
    """Return the files of an encoder in a folder by their relative names: all that its vectors depend on."""
    if (model := trained_model(encoder)) is not None:
        tokenizer = [file for file in sorted((model / "tokenizer").rglob("*")) if file.is_file()]
        files = [*(model / name for name in _MODEL_FILES), *tokenizer]
        return {str(file.relative_to(model)): file for file in files}
    path, published = Path(encoder), SentenceModules.read(encoder)
    modules = [published.folder, *(layer.folder for layer in published.dense)]
    return {
        str(file.relative_to(path)): file
        for folder in [path, *(path / folder for folder in modules if folder)]
        for file in sorted(folder.glob("*"))
        if file.suffix in _ENCODER_FILES
    }


def unreadable(encoder: str, error: Exception) -> InputError:
    """Return the error for an encoder that can't be loaded."""
    advice = "use the name or folder of a transformers encoder, or the folder of a model of this zoo"
    return InputError(f"encoder {encoder!r}: {advice} (transformers: {reason(error)})")
