"""Names for types that many modules share."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A mapping of plain values (strings, numbers, booleans, None, and lists and mappings of these), as JSON stores it.
PlainDict: TypeAlias = dict[str, Any]

#: A line for the log, with its level.
Message: TypeAlias = tuple[int, str]
