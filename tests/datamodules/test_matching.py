"""Pairs of texts: lists and batches against plain Python, negatives, encodings, and wrong input."""

import logging
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import InputError, MatchingDataModule
from datamodules.batch import BatchContents, MatchingBatch, TextBatch
from datamodules.corpora.pairs import Pairs
from datamodules.matching import MatchingSplit
from tests.datamodules.corpus import WORDS
from tests.datamodules.kinds import Kind, matching, training_batches

#: First text, second text, grade and row of a pair.
Pair = tuple[str, str, float, int]


@pytest.fixture
def kind(tmp_path: Path) -> Kind[MatchingDataModule]:
    return matching(tmp_path)


def words_of(data: MatchingDataModule, batch: MatchingBatch, text: torch.Tensor) -> str:
    """The words of a padded row, which has its padding at the end only."""
    kept = text[text != 0]
    assert not text[len(kept) :].any()
    return " ".join(data.words.vocabulary.words[number] for number in batch.word[kept].tolist())


def lists_of(data: MatchingDataModule, batches: list[MatchingBatch]) -> list[list[Pair]]:
    """The pairs of each list, after checking the form of the batches."""
    all_lists = []
    for batch in batches:
        assert batch.first_text.shape[0] == len(set(batch.first.tolist()))
        assert len({tuple(row) for row in batch.second_text.tolist()}) == len(batch.second_text)
        assert batch.idf.dtype == batch.target.dtype == batch.weight.dtype == torch.float32
        assert batch.query.tolist() == sorted(batch.query.tolist())
        lists: list[list[Pair]] = [[] for _ in range(int(batch.query.max()) + 1)]
        for first, second, number, position, target, row in zip(
            batch.first, batch.second, batch.query, batch.place, batch.target, batch.row, strict=True
        ):
            assert position == len(lists[number])
            texts = (batch.first_text[first], batch.second_text[second])
            words = [words_of(data, batch, text) for text in texts]
            lists[number].append((words[0], words[1], float(target), int(row)))
        all_lists += lists
    return all_lists


def training_lists(data: MatchingDataModule, epoch: int = 0) -> list[list[Pair]]:
    return lists_of(data, training_batches(data, epoch))


def table_of(split: MatchingSplit) -> list[Pair]:
    pairs = split.pairs
    texts = pairs.first.texts.take(pairs.first_row), pairs.second.texts.take(pairs.second_row)
    return list(zip(*texts, pairs.target.tolist(), range(len(pairs)), strict=True))


def as_known(data: MatchingDataModule, pair: Pair) -> Pair:
    """A pair with the unknown word in place of words that the vocabulary lacks."""
    vocabulary = data.words.vocabulary
    words, unknown = set(vocabulary.words), vocabulary.words[vocabulary.unk_id]
    first, second = (
        " ".join(word if word in words else unknown for word in text.split()) for text in pair[:2]
    )
    return first, second, pair[2], pair[3]


def by_question(pairs: list[Pair]) -> list[list[Pair]]:
    questions: dict[str, list[Pair]] = {}
    for pair in pairs:
        questions.setdefault(pair[0], []).append(pair)
    return list(questions.values())


def drawn_in(pairs: list[Pair]) -> list[Pair]:
    """The pairs of a list that are in no table."""
    return [pair for pair in pairs if pair[3] == -1]


def hits_of(data: MatchingDataModule, question: str, k: int) -> set[str]:
    hits = data.memory.open().search([question], k)
    return {hits.memories.texts[int(row)] for row in hits.rows[0] if row >= 0}


