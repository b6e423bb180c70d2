"""Charts are drawn whatever their texts hold, and what can't be drawn ends no run."""

from __future__ import annotations

import csv
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest

from callbacks import Chart, chart

NAMES = ["price $a_$ b", "cost $5^^$", "R&D <x> \\frac{"]
Kind = Literal["lines", "bars", "map"]


def make(kind: Kind, names: list[str], **options: Any) -> Chart:
    lines: list[list[Any]] = [
        [row if kind == "lines" else name, *(0.1 * row for _ in names)] for row, name in enumerate(names)
    ]
    return Chart("name", "Title $x_$", ["label", *names], lines, kind, value="share", **options)


def read(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.reader(opened))


@pytest.mark.parametrize("kind", ["lines", "bars", "map"])
def test_dollars_begin_no_formula(tmp_path: Path, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    picture = make(kind, NAMES).write(tmp_path, epoch=3)
    assert picture == tmp_path / "name.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert read(tmp_path / "name.csv")[0] == ["label", *NAMES]
    assert not caplog.records


def test_letters_that_no_font_has_are_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chart._tell_of_boxes.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            make("bars", ["\U000f0000", "b"]).write(tmp_path, epoch=0)
    (record,) = caplog.records
    assert "drawn as boxes" in record.getMessage()


def test_a_picture_that_fails_is_named_and_leaves_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = make("bars", ["a", "b"])
    drawn.write(tmp_path, epoch=0)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no ink\nleft")

    monkeypatch.setattr(chart, "_draw", fail)
    with caplog.at_level(logging.WARNING):
        assert drawn.write(tmp_path, epoch=1) is None
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path.name}/name.png could not be drawn (RuntimeError: no ink left); the run goes on"
    )
    # The picture of an earlier epoch is not beside the table of this one.
    assert [file.name for file in tmp_path.iterdir()] == ["name.csv"]


def test_long_names_keep_both_ends() -> None:
    first, second = (
        chart._short(f"Administrative law and the regulation of {topic}")
        for topic in ("public procurement", "telecommunications")
    )
    assert first != second
    assert len(first) == len(second) == 40
    assert chart._short("a" * 40) == "a" * 40


def test_a_map_shows_what_it_is_told_to_and_its_table_has_all(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    lines = [["a", 1, 2, 3], ["b", 4, 5, 6], ["c", 7, 8, 9]]
    part = Chart("part", "t", ["label", *names], lines, "map", value="texts", shown=["c", "a"])
    (image,) = chart._draw(part, 0).axes[0].images
    assert image.get_array().tolist() == [[1, 3], [7, 9]]
    part.write(tmp_path, epoch=0)
    assert len(read(tmp_path / "part.csv")) == 4


def test_one_line_sets_no_scale_and_what_is_missing_has_no_colour(tmp_path: Path) -> None:
    """Thirty texts with twenty memories of weight 0.05, one with a single memory that has all of the weight."""
    lines: list[list[Any]] = [[f"text {row}", *[0.05] * 20] for row in range(30)]
    lines.append(["alone", 1.0, *[None] * 19])
    columns = ["text", *map(str, range(1, 21))]
    marked = [[0, 19], *[[]] * 30]
    drawn = Chart("map", "t", columns, lines, "map", value="weight", mark="same label", marked=marked)
    axes = chart._draw(drawn, 0).axes[0]
    (image,) = axes.images
    assert image.get_clim() == (0, pytest.approx(0.05))
    assert int(image.get_array().mask.sum()) == 19
    assert axes.get_xlabel().endswith("grey: none; dot: same label")
    drawn.write(tmp_path, epoch=0)
    head, first, *_, last = read(tmp_path / "map.csv")
    assert head[-1] == "same label"
    assert first[-1] == "1 20"
    assert last == ["alone", "1.0", *[""] * 20]


def test_a_flat_curve_lies_below_the_frame() -> None:
    flat = Chart("flat", "t", ["rank", "share"], [[1, 0.2], [2, 0.2]], "lines", value="share")
    assert chart._draw(flat, 0).axes[0].get_ylim() == (0, pytest.approx(0.21))
