"""`results.csv`: the figures of README and of the examples are those of its rows; damaged files; `--scores`."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import pytest

from datamodules.core.errors import InputError
from tests.figures import PAGES, cells_of, figures_of
from tests.zoo.conftest import Zoo, done
from zoo.reproduce.results import RESULTS, Score, merge, read_scores
from zoo.reproduce.table import load_table

HEADER = ",".join(Score._fields) + "\n"
LINE = "mine,M1,KNNBiLSTM,val/accuracy,50.5,,1,,0.1.0\n"


def test_the_figures_of_the_pages_are_those_of_the_results() -> None:
    scores, named, compared = read_scores(RESULTS), set[str](), set[str]()
    for place, text, commands in (figure for page in PAGES for figure in figures_of(page)):
        tables = {name for command in commands for name in re.findall(r"zoo reproduce ([\w-]+)", command)}
        of_row: dict[str, list[Score]] = defaultdict(list)
        for score in scores:
            of_row[score.row.lower()] += [score] if score.table in tables and score.runs else []
        named |= tables if text.startswith("|") else set()
        is_table = text.startswith("|") and tables and all("zoo reproduce" in each for each in commands)
        for row, number in ((row, number) for row, column, number in cells_of(text) if column != {"p"}):
            measured = {f"{score.mean:.1f}" for score in of_row[row]}
            assert number in measured or not (measured or is_table), (place, row, number)
            compared |= {score.table for score in of_row[row]}
    assert compared == named


def test_every_line_is_of_a_row_of_its_table() -> None:
    for name, scores in groupby(read_scores(RESULTS), key=lambda score: score.table):
        table = load_table(name)
        for score in scores:
            row = table.rows[score.row]
            assert score.model == table.model_of(row).rpartition(".")[2]
            paper = {metric: round(table.percent(metric, paper), 2) for metric, paper in row.paper.items()}
            assert score.paper == paper.get(score.metric)


def test_finished_rows_replace_their_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    score = Score("mine", "M1", "KNNBiLSTM", "val/accuracy", 50.5, None, 1, None, "0.1.0")
    merge(file, "other", {"M1"}, [score._replace(table="other")])
    merge(file, "mine", {"M1", "M2", "M3"}, [score, score._replace(row="M2")])
    assert file.read_text() == HEADER + LINE + LINE.replace("M1", "M2") + LINE.replace("mine", "other")
    merge(file, "mine", {"M1", "M3"}, [score._replace(row="M3", mean=60.0, sd=1.0, runs=2)])
    assert [str(each) for each in read_scores(file)] == ["50.5", "60.0 ± 1.0", "50.5"]
    assert [each.row for each in read_scores(file)] == ["M1", "M3", "M1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1 must be table,row"),
        (LINE.encode(), "line 1 must be table,row"),
        (b"\xff", "no CSV"),
        ((HEADER + LINE[:24]).encode(), "line 2: not enough values"),
        ((HEADER + LINE + LINE.replace("50.5", "x")).encode(), "line 3: could not convert"),
        ((HEADER + LINE.replace("50.5", "nan")).encode(), "line 2: nan is not finite"),
    ],
)
def test_a_damaged_file_is_named(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_bytes(text)
    with pytest.raises(InputError, match=rf"results\.csv: {message}.*; restore or delete it"):
        read_scores(tmp_path / "results.csv")


def test_the_scores_of_models_and_tables(
    zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hmn = " ".join(done(zoo_command("list", "HMN", "--scores")).out.split())
    assert "| air-CH HMN | HMN | 0.6 (4.2) | 63.8 (99.8) | 2.2 (22.2) | 5 |" in hmn
    tables = done(zoo_command("list", "--scores", "*-RECIPE*")).out
    assert re.findall("^# .*", tables, re.MULTILINE) == ["# knn-recipe", "# knn-recipe-3000"]
    assert re.search(r"\| M5 recipe +\| +KNNBiLSTM +\| +92\.2 ± 0\.1 \|", tables)
    assert "no results; there are those of clickthrough, " in zoo_command("list", "VDCNN", "--scores").err
    (tmp_path / "results.csv").write_text(RESULTS.read_text() + LINE)
    monkeypatch.setattr("zoo.cli.models.RESULTS", tmp_path / "results.csv")
    assert "results.csv: mine: no such table" in zoo_command("list", "--scores").err
