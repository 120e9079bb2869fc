"""One task as text and as JSON, and lists of tasks as text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from horsies_django.core.queues import shown_priority
from horsies_django.core.records import TaskInfo
from horsies_django.management.reports.layout import moment, table
from horsies_django.monitoring.overview import TaskList

LABELS = {"lane": "runs as", "codec": "arguments"}  # where the name of the column needs an explanation


def as_text(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    """Return a task line by line, followed by its copies and attempts; the payload only if ``payload``."""
    known = {**facts(info, payload), "priority": shown_priority(info.priority, info.codec)}
    lines = [f"{LABELS.get(name, name):<14}{shown(value)}" for name, value in known.items() if value not in (None, "")]
    lines += [f"{'run again as':<14}{copy}" for copy in copies]
    for attempt in info.attempts:
        message = f": {attempt.error_message}" if payload and attempt.error_message else ""
        end = f" {attempt.error_code}{message}" if attempt.error_code or message else ""
        again = ", retried" if attempt.will_retry else ""
        seconds = (attempt.finished_at - attempt.started_at).total_seconds()
        lines.append(
            f"attempt {attempt.attempt}: {attempt.outcome}{end}{again}, {shown(attempt.started_at)}, "
            f"{seconds:.3f} s, worker {attempt.worker_id}, process {attempt.child_pid or '-'}"
            + (f", in {attempt.site}, line {attempt.site_line}" if attempt.site else "")
        )
    return "\n".join(lines)


def as_json(info: TaskInfo, payload: bool, copies: Sequence[uuid.UUID]) -> str:
    hidden = () if payload else ("error_message", "exception_class", "traceback")
    attempts = [
        {name: value for name, value in attempt._asdict().items() if name not in hidden} for attempt in info.attempts
    ]
    found = {**facts(info, payload), "copies": copies, "attempts": attempts}
    return json.dumps(found, default=str, indent=2)


def facts(info: TaskInfo, payload: bool) -> dict[str, Any]:
    """Return the columns of a task."""
    hidden = ("attempts",) if payload else ("attempts", "result")
    return {name: value for name, value in info._asdict().items() if name not in hidden}


def shown(value: Any) -> Any:
    """Return a datetime as text, and any other value unchanged."""
    if not hasattr(value, "utcoffset"):
        return value
    return (timezone.localtime(value) if timezone.is_aware(value) else value).isoformat(" ", "milliseconds")


def task_table(found: TaskList) -> str:
    headings = ("ID", "NAME", "QUEUE", "STATUS", "SENT", "STARTED", "FINISHED", "ERROR")
    rows = (
        (
            task.id, task.task_name, task.queue_name, task.status, moment(task.sent_at), moment(task.started_at),
            moment(task.finished_at), task.error_code or "-",
        )
        for task in found.tasks
    )  # fmt: skip
    return table(headings, rows) if found.tasks else "There are no such tasks."
