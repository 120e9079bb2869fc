"""Failures in groups: how often which task failed for good with which code, and where those of one of these failed."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django.db import connections

from horsies_django.conf import config
from horsies_django.models import TaskAttempt
from horsies_django.models.fields import aware
from horsies_django.store.history import Failures, HistoryStore, width
from horsies_django.tasks.selection import Selection, newest

MOST_GROUPS = 1_000
NEWEST = 1_000  # tasks of a group that are looked at


class Place(NamedTuple):
    """Where tasks failed: class of the exception, site, how many, when the last one did, and what it said (payload)."""

    exception: str
    site: str
    many: int
    at: dt.datetime
    message: str | None


def counted_from(moment: dt.datetime, now: dt.datetime) -> dt.datetime:
    """Return when the row of the history begins that has a moment."""
    seconds = width(now - moment)
    return dt.datetime.fromtimestamp(moment.timestamp() // seconds * seconds, dt.UTC)


def groups(since: dt.datetime, now: dt.datetime) -> list[Failures]:
    """Return tasks and codes with how often they failed for good since a moment of ``counted_from``, the most frequent first."""
    span = now - since + dt.timedelta(seconds=1)  # with the row that begins then
    return HistoryStore(connections[config().database]).failures(span, MOST_GROUPS)


def places(task: str, code: str, since: dt.datetime, *, payload: bool) -> list[Place]:
    """Return where the newest 1,000 tasks failed that did so since then, the most frequent first; the messages if ``payload``."""
    alias = config().database
    chosen = Selection("FAILED", names=[task], code=code, since=since)
    ended = dict(newest(chosen)[0].values_list("pk", "finished_at")[:NEWEST])
    attempts: Any = TaskAttempt.objects.using(alias).filter(task_id__in=list(ended)).order_by("-finished_at")
    found: dict[tuple[str, str], list[TaskAttempt]] = {}
    for row in attempts.only("task_id", "claim_generation", "finished_at", "exception_class", "site"):
        if row.finished_at == ended[row.task_id]:  # not an attempt before the last one
            found.setdefault((row.exception_class or "", row.site or ""), []).append(row)
    told: dict[Any, str | None] = {}
    if payload:
        with_message = TaskAttempt.objects.using(alias).filter(pk__in=[rows[0].pk for rows in found.values()])
        told = dict(with_message.values_list("pk", "error_message"))
    listed = [Place(*key, len(rows), aware(rows[0].finished_at), told.get(rows[0].pk)) for key, rows in found.items()]
    return sorted(listed, key=lambda place: -place.many)
