"""Who holds the slots of a queue, and which of its partitions are busy: the rows of two tables on its page."""

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
from horsies_django.admin.base.worker_links import with_workers
from horsies_django.models import Task
from horsies_django.monitoring.overview import PartitionLoad, SlotHolder

SLOTS = 100
LONGEST_PARTITION = 200


class SlotRow:
    """One line of the table of slots."""

    shown_worker: SafeString | str  # with_workers sets it

    def __init__(self, task: SafeString | str, slot: SlotHolder, now: dt.datetime, visible: bool) -> None:
        self.task = task
        self.status = status_badge(slot.status)
        self.worker_id = slot.worker_id
        self.silent = "" if slot.alive else badge("silent", "✕", _("Silent"))
        self.child = slot.child_pid or NOTHING
        self.since = age(slot.since, now)
        self.partition = _shown(slot.partition, visible)


class PartitionRow(NamedTuple):
    """One line of the table of partitions."""

    partition: str
    running: str
    limit: str
    full: SafeString | str
    parked: str


def slot_rows(
    page: Any, request: HttpRequest, slots: list[SlotHolder], now: dt.datetime, visible: bool
) -> list[SlotRow]:
    """Return who holds the slots; partitions, which are made of arguments, only where ``visible``."""
    rows = [SlotRow(page.link(request, Task, slot.task_id, slot.task_name), slot, now, visible) for slot in slots]
    return with_workers(page, request, rows, "worker_id")


def partition_rows(loads: list[PartitionLoad], visible: bool) -> list[PartitionRow]:
    """Return what the busiest partitions hold."""
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
    return str(Truncator(partition).chars(LONGEST_PARTITION)) if visible else _("hidden")
