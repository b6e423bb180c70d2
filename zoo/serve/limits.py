"""Requests that are refused before a thread works on them: without the key, too large, or too many at once."""

from __future__ import annotations

import hmac
import os

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Route that needs no key and waits for no other request.
HEALTH = "/health"
#: Requests that a process works on at once; further ones would only wait for a thread.
MOST_AT_ONCE = 128
#: Bytes of a refused body that are read.
_MOST_DROPPED = 100_000_000


class LimitedRequests:
    """Middleware that passes on whole bodies of at most `most` bytes, counted as they arrive: headers may be wrong.

    A body must name its type, application/json: browsers send no such request for the page of another site.
    """

    def __init__(self, app: ASGIApp, most: int, key: str | None) -> None:
        self.app, self.most, self.key, self.at_work = app, most, key, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] == HEALTH:
            await self.app(scope, receive, send)
            return
        body, is_whole = bytearray(), False
        try:
            self._check(scope["method"], Headers(scope=scope))
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message["body"]
                is_whole = not message.get("more_body", False)
                self._check_size(len(body))
            if self.at_work >= MOST_AT_ONCE:
                detail = f"{self.at_work} requests are at work; send this one again later"
                raise HTTPException(503, detail, {"Retry-After": "2"})
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

    def _check(self, method: str, headers: Headers) -> None:
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        # As bytes: those of a header need not be UTF-8.
        is_key = hmac.compare_digest(sent.encode("latin-1"), os.fsencode(self.key or ""))
        if self.key is not None and not (is_key and scheme.lower() == "bearer"):
            advice = "send the key of the server: Authorization: Bearer KEY"
            raise HTTPException(401, advice, {"WWW-Authenticate": "Bearer"})
        if method in ("GET", "HEAD", "OPTIONS"):
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
        length = headers.get("content-length", "")
        self._check_size(int(length) if length.isdecimal() else 0)

    def _check_size(self, size: int) -> None:
        if size > self.most:
            detail = f"the body has more than {self.most:,} bytes; send fewer texts in one request"
            raise HTTPException(413, detail)


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
