"""The task log: a line for each outcome that was written to the database.

Completed tasks have a line each if they are few. In a second with more than ``MANY_A_SECOND``, the
further ones, and in the following seconds all of them until there are fewer, are counted and
summarized, because a line each could cost more than the tasks. Failed, retried and cancelled tasks
always have a line. Arguments and results are never logged, except messages and tracebacks of
errors.
"""

from __future__ import annotations

import copyreg
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, cast

from horsies_django.core.errors import OutcomeCode
from horsies_django.core.records import SNOOZED, Claim, Outcome
from horsies_django.core.texts import printable_name, visible
from horsies_django.store.workers import Happened

logger = logging.getLogger("horsies.task")

MANY_A_SECOND = 200  # the most completed tasks in a second that have a line each
MOST_IN_LINE = 10  # the most tasks, or names of tasks, in one line
TASK_NAME = attrgetter("task_name")
NOT_DECIDED: Mapping[str, Any] = {}
TaskRecord = Claim | Outcome | Happened  # records with the name, id and attempt of a task


class TaskLog:
    """The log of the outcomes of tasks.

    Completed tasks beyond the first ``MANY_A_SECOND`` of a second are counted, and ``tick`` logs
    their summary.
    """

    def __init__(self) -> None:
        self.began = -math.inf  # when the second that is counted began, by the monotonic clock
        self.seen = 0
        self.busy = False  # whether the second before had more than MANY_A_SECOND completed tasks
        self.counted: Counter[str] = Counter()  # name -> number of tasks without a line

    def settled(
        self, outcomes: Sequence[Outcome], decided: Mapping[str, Any] = NOT_DECIDED
    ) -> None:
        """Log outcomes that were written.

        ``decided`` has the decisions of the database about failed tasks, by id.
        """
        completed = [outcome for outcome in outcomes if outcome.status == "COMPLETED"]
        if len(completed) < len(outcomes):
            for outcome in outcomes:
                if outcome.status != "COMPLETED":
                    log_failure(outcome, decided.get(str(outcome.id), NOT_DECIDED))

        if completed and logger.isEnabledFor(logging.INFO):
            for outcome in self.take(completed, time.monotonic()):
                logger.info(
                    "%s completed%s",
                    task_label(outcome),
                    elapsed_text(outcome),
                    extra=about(outcome),
                )

    def take(self, completed: Sequence[Outcome], now: float) -> Sequence[Outcome]:
        """Return the outcomes that are logged individually, and count the others."""
        if now >= self.began + 1 and not self.counted:
            self._begin(now)

        own = 0 if self.busy else max(0, MANY_A_SECOND - self.seen)
        self.seen += len(completed)
        self.counted.update(map(TASK_NAME, completed[own:]))
        return completed[:own]

    @property
    def summary_at(self) -> float:
        """When ``tick`` has a summary to log, by the monotonic clock; infinite if there is none."""
        return self.began + 1 if self.counted else math.inf

    def tick(self, now: float) -> None:
        """Log the summary once its second is over."""
        if now >= self.summary_at:
            logger.info("%s", self.summary(now))

    def close(self) -> None:
        """Log the last summary."""
        if self.counted:
            logger.info("%s", self.summary(time.monotonic()))

    def summary(self, now: float) -> str:
        """Return the summary, with the most frequent names first, and begin the next second."""
        most = self.counted.most_common(MOST_IN_LINE)
        names = [f"{printable_name(name)} {many:,}" for name, many in most]

        if others := len(self.counted) - len(most):
            names.append(
                f"and {self.counted.total() - sum(many for _, many in most):,} of {others} more "
                "names"
            )

        line = (
            f"{self.counted.total():,} tasks completed in {now - self.began:.1f} s: "
            f"{', '.join(names)}"
        )

        self.counted.clear()
        self._begin(now)
        return line

    def _begin(self, now: float) -> None:
        self.busy = self.seen > MANY_A_SECOND * max(1.0, now - self.began)
        self.began = now
        self.seen = 0


def log_failure(outcome: Outcome, decided: Mapping[str, Any]) -> None:
    """Log a task that failed or was cancelled, and whether it is retried."""
    what = task_label(outcome)
    after = elapsed_text(outcome)
    status = outcome.ended_as(decided)

    if status == SNOOZED:
        until = f" until {time_text(decided['at'])}" if decided.get("at") else ""
        logger.info("%s snoozed%s%s", what, after, until, extra=about(outcome))
        return

    if status == "CANCELLED":
        skipped = outcome.error_code == OutcomeCode.TASK_SKIPPED
        line = "%s skipped itself%s" if skipped else "%s was cancelled%s"
        logger.info(line, what, elapsed_text(outcome, "after"), extra=about(outcome))
        return

    code = printable_name(decided.get("code") or outcome.error_code)
    why = f"{code}: {visible(outcome.error_message)}" if outcome.error_message else code

    if "retry" in decided:
        logger.info(
            "%s failed%s: %s; %s", what, after, why, retry_text(decided), extra=about(outcome)
        )
    elif outcome.returned:
        logger.warning("%s returned an error%s: %s", what, after, why, extra=about(outcome))
    else:
        logger.error(
            "%s failed%s: %s", what, after, why, exc_info=exc_info_of(outcome), extra=about(outcome)
        )


