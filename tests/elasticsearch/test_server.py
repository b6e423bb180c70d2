"""Starting the test server."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.elasticsearch import server


class _AnotherServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"another-node\n")

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def test_another_server_on_the_port_is_recognised(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_text("address already in use")
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with HTTPServer(("127.0.0.1", 0), _AnotherServer) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        started = server.Server(f"http://127.0.0.1:{other.server_port}", process.pid, None, None, None)
        with pytest.raises(server.NoServerError, match=r"another one is there.*address already in use"):
            server._wait_for_health(started, {"the-node"}, process, output, seconds=20)
        other.shutdown()
    assert process.poll() is not None
