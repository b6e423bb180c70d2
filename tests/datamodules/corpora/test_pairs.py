"""Readers of pairs: the formats, and errors in files."""

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datamodules.core.errors import InputError
from datamodules.core.storage import prepared_folder
from datamodules.corpora.pairs import Pairs, read_pairs, read_quora, read_trec, read_wikiqa
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_identified
from tests.datamodules.checks import refused, write

TABLE = "q,first,second,label\n1,a b,x y,1\n2,c,x y,0\n1,a b,z,0\n"


def rows_of(pairs: Pairs) -> list[tuple[str, str, float, str]]:
    """First text, second text, grade and question of each pair."""
    texts = pairs.first.texts.take(pairs.first_row), pairs.second.texts.take(pairs.second_row)
    questions = pairs.question_ids.take(pa.array(pairs.question)).to_pylist()
    return list(zip(*texts, pairs.target.tolist(), questions, strict=True))


def test_distinct_texts_are_kept_once(tmp_path: Path) -> None:
    pairs = read_pairs(write(tmp_path / "a.csv", TABLE), "first", "second", "label", "q")
    assert rows_of(pairs) == [("a b", "x y", 1, "1"), ("c", "x y", 0, "2"), ("a b", "z", 0, "1")]
    assert list(pairs.first.texts) == ["a b", "c"]
    assert list(pairs.second.texts) == ["x y", "z"]
    assert pairs.num_questions == 2
    assert pairs.has_positive.tolist() == [True, False]
    lists = pairs.lists
    assert (lists.values.tolist(), lists.offsets.tolist()) == ([0, 2, 1], [0, 2, 3])
    assert pairs.question_row.tolist() == [0, 1]


def test_equal_first_texts_are_one_question_without_a_column_of_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TABLE)
    assert read_pairs(path, "first", "second", "label").question.tolist() == [0, 1, 0]
    # With such a column, one text may be two questions.
    assert read_pairs(path, "second", "first", "label", "q").question.tolist() == [0, 1, 0]
    assert read_pairs(path, "second", "first", "label").question.tolist() == [0, 0, 1]


def test_saved_pairs_are_mapped(tmp_path: Path) -> None:
    pairs = read_pairs(write(tmp_path / "a.csv", TABLE), "first", "second", "label", "q")
    name, fingerprint = prepared_folder(tmp_path, "saved", pairs.fingerprint, pairs.save)
    again = Pairs.open(tmp_path / name, fingerprint)
    assert rows_of(again) == rows_of(pairs)
    assert again.fingerprint == pairs.fingerprint
    assert isinstance(again.target, np.memmap)


def test_every_field_changes_the_fingerprint() -> None:
    def pairs(**changed: object) -> str:
        given = {"first": ["a", "b"], "second": ["x", "y"], "targets": [1, 0], "questions": ["1", "2"]}
        return Pairs.from_lists(**{**given, "ids": ["p", "q"], **changed}).fingerprint  # type: ignore[arg-type]

    assert pairs() == pairs(source="elsewhere")
    others = [pairs(first=["a", "c"]), pairs(second=["x", "x"]), pairs(targets=[1, 1])]
    others += [pairs(questions=["1", "1"]), pairs(questions=["1", "3"]), pairs(ids=["p", "r"])]
    assert len({pairs(), *others}) == 7


def test_selected_pairs_keep_only_their_texts() -> None:
    pairs = Pairs.from_lists(["a", "b", "a", "c"], ["w", "x", "y", "x"], [1, 0, 2, 1])
    assert rows_of(pairs.select([1])) == [("b", "x", 0, "1")]
    assert list(pairs.select([2, 1]).second.texts) == ["x"]
    chosen = pairs.select([2, 0])
    assert rows_of(chosen) == [("a", "w", 1, "0"), ("a", "y", 2, "0"), ("c", "x", 1, "2")]
    assert chosen.first.ids == ["0", "1"]


