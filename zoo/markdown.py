"""Tables in Markdown, aligned so that they can be read in a terminal, too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from datamodules.core.errors import visible


def code_span(text: str) -> str:
    """Return a text of others as a code span: its backticks, spaces and line ends neither end nor change the span."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    # Of a space on each side, Markdown removes one.
    needs_space = text[:1] == "`" or text[-1:] == "`" or (text[:1] == text[-1:] == " " and text.strip(" "))
    space = " " if needs_space else ""
    return f"{fence}{space}{visible(text)}{space}{fence}"


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a table, the header first; all columns but the first are aligned to the right."""
    rows = [[visible(cell).replace("|", "\\|") for cell in row] for row in table]
    first, *others = (max(3, *map(len, column)) for column in zip(*rows, strict=True))
    rows.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    lines = (
        [row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))]
        for row in rows
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
