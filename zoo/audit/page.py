"""The rows that an audit found, as a table in one HTML file that opens from disk and loads nothing."""

from __future__ import annotations

from html import escape

from datamodules.core.errors import visible
from zoo.audit.audit import Audit, AuditedRow

#: Rows on the page; the table of the command has all.
_MOST_ROWS = 1000

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td:nth-child(5) { text-align: right; }
p { margin: 0; color: #555; overflow-wrap: anywhere; }
"""
_COLUMNS = ("id", "text", "label", "suggested", "suspicion", "contradicted by")


def page(audit: Audit, title: str, summary: str) -> str:
    """Return the most suspicious rows as a page."""
    shown = audit.rows[:_MOST_ROWS]
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "\n".join(map(_row, shown))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{_text(title)}</h1>
<p>{_text(summary)}. The {len(shown):,} most suspicious rows:</p>
<table>
<tr>{head}</tr>
{body}
</table>
</body>
</html>
"""


def _row(row: AuditedRow) -> str:
    against = "".join(
        f"<p>[{_text(each.label)}] {_text(each.text)} <small>{_text(each.id)}</small></p>"
        for each in row.contradictions
    )
    cells = [row.id, row.text, row.label, row.suggested, f"{row.suspicion:.3f}"]
    return "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + f"<td>{against}</td></tr>"


def _text(text: str) -> str:
    return escape(visible(text))
