"""Whatever a task, a host or an exception says, it arrives in a page as text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.models import AuditEntry, Queue, Schedule, ScheduleTick, Task, Worker
from tests.support.factories import HeartbeatFactory, TaskAttemptFactory, TaskFactory, WorkerFactory, now

pytestmark = pytest.mark.django_db

EVIL = """</pre></script>"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7|add:7 }}{% now "Y" %}{0}%s"""


@pytest.fixture
def pages(client: Client) -> dict[str, str]:
    """All pages about rows whose every text is hostile."""
    client.force_login(User.objects.create_superuser("boss"))
    short = EVIL[:100]
    queue = Queue.objects.create(name=short, priority=5)
    limits = {"partition_by_args": [EVIL], "max_concurrency": 9}
    queues.change(short, limits, actor=EVIL, reason=EVIL)
    queues.override(short, {"max_concurrency": 3}, actor=EVIL, reason=EVIL)
    queues.pause(short, actor=EVIL, reason=EVIL)
    queue.refresh_from_db()
    odd_entry = AuditEntry.objects.create(
        actor=EVIL, action=short[:50], subject=EVIL, reason=EVIL, before=EVIL, after=[EVIL]
    )
    entry = AuditEntry.objects.create(
        actor=EVIL,
        action="queue.set",
        subject=short,
        reason=EVIL,
        before={EVIL: EVIL},
        after={"override": {EVIL: {EVIL: EVIL}}},
    )
    worker = WorkerFactory(hostname=EVIL, version=short[:50], queues=[EVIL, {EVIL: EVIL}], memory_usage_mb=1)
    HeartbeatFactory(worker_id=worker.pk)
    exception = {"type": EVIL, "module": EVIL, "message": EVIL, "repr": EVIL, "traceback": f"Traceback\n{EVIL}"}
    columns: dict[str, Any] = {
        "task_name": EVIL, "queue_name": short, "kwargs": {EVIL: [EVIL, {"deep": EVIL}]}, "options": {EVIL: EVIL},
        "partition_key": EVIL, "claimed_by": worker.pk,
    }  # fmt: skip
    failed = TaskFactory(
        status="FAILED",
        error_code=short,
        result={"err": {"error_code": EVIL, "message": EVIL, "data": {EVIL: EVIL}, "exception": exception}},
        **columns,
    )
    done = TaskFactory(status="COMPLETED", result={"ok": EVIL}, **columns)
    odd = TaskFactory(status="COMPLETED", result={"ok": {EVIL: EVIL}, "err": EVIL}, **columns)
    running = TaskFactory(status="RUNNING", **columns)
    waiting = TaskFactory(**columns | {"claimed_by": None})
    TaskAttemptFactory(task_id=failed.pk, error_code=short, error_message=EVIL, worker_id=worker.pk)
    addresses = schedules(short, failed)
    addresses += [
        reverse(f"admin:horsies_{row._meta.model_name}_change", args=(row.pk,))
        for row in (failed, done, odd, running, waiting, worker, entry, odd_entry)
    ]
    forms = ("change", "override", "clear", "resume")
    addresses += [reverse(f"admin:horsies_queue_{page}", args=(quote(short),)) for page in forms]
    models = (Task, Queue, Schedule, Worker, AuditEntry)
    lists = [reverse(f"admin:horsies_{model._meta.model_name}_changelist") for model in models]
    asked = [f"{lists[0]}?status=FAILED", f"{lists[0]}?q=%3Cscript%3Ealert(1)%3C/script%3E"]
    return {address: client.get(address).content.decode() for address in addresses + lists + asked}


def schedules(short: str, task: Task) -> list[str]:
    """Make schedules whose every text is hostile, and return the addresses of their pages."""
    columns: dict[str, Any] = {
        "task": EVIL, "pattern": EVIL, "zone": EVIL, "kwargs": {EVIL: [EVIL]}, "queue": EVIL, "priority": EVIL,
        "good_for_ms": EVIL, "catch_up": EVIL, "most": EVIL, "jitter_ms": EVIL, "enabled": EVIL, EVIL: {EVIL: EVIL},
    }  # fmt: skip
    readable = {**columns, "pattern": "daily at 04:30", "zone": "UTC"}
    names = [short, f"{short}?", f"{short}/"]
    for name, definition in zip(names, (columns, readable, {"kwargs": [EVIL]}), strict=True):
        declared = json.dumps(columns)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO horsies_schedules (name, declared, declared_in, changes, error, error_at)"
                " VALUES (%s, %s, %s, %s, %s, now())",
                [name, declared, EVIL, json.dumps(definition), EVIL],
            )
        ScheduleTick.objects.bulk_create([ScheduleTick(schedule_name=name, fire_at=now(), task_id=task.pk)])
        after = {"kwargs": EVIL, "pattern": EVIL, EVIL: EVIL}
        AuditEntry.objects.create(actor=EVIL, action="schedule.change", subject=name, reason=EVIL, after=after)
    pages = ("change", "edit", "run_now", "disable", "revert")
    found = [reverse(f"admin:horsies_schedule_{page}", args=(quote(name),)) for name in names for page in pages]
    entry = AuditEntry.objects.filter(action="schedule.change").latest("pk")
    return [*found, reverse("admin:horsies_auditentry_change", args=(entry.pk,))]


def test_hostile_texts_arrive_as_text_in_every_list_and_detail(pages: dict[str, str]) -> None:
    assert len(pages) == 35
    for address, html in pages.items():
        assert "alert(1)" in html, address  # it is shown,
        assert "<script>alert" not in html, address  # and never as markup
        assert "<img src=x" not in html, address
        assert "</pre></script>" not in html, address
        assert not re.search(r"<[a-z]+[^<>]*\"'>", html), address


def test_no_page_carries_styles_scripts_or_handlers_inline(pages: dict[str, str]) -> None:
    for address, html in pages.items():
        tags = re.findall(r"<[a-z][^>]*>", re.sub(r'="[^"]*"', "=", html))  # without the values of attributes
        assert not [tag for tag in tags if re.search(r"\s(style|on[a-z]+)=", tag)], address
        assert "<style" not in html, address
        assert re.findall(r"<script(?![^>]*\ssrc=)", html) == [], address
        assert 'horsies/admin.css"' in html, address
