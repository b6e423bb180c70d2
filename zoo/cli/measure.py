"""`zoo measure`: how good rankings are that are there as TREC runs, and whether they differ by chance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from datamodules.core.errors import InputError
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.readers import open_lines
from datamodules.corpora.rows import Rows
from datamodules.corpora.trec_runs import Run, read_run
from zoo.reproduce.significance import compare
from zoo.tasks.ranking_measures import Judged, measure_rankings
from zoo.tasks.retrieval.metrics import NAMES


def measure(judgements: str, runs: list[str], compare_by: str = "ndcg@10") -> None:
    """Measure TREC runs, and test whether each differs from the first by more than chance.

    Queries without a relevant document are left out; a query that a run lacks counts 0, and so does a document that it
    does not rank.

    Args:
        judgements: lines `query 0 document grade` or `query document grade`.
        runs: files of lines `query Q0 document rank score name`.
        compare_by: what the test compares: ndcg@1, ndcg@3, ndcg@10, map, mrr or recall@100.
    """
    if compare_by not in NAMES:
        raise InputError(f"--compare_by {compare_by}: use one of {', '.join(NAMES)}")
    if not runs:
        raise InputError("--runs: name at least one file")
    judged = _judgements(judgements)
    found = {file: measure_run(read_run(file), judged) for file in runs}
    wide = max(map(len, runs))
    print(" ".join([" " * wide, *(f"{name:>10}" for name in NAMES), f"{'difference':>11}", f"{'p':>7}"]))
    column, first = NAMES.index(compare_by), found[runs[0]]
    for file, values in found.items():
        means = np.mean(list(values.values()), axis=0)
        line = [f"{file:{wide}}", *(f"{100 * mean:10.2f}" for mean in means)]
        if file != runs[0]:
            other = {query: float(figures[column]) for query, figures in first.items()}
            own = {query: float(figures[column]) for query, figures in values.items()}
            difference = compare(own, other)
            assert difference is not None
            line += [f"{100 * difference.mean:+11.2f}", f"{difference.p:7.4f}"]
        print(" ".join(line))
    print(
        f"{len(first)} queries with a relevant document; p: {compare_by} beside {runs[0]}, paired randomisation test"
    )


def measure_run(run: Run, judged: Judgements) -> Mapping[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The measures of each query that has a relevant document: query -> float64 [len(NAMES)]."""
    found, ids = {}, judged.documents.ids
    for query, start, end in zip(judged.queries.ids, judged.offsets[:-1], judged.offsets[1:], strict=True):
        grades = {
            ids[row]: float(grade)
            for row, grade in zip(judged.document[start:end], judged.grade[start:end], strict=True)
        }
        if max(grades.values()) <= 0:
            continue
        ranked = run.get(query, {})
        column = {document: i for i, document in enumerate(ranked)}
        # A document of the query that a run does not rank is not found.
        places = torch.tensor([column.get(document, -1) for document in grades])
        relevant = Judged(torch.zeros_like(places), places, torch.tensor(list(grades.values())))
        score = torch.tensor([list(ranked.values())], dtype=torch.float64)
        found[query] = measure_rankings(score, relevant, NAMES)[0].numpy()
    return found


def _judgements(file: str) -> Judgements:
    """Judgements by their ids alone: texts are not needed."""
    queries: dict[str, None] = {}
    documents: dict[str, None] = {}
    for line in open_lines(file, "strict"):
        if len(fields := line.split()) in (3, 4):
            queries.setdefault(fields[0])
            documents.setdefault(fields[-2])
    texts = [Rows.from_lists([""] * len(ids), ids=ids, source=file) for ids in (queries, documents)]
    return read_judgements(file, *texts)
