"""Tables in Markdown, aligned so that they can be read in a terminal, too."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a table, the header first; all columns but the first are aligned to the right."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table]
    first, *others = (max(3, *map(len, column)) for column in zip(*rows, strict=True))
    rows.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    lines = (
        [row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))]
        for row in rows
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
