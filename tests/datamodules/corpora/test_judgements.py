"""Judged queries of a collection: the formats, and errors in files."""

import logging
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from datamodules.core.errors import InputError
from datamodules.core.storage import prepared_folder
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.rows import Rows
from tests.datamodules.checks import write

QUERIES = Rows.from_lists(["old plum", "rain", "zinc"], ids=["q1", "q2", "q3"], source="queries")
DOCUMENTS = Rows.from_lists(["a plum", "a storm", "a grape"], ids=["d1", "d2", "d3"], source="corpus")
EXPECTED = [("q2", "d2", 3.0), ("q2", "d1", 0.0), ("q1", "d1", 2.0)]


def written(judgements: Judgements) -> list[tuple[str, str, float]]:
    queries, documents = judgements.queries.ids, judgements.documents.ids
    triples = zip(judgements.query, judgements.document, judgements.grade, strict=True)
    return [(queries[query], documents[document], float(grade)) for query, document, grade in triples]


TREC = "q2 0 d2 3\nq2 0 d1 0\nq1 0 d1 2\n"
TSV = "q2\td2\t3\nq2\td1\t0\nq1\td1\t2\n"
JSONL = (
    f'{{"query_id": "{query}", "doc_id": "{document}", "grade": {grade}}}\n'
    for query, document, grade in EXPECTED
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qrels", TREC),
        ("test.tsv", "query-id\tcorpus-id\tscore\n" + TSV),
        ("judged.tsv", TSV),
        ("judged.jsonl", "".join(JSONL)),
        ("judged.parquet", pd.DataFrame(EXPECTED, columns=["qid", "docid", "score"]).to_parquet()),
    ],
)
def test_layouts(name: str, content: str | bytes, tmp_path: Path) -> None:
    judgements = read_judgements(write(tmp_path / name, content), QUERIES, DOCUMENTS)
    assert written(judgements) == EXPECTED
    assert judgements.lists.offsets.tolist() == [0, 2, 3]
    assert judgements.has_relevant.tolist() == [True, True]


def test_is_saved_and_loaded(tmp_path: Path) -> None:
    judgements = read_judgements(write(tmp_path / "qrels", TREC), QUERIES, DOCUMENTS)
    DOCUMENTS.save(documents := tmp_path / "documents.arrow")
    save = partial(judgements.save, documents=documents)
    name, fingerprint = prepared_folder(tmp_path, "saved", judgements.fingerprint, save)
    again = Judgements.open(tmp_path / name, fingerprint)
    assert documents.samefile(tmp_path / name / "documents.arrow")
    assert written(again) == EXPECTED
    assert again.fingerprint == judgements.fingerprint
    assert judgements.select([1]).fingerprint != judgements.fingerprint
    assert written(judgements.select([1, 0])) == [EXPECTED[2], *EXPECTED[:2]]


def test_unknown_ids_and_queries_without_judgement_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "qrels", "q1 0 d1 1\nq7 0 d1 1\nq2 0 d8 2\nq2 0 d9 2\nq2 0 d2 1\n")
    with caplog.at_level(logging.WARNING):
        judgements = read_judgements(path, QUERIES, DOCUMENTS)
    assert written(judgements) == [("q1", "d1", 1), ("q2", "d2", 1)]
    unknown, without = (record.getMessage() for record in caplog.records)
    assert "3 judgements are skipped" in unknown
    assert "1 queries ('q7') that queries lacks and 2 documents ('d8', 'd9') that corpus lacks" in unknown
    assert "1 of 3 queries have no judgement ('q3') and are skipped" in without


def test_a_pair_that_is_judged_twice_keeps_its_higher_grade(tmp_path: Path) -> None:
    path = write(tmp_path / "qrels", "q1 0 d1 1\nq1 0 d1 3\nq1 0 d1 2\n")
    assert written(read_judgements(path, QUERIES, DOCUMENTS)) == [("q1", "d1", 3)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qrels", "q1 0 d1 1\nq1 0 d2 good\n", "line 2: the grade 'good' must be a number of 0 or more"),
        ("qrels", "q1 0 d1 -1\n", "line 1: the grade '-1' must be a number of 0 or more"),
        ("qrels", "q1 0 d1 inf\n", "line 1: the grade 'inf' must be"),
        ("qrels", "q1 d1\n", "line 1: 2 fields; write query, document and grade"),
        ("qrels", "q9 0 d1 1\n", "no judgement of a known query and document"),
        (
            "judged.jsonl",
            '{"query_id": "q1", "what": "d1", "grade": 1}\n',
            "judged.jsonl, line 1: has none of the columns doc_id, corpus_id",
        ),
    ],
)
def test_errors_name_the_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_judgements(write(tmp_path / name, text), QUERIES, DOCUMENTS)
