"""The scores that `zoo test` prints."""

from __future__ import annotations

from zoo.runs.evaluation import MOST_CLASSES, Scores


def as_text(scores: dict[str, float], classes: dict[str, float]) -> str:
    return Scores(scores, classes, {}, None, None, None).as_text()


def test_figures_of_all_rows_and_of_classes() -> None:
    classes = {"f1/a/b": 0.5, "f1/c": 1.0, "recall/a/b": 0.25}
    assert as_text({"loss": 0.63871, "rows": 4000.0}, classes).splitlines() == [
        "loss     0.6387",
        "rows      4,000",
        "",
        "            f1     recall",
        "a/b     0.5000     0.2500",
        "c       1.0000           ",
    ]


def test_of_many_classes_some_are_shown() -> None:
    lines = as_text({}, {f"f1/{number}": 0.5 for number in range(MOST_CLASSES + 7)}).splitlines()
    assert lines[-1] == "and 7 more classes (--output FILE has all)"
    assert len(lines) == 2 + MOST_CLASSES + 1
