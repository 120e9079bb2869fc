"""A stand-in for a monitoring service: an HTTP server that keeps the bodies of its requests."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Collector:
    """The server, and the bodies of the requests that it has answered.

    It answers while ``answers`` is set, and requests to /now in any case.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answers = threading.Event()
        self.answers.set()
        self.arrived = threading.Semaphore(0)
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.arrived.release()
                if self.path != "/now":
                    collector.answers.wait()

                packed = self.headers.get("Content-Encoding") == "gzip"
                collector.bodies.append(gzip.decompress(body) if packed else body)

                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.answers.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()
