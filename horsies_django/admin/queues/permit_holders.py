"""The tasks that hold permits of a queue, and its busiest partitions: rows of two tables on the page of a queue."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from horsies_django.admin.base.html import (
    NOTHING,
    age,
    badge,
    status_badge,
)
from horsies_django.admin.base.links import with_workers
from horsies_django.admin.base.sizes import LONGEST_NAME
from horsies_django.models import Task
from horsies_django.monitoring.overview import PartitionLoad, PermitHolder


class PermitRow:
    """A row of the table of permit holders."""

    shown_worker: SafeString | str  # with_workers sets it

    def __init__(self, task: SafeString | str, holder: PermitHolder, now: dt.datetime, visible: bool) -> None:
        self.task = task
        self.status = status_badge(holder.status)
        self.worker_id = holder.worker_id
        self.silent = "" if holder.alive else badge("silent", "✕", _("Dead"))
        self.child = holder.child_pid or NOTHING
        self.since = age(holder.since, now)
        self.partition = _shown(holder.partition, visible)


class PartitionRow(NamedTuple):
    """A row of the table of partitions; ``parked`` counts the tasks that wait for a permit."""

    partition: str
    running: str
    limit: str
    full: SafeString | str
    parked: str


def permit_rows(
    page: Any, request: HttpRequest, holders: list[PermitHolder], now: dt.datetime, visible: bool
) -> list[PermitRow]:
    """Return the tasks that hold permits; partition keys, which contain arguments, only if ``visible``."""
    rows = [PermitRow(page.link(request, Task, one.task_id, one.task_name), one, now, visible) for one in holders]
    return with_workers(page, request, rows, "worker_id")


def partition_rows(loads: list[PartitionLoad], visible: bool) -> list[PartitionRow]:
    """Return the busiest partitions; their keys only if ``visible``."""
    rows = []
    for load in loads:
        full = load.limit is not None and load.running >= load.limit
        rows.append(
            PartitionRow(
                _shown(load.partition, visible),
                f"{load.running:,}",
                NOTHING if load.limit is None else f"{load.limit:,}",
                badge("full", "■", _("At its limit")) if full else "",
                f"{load.parked:,}" + ("+" if load.parked_more else ""),
            )
        )
    return rows


def _shown(partition: str | None, visible: bool) -> str:
    if partition is None:
        return NOTHING
    return str(Truncator(partition).chars(LONGEST_NAME)) if visible else _("hidden")
