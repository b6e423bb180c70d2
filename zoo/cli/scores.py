"""Scores of an evaluation as text."""

from __future__ import annotations

from collections.abc import Mapping

from datamodules.core.errors import visible

#: Maximum number of classes with scores in the text.
MOST_CLASSES = 30


def as_text(scores: Mapping[str, float], classes: Mapping[str, float]) -> str:
    """Return a line for each score, then a line for each class, whose scores have names such as `f1/World`."""
    width = max(map(len, scores), default=0)
    lines = [f"{name:{width}}  {_number(value):>9}" for name, value in scores.items()]
    figures = {name.partition("/")[0]: None for name in classes}
    names = {name.partition("/")[2]: None for name in classes}
    if names:
        shown = list(names)[:MOST_CLASSES]
        labels = list(map(visible, shown))
        width = max(map(len, ["class", *labels]))
        lines += ["", f"{'class':{width}}" + "".join(f"{figure:>11}" for figure in figures)]
        for name, label in zip(shown, labels, strict=True):
            fields = (_of_class(figure, classes.get(f"{figure}/{name}")) for figure in figures)
            lines.append(f"{label:{width}}" + "".join(f"{field:>11}" for field in fields))
        if len(names) > len(shown):
            lines.append(f"and {len(names) - len(shown)} more classes (--output FILE has all)")
    return "\n".join(lines)


def _of_class(figure: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if figure == "support" else f"{value:.4f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4f}"
