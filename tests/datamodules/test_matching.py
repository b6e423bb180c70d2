"""From files of pairs to batches of lists: against plain Python, and with everything that can be wrong."""

from __future__ import annotations

import logging
import math
import os
import pickle
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.trainer.states import TrainerFn

from datamodules import InputError, MatchingDataModule, base, words
from datamodules.batch import MatchingBatch, TextBatch
from datamodules.corpora.pairs import Pairs
from datamodules.matching import datamodule as module
from datamodules.matching import tables
from datamodules.matching.dataset import MatchingSplit
from datamodules.retrieval import EmbeddedRetriever
from datamodules.text.tokens import TokenStore
from datamodules.words import WordPart
from tests.datamodules.corpus import WORDS, in_processes


def write_pairs(path: Path, questions: int, seed: int) -> str:
    """Questions with 1 to 6 candidates of grades 0 to 2; some have no positive, some candidates are shared."""
    rng = random.Random(seed)
    lines, shared = ["first,second,label"], [" ".join(rng.choices(WORDS, k=4)) for _ in range(5)]
    for number in range(questions):
        question = " ".join([f"q{seed}x{number}", *rng.choices(WORDS, k=rng.randint(1, 5))])
        for _ in range(rng.randint(1, 6)):
            own = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
            text = rng.choice(shared) if rng.random() < 0.2 else own
            lines.append(f"{question},{text},{rng.choice((0, 0, 0, 1, 2))}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {
        "train_file": write_pairs(tmp_path / "train.csv", 30, seed=0),
        "validation_file": write_pairs(tmp_path / "validation.csv", 9, seed=1),
        "test_file": write_pairs(tmp_path / "test.csv", 7, seed=2),
    }


def make(tmp_path: Path, files: dict[str, str], **options: Any) -> MatchingDataModule:
    given = {"batch_size": 4, "cache_dir": str(tmp_path / "cache"), "seed": 0, **files, **options}
    return MatchingDataModule(**given)


def prepared(tmp_path: Path, files: dict[str, str], **options: Any) -> MatchingDataModule:
    data = make(tmp_path, files, **options)
    data.prepare_data()
    data.setup("fit")
    return data


def training_batches(data: MatchingDataModule, epoch: int = 0) -> list[MatchingBatch]:
    loader = data.train_dataloader()
    loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
    return list(loader)


def same(a: list[MatchingBatch], b: list[MatchingBatch]) -> bool:
    return len(a) == len(b) and all(
        y is not None and torch.equal(x, y)
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
        if x is not None
    )


def shown(data: MatchingDataModule, batch: MatchingBatch, text: torch.Tensor) -> str:
    """The words of a padded row, which has its padding at the end only."""
    kept = text[text != 0]
    assert not text[len(kept) :].any()
    return " ".join(data.vocabulary.words[number] for number in batch.word[kept].tolist())


Seen = tuple[str, str, float, int]


def lists_of(data: MatchingDataModule, batches: list[MatchingBatch]) -> list[list[Seen]]:
    """First text, second text, grade and row of the pairs of each list, after checking the batches' form."""
    found = []
    for batch in batches:
        assert batch.first_text.shape[0] == len(set(batch.first.tolist()))
        assert len({tuple(row) for row in batch.second_text.tolist()}) == len(batch.second_text)
        assert batch.idf.dtype == batch.target.dtype == batch.weight.dtype == torch.float32
        assert batch.query.tolist() == sorted(batch.query.tolist())
        lists: list[list[Seen]] = [[] for _ in range(int(batch.query.max()) + 1)]
        for first, second, number, place, target, index in zip(
            batch.first, batch.second, batch.query, batch.place, batch.target, batch.row, strict=True
        ):
            assert place == len(lists[number])
            lists[number].append(
                (
                    shown(data, batch, batch.first_text[first]),
                    shown(data, batch, batch.second_text[second]),
                    float(target),
                    int(index),
                )
            )
        found += lists
    return found


def table_of(split: MatchingSplit) -> list[Seen]:
    pairs = split.pairs
    return [
        (pairs.first.texts[int(f)], pairs.second.texts[int(s)], float(t), row)
        for row, (f, s, t) in enumerate(zip(pairs.first_row, pairs.second_row, pairs.target, strict=True))
    ]


