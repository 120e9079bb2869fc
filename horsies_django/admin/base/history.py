"""Audit entries as other pages show them: who changed what, when and why."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.definitions import changes_of, label_of_limit, shown_limit
from horsies_django.admin.base.html import LAST, LONGEST_CELL, NOTHING, Table, absolute, marked, moment, rows_or_none
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.models import AuditEntry, Queue, Schedule, WorkflowRun

ACTIONS = {
    "queue.declare": gettext_lazy("Settings written"),
    "queue.set": gettext_lazy("Set"),
    "queue.override": gettext_lazy("Overridden"),
    "queue.clear": gettext_lazy("Override cleared"),
    "queue.expire": gettext_lazy("Override ended"),
    "queue.pause": gettext_lazy("Paused"),
    "queue.resume": gettext_lazy("Resumed"),
    "queue.skip": gettext_lazy("Failed task skipped"),
    "schedule.declare": gettext_lazy("Declared by the code"),
    "schedule.gone": gettext_lazy("Gone from the code"),
    "schedule.create": gettext_lazy("Made"),
    "schedule.change": gettext_lazy("Edited"),
    "schedule.enable": gettext_lazy("Enabled"),
    "schedule.disable": gettext_lazy("Disabled"),
    "schedule.revert": gettext_lazy("Reverted to the code"),
    "schedule.delete": gettext_lazy("Deleted"),
    "schedule.run_now": gettext_lazy("Run now"),
    "task.cancel": gettext_lazy("Cancelled"),
    "task.terminate": gettext_lazy("Terminated"),
    "task.retry": gettext_lazy("Run again"),
    "task.copy": gettext_lazy("Copied"),
    "task.skip": gettext_lazy("Skipped"),
    "task.redact": gettext_lazy("Redacted"),
    "task.purge": gettext_lazy("Purged"),
    "task.delete": gettext_lazy("Deleted"),
    "workflow.pause": gettext_lazy("Workflow paused"),
    "workflow.resume": gettext_lazy("Workflow resumed"),
    "workflow.cancel": gettext_lazy("Workflow cancelled"),
    "workflow.retry": gettext_lazy("Workflow retried"),
    "workflow.skip": gettext_lazy("Node skipped"),
    "workflow.keep": gettext_lazy("Node kept as it was"),
    "workflow.approve": gettext_lazy("Gate approved"),
    "workflow.reject": gettext_lazy("Gate rejected"),
}
OF_QUEUES, OF_SCHEDULES, OF_TASKS, OF_WORKFLOWS = "queue.", "schedule.", "task.", "workflow."
SUBJECTS: dict[str, type[Queue | Schedule | WorkflowRun]] = {
    OF_QUEUES: Queue,
    OF_SCHEDULES: Schedule,
    OF_WORKFLOWS: WorkflowRun,
}
RUN_DETAILS = {
    "task": gettext_lazy("task"),
    "node": gettext_lazy("node"),
    "gate": gettext_lazy("gate"),
    "opening": gettext_lazy("opening"),
    "children": gettext_lazy("child runs retried"),
    "verdict": gettext_lazy("outcome"),
    "new": gettext_lazy("copy"),
}
LONGEST_REASON = 500  # characters of one on the page of its row
DECISIONS = ("workflow.approve", "workflow.reject")
HIDDEN_REASON: str | Promise = gettext_lazy("The permission horsies.view_payload is required to see it.")
# Columns about who and when, which the entry itself has.
BESIDES = {
    "override_by", "override_at", "override_reason", "paused_at", "paused_by", "paused_reason", "partition_version", "sweep",
}  # fmt: skip


def entries_of(alias: str, name: str, subjects: str) -> QuerySet[AuditEntry]:
    """Return the audit entries about a row, newest first; ``subjects``: a key of SUBJECTS."""
    entries = AuditEntry.objects.using(alias).filter(subject=name, action__startswith=subjects)
    return entries.order_by("-at", "-pk")


def shown_action(entry: AuditEntry) -> str:
    """Return the name of the action, or its code if only a newer version knows it."""
    return str(ACTIONS.get(entry.action, entry.action))


def changes(entry: AuditEntry) -> list[str]:
    """Return the changes of an entry, a line per value: ``concurrency: 4 → 2``."""
    if entry.action.startswith(OF_SCHEDULES):
        return changes_of(entry.before, entry.after)
    if entry.action.startswith((OF_WORKFLOWS, OF_TASKS)):
        return _of_run(entry.after)
    if entry.action == "queue.skip":
        return _of_run(entry.before)
    before, after = _flat(entry.before), _flat(entry.after)
    lines = []
    for key in [*before, *(key for key in after if key not in before)]:
        column, overridden = key
        old, new = before.get(key, NOTHING), after.get(key, NOTHING)
        if column not in BESIDES and old != new:
            label = _("%(column)s (override)") if overridden else "%(column)s"
            lines.append(f"{label % {'column': label_of_limit(column)}}: {old} → {new}")
    return lines


def _of_run(after: object) -> list[str]:
    """Return what was done to a run, or the task that was skipped: ``status: RUNNING → PAUSED``, ``node: 3``."""
    found = after if isinstance(after, dict) else {}
    if {"before", "after"} <= found.keys():
        return [_("status: %(old)s → %(new)s") % {"old": found["before"], "new": found["after"]}]
    return [
        f"{RUN_DETAILS.get(key, key)}: {_text(str(key), value)}"
        for key, value in found.items()
        if (key, value) != ("children", "0")
    ]


def _flat(columns: object) -> dict[tuple[str, bool], str]:
    """Return the columns of an entry as text by (column, is override). The JSON of an entry may have any shape."""
    found: dict[tuple[str, bool], str] = {}
    for column, value in columns.items() if isinstance(columns, dict) else ():
        if column == "override":
            override = value if isinstance(value, dict) else {}
            found |= {(key, True): _text(key, limit) for key, limit in override.items()}
        else:
            found[column, False] = _text(column, value)
    return found


def _text(column: str, value: object) -> str:
    if value is None:
        limits = column.endswith(("max_concurrency", "local_limit"))
        return shown_limit(None) if limits else NOTHING
    if column == "override_until" and (until := _moment(value)):
        return absolute(until)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return str(Truncator(text).chars(LONGEST_CELL))


def _moment(value: object) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if timezone.is_aware(found) else None


def shown_reason(entry: AuditEntry, visible: bool) -> str:
    """Return the reason of a change; that of a decision, which is payload, only if the user may see those (``visible``)."""
    hidden = entry.reason and entry.action in DECISIONS and not visible
    return str(HIDDEN_REASON) if hidden else entry.reason or ""


def last_changes(page: Any, request: HttpRequest, row: Any, name: str, subjects: str) -> Table:
    """Return the last entries about the name of a row as a table, with a link to all of them."""
    alias, visible = row._state.db, page.has_view_payload_permission(request)
    found = read_bounded(alias, lambda: list(entries_of(alias, name, subjects)[:LAST]))

    def cells(entry: AuditEntry) -> list[Any]:
        did = marked("changes", format_html_join(SafeString("<br>"), "{}", ((one,) for one in changes(entry))))
        why = Truncator(shown_reason(entry, visible)).chars(LONGEST_REASON)
        return [moment(entry.at, row.read_at), entry.actor, shown_action(entry), did, why]

    url = audit_url(page, request, name)
    link = format_html('<a href="{}">{}</a>', url, _("All changes")) if url else ""
    heads = (_("At"), _("By"), _("Action"), _("Changes"), _("Reason"))
    return Table("audit", _("Last changes"), heads, rows_or_none(found, cells), link)


def audit_url(page: Any, request: HttpRequest, name: str) -> str:
    """Return the URL of all entries about a name, "" if the site or user has no such page."""
    if not (page.admin_site.is_registered(AuditEntry) and request.user.has_perm("horsies.view_auditentry")):
        return ""
    address = reverse("admin:horsies_auditentry_changelist", current_app=page.admin_site.name)
    return f"{address}?{urlencode({'subject': name})}"
