"""`zoo measure`: figures of TREC runs, and a test of their differences."""

from __future__ import annotations

from statistics import fmean

from datamodules.core.errors import InputError, visible
from datamodules.corpora.judgements import judged_pairs
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
    width = max(len(visible(run)) for run in runs)
    print(f"{'':{width}} " + " ".join(f"{name:>10}" for name in names) + f" {'difference':>11} {'p':>7}")
    first = figures[runs[0]][compare_by]
    for file, values in figures.items():
        line = [
            f"{visible(file):{width}}",
            *(f"{100 * fmean(values[name].values()):10.2f}" for name in names),
        ]
        if file != runs[0] and (difference := compare(values[compare_by], first)):
            line += [f"{100 * difference.mean:+11.2f}", f"{difference.p:7.4f}"]
        print(" ".join(line))
    print(
        f"{len(first)} queries with a relevant document; p: {compare_by} against {visible(runs[0])}, paired"
        " randomization test"
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
    """Query -> document -> grade, for queries with a relevant document; of several judgements the highest counts."""
    grades: dict[str, dict[str, int]] = {}
    for query, document, grade, location in judged_pairs(file):
        if grade % 1:
            raise InputError(f"{location}: grades must be whole numbers, as trec_eval reads them")
        of_query = grades.setdefault(query, {})
        of_query[document] = max(int(grade), of_query.get(document, 0))
    relevant = {query: of_query for query, of_query in grades.items() if max(of_query.values()) > 0}
    if not relevant:
        raise InputError(f"{file}: no query has a relevant document (a grade above 0)")
    return relevant
