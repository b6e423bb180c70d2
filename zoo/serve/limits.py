"""Bodies that are too large, or no JSON, are refused before they are read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _TooLargeError(Exception):
    """The body has more bytes than the limit."""


class LimitedBodies:
    """Middleware: at most this many bytes, counted as they arrive, since a header may be missing or wrong.

    A body must name its type, application/json: browsers send no such request for the page of another site.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            await _refusal(415, "send JSON, with the header Content-Type: application/json")(
                scope, receive, send
            )
            return
        too_large = _refusal(
            413, f"the body has more than {self.most:,} bytes; send fewer texts in one request"
        )
        if length.isdecimal() and int(length) > self.most:
            await too_large(scope, receive, send)
            return
        seen = 0

        async def counting() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise _TooLargeError
            return message

        try:
            await self.app(scope, counting, send)
        except _TooLargeError:
            await too_large(scope, receive, send)


def _refusal(status: int, detail: str) -> JSONResponse:
    # The rest of the body is not read: the connection cannot be used again.
    return JSONResponse({"detail": detail}, status, {"Connection": "close"})
