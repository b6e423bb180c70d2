"""Every kind reads the files and the columns that its options name."""

from pathlib import Path

import numpy as np

from datamodules import ClickthroughDataModule, DialogueDataModule, MatchingDataModule
from tests.dialogues import write_lines, write_records


def test_dialogues(tmp_path: Path) -> None:
    record = {"talk": ["it is red", "good"], "ask": ["which ?"], "word": ["red"], "key": "k"}
    columns = {"turns_column": "talk", "question_column": "ask", "answer_column": "word", "id_column": "key"}
    table = DialogueDataModule(**columns).read(str(write_records(tmp_path / "a.jsonl", record)))
    assert [table.turns.texts[:], table.questions.texts[:]] == [["it is red", "good"], ["which ?"]]
    assert [table.questions.labels, table.ids.to_pylist()] == [["red"], ["k"]]


def test_pairs(tmp_path: Path) -> None:
    record = {"q": "where ?", "a": "here", "grade": 2, "topic": "t", "key": "k"}
    columns = {"first_column": "q", "second_column": "a", "label_column": "grade"}
    columns |= {"question_column": "topic", "id_column": "key"}
    data = MatchingDataModule(train_file=str(write_records(tmp_path / "a.jsonl", record)), **columns)
    pairs = data.read_splits(["train"])["train"]
    expected = [["where ?"], ["here"], [2]]
    assert [pairs.first.texts[:], pairs.second.texts[:], pairs.target.tolist()] == expected
    assert [pairs.question_ids.to_pylist(), pairs.ids.to_pylist()] == [["t"], ["k"]]


def test_a_test_collection(tmp_path: Path) -> None:
    query = {"_id": "q", "text": "red things", "long": "things that are red"}
    queries = str(write_records(tmp_path / "queries.jsonl", query))
    document = {"_id": "d", "text": "no", "title": "a red apple"}
    documents = str(write_records(tmp_path / "corpus.jsonl", document))
    judgements = str(write_lines(tmp_path / "qrels", "q 0 d 1"))
    of_pairs = {"queries_file": queries, "documents_file": documents, "document_column": "title"}
    data = MatchingDataModule(layout="trec", train_file=judgements, **of_pairs)
    pairs = data.read_splits(["train"])["train"]
    assert [*pairs.first.texts, *pairs.second.texts] == ["red things", "a red apple"]

    files = {"corpus_file": documents, "train_queries": queries, "train_judgements": judgements}
    lengths = {"query_length": 2, "document_length": 1}
    columns = {"query_column": "long", "document_column": "title"}
    clicks = ClickthroughDataModule(**files, **columns, **lengths)
    table = clicks.read_splits(["train"])["train"]
    assert [*table.queries.texts, *table.documents.texts] == ["things that are red", "a red apple"]
    assert clicks.lengths == (2, 1)
    assert np.array_equal(table.grade, [1])
