"""The files of the page: they hold no data, and are served without the key."""

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.routing import Route

#: Path -> file and its type.
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page's files."""
    for path, (name, kind) in FILES.items():
        contents = (Path(__file__).parent / "page" / name).read_bytes()
        answer = Response(contents, media_type=kind, headers=_HEADERS)
        app.router.routes.append(Route(path, answer, methods=["GET"], include_in_schema=False))
