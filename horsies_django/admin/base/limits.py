"""The limits of a queue for display: as a line, as badges, and as the table of declared, overridden and effective limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import NOTHING, Table, badge
from horsies_django.core.queues import CLUSTER
from horsies_django.models import Queue

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
        rows.append([capfirst(label_of(key)), shown_limit(getattr(queue, key)), overridden, held])
    if queue.name != CLUSTER:
        rule, policy = _rule(queue), shown_policy(queue.partition_policy)
        rows.append([capfirst(_("partitions by")), rule, NOTHING, rule])
        rows.append([capfirst(label_of("partition_policy")), policy, NOTHING, policy])
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


def label_of(key: str) -> str:
    """Return the verbose name of a column of a queue, or else its name."""
    names = {field.name: str(getattr(field, "verbose_name", field.name)) for field in Queue._meta.get_fields()}
    return names.get(key, key)


def shown_limit(value: object) -> str:
    """Return a limit as text; None means no limit."""
    return str(NO_LIMIT) if value is None else str(value)
