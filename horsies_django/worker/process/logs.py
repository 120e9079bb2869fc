"""The worker's log: its own handler for projects that configured none, and the relay that keeps a slow log from stopping it.

Writing a line can block: a pipe whose reader sleeps, a full disk, a handler that sends over the network. The thread that
claims and settles must never wait for that, or the worker stands still and others take it for dead.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from logging.handlers import QueueHandler, QueueListener
from typing import NoReturn

from django.conf import settings

from horsies_django.tasks.context import TaskContextFilter

FORMAT = "[%(asctime)s] [%(component)s] [%(levelname)s] %(context)s%(message)s"
MAX_WAITING = 10_000  # lines that wait for a slow log; what comes on top is counted and lost
LAST_LINES_SECONDS = 2.0
# What could make one line look like two, or like another one: control characters, line separators, marks that turn the direction
# of writing, and surrogates, which no stream can encode.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: object) -> str:
    """Return a text that cannot end its line or hide in it."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


class Formatter(logging.Formatter):
    """Lines such as ``[12:00:01] [worker] [INFO] message``; further lines of a message are indented.

    A record that a task's own code made begins with the task's name, its id and the attempt.
    """

    def __init__(self) -> None:
        super().__init__(FORMAT, datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        component, context = record.name.removeprefix("horsies."), ""
        if component == record.name and getattr(record, "task_id", "-") != "-":
            context = "{task_name} {task_id} (attempt {attempt}): ".format(**record.__dict__)
        record.__dict__.update(component=component, context=context)
        return "\n    ".join(one_line(line.replace("\t", "    ")) for line in super().format(record).split("\n"))


def configure_logging(level: str) -> None:
    """Set the level of the "horsies" loggers, and write to stderr what no handler of the project's would see.

    Where ``LOGGING`` says nothing of the root logger its level is the same, so that the records of the project's own tasks show.
    """
    for name in ("horsies", *logging.root.manager.loggerDict):
        if name == "horsies" or name.startswith("horsies."):
            logging.getLogger(name).disabled = False  # as "disable_existing_loggers" leaves those that came before it
    logging.getLogger("horsies").setLevel(level)
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(Formatter())
    handler.addFilter(TaskContextFilter())
    logging.lastResort = handler
    if not root_is_configured():
        logging.root.setLevel(level)


def root_is_configured() -> bool:
    """Whether the project says what becomes of records for which it names no logger."""
    chosen = settings.LOGGING or {}
    return bool(logging.root.handlers) or "root" in chosen or "" in chosen.get("loggers", {})


class Relay(QueueHandler):
    """Hands lines to the thread that writes them, and never waits; once too many wait, it counts what it drops."""

    dropped = 0

    def __init__(self, *handlers: logging.Handler) -> None:
        # a simple queue, as a signal handler may put into it while this very thread does
        self.waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        super().__init__(self.waiting)
        self.addFilter(TaskContextFilter())  # here, as the thread that writes runs no task
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
    handlers = [*own, *logging.root.handlers] if propagate else [*own]
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
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
