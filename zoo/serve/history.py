"""The routes of a memory's history, and of the audit of its labels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Query, Response

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.memory.history import describe_difference, revert_to
from zoo.serve.bodies import Reverted
from zoo.serve.limits import one_at_a_time
from zoo.serve.live_model import LiveModel

if TYPE_CHECKING:
    from zoo.audit import AuditedRow, Contradiction

#: Rows of a difference that are shown, of each kind.
_SHOWN = 20
#: Rows that are audited while a client waits: a minute or so.
_MOST_AUDITED = 20_000
#: Characters of a text in an audit.
_CHARACTERS = 1_000


def add_history(app: FastAPI, live: LiveModel, answer: Callable[[PlainDict], Response]) -> None:
    """Add the routes to an application, which `answer` by plain values."""
    auditing = threading.Lock()

    @app.get("/memory/log")
    def log(versions: int = Query(100, ge=1, le=1000)) -> Response:
        """Return the last versions of the memory, oldest first, with time, rows, change and note of each."""
        memory = live.current().opened.folder
        return answer({"versions": memory.history(versions), "memory_version": memory.version})

    @app.get("/memory/diff")
    def diff(first: int = Query(alias="from"), second: int = Query(alias="to")) -> Response:
        """Return numbers and first rows of the rows that were added, removed, and changed in label or text."""
        memory = live.current().opened.folder
        found = describe_difference(memory, first, second, _SHOWN)
        return answer({**found, "memory_version": memory.version})

    @app.post("/memory/revert")
    async def revert(body: Reverted) -> PlainDict:
        """Make a new version with the rows of an earlier one; the model answers as it did with that one."""
        done = await live.write_in_turn(lambda opened: revert_to(opened, body.version, body.note))
        return done._asdict()

    @app.get("/memory/audit")
    def audit_labels(rows: int = Query(50, ge=1, le=200)) -> Response:
        """Return the rows whose label is probably wrong, with those that contradict it; computed at each request."""
        from zoo.audit import audit, describe

        served = live.current()
        memory = served.opened.folder
        if len(memory) > _MOST_AUDITED:
            raise InputError(f"audit: more than {_MOST_AUDITED:,} rows; run zoo audit {live.source}")
        with one_at_a_time(auditing, "an audit", 10):
            result = audit(served.predictor)
        wrong = [row for row in result.rows if row.suggested != row.label][:rows]
        shown = [
            {**_shortened(row), "contradictions": [*map(_shortened, row.contradictions)]} for row in wrong
        ]
        return answer({"summary": describe(result), "rows": shown, "memory_version": memory.version})


def _shortened(row: AuditedRow | Contradiction) -> PlainDict:
    return {**row._asdict(), "text": row.text[:_CHARACTERS]}
