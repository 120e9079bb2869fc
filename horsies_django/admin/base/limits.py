"""The limits of a queue as a person reads them: a line, a badge, and the table of where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import NOTHING, badge
from horsies_django.core.queues import CLUSTER
from horsies_django.models import Queue

NO_LIMIT = gettext_lazy("no limit")

LEVELS = {
    "max_concurrency": gettext_lazy("%(n)s in all"),
    "local_limit": gettext_lazy("%(n)s per worker"),
    "partition_max_concurrency": gettext_lazy("%(n)s per partition"),
    "partition_local_limit": gettext_lazy("%(n)s per partition and worker"),
}


def levels(limits: Mapping[str, Any]) -> str:
    """Return limits in a line, those that there are."""
    found = [str(text) % {"n": limits[key]} for key, text in LEVELS.items() if limits.get(key) is not None]
    return ", ".join(found) or str(NO_LIMIT)


def states(queue: Queue) -> list[SafeString]:
    """Return what sets a queue apart from what is declared."""
    found = [badge("paused", "‖", _("Paused"))] if queue.paused_at else []
    return [*found, badge("overridden", "✎", _("Overridden"))] if queue.override is not None else found


class LimitRow(NamedTuple):
    """One line of the table of limits; ``origin``: the badge of what put the value in force in the place of the declared one."""

    label: str
    declared: str
    override: str
    effective: str
    origin: SafeString | str


def limit_rows(queue: Queue, effective: Mapping[str, Any] | None) -> list[LimitRow]:
    """Return what is declared, overridden and in force, side by side; ``effective`` None: it could not be read in time."""
    override = queue.override if isinstance(queue.override, dict) else {}
    keys = ("max_concurrency",) if queue.name == CLUSTER else ("priority", *LEVELS)
    rows = []
    for key in keys:
        origin: SafeString | str = badge("overridden", "✎", _("Overridden")) if key in override else ""
        if key == "max_concurrency" and queue.paused_at:
            origin = badge("paused", "‖", _("Paused"))
        rows.append(
            LimitRow(
                label_of(key),
                shown_limit(getattr(queue, key)),
                shown_limit(override[key]) if key in override else NOTHING,
                shown_limit(effective[key]) if effective else NOTHING,
                origin,
            )
        )
    return rows if queue.name == CLUSTER else [*rows, _rule_row(queue)]


def _rule_row(queue: Queue) -> LimitRow:
    parts = [_("task")] if queue.partition_by_task else []
    if isinstance(queue.partition_by_args, list):
        names = ", ".join(str(name) for name in queue.partition_by_args)
        parts.insert(0, _("arguments: %(names)s") % {"names": names} if names else _("all arguments"))
    rule = "; ".join(parts) or _("not partitioned")
    return LimitRow(_("partitions by"), rule, NOTHING, rule, "")


def label_of(key: str) -> str:
    """Return the name of a column of a queue, the column's own where it has none."""
    names = {field.name: str(getattr(field, "verbose_name", field.name)) for field in Queue._meta.get_fields()}
    return names.get(key, key)


def shown_limit(value: object) -> str:
    """Return a limit; None is the absence of one."""
    return str(NO_LIMIT) if value is None else str(value)
