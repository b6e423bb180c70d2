"""The click-through data: examples and their negatives, queries to rank, what is wrong with the input."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import ClickthroughDataModule
from datamodules.batch import ClickBatch
from datamodules.clickthrough.negatives import HardPool, Relevant
from datamodules.core.errors import InputError
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows
from tests.clicks import Collection, write_collection


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return write_collection(tmp_path / "clicks", documents=50, queries=30, seed=2)


@pytest.fixture
def ready(collection: Collection, tmp_path: Path) -> Any:
    """Makes data of the collection, prepared and set up."""

    def make(**options: Any) -> ClickthroughDataModule:
        given = {"document_column": "title", "validation_split": 0.2, "seed": 3, **options}
        data = ClickthroughDataModule(cache_dir=str(tmp_path / "cache"), **{**collection.options(), **given})
        data.prepare_data()
        data.setup("fit")
        return data

    return make


def examples(data: ClickthroughDataModule, epoch: int = 0, size: int = 1000) -> tuple[Any, ClickBatch]:
    dataset = data.training_dataset(data.split("train"))
    numbers = np.arange(min(size, len(dataset))) + epoch * len(dataset)
    return dataset, dataset.__getitems__(numbers)


def texts(batch: ClickBatch, data: ClickthroughDataModule, row: int) -> tuple[str, str, set[str]]:
    """Query, relevant document and the documents that it competes with."""
    words = data.vocabulary.words

    def said(text: Any) -> str:
        return " ".join(words[int(batch.word[place])] for place in text if place)

    documents = [said(text) for text in batch.document_text]
    positive = int(batch.positive[row])
    others = {documents[m] for m in batch.candidate[row].nonzero()[:, 0].tolist() if m != positive}
    return said(batch.query_text[batch.query[row]]), documents[positive], others


def relevant_texts(data: ClickthroughDataModule) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    judgements = data.split("train").judgements
    for query, document, grade in zip(judgements.query, judgements.document, judgements.grade, strict=True):
        if grade > 0:
            found.setdefault(judgements.queries.texts[query], set()).add(judgements.documents.texts[document])
    return found


@pytest.mark.parametrize(
    ("negatives", "drawn"),
    [
        ("random", {"count": 3}),
        ("retrieved", {"count": 3}),
        (["random", "retrieved"], {"count": 3}),
        ("in_batch", {}),
        (["in_batch", "random"], {}),
    ],
)
def test_no_negative_answers_the_query(negatives: Any, drawn: dict[str, int], ready: Any) -> None:
    data = ready(negatives=negatives, num_negatives=3, num_hits=20)
    known = relevant_texts(data)
    _, batch = examples(data)
    assert len(batch.row) > 40
    for row in range(len(batch.row)):
        query, positive, others = texts(batch, data, row)
        # A query that occurs twice is two queries with judgements of their own.
        assert positive in known[query]
        assert others
        judged = data.split("train").judgements
        of_query = int(judged.query[batch.row[row]])
        own = judged.grade[judged.query == of_query] > 0
        own_texts = {judged.documents.texts[d] for d in judged.document[judged.query == of_query][own]}
        assert not others & own_texts
        if drawn:
            assert len(others) <= drawn["count"]


def test_in_the_batch_all_other_documents_compete(ready: Any) -> None:
    data = ready(negatives="in_batch")
    _, batch = examples(data)
    relevant = Relevant.of(data.split("train").judgements)
    judged = data.split("train").judgements
    documents = judged.document[batch.row.numpy()]
    for row, (query, positive) in enumerate(zip(judged.query[batch.row.numpy()], documents, strict=True)):
        for other, column in zip(documents, batch.positive.tolist(), strict=True):
            answers = bool(relevant.holds(np.array(int(query)), np.array(int(other))))
            assert bool(batch.candidate[row, column]) == (not answers or other == positive)


def test_epochs_draw_anew_and_repeat_themselves(ready: Any) -> None:
    data = ready(negatives="random", num_negatives=2, positives_per_query=1)
    dataset, first = examples(data, epoch=0)
    _, second = examples(data, epoch=1)
    again = dataset.__getitems__(np.arange(len(dataset)))
    assert first.row.tolist() == again.row.tolist()
    assert first.document_text.tolist() == again.document_text.tolist()
    assert first.row.tolist() != second.row.tolist()


def test_relevant_documents_are_drawn_by_grade_without_replacement(ready: Any) -> None:
    data = ready(positives_per_query=2, negatives="random")
    dataset = data.training_dataset(data.split("train"))
    judged = data.split("train").judgements
    query = int(np.bincount(judged.query[judged.grade > 0]).argmax())
    own = np.flatnonzero((judged.query == query) & (judged.grade > 0))
    counts = dict.fromkeys(own.tolist(), 0)
    for epoch in range(600):
        drawn = [row for row in dataset.examples(epoch) if judged.query[row] == query]
        assert len(set(drawn)) == len(drawn) == 2
        for row in drawn:
            counts[row] += 1
    by_grade = {
        grade: np.mean([counts[row] for row in own.tolist() if judged.grade[row] == grade])
        for grade in sorted(set(judged.grade[own].tolist()))
    }
    assert len(by_grade) > 1
    # Weights 1, 3, 7 without replacement: each grade is drawn more often than the one below, in order.
    means = list(by_grade.values())
    assert all(low * 1.3 < high for low, high in itertools.pairwise(means))


def hits(*rows: list[int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64)


def judged_by(grades: dict[tuple[int, int], float], queries: int, documents: int) -> Judgements:
    pairs = sorted(grades)
    return Judgements(
        Rows.from_lists([f"query {i}" for i in range(queries)]),
        Rows.from_lists([f"document {i}" for i in range(documents)]),
        np.array([query for query, _ in pairs], np.int32),
        np.array([document for _, document in pairs], np.int32),
        np.array([grades[pair] for pair in pairs], np.float32),
        "judgements",
    )


def test_retrieved_hits_are_skipped_and_capped() -> None:
    relevant = Relevant.of(judged_by({(0, 2): 1, (0, 5): 0}, queries=2, documents=8))
    found, scores = hits([1, 2, 3, 4, 5], [6, 7, -1, -1, -1]), np.array([[9, 8, 7, 6, 5], [4, 3, 0, 0, 0]])

    def pool(skip: int, highest: float | None) -> list[list[int]]:
        made = HardPool.of(found, scores.astype(np.float32), relevant, skip, highest)
        return [made.documents[a:b].tolist() for a, b in zip(made.offsets, made.offsets[1:], strict=False)]

    # What is judged to be irrelevant is a negative.
    assert pool(0, None) == [[1, 3, 4, 5], [6, 7]]
    assert pool(1, None) == [[3, 4, 5], [7]]
    # The relevant hit of query 0 has 8: 9 is above that, and 7 above nine tenths of it... but not 6. Query 1 has none.
    assert pool(0, 1.0) == [[3, 4, 5], [6, 7]]
    assert pool(0, 0.8) == [[4, 5], [6, 7]]


def test_a_callback_replaces_the_retrieved_negatives(ready: Any) -> None:
    data = ready(negatives="retrieved", num_negatives=2, num_hits=20)
    dataset = data.training_dataset(data.split("train"))
    judged = data.split("train").judgements
    relevant = Relevant.of(judged)
    # The two first documents that no query of the batch has as relevant, or the next ones.
    mined = np.array(
        [
            [d for d in range(len(judged.documents)) if not relevant.holds(np.array(q), np.array(d))][:2]
            for q in range(len(judged.queries))
        ]
    )
    data.set_negatives(mined)
    batch = dataset.__getitems__(range(12))
    order = np.array([int(judged.query[row]) for row in batch.row])
    for row, query in enumerate(order):
        _, _, others = texts(batch, data, row)
        assert others == {judged.documents.texts[d] for d in mined[query]}


def test_where_no_hit_is_left_random_documents_take_the_place(
    ready: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = ready(negatives="retrieved", num_negatives=2, num_hits=20)
    pool = data.negatives.pool
    nothing = HardPool(pool.documents[:0], np.zeros_like(pool.offsets))
    data.negatives.pool = nothing
    _, batch = examples(data)
    assert (batch.candidate.sum(dim=1) == 3).all()
    with caplog.at_level(logging.WARNING):
        ready(negatives="retrieved", num_negatives=2, num_hits=20, skip_hits=12)
    assert "queries; they get random ones" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": "retrieved"}, "say how many hits to draw from with data.num_hits"),
        ({"negatives": ["in_batch", "near"]}, "data.negatives=.*use one or several of random, in_batch"),
        ({"negatives": []}, "use one or several of"),
        ({"negatives": "retrieved", "num_hits": 3, "skip_hits": 3}, "no retrieved negatives are left"),
        ({"train_file": "x.csv"}, "name data.train_queries and data.train_judgements in its place"),
        ({"highest_hit_score": 0.0}, "must be above 0"),
        ({"tokenizer": "bert-base-uncased"}, "data.tokenizer=.*use one of"),
        ({"evaluate": "all"}, "use one of collection, judged"),
        ({"num_negatives": 0}, "must be 1 or more"),
        ({"corpus_file": None}, "data.corpus_file: name the documents"),
        ({"train_queries": None}, "data.train_queries: name a file"),
    ],
)
def test_options_that_can_not_be(options: dict[str, Any], message: str, ready: Any) -> None:
    with pytest.raises(InputError, match=message):
        ready(**options)


def test_no_negatives_left(collection: Collection, ready: Any) -> None:
    ids = [json.loads(line)["_id"] for line in collection.corpus.read_text().splitlines()]
    lines = [f"q{q} 0 {document} 1" for q in range(4) for document in ids]
    collection.judgements.write_text("\n".join(lines))
    with pytest.raises(InputError, match="every document answers every query, so no negatives are left"):
        ready()


def test_judgements_of_nothing_relevant(collection: Collection, ready: Any) -> None:
    collection.judgements.write_text("".join(f"q{q} 0 d1 0\n" for q in range(10)))
    with pytest.raises(InputError, match="no query has a document with a grade above 0"):
        ready()


def test_empty_queries_are_counted_and_not_trained_on(
    collection: Collection, ready: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lines = collection.queries.read_text().splitlines()
    for number in (0, 5):
        lines[number] = json.dumps({"_id": f"q{number}", "text": " \t "})
    collection.queries.write_text("\n".join(lines) + "\n")
    with caplog.at_level(logging.WARNING):
        data = ready(
            validation_queries=str(collection.queries), validation_judgements=str(collection.judgements)
        )
    assert "2 of 30 queries have no word (the first is ''); training leaves them out" in caplog.text
    dataset = data.training_dataset(data.split("train"))
    assert not data.split("train").empty_queries[dataset.query].any()
    batch = data.dataset(data.split("validation")).__getitems__(range(6))
    assert (batch.text == 0).all(dim=1).tolist() == [True, False, False, False, False, True]


def test_queries_to_rank_carry_their_judgements(ready: Any) -> None:
    data = ready(num_hits=7)
    dataset = data.dataset(data.split("validation"))
    judged = data.split("validation").judgements
    batch = dataset.__getitems__([3, ~1])
    assert batch.weight.tolist() == [1, 0]
    assert batch.row.tolist() == [3, 1]
    of_query = judged.query == 3
    assert batch.judged_document[batch.judged_query == 0].tolist() == judged.document[of_query].tolist()
    assert batch.grade[batch.judged_query == 0].tolist() == judged.grade[of_query].tolist()
    assert batch.candidate is None
    assert batch.hit.shape == (2, 7)
    assert (batch.hit[0] >= 0).any()
    found = judged.documents.texts[int(batch.hit[0, 0])]
    assert set(found.split()) & set(judged.queries.texts[3].split())


def test_documents_come_in_blocks_of_like_length_once_each(ready: Any) -> None:
    data = ready()
    dataset = data.dataset(data.split("validation"))
    blocks = [dataset.document_batch(columns) for columns in dataset.document_blocks(8)]
    widths = [block.text.shape[1] for block in blocks]
    assert widths == sorted(widths, reverse=True)
    assert sorted(row for block in blocks for row in block.row.tolist()) == list(range(50))


def test_only_judged_documents_are_ranked(ready: Any) -> None:
    data = ready(evaluate="judged")
    dataset = data.dataset(data.split("validation"))
    judged = data.split("validation").judgements
    assert dataset.documents.tolist() == sorted(set(judged.document.tolist()))
    batch = dataset.__getitems__([0, 2])
    for row, query in enumerate((0, 2)):
        columns = batch.candidate[row].nonzero()[:, 0].numpy()
        assert sorted(dataset.documents[columns]) == sorted(judged.document[judged.query == query])


def test_a_split_off_validation_shares_no_query(ready: Any) -> None:
    data = ready()
    train, validation = (data.split(name).judgements for name in ("train", "validation"))
    assert not set(train.queries.ids) & set(validation.queries.ids)
    assert not set(train.queries.texts) & set(validation.queries.texts)  # copies stay together
    assert 0 < len(validation.queries) < len(train.queries)


def test_copies_of_training_queries_are_counted(collection: Collection, ready: Any, tmp_path: Path) -> None:
    first = json.loads(collection.queries.read_text().splitlines()[0])
    other = tmp_path / "other.jsonl"
    other.write_text(
        json.dumps({"_id": "q1", "text": first["text"].upper()})
        + "\n"
        + json.dumps({"_id": "q2", "text": "new"})
    )
    judgements = tmp_path / "other.tsv"
    judgements.write_text("q1 d1 1\nq2 d2 1\n")
    data = ready(validation_queries=str(other), validation_judgements=str(judgements))
    assert data.copy_counts("validation") == {"rows_in_training": 1}


def test_a_second_run_finds_all_prepared(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(num_hits=5)
    monkeypatch.setattr(ClickthroughDataModule, "read_tables", lambda *_: pytest.fail("read again"))
    assert len(ready(num_hits=5).split("train").judgements) > 0
