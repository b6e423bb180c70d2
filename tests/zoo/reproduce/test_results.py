"""`results.csv`: the figures of README and of the examples are those of its rows."""

import re
from collections import defaultdict
from itertools import groupby

from tests.figures import PAGES, ROOT, cells_of, figures_of
from tests.zoo.reproduce.conftest import read_scores
from zoo.reproduce.run import Score
from zoo.reproduce.table import load_table

SCORES = read_scores(ROOT / "zoo/reproduce/results.csv")


def test_the_figures_of_the_pages_are_those_of_the_results() -> None:
    named, compared = set[str](), set[str]()
    for place, text, commands in (figure for page in PAGES for figure in figures_of(page)):
        tables = {name for command in commands for name in re.findall(r"zoo reproduce ([\w-]+)", command)}
        of_row: dict[str, list[Score]] = defaultdict(list)
        for score in SCORES:
            of_row[score.row.lower()] += [score] if score.table in tables and score.runs else []
        named |= tables if text.startswith("|") else set()
        is_table = text.startswith("|") and tables and all("zoo reproduce" in each for each in commands)
        for row, number in ((row, number) for row, column, number in cells_of(text) if column != {"p"}):
            measured = {f"{score.mean:.1f}" for score in of_row[row]}
            assert number in measured or not (measured or is_table), (place, row, number)
            compared |= {score.table for score in of_row[row]}
    assert compared == named


def test_every_line_is_of_a_row_of_its_table() -> None:
    for name, scores in groupby(SCORES, key=lambda score: score.table):
        table = load_table(name)
        for score in scores:
            row = table.rows[score.row]
            assert score.model == table.model_of(row).rpartition(".")[2]
            paper = {metric: round(table.percent(metric, paper), 2) for metric, paper in row.paper.items()}
            assert score.paper == paper.get(score.metric)
