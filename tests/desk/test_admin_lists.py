"""The form of the task list, whose fields are exact and lead to the page of acts, and the list of what people changed."""

from __future__ import annotations

import datetime as dt
import html
import random
import re
import uuid
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django import queues
from horsies_django.admin.base import history
from horsies_django.models import AuditEntry, Queue
from horsies_django.store.selections import Selection
from tests.conftest import sql
from tests.db.test_selection import fits, made
from tests.desk.test_admin import body, client_with, listed, page_of, says
from tests.desk.test_admin_speed import plan_of, queries
from tests.support.factories import AuditEntryFactory, TaskFactory, now

pytestmark = pytest.mark.django_db
LIST, ALL = reverse("admin:horsies_task_changelist"), reverse("admin:horsies_task_all")
SITE = "shop/tasks.py in pay"
WORKER = uuid.UUID(int=1)


def test_each_field_of_the_list_is_exact(boss: Client) -> None:
    """Naive: a field that the page does not know is left out, and the list shows more than was asked for.

    What all of them find together, ``tests/db/test_selection.py`` asks of what they are made of.
    """
    moment = now().replace(microsecond=0)
    pick = random.Random(7)
    rows = [made(pick, moment) for _ in range(49)]
    when = moment - dt.timedelta(minutes=2)
    aware = timezone.make_aware(when) if timezone.is_naive(when) else when
    for query, chosen in (
        ({}, Selection(None)),
        *(({"status": status}, Selection(status)) for status in ("CLAIMED", "UNSUCCESSFUL", "FINISHED")),
        ({"queue": "mail"}, Selection(None, queue="mail")),
        ({"name": "shop.pay"}, Selection(None, names=["shop.pay"])),
        ({"since": "1h", "q": "shop.pay"}, Selection(None, names=["shop.pay"])),
        ({"worker": str(WORKER)}, Selection(None, worker=WORKER)),
        ({"since": when.isoformat(" ")}, Selection(None, since=when)),
        ({"until": aware.isoformat()}, Selection(None, until=when)),
        ({"queue": "mail", "partition": "x"}, Selection(None, queue="mail", partition="x")),
        ({"code": "OH_NO"}, Selection("UNSUCCESSFUL", code="OH_NO")),
        ({"status": "FAILED", "site": SITE}, Selection("FAILED", site=SITE)),
    ):
        assert set(listed(boss, **query)) == {row.pk for row in rows if fits(row, chosen, runs=True)}, query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"status": "SLEEPING"}, "Select a valid choice"),
        ({"status": "RUNNING", "code": "OH_NO"}, "only tasks that did not complete have an error code"),
        ({"partition": "x"}, "name the queue, too"),
        ({"worker": "web-1"}, "Enter a valid UUID"),
        ({"since": "yesterday"}, "Enter 30m, 2h, 7d or"),
        ({"until": "9" * 30 + "w"}, "Enter 30m, 2h, 7d or"),
        ({"queue": "a\x00b"}, "Null characters are not allowed"),
        ({"name": "n" * 300}, "at most 255 characters"),
    ],
)
def test_a_field_that_cannot_be_meant_is_an_error_and_no_list(boss: Client, query: dict[str, str], words: str) -> None:
    """Naive: a server error, or a list of all tasks, on which somebody clicks Retry."""
    TaskFactory(status="RUNNING")
    for address, given in ((LIST, query), (ALL, {"status": "FAILED", **query})):
        page = body(boss, address, **given)
        assert html.escape(words) in page
        assert ("horsies-found" in page, 'name="_selected_action"' in page) == (False, False)


def test_the_link_to_the_page_of_acts_has_the_fields_of_the_list(boss: Client) -> None:
    """Naive: the list shows the failures of a night at one site, and "all that match" are all that ever failed."""
    fields = {"status": "FAILED", "queue": "mail", "code": "OH_NO", "site": SITE, "since": "12h", "worker": str(WORKER)}
    page = body(boss, LIST, **fields, q="shop", p="1")
    (link,) = re.findall(r'href="([^"]+/all/[^"]*)"', page)
    assert parse_qs(urlsplit(html.unescape(link)).query) == {
        key: [value] for key, value in {**fields, "name": "shop"}.items()
    }
    without = body(boss, LIST, queue="mail")
    (link,) = re.findall(r'href="([^"]+/all/[^"]*)"', without)
    form = body(boss, html.unescape(link))
    assert ('value="mail"' in form, '<option value="FAILED" selected>' in form) == (True, True)
    assert "/all/" not in body(boss, LIST, workflow=str(uuid.uuid4())), "acts leave the tasks of runs"