def test_added_texts_and_pairs() -> None:
    pairs = Pairs.from_lists(["a", "b"], ["w", "x"], [1, 0])
    grown, rows = pairs.with_second_texts(["x", "new", "w", "new"])
    assert rows.tolist() == [1, 2, 0, 2]
    assert list(grown.second.texts) == ["w", "x", "new"]
    assert pairs.with_second_texts(["x"])[0] is pairs
    more = grown.with_pairs(np.array([1, 0]), np.array([2, 1]))
    assert rows_of(more)[2:] == [("b", "new", 0, "1"), ("a", "x", 0, "0")]
    assert len(set(more.ids.to_pylist())) == 4


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (("first", "second", "third"), ["line 1", "no column 'third'", "'label'"]),
        (("first", "label", "second"), ["line 2", "'second' has the text 'x y'", "swapped?"]),
        ((1, 2, 7), ["no column 7"]),
    ],
)
def test_swapped_and_missing_columns_are_named(
    tmp_path: Path, columns: tuple[Column, Column, Column], parts: list[str]
) -> None:
    path = write(tmp_path / "a.csv", TABLE)
    with refused(path, *parts):
        read_pairs(path, *columns)


@pytest.mark.parametrize(
    ("label", "goal", "part"),
    [
        ("2", "classification", "must be 0 or 1"),
        ("0.5", "classification", "must be 0 or 1"),
        ("-1", "ranking", "must be a number of 0 or more"),
        ("nan", "ranking", "must be a number of 0 or more"),
        ("inf", "ranking", "must be a number of 0 or more"),
        ("", "ranking", "no label in column 'label'"),
        ("yes", "classification", "has the text 'yes' instead of 0 or 1"),
    ],
)
def test_a_wrong_label_is_named_with_its_line(tmp_path: Path, label: str, goal: str, part: str) -> None:
    path = write(tmp_path / "a.csv", f"{TABLE}3,d,e,{label}\n")
    with refused(f"{path}, line 5:", part):
        read_pairs(path, "first", "second", "label", goal=goal)  # type: ignore[arg-type]


@pytest.mark.parametrize(("label", "number"), [("1", 1), ("1.0", 1), ("True", 1), ("false", 0), (" 0 ", 0)])
def test_notations_of_numeric_labels(tmp_path: Path, label: str, number: float) -> None:
    path = write(tmp_path / "a.csv", f"first,second,label\na,b,{label}\n")
    assert read_pairs(path, "first", "second", "label", goal="classification").target.tolist() == [number]


