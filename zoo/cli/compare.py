"""`zoo compare`: runs side by side, by the settings that differ and by their figures.

It reads what every run folder holds, `config.yaml`, `metrics.csv` and `summary.json`, and needs no logger. The page
that it writes opens from disk: its curves are part of it, and nothing is loaded.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from jsonargparse import auto_cli

from datamodules.errors import InputError, reason
from datamodules.storage import write_text

#: A cell of a table.
Value: TypeAlias = "str | float | None"

#: Settings that say where a run is and what it shows, not what it does.
_PLACES = (
    "run_dir",
    "ckpt_path",
    "output",
    "config",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.enable_",
)
#: Figures beside the validation's: column -> key of `summary.json`.
_FACTS = {"epochs": "epochs", "seconds": "seconds", "parameters": "trained_parameters"}
_COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#d44c47", "#cb912f", "#64473a", "#787774")
_WIDTH, _HEIGHT, _MARGIN = 440, 240, 56


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        name: the folder as it was named.
        settings: `config.yaml` with names such as `model.optimizer.lr`.
        curves: metric -> (epoch, value) of each epoch that has one.
        summary: `summary.json`; empty for a run that has not ended.
    """

    name: str
    settings: dict[str, Value]
    curves: dict[str, list[tuple[int, float]]]
    summary: dict[str, Any]

    @property
    def monitor(self) -> str | None:
        """The metric that the best epoch was chosen by."""
        return self.summary.get("monitor")

    def best(self, metric: str) -> float | None:
        """A metric in the epoch with the best monitored value; without such an epoch, its last value."""
        curve = dict(self.curves.get(metric, ()))
        chosen = self.curves.get(self.monitor or "", ())
        if chosen:
            return curve.get(max(chosen, key=lambda point: point[1])[0])
        return next(reversed(curve.values()), None)


def run(command: str, options: list[str]) -> None:
    """Run the command: the run folders come first, as the shell lists them."""
    options = [*options]
    folders = []
    while options and not options[0].startswith("-"):
        folders.append(options.pop(0))
    auto_cli(
        compare,
        [*([f"--runs={json.dumps(folders)}"] if folders else []), *options],
        as_positional=False,
        prog=f"zoo {command}",
        exit_on_error=False,
    )


def compare(runs: list[str], metrics: str | None = None, output: str | None = None) -> None:
    """Print a table of runs: the settings that differ, and the figures of each run's best epoch.

    Args:
        runs: run folders, as `zoo fit` writes them.
        metrics: names of metrics, "val/accuracy,val/loss"; null: the validation's in which the runs differ, but for
            those of single classes.
        output: a folder for `compare.md` and for `compare.html`, which also draws the curves; null writes nothing.
    """
    if not runs:
        raise InputError("zoo compare: name run folders, such as runs/KNNBiLSTM/*")
    read = [read_run(Path(folder)) for folder in runs]
    names = _metric_names(read) if metrics is None else [name.strip() for name in metrics.split(",")]
    for name in names:
        if all(name not in run.curves for run in read):
            known = ", ".join(sorted({name for run in read for name in run.curves}))
            raise InputError(f"--metrics {name}: no run has it; there are {known}")
    header, rows = table(read, names)
    lines = _markdown(header, rows)
    print("\n".join(lines))
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "compare.md", "\n".join(lines) + "\n")
        write_text(folder / "compare.html", _page(read, names, header, rows))
        print(f"{folder / 'compare.html'}")


# --- reading ---


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        InputError: it is none, or one of its files can't be read.
    """
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(
            f"{folder}: no run folder (it has no config.yaml); name folders that `zoo fit` wrote"
        )
    try:
        settings = dict(_flat(yaml.safe_load(config.read_text(encoding="utf-8"))))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{config}: no YAML ({reason(error)}); leave this run out") from error
    summary, file = {}, folder / "summary.json"
    if file.is_file():
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file}: no JSON ({reason(error)}); leave this run out") from error
    return Run(str(folder), settings, _curves(folder / "metrics.csv"), summary)


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Value]]:
    """The settings one by one; a class is its own setting, and its options are named like those of its owner."""
    if not isinstance(value, dict):
        yield name, value if isinstance(value, (str, int, float, type(None))) else json.dumps(value)
        return
    for key, inner in value.items():
        if key == "class_path":
            yield name, str(inner).rpartition(".")[2]
        else:
            yield from _flat(inner, name if key == "init_args" else f"{name}.{key}" if name else str(key))


def _curves(file: Path) -> dict[str, list[tuple[int, float]]]:
    """metric -> (epoch, its last value in the epoch)."""
    found: dict[str, dict[int, float]] = {}
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            for name, text in row.items():
                if name in ("epoch", "step") or not text:
                    continue
                try:
                    found.setdefault(name, {})[int(float(row["epoch"] or 0))] = float(text)
                except (TypeError, ValueError, KeyError) as error:
                    raise InputError(f"{file}, line {number}: {reason(error)}; leave this run out") from error
    return {name: sorted(points.items()) for name, points in found.items()}


def _metric_names(runs: Sequence[Run]) -> list[str]:
    """The monitored metric first, then the validation's others that are of no single class and differ."""
    first = [run.monitor for run in runs if run.monitor is not None]
    names = sorted({name for run in runs for name in run.curves if name.startswith("val/")})
    differ = [name for name in names if len(runs) == 1 or len({run.best(name) for run in runs}) > 1]
    others = [name for name in differ if name.count("/") == 1]
    return [*dict.fromkeys([*first, *others])]