def test_an_evaluation_has_all_candidates_of_a_question_in_a_list(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared()
    for name, loader in (("validation", data.val_dataloader()), ("test", data.test_dataloader())):
        lists = lists_of(data, list(loader))
        table = by_question(table_of(data.split(name)))
        assert sorted(lists) == sorted([as_known(data, pair) for pair in pairs] for pairs in table)
        # Questions without a positive are included.
        assert any(all(pair[2] == 0 for pair in pairs) for pairs in lists)


def test_a_pairwise_list_is_a_positive_with_negatives_of_its_question(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(num_negatives=2)
    table = table_of(data.split("train"))
    lower = {
        pair: [other for other in table if other[0] == pair[0] and other[2] < pair[2]]
        for pair in table
        if pair[2] > 0
    }
    lists = training_lists(data)
    assert sorted(pairs[0] for pairs in lists) == sorted(pair for pair, others in lower.items() if others)
    for positive, *negatives in lists:
        assert len(set(negatives)) == len(negatives) == min(2, len(lower[positive]))
        assert set(negatives) <= set(lower[positive])


def test_each_epoch_draws_other_negatives_evenly(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(num_negatives=1)
    counts: Counter[tuple[Pair, Pair]] = Counter()
    for epoch in range(200):
        counts.update((positive, negative) for positive, negative in training_lists(data, epoch))
    sums: Counter[Pair] = Counter()
    kinds = Counter(positive for positive, _ in counts)
    for (positive, _), count in counts.items():
        sums[positive] += count
        # 200 draws from at most five: within five standard deviations of an even share.
        expected = 200 / kinds[positive]
        assert abs(count - expected) <= 5 * math.sqrt(expected)
    assert max(kinds.values()) > 2
    assert set(sums.values()) == {200}


def test_a_listwise_list_is_a_question_that_has_an_order(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(batches="listwise")
    questions = by_question(table_of(data.split("train")))
    expected = [pairs for pairs in questions if len({pair[2] for pair in pairs}) > 1]
    assert len(expected) < len(questions)
    assert sorted(training_lists(data)) == sorted(expected)


def test_pointwise_lists_are_single_pairs(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(batches="pointwise")
    assert sorted(training_lists(data)) == sorted([pair] for pair in table_of(data.split("train")))


@pytest.mark.parametrize("batches", ["pairwise", "listwise"])
def test_random_negatives_are_not_texts_of_the_question(kind: Kind[MatchingDataModule], batches: str) -> None:
    data = kind.prepared(batches=batches, negatives="random", num_negatives=3)
    own = {pairs[0][0]: {pair[1] for pair in pairs} for pairs in by_question(table_of(data.split("train")))}
    texts: set[str] = set()
    for pairs in training_lists(data):
        drawn = drawn_in(pairs)
        assert len({pair[1] for pair in drawn}) == len(drawn) == 3
        assert all(pair[2] == 0 and pair[1] not in own[pairs[0][0]] for pair in drawn)
        texts.update(pair[1] for pair in drawn)
    assert len(texts) > 20


@pytest.mark.parametrize("batches", ["pairwise", "listwise"])
def test_retrieved_negatives_are_the_best_wrong_hits(kind: Kind[MatchingDataModule], batches: str) -> None:
    data = kind.prepared(batches=batches, negatives="retrieved", num_negatives=50, num_candidates=8)
    excluded: dict[str, set[str]] = {}
    for pair in table_of(data.split("train")):
        if pair[2] > 0 or batches == "listwise":
            excluded.setdefault(pair[0], set()).add(pair[1])
    checked = 0
    for pairs in training_lists(data):
        question, drawn = pairs[0][0], [pair[1] for pair in drawn_in(pairs)]
        assert sorted(drawn) == sorted(hits_of(data, question, 8) - excluded.get(question, set()))
        checked += len(drawn)
    assert checked > 20


def test_negatives_come_from_a_memory_of_other_texts(kind: Kind[MatchingDataModule]) -> None:
    memory = kind.folder / "memory.csv"
    memory.write_text("body\n" + "\n".join(f"{word} quagga" for word in WORDS) + "\n")
    data = kind.prepared(memory=str(memory), memory_text_column="body", negatives="retrieved")
    drawn = [pair[1] for pairs in training_lists(data) for pair in drawn_in(pairs)]
    assert drawn
    assert all(text.endswith("quagga") for text in drawn)


def test_retrieved_candidates_join_an_evaluation_with_grade_0(kind: Kind[MatchingDataModule]) -> None:
    own = kind.prepared()
    data = kind.prepared(candidates="retrieved", num_candidates=6)
    before = {pairs[0][3]: pairs for pairs in by_question(table_of(own.split("validation")))}
    for pairs in lists_of(data, list(data.val_dataloader())):
        known = before[pairs[0][3]]
        assert pairs[: len(known)] == [as_known(own, pair) for pair in known]
        retrieved = pairs[len(known) :]
        expected = hits_of(data, known[0][0], 6) - {pair[1] for pair in known}
        assert {pair[1] for pair in retrieved} == expected
        assert all(pair[2] == 0 for pair in retrieved)


def test_pairs_to_classify_are_lists_of_one(tmp_path: Path) -> None:
    lines = ["1\ta b\tc\t7", "0\ta b\td\t8", "1\te\tf g\t9", "0\th\ti\t10"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    files = {name: str(tmp_path / "train.tsv") for name in ("train_file", "validation_file")}
    data = Kind(MatchingDataModule, tmp_path, layout="quora", **files).prepared()
    assert data.spec.goal == "classification"
    assert data.spec.num_outputs == 2
    assert data.monitor == "val/accuracy"
    expected = [[("a b", "c", 1, 0)], [("a b", "d", 0, 1)], [("e", "f g", 1, 2)], [("h", "i", 0, 3)]]
    assert sorted(training_lists(data)) == expected
    assert sorted(lists_of(data, list(data.val_dataloader()))) == expected


def test_no_question_is_in_two_splits(kind: Kind[MatchingDataModule]) -> None:
    whole = {pair[0] for pair in table_of(kind.prepared().split("train"))}
    kind.options |= {"validation_file": None, "test_file": None, "validation_split": 0.25, "test_split": 0.2}
    data = kind.prepared()
    parts = [{pair[0] for pair in table_of(data.split(name))} for name in ("train", "validation", "test")]
    assert set.union(*parts) == whole
    assert sum(map(len, parts)) == len(whole) == 30
    # Shares of the questions with and without a positive, each to the nearest question.
    assert all(abs(len(part) - size) <= 1 for part, size in zip(parts, (18, 6, 6), strict=True))
    other = kind.prepared(split_seed=1)
    assert {pair[0] for pair in table_of(other.split("test"))} != parts[2]


def test_cut_texts_are_counted(kind: Kind[MatchingDataModule], caplog: pytest.LogCaptureFixture) -> None:
    data = kind.prepared(first_length=3, second_length=4)
    texts = data.split("train").pairs.second.texts
    long = sum(len(text.split()) > 4 for text in texts)
    with caplog.at_level(logging.INFO, "datamodules"):
        for batch in training_batches(data):
            assert batch.first_text.shape[1] <= 3
            assert batch.second_text.shape[1] <= 4
    assert f"train: {long} of {len(texts)} texts are cut to data.second_length=4 words" in caplog.text


def test_texts_are_kept_as_long_as_the_model_reads(kind: Kind[MatchingDataModule]) -> None:
    (kind.folder / "train.csv").write_text(f"first,second,label\na,{'x ' * 700},1\na,y,0\nb,z,1\nb,y,0\n")
    data = kind.prepared(second_length=600)
    assert np.diff(data.split("train").second_tokens.offsets).max() == 601  # one more shows that it is cut


def test_idf_counts_distinct_training_texts(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(min_count=2)
    pairs, vocabulary = data.split("train").pairs, data.words.vocabulary
    texts = [set(text.split()) for rows in (pairs.first, pairs.second) for text in rows.texts]
    counts = Counter(word for words in texts for word in words)
    for batch in data.val_dataloader():
        for number, idf in zip(batch.word.tolist()[1:], batch.idf.tolist()[1:], strict=True):
            known = counts[vocabulary.words[number]] if number != vocabulary.unk_id else 0
            assert idf == pytest.approx(math.log((len(texts) + 1) / (known + 1)), rel=1e-6)
        assert batch.idf[0] == 0


def test_word_vectors_have_length_1(kind: Kind[MatchingDataModule]) -> None:
    file = kind.folder / "vectors.txt"
    file.write_text("lion 3 4\nsail 0 2\n")
    vectors = kind.prepared(word_vectors=str(file)).words.vectors()
    np.testing.assert_allclose(vectors[1:].norm(dim=1), 1, rtol=1e-5)
    assert not vectors[0].any()
    data = kind.prepared(word_vectors=str(file), normalize_vectors=False)
    vectors = data.words.vectors()
    assert vectors[data.words.vocabulary.words.index("lion")].tolist() == [3, 4]


def test_pairs_to_predict(kind: Kind[MatchingDataModule]) -> None:
    data = kind.prepared(characters=True)
    split = data.split_of(Pairs.from_lists(["the lion", "", "the lion"], ["a unheard", "", "oar"]))
    dataset = data.dataset(split, BatchContents(strings=True))
    batch = dataset.__getitems__(range(len(dataset)))
    assert batch.target.isnan().all()
    assert batch.query.tolist() == [0, 0, 1]
    assert batch.row.tolist() == [0, 2, 1]
    unknown = data.words.vocabulary.words[1]
    assert words_of(data, batch, batch.second_text[batch.second[0]]) == f"a {unknown}"
    assert not batch.second_text[batch.second[2]].any()
    strings = [
        (batch.first_string[f], batch.second_string[s])
        for f, s in zip(batch.first, batch.second, strict=True)
    ]
    assert strings == [("the lion", "a unheard"), ("the lion", "oar"), ("", "")]


def test_token_vectors_are_made_once_for_all_runs(kind: Kind[MatchingDataModule]) -> None:
    calls = 0

    def encode(batch: TextBatch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        ids = batch.word[batch.text]
        # Vectors after a text's end must not be read.
        vectors = torch.stack([ids, 2 * ids, torch.ones_like(ids)], dim=2).float()
        return vectors.masked_fill((batch.text == 0)[:, :, None], torch.nan)

    data = kind.prepared(second_length=5)
    contents = BatchContents(encoded_texts=data.encode_texts(encode, "encoder"))
    assert calls
    for split in (data.split("train"), data.split("validation")):
        for batch in data.dataset(split, contents).batches(7):
            for text, vector in (
                (batch.first_text, batch.first_vector),
                (batch.second_text, batch.second_vector),
            ):
                ids = batch.word[text] * (text != 0)
                assert torch.equal(vector, torch.stack([ids, 2 * ids, (text != 0).long()], dim=2).float())
    calls = 0
    kind.prepared(second_length=5).encode_texts(encode, "encoder")
    assert not calls
    kind.prepared(second_length=5).encode_texts(encode, "another")
    assert calls


@pytest.mark.parametrize(
    ("table", "lines", "options", "part"),
    [
        ("train", "a,x,0\nb,y,0\n", {}, "no pair has a label above 0"),
        ("train", "a,x,1\nb,y,1\n", {}, "set data.negatives=random"),
        ("validation", "a,x,0\na,y,0\n", {}, "no question of the validation pairs has a positive"),
        ("train", "a,x,1\na,y,0\n", {"validation_file": None}, "no question of the validation pairs has"),
    ],
)
def test_tables_without_anything_to_learn_or_to_select_by_are_refused(
    kind: Kind[MatchingDataModule], table: str, lines: str, options: dict[str, None], part: str
) -> None:
    (kind.folder / f"{table}.csv").write_text("first,second,label\n" + lines)
    with pytest.raises(InputError, match=part):
        kind.prepared(**options)


def test_questions_of_empty_candidates_and_of_one_are_counted(
    kind: Kind[MatchingDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    lines = "first,second,label\na,,1\na,,0\nb,x,1\nb,y,0\nc,z,1\nd,,0\nd,x,1\n"
    (kind.folder / "train.csv").write_text(lines)
    with caplog.at_level(logging.INFO, "datamodules"):
        data = kind.prepared()
    assert "7 pairs of 4 questions; 0 questions have no positive, 1 have one candidate" in caplog.text
    assert "no candidate of 1 questions has a word (the first is 'a')" in caplog.text
    assert sorted(pairs[0][0] for pairs in training_lists(data)) == ["b", "d"]
