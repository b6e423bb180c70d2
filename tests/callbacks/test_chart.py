"""Charts are drawn with any texts; a chart that can't be drawn ends no run."""

import csv
import logging
import warnings
from pathlib import Path
from typing import Literal

import pytest

from callbacks import Chart, chart

NAMES = ["price $a_$ b", "cost $5^^$", "R&D <x> \\frac{"]
Kind = Literal["lines", "map"]


def make(kind: Kind, names: list[str]) -> Chart:
    rows = [[row if kind == "lines" else name, *(0.1 * row for _ in names)] for row, name in enumerate(names)]
    return Chart("name", "Title $x_$", ["label", *names], rows, kind, value="share")


def read(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.reader(opened))


@pytest.mark.parametrize("kind", ["lines", "map"])
def test_dollars_begin_no_formula(tmp_path: Path, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    picture = make(kind, NAMES).write(tmp_path, epoch=3)
    assert picture == tmp_path / "name.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert read(tmp_path / "name.csv")[0] == ["label", *NAMES]
    assert not caplog.records


def test_letters_without_a_font_are_drawn_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make("map", ["\U000f0000", "b"]).write(tmp_path, epoch=0)


def test_a_picture_that_fails_is_logged_and_its_table_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = make("map", ["a", "b"])
    drawn.write(tmp_path, epoch=0)

    def fail(*_: object) -> None:
        raise RuntimeError("no ink\nleft")

    monkeypatch.setattr(chart, "_draw", fail)
    with caplog.at_level(logging.WARNING):
        assert drawn.write(tmp_path, epoch=1) is None
    (record,) = caplog.records
    assert record.getMessage() == f"skipped picture {tmp_path.name}/name.png: RuntimeError: no ink left"
    # An earlier epoch's picture does not remain next to this epoch's table.
    assert [file.name for file in tmp_path.iterdir()] == ["name.csv"]


def test_one_row_sets_no_scale_and_missing_values_have_no_color(tmp_path: Path) -> None:
    """Thirty texts with twenty memories of weight 0.05, one with a single memory that has all of the weight."""
    rows = [[f"text {row}", *[0.05] * 20] for row in range(30)]
    columns = ["text", *map(str, range(1, 21))]
    marked = [[0, 19], *[[]] * 30]
    rows.append(["alone", 1.0, *[None] * 19])
    drawn = Chart("map", "t", columns, rows, "map", value="weight", mark="same label", marked=marked)
    axes = chart._draw(drawn, 0).axes[0]
    (image,) = axes.images
    assert image.get_clim() == (0, pytest.approx(0.05))
    assert int(image.get_array().mask.sum()) == 19
    far = [["text", 0.4, 0.85, 0.6], ["other", 0.41, 0.84, 0.5]]
    (image,) = chart._draw(drawn._replace(columns=columns[:4], rows=far, marked=()), 0).axes[0].images
    assert image.get_clim() == pytest.approx((0.4, 0.85), abs=0.01)
    assert axes.get_xlabel().endswith("gray: none; dot: same label")
    drawn.write(tmp_path, epoch=0)
    head, first, *_, last = read(tmp_path / "map.csv")
    assert head[-1] == "same label"
    assert first[-1] == "1 20"
    assert last == ["alone", "1.0", *[""] * 20]


def test_a_flat_curve_lies_below_the_frame() -> None:
    flat = Chart("flat", "t", ["rank", "share"], [[1, 0.2], [2, 0.2]], "lines", value="share")
    assert chart._draw(flat, 0).axes[0].get_ylim() == (0, pytest.approx(0.21))
