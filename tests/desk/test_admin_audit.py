"""The admin shows who changed what, when and why; nobody changes that, and it stays fast."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.admin.base import history
from horsies_django.models import AuditEntry, Queue
from tests.desk.test_admin import body, page_of
from tests.desk.test_admin_speed import plan_of, queries
from tests.support.factories import AuditEntryFactory

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_auditentry_changelist"


@pytest.fixture
def boss(boss: Client) -> Client:
    """A superuser's browser, and an audit that nobody has written to."""
    AuditEntry.objects.all().delete()
    return boss


def listed(client: Client, **query: str) -> list[tuple[str, str]]:
    """Return action and subject of a page of the list, in its order."""
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200, response.headers
    return [(entry.action, entry.subject) for entry in response.context["cl"].result_list]


def test_the_list_tells_who_changed_what_and_why_and_an_entry_all_that_was_and_became(boss: Client) -> None:
    queues.change("mail", {"max_concurrency": 8}, actor="ada", reason="eight is plenty")
    queues.override("mail", {"max_concurrency": 4}, actor="grace", reason="four is safe")
    assert listed(boss) == [("queue.override", "mail"), ("queue.set", "mail")], "the newest first"
    html = body(boss, reverse(LIST))
    for text in ("ada", "eight is plenty", "concurrency: no limit → 8", "grace", "concurrency (override): – → 4"):
        assert text in html, text
    assert f'<a href="{page_of(Queue(name="mail"))}">mail</a>' in html
    html = body(boss, page_of(AuditEntry.objects.latest("pk")))
    for text in ("grace", "Overridden", "four is safe", "&quot;override_by&quot;: &quot;grace&quot;"):
        assert text in html, text


def test_the_list_is_narrowed_to_a_subject_and_an_action(boss: Client) -> None:
    queues.change("mail", {"max_concurrency": 8}, actor="ada")
    queues.pause("mail", actor="ada")
    queues.pause("bulk", actor="ada")
    id_ = str(uuid.uuid4())
    AuditEntryFactory(actor="ada", action="task.cancel", subject=id_)
    assert listed(boss, subject="mail") == [("queue.pause", "mail"), ("queue.set", "mail")]
    assert listed(boss, action="queue.pause") == [("queue.pause", "bulk"), ("queue.pause", "mail")]
    assert listed(boss, action="queue.pause", subject="mail") == [("queue.pause", "mail")]
    assert listed(boss, subject=id_) == listed(boss, q=f" {id_} ") == [("task.cancel", id_)]
    assert listed(boss, q="mai") == []


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


def test_all_audit_lists_are_read_down_an_index_and_counted_nowhere(boss: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_audit (id, actor, action, subject, at)"
            " SELECT horsies_uuid7(n), 'ada', 'queue.set', 'queue-' || n %% 50, now() - n * interval '1 s'"
            " FROM generate_series(1, %(many)s) AS n",
            {"many": 20_000},
        )
        cursor.execute("ANALYZE horsies_audit")
    for query, index in (
        ({}, {"horsies_audit_pkey"}),
        ({"action": "queue.pause"}, {"horsies_audit_pkey"}),
        ({"subject": "queue-7"}, {"horsies_audit_subject"}),
        ({"subject": "queue-7", "action": "queue.pause"}, {"horsies_audit_subject"}),
        ({"q": "queue-7"}, {"horsies_audit_subject"}),
    ):
        found = [sql for sql in queries(boss, reverse(LIST), **query) if 'FROM "horsies_audit"' in sql]
        assert len(found) == 1
        assert "count(" not in found[0].lower()
        assert "LIMIT 51" in found[0]
        assert set(plan_of(found[0])) == index, query
