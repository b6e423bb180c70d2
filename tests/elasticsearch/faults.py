"""A loopback HTTP server between a client and Elasticsearch, which makes chosen requests fail."""

import http.client
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


#: The fault of one request: an answer instead of the server's, a change of the server's answer, or
#: None = the connection is dropped.
Fault = Answer | Callable[[Answer], Answer] | None


class Proxy:
    """Forwards to `upstream`; a request whose path ends with `target` uses up the next fault."""

    def __init__(self, url: str, upstream: str | None) -> None:
        self.url = url
        self.upstream = upstream
        self.target = ""
        self.faults: deque[Fault] = deque()
        self.requests: list[Request] = []
        self.lock = threading.Lock()

    def respond(self, request: Request) -> Answer | None:
        with self.lock:
            self.requests.append(request)
            hit = urlsplit(request.path).path.endswith(self.target) and self.faults
            fault: Fault = self.faults.popleft() if hit else lambda answer: answer
        return fault(self._forward(request)) if callable(fault) else fault

    def _forward(self, request: Request) -> Answer:
        assert self.upstream is not None, f"no answer was prepared for {request.method} {request.path}"
        address = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        # Uncompressed, so that the tests can read and change the body.
        headers = {key: value for key, value in request.headers.items() if key.lower() != "accept-encoding"}
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        body = response.read()
        kept = {
            name: value
            for name, value in response.getheaders()
            if name.lower() not in ("content-length", "transfer-encoding", "connection")
        }
        connection.close()
        return Answer(response.status, body, kept)

    def paths(self, ending: str) -> list[Request]:
        return [request for request in self.requests if urlsplit(request.path).path.endswith(ending)]


@contextmanager
def proxy(upstream: str | None = None) -> Iterator[Proxy]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = between.respond(Request(self.command, self.path, dict(self.headers), body))
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            if "Content-Length" in answer.headers:  # it is too large: the rest never comes
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    between = Proxy(f"http://127.0.0.1:{server.server_port}", upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield between
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def failing_items(key: str, error: dict[str, Any], which: slice) -> Callable[[Answer], Answer]:
    """Replace some answers inside a 200 with an error, or with the answer of a stopped search."""

    def change(answer: Answer) -> Answer:
        content = json.loads(answer.body)
        positions = range(len(content[key]))[which]
        assert len(positions) > 0
        for position in positions:
            content[key][position] = error
        return answer._replace(body=json.dumps(content).encode())

    return change


def cut_short(answer: Answer) -> Answer:
    """Return half of the body with the length of the whole."""
    headers = {**answer.headers, "Content-Length": str(len(answer.body))}
    return answer._replace(body=answer.body[: len(answer.body) // 2], headers=headers)
