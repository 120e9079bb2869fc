"""Deletes finished tasks before their retention does."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any


def purge(
    status: str = "FINISHED",
    *,
    until: dt.datetime,
    actor: str,
    reason: str | None = None,
    since: dt.datetime | None = None,
    **attributes: Any,
) -> dict[str, int]:
    """Delete the tasks that finished until then and match, and return how many are ``DELETED``, ``KEPT`` and ``LOCKED``.

    ``status`` is a final one, "UNSUCCESSFUL" for all but COMPLETED, or "FINISHED" for all. ``attributes`` are ``queue``,
    ``name`` (or a part of it), ``code``, ``site``, ``partition`` and ``worker``. Each 500 tasks are a transaction, or else part
    of the open one, with an entry of the audit. Kept are those that stop their partition; those of workflow runs are left and not
    counted. Raises ValueError for another status, attributes that do not go together, and an actor or a reason that cannot be
    stored.
    """
    from horsies_django.models.fields import aware  # no model is imported before Django is set up
    from horsies_django.tasks.selection import ENDED, act_on_all, matching

    if status not in ENDED:
        raise ValueError(f"purge is for tasks that are {', '.join(sorted(ENDED))}, not {status}")
    chosen = matching(status, until=aware(until), since=since and aware(since), **attributes)
    verdicts: Counter[str] = Counter()
    for step in act_on_all(chosen, "purge", actor=actor, reason=reason):
        verdicts.update(step.verdicts)
    return dict(verdicts)
