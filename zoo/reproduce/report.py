"""What a table's runs found: as JSON, CSV, Markdown and a picture, beside the paper's figures."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from datamodules.core.storage import write_json
from zoo.ensemble.answer import TITLES
from zoo.reproduce.significance import compare, kept_queries
from zoo.reproduce.table import SPLITS, Metrics, Row, Table

#: row -> metric -> mean, sd, n (runs in them), paper (the paper's figure); None where there is none.
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]


@dataclass(frozen=True)
class Report:
    """A table as far as it is done.

    Attributes:
        table: the table.
        rows: those of its rows that are shown, in order.
        results: row -> the metrics of each run that ended well.
        skipped: row -> why it was not run.
        failed: run -> its reason.
    """

    table: Table
    rows: Sequence[Row]
    results: Mapping[str, Sequence[Metrics]]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]

    def figures(self) -> Figures:
        """Mean and standard deviation (of the sample) over the runs that ended well."""
        figures: Figures = {}
        for row in self.rows:
            runs = self.results[row.name]
            names = list(dict.fromkeys(name for run in runs for name in run))
            names += [name for name in row.paper if name not in names]
            figures[row.name] = {}
            for name in names:
                values = [run[name] for run in runs if name in run]
                figures[row.name][name] = {
                    "mean": statistics.fmean(values) if values else None,
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "paper": row.paper.get(name),
                }
        return figures

    def write(self, out: Path) -> None:
        """Write `table.json`, `table.csv` and `table.md` into a folder."""
        figures = self.figures()
        write_json(out / "table.json", figures)
        with (out / "table.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "metric", "mean", "sd", "n", "paper"])
            for row, metrics in figures.items():
                for name, figure in metrics.items():
                    writer.writerow([row, name, *(figure[key] for key in ("mean", "sd", "n", "paper"))])
        (out / "table.md").write_text(self.markdown(figures) + self.comparison(out), encoding="utf-8")

    def markdown(self, figures: Figures) -> str:
        """The table for people: figures in percent, the paper's beside them, what failed and why."""
        columns = {
            f"{key}/{metric}{when}": f"{split} {_title(metric)}{when and ', vote as trained'}"
            for key, split in SPLITS.items()
            for metric in self.table.metrics
            for when in ("", "_untuned")
        }
        shown = [name for name in columns if any(name in metrics for metrics in figures.values())]
        papers = list(dict.fromkeys(name for row in self.rows for name in row.paper))
        heads = ["row", *(columns[name] for name in shown), *map(self._paper_title, papers), "runs"]
        lines = [f"# {self.table.name}", "", self.table.description, ""]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for row, metrics in figures.items():
            cells = [self._cell(name, metrics.get(name)) for name in shown]
            published = {name: metrics.get(name, {}).get("paper") for name in papers}
            cells += [
                "" if figure is None else f"{self.table.shown(name, figure):.1f}"
                for name, figure in published.items()
            ]
            cells.append(str(len(self.results[row])))
            lines.append(f"| {' | '.join([row, *cells])} |")
        lines += [
            "",
            f"{self._unit()}; mean ± standard deviation over seeds. Epochs are chosen on validation rows.",
        ]
        if any(row.grow for row in self.rows):
            lines += [
                "Where a memory has grown, the vote is refitted on validation rows: for their own figure on one"
                " half of them to label the other, for the test on all."
            ]
        lines += [f"\nSkipped: {row}: {reason}." for row, reason in self.skipped.items()]
        lines += [f"\nFailed: {run}: {reason}" for run, reason in self.failed.items()]
        return "\n".join(lines) + "\n"

    def comparison(self, out: Path) -> str:
        """Each row beside the one that the table names, query by query; empty where it names none.

        Args:
            out: the table's folder, where the runs keep what they found.
        """
        if (other := self.table.compare_with) is None:
            return ""
        stage = next((s for s in ("test", "val") if kept_queries(out / other, s)), "val")
        reference, lines = kept_queries(out / other, stage), []
        for row in self.rows:
            found = compare(kept_queries(out / row.name, stage), reference)
            if row.name != other and found is not None:
                mean, p = f"{100 * found.mean:+.1f}", f"{found.p:.4f}"
                lines.append(f"| {row.name} | {mean} | {p} | {found.queries} |")
        if not lines:
            return ""
        heads = [
            "",
            f"## Beside {other}, {SPLITS[stage]}",
            "",
            "| row | difference | p | queries |",
            "|---|---|---|---|",
        ]
        told = (
            "Mean difference over queries of each query's mean over seeds, in percent; p of a paired randomisation test"
            " with two sides (10,000 draws)."
        )
        return "\n".join([*heads, *lines, "", told]) + "\n"

    def _unit(self) -> str:
        counted = [_title(metric) for metric in self.table.metrics if metric in self.table.counts]
        return f"Percent, but {', '.join(counted)} are numbers" if counted else "Percent"

    def _cell(self, metric: str, figure: Mapping[str, float | None] | None) -> str:
        if figure is None or figure["mean"] is None:
            return ""
        spread = "" if figure["sd"] is None else f" ± {self.table.shown(metric, figure['sd']):.1f}"
        return f"{self.table.shown(metric, figure['mean']):.1f}{spread}"

    def _paper_title(self, metric: str) -> str:
        split, _, name = metric.partition("/")
        return f"paper ({SPLITS[split]}{f' {_title(name)}' if len(self.table.metrics) > 1 else ''})"

    def write_plot(self, out: Path) -> None:
        """Write `table.png`: bars with the paper's figures as diamonds, or lines where the table is a curve."""
        from matplotlib.figure import Figure  # a second, that other commands need not pay

        if self.table.profiles:
            figure_ = Figure(figsize=(9, 4), layout="constrained")
            self._draw_profiles(figure_.subplots())
            figure_.legend(loc="outside right center")
            figure_.savefig(out / "table.png", dpi=150)
            return
        figures, shown = self.figures(), self.table.shown
        named = self.table.paper_metric.partition("/")[2]
        first = named if named in self.table.metrics else self.table.metrics[0]
        tested = any(f"test/{first}" in metrics for metrics in figures.values())
        metric = f"test/{first}" if tested else f"val/{first}"
        rows = [row for row in self.rows if row.plot]
        found = {
            row.name: (shown(metric, figure["mean"]), shown(metric, figure["sd"] or 0))
            for row in rows
            if (figure := figures[row.name].get(metric)) is not None and figure["mean"] is not None
        }
        is_curve = self.table.x_label is not None
        figure_ = Figure(figsize=(9 if is_curve else max(6, 0.75 * len(rows)), 4), layout="constrained")
        axes = figure_.subplots()
        place = self._draw_curves(axes, rows, found) if is_curve else self._draw_bars(axes, rows, found)
        published = self.table.paper_metric
        paper = {row.name: shown(published, row.paper[published]) for row in rows if published in row.paper}
        marked = [row for row in paper if row in place]
        if marked:
            label = self._paper_title(published)
            x, y = [place[row] for row in marked], [paper[row] for row in marked]
            axes.plot(x, y, linestyle="", marker="D", color="black", label=label)
        if axes.get_legend_handles_labels()[0]:
            figure_.legend(loc="outside right center")
        axes.set_ylabel(
            f"{SPLITS[metric.partition('/')[0]]} {_title(first)}{'' if first in self.table.counts else ', %'}"
        )
        figure_.savefig(out / "table.png", dpi=150)

    def _draw_profiles(self, axes: Any) -> None:
        """What the rows have at each place of a list, of the test if there is one: a curve for each row and name."""
        for name, figures in self.figures().items():
            split = "test" if any(metric.startswith("test/") for metric in figures) else "val"
            for profile in self.table.profiles:
                start = f"{split}/{profile}@"
                places = sorted(int(key.removeprefix(start)) for key in figures if key.startswith(start))
                values = [100 * (figures[f"{start}{place}"]["mean"] or 0) for place in places]
                if places:
                    axes.plot(places, values, marker=".", label=f"{name}: {profile}")
        axes.set_xlabel(self.table.x_label)
        axes.set_ylabel("%")

    def _draw_curves(
        self, axes: Any, rows: Sequence[Row], found: Mapping[str, tuple[float, float]]
    ) -> dict[str, float]:
        """Rows with a place on the x axis as curves, the others as horizontal lines; returns these places."""
        at = {row.name: row.x for row in rows if row.x is not None}
        curves: dict[str, list[str]] = {}
        for row in rows:
            if row.name in at and row.name in found:
                curve = (row.curve or self.table.name) if row.grow is None else f"{row.grow.row}, grown"
                curves.setdefault(curve, []).append(row.name)
        for curve, names in curves.items():
            line = sorted(names, key=lambda name: at[name])
            mean, sd = zip(*(found[name] for name in line), strict=True)
            axes.errorbar([at[name] for name in line], mean, sd, marker="o", capsize=3, label=curve)
        # A curve shows the model that it starts from.
        shown = {*at, *(row.grow.row for row in rows if row.grow)}
        for i, name in enumerate(name for name in found if name not in shown):
            axes.axhline(found[name][0], linestyle="--", color=f"C{i + len(curves)}", label=name)
        axes.set_xlabel(self.table.x_label)
        return at

    def _draw_bars(
        self, axes: Any, rows: Sequence[Row], found: Mapping[str, tuple[float, float]]
    ) -> dict[str, float]:
        """A bar a row; returns the bars' places."""
        at = {row.name: float(i) for i, row in enumerate(rows)}
        means = [mean for mean, _ in found.values()]
        axes.bar([at[name] for name in found], means, yerr=[sd for _, sd in found.values()])
        axes.set_xticks(range(len(rows)), list(at), rotation=45, ha="right")
        published = [
            self.table.shown(self.table.paper_metric, row.paper[self.table.paper_metric])
            for row in rows
            if self.table.paper_metric in row.paper
        ]
        heights = [*means, *published]
        if self.table.paper_metric.partition("/")[2] not in self.table.counts:
            axes.set_ylim(max(0, min(heights, default=0) - 5), min(100, max(heights, default=98) + 2))
        return at


def _title(metric: str) -> str:
    """`accuracy`, but `MAP` and `NDCG@3`; the rows of a model's own table by their titles."""
    if metric in TITLES or " " in metric:
        return TITLES.get(metric, metric)
    return metric if metric == "accuracy" else metric.upper()
