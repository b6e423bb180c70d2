"""Metrics of rankings of a collection: of a model, and of the parts of its search alone, which a test compares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from datamodules.batch import QueryBatch
from datamodules.clickthrough import ClickSplit, ClickthroughDataModule, document_hits
from datamodules.retrieval import FolderMemory, Neighbors, Retriever
from datamodules.retrieval.base import Hits
from zoo.tasks.metrics import PARTS, RowMeans, joined, sign_test
from zoo.tasks.ranking_measures import Judged, measure_rankings

NAMES = ("ndcg@1", "ndcg@3", "ndcg@10", "map", "mrr", "recall@100")
#: The measure that selects an epoch and a mixture.
CHOICE = NAMES.index("ndcg@10")


class RetrievalScores(RowMeans):
    """NDCG@k, MAP, MRR and recall of several rankings; the means exclude queries without relevant documents.

    The first are by mixtures of two scores, of which `compute` selects one (see `selected_mixture`); the others are by
    each part of the search alone, which `compute` compares with it.
    """

    without: Tensor
    loss: Tensor
    query: list[Tensor]
    choice: list[Tensor]

    def __init__(self, mixtures: int = 1, alone: Sequence[str] = ()) -> None:
        """Make room for a number of mixtures, and for the named parts of the search."""
        super().__init__(NAMES, PARTS, (mixtures + len(alone),))
        self.mixtures, self.alone = mixtures, alone
        self.add_counts(without=(), loss=())
        self.add_state("query", [], dist_reduce_fx="cat")
        self.add_state("choice", [], dist_reduce_fx="cat")
        self.best = 0
        #: of the last `compute`: row number of a query -> its NDCG@10.
        self.by_query: dict[int, float] = {}
        #: of the last `compute`: measures of each part alone, and on how many queries its NDCG@10 is better and worse;
        #: keys are `ndcg@10/BM25 alone`, ...; `p` is that of a sign test. Empty without a relevant document.
        self.compared: dict[str, float] = {}

    def update(self, scores: list[Tensor], judged: Judged, loss: Tensor, batch: QueryBatch) -> None:
        """Count a batch of queries, by scores [B, D] of each ranking; those of weight 0 pad."""
        has_relevant = torch.bincount(judged.query[judged.grade > 0], minlength=len(batch.row)) > 0
        counted = (batch.weight > 0) & has_relevant
        values = torch.stack([measure_rankings(score, judged, NAMES) for score in scores])
        self.add_rows(values, counted, batch.is_duplicate)
        self.without += ((batch.weight > 0) & ~has_relevant).sum()
        self.loss += (loss[counted].double() * PARTS).round().long().sum()
        self.query.append(batch.row[counted])
        self.choice.append(values[:, counted, CHOICE].T)  # [queries, rankings]

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; the means are over `queries`. Without one, there are no means."""
        counts = {"queries": self.rows.double(), "queries_without_relevant": self.without.double()}
        if self.rows == 0:
            return counts
        choice = joined(self.choice)
        self.best = selected_mixture(choice[:, : self.mixtures])
        own = choice[:, self.best]
        self.by_query = dict(zip(joined(self.query).tolist(), own.tolist(), strict=True))
        for number, name in enumerate(self.alone, self.mixtures):
            means, gains = self.means(number), choice[:, number] - own
            better, worse = int((gains > 0).sum()), int((gains < 0).sum())
            measured = {measure: float(means[measure]) for measure in ("ndcg@10", "map", "recall@100")}
            measured |= {"better": better, "worse": worse, "p": sign_test(better, worse)}
            self.compared |= {f"{figure}/{name}": value for figure, value in measured.items()}
        return {**self.means(self.best), "loss": self.loss.double() / PARTS / self.rows, **counts}


def selected_mixture(values: Tensor) -> int:
    """Return the last of several mixtures whose NDCG@10 is within one standard error of the highest.

    `values` [queries, mixtures]; the standard error is that of the mean difference. The mixtures are in ascending order
    of the retriever's weight: with few queries, the retriever, which learned nothing from them, is the safer part.
    """
    highest = int(values.sum(dim=0).argmax())
    lost = values[:, highest : highest + 1] - values
    error = lost.std(dim=0, correction=0) / len(values) ** 0.5
    return int((lost.mean(dim=0) <= error).nonzero().max())


def retrievers_alone(data: ClickthroughDataModule, split: ClickSplit) -> dict[str, Hits]:
    """Return the hits of a split by its retriever, and by the members that it fuses; nothing without hits."""
    hits = {} if split.hits is None else {_name(data.retriever): split.hits}
    memory = data.open_memory() if hits and data.retriever.retrievers else None
    if isinstance(memory, FolderMemory):
        for member in memory.retriever.retrievers:
            found = member.search(split.judgements.queries.texts[:], data.options.num_hits)
            neighbors = Neighbors(*found, memory.rows)
            hits[_name(member)] = document_hits(neighbors, split.judgements.documents)
    return {f"{name} alone": each for name, each in hits.items()}


def _name(retriever: Retriever) -> str:
    """Return `BM25`, `vectors`, `fused`, ...; the class of a retriever whose ranking has no such name."""
    described = {} if retriever.existing_index else retriever.describe_ranking()
    name = str(described.get("similarity", type(retriever).__name__))
    return "vectors" if name == "dense" else name
