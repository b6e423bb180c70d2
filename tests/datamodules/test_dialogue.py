"""Dialogues: what is read, what is refused, what a batch says."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import DialogueDataModule, InputError
from datamodules.corpora.dialogue_readers import read_dialogues, read_hmn4qa, with_free_question_marks
from datamodules.corpora.dialogues import Dialogues
from datamodules.dialogue.dataset import spelling_of
from datamodules.retrieval import ElasticsearchRetriever
from tests.dialogues import made_up, write_jsonl, write_published


def lines(path: Path, *contents: str) -> Path:
    path.write_text("\n".join(contents) + "\n", encoding="utf-8")
    return path


def records(path: Path, *contents: dict[str, Any]) -> Path:
    return lines(path, *map(json.dumps, contents))


def texts(table: Dialogues, number: int) -> tuple[list[str], list[str], list[str | None]]:
    turns = slice(*table.turn_offsets[number : number + 2])
    rows = range(*table.question_offsets[number : number + 2])
    asked = table.questions
    return table.turns.texts[turns], [asked.texts[row] for row in rows], [asked.label(row) for row in rows]


def module(folder: Path, **options: Any) -> DialogueDataModule:
    given = {"layout": "hmn4qa", "cache_dir": str(folder / "cache"), "batch_size": 4, **options}
    data = DialogueDataModule(**given)
    data.prepare_data()
    data.setup("fit")
    return data


# --- readers ---


def test_a_published_file_and_a_table_say_the_same(tmp_path: Path) -> None:
    dialogues = made_up(5, seed=1)
    published = read_hmn4qa(write_published(tmp_path / "a.txt", dialogues))
    table = read_dialogues(write_jsonl(tmp_path / "a.jsonl", dialogues))
    assert len(published) == len(table) == 5
    for number, one in enumerate(dialogues):
        assert texts(published, number) == texts(table, number) == (one.turns, one.questions, one.answers)
    assert published.questions.ids[0].endswith(f"a.txt, line {len(dialogues[0].turns) + 1}")


def test_a_record_may_hold_many_questions_and_a_dialogue_many_records(tmp_path: Path) -> None:
    file = records(
        tmp_path / "a.jsonl",
        {"said": ["a b", "c"], "asked": ["x", "y"], "right": ["b", "c"], "key": 1},
        {"said": ["d"], "asked": "z", "right": "d", "key": 2},
        {"said": ["a b", "c"], "asked": "w", "right": "a", "key": 1},
    )
    table = read_dialogues(file, "said", "asked", "right", "key")
    assert table.ids == ["1", "2"]
    assert texts(table, 0) == (["a b", "c"], ["x", "y", "w"], ["b", "c", "a"])
    assert texts(read_dialogues(file, "said", "asked", None), 1) == (["d"], ["z"], [None])


def test_selecting_joining_and_keeping(tmp_path: Path) -> None:
    table = read_hmn4qa(write_published(tmp_path / "a.txt", made_up(6, seed=1)))
    parts = [table.select([4, 1]), table.select([0])]
    joined = Dialogues.concat(parts)
    assert [texts(joined, i) for i in range(3)] == [texts(table, i) for i in (4, 1, 0)]
    (tmp_path / "kept").mkdir()
    joined.save(tmp_path / "kept")
    kept = Dialogues.load(tmp_path / "kept", "kept")
    assert [texts(kept, i) for i in range(3)] == [texts(joined, i) for i in range(3)]
    assert kept.fingerprint == joined.fingerprint != table.fingerprint


def test_question_marks_belong_to_no_word() -> None:
    assert with_free_question_marks("who is it? 是谁？") == "who is it ? 是谁 ？"
    assert with_free_question_marks("what?! a?b ? ??") == "what?! a?b ? ??"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (["1 who ?\tkim\t1"], "line 1: a question before any turn"),
        (["1 hello", "2 who ?\tkim"], "line 2: 2 columns"),
        (["1 hello", "2 who ?\tkim\t1\t2"], "line 2: 4 columns"),
        (["1 hello", "2 a", "2 b"], "line 3: the id 2 occurs twice"),
        (["1 hello", "3 b"], "line 2: 3 after 1"),
        (["2 hello"], "line 1: 2 after 0"),
        (["hello"], "line 1: starts with no number"),
        (["1 hello", "2 who ?\t \t1"], "line 2: an empty answer"),
        (["1 hello", "2 who ?\thello\t1", "3 more"], "line 3: a turn after a question"),
        (["1 hello", "2 there"], "no question"),
    ],
)
def test_a_published_file_that_is_none(tmp_path: Path, contents: list[str], message: str) -> None:
    file = lines(tmp_path / "a.txt", *contents)
    with pytest.raises(InputError, match=message) as caught:
        read_hmn4qa(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([{"turns": [], "question": "q", "answer": "a"}], "line 1: a dialogue without turns"),
        ([{"turns": [3], "question": "q", "answer": "a"}], "line 1: column 'turns' holds no string"),
        ([{"turns": ["a"], "question": ["q", "r"], "answer": "a"}], "line 1: 2 questions, but 1 answers"),
        ([{"turns": ["a"], "question": "q"}], "no column 'answer'"),
        (
            [{"turns": [t], "question": "q", "answer": t, "id": "x"} for t in "ab"],
            "line 2: the id 'x' belongs to another dialogue",
        ),
    ],
)
def test_a_table_that_is_none(tmp_path: Path, contents: list[dict[str, Any]], message: str) -> None:
    file = records(tmp_path / "a.jsonl", *contents)
    with pytest.raises(InputError, match=message) as caught:
        read_dialogues(file, id_column="id" if "id" in contents[0] else None)
    assert "\n" not in str(caught.value)


def test_an_answer_of_several_tokens_is_refused(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.txt", "1 hello kim", "2 who ?\tkim hello\t1", "1 a", "2 b ?\ta\t1")
    with pytest.raises(InputError, match=r"a.txt, line 2: the answer 'kim hello' has 2 tokens"):
        module(tmp_path, train_file=str(file), validation_file=str(file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "xml"}, "data.layout=xml"),
        ({"tokenizer": "bert"}, "data.tokenizer=bert"),
        ({"max_turns": 0}, "data.max_turns=0"),
        ({"turns_kept": "best"}, "data.turns_kept=best"),
        ({"characters": True}, "data.characters"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DialogueDataModule(**options)


def test_tables_must_be_named() -> None:
    with pytest.raises(InputError, match=r"data\.train_file"):
        DialogueDataModule().read_tables(["validation"])
    with pytest.raises(InputError, match=r"data\.test_file"):
        DialogueDataModule(train_file="a").read_tables(["test"])


# --- words ---


def test_the_vocabulary_is_of_training_dialogues(tmp_path: Path) -> None:
    train = lines(
        tmp_path / "train.txt",
        *("1 a b b rare", "2 what ?\trare\t1"),
        *("1 a c twice twice", "2 what ?\tc\t1"),
        *("1 a c", "2 what ?\ta\t1"),
    )
    dev = lines(tmp_path / "dev.txt", "1 new a", "2 what ?\tnew\t1")
    data = module(tmp_path, train_file=str(train), validation_file=str(dev))
    # `b` and `twice` occur twice, but in one dialogue.
    assert sorted(data.vocabulary.words[2:]) == ["?", "a", "c", "what"]
    frequency = dict(zip(data.vocabulary.words, data.state()["frequency"], strict=True))
    assert frequency["a"] == frequency["what"] == 3
    assert frequency["c"] == 2
    assert frequency["<unk>"] == 0
    papers = module(
        tmp_path,
        train_file=str(train),
        validation_file=str(dev),
        vocabulary_files=[str(dev)],
        min_count=1,
    )
    assert sorted(papers.vocabulary.words[2:]) == sorted(["?", "a", "b", "c", "new", "rare", "twice", "what"])
    assert papers.state()["frequency"][papers.vocabulary.words.index("new")] == 0


def test_several_tables_are_one(tmp_path: Path) -> None:
    files = [str(write_published(tmp_path / f"{i}.txt", made_up(4, seed=i))) for i in range(2)]
    data = module(tmp_path, train_file=files, validation_split=0.25)
    assert len(data.dataset(data.split("train"))) == 6
    assert len(data.dataset(data.split("validation"))) == 2


# --- batches ---


def spoken(data: DialogueDataModule, batch: Any, row: int) -> list[list[str]]:
    """The words of a question's dialogue, turn by turn, as choices and spellings say them."""
    dialogue = int(batch.dialogue[row])
    turns: list[list[str]] = [[] for _ in range(int(batch.readable[row].sum()))]
    for place, position in enumerate(batch.text[dialogue].tolist()):
        if position:
            choice = int(batch.choice[dialogue, place])
            known = choice < len(data.vocabulary)
            word = data.vocabulary.words[choice] if known else f"#{int(batch.spelling[position])}"
            assert known == (int(batch.spelling[position]) == 0)
            own = batch.own[dialogue, choice - len(data.vocabulary)] if not known else position
            assert int(own) == position
            turn = turns[int(batch.turn[dialogue, place])]
            turn.append(word)
            assert int(batch.place[dialogue, place]) == len(turn)
    return turns


