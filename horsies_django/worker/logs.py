"""The worker's log: its own handler for projects that configured none, and the relay that keeps a slow log from stopping it.

Writing a line can block: a pipe whose reader sleeps, a full disk, a handler that sends over the network. The thread that
claims and settles must never wait for that, or the worker stands still and others take it for dead.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from logging.handlers import QueueHandler, QueueListener
from typing import NoReturn

FORMAT = "[%(asctime)s] [%(component)s] [%(levelname)s] %(message)s"
MAX_WAITING = 10_000  # lines that wait for a slow log; what comes on top is counted and lost
LAST_LINES_SECONDS = 2.0


class Formatter(logging.Formatter):
    """Lines such as ``[12:00:01] [worker] [INFO] message``."""

    def __init__(self) -> None:
        super().__init__(FORMAT, datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.component = record.name.removeprefix("horsies.")
        return super().format(record)


def configure_logging(level: str) -> None:
    """Set the level of the "horsies" loggers; write them to stderr when no handler would see them."""
    logger = logging.getLogger("horsies")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(Formatter())
        logger.addHandler(handler)


class Relay(QueueHandler):
    """Hands lines to the thread that writes them, and never waits; once too many wait, it counts what it drops."""

    dropped = 0

    def __init__(self, *handlers: logging.Handler) -> None:
        # a simple queue, as a signal handler may put into it while this very thread does
        self.waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        super().__init__(self.waiting)
        self.writer = QueueListener(self.waiting, *handlers, respect_handler_level=True)
        self.writer.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # whole, as nothing is pickled on the way

    def enqueue(self, record: logging.LogRecord) -> None:
        if self.waiting.qsize() >= MAX_WAITING:
            self.dropped += 1
            return
        if self.dropped:
            record = copy(record)
            record.msg = (
                f"{record.msg} ({self.dropped} line(s) before this one are lost: the log is written too slowly)"
            )
            self.dropped = 0
        self.waiting.put(record)


@contextmanager
def relayed_logs() -> Iterator[None]:
    """Let nothing in this process wait for the handlers of the "horsies" logger, whoever configured them."""
    logger = logging.getLogger("horsies")
    own, propagate = logger.handlers, logger.propagate
    handlers = [*own, *logging.getLogger().handlers] if propagate else [*own]
    relay = Relay(*handlers)
    logger.handlers, logger.propagate = [relay], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = own, propagate
        relay.writer.stop()  # once all of it is written


def end_process(code: int) -> NoReturn:
    """End this process without waiting for its threads; what was logged gets a moment to be written, even if the log is stuck."""
    writing = threading.Thread(target=write_out, daemon=True)
    writing.start()
    writing.join(LAST_LINES_SECONDS)
    os._exit(code)


def write_out() -> None:
    """Write what was logged so far."""
    for handler in logging.getLogger("horsies").handlers:
        if isinstance(handler, Relay):
            handler.writer.stop()
    logging.shutdown()
