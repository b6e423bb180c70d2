"""Exact dense search: the CPU's, which users have, next to a matrix product and `topk` on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.retrieval.dense.nearest import nearest

K = 20
#: Vectors and queries of one product on the GPU: 256 MB of scores. The CPU retriever takes as many queries together.
ROWS, QUERIES = 1 << 18, 256


def draw(number: int, size: int, queries: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Random vectors [number, size] and queries [queries, size], of length 1."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((number + queries, size), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:number], vectors[number:]


def search_cpu(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """Rows [q, K] of the nearest vectors, by the retriever."""
    return nearest(vectors, np.empty(0, np.int32), queries, K).rows.astype(np.int64)


def search_torch(vectors: torch.Tensor, queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """Rows [q, K] of the nearest vectors, which stay on their device; queries and rows are copied."""
    found = []
    for part in torch.from_numpy(queries).split(QUERIES):
        asked, scores, rows = part.to(vectors.device), list[torch.Tensor](), list[torch.Tensor]()
        for low in range(0, len(vectors), ROWS):
            block = asked @ vectors[low : low + ROWS].T
            best = block.topk(min(K, block.shape[1]), dim=1)
            scores.append(best.values)
            rows.append(best.indices + low)
        order = torch.cat(scores, dim=1).topk(K, dim=1).indices
        found.append(torch.cat(rows, dim=1).gather(1, order).cpu())
    return torch.cat(found).numpy()


def measure(number: int, size: int, queries: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Queries per second, and bytes of vectors per second, of both; the share of hits that they have in common.

    A GPU is measured with all queries, the CPU with at most `QUERIES`.
    """
    vectors, asked = draw(number, size, queries)
    few = asked[:QUERIES]
    on_device = torch.from_numpy(vectors).to(device)
    seconds, expected = _timed(lambda: search_cpu(vectors, few))
    figures = {"CPU retriever": _figures(seconds, few, vectors, passes=-(-len(few) // QUERIES))}
    seconds, rows = _timed(lambda: search_torch(on_device, asked))
    name = "GPU, product and topk" if device.type == "cuda" else "CPU, product and topk"
    figures[name] = _figures(seconds, asked, vectors, passes=-(-len(asked) // QUERIES))
    same = [np.isin(a, b).mean() for a, b in zip(rows[: len(few)], expected, strict=True)]
    figures[name]["agreement"] = float(np.mean(same))
    return figures


def _timed(search: Callable[[], NDArray[np.int64]]) -> tuple[float, NDArray[np.int64]]:
    """Seconds of the second call: results arrive on the CPU, so that the GPU has finished."""
    search()
    began = time.perf_counter()
    rows = search()
    return time.perf_counter() - began, rows


def _figures(
    seconds: float, queries: NDArray[np.float32], vectors: NDArray[np.float32], passes: int
) -> dict[str, float]:
    return {
        "rate": len(queries) / seconds,
        "gigabytes_per_second": passes * vectors.nbytes / seconds / 1e9,
    }
