"""Reasons of explanations as lines, with links to the rows that they mention."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import FEW, node_link
from horsies_django.core.explanations import Reason, ReasonCode
from horsies_django.models import Queue, Task, Worker, WorkflowRun

Row: TypeAlias = tuple[type[Model], Any, str]  # what a link leads to, and its text
HIDDEN: dict[str, str | Promise] = {  # their texts have the key, made from arguments
    ReasonCode.PARTITION_AT_LIMIT: gettext_lazy(
        "The partition of this task is at its limit. The permission horsies.view_payload is required to see partitions."
    ),
    ReasonCode.BEHIND_IN_ORDER: gettext_lazy(
        "Another task comes before it in its partition. The permission horsies.view_payload is required to see partitions."
    ),
}


class Line(NamedTuple):
    """One reason, with links to the rows that it mentions."""

    code: str
    text: str
    links: SafeString


def reason_line(page: Any, request: HttpRequest, reason: Reason, visible: bool) -> Line:
    """Return a reason as a line; ``visible``: the user may see payloads."""
    text = reason.text if visible else str(HIDDEN.get(reason.code, reason.text))
    return Line(reason.code.value, text, _links(page, request, reason.details))


def _links(page: Any, request: HttpRequest, details: Mapping[str, Any]) -> SafeString:
    """Return links to the rows in a reason, as far as the user may see their pages."""
    queue, child = details.get("queue"), details.get("run")
    workers = details.get("workers") or details.get("former") or ()
    holding = [details] if "worker_id" in details else []
    tasks = [_task(details)] if details.get("task_id") and "task_name" in details else []
    groups: tuple[tuple[str, list[Row]], ...] = (
        (_("queue"), [(Queue, queue, str(Queue(name=queue)))] if queue else []),
        (_("task"), tasks),
        (_("run"), [(WorkflowRun, uuid.UUID(child["id"]), str(child["name"]))] if child else []),
        (_("held by"), [_task(one) for one in details.get("holders") or ()]),
        (_("worker"), [_worker(one) for one in holding]),
        (_("workers"), [_worker(one) for one in workers if one.get("hostname")]),
    )
    found = [
        (label, [page.link(request, model, pk, text) for model, pk, text in rows[:FEW]], len(rows) > FEW)
        for label, rows in groups
    ]
    if nodes := details.get("upstream"):
        run = uuid.UUID(details["workflow_id"])
        links = [node_link(page, request, run, one["number"], one["name"]) for one in nodes[:FEW]]
        found.append((_("upstream"), links, len(nodes) > FEW))
    return format_html_join(
        " · ",
        "{}: {}{}",
        (
            (label, format_html_join(", ", "{}", ((link,) for link in links)), ", …" if more else "")
            for label, links, more in found
            if links and isinstance(links[0], SafeString)  # else the user has no such page
        ),
    )


def _task(facts: Mapping[str, Any]) -> Row:
    return Task, uuid.UUID(str(facts["task_id"])), str(facts["task_name"])


def _worker(facts: Mapping[str, Any]) -> Row:
    name = f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])
    return Worker, uuid.UUID(str(facts["worker_id"])), name
