"""The best documents for each training query, by a model in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.clickthrough import ClickthroughDataModule
from datamodules.corpora.judgements import Judgements
from zoo.tasks.predictor import evaluating
from zoo.tasks.retrieval.predictor import encode_blocks, query_blocks
from zoo.tasks.retrieval.task import RetrievalTask

#: Documents that are compared with all queries at once: 4 bytes a query and document.
SEARCHED = 8192


class Embedded(NamedTuple):
    """Embeddings of the training queries and the collection."""

    #: [Q, d] and [D, d], vectors of length 1; 0 for a text without words.
    queries: Tensor
    documents: Tensor


class MinedHits(NamedTuple):
    """The best documents of a collection for Q queries, best first: the K best of unknown relevance, and one more."""

    #: int32 [Q, K + 1]: rows of documents, -1 where there are fewer. Among them is the query's best relevant document,
    #: the reference of `highest_hit_score`.
    document: NDArray[np.int32]
    #: float32 [Q, K + 1]: (1 + cos) / 2, as in a dense retriever.
    score: NDArray[np.float32]


def embed(model: RetrievalTask, data: ClickthroughDataModule, block: int) -> Embedded:
    """Encode all training queries and all documents of a data module after `setup`."""
    with evaluating(model):
        dataset = data.ranking_dataset(data.split("train"), model.batch_contents("train"))
        queries = encode_blocks(model, dataset, query_blocks(dataset, block), queries=True)
        return Embedded(queries, encode_blocks(model, dataset, dataset.document_blocks(block), queries=False))


@torch.inference_mode()
def find_hits(embedded: Embedded, judgements: Judgements, k: int) -> MinedHits:
    """Compare all queries with all documents, block by block; known relevant documents are no hits."""
    queries, documents = embedded
    device, relevant = queries.device, judgements.grade > 0
    query, document = (
        torch.from_numpy(rows[relevant].astype(np.int64)).to(device)
        for rows in (judgements.query, judgements.document)
    )
    best = torch.full((len(queries), 1), -1, device=device)
    best_score = torch.full((len(queries), 1), -torch.inf, device=device)
    hit = best[:, :0]
    hit_score = best_score[:, :0]
    for start in range(0, len(documents), SEARCHED):
        score = queries @ documents[start : start + SEARCHED].T
        in_block = (document >= start) & (document < start + SEARCHED)
        row, column = query[in_block], document[in_block] - start
        relevant_score = score[row, column]
        # The best relevant document is kept, and no relevant document is a hit.
        better = best_score[:, 0].scatter_reduce(0, row, relevant_score, "amax")
        is_best = (relevant_score == better[row]) & (relevant_score > best_score[row, 0])
        best[row[is_best], 0] = document[in_block][is_best]
        best_score = better.unsqueeze(1)
        score[row, column] = -torch.inf
        top = score.topk(min(k, score.shape[1]), dim=1)
        hit, hit_score = _merged((hit, top.indices + start), (hit_score, top.values), k)
    hit, hit_score = _merged((hit, best), (hit_score, best_score), k + 1)
    hit = hit.masked_fill(hit_score == -torch.inf, -1)
    hit_score = ((1 + hit_score) / 2).masked_fill(hit < 0, 0)
    return MinedHits(hit.cpu().numpy().astype(np.int32), hit_score.float().cpu().numpy())


def _merged(hits: Sequence[Tensor], scores: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The k best of several lists of hits."""
    score, order = torch.cat(list(scores), dim=1).sort(dim=1, descending=True, stable=True)
    return torch.cat(list(hits), dim=1).gather(1, order)[:, :k], score[:, :k]