# --- the table ---


def table(runs: Sequence[Run], metrics: Sequence[str]) -> tuple[list[str], list[list[Value]]]:
    """A line a run: its name, the settings in which the runs differ, its figures; the best run comes first.

    Runs are ordered by the first metric, where more is better, as it is for what `zoo fit` monitors.
    """
    names = dict.fromkeys(name for run in runs for name in run.settings if not name.startswith(_PLACES))
    differing = [name for name in names if len({str(run.settings.get(name)) for run in runs}) > 1]
    header = ["run", *differing, *metrics, *_FACTS]
    rows: list[list[Value]] = [
        [
            run.name,
            *(run.settings.get(name) for name in differing),
            *(run.best(name) for name in metrics),
            *(run.summary.get(key) for key in _FACTS.values()),
        ]
        for run in runs
    ]
    if metrics:
        place = 1 + len(differing)
        rows.sort(key=lambda row: -math.inf if row[place] is None else float(row[place] or 0), reverse=True)
    return header, rows


def _shown(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[str]:
    cells = [
        [_shown(value).replace("|", "\\|").replace("\n", " ") for value in row] for row in [header, *rows]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


# --- the page ---


def _page(
    runs: Sequence[Run], metrics: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[Value]]
) -> str:
    colours = {run.name: _COLOURS[i % len(_COLOURS)] for i, run in enumerate(runs)}
    cells = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = []
    for row in rows:
        dot = f'<span class="dot" style="background:{colours[str(row[0])]}"></span>'
        values = "".join(
            f'<td class="{"number" if isinstance(value, (int, float)) else "text"}">'
            f"{dot if i == 0 else ''}{escape(_shown(value))}</td>"
            for i, value in enumerate(row)
        )
        lines.append(f"<tr>{values}</tr>")
    drawings = "\n".join(_drawing(name, runs, colours) for name in metrics)
    body = "\n".join(lines)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{len(runs)} runs</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #ddd; white-space: nowrap; }}
th {{ text-align: left; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.dot {{ display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }}
.curves {{ display: flex; flex-wrap: wrap; gap: 1.5rem; margin-top: 2rem; }}
figure {{ margin: 0; }}
figcaption {{ font-weight: 600; }}
svg text {{ font: 11px system-ui, sans-serif; fill: #555; }}
</style>
</head>
<body>
<h1>{len(runs)} runs</h1>
<p>Figures of each run's best epoch; the settings in which the runs differ. Point at a curve for its run.</p>
<div class="wide"><table>
<thead><tr>{cells}</tr></thead>
<tbody>
{body}
</tbody></table></div>
<div class="curves">
{drawings}
</div>
</body>
</html>
"""


def _drawing(metric: str, runs: Sequence[Run], colours: dict[str, str]) -> str:
    """The curves of a metric over the epochs."""
    curves = {
        run.name: [point for point in run.curves.get(metric, ()) if math.isfinite(point[1])] for run in runs
    }
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    last = max(epoch for epoch, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = (high - low) or 1.0

    def place(epoch: int, value: float) -> str:
        across = _MARGIN + epoch / max(last, 1) * (_WIDTH - 2 * _MARGIN)
        down = _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for name, curve in curves.items():
        if curve:
            path, end = " ".join(place(*point) for point in curve), place(*curve[-1]).split(",")
            parts.append(
                f'<g stroke="{colours[name]}"><title>{escape(name)}: {_shown(curve[-1][1])}</title>'
                f'<polyline points="{path}" fill="none" stroke-width="2"/>'
                f'<circle cx="{end[0]}" cy="{end[1]}" r="3" fill="{colours[name]}"/></g>'
            )
    bottom = _HEIGHT - _MARGIN
    axes = (
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="#bbb"/>'
        f'<text x="{_MARGIN - 4}" y="{_MARGIN + 4}" text-anchor="end">{_shown(high)}</text>'
        f'<text x="{_MARGIN - 4}" y="{bottom}" text-anchor="end">{_shown(low)}</text>'
        f'<text x="{_MARGIN}" y="{bottom + 16}">0</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 16}" text-anchor="end">epoch {last}</text>'
    )
    drawing = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">{axes}{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(metric)}</figcaption>{drawing}</figure>"
