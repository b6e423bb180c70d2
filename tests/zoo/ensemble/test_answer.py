"""The answer of an ensemble: its sentence and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from callbacks import chart
from zoo.ensemble.answer import Answer, LeftOut, Line


def line_of(name: str, right: int, of_all: int = 90) -> Line:
    difference = (of_all - right) / 100
    return Line(name, 100, right, 0.03, difference, 0.02, 5, 5)


def answer_of(**right: int) -> Answer:
    names = {"without": "without memory", "memory": "memory alone"}
    lines = [line_of(names.get(name, name), number) for name, number in right.items()]
    return Answer("test", lines, [], LeftOut())


def test_a_member_that_is_ahead_of_all_is_named() -> None:
    answer = answer_of(majority=25, svm=88, lexical=92, encoder=91, without=95, memory=80, all=90)
    assert answer.sentence().endswith(
        " Ahead of all on its own: linear SVM of words and letters, 92.0 % (+2.0 ± 2.0 points, p = 1)."
    )
    assert "on its own" not in answer_of(majority=25, lexical=90, without=95, all=90).sentence()


def test_the_picture_shows_differences_and_groups(tmp_path: Path) -> None:
    answer = answer_of(majority=25, svm=84, lexical=86, encoder=80, without=88, memory=82, all=90)
    answer.write(tmp_path)
    assert (tmp_path / "answer.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "answer.csv").read_text().splitlines()[:2] == [
        "test rows,\"accuracy, %\",standard error,group", "majority class,25.0,3.0,reference",
    ]  # fmt: skip
    figure = chart._draw(answer.chart(), None)
    axes = figure.axes[0]
    # The majority class is an arrow at the left end: an axis from 25 would show no differences.
    assert axes.get_xlim() == pytest.approx((76.2, 93.3), abs=0.5)
    (arrow,) = [line for line in axes.lines if line.get_marker() == "<"]
    assert arrow.get_ydata() == [0]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["reference", "member", "combination"]
    groups = {str(group.get_label()): group.lines[0] for group in axes.containers}
    assert {name: list(dots.get_xdata()) for name, dots in groups.items()} == {
        "reference": [84], "member": [86, 80], "combination": [88, 82, 90],
    }  # fmt: skip
    assert len({dots.get_color() for dots in groups.values()}) == 3


def test_all_rows_are_on_the_axis_if_none_is_far_from_the_others() -> None:
    axes = chart._draw(answer_of(svm=70, lexical=80, all=90).chart(), None).axes[0]
    assert axes.get_xlim()[0] < 67
    assert not [line for line in axes.lines if line.get_marker() == "<"]
