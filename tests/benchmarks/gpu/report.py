"""The report of the measurements: goals, tables in Markdown, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from callbacks.pictures import write_picture
from datamodules.core.storage import write_text
from tests.benchmarks.gpu.measure import SEARCH, VARIANTS, Result
from zoo.markdown import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Least share of a step in kernels, least speed of bfloat16 over float32 with MiniLM, most waiting for data.
KERNELS, BF16, WAITING = 0.70, 1.6, 0.02
#: Header of a column -> the text of a figure.
_COLUMNS: Mapping[str, Callable[[Result], str]] = {
    "rate a second": lambda result: f"{result.figures['rate']:,.0f} {result.unit}",
    "in kernels": lambda result: _text(result.figures["kernel_share"], "{:.0%}".format),
    "waiting": lambda result: f"{result.figures['waiting_share']:.1%}",
    "peak, MB": lambda result: _text(result.figures["peak_bytes"], lambda value: f"{value / 1e6:,.0f}"),
    "copies to the CPU a step": lambda result: _text(result.figures["copies_to_host"], "{:.1f}".format),
    "score": lambda result: _text(result.figures["score"], "{:.4f}".format),
    "processes": lambda result: str(result.figures["processes"]),
}


class Goal(NamedTuple):
    """A goal, and how far it is reached."""

    name: str
    #: None = not measured.
    is_reached: bool | None
    details: str


def _text(value: Any, text: Callable[[Any], str]) -> str:
    return "" if value is None else text(value)


def measured(results: Sequence[Result], variant: str) -> dict[str, Result]:
    """The measured trainings of a variant, by name."""
    return {each.name: each for each in results if each.variant == variant and each.status == "measured"}


def goals(results: Sequence[Result], has_gpu: bool) -> list[Goal]:
    """The goals; without a GPU, none is measured."""
    bf16, fp32, workers = (measured(results, variant) for variant in ("bf16", "fp32", "workers"))
    shares = {name: result.figures["kernel_share"] for name, result in bf16.items()}
    shares = {name: share for name, share in shares.items() if share is not None}
    gains = {
        name: result.figures["rate"] / fp32[name].figures["rate"]
        for name, result in bf16.items()
        if name in fp32 and "MiniLM" in name
    }
    waiting = {
        name: min(each[name].figures["waiting_share"] for each in (bf16, workers) if name in each)
        for name in bf16
    }
    kernels, speed = (
        f"at least {KERNELS:.0%} of a step in kernels",
        f"at least {BF16} times as fast as float32",
    )
    return [
        _goal(kernels, shares, lambda share: share >= KERNELS, "{:.0%}", has_gpu),
        _goal(f"MiniLM in bfloat16 {speed}", gains, lambda gain: gain >= BF16, "{:.2f}", has_gpu),
        _goal(
            f"less than {WAITING:.0%} of the time waiting",
            waiting,
            lambda share: share < WAITING,
            "{:.1%}",
            has_gpu,
        ),
    ]


def _goal(
    name: str, values: Mapping[str, float], is_good: Callable[[float], bool], form: str, has_gpu: bool
) -> Goal:
    listed = ", ".join(f"{model} {form.format(value)}" for model, value in values.items())
    if not has_gpu or not values:
        return Goal(name, None, f"no GPU; here: {listed}" if values else "nothing was measured")
    return Goal(name, all(map(is_good, values.values())), listed)


def write_report(folder: Path, facts: Mapping[str, object], results: Sequence[Result]) -> None:
    """Write report.md and the pictures that it shows."""
    has_gpu = bool(facts["gpus"])
    parts = [
        "# Training and search on a GPU\n",
        "".join(f"- {name}: {value}\n" for name, value in facts.items()),
    ]
    if not has_gpu:
        parts.append(
            "This machine has no GPU: sizes are toy sizes, and shares are of operators, not of kernels.\n"
        )
    outcome = {True: "pass", False: "fail", None: "not measured"}
    lines = [[goal.name, outcome[goal.is_reached], goal.details] for goal in goals(results, has_gpu)]
    parts += ["## Goals\n", markdown_table([["goal", "result", "figures"], *lines])]
    for variant, description in VARIANTS.items():
        if variant == "search" or not (rows := measured(results, variant)):
            continue
        parts += [f"## {description[0].upper()}{description[1:]} (`{variant}`)\n", _table(rows, results)]
    parts += _search(results)
    if missing := [each for each in results if each.status != "measured"]:
        lines = [[each.name, each.variant, each.status, each.reason] for each in missing]
        parts += [
            "## Not measured\n",
            markdown_table([["measurement", "variant", "status", "reason"], *lines]),
        ]
    if top := [(name, result.figures["kernels"]) for name, result in measured(results, "bf16").items()]:
        kind = "kernels" if has_gpu else "operators"
        lines = [
            [name, ", ".join(f"{each[:60]} {share:.0%}" for each, share in names.items())]
            for name, names in top
        ]
        parts += [
            f"## The longest {kind}\n",
            markdown_table([["measurement", "share of their time"], *lines]),
        ]
    for name, draw in (("speed", draw_speed), ("shares", draw_shares)):
        if write_picture(folder / f"{name}.png", lambda draw=draw: draw(results)):  # type: ignore[misc]
            parts.append(f"![{name}]({name}.png)\n")
    write_text(folder / "report.md", "\n".join(parts), "--output")


def _table(rows: Mapping[str, Result], results: Sequence[Result]) -> str:
    base = measured(results, "bf16")
    ratio = "times `bf16`"
    lines = [["measurement", "data", *_COLUMNS, ratio]]
    for name, result in rows.items():
        figures = [text(result) for text in _COLUMNS.values()]
        relative = f"{result.figures['rate'] / base[name].figures['rate']:.2f}" if name in base else ""
        lines.append([name, result.data, *figures, relative])
    return markdown_table(lines)


def _search(results: Sequence[Result]) -> list[str]:
    lines = [["search", "collection", "queries a second", "GB of vectors a second", "hits in common"]]
    for each in results:
        for name, figures in each.figures.items() if each.name == SEARCH else ():
            speed = [f"{figures['rate']:,.0f}", f"{figures['gigabytes_per_second']:,.1f}"]
            lines.append([name, each.data, *speed, _text(figures.get("agreement"), "{:.2%}".format)])
    return ["## Exact dense search\n", markdown_table(lines)] if len(lines) > 1 else []


def draw_speed(results: Sequence[Result]) -> Figure:
    """Draw the speed of each variant over that of `bf16`."""
    base = measured(results, "bf16")
    series = {
        variant: {
            name: each.figures["rate"] / base[name].figures["rate"]
            for name, each in measured(results, variant).items()
            if name in base
        }
        for variant in VARIANTS
        if variant not in ("bf16", "search")
    }
    return _bars(series, list(base), "examples a second, relative to bf16", 1.0)


def draw_shares(results: Sequence[Result]) -> Figure:
    """Draw the shares of a step in kernels and of the time in which a step waits for data."""
    base = measured(results, "bf16")
    series = {
        title: {name: each.figures[figure] or 0.0 for name, each in base.items()}
        for title, figure in (("in kernels", "kernel_share"), ("waiting for data", "waiting_share"))
    }
    return _bars(series, list(base), "share of the time of a step", KERNELS)


def _bars(series: Mapping[str, Mapping[str, float]], names: Sequence[str], title: str, goal: float) -> Figure:
    """Draw a group of horizontal bars for each name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.5 + 0.7 * len(names)), layout="constrained")
    panel = figure.subplots()
    shown = {label: values for label, values in series.items() if values}
    height = 0.8 / max(1, len(shown))
    for number, (label, values) in enumerate(shown.items()):
        places = [names.index(name) + number * height for name in values]
        panel.barh(places, list(values.values()), height=0.9 * height, label=label)
    panel.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
    panel.invert_yaxis()
    panel.axvline(goal, color="black", linewidth=0.8, linestyle="--")
    panel.set_xlabel(title)
    if shown:
        panel.legend()
    return figure