def test_a_batch_says_what_the_table_says(tmp_path: Path) -> None:
    dialogues = made_up(12, seed=3)
    file = str(write_published(tmp_path / "a.txt", dialogues))
    data = module(tmp_path, train_file=file, validation_file=file)
    batch = data.dataset(data.split("train")).__getitems__([7, ~2, 4])
    known = set(data.vocabulary.words)
    expected = [(i, q) for i in (7, 2, 4) for q in range(len(dialogues[i].questions))]
    assert len(batch.row) == len(expected)
    assert len(batch.text) == 3  # each dialogue once
    for row, (number, question) in enumerate(expected):
        one = dialogues[number]
        said = [[w if w in known else f"#{spelling_of(w)}" for w in turn.split()] for turn in one.turns]
        assert spoken(data, batch, row) == said
        answer, right = int(batch.answer[row]), one.answers[question]
        if right in known:
            assert data.vocabulary.words[answer] == right
        else:
            position = batch.own[int(batch.dialogue[row]), answer - len(known)]
            assert int(batch.spelling[position]) == spelling_of(right)
        asked = batch.question[row][batch.question[row] != 0]
        assert len(asked) == len(one.questions[question].split())
        assert batch.weight[row] == (number != 2)
    assert batch.age[0].tolist()[: len(dialogues[7].turns)] == list(range(len(dialogues[7].turns)))[::-1]
    again = pickle.loads(pickle.dumps(data.split("train")))
    assert torch.equal(data.dataset(again).__getitems__([7]).text, data.dataset(again).__getitems__([7]).text)


