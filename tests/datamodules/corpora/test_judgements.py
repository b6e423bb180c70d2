"""Judged queries of a collection: the formats, and errors in files."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamodules.core.errors import InputError
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.rows import Rows

QUERIES = Rows.from_lists(["old plum", "rain", "zinc"], ids=["q1", "q2", "q3"], source="queries")
DOCUMENTS = Rows.from_lists(["a plum", "a storm", "a grape"], ids=["d1", "d2", "d3"], source="corpus")
EXPECTED = [("q2", "d2", 3.0), ("q2", "d1", 0.0), ("q1", "d1", 2.0)]


def written(judgements: Judgements) -> list[tuple[str, str, float]]:
    queries, documents = judgements.queries.ids, judgements.documents.ids
    triples = zip(judgements.query, judgements.document, judgements.grade, strict=True)
    return [(queries[query], documents[document], float(grade)) for query, document, grade in triples]


def write(path: Path, layout: str) -> Path:
    if layout == "trec":
        path.write_text("".join(f"{q} 0 {d} {g:g}\n" for q, d, g in EXPECTED))
    elif layout == "beir":
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{g:g}" for q, d, g in EXPECTED)]
        path.write_text("\n".join(lines) + "\n")
    elif layout == "tsv":
        path.write_text("".join(f"{q}\t{d}\t{g:g}\n" for q, d, g in EXPECTED))
    elif layout == "jsonl":
        names = ("query_id", "doc_id", "grade")
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in EXPECTED))
    else:
        columns = list(zip(*EXPECTED, strict=True))
        pq.write_table(pa.table(dict(zip(("qid", "docid", "score"), columns, strict=True))), path)
    return path


@pytest.mark.parametrize("layout", ["trec", "beir", "tsv", "jsonl", "parquet"])
def test_layouts(layout: str, tmp_path: Path) -> None:
    name = {"trec": "qrels", "beir": "test.tsv"}.get(layout, f"judged.{layout}")
    judgements = read_judgements(write(tmp_path / name, layout), QUERIES, DOCUMENTS)
    assert written(judgements) == EXPECTED
    assert judgements.lists.offsets.tolist() == [0, 2, 3]
    assert judgements.has_relevant.tolist() == [True, True]


def test_is_saved_and_loaded(tmp_path: Path) -> None:
    judgements = read_judgements(write(tmp_path / "qrels", "trec"), QUERIES, DOCUMENTS)
    judgements.save(tmp_path)
    again = Judgements.load(tmp_path, "again", documents=DOCUMENTS)
    assert written(again) == EXPECTED
    assert again.fingerprint == judgements.fingerprint
    assert judgements.select([1]).fingerprint != judgements.fingerprint
    assert written(judgements.select([1, 0])) == [EXPECTED[2], *EXPECTED[:2]]


def test_unknown_ids_and_queries_without_judgement_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "qrels"
    path.write_text("q1 0 d1 1\nq7 0 d1 1\nq2 0 d8 2\nq2 0 d9 2\nq2 0 d2 1\n")
    with caplog.at_level(logging.WARNING):
        judgements = read_judgements(path, QUERIES, DOCUMENTS)
    assert written(judgements) == [("q1", "d1", 1), ("q2", "d2", 1)]
    unknown, without = (record.getMessage() for record in caplog.records)
    assert "3 judgements are skipped" in unknown
    assert "1 queries ('q7') that queries lacks and 2 documents ('d8', 'd9') that corpus lacks" in unknown
    assert "1 of 3 queries have no judgement ('q3') and are skipped" in without


def test_a_pair_that_is_judged_twice_keeps_its_higher_grade(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text("q1 0 d1 1\nq1 0 d1 3\nq1 0 d1 2\n")
    assert written(read_judgements(path, QUERIES, DOCUMENTS)) == [("q1", "d1", 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 d1 1\nq1 0 d2 good\n", "line 2: the grade 'good' must be a number of 0 or more"),
        ("q1 0 d1 -1\n", "line 1: the grade '-1' must be a number of 0 or more"),
        ("q1 0 d1 inf\n", "line 1: the grade 'inf' must be"),
        ("q1 d1\n", "line 1: 2 fields; write query, document and grade"),
        ("q9 0 d1 1\n", "no judgement of a known query and document"),
    ],
)
def test_errors_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_judgements(path, QUERIES, DOCUMENTS)


def test_a_table_without_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    path.write_text('{"query_id": "q1", "what": "d1", "grade": 1}\n')
    with pytest.raises(InputError, match=r"judged.jsonl, line 1: has none of the columns doc_id, corpus_id"):
        read_judgements(path, QUERIES, DOCUMENTS)
