"""Vectors of texts, from an encoder that is loaded when it is first needed, and the retrievers that rank by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.progress import progress_bar
from datamodules.core.sharing import SharedLock
from datamodules.core.storage import cache_folder
from datamodules.core.types import PlainDict, Size, check_value
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.dense.embeddings import Embeddings
from datamodules.retrieval.dense.ranking import DenseRanking, trained_model
from datamodules.retrieval.dense.vector_store import EncodedTexts, VectorStore, encode_distinct, store_folder
from datamodules.text.sentence_modules import Pooling

#: The entry point of an installed package that makes a `TextEncoder` from the folder of a trained model and a device.
#: `zoo` registers its models this way, because this package imports no model.
MODEL_ENCODERS = "memory_zoo.file_encoders"
#: A bar that is updated by hand.
ProgressBar: TypeAlias = "tqdm[NoReturn]"
#: The smallest number of new texts that are stored: each edit of a memory would make a folder.
FEWEST = 64
#: The largest table whose vectors are stored: those of a larger one would fill the disk a second time.
MOST = 1 << 20


class TextEncoder(Protocol):
    """Encodes texts as vectors."""

    #: length of a vector.
    size: int
    #: True if queries have other vectors than equal texts that are searched.
    has_query_side: bool

    def __call__(
        self, texts: list[str], batch_size: int, bar: ProgressBar, queries: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors of n texts [n, size], of length 1, 0 for a text without tokens; update the bar."""


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """Load the encoder of a ranking onto a device (None: a GPU if there is one), or raise an `InputError`."""
    import torch

    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    model = trained_model(ranking.encoder)
    # Random weights are drawn before the file's are read: a later training must not depend on what was in a cache.
    with torch.random.fork_rng(devices=[]):
        if model is None:
            from datamodules.retrieval.dense.transformer_encoder import PublishedEncoder

            return PublishedEncoder(ranking, chosen)
        makers = [*entry_points(group=MODEL_ENCODERS)]
        if not makers:
            raise InputError(f"encoder {ranking.encoder!r}: a trained model, which needs the package zoo")
        return makers[0].load()(str(model), chosen)


