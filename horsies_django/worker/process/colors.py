"""Colors of the log on a terminal: levels, and what became of tasks. The colors are those of Django's palette (DJANGO_COLORS)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TextIO

from django.core.management.color import make_style

LEVELS = {"WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "ERROR"}
# The messages of horsies.task: the words after the name of the task, and their role in the palette
OUTCOMES = {
    "%s completed%s": ("completed", "SUCCESS"),
    "%s was cancelled%s": ("was cancelled", "WARNING"),
    "%s skipped itself%s": ("skipped itself", "WARNING"),
    "%s failed%s: %s; %s": ("failed", "WARNING"),
    "%s returned an error%s: %s": ("returned an error", "ERROR"),
    "%s failed%s: %s": ("failed", "ERROR"),
}
RETRIED = "%s failed%s: %s; %s"


class Palette:
    """Colors lines; ``style`` is a style of Django."""

    def __init__(self, style: Any) -> None:
        self.style = style

    def paint(self, record: logging.LogRecord, text: str) -> str:
        """Return the text of a record with colors. The text has no control characters of its own."""
        if (role := LEVELS.get(record.levelname)) is not None:
            text = text.replace(f"[{record.levelname}]", f"[{self._role(role)(record.levelname)}]", 1)
        if record.name != "horsies.task" or record.msg not in OUTCOMES or not isinstance(record.args, tuple):
            return text
        words, role = OUTCOMES[record.msg]
        label = str(record.args[0])
        if record.msg == RETRIED:  # when it is retried is the end of the line
            before, retry, after = text.rpartition(str(record.args[-1]))
            text = f"{before}{self._role(role)(retry)}{after}"
        return text.replace(f"{label} {words}", f"{label} {self._role(role)(words)}", 1)

    def _role(self, name: str) -> Callable[[str], str]:
        paint: Callable[[str], str] = getattr(self.style, name)
        return paint


def palette_for(stream: TextIO) -> Palette | None:
    """Return the palette for a stream; None: no colors, as for a pipe or a file.

    NO_COLOR turns colors off, FORCE_COLOR turns them on without a terminal; ``--no-color`` and ``--force-color`` set them.
    """
    if os.environ.get("NO_COLOR"):
        return None
    if os.environ.get("FORCE_COLOR") or (stream.isatty() and os.environ.get("TERM") != "dumb"):
        return Palette(make_style(os.environ.get("DJANGO_COLORS", "")))
    return None


def choose_colors(*, no_color: bool, force_color: bool) -> None:
    """Let this process and those that it starts write with colors, or without, as the options of a command say."""
    if no_color or force_color:
        for name, chosen in (("NO_COLOR", no_color), ("FORCE_COLOR", force_color)):
            if chosen:
                os.environ[name] = "1"
            else:
                os.environ.pop(name, None)
