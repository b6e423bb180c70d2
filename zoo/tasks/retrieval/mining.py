"""Documents that a model in training ranks high for each training query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.clickthrough import ClickthroughDataModule
from datamodules.corpora.judgements import Judgements
from zoo.tasks.predictor import evaluating, on_device
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
    """Encode all training queries and all documents, texts of similar length together.

    Args:
        model: encodes the texts; its modes do not change.
        data: after `setup`.
        block: texts that pass through the network together.
    """
    with data.words.forgetting(), evaluating(model):
        dataset = data.ranking_dataset(data.split("train"), model.batch_contents("train"))
        order = np.argsort(-dataset.lengths(), kind="stable")
        by_length = [order[start : start + block] for start in range(0, len(order), block)]
        return Embedded(
            _encode(model, model.encode_queries, dataset.__getitems__, by_length),
            _encode(model, model.encode_documents, dataset.document_batch, dataset.document_blocks(block)),
        )


def _encode(
    model: RetrievalTask,
    encode: Callable[[Any], Tensor],
    batch: Callable[[Any], Any],
    blocks: Sequence[NDArray[np.int64]],
) -> Tensor:
    """The vectors of all rows of some blocks, in the order of the rows."""
    vectors = torch.cat([encode(on_device(batch(rows), model)) for rows in blocks])
    in_order = torch.empty_like(vectors)
    in_order[torch.from_numpy(np.concatenate(blocks)).to(vectors.device)] = vectors
    return in_order


@torch.inference_mode()
def find_hits(embedded: Embedded, judgements: Judgements, k: int) -> MinedHits:
    """Compare all queries with all documents, block by block.

    Args:
        embedded: their vectors.
        judgements: known relevant documents are no hits.
        k: number of hits per query.
    """
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
        here = (document >= start) & (document < start + SEARCHED)
        at = query[here], document[here] - start
        own = score[at]
        # The best relevant document is kept, and no relevant document is a hit.
        better = best_score[:, 0].scatter_reduce(0, query[here], own, "amax")
        is_best = (own == better[at[0]]) & (own > best_score[at[0], 0])
        best[at[0][is_best], 0] = document[here][is_best]
        best_score = better.unsqueeze(1)
        score[at] = -torch.inf
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
