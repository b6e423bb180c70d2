"""The routes of `zoo serve`; FastAPI writes their OpenAPI page, `/docs`."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.middleware.trustedhost import TrustedHostMiddleware

from datamodules.core.errors import DamagedError, InputError, visible
from datamodules.core.outputs import json_line
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from zoo import __version__
from zoo.serve.bodies import Added, Labels, Removed, Search, Texts
from zoo.serve.limits import LimitedBodies
from zoo.serve.live_model import LiveModel, add_rows
from zoo.serve.rows import hits_of, report_row

#: Names by which a browser on this machine reaches a server without a key: a page elsewhere has others.
LOCAL_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]


def make_app(
    live: LiveModel, key: str | None = None, max_texts: int = 1024, max_bytes: int = 8_000_000
) -> FastAPI:
    """Make the application; with a key, every route but `/health` requires it.

    A request has at most `max_texts` texts or rows, and `max_bytes` in its body.
    """
    app = FastAPI(title="Memory Zoo", version=__version__, description=f"The model {live.source}.")
    app.add_middleware(LimitedBodies, most=max_bytes)
    if key is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    app.add_exception_handler(InputError, _refuse)

    def check_key(
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))],
    ) -> None:
        # `surrogateescape`: any bytes of a header can be compared.
        sent = b"" if given is None else given.credentials.encode("utf-8", "surrogateescape")
        if key is not None and not hmac.compare_digest(sent, key.encode()):
            raise HTTPException(
                401, "send the key of the server: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"}
            )

    needs_key = [Depends(check_key)]

    def check_number(number: int, what: str) -> None:
        if number > max_texts:
            raise HTTPException(413, f"{number} {what} in one request; send at most {max_texts}")

    @app.get("/health")
    def health() -> PlainDict:
        """Return the model and the version of its memory; an error if they can no longer be read."""
        return {"ready": True, "model": live.source, "memory_version": live.current().memory_version}

    @app.get("/version", dependencies=needs_key)
    def version() -> PlainDict:
        """Return the versions of the program and the memory, with the number of rows."""
        served = live.current()
        memory = served.predictor.memory
        return {
            "zoo": __version__,
            "model": served.folder.source,
            "kind": served.folder.meta.model,
            "memory": None if memory is None else memory.location(),
            "memory_version": served.memory_version,
            "rows": len(memory) if isinstance(memory, FolderMemory) else None,
        }

    @app.post("/predict", dependencies=needs_key)
    def predict(body: Texts) -> Response:
        """Predict: for one `text`, the line that `zoo predict` writes; for `texts`, `predictions` with their lines."""
        texts = body.all_texts()
        check_number(len(texts), "texts")
        served = live.current()
        records = live.predict(served, texts, body.max_error, body.confidence, body.label_sets)
        if not body.memories:
            records = [
                {name: value for name, value in each.items() if name != "memories"} for each in records
            ]
        answer: Any = {"predictions": records} if body.text is None else records[0]
        headers = {} if served.memory_version is None else {"X-Memory-Version": str(served.memory_version)}
        return Response(json_line(answer, live.source), media_type="application/json", headers=headers)

    @app.get("/drift", dependencies=needs_key)
    def drift() -> PlainDict:
        """Compare the last texts that this process predicted with the held-out rows: are they of another kind?"""
        return live.drift()

    @app.post("/search", dependencies=needs_key)
    def search(body: Search) -> PlainDict:
        """Return the best memories for one `text`, or for each of `texts`."""
        texts = body.all_texts()
        check_number(len(texts), "texts")
        served = live.current()
        hits = hits_of(served.memory.search(texts, body.k, body.exclude_duplicates))
        found: PlainDict = {"hits": hits[0]} if body.text is not None else {"results": hits}
        return {**found, "memory_version": served.memory_version}

    @app.post("/memory/add", dependencies=needs_key)
    def add(body: Added) -> PlainDict:
        """Add rows; when the answer arrives, they are on the disk, and the next prediction uses them."""
        check_number(len(body.rows), "rows")
        rows = Rows.from_lists(
            [row.text for row in body.rows],
            [row.label for row in body.rows],
            body.ids(),
            source="rows to add",
        )
        counts, ids = add_rows(live, rows, body.ids() is not None, body.new_labels, body.skip_unknown_labels)
        return {**counts, "ids": ids}

    @app.post("/memory/remove", dependencies=needs_key)
    def remove(body: Removed) -> PlainDict:
        """Remove rows by their ids: a new version, exactly as if the memory had never had them."""
        check_number(len(body.ids), "ids")
        done = live.write(lambda opened: opened.folder.remove(body.ids, body.allow_empty_class))
        return dict(done._asdict())

    @app.post("/memory/relabel", dependencies=needs_key)
    def relabel(body: Labels) -> PlainDict:
        """Give rows other labels: a new version."""
        check_number(len(body.labels), "rows")
        done = live.write(
            lambda opened: opened.folder.relabel(
                body.labels, opened.addable_labels(body.new_labels), body.allow_empty_class
            )
        )
        return dict(done._asdict())

    @app.get("/memory/rows/{row_id:path}", dependencies=needs_key)
    def row(row_id: str, k: int = 10) -> PlainDict:
        """Audit one row: its neighbors without itself and its duplicates, and the label that they vote for."""
        served = live.current()
        report = report_row(served.memory, row_id, k)
        if report is None:
            raise HTTPException(404, f"the memory has no row with the id {row_id!r}")
        return {**report, "memory_version": served.memory_version}

    return app


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer an `InputError`: of the request, of a full disk, or of damaged files."""
    status = 400
    if isinstance(error, DamagedError):
        status = 500
    elif isinstance(error.__cause__, OSError):
        status = 507
    return JSONResponse({"detail": visible(str(error))}, status)
