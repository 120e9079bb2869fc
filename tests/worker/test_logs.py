"""The relay between the worker and its log: nothing waits for a slow log, and what it cannot take is counted."""

from __future__ import annotations

import logging
import threading

import pytest

from horsies_django.worker.process import logs
from tests.conftest import wait_until

logger = logging.getLogger("horsies.worker")


class Slow(logging.Handler):
    """Writes a line only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.arrived.set()
        self.gate.wait(30)
        self.lines.append(self.format(record))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Give a handler that is the only one of the "horsies" logger."""
    handler = Slow()
    horsies = logging.getLogger("horsies")
    monkeypatch.setattr(horsies, "handlers", [handler])
    monkeypatch.setattr(horsies, "propagate", False)
    horsies.setLevel("INFO")
    return handler


def test_lines_that_a_slow_log_cannot_take_are_counted_and_the_rest_is_written_in_order(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING", 2)
    with logs.relayed_logs():
        logger.info("line %s", 0)
        assert slow.arrived.wait(30)
        for number in range(1, 6):  # nobody writes: each of these returns at once
            logger.info("line %s", number)
        assert slow.lines == []
        slow.gate.set()
        wait_until(lambda: len(slow.lines) == 3, "what waited is written")
        logger.info("the next")
    assert slow.lines == [
        "line 0",
        "line 1",
        "line 2",
        "the next (3 line(s) before this one are lost: the log is written too slowly)",
    ]


def test_a_line_arrives_whole_with_its_traceback_and_only_where_its_level_is_wanted(slow: Slow) -> None:
    slow.gate.set()
    slow.setLevel("WARNING")
    with logs.relayed_logs():
        try:
            raise LookupError("the cause")
        except LookupError:
            logger.exception("it failed: %s", "so")
        logger.info("not wanted")
    (line,) = slow.lines
    assert line.startswith("it failed: so\nTraceback")
    assert line.endswith("LookupError: the cause")


def test_afterwards_the_handlers_are_the_project_s_own(slow: Slow) -> None:
    slow.gate.set()
    with logs.relayed_logs():
        assert slow not in logging.getLogger("horsies").handlers
    assert slow in logging.getLogger("horsies").handlers