def test_answers_that_are_no_choice_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = lines(tmp_path / "train.txt", *("1 a b", "2 what ?\ta\t1") * 2)
    dev = lines(tmp_path / "dev.txt", "1 b c", "2 what ?\tnowhere\t1", "3 what ?\ta\t1", "4 what ?\tc\t1")
    data = module(tmp_path, train_file=str(train), validation_file=str(dev))
    with caplog.at_level(logging.WARNING):
        data.val_dataloader()
    assert "1 of 3 questions can't be answered right" in caplog.text
    assert f"'nowhere', {dev}, line 2" in caplog.text
    batch = data.dataset(data.split("validation")).__getitems__([0])
    # `a` is a word of the vocabulary, `c` one of the dialogue.
    assert batch.answer.tolist() == [-1, data.vocabulary.words.index("a"), len(data.vocabulary)]


def test_a_very_long_dialogue_keeps_its_latest_turns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [f"{i} word{i} said" for i in range(1, 10_001)]
    file = lines(tmp_path / "a.txt", *turns, "10001 what ?\tword9999\t1", "1 a", "2 what ?\ta\t1")
    with caplog.at_level(logging.WARNING):
        data = module(tmp_path, train_file=str(file), validation_file=str(file), max_turns=100)
    assert "1 of 2 dialogues have more than data.max_turns=100 turns" in caplog.text
    assert data.spec.num_turns == 100
    batch = data.dataset(data.split("train")).__getitems__([0, 1])
    assert batch.text.shape == (2, 200)
    assert batch.readable.sum(dim=1).tolist() == [100, 1]
    assert int(batch.answer[0]) >= 0
    assert np.array_equal(data.dataset(data.split("train")).lengths, [200, 1])


