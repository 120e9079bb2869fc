"""The words of the admin for the limits of queues and for the keys of schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import (
    NO_VALUE,
)
from horsies_django.core.queues import LIMITS, POLICIES
from horsies_django.models import Queue

NO_LIMIT = gettext_lazy("no limit")
ARGUMENTS_KEY = "kwargs"
KEY_LABELS: dict[str, str | Promise] = {
    "task": gettext_lazy("task"),
    "pattern": gettext_lazy("pattern"),
    "zone": gettext_lazy("time zone"),
    ARGUMENTS_KEY: gettext_lazy("arguments"),
    "queue": gettext_lazy("queue"),
    "priority": gettext_lazy("priority"),
    "good_for_ms": gettext_lazy("good for"),
    "catch_up": gettext_lazy("missed fire times"),
    "most": gettext_lazy("maximum missed fire times"),
    "jitter_ms": gettext_lazy("jitter"),
    "overlap": gettext_lazy("overlap"),
    "enabled": gettext_lazy("enabled"),
    # These two are not keys of a definition. "Run now" writes the first one into the audit, and the
    # second one is written when a schedule is removed from the code.
    "task_id": gettext_lazy("task sent"),
    "gone": gettext_lazy("gone from the code"),
}
OVERLAP_LABELS: dict[object, str | Promise] = {
    "allow": gettext_lazy("send the task"),
    "skip": gettext_lazy("skip the fire time"),
}
UNSET: dict[str, str | Promise] = {
    "queue": gettext_lazy("the task's own"),
    "priority": gettext_lazy("the task's own"),
    "good_for_ms": gettext_lazy("no limit"),
    "overlap": OVERLAP_LABELS["allow"],
}
CATCH_UP_LABELS: dict[object, str | Promise] = {
    "latest": gettext_lazy("send the latest"),
    "all": gettext_lazy("send all"),
    "none": gettext_lazy("send none"),
}
VALUE_LABELS = {"catch_up": CATCH_UP_LABELS, "overlap": OVERLAP_LABELS}


def levels(limits: Mapping[str, Any]) -> str:
    found = [
        _(column.words) % {"n": limits[key]}
        for key, column in LIMITS.items()
        if limits.get(key) is not None
    ]
    policy = limits.get("partition_policy")
    return "; ".join(
        [", ".join(found) or str(NO_LIMIT), *([shown_policy(policy)] if policy else [])]
    )


def shown_policy(policy: str | None) -> str:
    """Return the policy of partitions in words, or a dash if the queue has none."""
    return NO_VALUE if policy is None else _(POLICIES.get(policy, policy))


def label_of_limit(key: str) -> str:
    """Return the verbose name of a column of a queue, or else its name."""
    names = {
        field.name: str(getattr(field, "verbose_name", field.name))
        for field in Queue._meta.get_fields()
    }
    return names.get(key, key)


def shown_limit(value: object) -> str:
    """Return a limit as text, with "no limit" for None."""
    return str(NO_LIMIT) if value is None else str(value)


def label_of_key(key: str) -> str:
    return str(KEY_LABELS.get(key, key))


def shown_value(key: str, value: object) -> str:
    if value is None:
        return str(UNSET.get(key, NO_VALUE))
    if key in ("enabled", "gone") and isinstance(value, bool):
        return _("yes") if value else _("no")
    if key in VALUE_LABELS and isinstance(value, str):
        return str(VALUE_LABELS[key].get(value, value))
    if key.endswith("_ms") and isinstance(value, int):
        return _("%(n)s ms") % {"n": f"{value:,}"}

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