def log_expired(tasks: Sequence[TaskRecord]) -> None:
    """Log tasks whose ``good_until`` has passed."""
    if tasks:
        logger.warning(
            "%s task(s) expired before they started%s", len(tasks), in_parentheses(tasks)
        )


def retry_text(decided: Mapping[str, Any]) -> str:
    """Return a text with the number and the local time of the next retry.

    A task that an interrupted process has given back uses no retry: its number, one more than those
    that are allowed at most, is left out.
    """
    if decided["retry"] is None:  # the reply with the details was lost
        return "it is retried"
    when = time_text(decided["at"])
    if decided["retry"] > decided["of"]:
        return f"given back, it runs again at {when}"
    return f"retry {decided['retry']} of {decided['of']} at {when}"


def time_text(epoch: float) -> str:
    """Return a text with a local time, and with the date if that is not today."""
    at = time.localtime(epoch)
    return time.strftime("%H:%M:%S" if time.localtime()[:3] == at[:3] else "%Y-%m-%d %H:%M:%S", at)


def exc_info_of(outcome: Outcome) -> tuple[type[BaseException], BaseException, None] | None:
    """Return the exception in the envelope of an outcome as ``exc_info``, or None if it has none.

    The exception has the text of the original, and its traceback as a note. Its class only has the
    name and the module of the original, because this process may not have imported that.
    """
    exception = (json.loads(outcome.result).get("err") or {}).get("exception") or {}
    trace = exception.get("traceback")
    if not isinstance(trace, str):
        return None

    kind = named_class(
        printable_name(exception.get("module")), printable_name(exception.get("type"))
    )
    found = kind(visible(exception.get("message", "")))
    found.add_note("\n".join(f"    {visible(line)}" for line in trace.rstrip("\n").split("\n")))
    return kind, found, None


class Named(type):
    """The metaclass of the classes that ``named_class`` returns.

    It makes them picklable, for handlers that pass records to another process.
    """


@lru_cache(maxsize=1_000)
def named_class(module: str, name: str) -> type[BaseException]:
    """Return an exception class with this module and name, the same one each time.

    Services that collect errors group them by their class.
    """
    made = Named(
        name.rpartition(".")[2] or "?", (Exception,), {"__module__": module, "__qualname__": name}
    )
    return cast("type[BaseException]", made)


def reduced(kind: Named) -> tuple[Any, ...]:
    """Return the function and arguments by which pickle creates a class of ``named_class`` again.

    Otherwise pickle would search for the class in its module.
    """
    return named_class, (kind.__module__, kind.__qualname__)


copyreg.pickle(Named, reduced)


def task_label(task: TaskRecord) -> str:
    """Return a text with the name, id and attempt of a task."""
    return f"{printable_name(task.task_name)} {task.id} (attempt {task.attempt})"


def in_parentheses(tasks: Sequence[TaskRecord]) -> str:
    """Return a text with the first of these tasks in parentheses, for a line with their number."""
    named = [task for task in tasks if task.task_name]
    if not named:
        return ""
    more = [f"and {len(tasks) - MOST_IN_LINE} more"] if len(tasks) > MOST_IN_LINE else []
    return f" ({', '.join([task_label(task) for task in named[:MOST_IN_LINE]] + more)})"


def elapsed_text(outcome: Outcome, preposition: str = "in") -> str:
    """Return a text with how long a task occupied its slot, for the end of a sentence."""
    return "" if outcome.seconds is None else f" {preposition} {outcome.seconds:.3f} s"


def about(task: TaskRecord) -> dict[str, str | int]:
    """Return the attributes of log records about a task, as set by ``TaskContextFilter``."""
    return {
        "task_id": str(task.id),
        "task_name": printable_name(task.task_name),
        "queue_name": printable_name(task.queue_name),
        "attempt": task.attempt,
    }


def about_first(tasks: Sequence[TaskRecord]) -> dict[str, str | int] | None:
    """Return the attributes of a log record about several tasks, or None if there are no tasks.

    They are those of the first task.
    """
    return about(tasks[0]) if tasks else None