def test_long_turns_are_cut(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.txt", "1 a b c d", "2 e", "3 x y z w\ta\t2", "1 a", "2 b\ta\t1")
    data = module(tmp_path, train_file=str(file), validation_file=str(file), max_length=3)
    batch = data.dataset(data.split("train")).__getitems__([0])
    assert batch.place.tolist() == [[1, 2, 3, 1]]
    assert batch.question.shape == (1, 3)


# --- turns that are retrieved ---


def test_with_room_for_all_turns_retrieval_changes_nothing(tmp_path: Path) -> None:
    file = str(write_published(tmp_path / "a.txt", made_up(6, seed=3)))
    batches = []
    for kept, k in (("latest", 256), ("retrieved", 256), ("retrieved", 8)):
        data = module(tmp_path, train_file=file, validation_file=file, turns_kept=kept, max_turns=k)
        assert data.spec.num_turns == 8
        batches.append(data.dataset(data.split("train")).__getitems__(range(6)))
    for batch in batches[1:]:
        assert all(torch.equal(one, other) for one, other in zip(batch, batches[0], strict=True))


def test_retrieved_turns_are_the_questions_own(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "a.txt",
        *(
            "1 the ship leaves at dawn",
            "2 nothing here",
            "3 her name is kim",
            "4 nothing there",
            "5 good bye",
        ),
        *("6 when does the ship leave dawn\tdawn\t5", "7 which name\tkim\t5", "8 unheard\tbye\t5"),
        # Better hits, but of another dialogue.
        *("1 name which name", "2 ship ship dawn", "3 the ship", "4 which which name\tship\t3"),
    )
    options = {"train_file": str(file), "validation_file": str(file), "turns_kept": "retrieved"}
    data = module(tmp_path, **options, max_turns=1)
    table = data.split("train").dialogues
    assert [table.turns.texts[turn] for turn in data.split("train").reading.values.tolist()] == [
        "the ship leaves at dawn",
        "her name is kim",
        "good bye",  # nothing is found: the latest
        "name which name",
    ]
    batch = data.dataset(data.split("train")).__getitems__([0, 1])
    assert batch.readable.tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
        [True, False, False],
    ]
    assert batch.age[0].tolist() == [4, 2, 0]
    assert batch.age[1].tolist()[0] == 2
    # In memory as from the cache, and filled up with the latest.
    now = data.split_of(table)
    assert np.array_equal(now.reading.values, data.split("train").reading.values)
    more = module(tmp_path, **options, max_turns=2).split("train").reading
    assert more.values[:6].tolist() == [0, 4, 2, 4, 3, 4]


def test_more_hits_are_asked_for_until_enough_are_inside(tmp_path: Path) -> None:
    other = [f"{i} the same words again" for i in range(1, 61)]
    file = lines(
        tmp_path / "a.txt",
        *other, "61 same\tsame\t60",
        *("1 a longer turn with the same words once more", "2 nothing", "3 same words\tnothing\t2"),
    )  # fmt: skip
    data = module(
        tmp_path, train_file=str(file), validation_file=str(file), turns_kept="retrieved", max_turns=1
    )
    assert data.split("train").reading.values.tolist()[-1] == 60


@pytest.mark.server
def test_a_server_finds_the_same_turns(tmp_path: Path, elasticsearch_url: str, index_prefix: str) -> None:
    file = str(write_published(tmp_path / "a.txt", made_up(12, seed=3)))
    server = ElasticsearchRetriever(url=elasticsearch_url, index_prefix=index_prefix)
    readings = [
        module(
            tmp_path / back_end,
            train_file=file,
            validation_file=file,
            turns_kept="retrieved",
            max_turns=2,
            **options,
        )
        .split("train")
        .reading
        for back_end, options in (("embedded", {}), ("server", {"retriever": server}))
    ]
    assert np.array_equal(readings[0].values, readings[1].values)
