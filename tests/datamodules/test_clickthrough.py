"""Queries and documents: examples and their negatives, queries to rank, and wrong input."""

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules import ClickthroughDataModule
from datamodules.batch import BatchContents, ClickBatch
from datamodules.clickthrough import ClickDataset, RankingDataset, hard_pool, relevant_documents
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Hits
from datamodules.sampling import longest_first
from tests.datamodules.kinds import Kind, clickthrough


@pytest.fixture
def kind(tmp_path: Path) -> Kind[ClickthroughDataModule]:
    return clickthrough(tmp_path)


def training_dataset(data: ClickthroughDataModule) -> ClickDataset:
    return data.dataset(data.split("train"), training=True)


def validation_dataset(data: ClickthroughDataModule) -> RankingDataset:
    return data.dataset(data.split("validation"))


def whole_epoch(dataset: ClickDataset, epoch: int = 0) -> ClickBatch:
    """All examples of an epoch in one batch."""
    return dataset.__getitems__(np.arange(len(dataset)) + epoch * len(dataset))


def texts_of(data: ClickthroughDataModule, batch: ClickBatch, row: int) -> tuple[str, str, set[str]]:
    """Query, relevant document and the documents that it competes with."""
    words = data.words.vocabulary.words

    def text_of(positions: Any) -> str:
        return " ".join(words[int(batch.word[position])] for position in positions if position)

    documents = [text_of(text) for text in batch.document_text]
    positive = int(batch.positive[row])
    others = {documents[m] for m in batch.candidate[row].nonzero()[:, 0].tolist() if m != positive}
    return text_of(batch.query_text[batch.query[row]]), documents[positive], others


def relevant_texts(judgements: Judgements, query: int) -> set[str]:
    return {judgements.documents.texts[row] for row, grade in judgements.grades(query).items() if grade > 0}


@pytest.mark.parametrize(
    ("negatives", "limit"),
    [
        ("random", 3),
        ("retrieved", 3),
        (["random", "retrieved"], 3),
        ("in_batch", None),
        (["in_batch", "random"], None),
    ],
)
def test_negatives_never_match(kind: Kind[ClickthroughDataModule], negatives: Any, limit: int | None) -> None:
    data = kind.prepared(negatives=negatives, num_negatives=3, num_hits=20)
    judgements, batch = data.split("train").judgements, whole_epoch(training_dataset(data))
    assert len(batch.row) > 40
    for row, judgement in enumerate(batch.row.tolist()):
        query, positive, others = texts_of(data, batch, row)
        number = int(judgements.query[judgement])
        assert query == judgements.queries.texts[number]
        assert positive in relevant_texts(judgements, number)
        assert others
        assert not others & relevant_texts(judgements, number)
        assert limit is None or len(others) <= limit


