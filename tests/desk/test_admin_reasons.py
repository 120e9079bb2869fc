"""A task's page says why the task is not running, to each user as much as that user may see, and never waits long for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from horsies_django import queues
from horsies_django.admin.tasks import sections
from horsies_django.models import Queue
from tests.conftest import limit
from tests.desk.test_admin import body, client_with, page_of
from tests.support.factories import TaskFactory, WorkerFactory, now

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def boss(client: Client) -> Client:
    """A superuser's browser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def codes(client: Client, task: Any) -> list[str]:
    panel = client.get(page_of(task)).context["panel"]
    return [line.code for line in panel.lines]


def test_every_reason_has_a_line(boss: Client) -> None:
    queues.pause("mail", actor="ada", reason="the disk is full")
    task = TaskFactory(queue_name="mail", enqueued_at=now() + dt.timedelta(hours=1))
    assert codes(boss, task) == ["QUEUE_PAUSED", "NO_LIVE_WORKER", "NOT_DUE"]
    html = body(boss, page_of(task))
    assert "Why is it not running?" in html
    assert "the disk is full" in html
    assert f'<a href="{page_of(Queue(name="mail"))}">mail</a>' in html


def test_who_holds_the_slots_is_linked_for_those_who_may_go_there() -> None:
    limit("mail", max_concurrency=1)
    holder = TaskFactory(queue_name="mail", status="RUNNING", task_name="shop.holder")
    task = TaskFactory(queue_name="mail")
    client = client_with("view_task", "view_queue")
    assert "QUEUE_AT_CAP" in codes(client, task)
    assert f'<a href="{page_of(holder)}">shop.holder</a>' in body(client, page_of(task))
    assert f'<a href="{page_of(Queue(name="mail"))}">' not in body(client_with("view_task"), page_of(task))


def test_a_running_task_says_where_it_runs_and_a_finished_one_nothing(boss: Client) -> None:
    running = TaskFactory(status="RUNNING")
    assert "Where is it running?" in body(boss, page_of(running))
    for status in ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED"):
        finished = TaskFactory(status=status)
        assert boss.get(page_of(finished)).context["panel"] is None


def test_the_worker_that_holds_a_task_and_those_that_could_are_linked(boss: Client) -> None:
    gone = WorkerFactory(queues=["mail"], hostname="web-9", pid=99, stopped_at=now())
    waiting = TaskFactory(queue_name="mail")
    running = TaskFactory(queue_name="mail", status="RUNNING", claimed_by=gone.pk)
    assert f'workers: <a href="{page_of(gone)}">web-9:99</a>' in body(boss, page_of(waiting))
    assert f'worker: <a href="{page_of(gone)}">web-9:99</a>' in body(boss, page_of(running))
    assert page_of(gone) not in body(client_with("view_task"), page_of(waiting))


def test_no_more_than_a_few_holders_are_linked(boss: Client) -> None:
    limit("mail", max_concurrency=7)
    TaskFactory.create_batch(7, queue_name="mail", status="RUNNING", task_name="shop.holder")
    html = body(boss, page_of(TaskFactory(queue_name="mail")))
    assert html.count(">shop.holder</a>") == 5
    assert "shop.holder</a>, …" in html


def test_without_the_payload_permission_a_reason_does_not_tell_the_partition() -> None:
    limit("mail", partition_by_args=["customer"], partition_max_concurrency=1)
    columns = {"queue_name": "mail", "kwargs": {"customer": "s3cret"}, "partition_version": 1}
    TaskFactory(status="RUNNING", partition_key='{"customer": "s3cret"}', **columns)
    task = TaskFactory(parked=True, partition_key='{"customer": "s3cret"}', **columns)
    plain, reader = client_with("view_task"), client_with("view_task", "view_payload")
    assert "PARTITION_AT_LIMIT" in codes(plain, task)
    assert "s3cret" not in body(plain, page_of(task))
    assert "is at its limit: 1 of 1 permits are taken" in body(reader, page_of(task))


def test_what_others_wrote_arrives_as_text(boss: Client) -> None:
    queue = EVIL[:20]
    limit(queue, max_concurrency=0, paused_at="now", paused_by=EVIL, paused_reason=EVIL)
    html = body(boss, page_of(TaskFactory(queue_name=queue, task_name=EVIL)))
    assert "has been paused since" in html
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html


@pytest.mark.django_db(transaction=True)
def test_an_explanation_that_takes_too_long_is_given_up_and_the_page_stays(
    boss: Client, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "PATIENCE_MS", 100)
    task = TaskFactory(queue_name="mail", kwargs={"note": "still here"})
    keeper = connect()
    with keeper.transaction():
        keeper.execute("LOCK TABLE horsies_workers IN ACCESS EXCLUSIVE MODE")
        html = body(boss, page_of(task))
    assert "Finding the reasons took longer than a second" in html
    assert "still here" in html
    assert "horsies-reasons" in html
