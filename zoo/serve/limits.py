"""Bodies that are too large, or no JSON, are refused before they are read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
        too_large = f"the body has more than {self.most:,} bytes; send fewer texts in one request"
        seen = 0

        async def counting() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, too_large)  # answered by FastAPI, which reads the body
            return message

        answer: ASGIApp = self.app
        length = headers.get("content-length", "")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            answer = _refusal(415, "send JSON, with the header Content-Type: application/json")
        elif length.isdecimal() and int(length) > self.most:
            answer = _refusal(413, too_large)
        await answer(scope, counting, send)


def _refusal(status: int, detail: str) -> JSONResponse:
    # The rest of the body is not read: the connection cannot be used again.
    return JSONResponse({"detail": detail}, status, {"Connection": "close"})
