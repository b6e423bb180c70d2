"""`zoo fuse`: several TREC runs in one."""

from __future__ import annotations

from tqdm import tqdm

from datamodules.core.errors import InputError, check_count
from datamodules.core.outputs import check_output
from datamodules.core.storage import new_file
from datamodules.corpora.trec_runs import is_run, read_run, run_lines
from datamodules.retrieval.base import Hits
from datamodules.retrieval.fused import Fusion, Method


def fuse(
    runs: list[str],
    output: str,
    method: Method = "reciprocal_rank",
    weights: list[float] | None = None,
    depth: int = 1000,
    rank_constant: int = 60,
    k: int = 1000,
) -> None:
    """Fuse TREC runs of the same queries and collection, with the formulas of a `FusedRetriever`.

    Args:
        runs: two or more files of lines `query Q0 document rank score name`; the order is that of the scores.
        output: the fused run, a file named .run or .trec.
        method: by rank, or by score: each run's scores of a query, scaled to 0..1.
        weights: a positive weight for each run; null: equal weights.
        depth: the number of documents that are read for a query of each run.
        rank_constant: for `reciprocal_rank`; the larger it is, the less the first ranks stand out.
        k: how many documents a query has in the output.
    """
    if len(runs) < 2:
        raise InputError(f"zoo fuse: {len(runs)} runs given; name two or more files")
    check_count("depth", depth)
    check_count("k", k)
    if weights is None:
        weights = [1.0] * len(runs)
    if len(weights) != len(runs):
        raise InputError(f"--weights: {len(weights)} for {len(runs)} runs; give one for each")
    fusion = Fusion(tuple(weights), method, rank_constant)
    path = check_output(output, runs)
    if not is_run(path):
        raise InputError(f"--output {output}: a TREC run is written; name it {path.with_suffix('.run')}")
    read = [read_run(file) for file in runs]
    for name, run in zip(runs[1:], read[1:], strict=True):
        if not run.keys() & read[0].keys():
            raise InputError(f"{name}: has no query of {runs[0]}; fuse runs of the same queries")
    queries = dict.fromkeys(query for run in read for query in run)
    with new_file(path, "--output") as partial, partial.open("w", encoding="utf-8") as file:
        for query in tqdm(queries, "fusing", unit=" queries", delay=2, disable=None):
            ranked = _fused([run.get(query, {}) for run in read], fusion, depth, k)
            file.writelines(line + "\n" for line in run_lines(query, ranked, path.stem))
    print(f"{output}: {len(queries)} queries")


def _fused(lists: list[dict[str, float]], fusion: Fusion, depth: int, k: int) -> list[tuple[str, float]]:
    """Return the best k documents of one query, with their scores; equal scores in the order of the ids."""
    ids = sorted({document for scores in lists for document in scores})
    row_of = {document: row for row, document in enumerate(ids)}
    hits = []
    for scores in lists:
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:depth]
        ranked = Hits.none(1, depth)
        ranked.rows[0, : len(best)] = [row_of[document] for document, _ in best]
        ranked.scores[0, : len(best)] = [score for _, score in best]
        hits.append(ranked)
    fused = fusion.fuse(hits, min(k, len(ids)))
    return [
        (ids[row], score)
        for row, score in zip(fused.rows[0].tolist(), fused.scores[0].tolist(), strict=True)
        if row >= 0
    ]
