"""Connections of `zoo serve`: slow ones are closed, and messages that any client can cause are logged once a minute."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: A connection is closed if it waits for its client at the beginning and the end of as many seconds.
SECONDS = 20
#: Connections of a process, where its limit of open files allows twice as many.
_MOST_CONNECTIONS = 500
#: Begin of a message of asyncio, which it would log many thousand times a second.
_NO_FILES = "socket.accept() out of system resource"


class _Connection(H11Protocol):
    """A connection that is closed if its client is slow, or if there are too many while it waits for its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
            next(filter(_waits_for_client, self.connections), self).transport.abort()
        self._timer = self.loop.call_later(SECONDS, self._check, self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()

    def _check(self, before: object) -> None:
        """Close the connection if it waits for its client, and did so in the same request (`before`)."""
        request = self.cycle if _waits_for_client(self) else self
        if request is before is not self:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(SECONDS, self._check, request)


def _waits_for_client(connection: Any) -> bool:
    """Return True unless the server has a whole request to answer."""
    cycle, is_closing = connection.cycle, connection.transport.is_closing()
    is_idle = cycle is None or cycle.more_body or cycle.response_complete
    return not is_closing and (is_idle or connection.flow.write_paused)


def _most_connections() -> int:
    """Return the number of connections that leaves half of the process's open files to the model."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, files // 2)


def log_once_a_minute() -> None:
    """Log each message of uvicorn and of asyncio's sockets at most once a minute; errors of this program always."""
    last: dict[str, float] = {}

    def is_due(record: logging.LogRecord) -> bool:
        if record.msg.startswith(_NO_FILES):
            record.msg, record.exc_info = f"{_NO_FILES}: too many open files (ulimit -n)", None
        elif record.exc_info:
            return True
        now = time.monotonic()
        if now - last.get(record.msg, -60.0) < 60:
            return False
        last[record.msg] = now
        return True

    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(is_due)
