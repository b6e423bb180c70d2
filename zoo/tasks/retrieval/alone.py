"""The parts of a search alone, next to the model in a test: its network, and each retriever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from datamodules.clickthrough.datamodule import ClickthroughDataModule
from datamodules.clickthrough.dataset import ClickSplit, document_hits
from datamodules.retrieval import FolderMemory, Neighbors, Retriever
from datamodules.retrieval.base import Hits
from zoo.tasks.metrics import sign_test
from zoo.tasks.retrieval.metrics import RetrievalScores

#: The hits of a retriever for all queries, or None for the network; and the scores of this part.
Part: TypeAlias = tuple[Hits | None, RetrievalScores]


def retrievers_alone(data: ClickthroughDataModule, split: ClickSplit) -> dict[str, Part]:
    """Return the retriever of a split's hits, and the members that it fuses, by name; nothing without hits."""
    hits = {} if split.hits is None else {_name(data.retriever): split.hits}
    memory = data.open_memory() if hits and data.retriever.retrievers else None
    if isinstance(memory, FolderMemory):
        for member in memory.retriever.retrievers:
            found = member.search(split.judgements.queries.texts[:], data.options.num_hits)
            neighbors = Neighbors(*found, memory.rows)
            hits[_name(member)] = document_hits(neighbors, split.judgements.documents)
    return {f"{name} alone": (each, RetrievalScores()) for name, each in hits.items()}


def _name(retriever: Retriever) -> str:
    """Return `BM25`, `vectors`, `fused`, ...; the class of a retriever whose ranking has no such name."""
    described = {} if retriever.existing_index else retriever.describe_ranking()
    name = str(described.get("similarity", type(retriever).__name__))
    return "vectors" if name == "dense" else name


def compare(model: RetrievalScores, parts: Mapping[str, Part]) -> dict[str, float]:
    """Return measures of each part, and on how many queries its NDCG@10 is better and worse than the model's.

    Keys are `ndcg@10/BM25 alone`, ...; `p` is that of a sign test. Nothing without a relevant document.
    """
    figures: dict[str, float] = {}
    for name, (_, scores) in parts.items() if model.compute()["queries"] else ():
        values = scores.compute()
        gains = [scores.by_query[row] - whole for row, whole in model.by_query.items()]
        better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        measured = {measure: float(values[measure]) for measure in ("ndcg@10", "map", "recall@100")}
        measured |= {"better": better, "worse": worse, "p": sign_test(better, worse)}
        figures |= {f"{figure}/{name}": value for figure, value in measured.items()}
    return figures
