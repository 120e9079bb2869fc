"""The admin's pages about schedules in a real browser: light and dark, narrow and wide, under a strict policy."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse

from horsies_django import schedules
from horsies_django.models import AuditEntry, Schedule
from horsies_django.store.schedules import ScheduleStore
from tests.apps.project import tasks
from tests.browser.test_admin import CONTRASTS, SETTLED, assert_readable, browser, look, pytestmark
from tests.support.factories import ScheduleTickFactory, TaskFactory, now

__all__ = ["browser", "pytestmark"]

LIST = "admin:horsies_schedule_changelist"
LONG = "documents.importer.tasks.import_everything_that_the_supplier_has_sent_since_we_looked"
BOARD = "report for the board"
HOUR = dt.timedelta(hours=1)
# The ratio of the luminances of each block, or of its border, and of what lies behind it.
BLOCKS = CONTRASTS.replace(
    "getComputedStyle(badge).color,",
    "getComputedStyle(badge).backgroundColor.endsWith(', 0)') ? getComputedStyle(badge).borderTopColor"
    " : getComputedStyle(badge).backgroundColor,",
).replace("let behind = badge;", "let behind = badge.parentElement;")


def fired(name: str, statuses: str) -> None:
    """Note fire times of a schedule, the newest last: a letter for each, the first of its task's status."""
    of = {status[0]: status for status in ("COMPLETED", "FAILED", "RUNNING", "PENDING", "EXPIRED")} | {"x": "CANCELLED"}
    begin = now().replace(minute=0, second=0, microsecond=0) - len(statuses) * HOUR
    for number, letter in enumerate(statuses):
        fire_at = begin + number * HOUR
        task = TaskFactory(task_name=tasks.echo.name, status=of[letter], sent_at=fire_at)
        ScheduleTickFactory(schedule_name=name, fire_at=fire_at, task_id=task.pk)


@pytest.fixture
def timetable(transactional_db: None) -> None:
    """The schedules of a document library: some declared by its code, some made in the admin, one of them broken."""
    store = ScheduleStore(connection)
    declared = {
        "documents.tasks.index_documents": {"pattern": "30 4 * * mon-fri", "zone": "Europe/Istanbul"},
        "documents.tasks.tidy": {"pattern": "every 15 minutes"},
        "mail.tasks.send_digest": {"pattern": "weekly on mon, thu at 09:00", "zone": "Europe/Berlin"},
        "old report": {"pattern": "monthly on day 15 at 09:00"},
    }
    for name, definition in declared.items():
        columns = schedules.in_wire_form({"task": tasks.echo.name, "kwargs": {"text": "archive/1998"}, **definition})
        how: dict[str, Any] = {"action": "schedule.declare", "actor": "scheduler on web-1", "declared": columns}
        store.change(name, create=True, declared_in=f"documents/tasks.py:{len(name)}", **how)
        fired(name, "CCCCCFCCCCCCCxCCCECC"[: 5 + len(name) % 16] + "FCCR")
    board: dict[str, Any] = {
        "task": tasks.echo.name,
        "pattern": "monthly on the last day at 18:00",
        "zone": "Europe/Istanbul",
    }
    board |= {"kwargs": {"text": "short"}, "catch_up": "all"}
    schedules.create(BOARD, board, actor="ada", reason="The board meets on the first.")
    changes = {"pattern": "0 5 * * mon-fri", "queue": "bulk"}
    schedules.change("documents.tasks.index_documents", changes, actor="grace", reason="The backup runs until five.")
    schedules.disable("mail.tasks.send_digest", actor="ada", reason="The provider is down.")
    Schedule.objects.filter(name="old report").update(gone_at=now(), next_at=None)
    soon = now().replace(second=0, microsecond=0) + dt.timedelta(minutes=7)
    Schedule.objects.filter(name="documents.tasks.tidy").update(next_at=soon, next_fire_at=soon)
    error = "shop.tasks.echo: argument 'text': expected str, got int"
    Schedule.objects.filter(name=BOARD).update(error=error, error_at=now())


def test_the_pages_about_schedules_are_readable_and_keep_to_a_strict_policy(
    browser: Any, live_server: Any, timetable: None
) -> None:
    changed = ("documents.tasks.index_documents",)
    schedules.create(LONG, {"task": tasks.echo.name, "pattern": "hourly at :00", "kwargs": {"text": ""}}, actor="ada")
    addresses = {
        "schedules": reverse(LIST),
        "schedule": reverse("admin:horsies_schedule_change", args=changed),
        "schedule-broken": reverse("admin:horsies_schedule_change", args=(BOARD,)),
        "schedule-off": reverse("admin:horsies_schedule_change", args=("mail.tasks.send_digest",)),
        "schedule-edit": reverse("admin:horsies_schedule_edit", args=changed),
        "schedule-run": reverse("admin:horsies_schedule_run_now", args=changed),
        "schedule-revert": reverse("admin:horsies_schedule_revert", args=changed),
        "schedule-add": reverse("admin:horsies_schedule_add"),
        "schedule-long": reverse("admin:horsies_schedule_change", args=(LONG,)),
        "schedule-long-edit": reverse("admin:horsies_schedule_edit", args=(LONG,)),
        "schedule-audit": reverse("admin:horsies_auditentry_changelist"),
        "schedule-entry": reverse("admin:horsies_auditentry_change", args=(AuditEntry.objects.latest("pk").pk,)),
    }
    badges = {"schedules": 7, "schedule": 14, "schedule-off": 5}
    for name, page in look(browser, live_server, addresses):
        assert_readable(page, name, badges.get(name, 0))
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLED)
            blocks = page.locator(".horsies-run").evaluate_all(BLOCKS)
            assert all(ratio >= 3 for ratio in blocks), (name, scheme, blocks)
        assert bool(blocks) == (name in {"schedules", "schedule", "schedule-off"}), name
