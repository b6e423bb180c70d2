"""`zoo measure`: figures of TREC runs, and a test of their differences."""

from __future__ import annotations

from statistics import fmean

from datamodules.core.errors import InputError
from datamodules.corpora.judgements import read_judgements
from datamodules.corpora.readers import open_lines
from datamodules.corpora.rows import Rows
from datamodules.corpora.trec_runs import Run, read_run
from zoo.reproduce.significance import compare

#: Measures by their names in ir_measures.
MEASURES = {
    "nDCG@1": "ndcg@1",
    "nDCG@3": "ndcg@3",
    "nDCG@10": "ndcg@10",
    "AP": "map",
    "RR": "mrr",
    "R@100": "recall@100",
}


def measure(judgements: str, runs: list[str], compare_by: str = "ndcg@10") -> None:
    """Measure TREC runs as trec_eval does, and test the difference of each from the first one.

    Queries without a relevant document are skipped; a query that a run lacks counts 0.

    Args:
        judgements: lines `query 0 document grade` or `query document grade`.
        runs: files of lines `query Q0 document rank score name`.
        compare_by: measure of the test: ndcg@1, ndcg@3, ndcg@10, map, mrr or recall@100.
    """
    names = [*MEASURES.values()]
    if compare_by not in names:
        raise InputError(f"--compare_by {compare_by}: use one of {', '.join(names)}")
    if not runs:
        raise InputError("--runs: name at least one file")
    judged = _read_grades(judgements)
    figures = {file: measure_run(read_run(file), judged) for file in runs}
    width = max(map(len, runs))
    print(f"{'':{width}} " + " ".join(f"{name:>10}" for name in names) + f" {'difference':>11} {'p':>7}")
    first = figures[runs[0]][compare_by]
    for file, values in figures.items():
        line = [f"{file:{width}}", *(f"{100 * fmean(values[name].values()):10.2f}" for name in names)]
        if file != runs[0] and (difference := compare(values[compare_by], first)):
            line += [f"{100 * difference.mean:+11.2f}", f"{difference.p:7.4f}"]
        print(" ".join(line))
    print(
        f"{len(first)} queries with a relevant document; p: {compare_by} against {runs[0]}, paired randomization test"
    )


def measure_run(run: Run, judged: dict[str, dict[str, int]]) -> dict[str, dict[str, float]]:
    """Measure a run on judgements: measure -> query -> figure."""
    import ir_measures

    figures = {name: dict.fromkeys(judged, 0.0) for name in MEASURES.values()}
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    for figure in ir_measures.iter_calc(measures, judged, run):
        figures[MEASURES[str(figure.measure)]][figure.query_id] = figure.value
    return figures


def _read_grades(file: str) -> dict[str, dict[str, int]]:
    """Query -> document -> grade, for queries with a relevant document; texts are not needed."""
    lines = [fields for line in open_lines(file, "strict") if len(fields := line.split()) in (3, 4)]
    queries, documents = (
        Rows.from_lists([""] * len(ids), ids=list(ids), source=file)
        for ids in (dict.fromkeys(fields[column] for fields in lines) for column in (0, -2))
    )
    judged = read_judgements(file, queries, documents)
    if (judged.grade % 1).any():
        raise InputError(f"{file}: grades must be whole numbers, as trec_eval reads them")
    ids = judged.documents.ids
    grades = {
        query: {ids[document]: int(grade) for document, grade in judged.grades(number).items()}
        for number, query in enumerate(judged.queries.ids)
    }
    return {query: of_query for query, of_query in grades.items() if max(of_query.values()) > 0}
