"""Receives the log records of a worker.

It passes those of a task on to the loggers of this process once the task has ended.
"""

from __future__ import annotations

import logging
import pickle
import socketserver
import struct
import threading
from collections import defaultdict
from typing import ClassVar

_waiting: defaultdict[str, list[logging.LogRecord]] = defaultdict(list)
_lock = threading.Lock()


class Handler(socketserver.StreamRequestHandler):
    """Reads the records that a SocketHandler in a process of the worker sends."""

    def handle(self) -> None:
        """Keep each record under the id of its task."""
        while len(length := self.rfile.read(4)) == 4:
            record = logging.makeLogRecord(
                pickle.loads(self.rfile.read(struct.unpack(">L", length)[0]))
            )
            id_ = record.getMessage().split("id=", 1)[-1].split(" ", 1)[0]
            with _lock:
                _waiting[id_].append(record)


class Server(socketserver.ThreadingTCPServer):
    """Listens on a free port of this machine."""

    daemon_threads = True
    block_on_close = False
    address: ClassVar[tuple[str, int]] = ("127.0.0.1", 0)

    def __init__(self) -> None:
        super().__init__(self.address, Handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()


def has_ended(id_: str) -> bool:
    """Whether the last record of a task has arrived."""
    with _lock:
        return any(
            "state=SUCCESSFUL" in record.getMessage() or "state=FAILED" in record.getMessage()
            for record in _waiting[id_]
        )


def flush(id_: str) -> None:
    """Pass the records of a task on to the loggers of this process."""
    with _lock:
        records = _waiting.pop(id_, [])
    for record in records:
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            logging.getLogger(record.name).handle(record)
