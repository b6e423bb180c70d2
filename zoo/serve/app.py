"""The routes of `zoo serve`, which `/openapi.json` describes."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from datamodules.core.errors import DamagedError, InputError, excerpt, visible
from datamodules.core.outputs import json_line
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from zoo import __version__
from zoo.memory.opened import OpenedMemory
from zoo.search.search import hits_of
from zoo.serve.bodies import Added, Labels, Predicted, Previewed, Removed, Search
from zoo.serve.gathering import Gathering
from zoo.serve.history import add_history
from zoo.serve.limits import HEALTH, LimitedRequests, one_at_a_time
from zoo.serve.live_model import LiveModel
from zoo.serve.pool import add_pool
from zoo.tasks.classification import held_out
from zoo.tasks.classification.predictor import ClassificationPredictor

#: Names by which a browser on this machine reaches a server without a key: a page elsewhere has others.
LOCAL_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]
#: Path -> file of the page, and its type. They hold no data, and are served without the key.
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
_HEADERS_OF_FILES = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
#: Texts or rows of a request, and bytes of its body.
_MOST_TEXTS, _MOST_BYTES = 1_024, 4_000_000
#: Characters of all texts of a request: while it computes, which takes seconds, others wait.
_MOST_CHARACTERS = 300_000
#: Hits of all texts of a request.
_MOST_HITS = 20_480


def make_app(live: LiveModel, key: str | None = None, pool: Rows | None = None) -> FastAPI:
    """Make the application; with a key, every route but `/health` and the files of the page requires it.

    A pool (`read_pool`) can be labelled.
    """
    about = f"The model {live.source}. If the server has a key: `Authorization: Bearer KEY`."
    # FastAPI's pages (`docs_url`, `redoc_url`) run scripts of another site.
    app = FastAPI(title="Memory Zoo", version=__version__, description=about, docs_url=None, redoc_url=None)
    app.add_middleware(LimitedRequests, most=_MOST_BYTES, key=key, public=_FILES)
    if key is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    app.add_exception_handler(InputError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    for path, (name, kind) in _FILES.items():
        contents = (Path(__file__).parent / "page" / name).read_bytes()
        file = Response(contents, media_type=kind, headers=_HEADERS_OF_FILES)
        app.router.routes.append(Route(path, file, methods=["GET"], include_in_schema=False))

    def check_size(values: Sequence[str], what: str, hits: int = 0) -> None:
        characters = sum(map(len, values))
        for number, most, counted in (
            (len(values), _MOST_TEXTS, what),
            (characters, _MOST_CHARACTERS, f"characters in {what}"),
            (len(values) * hits, _MOST_HITS, f"hits (k for each of {what})"),
        ):
            if number > most:
                raise HTTPException(413, f"{number:,} {counted} in one request; send at most {most:,}")

    def answer(values: PlainDict, headers: Mapping[str, str] | None = None) -> Response:
        """Write an answer of any size in the thread of its request: FastAPI would make all others wait."""
        return Response(json_line(values, live.source), media_type="application/json", headers=headers)

    previewing = threading.Lock()
    add_history(app, live, answer)
    if pool is not None:
        add_pool(app, live, pool, answer)

    @app.get(HEALTH)
    async def health() -> PlainDict:
        """Return the model and the version of its memory; an error if they can no longer be read."""
        # Not by FastAPI's threads, which may all be at work.
        served = await asyncio.to_thread(live.current)
        return {"ready": True, "model": live.source, "memory_version": served.memory_version}

    @app.get("/version")
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
            "classifies": isinstance(served.predictor, ClassificationPredictor),
            "label_separator": served.folder.meta.spec.get("label_separator"),
            "pool": None if pool is None else pool.source,
        }

    def respond(bodies: Sequence[Predicted]) -> list[Response]:
        """Predict the texts of requests with equal options in one call, from one version of the memory."""
        served, responses = live.current(), []
        texts = [text for body in bodies for text in body.all_texts()]
        records = iter(live.predict(served, bodies[0].model_copy(update={"text": None, "texts": texts})))
        headers = {} if served.memory_version is None else {"X-Memory-Version": str(served.memory_version)}
        for body in bodies:
            own = list(islice(records, len(body.all_texts())))
            if not body.memories:
                for record in own:
                    record.pop("memories", None)
            responses.append(answer({"predictions": own} if body.text is None else own[0], headers))
        return responses

    gathering = Gathering(respond)

    @app.post("/predict")
    async def predict(body: Predicted) -> Response:
        """Predict: for one `text`, the line that `zoo predict` writes; for `texts`, `predictions` with their lines."""
        check_size(body.all_texts(), "texts")
        return await gathering.response(body)

    @app.get("/drift")
    def drift() -> PlainDict:
        """Compare the last texts that this process predicted with the held-out rows: are they of another kind?"""
        return live.drift()

    @app.get("/calibration")
    def calibration() -> Response:
        """Return how often answers to held-out rows are right at each probability, and among a share of them."""
        predictor = live.current().predictor
        if (rows := predictor.held_out) is None:
            raise InputError(f"calibration: the model has no held-out rows; {held_out.TUNE_ADVICE}")
        is_current = rows.memory == held_out.contents_of(predictor.memory)
        found = held_out.calibration(rows)
        return answer({**found, "is_training": rows.texts is None, "is_current": is_current})

    @app.post("/search")
    def search(body: Search) -> Response:
        """Return the best memories for one `text`, or for each of `texts`."""
        texts = body.all_texts()
        check_size(texts, "texts", body.k)
        served = live.current()
        hits = [*hits_of(served.memory.search(texts, body.k, body.exclude_duplicates), "retrieval_score")]
        found: PlainDict = {"hits": hits[0]} if body.text is not None else {"results": hits}
        return answer({**found, "memory_version": served.memory_version})

    @app.post("/memory/add")
    async def add(body: Added) -> PlainDict:
        """Add rows; when the answer arrives, they are on the disk, and the next prediction uses them."""
        check_size(body.values(), "rows")

        def change(opened: OpenedMemory) -> PlainDict:
            done = body.edit(opened)
            added = opened.folder.rows.table.column("id").slice(done.rows - done.added)
            return {**done._asdict(), "ids": added.to_pylist()}

        return await live.write_in_turn(change)

    @app.post("/memory/remove")
    async def remove(body: Removed) -> PlainDict:
        """Remove rows by their ids: a new version, exactly as if the memory had never had them."""
        check_size(body.values(), "ids")
        return (await live.write_in_turn(body.edit))._asdict()

    @app.post("/memory/relabel")
    async def relabel(body: Labels) -> PlainDict:
        """Give rows other labels: a new version."""
        check_size(body.values(), "rows")
        return (await live.write_in_turn(body.edit))._asdict()

    @app.post("/memory/preview")
    def preview(body: Previewed) -> Response:
        """Return which answers to texts would change by an edit, and the accuracy on held-out rows; change nothing."""
        check_size(body.edit.values(), "rows")
        check_size(body.texts, "texts")
        with one_at_a_time(previewing, "a preview", 5):
            return answer(live.preview(body.edit.edit, body.texts))

    @app.get("/memory/rows/{row_id:path}")
    def row(row_id: str) -> Response:
        """Return a row; `/search` with `exclude_duplicates` returns its neighbors, and `zoo audit` judges its label."""
        memory = live.current().opened.folder
        (found,) = memory.opened.row_of_ids([row_id]).tolist()
        if found < 0:
            raise HTTPException(404, f"the memory has no row with the id {row_id!r}")
        return answer({**memory.rows.table.slice(found, 1).to_pylist()[0], "memory_version": memory.version})

    return app


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer an `InputError`, of the request, of a full disk, or of damaged files; or wrong fields, without values."""
    if isinstance(error, RequestValidationError):
        problems = []
        for each in error.errors()[:5]:
            field = ".".join(map(str, each["loc"][1:])) or "body"
            problems.append(excerpt(f"{field}: {each['msg'].removeprefix('Value error, ')}"))
        return JSONResponse({"detail": "; ".join(problems)}, 422)
    status, detail = 400, visible(str(error))
    if isinstance(error, DamagedError):
        status = 500
    elif isinstance(error.__cause__, ConnectionError):  # of a server with an index
        status = 503
    elif isinstance(error.__cause__, OSError):
        status = 507
    # The same messages are those of commands, which have options.
    detail = re.sub(r"--(\w+)( true)?", r"\1", detail).replace("name no id column", "give no ids")
    detail = detail.replace("report:", "drift:")
    return JSONResponse({"detail": detail}, status)
