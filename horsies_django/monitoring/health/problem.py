"""A problem: what kinds there are, and how severe each is."""

from __future__ import annotations

import datetime as dt
import enum
from typing import NamedTuple


class Severity(enum.StrEnum):
    """critical: tasks cannot be sent, claimed or finished, or will soon not be. warning: somebody should look at it today."""

    CRITICAL = "critical"
    WARNING = "warning"


class ProblemCode(enum.StrEnum):
    """Kinds of problems, the worst first; the names are stable. Those from ORDER_STOPPED on are warnings, the others critical."""

    READ_ONLY = "READ_ONLY"
    BLOCKED = "BLOCKED"
    NOTIFY_QUEUE = "NOTIFY_QUEUE"
    CONNECTIONS = "CONNECTIONS"
    XMIN_HELD = "XMIN_HELD"
    STALE_WORKER = "STALE_WORKER"
    NO_LIVING_WORKER = "NO_LIVING_WORKER"
    NO_SCHEDULER = "NO_SCHEDULER"
    SCHEDULE_LATE = "SCHEDULE_LATE"
    SCHEDULE_FAILS = "SCHEDULE_FAILS"
    RECORD_LOST = "RECORD_LOST"
    ORDER_STOPPED = "ORDER_STOPPED"
    WAITS_TOO_LONG = "WAITS_TOO_LONG"
    PARTITION_WAITS = "PARTITION_WAITS"
    FAILURES = "FAILURES"
    CRASHES = "CRASHES"
    UNKNOWN_TASK = "UNKNOWN_TASK"
    SCHEDULED_TASKS_FAIL = "SCHEDULED_TASKS_FAIL"
    FIRE_TIMES_MISSED = "FIRE_TIMES_MISSED"
    RUNS_STAND_STILL = "RUNS_STAND_STILL"

    @property
    def severity(self) -> Severity:
        """Return how severe problems of this kind are."""
        codes = list(ProblemCode)
        warning = codes.index(self) >= codes.index(ProblemCode.ORDER_STOPPED)
        return Severity.WARNING if warning else Severity.CRITICAL


class Problem(NamedTuple):
    """A problem. ``subject`` says what has it, for programs: "queue mail", "task shop.tasks.pay", "database".

    ``since`` is aware, or None if that is not known. ``text`` says what is wrong, ``advice`` what to do.
    """

    code: ProblemCode
    severity: Severity
    subject: str
    since: dt.datetime | None
    text: str
    advice: str


def problem(code: ProblemCode, subject: str, text: str, advice: str, since: dt.datetime | None = None) -> Problem:
    """Return a problem with the severity of its code."""
    return Problem(code, code.severity, subject, since, text, advice)


def number(count: int, what: str, more: bool = False) -> str:
    """Return "1 task" or "3 tasks"; ``more``: "more than 3 tasks"."""
    return f"{'more than ' if more else ''}{count:,} {what}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """Return a duration: "45 s", "39 min", "5.0 h"."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"