def test_bytes_that_are_not_utf8(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.tsv", b"1\ta\tb\n0\tcaf\xe9\td\n")
    with refused(f"{path}, line 2: not UTF-8"):
        read_pairs(path, 1, 2, 0)
    with caplog.at_level(logging.WARNING):
        pairs = read_pairs(path, 1, 2, 0, replace_bytes=True)
    assert pairs.first.texts[1] == "caf\ufffd"
    assert "1 lines are not UTF-8" in caplog.text


def test_empty_texts_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_pairs(write(tmp_path / "b.csv", "first,second,label\na,,1\n"), "first", "second", "label")
    assert "1 of 1 second texts are empty" in caplog.text


WIKIQA = (
    "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\n"
    'Q1\twho "is he ?\tD1\tT\tD1-0\tHe is "Bob .\t1\n'
    'Q1\twho "is he ?\tD1\tT\tD1-1\tNobody .\t0\nQ2\twhy ?\tD2\t\tD2-0\tNobody .\t0\n'
)


def test_wikiqa(tmp_path: Path) -> None:
    pairs = read_wikiqa(write(tmp_path / "WikiQA-train.tsv", WIKIQA))
    assert rows_of(pairs) == [
        ('who "is he ?', 'He is "Bob .', 1, "Q1"),
        ('who "is he ?', "Nobody .", 0, "Q1"),
        ("why ?", "Nobody .", 0, "Q2"),
    ]
    assert pairs.ids.to_pylist() == ["D1-0", "D1-1", "D2-0"]


def test_quora_with_and_without_a_header(tmp_path: Path) -> None:
    released = '"id","qid1","qid2","question1","question2","is_duplicate"\n"7","1","2","a ""b""","c\nd","1"\n'
    pairs = read_quora(write(tmp_path / "q.tsv", released.replace(",", "\t")))
    assert rows_of(pairs) == [('a "b"', "c\nd", 1, "0")]
    assert pairs.ids.to_pylist() == ["7"]
    pairs = read_quora(write(tmp_path / "s.tsv", '1\t"a\tb\t7\n0\tc\td\t8\n'))
    assert rows_of(pairs) == [('"a', "b", 1, "0"), ("c", "d", 0, "1")]
    assert pairs.ids.to_pylist() == ["7", "8"]


def test_quotes_around_a_text_of_a_headerless_quora_file_are_removed(tmp_path: Path) -> None:
    rows = ['0\t"How ""so""?"\tWhy "not"?\t1', '1\t"open\tclosed" in part\t2', '1\t""\t"a" and "b"\t3']
    pairs = read_quora(write(tmp_path / "quora.tsv", "\n".join(rows) + "\n"))
    expected = [('How "so"?', 'Why "not"?'), ('"open', 'closed" in part'), ("", '"a" and "b"')]
    assert [row[:2] for row in rows_of(pairs)] == expected


def test_a_release_without_its_labels(tmp_path: Path) -> None:
    columns = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\n"
    file = write(tmp_path / "questions.tsv", f"{columns}Q1\twho?\tD1\ttitle\tD1-0\tme\n")
    with pytest.raises(InputError, match="Label"):
        read_wikiqa(file)
    pairs = read_wikiqa(file, labelled=False)
    assert (pairs.ids.to_pylist(), pairs.second.texts[:]) == (["D1-0"], ["me"])
    assert np.isnan(pairs.target).all()


@pytest.fixture
def collection(tmp_path: Path) -> tuple[Rows, Rows]:
    queries = write(tmp_path / "queries.tsv", "q1\ta b\nq2\tc\n")
    documents = write(
        tmp_path / "documents.jsonl",
        '{"_id": "d1", "title": "t", "text": "x"}\n{"_id": "d2", "title": "u", "text": "y"}\n',
    )
    return read_identified(queries), read_identified(documents, ["title", "text"])


def test_trec(tmp_path: Path, collection: tuple[Rows, Rows]) -> None:
    """The other layouts of judgements are those of `test_judgements`."""
    pairs = read_trec(write(tmp_path / "qrels", "q1 0 d2 2\n\nq2 0 d1 0\nq1 0 d1 1\n"), *collection)
    assert rows_of(pairs) == [("a b", "u y", 2, "q1"), ("c", "t x", 0, "q2"), ("a b", "t x", 1, "q1")]


@pytest.mark.parametrize(
    ("line", "part"), [("q3 0 d1 1", "no text with the id 'q3'"), ("q1 0 d9 1", "no text with the id 'd9'")]
)
def test_wrong_judgements(tmp_path: Path, collection: tuple[Rows, Rows], line: str, part: str) -> None:
    path = write(tmp_path / "qrels", f"q1 0 d2 2\n{line}\n")
    with refused(f"{path}, line 2:", part):
        read_trec(path, *collection)


def test_an_identified_text_may_have_either_name_for_its_id(tmp_path: Path) -> None:
    for name in ("id", "_id"):
        path = write(tmp_path / "a.jsonl", json.dumps({name: "q", "text": "a"}))
        assert read_identified(path).ids == ["q"]
    path = write(tmp_path / "a.jsonl", '{"number": "q", "text": "a"}')
    with pytest.raises(InputError, match=r"line 1: has none of the columns _id, id, .*; rename one"):
        read_identified(path)
    with pytest.raises(InputError, match="several texts have the id 'q'"):
        read_identified(write(tmp_path / "a.tsv", "q\ta\nq\tb\n"))
