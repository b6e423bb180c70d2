"""Base of the rankings of a collection that are fitted to its documents without judgements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import ClickBatch, QueryBatch
from datamodules.clickthrough.dataset import RankingDataset
from datamodules.core.types import PlainDict
from zoo.tasks.fitted import Fitted
from zoo.tasks.retrieval.task import RetrievalTask

DocumentsT = TypeVar("DocumentsT")


class FittedRanking(Fitted, RetrievalTask, Generic[DocumentsT]):
    """Base of the models that are fitted to documents and score them for queries; both are strings."""

    reads_strings = True

    @abstractmethod
    def fit(self, documents: Sequence[str], seed: int) -> PlainDict:
        """Return the values that are fitted to the documents of a collection."""

    @abstractmethod
    def read(self, documents: Sequence[str]) -> DocumentsT:
        """The form of documents that `scores` reads."""

    @abstractmethod
    def scores(self, queries: Sequence[str], documents: DocumentsT) -> Tensor:
        """The scores of documents for queries: float32 [queries, documents]."""

    @override
    def finish(self, data: DataModule) -> None:
        self.fitted = self.fit(data.split("train").judgements.documents.texts[:], data.seed)

    @override
    def forward(self, batch: ClickBatch) -> Tensor:
        """The scores of a batch's documents for its queries: float32 [N, M]."""
        assert batch.query_string is not None
        assert batch.document_string is not None
        return self.scores(batch.query_string, self.read(batch.document_string)).to(batch.query.device)

    @override
    def encode_collection(
        self, dataset: RankingDataset, block: int, process: int = 0, processes: int = 1
    ) -> Any:
        # In a list, since a tensor would be summed over the processes, each of which reads all documents.
        texts = dataset.split.judgements.documents.texts
        return [self.read([texts[int(row)] for row in dataset.documents])]

    @override
    def score(self, batch: QueryBatch, documents: Any) -> Tensor:
        assert batch.string is not None
        return self.scores(batch.string, documents[0]).to(batch.row.device)