def test_partitions_are_for_those_who_may_see_payloads() -> None:
    """Naive: whoever may not see the keys finds them by trying; or the field is ignored, and the act is on all partitions."""
    TaskFactory(queue_name="mail", partition_key="ann", parked=True)
    viewer = client_with("view_task", "operate_task")
    reader = client_with("view_task", "operate_task", "view_payload")
    query = {"queue": "mail", "partition": "ann", "status": "PENDING"}
    for address in (LIST, ALL):
        page = body(viewer, address, **query)
        assert "horsies.view_payload is required" in page
        assert ("horsies-found" in page, 'name="_selected_action"' in page) == (False, False)
    assert len(listed(reader, **query)) == 1
    assert "1 tasks" in body(reader, ALL, **query)


def test_a_datetime_without_a_time_zone_is_one_of_the_current_one(boss: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    task = TaskFactory()
    local = dt.datetime.now(ZoneInfo("Asia/Kolkata")).replace(tzinfo=None, microsecond=0)
    before, after = str(local - dt.timedelta(hours=1)), str(local + dt.timedelta(hours=1))
    assert listed(boss, since=before) == [task.pk]
    assert listed(boss, since=after) == listed(boss, until=before) == []


# The audit: who changed what, when and why

AUDIT = "admin:horsies_auditentry_changelist"


@pytest.fixture
def empty(db: None) -> None:
    """Empty the audit: the declarations of the settings are in it."""
    AuditEntry.objects.all().delete()


def entries(client: Client, **query: str) -> list[tuple[str, str]]:
    response = client.get(reverse(AUDIT), query)
    assert response.status_code == 200, response.headers
    return [(entry.action, entry.subject) for entry in response.context["cl"].result_list]


def test_the_list_tells_who_changed_what_and_why_and_is_narrowed_to_a_subject_and_an_action(
    boss: Client, empty: None
) -> None:
    queues.change("mail", {"max_concurrency": 8}, actor="ada", reason="eight is plenty")
    queues.override("mail", {"max_concurrency": 4}, actor="grace", reason="four is safe")
    html = body(boss, reverse(AUDIT))
    says(html, "ada", "eight is plenty", "concurrency: no limit → 8", "grace", "concurrency (override): – → 4")
    assert f'<a href="{page_of(Queue(name="mail"))}">mail</a>' in html
    html = body(boss, page_of(AuditEntry.objects.latest("pk")))
    says(html, "grace", "Overridden", "four is safe", "&quot;override_by&quot;: &quot;grace&quot;")
    queues.change("bulk", {"max_concurrency": 8}, actor="ada")
    of_mail = [("queue.override", "mail"), ("queue.set", "mail")]
    assert entries(boss) == [("queue.set", "bulk"), *of_mail], "the newest first"
    id_ = str(uuid.uuid4())
    AuditEntryFactory(actor="ada", action="task.cancel", subject=id_)
    assert entries(boss, subject="mail") == of_mail
    assert entries(boss, action="queue.set") == [("queue.set", "bulk"), ("queue.set", "mail")]
    assert entries(boss, action="queue.set", subject="mail") == [("queue.set", "mail")]
    assert entries(boss, subject=id_) == entries(boss, q=f" {id_} ") == [("task.cancel", id_)]
    assert entries(boss, q="mai") == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, None, []),
        ("text", ["list"], []),
        ({"priority": 1}, {"priority": 2}, ["priority: 1 → 2"]),
        ({"new_column": None}, {"new_column": {"a": 1}}, ['new_column: – → {"a": 1}']),
        ({"override": "odd"}, {"override": {"x": "y" * 500}}, [f"x (override): – → {'y' * 99}…"]),
        ({"override_until": "never"}, {"override_until": None}, ["override ends: never → –"]),
        (
            {"override_until": "2026-01-01T10:00:00+00:00"},
            {"override_until": "2026-01-01"},
            ["override ends: 2026-01-01 13:00:00 → 2026-01-01"],
        ),
    ],
)
def test_changes_are_told_in_a_line_whatever_an_entry_holds(before: object, after: object, told: list[str]) -> None:
    assert history.changes(AuditEntry(before=before, after=after)) == told


def test_all_audit_lists_are_read_down_an_index_and_counted_nowhere(boss: Client, empty: None) -> None:
    sql(
        "INSERT INTO horsies_audit (id, actor, action, subject, at)"
        " SELECT horsies_uuid7(n), 'ada', 'queue.set', 'queue-' || n %% 50, now() - n * interval '1 s'"
        " FROM generate_series(1, %s) AS n",
        [20_000],
    )
    sql("ANALYZE horsies_audit")
    for query, index in (
        ({}, {"horsies_audit_pkey"}),
        ({"action": "queue.pause"}, {"horsies_audit_pkey"}),
        ({"subject": "queue-7"}, {"horsies_audit_subject"}),
        ({"subject": "queue-7", "action": "queue.pause"}, {"horsies_audit_subject"}),
        ({"q": "queue-7"}, {"horsies_audit_subject"}),
    ):
        found = [text for text in queries(boss, reverse(AUDIT), **query) if 'FROM "horsies_audit"' in text]
        assert len(found) == 1
        assert "count(" not in found[0].lower()
        assert "LIMIT 51" in found[0]
        assert set(plan_of(found[0])) == index, query
