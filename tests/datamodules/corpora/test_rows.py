import numpy as np
import pyarrow as pa
import pytest

from datamodules.corpora.rows import Rows

TEXTS = ["a first text", 'with "quotes", and a comma', "Grüße 你好 🙂"]
LABELS = ["News", "Sport", "News"]


def test_rows_hold_ids_texts_and_labels():
    rows = Rows.from_lists(TEXTS, LABELS)
    assert len(rows) == 3
    assert rows.ids == ["0", "1", "2"]
    assert list(rows.texts) == TEXTS
    assert rows.labels == LABELS
    assert Rows.from_lists(TEXTS).labels is None
    assert Rows.from_lists(TEXTS, ids=["a", "b", "a"]).row_of_id() == {"a": 2, "b": 1}


def test_texts_are_a_sequence():
    texts = Rows.from_lists([f"text {i}" for i in range(10)]).texts
    assert len(texts) == 10
    assert texts[3] == "text 3"
    assert texts[-1] == "text 9"
    assert texts[np.int64(2)] == "text 2"
    assert texts[7:] == ["text 7", "text 8", "text 9"]
    assert texts[8:2] == []
    assert texts[::5] == ["text 0", "text 5"]
    assert "text 4" in texts
    with pytest.raises(IndexError):
        texts[10]


def test_select_keeps_the_given_order_and_the_ids():
    rows = Rows.from_lists(TEXTS, LABELS).select([2, 0])
    assert list(rows.texts) == [TEXTS[2], TEXTS[0]]
    assert rows.ids == ["2", "0"]
    assert len(rows.select([])) == 0
    with pytest.raises(IndexError):
        rows.select([2])


def test_concat_puts_one_table_after_another():
    both = Rows.concat([Rows.from_lists(["a"], ["x"], source="A"), Rows.from_lists(["b"], ["y"], source="B")])
    assert list(both.texts) == ["a", "b"]
    assert both.labels == ["x", "y"]
    assert both.source == "A + B"


def test_saved_rows_are_mapped(tmp_path):
    rows = Rows.from_lists(TEXTS, LABELS)
    rows.save(tmp_path / "rows.arrow")
    loaded = Rows.load(tmp_path / "rows.arrow")
    assert loaded.fingerprint == rows.fingerprint
    assert list(loaded.texts) == TEXTS
    with Rows.writer(tmp_path / "parts.arrow") as write:
        write(rows.select([0]))
        write(rows.select([1, 2]))
    parts = Rows.load(tmp_path / "parts.arrow", "parts")
    assert (parts.fingerprint, parts.source) == (rows.fingerprint, "parts")


def test_labels_where_only_some_rows_have_one():
    rows = Rows.concat([Rows.from_lists(["a", "b"], ["y", "x"]), Rows.from_lists(["c"])])
    assert rows.labels is None
    assert [rows.label(row) for row in range(3)] == ["y", "x", None]
    assert rows.distinct_labels() == ["x", "y"]


def test_other_columns_are_refused():
    with pytest.raises(ValueError, match="columns must be"):
        Rows(pa.table({"text": ["a"]}), "mine")


def test_fingerprint_depends_on_contents_alone():
    rows = Rows.from_lists(TEXTS, LABELS, source="one")
    chunked = Rows(
        pa.concat_tables([rows.table.slice(0, 1), rows.table.slice(1, 0), rows.table.slice(1)]), "other"
    )
    assert chunked.table.column("text").num_chunks == 3
    assert chunked.fingerprint == rows.fingerprint
    assert rows.select([0, 1, 2]).fingerprint == rows.fingerprint
    assert len(rows.fingerprint) == 64


@pytest.mark.parametrize(
    "other",
    [
        Rows.from_lists(["ab", "c"], ["x", "y"], ["0", "2"]),
        Rows.from_lists(["ab", "c"], ["x", "z"]),
        Rows.from_lists(["ab", "c"]),
        Rows.from_lists(["ab", "c"], ["", ""]),
        # The same bytes with other boundaries.
        Rows.from_lists(["a", "bc"], ["x", "y"]),
        Rows.from_lists(["c", "ab"], ["x", "y"]),
    ],
)
def test_fingerprint_changes_with_the_contents(other):
    assert other.fingerprint != Rows.from_lists(["ab", "c"], ["x", "y"]).fingerprint


def test_fingerprint_stays_the_same_over_versions():
    # Every neighbour store contains it: after a change here, users must retrieve again.
    rows = Rows.from_lists(["a text", "Grüße"], ["x", "y"])
    assert rows.fingerprint == "093354761305336b44fb23d6b0307795559e900c88908e52b25436b8e67d6029"
