"""Copies of tasks that were run again: links between a task and its copies, and the confirmation before another copy."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from horsies_django.admin.base.html import absolute, breakable, status_badge
from horsies_django.admin.base.sizes import LAST
from horsies_django.models import Task
from horsies_django.monitoring import overview


class CopiedRow(NamedTuple):
    """A row of the confirmation page: a task, its newest copy, and the number of earlier copies."""

    id: uuid.UUID
    name: SafeString
    task: SafeString | str
    copy: SafeString | str
    status: SafeString
    sent: str
    others: str


def copied_rows(page: Any, request: HttpRequest, copied: Mapping[uuid.UUID, Sequence[Task]]) -> list[CopiedRow]:
    return [
        CopiedRow(
            id_,
            breakable(newest.task_name),
            page.link(request, Task, id_, str(id_)),
            page.link(request, Task, newest.pk, str(newest.pk)),
            status_badge(newest.status),
            absolute(newest.sent_at),
            _("and %(count)d earlier") % {"count": len(older)} if older else "",
        )
        for id_, (newest, *older) in copied.items()
    ]


def ask(page: Any, request: Any, ids: Sequence[uuid.UUID], copied: Sequence[CopiedRow]) -> HttpResponse:
    """Return the page that asks whether to run tasks again that already have a copy."""
    others = len(ids) - len(copied)
    question = ngettext(
        "%(count)d of the selected tasks has already been run again. Another copy will do its work once more.",
        "%(count)d of the selected tasks have already been run again. Another copy of each will do its work once more.",
        len(copied),
    )
    all_text = ngettext("Run %(count)d task again", "Run %(count)d tasks again", len(ids))
    others_text = ngettext("Run only the %(count)d other again", "Run only the %(count)d others again", others)
    context = {
        **page.admin_site.each_context(request),
        "title": _("Run these tasks again?"),
        "opts": page.opts,
        "media": page.media,
        "ids": ids,
        "copied": copied,
        "question": question % {"count": len(copied)},
        "all_text": all_text % {"count": len(ids)},
        "others_text": others_text % {"count": others} if others else "",
        "back_url": reverse("admin:horsies_task_changelist", current_app=page.admin_site.name),
    }
    request.current_app = page.admin_site.name
    return TemplateResponse(request, "admin/horsies/task/run_again.html", context)


def with_copies(page: Any, request: HttpRequest, task: Any) -> None:
    """Set ``linked_original`` (the task that it is a copy of) and ``linked_copies`` of a task; "" if there are none."""
    task.linked_original = ""
    if task.copy_of is not None:
        there = Task.objects.using(task._state.db).filter(pk=task.copy_of).exists()
        shown = str(task.copy_of)
        task.linked_original = (
            page.link(request, Task, task.copy_of, shown) if there else _("%(id)s (deleted)") % {"id": shown}
        )
    found = overview.copies([task.pk]).get(task.pk, [])
    links: list[tuple[SafeString | str, SafeString | str]] = [
        (page.link(request, Task, copy.pk, str(copy.pk)), status_badge(copy.status)) for copy in found[:LAST]
    ]
    if found[LAST:]:
        links.append((_("and %(count)d earlier") % {"count": len(found) - LAST}, ""))
    task.linked_copies = format_html_join(SafeString("<br>"), "{} {}", links)
