"""Readers of dialogues: published files and tables, and errors that name the line."""

from pathlib import Path
from typing import Any

import pytest

from datamodules.core.storage import prepared_folder
from datamodules.corpora.dialogues import Dialogues, read_dialogues, read_hmn4qa, with_free_question_marks
from tests.datamodules.checks import refused
from tests.dialogues import made_up, write_jsonl, write_lines, write_published, write_records


def texts(table: Dialogues, number: int) -> tuple[list[str], list[str], list[str | None]]:
    """Turns, questions and answers of a dialogue."""
    turns = slice(*table.turn_offsets[number : number + 2])
    rows, questions = slice(*table.question_offsets[number : number + 2]), table.questions
    return table.turns.texts[turns], questions.texts[rows], questions.table.column("label")[rows].to_pylist()


def test_a_published_file_and_a_table_give_the_same_dialogues(tmp_path: Path) -> None:
    dialogues = made_up(5, seed=1)
    published = read_hmn4qa(write_published(tmp_path / "a.txt", dialogues))
    table = read_dialogues(write_jsonl(tmp_path / "a.jsonl", dialogues))
    assert len(published) == len(table) == 5
    for number, dialogue in enumerate(dialogues):
        assert texts(published, number) == texts(table, number) == tuple(dialogue)
    assert published.questions.ids[0].endswith(f"a.txt, line {len(dialogues[0].turns) + 1}")


def test_a_record_may_have_many_questions_and_a_dialogue_many_records(tmp_path: Path) -> None:
    file = write_records(
        tmp_path / "a.jsonl",
        {"talk": ["a b", "c"], "asked": ["x", "y"], "right": ["b", "c"], "key": 1},
        {"talk": ["d"], "asked": "z", "right": "d", "key": 2},
        {"talk": ["a b", "c"], "asked": "w", "right": "a", "key": 1},
    )
    table = read_dialogues(file, "talk", "asked", "right", "key")
    assert table.ids.to_pylist() == ["1", "2"]
    assert texts(table, 0) == (["a b", "c"], ["x", "y", "w"], ["b", "c", "a"])
    assert texts(read_dialogues(file, "talk", "asked", None), 1) == (["d"], ["z"], [None])


def test_tables_are_selected_joined_and_saved(tmp_path: Path) -> None:
    table = read_hmn4qa(write_published(tmp_path / "a.txt", made_up(6, seed=1)))
    parts = [table.select([4, 1]), table.select([0])]
    joined = Dialogues.concat(parts)
    assert [texts(joined, i) for i in range(3)] == [texts(table, i) for i in (4, 1, 0)]
    name, fingerprint = prepared_folder(tmp_path, "saved", joined.fingerprint, joined.save)
    saved = Dialogues.open(tmp_path / name, fingerprint)
    assert [texts(saved, i) for i in range(3)] == [texts(joined, i) for i in range(3)]
    assert saved.fingerprint == joined.fingerprint != table.fingerprint


def test_question_marks_are_tokens_of_their_own() -> None:
    assert with_free_question_marks("who is it? 是谁？") == "who is it ? 是谁 ？"
    assert with_free_question_marks("what?! a?b ? ??") == "what?! a?b ? ??"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (["1 who ?\tkim\t1"], "line 1: a question before any turn"),
        (["1 hello", "2 who ?\tkim"], "line 2: 2 columns"),
        (["1 hello", "2 who ?\tkim\t1\t2"], "line 2: 4 columns"),
        (["1 hello", "2 a", "2 b"], "line 3: 2 after 2"),
        (["1 hello", "3 b"], "line 2: 3 after 1"),
        (["2 hello"], "line 1: 2 after 0"),
        (["hello"], "line 1: does not start with a number"),
        (["1 hello", "2 who ?\t \t1"], "line 2: an empty answer"),
        (["1 hello", "2 who ?\thello\t1", "3 more"], "line 3: a turn after a question"),
        (["1 hello", "2 there"], "no question"),
    ],
)
def test_a_wrong_published_file_is_refused(tmp_path: Path, contents: list[str], message: str) -> None:
    file = write_lines(tmp_path / "a.txt", *contents)
    with refused(file, match=message):
        read_hmn4qa(file)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([{"turns": [], "question": "q", "answer": "a"}], "line 1: a dialogue without turns"),
        ([{"turns": [3], "question": "q", "answer": "a"}], "line 1: column 'turns' is not a string"),
        ([{"turns": ["a"], "question": ["q", "r"], "answer": "a"}], "line 1: 1 answers for 2 questions"),
        ([{"turns": ["a"], "question": "q"}], "no column 'answer'"),
        (
            [{"turns": [t], "question": "q", "answer": t, "id": "x"} for t in "ab"],
            "line 2: another dialogue has the id 'x'",
        ),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, contents: list[dict[str, Any]], message: str) -> None:
    file = write_records(tmp_path / "a.jsonl", *contents)
    with refused(match=message):
        read_dialogues(file, id_column="id" if "id" in contents[0] else None)
