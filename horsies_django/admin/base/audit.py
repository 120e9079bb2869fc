"""The entries of the audit as the admin pages show them: who changed a row, when, how and why.

The arguments of a schedule are those of the tasks that it sends, so only users with
``horsies.view_payload`` may see them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
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

from horsies_django.admin.base.html import (
    LONGEST_CELL,
    MOST_ENTRIES,
    NO_VALUE,
    Table,
    absolute,
    marked,
    rows_or_none,
    time_and_age,
)
from horsies_django.admin.base.labels import (
    ARGUMENTS_KEY,
    label_of_key,
    label_of_limit,
    shown_limit,
    shown_value,
)
from horsies_django.admin.base.readonly import read_bounded
from horsies_django.core.schedules import SCHEDULE_KEYS
from horsies_django.models import AuditEntry, Queue, Schedule, WorkflowRun
from horsies_django.monitoring.overview import as_object

ACTIONS = {
    "queue.declare": gettext_lazy("Settings stored"),
    "queue.set": gettext_lazy("Set"),
    "queue.override": gettext_lazy("Overridden"),
    "queue.clear": gettext_lazy("Override cleared"),
    "queue.expire": gettext_lazy("Override ended"),
    "queue.pause": gettext_lazy("Paused"),
    "queue.resume": gettext_lazy("Resumed"),
    "queue.skip": gettext_lazy("Failed task skipped"),
    "schedule.declare": gettext_lazy("Declared by the code"),
    "schedule.gone": gettext_lazy("Gone from the code"),
    "schedule.create": gettext_lazy("Created"),
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
    "workflow.keep": gettext_lazy("Node of an earlier attempt kept"),
    "workflow.approve": gettext_lazy("Gate approved"),
    "workflow.reject": gettext_lazy("Gate rejected"),
}
REQUESTED = {
    "task.cancel": gettext_lazy("Asked to stop"),
    "task.terminate": gettext_lazy("Asked to stop, killed if it does not"),
}
OF_QUEUES = "queue."
OF_SCHEDULES = "schedule."
OF_TASKS = "task."
OF_WORKFLOWS = "workflow."
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
LONGEST_SHOWN_REASON = 500  # the characters of a reason shown in a table of changes
DECISION_ACTIONS = ("workflow.approve", "workflow.reject")
HIDDEN_REASON: str | Promise = gettext_lazy(
    "The permission horsies.view_payload is required to see the reason."
)
# Columns that repeat who changed a row, when and why. The audit entry has these itself.
BESIDES = {
    "override_by",
    "override_at",
    "override_reason",
    "paused_at",
    "paused_by",
    "paused_reason",
    "partition_version",
    "sweep",
}


def changes_of(before: object, after: object) -> list[str]:
    """Return the changes of an audit entry, with one line for each key.

    The line for arguments does not contain their values.
    """
    old = as_object(before)
    new = as_object(after)

    lines = []
    for key in sorted(
        {*old, *new},
        key=lambda key: (
            SCHEDULE_KEYS.index(key) if key in SCHEDULE_KEYS else len(SCHEDULE_KEYS),
            key,
        ),
    ):
        texts = [
            str(Truncator(shown_value(key, columns.get(key))).chars(LONGEST_CELL))
            for columns in (old, new)
        ]

        if key == ARGUMENTS_KEY and old.get(key) != new.get(key):
            lines.append(_("%(key)s: changed") % {"key": label_of_key(key)})
        elif texts[0] != texts[1]:
            lines.append(f"{label_of_key(key)}: {texts[0]} → {texts[1]}")

    return lines


def without_arguments(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an entry with the values of arguments replaced by "hidden"."""
    return {
        key: _("hidden") if key == ARGUMENTS_KEY and value else value
        for key, value in columns.items()
    }


def entries_of(alias: str, name: str, subjects: str) -> QuerySet[AuditEntry]:
    """Return the audit entries about the row called ``name``, newest first.

    ``subjects`` is the prefix of the actions to include, such as ``OF_QUEUES``.
    """
    entries = AuditEntry.objects.using(alias).filter(subject=name, action__startswith=subjects)
    return entries.order_by("-at", "-pk")


