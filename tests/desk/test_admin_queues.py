"""The admin shows how queues stand: which limits hold and why, who holds the permits, what was changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.admin.base import readonly
from horsies_django.models import AuditEntry, Heartbeat, Queue
from tests.conftest import limit
from tests.desk.test_admin import body, client_with, page_of
from tests.desk.test_admin_limits import LIST, WHY, post, url
from tests.desk.test_admin_speed import queries
from tests.support.factories import AuditEntryFactory, HeartbeatFactory, TaskFactory, WorkerFactory, now

pytestmark = pytest.mark.django_db


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def serve(*names: str, **columns: Any) -> Any:
    """Return a living worker that serves queues."""
    worker = WorkerFactory(queues=list(names), **columns)
    Heartbeat.objects.bulk_create([Heartbeat(id=worker.pk, worker_id=worker.pk, role="claimer", pid=worker.pid)])
    return worker


@pytest.mark.promise("S4.23")
def test_the_list_shows_the_limits_in_force_and_whence_they_come(boss: Client) -> None:
    limit("mail", max_concurrency=8, partition_by_task=True, partition_max_concurrency=2)
    queues.override("mail", {"max_concurrency": 4}, actor="ada", reason=WHY)
    queues.pause("bulk", actor="ada", reason=WHY)
    rows = {row.name: row for row in boss.get(reverse(LIST)).context["cl"].result_list}
    html = body(boss, reverse(LIST))
    assert list(rows) == ["mail", "bulk", "twin", "default"]
    assert "4 in all, 2 per partition" in html
    assert (html.count("horsies-overridden"), html.count("horsies-paused")) == (1, 1)


@pytest.mark.parametrize(
    "columns",
    [
        {"max_concurrency": 40},
        {"paused_at": "now"},
        {"override": {"max_concurrency": 2}, "override_at": "now", "override_reason": ""},
    ],
)
def test_the_cluster_stands_first_if_it_has_something_to_say(boss: Client, columns: dict[str, Any]) -> None:
    def names() -> list[str]:
        return [row.name for row in boss.get(reverse(LIST)).context["cl"].result_list]

    assert names() == ["mail", "bulk", "twin", "default"]
    limit("*", **columns)
    assert names() == ["*", "mail", "bulk", "twin", "default"]


def test_queues_with_work_and_no_worker_stand_out(boss: Client) -> None:
    serve("mail")
    TaskFactory(queue_name="mail")
    assert "horsies-silent" not in body(boss, reverse(LIST))
    TaskFactory(queue_name="bulk")
    assert body(boss, reverse(LIST)).count("horsies-silent") == 1


def test_the_list_costs_the_same_few_queries_for_many_queues(boss: Client) -> None:
    few = len(queries(boss, reverse(LIST)))
    assert few <= 13
    for number in range(40):
        limit(f"queue-{number}", partition_by_task=True, partition_max_concurrency=1)
    assert len(queries(boss, reverse(LIST))) == few


def test_a_queue_shows_declared_override_and_what_holds_side_by_side(boss: Client) -> None:
    limit("mail", max_concurrency=8, local_limit=3, partition_by_args=["customer", "day"], partition_by_task=True)
    queues.override("mail", {"max_concurrency": 4, "local_limit": None}, actor="ada", reason=WHY)

    def table() -> dict[str, tuple[str, str, str]]:
        rows = boss.get(url("change")).context["limits"]
        return {row.label: (row.declared, row.override, row.effective) for row in rows}

    assert table() == {
        "priority": ("1", "–", "1"),
        "concurrency": ("8", "4", "4"),
        "concurrency per worker": ("3", "no limit", "no limit"),
        "concurrency per partition": ("no limit", "–", "no limit"),
        "concurrency per partition and worker": ("no limit", "–", "no limit"),
        "partitions by": ("arguments: customer, day; task", "–", "arguments: customer, day; task"),
    }
    queues.pause("mail", actor="ada", reason="stop")
    assert table()["concurrency"] == ("8", "4", "0")
    html = body(boss, url("change"))
    assert WHY in html
    assert "stop" in html


def test_a_queue_shows_who_holds_each_permit() -> None:
    limit("mail", partition_by_args=["customer"], partition_max_concurrency=2)
    alive, silent = serve("mail", hostname="web-1", pid=11), serve("mail", hostname="web-2", pid=22)
    Heartbeat.objects.filter(pk=silent.pk).update(died_at=now())
    since = now() - dt.timedelta(minutes=2, seconds=30)
    held = TaskFactory(
        queue_name="mail", status="RUNNING", claimed_by=alive.pk, claimed_at=since, kwargs={"customer": "acme"},
        partition_key='{"customer": "acme"}', partition_version=1,
    )  # fmt: skip
    HeartbeatFactory(worker_id=alive.pk, pid=12_345, holding=[str(held.pk)])
    TaskFactory(queue_name="mail", status="RUNNING", claimed_by=silent.pk, kwargs={"customer": "globex"})
    TaskFactory(queue_name="bulk", status="RUNNING", task_name="shop.of_another_queue")
    everything = body(client_with("view_queue", "view_task", "view_worker", "view_payload"), url("change"))
    plain = body(client_with("view_queue"), url("change"))
    for html in (everything, plain):
        for text in ("shop.tasks.send_receipt", "web-1:11", "web-2:22", "12345", "2 min 30 s"):
            assert text in html, text
        assert html.count("horsies-silent") == 1
        assert "of_another_queue" not in html
    assert f'<a href="{page_of(held)}">shop.tasks.send_receipt</a>' in everything
    assert f'<a href="{page_of(alive)}">web-1:11</a>' in everything
    assert "{&quot;customer&quot;: &quot;acme&quot;}" in everything
    assert page_of(held) not in plain
    assert "acme" not in plain
    assert "horsies.view_payload" in plain


def test_no_more_than_a_hundred_permits_are_listed(boss: Client) -> None:
    TaskFactory.create_batch(101, queue_name="mail", status="RUNNING")
    response = boss.get(url("change"))
    assert len(response.context["permits"]) == 100
    assert "Only the 100 permits held the longest are shown." in response.content.decode()


def test_a_queue_shows_its_busiest_partitions(boss: Client) -> None:
    limit("mail", partition_by_task=True, partition_max_concurrency=2)
    for name, running, parked in (("a.full", 2, 3), ("b.free", 1, 0)):
        columns = {
            "task_name": name,
            "queue_name": "mail",
            "partition_version": 1,
            "partition_key": f'{{"": "{name}"}}',
        }
        TaskFactory.create_batch(running, status="RUNNING", **columns)
        TaskFactory.create_batch(parked, parked=True, **columns)
    rows = boss.get(url("change")).context["partitions"]
    assert [(row.partition, row.running, row.limit, bool(row.full), row.parked) for row in rows] == [
        ('{"": "a.full"}', "2", "2", True, "3"),
        ('{"": "b.free"}', "1", "2", False, "0"),
    ]
    # Keys that are made of task names alone are no payload.
    assert "a.full&quot;}" in body(client_with("view_queue"), url("change"))


def test_a_queue_with_nothing_to_tell_says_so(boss: Client) -> None:
    limit("quiet", partition_by_task=True, partition_max_concurrency=2)
    AuditEntry.objects.all().delete()
    html = body(boss, url("change", "quiet"))
    assert "None: no task of this queue is running or claimed." in html
    assert "No partition holds a permit." in html
    assert "None." in html


def test_a_queue_shows_its_last_twenty_changes_and_no_others(boss: Client) -> None:
    for number in range(1, 26):
        limit("mail", max_concurrency=number)
    AuditEntryFactory(actor="x", action="task.cancel", subject="mail", reason="a task of this name")
    entries = boss.get(url("change")).context["entries"]
    assert [entry["changes"] for entry in entries] == [
        [f"concurrency: {number - 1} → {number}"] for number in range(25, 5, -1)
    ]
    assert "?subject=mail" in body(boss, url("change"))
    assert "?subject=mail" not in body(client_with("view_queue"), url("change"))


@pytest.mark.django_db(transaction=True)
def test_numbers_that_take_too_long_are_given_up_and_the_pages_stay(
    boss: Client, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "TIMEOUT_MS", 100)
    keeper = connect()
    with keeper.transaction():
        keeper.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        for address in (reverse(LIST), url("change")):
            assert "The counts are missing, because counting took longer than three seconds." in body(boss, address)
        assert body(boss, url("change")).count("Reading this took longer than three seconds and was stopped.") == 1
        post(boss, "pause", reason=WHY)
    assert Queue.objects.get(name="mail").paused_by == "boss"
