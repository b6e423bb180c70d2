"""The options that all retrievers with an encoder share."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from datamodules.core.types import PlainDict
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_vectors import TextVectors
from datamodules.text.pooling import Pooling


class EncodingRetriever(Retriever):
    """A retriever that ranks by the vectors of texts; every back end has these options, and the same scores."""

    ranking: DenseRanking
    #: further fields of the ranking, which a back end sets before its options are read.
    approximation: PlainDict | None = None

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
        """Choose the encoder.

        Args:
            encoder: an encoder of sentence-transformers or `transformers`, by its name on the Hub or its folder, or a
                checkpoint of this zoo.
            pooling: from its tokens' last states to the vector of a text, see `datamodules.text.pooling.pool`; None =
                as published, for a plain transformer `mean`. A checkpoint has its own pooling, and no prompts.
            batch_size: texts encoded at once.
            max_length: the maximum number of tokens of a text. A checkpoint has the maximum of its training.
            device: device of the encoder, such as `cpu` or `cuda:1`; None chooses a GPU if there is one.
            query_prompt: precedes each query, such as `query: ` for the E5 encoders; None = as published, "" = none.
            document_prompt: precedes each text of the collection.
            **back_end: options of the back end.
        """
        self.ranking = DenseRanking(
            encoder,
            pooling,
            max_length,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            **(self.approximation or {}),
        )
        self.vectors = TextVectors(self.ranking, batch_size, device)
        super().__init__(**back_end)

    @override
    def describe_ranking(self) -> PlainDict:
        return self.ranking.describe()

    @override
    def _init_args(self) -> PlainDict:
        names = ("encoder", "pooling", "max_length", "query_prompt", "document_prompt")
        ranking = {name: getattr(self.ranking, name) for name in names}
        return {**ranking, "batch_size": self.vectors.batch_size, "device": self.vectors.device}
