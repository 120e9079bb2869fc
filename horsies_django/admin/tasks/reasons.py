"""Why a task is not running: the reasons of ``explain``, with links to the rows that they mention."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.readonly import read_bounded
from horsies_django.core.status import Status
from horsies_django.models import Queue, Task, Worker
from horsies_django.monitoring.explain import Reason, ReasonCode, explain

PATIENCE_MS = 1_000  # longer, and the page is shown without the reasons
NAMED = 5  # tasks and workers linked in a line
Row: TypeAlias = tuple[type[Model], Any, str]  # what a link leads to, and its text
HIDDEN = gettext_lazy(
    "The partition of this task is at its limit. The permission horsies.view_payload is required to see partitions."
)


class Line(NamedTuple):
    """One reason, with links to the rows that it mentions."""

    code: str
    text: str
    links: SafeString


class Panel(NamedTuple):
    """The panel with the reasons; ``lines`` is None if finding them timed out."""

    title: str | Promise
    lines: list[Line] | None


def panel(page: Any, request: HttpRequest, task: Task, visible: bool) -> Panel | None:
    """Return the reasons for an unfinished task, None for a finished one; ``visible``: the user may see its payload."""
    if task.finished_at is not None:
        return None
    title = _("Where is it running?") if task.status == Status.RUNNING else _("Why is it not running?")
    try:
        found = read_bounded(task._state.db or "", lambda: explain(task.pk), PATIENCE_MS)
    except LookupError:  # deleted meanwhile
        return None
    lines = None if found is None else [_line(page, request, reason, visible) for reason in found.reasons]
    return Panel(title, lines)


def _line(page: Any, request: HttpRequest, reason: Reason, visible: bool) -> Line:
    hidden = reason.code == ReasonCode.PARTITION_AT_LIMIT and not visible  # the text has the key, made from arguments
    return Line(reason.code.value, str(HIDDEN) if hidden else reason.text, _links(page, request, reason.details))


def _links(page: Any, request: HttpRequest, details: Mapping[str, Any]) -> SafeString:
    """Return links to the queue, permit holders and workers in a reason, as far as the user may see their pages."""
    queue = details.get("queue")
    holding = [details] if "worker_id" in details else []
    groups: tuple[tuple[str, list[Row]], ...] = (
        (_("queue"), [(Queue, queue, str(Queue(name=queue)))] if queue else []),
        (_("held by"), [_task(one) for one in details.get("holders") or ()]),
        (_("worker"), [_worker(one) for one in holding]),
        (_("workers"), [_worker(one) for one in _known(details.get("workers") or details.get("former") or ())]),
    )
    found = []
    for label, rows in groups:
        links = [page.link(request, model, pk, text) for model, pk, text in rows[:NAMED]]
        if links and isinstance(links[0], SafeString):  # else the user has no such page
            found.append(
                (
                    label,
                    format_html_join(", ", "{}", ((link,) for link in links)),
                    "" if rows[:NAMED] == rows else ", …",
                )
            )
    return format_html_join(" · ", "{}: {}{}", found)


def _known(workers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in workers if one.get("hostname")]


def _task(facts: Mapping[str, Any]) -> Row:
    return Task, uuid.UUID(str(facts["task_id"])), str(facts["task_name"])


def _worker(facts: Mapping[str, Any]) -> Row:
    name = f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])
    return Worker, uuid.UUID(str(facts["worker_id"])), name
