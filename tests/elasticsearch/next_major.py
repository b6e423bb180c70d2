"""A server 8 for clients of version 9, to run the tests with such a client where no server 9 is available.

The headers of a client name the major version of its requests; a server answers with the same version or refuses. This
proxy rewrites the version between the two, and refuses requests of other versions than 9:

    pip install --target CLIENT9 "elasticsearch>=9,<10"
    python -m tests.elasticsearch.next_major              # starts a server, prints its URL, ends with Ctrl-C
    ZOO_TEST_ES_URL=URL PYTHONPATH=CLIENT9 python -m pytest tests/datamodules/retrieval -m "server and not slow"
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from signal import SIG_BLOCK, SIGINT, SIGTERM, pthread_sigmask, sigwait

from tests.elasticsearch import server
from tests.elasticsearch.faults import Answer, Proxy, Request, proxy

CLIENT, SERVER = 9, 8
_NAMED = re.compile(r"compatible-with=(\d+)")


class NextMajor(Proxy):
    """A proxy that accepts requests of the next major version only."""

    def respond(self, request: Request) -> Answer | None:
        versions = {int(match) for value in request.headers.values() for match in _NAMED.findall(value)}
        if versions - {CLIENT}:
            return Answer(
                400, f"for version {versions}, not {CLIENT}".encode(), {"Content-Type": "text/plain"}
            )
        answer = super().respond(request._replace(headers=_rewritten(request.headers, SERVER)))
        return None if answer is None else answer._replace(headers=_rewritten(answer.headers, CLIENT))


def _rewritten(headers: dict[str, str], major: int) -> dict[str, str]:
    return {name: _NAMED.sub(f"compatible-with={major}", value) for name, value in headers.items()}


def main() -> None:
    """Serve until interrupted."""
    pthread_sigmask(SIG_BLOCK, {SIGINT, SIGTERM})  # the threads, too
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server may run as another user
        real = server.start(Path(folder) / "server")
        try:
            with proxy(real.url, NextMajor) as between:
                print(between.url, flush=True)
                sigwait({SIGINT, SIGTERM})
        finally:
            server.stop(Path(folder) / "server")


if __name__ == "__main__":
    main()
