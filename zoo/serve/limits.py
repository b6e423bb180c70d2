"""Limits of requests and connections: a process refuses or closes what would hold up others, and logs little of it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import resource
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Route that needs no key and waits for no other request.
HEALTH = "/health"
#: Requests that a process works on at once; further ones would only wait for a thread.
MOST_AT_ONCE = 128
#: Bytes of a refused body that are read.
_MOST_DROPPED = 100_000_000
#: A connection is closed if it waits for its client at the beginning and the end of as many seconds.
SECONDS = 20
#: Connections of a process, where its limit of open files allows twice as many.
_MOST_CONNECTIONS = 500
#: Begin of a message of asyncio, which it would log many thousand times a second.
_NO_FILES = "socket.accept() out of system resource"


@contextmanager
def one_at_a_time(lock: threading.Lock, what: str, seconds: int) -> Iterator[None]:
    """Refuse a request, to come again in some seconds, while another one holds the lock."""
    if not lock.acquire(blocking=False):
        raise HTTPException(503, f"{what} is being computed; ask again later", {"Retry-After": f"{seconds}"})
    try:
        yield
    finally:
        lock.release()


class LimitedRequests:
    """Middleware that passes on whole bodies of at most `most` bytes, counted as they arrive: headers may be wrong.

    A body must name its type, application/json: browsers send no such request for the page of another site.
    """

    def __init__(self, app: ASGIApp, most: int, key: str | None, public: Container[str]) -> None:
        """Set the key, without which only the `public` paths are answered."""
        self.app, self.most, self.key, self.public, self.at_work = app, most, key, public, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
            return
        body, is_whole = bytearray(), False
        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message["body"]
                is_whole = not message.get("more_body", False)
                self._check_size(len(body))
            if self.at_work >= MOST_AT_ONCE:
                raise HTTPException(503, "the server is busy; send it again later", {"Retry-After": "2"})
        except HTTPException as refusal:
            await _refuse(refusal, receive, send, is_whole)
            return
        messages: list[Message] = [{"type": "http.request", "body": bytes(body)}]

        async def whole() -> Message:
            return messages.pop() if messages else await receive()

        self.at_work += 1
        try:
            await self.app(scope, whole, send)
        finally:
            self.at_work -= 1

    def _check(self, method: str, path: str, headers: Headers) -> None:
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        # As bytes: those of a header need not be UTF-8.
        is_key = hmac.compare_digest(sent.encode("latin-1"), os.fsencode(self.key or ""))
        if self.key is not None and path not in self.public and not (is_key and scheme.lower() == "bearer"):
            advice = "send the key of the server: Authorization: Bearer KEY"
            raise HTTPException(401, advice, {"WWW-Authenticate": "Bearer"})
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and path not in self.public:
            raise HTTPException(403, "requests of pages of other sites are refused")
        if method in ("GET", "HEAD", "OPTIONS"):
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
        length = headers.get("content-length", "")
        self._check_size(int(length) if length.isdecimal() else 0)

    def _check_size(self, size: int) -> None:
        if size > self.most:
            raise HTTPException(413, f"the body has more than {self.most:,} bytes; send fewer texts at once")


async def _refuse(refusal: HTTPException, receive: Receive, send: Send, is_whole: bool) -> None:
    """Answer, then drop what else arrives: a client that is still sending would find the connection reset."""
    headers = {"Connection": "close", **(refusal.headers or {})}
    answer = JSONResponse({"detail": refusal.detail}, refusal.status_code, headers)
    await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    left = 0 if is_whole else _MOST_DROPPED
    while left > 0:
        message = await receive()
        left = left - len(message["body"]) if message.get("more_body") else 0
    await send({"type": "http.response.body"})


class _Connection(H11Protocol):
    """A connection that is closed if its client is slow, or if there are too many while it waits for its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._timer = time.monotonic(), self.loop.call_later(SECONDS, self._check, self)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # half of them are left to the model
        most = _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, files // 2)
        if len(self.connections) > most:
            waiting: list[Any] = [each for each in self.connections if _waits_for_client(each)]
            # Not by the times of the timers: uvloop gives one time to all that arrive together, the new one included.
            min(waiting, key=lambda each: each._since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()

    def _check(self, before: object) -> None:
        """Close the connection if it waits for its client, and did so in the same request (`before`)."""
        request = self.cycle if _waits_for_client(self) else self
        if request is before is not self:
            self.transport.abort()
        else:
            self._since, self._timer = time.monotonic(), self.loop.call_later(SECONDS, self._check, request)


def _waits_for_client(connection: Any) -> bool:
    """Return True unless the server has a whole request to answer."""
    cycle, is_closing = connection.cycle, connection.transport.is_closing()
    is_idle = cycle is None or cycle.more_body or cycle.response_complete
    return not is_closing and (is_idle or connection.flow.write_paused)


def log_once_a_minute() -> None:
    """Log each message that clients cause at most once a minute; errors of this program always."""
    last: dict[str, float] = {}

    def is_due(record: logging.LogRecord) -> bool:
        if (message := str(record.msg)).startswith(_NO_FILES):
            record.msg, record.exc_info = f"{_NO_FILES}: too many open files (ulimit -n)", None
        now = time.monotonic()
        if is_first := now - last.get(message, -60.0) >= 60:
            last[message] = now
        return is_first or record.exc_info is not None

    for name in ("asyncio", "uvicorn.error", "datamodules.corpora.rows"):
        logging.getLogger(name).addFilter(is_due)