def shown_action(entry: AuditEntry) -> str:
    """Return the name of the action of an entry, or its code if this version has no name for it.

    If the entry only requested a running task to stop, the name differs, because the task has not
    ended yet.
    """
    if as_object(entry.after).get("verdict") == "REQUESTED":
        return str(REQUESTED.get(entry.action, entry.action))
    return str(ACTIONS.get(entry.action, entry.action))


def changes(entry: AuditEntry) -> list[str]:
    """Return the changes of an entry, a line per value: ``concurrency: 4 → 2``."""
    if entry.action.startswith(OF_SCHEDULES):
        return changes_of(entry.before, entry.after)
    if entry.action.startswith((OF_WORKFLOWS, OF_TASKS)):
        return _of_run(entry.after)
    if entry.action == "queue.skip":
        return _of_run(entry.before)

    before = _flat(entry.before)
    after = _flat(entry.after)
    lines = []

    for key in [*before, *(key for key in after if key not in before)]:
        column, overridden = key
        old = before.get(key, NO_VALUE)
        new = after.get(key, NO_VALUE)

        if column not in BESIDES and old != new:
            label = _("%(column)s (override)") if overridden else "%(column)s"
            lines.append(f"{label % {'column': label_of_limit(column)}}: {old} → {new}")

    return lines


def _of_run(after: object) -> list[str]:
    """Return the changes of a run, or details: ``status: RUNNING → PAUSED`` or ``node: 3``.

    The task of ``queue.skip`` is shown in the same way.
    """
    found = after if isinstance(after, dict) else {}
    if {"before", "after"} <= found.keys():
        return [_("status: %(old)s → %(new)s") % {"old": found["before"], "new": found["after"]}]
    return [
        f"{RUN_DETAILS.get(key, key)}: {_text(str(key), value)}"
        for key, value in found.items()
        if (key, value)
        not in (("children", "0"), ("verdict", "REQUESTED"), ("verdict", "CANCELLED"))
    ]


def _flat(columns: object) -> dict[tuple[str, bool], str]:
    """Return the columns of an entry as text, by column and whether it belongs to an override.

    The JSON of an entry may have any shape.
    """
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
        return shown_limit(None) if limits else NO_VALUE
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
    """Return the reason of a change, or a note that it is hidden.

    The reason of a decision about a gate is payload. It is returned only if ``visible`` is true,
    which is so if the user may see payload.
    """
    hidden = entry.reason and entry.action in DECISION_ACTIONS and not visible
    return str(HIDDEN_REASON) if hidden else entry.reason or ""


def last_changes(page: Any, request: HttpRequest, row: Any, name: str, subjects: str) -> Table:
    """Return a table of the last audit entries about a row, with a link to all of them."""
    alias = row._state.db
    visible = page.has_view_payload_permission(request)
    found = read_bounded(alias, lambda: list(entries_of(alias, name, subjects)[:MOST_ENTRIES]))

    def cells(entry: AuditEntry) -> list[Any]:
        did = marked(
            "changes",
            format_html_join(SafeString("<br>"), "{}", ((one,) for one in changes(entry))),
        )
        reason = Truncator(shown_reason(entry, visible)).chars(LONGEST_SHOWN_REASON)
        return [time_and_age(entry.at, row.read_at), entry.actor, shown_action(entry), did, reason]

    link: SafeString | str = ""
    if page.admin_site.is_registered(AuditEntry) and request.user.has_perm(
        "horsies.view_auditentry"
    ):
        address = reverse("admin:horsies_auditentry_changelist", current_app=page.admin_site.name)
        link = format_html(
            '<a href="{}?{}">{}</a>', address, urlencode({"subject": name}), _("All changes")
        )

    heads = (_("At"), _("By"), _("Action"), _("Changes"), _("Reason"))
    return Table("audit", _("Last changes"), heads, rows_or_none(found, cells), link)
