"""The default handler of the worker's log, its format and its colors.

It is for projects that configure no handler. The colors on a terminal are those of Django's
palette.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from django.conf import settings
from django.core.management.color import make_style

from horsies_django.core.texts import visible
from horsies_django.tasks.context import TaskContextFilter
from horsies_django.worker.logs.relay import Relay

LEVEL_ROLES = {"WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "ERROR"}
# messages of horsies.task -> the words after the name of the task, and their role in the palette
OUTCOME_MESSAGES = {
    "%s completed%s": ("completed", "SUCCESS"),
    "%s was cancelled%s": ("was cancelled", "WARNING"),
    "%s skipped itself%s": ("skipped itself", "WARNING"),
    "%s failed%s: %s; %s": ("failed", "WARNING"),
    "%s returned an error%s: %s": ("returned an error", "ERROR"),
    "%s failed%s: %s": ("failed", "ERROR"),
}
RETRIED_MESSAGE = "%s failed%s: %s; %s"
FORMAT = "[%(asctime)s] [%(component)s] [%(levelname)s] %(context)s%(message)s"


def paint(palette: Any, record: logging.LogRecord, text: str) -> str:
    """Return the text of a record with the colors of a palette.

    The text must not contain control characters.
    """
    if (role := LEVEL_ROLES.get(record.levelname)) is not None:
        text = text.replace(
            f"[{record.levelname}]", f"[{getattr(palette, role)(record.levelname)}]", 1
        )

    if (
        record.name != "horsies.task"
        or record.msg not in OUTCOME_MESSAGES
        or not isinstance(record.args, tuple)
    ):
        return text

    words, role = OUTCOME_MESSAGES[record.msg]
    colored = getattr(palette, role)
    label = str(record.args[0])

    if record.msg == RETRIED_MESSAGE:  # the time of the retry is at the end of the line
        before, retry, after = text.rpartition(str(record.args[-1]))
        text = f"{before}{colored(retry)}{after}"

    return text.replace(f"{label} {words}", f"{label} {colored(words)}", 1)


def palette_for(stream: TextIO) -> Any:
    """Return the palette for a stream, a style of Django, or None for output without colors.

    A pipe or a file has no colors. The environment variable NO_COLOR turns colors off, and
    FORCE_COLOR turns them on without a terminal; ``--no-color`` and ``--force-color`` set them.
    """
    if os.environ.get("NO_COLOR"):
        return None
    if os.environ.get("FORCE_COLOR") or (stream.isatty() and os.environ.get("TERM") != "dumb"):
        return make_style(os.environ.get("DJANGO_COLORS", ""))
    return None


def choose_colors(*, no_color: bool, force_color: bool) -> None:
    """Set the environment variables for colors from the options of a command.

    They apply to this process and the processes that it starts.
    """
    if no_color or force_color:
        for name, chosen in (("NO_COLOR", no_color), ("FORCE_COLOR", force_color)):
            if chosen:
                os.environ[name] = "1"
            else:
                os.environ.pop(name, None)


class Formatter(logging.Formatter):
    """The format of log lines: ``[12:00:01] [worker] [INFO] message``.

    Further lines of a message are indented. The message of a task's own logger begins with the name
    and id of the task and the attempt. A ``palette`` colors levels and outcomes.
    """

    def __init__(self, palette: Any = None) -> None:
        super().__init__(FORMAT, datefmt="%H:%M:%S")
        self.palette = palette

    def format(self, record: logging.LogRecord) -> str:
        component = record.name.removeprefix("horsies.")
        context = ""
        if component == record.name and getattr(record, "task_id", "-") != "-":
            context = "{task_name} {task_id} (attempt {attempt}): ".format(**record.__dict__)

        record.__dict__.update(component=component, context=context)
        text = "\n    ".join(
            visible(line.replace("\t", "    ")) for line in super().format(record).split("\n")
        )
        return text if self.palette is None else paint(self.palette, record, text)


class Console(logging.StreamHandler[TextIO]):
    """The handler that writes a record to stderr if the project has no handler for it.

    Handlers that a tool has added to the root logger are no handlers of the project.
    """

    def filter(self, record: logging.LogRecord) -> Any:
        """Return False for a record if a logger below the root has a handler of its own for it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not logging.root:
            if any(not isinstance(handler, Relay) for handler in logger.handlers):
                return False
            logger = logger.parent

        return super().filter(record)


class Level:
    """The level that ``configure_logging`` has set on the root logger.

    If the root logger has another level, the project has set it since.
    """

    given = logging.WARNING  # Python's default


def configure_logging(level: str) -> None:
    """Set the level of the "horsies" loggers, and write records without a handler to stderr.

    If the project does not configure the root logger, it gets the same level, so that the log of
    tasks is visible, and handlers that a tool has added to it, such as an export of logs, get the
    records in addition.
    """
    for name in ("horsies", *logging.root.manager.loggerDict):
        if name == "horsies" or name.startswith("horsies."):
            # "disable_existing_loggers" in LOGGING may have disabled it
            logging.getLogger(name).disabled = False
    logging.getLogger("horsies").setLevel(level)

    stream = stream_of_its_own()
    handler = Console(stream)
    handler.setLevel(level)
    handler.setFormatter(Formatter(palette_for(stream)))
    handler.addFilter(TaskContextFilter())
    logging.lastResort = handler

    added = [one for one in logging.root.handlers if not isinstance(one, Console)]
    if root_is_configured(added):
        return
    logging.root.setLevel(level)
    Level.given = logging.root.level
    # Without any handler, Python uses ``lastResort``. Beside handlers of tools, it would not.
    logging.root.handlers = [*added, handler] if added else []


def root_is_configured(handlers: Iterable[logging.Handler]) -> bool:
    """Return whether the project configures the root logger, in LOGGING or in code.

    ``handlers`` are the handlers of the root logger. If the project has set a level of its own, any
    handler counts as the project's; otherwise only one that writes to a stream does, because tools
    add others.
    """
    chosen = settings.LOGGING or {}
    if "root" in chosen or "" in chosen.get("loggers", {}):
        return True

    if logging.root.level not in (logging.WARNING, Level.given):
        return any(handlers)
    return any(isinstance(handler, logging.StreamHandler) for handler in handlers)


def stream_of_its_own() -> TextIO:
    """Return a stream to stderr that only the log uses, or ``sys.stderr`` if that is not a file.

    A thread whose write to stderr blocks holds the lock of its stream. The start of a process
    flushes ``sys.stderr``, and would wait for that lock.
    """
    try:
        return open(
            sys.stderr.fileno(), "w", 1, sys.stderr.encoding, sys.stderr.errors, closefd=False
        )
    except (AttributeError, OSError, ValueError):
        return sys.stderr


@contextmanager
def relayed_logs() -> Iterator[None]:
    """Relay the records of the "horsies" logger to its handlers during the block."""
    logger = logging.getLogger("horsies")
    own = logger.handlers
    propagate = logger.propagate

    others = logging.root.handlers if propagate else []
    if own:
        others = [handler for handler in others if not isinstance(handler, Console)]
    handlers = [*own, *others]

    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]

    relay = Relay(*handlers)
    logger.handlers = [relay]
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers = own
        logger.propagate = propagate
        relay.writer.stop()  # waits until all records are written
