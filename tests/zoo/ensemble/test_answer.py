"""The answer of an ensemble: its sentence and its picture."""

from pathlib import Path

from tests.zoo.conftest import read_csv
from zoo.ensemble.answer import Answer, Line, left_out_of


def answer_of(**right: int) -> Answer:
    names = {"without": "without memory", "memory": "memory alone"}
    lines = [
        Line(names.get(name, name), 100, number, 0.03, (90 - number) / 100, 0.02, 5, 5, 1.0)
        for name, number in right.items()
    ]
    return Answer("test", lines, [], left_out_of(None))


def test_a_member_that_is_ahead_of_all_is_named() -> None:
    answer = answer_of(majority=25, six=88, lexical=92, encoder=91, without=95, memory=80, all=90)
    assert answer.sentence().endswith(
        " Ahead of all on its own: linear SVM of words and letters, 92.0 % (+2.0 ± 2.0 points, p = 1)."
    )
    assert "on its own" not in answer_of(majority=25, lexical=90, without=95, all=90).sentence()


def test_the_table_is_written_as_csv(tmp_path: Path) -> None:
    answer = answer_of(majority=25, six=84, all=90)
    answer.write(tmp_path)
    rows = read_csv(tmp_path / "answer.csv")
    assert [row["name"] for row in rows] == ["majority", "six", "all"]
    assert [float(row["accuracy"]) for row in rows] == [0.25, 0.84, 0.9]
    assert [float(row["difference"]) for row in rows] == [line.difference for line in answer.lines]