def as_known(data: MatchingDataModule, row: Seen) -> Seen:
    """A pair with the words that the model does not know replaced."""
    words, unknown = set(data.vocabulary.words), data.vocabulary.words[data.vocabulary.unk_id]
    first, second = (
        " ".join(word if word in words else unknown for word in text.split()) for text in row[:2]
    )
    return first, second, row[2], row[3]


def by_question(rows: list[Seen]) -> list[list[Seen]]:
    questions: dict[str, list[Seen]] = {}
    for row in rows:
        questions.setdefault(row[0], []).append(row)
    return list(questions.values())


# --- lists --------------------------------------------------------------------------------------------------


def test_evaluation_has_all_candidates_of_a_question_in_a_list(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    for name, loader in (("validation", data.val_dataloader()), ("test", data.test_dataloader())):
        found = lists_of(data, list(loader))
        expected = [[as_known(data, row) for row in one] for one in by_question(table_of(data.split(name)))]
        assert sorted(found) == sorted(expected)
        assert any(all(row[2] == 0 for row in one) for one in found)  # questions without a positive too


def test_a_pairwise_list_is_a_positive_with_negatives_of_its_question(
    tmp_path: Path, files: dict[str, str]
) -> None:
    data = prepared(tmp_path, files, num_negatives=2)
    table = table_of(data.split("train"))
    lower = {
        row: [other for other in table if other[0] == row[0] and other[2] < row[2]]
        for row in table
        if row[2] > 0
    }
    found = lists_of(data, training_batches(data))
    assert sorted(one[0] for one in found) == sorted(row for row, others in lower.items() if others)
    for positive, *negatives in found:
        assert len(set(negatives)) == len(negatives) == min(2, len(lower[positive]))
        assert set(negatives) <= set(lower[positive])


def test_negatives_are_drawn_anew_and_evenly(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, num_negatives=1)
    counts: Counter[tuple[Seen, Seen]] = Counter()
    for epoch in range(200):
        counts.update((a, b) for a, b in lists_of(data, training_batches(data, epoch)))
    sums = Counter({a: 0 for a, _ in counts})
    kinds = Counter(a for a, _ in counts)
    for (positive, _), count in counts.items():
        sums[positive] += count
        # 200 draws from at most five: within five standard deviations of an even share.
        expected = 200 / kinds[positive]
        assert abs(count - expected) <= 5 * math.sqrt(expected)
    assert max(kinds.values()) > 2
    assert set(sums.values()) == {200}


def test_a_listwise_list_is_a_question_that_has_an_order(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, batches="listwise")
    questions = by_question(table_of(data.split("train")))
    expected = [rows for rows in questions if len({row[2] for row in rows}) > 1]
    assert len(expected) < len(questions)
    assert sorted(lists_of(data, training_batches(data))) == sorted(expected)


def test_pointwise_lists_are_single_pairs(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, batches="pointwise")
    found = lists_of(data, training_batches(data))
    assert sorted(found) == sorted([row] for row in table_of(data.split("train")))


@pytest.mark.parametrize("batches", ["pairwise", "listwise"])
def test_random_negatives_are_no_texts_of_the_question(
    tmp_path: Path, files: dict[str, str], batches: str
) -> None:
    data = prepared(tmp_path, files, batches=batches, negatives="random", num_negatives=3)
    own: dict[str, set[str]] = {}
    for row in table_of(data.split("train")):
        own.setdefault(row[0], set()).add(row[1])
    seen: set[str] = set()
    for one in lists_of(data, training_batches(data)):
        drawn = [row for row in one if row[3] == -1]
        assert len({row[1] for row in drawn}) == len(drawn) == 3
        assert all(row[2] == 0 and row[1] not in own[one[0][0]] for row in drawn)
        seen.update(row[1] for row in drawn)
    assert len(seen) > 20


@pytest.mark.parametrize("batches", ["pairwise", "listwise"])
def test_retrieved_negatives_are_the_best_hits_that_do_not_match(
    tmp_path: Path, files: dict[str, str], batches: str
) -> None:
    data = prepared(
        tmp_path, files, batches=batches, negatives="retrieved", num_negatives=50, num_candidates=8
    )
    memory = data.open_memory()
    left_out: dict[str, set[str]] = {}
    for row in table_of(data.split("train")):
        if row[2] > 0 or batches == "listwise":
            left_out.setdefault(row[0], set()).add(row[1])
    checked = 0
    for one in lists_of(data, training_batches(data)):
        question = one[0][0]
        hits = memory.search([question], 8)
        texts = [hits.memories.texts[int(row)] for row in hits.rows[0] if row >= 0]
        drawn = [row[1] for row in one if row[3] == -1]
        assert sorted(drawn) == sorted(set(texts) - left_out.get(question, set()))
        checked += len(drawn)
    assert checked > 20


def test_a_memory_of_other_texts_gives_negatives_of_its_own(tmp_path: Path, files: dict[str, str]) -> None:
    memory = tmp_path / "memory.csv"
    memory.write_text("body\n" + "\n".join(f"{word} quagga" for word in WORDS) + "\n")
    options = {"memory": str(memory), "memory_text_column": "body", "negatives": "retrieved"}
    data = prepared(tmp_path, files, **options)
    drawn = [row[1] for one in lists_of(data, training_batches(data)) for row in one if row[3] == -1]
    assert drawn
    assert all(text.endswith("quagga") for text in drawn)


def test_retrieved_candidates_join_evaluation_with_grade_0(tmp_path: Path, files: dict[str, str]) -> None:
    own = prepared(tmp_path, files)
    data = prepared(tmp_path, files, candidates="retrieved", num_candidates=6)
    before = {one[0][3]: one for one in by_question(table_of(own.split("validation")))}
    memory = data.open_memory()
    for one in lists_of(data, list(data.val_dataloader())):
        known = before[one[0][3]]
        assert one[: len(known)] == [as_known(own, row) for row in known]
        hits = memory.search([known[0][0]], 6)
        texts = {hits.memories.texts[int(row)] for row in hits.rows[0] if row >= 0}
        assert {row[1] for row in one[len(known) :]} == texts - {row[1] for row in known}
        assert all(row[2] == 0 for row in one[len(known) :])


# --- batches ------------------------------------------------------------------------------------------------


def test_texts_are_cut_and_said_so(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "datamodules"):
        data = prepared(tmp_path, files, first_length=3, second_length=4)
    second = data.split("train").pairs.second.texts
    long = sum(len(text.split()) > 4 for text in second)
    assert (
        f"{long} of {len(second)} distinct second texts are cut to data.second_length=4 words" in caplog.text
    )
    for batch in training_batches(data):
        assert batch.first_text.shape[1] <= 3
        assert batch.second_text.shape[1] <= 4
    caplog.clear()
    with caplog.at_level(logging.INFO, "datamodules"):
        prepared(tmp_path, files, first_length=3, second_length=4)
    assert caplog.text.count("second_length=4") == 3  # said of prepared data too, once a table


def test_idf_counts_distinct_training_texts(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, min_count=2)
    pairs = data.split("train").pairs
    texts = [set(text.split()) for rows in (pairs.first, pairs.second) for text in rows.texts]
    counts = Counter(word for words in texts for word in words)
    for batch in data.val_dataloader():
        for number, idf in zip(batch.word.tolist()[1:], batch.idf.tolist()[1:], strict=True):
            known = counts[data.vocabulary.words[number]] if number != data.vocabulary.unk_id else 0
            assert idf == pytest.approx(math.log((len(texts) + 1) / (known + 1)), rel=1e-6)
        assert batch.idf[0] == 0


def test_word_vectors_have_length_1(tmp_path: Path, files: dict[str, str]) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("lion 3 4\nsail 0 2\n")
    table = prepared(tmp_path, files, word_vectors=str(vectors)).word_vectors()
    assert table is not None
    np.testing.assert_allclose(table[1:].norm(dim=1), 1, rtol=1e-5)
    assert not table[0].any()
    data = prepared(tmp_path, files, word_vectors=str(vectors), normalize_vectors=False)
    plain = data.word_vectors()
    assert plain is not None
    assert plain[data.vocabulary.words.index("lion")].tolist() == [3, 4]


def test_pairs_to_classify_are_lists_of_one(tmp_path: Path) -> None:
    lines = ["1\ta b\tc\t7", "0\ta b\td\t8", "1\te\tf g\t9", "0\th\ti\t10"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    files = {name: str(tmp_path / "train.tsv") for name in ("train_file", "validation_file")}
    data = prepared(tmp_path, files, layout="quora")
    assert data.spec.goal == "classification"
    assert data.spec.num_outputs == 2
    assert data.monitor == "val/accuracy"
    expected = [[("a b", "c", 1, 0)], [("a b", "d", 0, 1)], [("e", "f g", 1, 2)], [("h", "i", 0, 3)]]
    assert sorted(lists_of(data, training_batches(data))) == expected
    assert sorted(lists_of(data, list(data.val_dataloader()))) == expected


def test_pairs_that_come_now(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, characters=True)
    split = data.split_of(Pairs.from_lists(["the lion", "", "the lion"], ["a unheard", "", "oar"]))
    known = len(data.words)
    with data.dataset_for_now(split) as dataset:
        batch = dataset.__getitems__(range(len(dataset)))
    assert len(data.words) == known
    assert batch.target.isnan().all()
    assert batch.query.tolist() == [0, 0, 1]
    assert batch.row.tolist() == [0, 2, 1]
    assert shown(data, batch, batch.second_text[batch.second[0]]) == f"a {data.vocabulary.words[1]}"
    assert not batch.second_text[batch.second[2]].any()


# --- splits, seeds, workers, processes ----------------------------------------------------------------------


def test_no_question_is_in_two_splits(tmp_path: Path, files: dict[str, str]) -> None:
    alone = {"train_file": files["train_file"]}
    data = prepared(tmp_path, alone, validation_split=0.25, test_split=0.2)
    parts = [{row[0] for row in table_of(data.split(name))} for name in ("train", "validation", "test")]
    whole = {row[0] for row in table_of(prepared(tmp_path, files).split("train"))}
    assert set.union(*parts) == whole
    assert sum(map(len, parts)) == len(whole) == 30
    # Shares of the questions with and without a positive, each to the nearest question.
    assert all(abs(len(part) - size) <= 1 for part, size in zip(parts, (18, 6, 6), strict=True))
    other = prepared(tmp_path, alone, validation_split=0.25, test_split=0.2, split_seed=1)
    assert {row[0] for row in table_of(other.split("test"))} != parts[2]


def test_seed_and_epoch_alone_decide_what_is_drawn(tmp_path: Path, files: dict[str, str]) -> None:
    options: dict[str, Any] = {"num_negatives": 1, "negatives": "random"}
    first = training_batches(prepared(tmp_path, files, **options), epoch=3)
    assert same(training_batches(prepared(tmp_path, files, **options), epoch=3), first)
    assert not same(training_batches(prepared(tmp_path, files, **options), epoch=4), first)
    assert not same(training_batches(prepared(tmp_path, files, **{**options, "seed": 1}), epoch=3), first)
    with_workers = prepared(tmp_path, files, num_workers=2, **options)
    assert same(training_batches(with_workers, epoch=3), first)


def test_lists_of_like_length_share_a_batch(tmp_path: Path, files: dict[str, str]) -> None:
    def width(bucket: bool) -> int:
        batches = training_batches(prepared(tmp_path, files, bucket_by_length=bucket))
        return sum(batch.second_text.shape[1] for batch in batches)

    assert width(True) < width(False)


def test_processes_share_the_questions(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, eval_batch_size=4)
    alone = list(data.val_dataloader())
    together: list[MatchingBatch] = []
    for rank in range(2):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        together += list(data.val_dataloader())
    assert (len(alone), len(together)) == (3, 4)
    # 9 questions in 3 batches: the fourth is one of them again, and none of its pairs counts.
    assert [float(batch.weight.max()) for batch in together].count(0) == 1
    real = [batch for batch in together if batch.weight.all()]
    assert sorted(lists_of(data, real)) == sorted(lists_of(data, alone))


def test_a_spawned_worker_gets_names_of_files(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, negatives="retrieved")
    split = data.split("train")
    assert len(pickle.dumps(split)) < 2000
    again = pickle.loads(pickle.dumps(data.dataset(split)))
    assert same([again.__getitems__([3, 1])], [data.dataset(split).__getitems__([3, 1])])


# --- the cache ----------------------------------------------------------------------------------------------


def test_a_second_prepare_does_no_work(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"negatives": "retrieved", "candidates": "retrieved"}
    first = training_batches(prepared(tmp_path, files, **options))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("worked again")

    monkeypatch.setattr(tables, "read_pairs", never)
    monkeypatch.setattr(module, "build_neighbors", never)
    monkeypatch.setattr(TokenStore, "build", never)
    assert same(training_batches(prepared(tmp_path, files, **options)), first)
    prepared(tmp_path, files, batch_size=2, seed=5, **options)
    with pytest.raises(AssertionError, match="worked again"):
        prepared(tmp_path, files)


@pytest.mark.parametrize("kind", ["pairs", "tokens", "vocabulary", "rows", "pool", "plan"])
def test_a_deleted_part_of_the_cache_is_made_again(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    first = training_batches(prepared(tmp_path, files, negatives="retrieved"))
    for path in (tmp_path / "cache").glob(f"{kind}-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert same(training_batches(prepared(tmp_path, files, negatives="retrieved")), first)


def test_a_damaged_part_is_named_and_made_again(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    prepared(tmp_path, files)
    whole = {path: path.read_bytes() for path in (tmp_path / "cache").glob("pairs-*/target.npy")}
    for path, contents in whole.items():
        path.write_bytes(contents[:-4])
    prepared(tmp_path, files)
    assert len(whole) > 1
    assert all(f"{path}: damaged" in caplog.text for path in whole)
    assert {path: path.read_bytes() for path in whole} == whole


def _prepare(tmp_path: Path, files: dict[str, str]) -> None:
    prepared(tmp_path, files, negatives="retrieved")


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["build_neighbors", "tokenise", "choose_words", "write_json"])
def test_a_killed_prepare_goes_on(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for part in ("alone", "killed"):
        (tmp_path / part).mkdir()
    expected = training_batches(prepared(tmp_path / "alone", files, negatives="retrieved"))
    with monkeypatch.context() as patch:
        places = {"build_neighbors": module, "tokenise": WordPart, "choose_words": words, "write_json": base}
        patch.setattr(places[where], where, _die)
        assert in_processes(1, _prepare, tmp_path / "killed", files) == [-signal.SIGKILL]
    again = prepared(tmp_path / "killed", files, negatives="retrieved")
    assert same(training_batches(again), expected)


# --- checkpoints, memory, encodings -------------------------------------------------------------------------


def test_the_state_makes_the_same_batches(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, min_count=2, characters=True)
    state = data.state()
    assert state["class"] == "MatchingDataModule"
    again = MatchingDataModule(**state["options"])
    again.use_state(state)
    assert again.spec == data.spec
    pairs = Pairs.from_lists(["the lion", "oar"], ["lion quagga", "sail"])
    batches = [module.dataset(module.split_of(pairs)).__getitems__([0, 1]) for module in (data, again)]
    for a, b in zip(*batches, strict=True):
        assert a is None or torch.equal(a, b) or a.isnan().all()


def test_the_memory_is_built_when_it_is_first_asked_for(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    assert not Path(str(data.memory_location)).exists()
    again = MatchingDataModule(**data.options)
    again.use_state(data.state())
    second = data.split("train").pairs.second.texts
    found = again.open_memory().search([second[3]], 1)
    assert found.memories.texts[int(found.rows[0, 0])] == second[3]
    assert again.open_memory(data.memory_location).fingerprint == data.open_memory().fingerprint
    with pytest.raises(InputError, match="there is no memory"):
        make(tmp_path, files).open_memory()


def test_token_vectors_are_made_once_for_all_runs(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, second_length=5)
    calls = 0

    def encode(batch: TextBatch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        ids = batch.word[batch.text]
        # Anything behind a text's end must not be read.
        vectors = torch.stack([ids, 2 * ids, torch.ones_like(ids)], dim=2).float()
        return vectors.masked_fill((batch.text == 0)[:, :, None], torch.nan)

    data.cache_encodings(encode, "encoder")
    assert calls
    for batch in [*training_batches(data), *data.val_dataloader()]:
        for text, vector in (
            (batch.first_text, batch.first_vector),
            (batch.second_text, batch.second_vector),
        ):
            assert vector is not None
            ids = batch.word[text] * (text != 0)
            assert torch.equal(vector, torch.stack([ids, 2 * ids, (text != 0).long()], dim=2).float())
    calls = 0
    prepared(tmp_path, files, second_length=5, seed=7).cache_encodings(encode, "encoder")
    assert not calls
    prepared(tmp_path, files, second_length=5).cache_encodings(encode, "another")
    assert calls


# --- what is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"num_negatives": 0}, "data.num_negatives=0: must be 1 or more"),
        ({"goal": "sorting"}, "data.goal=sorting: use one of ranking, classification"),
        ({"batches": "setwise"}, "data.batches=setwise"),
        ({"validation_split": 1.5}, "data.validation_split=1.5"),
        ({"test_split": 0.1}, "data.test_split and data.test_file"),
        ({"goal": "classification", "batches": "pairwise"}, "data.batches=pairwise"),
        ({"batches": "pointwise", "negatives": "random"}, "data.negatives=random"),
        ({"layout": "trec"}, "data.queries_file"),
        ({"goal": "classification", "candidates": "retrieved"}, "set goal=ranking"),
        ({"memory": "nowhere", "negatives": "retrieved"}, "data.memory=nowhere: no such memory"),
        ({"train_file": None}, "data.train_file"),
    ],
)
def test_wrong_options(tmp_path: Path, files: dict[str, str], options: dict[str, Any], part: str) -> None:
    def fit() -> None:
        data = make(tmp_path, {**files, **options})
        data.trainer = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.FITTING))  # type: ignore[assignment]
        data.prepare_data()

    with pytest.raises(InputError) as error:
        fit()
    assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ("a,x,0\nb,y,0\n", "no pair has a label above 0"),
        ("a,x,1\nb,y,1\n", "set data.negatives=random"),
    ],
)
def test_nothing_to_learn_is_said(tmp_path: Path, files: dict[str, str], rows: str, part: str) -> None:
    (tmp_path / "poor.csv").write_text("first,second,label\n" + rows)
    with pytest.raises(InputError, match=part):
        prepared(tmp_path, {**files, "train_file": str(tmp_path / "poor.csv")})


@pytest.mark.parametrize(
    ("rows", "options", "part"),
    [
        ("a,x,1\na,y,0\n", {"validation_file": None}, "no question is left for validation"),
        ("a,x,0\na,y,0\n", {}, "no question of the validation pairs has a positive"),
    ],
)
def test_validation_that_could_not_choose_an_epoch_is_refused(
    tmp_path: Path, files: dict[str, str], rows: str, options: dict[str, Any], part: str
) -> None:
    poor = tmp_path / "poor.csv"
    poor.write_text("first,second,label\n" + rows)
    key = "train_file" if options else "validation_file"
    with pytest.raises(InputError, match=part):
        prepared(tmp_path, {**files, **options, key: str(poor)})


def test_long_texts_are_kept_as_long_as_the_model_reads(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.csv").write_text(f"first,second,label\na,{'x ' * 700},1\na,y,0\nb,z,1\nb,y,0\n")
    long = {**files, "train_file": str(tmp_path / "train.csv")}
    with caplog.at_level(logging.INFO, "datamodules"):
        longest = np.diff(
            prepared(tmp_path, long, second_length=600).split("train").second_tokens.offsets
        ).max()
    assert longest > 600
    assert "1 of 3 distinct second texts are cut to data.second_length=600 words" in caplog.text


def test_questions_of_empty_candidates_and_of_one_are_counted(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = "first,second,label\na,,1\na,,0\nb,x,1\nb,y,0\nc,z,1\nd,,0\nd,x,1\n"
    (tmp_path / "train.csv").write_text(rows)
    with caplog.at_level(logging.INFO, "datamodules"):
        data = prepared(tmp_path, {**files, "train_file": str(tmp_path / "train.csv")})
    assert "7 pairs of 4 questions; 0 questions have no positive, 1 have one candidate" in caplog.text
    assert "no candidate of 1 questions has a word (the first is 'a')" in caplog.text
    found = lists_of(data, training_batches(data))
    assert sorted(one[0][0] for one in found) == ["b", "d"]


def test_a_split_without_preparation_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="not prepared"):
        make(tmp_path, files).setup("fit")
    with pytest.raises(InputError, match="no vocabulary yet"):
        assert make(tmp_path, files).spec


def test_another_retriever_is_another_memory(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, negatives="retrieved")
    other = prepared(
        tmp_path, files, negatives="retrieved", retriever=EmbeddedRetriever(similarity="LMDirichlet")
    )
    assert data.memory_location != other.memory_location
