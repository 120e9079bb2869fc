"""The health server, which answers requests about the health of a worker over HTTP.

- /live succeeds if the engine's loop is not stuck. If it is stuck, a restart helps.
- /ready succeeds if tasks that are sent now would be claimed and run here.
- /metrics returns the counts of the worker in the format of Prometheus.

Replies come from the worker's memory: they need no database and wait for no lock of the engine.
Each client gets a thread of its own. A slow or broken client uses its thread for a few seconds at
most. If there are too many clients, the oldest one is disconnected, so that health requests are
always answered and the number of threads is limited. The server outlives the engine: a worker that
was declared dead starts again on the same port.
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

from horsies_django import __version__
from horsies_django.core.errors import WorkerStartError
from horsies_django.core.words import duration
from horsies_django.monitoring import METRICS_TYPE, NO_METRICS
from horsies_django.monitoring.reading import BusyError
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.maintenance.heartbeat import ENGINE_STUCK_SECONDS
from horsies_django.worker.process.options import WorkerOptions

logger = logging.getLogger("horsies.worker")

REQUEST_SECONDS = 5.0  # the longest time from the connection to the last byte of the request
REQUEST_BYTES = 8_192
MOST_CLIENTS = 16  # at once
MOST_THREADS = 32  # more than clients, because threads of disconnected clients take time to end
BUSY_TEXT = "Too many requests wait for the metrics. Try again in a second.\n"


def sick(engine: Engine) -> list[str]:
    """Return the reasons why the worker is not live; an empty list if it is."""
    busy_since = engine.status.busy_since
    if busy_since is not None and (seconds := time.monotonic() - busy_since) > ENGINE_STUCK_SECONDS:
        return [f"the engine has been stuck for {duration(seconds)}"]
    return []


def unready(engine: Engine) -> list[str]:
    """Return the reasons why a task that is sent now would not run here; an empty list if it would.

    Once all children were ready, one ready child is enough, because the others may just be in
    replacement.
    """
    reasons = sick(engine)
    status = engine.status
    ready = sum(member.ready for member in status.members)

    if not ready or (ready < len(status.members) and not status.started):
        reasons.append(
            f"{ready} of {max(len(status.members), engine.pool.options.processes, 1)} processes "
            "are ready"
        )

    if status.connection is None:
        reasons.append("there is no connection to the database")
    elif status.failing:
        reasons.append("the last statement to the database failed")

    if time.monotonic() > engine.trusted_until:
        reasons.append(
            "no heartbeat was sent for too long: other workers may declare this one dead"
        )

    if status.stopping:
        reasons.append("the worker is stopping")
    return reasons


PROBES = {"/live": sick, "/ready": unready}
METRICS = "/metrics"


class HealthServer(ThreadingHTTPServer):
    """The HTTP server, for the engine that ``engine()`` returns at the time of the request."""

    allow_reuse_port = False  # two workers on one port would answer for each other
    # with the default of 5, many connections at once are dropped, and tried again after a second
    request_queue_size = 128

    def __init__(self, host: str, port: int, engine: Callable[[], Engine]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.engine = engine
        self.clients: dict[Any, None] = {}  # the sockets of clients, oldest first
        self.lock = threading.Lock()
        self.threads = threading.BoundedSemaphore(MOST_THREADS)
        super().__init__((host, port), HealthRequestHandler)

    def server_bind(self) -> None:
        """Bind the socket, without the lookup of the host's name by HTTPServer."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread of its own; if there are too many, disconnect the oldest."""
        with self.lock:
            self.clients[request] = None
            oldest = next(iter(self.clients)) if len(self.clients) > MOST_CLIENTS else None
            self.clients.pop(oldest, None)

        if oldest is not None:
            with suppress(OSError):  # the client has disconnected
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end of the input and ends

        if not self.threads.acquire(timeout=REQUEST_SECONDS):
            raise ConnectionAbortedError("no thread became free")
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.threads.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.threads.release()

    def shutdown_request(self, request: Any) -> None:
        """Remove a client that was answered."""
        with self.lock:
            self.clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed request at DEBUG, because usually the client has disconnected."""
        logger.debug("a health request from %s failed", client_address, exc_info=True)


class HealthRequestHandler(BaseHTTPRequestHandler):
    """One request, which gets the status 200, 404, 501 or 503.

    503 has the reasons; 501 is for metrics without prometheus-client. While metrics are rendered,
    only some clients wait for them; the others get 503.
    """

    server: HealthServer

    def setup(self) -> None:
        """Read the request, with limits for its whole time and size.

        A timeout of the socket would start again with every byte.
        """
        super().setup()
        self.rfile.close()

        deadline = time.monotonic() + REQUEST_SECONDS
        text = b""
        while not re.search(rb"\n\r?\n", text):
            if len(text) >= REQUEST_BYTES or (seconds := deadline - time.monotonic()) <= 0:
                raise ConnectionAbortedError("the request is too long, or took too long")

            self.connection.settimeout(seconds)
            if not (more := self.connection.recv(REQUEST_BYTES - len(text))):
                break
            text += more

        self.rfile = io.BytesIO(text)

    def do_GET(self) -> None:
        """Answer a request; a query string is ignored."""
        path = self.path.partition("?")[0]
        engine = self.server.engine()

        if path in PROBES:
            reasons = PROBES[path](engine)
            about = {"version": __version__, "dropped_signals": engine.outbox.receivers.dropped}
            record = {
                "ok": not reasons,
                "reasons": reasons,
                "worker": str(engine.outbox.worker),
                **about,
            }
            self.reply(503 if reasons else 200, json.dumps(record).encode())
        elif path != METRICS:
            error = f"there are only {', '.join(PROBES)} and {METRICS}"
            self.reply(404, json.dumps({"error": error}).encode())
        elif find_spec("prometheus_client") is None:
            self.reply(501, NO_METRICS.encode(), "text/plain; charset=utf-8")
        else:
            from horsies_django.worker.maintenance.metrics import read_worker_metrics

            try:
                text = read_worker_metrics(engine)
            except BusyError:
                self.reply(503, BUSY_TEXT.encode(), "text/plain; charset=utf-8")
            else:
                self.reply(200, text, METRICS_TYPE)

    do_HEAD = do_GET

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a reply; HEAD gets only the headers."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the Server header, without the version of Python."""
        return "horsies"

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("health request: " + format, *args)


@contextmanager
def serving_health(options: WorkerOptions, engine: Callable[[], Engine]) -> Iterator[None]:
    """Run a health server during the block, if the options name a port.

    Raises WorkerStartError if the port is not available.
    """
    if options.health_port is None:
        yield
        return

    try:
        server = HealthServer(options.health_host, options.health_port, engine)
    except OSError as error:
        raise WorkerStartError(
            f"--health-port: cannot listen on {options.health_host}:{options.health_port}: "
            f"{error.strerror or error}. Free the port, or choose another one for each worker of "
            "this host"
        ) from error

    host, port = server.server_address[:2]
    where = f"[{host!s}]" if ":" in str(host) else host
    logger.info(
        "Health requests are answered at http://%s:%s/live and /ready, metrics at /metrics",
        where,
        port,
    )

    thread = threading.Thread(target=server.serve_forever, name="horsies-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
