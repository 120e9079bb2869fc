"""The thread that writes log lines, so that the threads of the worker never wait for a handler.

Writing a log line can block: a pipe that is not read, a full disk, a handler that uses the network.
The engine thread must never wait for that, or the worker sends no heartbeats and is declared dead.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from copy import copy
from logging.handlers import QueueHandler, QueueListener
from typing import NoReturn

from horsies_django.tasks.context import TaskContextFilter

# the most lines, or events, that wait for a thread; further ones are dropped and counted
MOST_WAITING_RECORDS = 10_000
LAST_LINES_SECONDS = 2.0


class Writer(QueueListener):
    """The thread that writes the relayed records.

    If a handler raises, the other handlers are still called, and later records are still written.
    """

    def handle(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                try:
                    handler.handle(record)
                except Exception:
                    handler.handleError(record)


class Relay(QueueHandler):
    """The handler that passes records to a writer thread without waiting.

    If too many records wait, further ones are dropped and counted.
    """

    dropped = 0

    def __init__(self, *handlers: logging.Handler) -> None:
        # a SimpleQueue, because a signal handler may log while this thread does
        self.waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        super().__init__(self.waiting)
        self.addFilter(TaskContextFilter())  # here, because the writer thread runs no task
        self.writer = Writer(self.waiting, *handlers, respect_handler_level=True)
        self.writer.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # unchanged, because it is not pickled

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.waiting.qsize() >= MOST_WAITING_RECORDS:
            self.dropped += 1
            return

        if self.dropped:
            record = copy(record)
            record.msg = (
                f"{record.msg} ({self.dropped} line(s) before this one are lost: the log is "
                "written too slowly)"
            )
            self.dropped = 0

        self.waiting.put(record)


def end_process(code: int) -> NoReturn:
    """End this process without waiting for its threads.

    Pending log lines are written for at most ``LAST_LINES_SECONDS``.
    """
    writing = threading.Thread(target=write_out, daemon=True)
    writing.start()
    writing.join(LAST_LINES_SECONDS)
    os._exit(code)


def write_out() -> None:
    """Write the pending log lines."""
    for handler in logging.getLogger("horsies").handlers:
        if isinstance(handler, Relay):
            handler.writer.stop()
    logging.shutdown()