def test_in_the_batch_all_other_documents_compete(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared(negatives="in_batch")
    judgements, batch = data.split("train").judgements, whole_epoch(training_dataset(data))
    relevant = relevant_documents(judgements)
    queries, documents = judgements.query[batch.row.numpy()], judgements.document[batch.row.numpy()]
    for row, (query, positive) in enumerate(zip(queries, documents, strict=True)):
        for other, column in zip(documents, batch.positive.tolist(), strict=True):
            answers = bool(relevant.holds(np.array(int(query)), np.array(int(other))))
            assert bool(batch.candidate[row, column]) == (not answers or other == positive)


def test_documents_are_drawn_by_grade_without_replacement(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared(positives_per_query=2, negatives="random")
    dataset, judgements = training_dataset(data), data.split("train").judgements
    query = int(np.bincount(judgements.query[judgements.grade > 0]).argmax())
    own = np.flatnonzero((judgements.query == query) & (judgements.grade > 0)).tolist()
    counts = dict.fromkeys(own, 0)
    for epoch in range(600):
        drawn = [row for row in dataset.examples(epoch).tolist() if judgements.query[row] == query]
        assert len(set(drawn)) == len(drawn) == 2
        for row in drawn:
            counts[row] += 1
    grades = sorted({float(judgements.grade[row]) for row in own})
    means = [np.mean([counts[row] for row in own if judgements.grade[row] == grade]) for grade in grades]
    assert len(means) > 1
    # Weights 1, 3, 7 without replacement: each grade is drawn more often than the one below.
    assert all(low * 1.3 < high for low, high in itertools.pairwise(means))


def test_first_retrieved_hits_are_skipped() -> None:
    documents = Rows.from_lists([f"document {i}" for i in range(8)])
    judged = np.array([[0, 0], [2, 5], [1, 0]])
    relevant = relevant_documents(Judgements(Rows.from_lists(["query 0", "query 1"]), documents, *judged))
    rows = np.array([[1, 2, 3, 4, 5], [6, 7, -1, -1, -1]], np.int32)

    def pool(skip: int) -> list[list[int]]:
        lists = hard_pool(Hits(rows, np.ones(rows.shape, np.float32)), relevant, skip)
        return [lists[query].tolist() for query in range(len(lists))]

    # A document that is judged to be irrelevant is a negative.
    assert pool(0) == [[1, 3, 4, 5], [6, 7]]
    assert pool(1) == [[3, 4, 5], [7]]


def test_random_documents_replace_missing_hits(
    kind: Kind[ClickthroughDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    data = kind.prepared(negatives="retrieved", num_negatives=2, num_hits=20)
    no_hits: NDArray[np.int64] = np.zeros(len(data.split("train").judgements.queries) + 1, np.int64)
    dataset = training_dataset(data)
    dataset.pool = Ragged(np.zeros(0, np.int64), no_hits)
    assert (whole_epoch(dataset).candidate.sum(dim=1) == 3).all()
    with caplog.at_level(logging.WARNING):
        kind.prepared(negatives="retrieved", num_negatives=2, num_hits=20, skip_hits=12)
    assert "queries have no retrieved negatives; they get random ones" in caplog.text


def test_queries_to_rank_carry_their_judgements(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared(num_hits=7)
    judgements, batch = (data.split("validation").judgements, validation_dataset(data).__getitems__([3, ~1]))
    assert batch.weight.tolist() == [1, 0]
    assert batch.row.tolist() == [3, 1]
    of_query = judgements.query == 3
    assert batch.judged_document[batch.judged_query == 0].tolist() == judgements.document[of_query].tolist()
    assert batch.grade[batch.judged_query == 0].tolist() == judgements.grade[of_query].tolist()
    assert batch.candidate is None
    assert batch.hit.shape == (2, 7)
    assert (batch.hit[0] >= 0).any()
    hit = judgements.documents.texts[int(batch.hit[0, 0])]
    assert set(hit.split()) & set(judgements.queries.texts[3].split())


def test_documents_come_in_blocks_of_similar_length_once_each(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared()
    dataset = data.dataset(data.split("validation"), BatchContents(strings=True))
    columns = longest_first(dataset.texts.tokens.sizes, 8)
    blocks = [dataset.texts.batch(each) for each in columns]
    widths = [block.text.shape[1] for block in blocks]
    assert widths == sorted(widths, reverse=True)
    assert sorted(np.concatenate(columns).tolist()) == list(range(50))
    texts = dataset.split.judgements.documents.texts
    assert [block.string for block in blocks] == [texts.take(each) for each in columns]


def test_only_judged_documents_are_ranked(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared(evaluate="judged")
    dataset, judgements = validation_dataset(data), data.split("validation").judgements
    assert dataset.documents.tolist() == sorted(set(judgements.document.tolist()))
    batch = dataset.__getitems__([0, 2])
    for row, query in enumerate((0, 2)):
        columns = batch.candidate[row].nonzero()[:, 0].numpy()
        assert dataset.documents[columns].tolist() == sorted(judgements.grades(query))


def test_a_split_off_validation_shares_no_query(kind: Kind[ClickthroughDataModule]) -> None:
    data = kind.prepared()
    train, validation = (data.split(name).judgements for name in ("train", "validation"))
    assert not set(train.queries.ids) & set(validation.queries.ids)
    assert not set(train.queries.texts) & set(validation.queries.texts)  # duplicates stay together
    assert 0 < len(validation.queries) < len(train.queries)


def test_duplicates_of_training_queries_are_counted(kind: Kind[ClickthroughDataModule]) -> None:
    first = json.loads(Path(kind.options["train_queries"]).read_text().splitlines()[0])
    queries, judgements = kind.folder / "other.jsonl", kind.folder / "other.tsv"
    texts = {"q1": first["text"].upper(), "q2": "new"}
    queries.write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in texts.items()))
    judgements.write_text("q1 d1 1\nq2 d2 1\n")
    data = kind.prepared(validation_queries=str(queries), validation_judgements=str(judgements))
    assert data.duplicate_counts("validation") == {"rows_in_training": 1}


def test_queries_without_words_are_counted_and_not_trained_on(
    kind: Kind[ClickthroughDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    queries = Path(kind.options["train_queries"])
    lines = queries.read_text().splitlines()
    for number in (0, 5):
        lines[number] = json.dumps({"_id": f"q{number}", "text": " \t "})
    queries.write_text("\n".join(lines) + "\n")
    with caplog.at_level(logging.WARNING):
        data = kind.prepared(
            validation_queries=str(queries), validation_judgements=kind.options["train_judgements"]
        )
    assert "2 of 30 queries have no word (the first is ''); training skips them" in caplog.text
    assert not data.split("train").empty_queries[training_dataset(data).query].any()
    batch = validation_dataset(data).__getitems__(range(6))
    assert (batch.queries.text == 0).all(dim=1).tolist() == [True, False, False, False, False, True]


def test_a_table_of_documents_as_memory(kind: Kind[ClickthroughDataModule]) -> None:
    # The corpus is read by its titles, the memory by another column.
    data = kind.prepared(memory=kind.options["corpus_file"], memory_text_column="text", num_hits=5)
    hits = data.memory.open().search(["nothing 7"], 1)
    assert hits.memories.texts[int(hits.rows[0, 0])] == "nothing 7"


def test_judgements_that_leave_nothing_to_learn_are_refused(kind: Kind[ClickthroughDataModule]) -> None:
    ids = [json.loads(line)["_id"] for line in Path(kind.options["corpus_file"]).read_text().splitlines()]
    for lines, message in (
        ([f"q{query} 0 {document} 1" for query in range(4) for document in ids], "every document answers"),
        ([f"q{query} 0 d1 0" for query in range(10)], "no document has a grade above 0"),
    ):
        Path(kind.options["train_judgements"]).write_text("\n".join(lines))
        with pytest.raises(InputError, match=message):
            kind.prepared()
