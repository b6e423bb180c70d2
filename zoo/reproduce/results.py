"""`results.csv`: the scores of the finished rows of a table, which `zoo reproduce` writes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from datamodules.core.errors import visible
from datamodules.core.storage import write_text
from zoo.markdown import markdown_table

SHIPPED = Path(__file__).with_name("tables")


class Score(NamedTuple):
    """A line of results.csv: one metric of a row over its finished runs, in percent, or a number if it is a count."""

    table: str
    row: str
    model: str
    metric: str
    #: None without a run that has this metric.
    mean: float | None
    #: of the sample; None for a single run.
    sd: float | None
    runs: int
    #: the paper's figure.
    paper: float | None
    #: of the zoo that wrote the line.
    version: str

    def __str__(self) -> str:
        mean = "" if self.mean is None else f"{self.mean:.1f}"
        spread = "" if self.sd is None else f" ± {self.sd:.1f}"
        paper = "" if self.paper is None else f" ({self.paper:.1f})"
        return f"{mean}{spread}{paper}".strip()


def shipped_tables() -> list[str]:
    """Return the names of the tables in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def write_scores(file: Path, scores: Iterable[Score]) -> None:
    """Write the scores of a table in a fixed order."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [Score._fields, *sorted(scores, key=lambda score: score[:4])]
    )
    write_text(file, text.getvalue(), "--run_dir")


def score_tables(scores: Iterable[Score]) -> Iterator[str]:
    """Yield each table in Markdown: a line for each row, a column for each metric, the paper's figures in brackets."""
    for table, group in groupby(scores, key=lambda score: score.table):
        of_table = [*group]
        metrics = dict.fromkeys(score.metric for score in of_table)
        lines = [["row", "model", *metrics, "runs"]]
        for (row, model), of_row in groupby(of_table, key=lambda score: (score.row, score.model)):
            cells = {score.metric: score for score in of_row}
            runs = max(score.runs for score in cells.values())
            lines.append([row, model, *(str(cells.get(metric, "")) for metric in metrics), str(runs)])
        yield f"# {visible(table)}\n\n{markdown_table(lines)}"
