"""How queues and schedules are defined, for display: limits of a queue as a line, badges and a table; the keys of a schedule.

The arguments of a schedule are those of the tasks that it sends, so only users with ``horsies.view_payload`` may see them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import LONGEST_CELL, NOTHING, Table, badge, json_block
from horsies_django.core.queues import CLUSTER
from horsies_django.core.schedules import KEYS
from horsies_django.models import Queue, Schedule
from horsies_django.monitoring.overview import as_object, changed_keys

NO_LIMIT = gettext_lazy("no limit")

LEVELS = {
    "max_concurrency": gettext_lazy("%(n)s in all"),
    "local_limit": gettext_lazy("%(n)s per worker"),
    "partition_max_concurrency": gettext_lazy("%(n)s per partition"),
    "partition_local_limit": gettext_lazy("%(n)s per partition and worker"),
}
POLICIES = {
    "stop": gettext_lazy("ordered, a failed task stops its key"),
    "continue": gettext_lazy("ordered, a failed task stops nothing"),
    "cancel": gettext_lazy("ordered, a failed task cancels those behind it"),
    "coalesce": gettext_lazy("waiting tasks are merged into an equal one that starts"),
}

ARGUMENTS = "kwargs"
LABELS: dict[str, str | Promise] = {
    "task": gettext_lazy("task"),
    "pattern": gettext_lazy("pattern"),
    "zone": gettext_lazy("time zone"),
    ARGUMENTS: gettext_lazy("arguments"),
    "queue": gettext_lazy("queue"),
    "priority": gettext_lazy("priority"),
    "good_for_ms": gettext_lazy("good for"),
    "catch_up": gettext_lazy("missed fire times"),
    "most": gettext_lazy("maximum missed fire times"),
    "jitter_ms": gettext_lazy("jitter"),
    "overlap": gettext_lazy("overlap"),
    "enabled": gettext_lazy("enabled"),
    "task_id": gettext_lazy("task sent"),  # not keys: written by "run now" and when a schedule leaves the code
    "gone": gettext_lazy("gone from the code"),
}
OVERLAP: dict[object, str | Promise] = {
    "allow": gettext_lazy("send the task"),
    "skip": gettext_lazy("skip the fire time"),
}
UNSET: dict[str, str | Promise] = {
    "queue": gettext_lazy("the task's own"),
    "priority": gettext_lazy("the task's own"),
    "good_for_ms": gettext_lazy("no limit"),
    "overlap": OVERLAP["allow"],
}
CATCH_UP: dict[object, str | Promise] = {
    "latest": gettext_lazy("send the latest"),
    "all": gettext_lazy("send all"),
    "none": gettext_lazy("send none"),
}
WORDS = {"catch_up": CATCH_UP, "overlap": OVERLAP}


def levels(limits: Mapping[str, Any]) -> str:
    found = [str(text) % {"n": limits[key]} for key, text in LEVELS.items() if limits.get(key) is not None]
    policy = limits.get("partition_policy")
    return "; ".join([", ".join(found) or str(NO_LIMIT), *([shown_policy(policy)] if policy else [])])


def states(queue: Queue) -> list[SafeString]:
    """Return badges for a queue that is paused or overridden."""
    found = [badge("paused", "‖", _("Paused"))] if queue.paused_at else []
    return [*found, badge("overridden", "✎", _("Overridden"))] if queue.override is not None else found


def limit_table(queue: Queue, effective: Mapping[str, Any] | None) -> Table:
    """Return the declared, overridden and effective limits; ``effective`` is None if reading it timed out."""
    override = queue.override if isinstance(queue.override, dict) else {}
    rows: list[list[Any]] = []
    for key in ("max_concurrency",) if queue.name == CLUSTER else ("priority", *LEVELS):
        origin: SafeString | str = badge("overridden", "✎", _("Overridden")) if key in override else ""
        if key == "max_concurrency" and queue.paused_at:
            origin = badge("paused", "‖", _("Paused"))
        overridden = shown_limit(override[key]) if key in override else NOTHING
        held = format_html("{} {}", shown_limit(effective[key]) if effective else NOTHING, origin)
        rows.append([capfirst(label_of_limit(key)), shown_limit(getattr(queue, key)), overridden, held])
    if queue.name != CLUSTER:
        rule, policy = _rule(queue), shown_policy(queue.partition_policy)
        rows.append([capfirst(_("partitions by")), rule, NOTHING, rule])
        rows.append([capfirst(label_of_limit("partition_policy")), policy, NOTHING, policy])
    return Table("limits", _("Limits"), (_("Limit"), _("Declared"), _("Override"), _("In force")), rows)


def _rule(queue: Queue) -> str:
    parts = [_("task")] if queue.partition_by_task else []
    if isinstance(queue.partition_by_args, list):
        names = ", ".join(str(name) for name in queue.partition_by_args)
        parts.insert(0, _("arguments: %(names)s") % {"names": names} if names else _("all arguments"))
    return "; ".join(parts) or _("not partitioned")


def shown_policy(policy: str | None) -> str:
    """Return the policy of partitions in words; None: there is none."""
    return NOTHING if policy is None else str(POLICIES.get(policy, policy))


def label_of_limit(key: str) -> str:
    """Return the verbose name of a column of a queue, or else its name."""
    names = {field.name: str(getattr(field, "verbose_name", field.name)) for field in Queue._meta.get_fields()}
    return names.get(key, key)


def shown_limit(value: object) -> str:
    """Return a limit as text; None means no limit."""
    return str(NO_LIMIT) if value is None else str(value)


def definition_table(schedule: Schedule, visible: bool) -> Table:
    """Return what is in force and, where a change overrides it, what the code declares; arguments only if ``visible``."""
    declared, held = as_object(schedule.declared), as_object(schedule.definition)
    changed = changed_keys(schedule)
    mark, rows = badge("overridden", "✎", _("Changed")), []
    for key in [*KEYS, *(key for key in held if key not in KEYS)]:
        differs = key in changed
        row = [
            capfirst(label_of_key(key)),
            format_html("{} {}", _cell(key, held.get(key), visible), mark if differs else ""),
        ]
        rows.append([*row, _cell(key, declared.get(key), visible) if differs else ""] if changed else row)
    heads = (_("Key"), _("In force"), *([_("In the code")] if changed else []))
    return Table("definition", _("Definition"), heads, rows)


def label_of_key(key: str) -> str:
    return str(LABELS.get(key, key))


def shown(key: str, value: object) -> str:
    if value is None:
        return str(UNSET.get(key, NOTHING))
    if key in ("enabled", "gone") and isinstance(value, bool):
        return _("yes") if value else _("no")
    if key in WORDS and isinstance(value, str):
        return str(WORDS[key].get(value, value))
    if key.endswith("_ms") and isinstance(value, int):
        return _("%(n)s ms") % {"n": f"{value:,}"}
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changes_of(before: object, after: object) -> list[str]:
    """Return what an audit entry changed, a line for each key; of arguments only that they changed."""
    old, new = as_object(before), as_object(after)
    lines = []
    for key in sorted({*old, *new}, key=lambda key: (KEYS.index(key) if key in KEYS else len(KEYS), key)):
        texts = [str(Truncator(shown(key, columns.get(key))).chars(LONGEST_CELL)) for columns in (old, new)]
        if key == ARGUMENTS and old.get(key) != new.get(key):
            lines.append(_("%(key)s: changed") % {"key": label_of_key(key)})
        elif texts[0] != texts[1]:
            lines.append(f"{label_of_key(key)}: {texts[0]} → {texts[1]}")
    return lines


def without_arguments(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an entry with arguments hidden."""
    return {key: _("hidden") if key == ARGUMENTS and value else value for key, value in columns.items()}


def _cell(key: str, value: object, visible: bool) -> SafeString | str:
    if key == ARGUMENTS and value:
        return json_block(value) if visible else _("hidden")
    if key in ("task", "pattern"):
        return format_html("<code>{}</code>", shown(key, value))
    return shown(key, value)
