"""The first sentence of a task's page: what it is doing or how it ended, when, where, and what it waits for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import NOTHING, span
from horsies_django.admin.tasks.sections import Panel
from horsies_django.core.explanations import Reason, ReasonCode
from horsies_django.core.status import Status
from horsies_django.models.fields import aware


def headline(page: Any, request: Any, task: Any, panel: Panel | None, site: str | None) -> SafeString:
    """Return the sentence; ``site`` is where the last attempt failed. The texts of reasons are as this user may see them."""
    if task.merged_into is not None:
        other = page.link(request, type(task), task.merged_into, str(task.merged_into))
        return format_html(_("Merged {} ago into task {}, which runs for it."), past(task, task.finished_at), other)
    if task.finished_at is not None:
        return format_html("{}{}.", ended(task, site), gone(task))
    reasons, lines = (panel.reasons, panel.lines or []) if panel else ((), [])
    found = {reason.code: reason for reason in reasons}
    tell = TELLING.get(reasons[0].code) if reasons else None
    if tell is not None:
        return format_html("{}", tell(task, reasons[0].details))
    ahead = found.get(ReasonCode.BEHIND_OTHERS)
    waits = held_back(reasons[0], lines[0].text) if reasons else ""
    if ahead is not None and ahead is not reasons[0]:
        waits += _(", %(count)s ahead") % {"count": f"{ahead.details['count']:,}" + "+" * ahead.details["more"]}
    since = {"span": past(task, task.enqueued_at)}
    return format_html("{}{}.", _("Waiting for %(span)s") % since, f": {waits}" if waits else "")


def past(task: Any, at: dt.datetime) -> str:
    return span(task.read_at - at)


def attempt(task: Any) -> str:
    """Return which attempt it is, "" if there can be only one."""
    numbers = attempt_numbers(task)
    return _("attempt %(number)d of %(most)d") % numbers if numbers["most"] > 1 else ""


def attempt_numbers(task: Any) -> dict[str, int]:
    """Return the number of the attempt, and that of the last one that its retry policy allows."""
    before = task.attempts_before or 0
    return {"number": before + task.retry_count + 1, "most": before + task.max_retries + 1}


def ended(task: Any, site: str | None) -> str:
    ago = {"ago": past(task, task.finished_at), "code": task.error_code}
    if task.status == Status.COMPLETED:
        ran = span(task.finished_at - task.started_at) if task.started_at else NOTHING
        return _("Completed %(ago)s ago after %(ran)s") % {**ago, "ran": ran}
    if task.status == Status.EXPIRED:
        return _("Expired %(ago)s ago: it had not started in time") % ago
    if task.status == Status.CANCELLED:
        return _("Cancelled %(ago)s ago, %(code)s") % ago
    tried = _(" at %(attempt)s") % {"attempt": attempt(task)} if attempt(task) else ""
    place = _(" in %(site)s") % {"site": site} if site else ""
    return _("Failed %(ago)s ago%(tried)s%(place)s with %(code)s") % {**ago, "tried": tried, "place": place}


def gone(task: Any) -> str:
    if task.redacted_at is None:
        return ""
    return _("; its arguments and messages were removed %(ago)s ago") % {"ago": past(task, task.redacted_at)}


def held_back(reason: Reason, text: str) -> str:
    """Return a reason in a few words: that of a cap has many."""
    if reason.code not in (ReasonCode.QUEUE_AT_CAP, ReasonCode.CLUSTER_AT_CAP):
        return text.removesuffix(".")
    queue = _("the whole cluster") if reason.code == ReasonCode.CLUSTER_AT_CAP else reason.details["queue"]
    return _("%(queue)s is at its cap %(taken)s of %(cap)s") % {**reason.details, "queue": queue}


def running(task: Any, details: dict[str, Any]) -> str:
    host = f"{details['hostname']}:{details['pid']}" if details["hostname"] else str(details["worker_id"])
    told = {"span": past(task, task.started_at), "host": host, "child": details["child_pid"]}
    text = (
        _("Running for %(span)s on %(host)s, child %(child)s")
        if told["child"]
        else _("Running for %(span)s on %(host)s")
    )
    return ", ".join(part for part in (text % told, attempt(task)) if part) + "."


def due(task: Any, details: dict[str, Any]) -> str:
    """Return how long it is until the task is due."""
    return span(dt.datetime.fromisoformat(details["due_at"]) - aware(task.read_at))


TELLING: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    ReasonCode.RUNNING: running,
    ReasonCode.NOT_DUE: lambda task, details: _("Due in %(span)s.") % {"span": due(task, details)},
    ReasonCode.SNOOZED: lambda task, details: _("Snoozed by its code, due in %(span)s.") % {"span": due(task, details)},
    ReasonCode.RETRY_WAITING: lambda task, details: (
        _("Retries in %(span)s: %(attempt)s.") % {"span": due(task, details), "attempt": attempt(task)}
    ),
}