class TextVectors:
    """The vectors of texts by the encoder of a ranking.

    A dense retriever or `zoo encode` makes one. The encoder is loaded for texts that have no vectors in the cache.
    """

    def __init__(self, ranking: DenseRanking, batch_size: int, device: str | None) -> None:
        check_value("batch_size", batch_size, Size)
        self.ranking = ranking
        self.batch_size = batch_size
        self.device = device
        # Fast tokenizers refuse a second thread.
        self._in_use = SharedLock()
        self._encoder: TextEncoder | None = None
        self._store: VectorStore | None = None
        self._embeddings: list[EncodedTexts] = []

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_encoder": None, "_store": None, "_embeddings": []}

    def use(self, embeddings: Embeddings) -> None:
        """Look up the vectors of these texts instead of encoding them; refuse those of queries or another encoder."""
        made_by, encoder = embeddings.made_by, self.ranking.encoder
        if made_by["side"] == "query":
            raise InputError(f"{embeddings.folder}: embeddings of queries; encode with --side document")
        if self.ranking.vectors_fingerprint != made_by["contents"]:
            size = self._loaded().size
            problem = f"was not made by the encoder {encoder} with these options"
            if size != embeddings.size:
                problem = f"has vectors of {embeddings.size} numbers, but the encoder {encoder} makes {size}"
            advice = f"encode the table with it, or name {made_by['encoder']}"
            raise InputError(f"{embeddings.folder}: {problem}; {advice}")
        self._embeddings = [EncodedTexts.of(embeddings.rows.texts, embeddings.vectors)]

    @property
    def size(self) -> int:
        """The length of a vector."""
        known = self._embeddings or self._stored().parts
        return int(known[0].vectors.shape[1]) if known else self._loaded().size

    @property
    def has_query_side(self) -> bool:
        """True if queries have their own encoder or prompt."""
        if trained_model(self.ranking.encoder) is not None:
            return self._loaded().has_query_side
        return self.ranking.published.query_prompt != self.ranking.published.document_prompt

    def close(self) -> None:
        """Release the encoder; it is loaded again when it is needed."""
        self._encoder = self._store = None
        self._embeddings = []

    def of(
        self, texts: Sequence[str], block: int, queries: bool = False, stores: bool = True
    ) -> NDArray[np.float32]:
        """Return the vectors of at least one text [n, d]; equal texts are encoded once; see `blocks`."""
        return encode_distinct(
            texts, lambda distinct: np.concatenate([*self.blocks(distinct, block, queries, stores)])
        )

    def blocks(
        self, texts: Sequence[str], block: int, queries: bool = False, stores: bool = True
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of texts, tokenized in blocks, float32 [at most `block`, d].

        The cache has those of tables, and gets new ones unless `stores` is False. Queries are always encoded.
        """
        import torch

        known, fewest = [] if queries else self._embeddings, len(texts) + 1
        if not queries and FEWEST <= len(texts) <= MOST:
            # Those of this table are not looked up: it would take time for each part, and the vectors would depend on
            # the blocks that one process encodes.
            known, fewest = [*known, *self._stored().parts], FEWEST if stores else fewest
        with progress_bar(total=len(texts), desc="encoding") as bar:
            for first in range(0, len(texts), block):
                with self._in_use, torch.inference_mode():
                    some = list(texts[first : first + block])
                    vectors = self._block(some, queries, known, fewest, bar)
                bar.update(first + len(some) - bar.n)  # also of those that were not encoded
                yield vectors

    def _block(
        self, texts: list[str], queries: bool, known: list[EncodedTexts], fewest: int, bar: ProgressBar
    ) -> NDArray[np.float32]:
        """Return the vectors [n, d] of some texts."""
        if queries and self.has_query_side:
            return self._loaded()(texts, self.batch_size, bar, queries=True)

        def encode(some: list[str]) -> NDArray[np.float32]:
            return self._loaded()(some, self.batch_size, bar)

        if known or fewest <= len(texts):
            return encode_distinct(texts, lambda some: self._stored().vectors(some, encode, known, fewest))
        return encode_distinct(texts, encode)

    def _stored(self) -> VectorStore:
        with self._in_use:
            if self._store is None:
                self._store = VectorStore(store_folder(cache_folder(None), self.ranking.vectors_fingerprint))
            return self._store

    def _loaded(self) -> TextEncoder:
        with self._in_use:
            if self._encoder is None:
                encoder = load_encoder(self.ranking, self.device)
                # An open index has vectors of the encoder that was there when it was opened.
                if self.ranking.has_changed():
                    problem = "its files have changed; open the index again"
                    raise InputError(f"encoder {self.ranking.encoder}: {problem}")
                self._encoder = encoder
            return self._encoder


class EncodingRetriever(Retriever):
    """A retriever that ranks by the vectors of texts; every back end has these options, and the same scores.

    Args:
        encoder: of sentence-transformers or `transformers`, by its Hub name or folder, or a checkpoint of this zoo.
        pooling: from its tokens' last states to the vector of a text, see `sentence_modules.pool`; None = as
            published, for a plain transformer `mean`. A checkpoint has its own pooling, and no prompts.
        batch_size: texts encoded at once.
        max_length: the maximum number of tokens of a text. A checkpoint has the maximum of its training.
        device: device of the encoder, such as `cpu` or `cuda:1`; None chooses a GPU if there is one.
        query_prompt: precedes each query, such as `query: ` for the E5 encoders; None = as published, "" = none.
        document_prompt: precedes each text of the collection.
    """

    ranking: DenseRanking

    def __init__(
        self,
        encoder: str,
        pooling: Pooling | None = None,
        batch_size: int = 64,
        max_length: int = 256,
        device: str | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        **back_end: Any,
    ) -> None:
        own = {"encoder": encoder, "pooling": pooling, "max_length": max_length}
        own |= {"query_prompt": query_prompt, "document_prompt": document_prompt}
        # A back end may have further options of the ranking.
        names = {each.name for each in fields(DenseRanking)} & self.options.keys()
        self.ranking = DenseRanking(**{**{name: self.options[name] for name in names}, **own})
        self.vectors = TextVectors(self.ranking, batch_size, device)
        super().__init__(**back_end)

    @override
    def describe_ranking(self) -> PlainDict:
        return self.ranking.describe()

    @override
    def close(self) -> None:
        super().close()
        self.vectors.close()
