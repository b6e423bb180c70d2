"""`results.csv`: the scores of finished rows of all tables. `zoo reproduce` writes it, `zoo list --scores` reads it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from datamodules.core.errors import InputError, visible
from datamodules.core.files import existing_file
from datamodules.core.storage import write_text
from zoo.markdown import markdown_table

SHIPPED = Path(__file__).with_name("tables")
#: The scores that come with the package; the figures on README and on the pages of the examples are these.
RESULTS = Path(__file__).with_name("results.csv")


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


def read_scores(file: Path) -> list[Score]:
    """Read a results.csv; raises an `InputError` that names a damaged line."""
    try:
        text = existing_file(file).read_text(encoding="utf-8")
        header, *lines = [*csv.reader(text.splitlines(), strict=True)] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: no CSV ({error}); restore or delete it") from error
    if header != [*Score._fields]:
        raise InputError(f"{file}: line 1 must be {','.join(Score._fields)}; restore or delete it")
    scores = []
    for number, line in enumerate(lines, start=2):
        try:
            table, row, model, metric, mean, sd, runs, paper, version = line
            figures = (_figure(mean), _figure(sd), int(runs), _figure(paper))
            scores.append(Score(table, row, model, metric, *figures, version))
        except ValueError as error:
            raise InputError(f"{file}: line {number}: {error}; restore or delete it") from error
    return scores


def _figure(cell: str) -> float | None:
    if cell and not math.isfinite(float(cell)):
        raise ValueError(f"{cell} is not finite")
    return float(cell) if cell else None


def merge(file: Path, table: str, rows: Collection[str], scores: Sequence[Score]) -> None:
    """Replace the lines of a table's finished rows, and remove those of rows that the table no longer has."""
    finished = {score.row for score in scores}
    kept = [
        score
        for score in (read_scores(file) if file.exists() else [])
        if score.table != table or (score.row in rows and score.row not in finished)
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [Score._fields, *sorted([*kept, *scores], key=lambda score: score[:4])]
    )
    write_text(file, text.getvalue(), "--results")


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
