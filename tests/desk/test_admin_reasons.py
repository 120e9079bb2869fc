"""A task's page says why the task is not running, and shows tasks of django.tasks, to each user as much as that user may see."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from horsies_django import queues
from horsies_django.admin.tasks import sections
from horsies_django.models import Queue
from tests.conftest import limit
from tests.desk.test_admin import body, client_with, page_of
from tests.support.factories import TaskFactory, WorkerFactory, now

pytestmark = pytest.mark.django_db


def codes(client: Client, task: Any) -> list[str]:
    panel = client.get(page_of(task)).context["panel"]
    return [line.code for line in panel.lines]


def test_every_reason_has_a_line(boss: Client) -> None:
    queues.pause("mail", actor="ada", reason="the disk is full")
    task = TaskFactory(queue_name="mail", enqueued_at=now() + dt.timedelta(hours=1))
    assert codes(boss, task) == ["QUEUE_PAUSED", "NO_LIVE_WORKER", "NOT_DUE"]
    page = body(boss, page_of(task))
    assert "Why is it not running?" in page
    assert "the disk is full" in page
    assert f'<a href="{page_of(Queue(name="mail"))}">mail</a>' in page


def test_who_holds_the_slots_is_linked_for_those_who_may_go_there_but_only_a_few() -> None:
    limit("mail", max_concurrency=7)
    held = TaskFactory.create_batch(7, queue_name="mail", status="RUNNING", task_name="shop.holder")
    task = TaskFactory(queue_name="mail")
    client = client_with("view_task", "view_queue")
    assert "QUEUE_AT_CAP" in codes(client, task)
    page = body(client, page_of(task))
    assert sum(f'<a href="{page_of(one)}">shop.holder</a>' in page for one in held) == 5
    assert "shop.holder</a>, …" in page
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


@pytest.mark.django_db(transaction=True)
def test_an_explanation_that_takes_too_long_is_given_up_and_the_page_stays(
    boss: Client, connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "PATIENCE_MS", 100)
    task = TaskFactory(queue_name="mail", kwargs={"note": "still here"})
    keeper = connect()
    with keeper.transaction():
        keeper.execute("LOCK TABLE horsies_workers IN ACCESS EXCLUSIVE MODE")
        page = body(boss, page_of(task))
    assert "Finding the reasons took longer than a second" in page
    assert "still here" in page
    assert "horsies-reasons" in page


# Tasks of django.tasks


def reader() -> Client:
    return client_with("view_task", "view_payload")


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.parametrize(
    ("codec", "kwargs", "shown"),
    [
        ("plain", {"args": ["Ann"], "kwargs": {"loud": True}, "names": ["name"]}, {"loud": True, "name": "Ann"}),
        ("plain", {"args": [1, 2], "kwargs": {}}, {"*": [1, 2]}),
        ("plain", {}, {}),
        ("plain", {"args": 5}, {"args": 5}),
        ("typed", {"args": [1], "kwargs": {"a": 2}}, {"args": [1], "kwargs": {"a": 2}}),
    ],
)
def test_the_arguments_of_a_plain_task_are_shown_by_name(codec: str, kwargs: Any, shown: Any) -> None:
    """Naive: they are shown as they are stored, so that nobody sees for which parameter a value is."""
    task = TaskFactory(kwargs=kwargs, **({"codec": codec} if codec == "plain" else {}))
    assert json.dumps(shown, indent=2) in text_of(body(reader(), page_of(task)))


def test_the_priority_of_django_tasks_is_shown_beside_ours() -> None:
    assert "101 (django.tasks: 0)" in body(reader(), page_of(TaskFactory(codec="plain", priority=101)))
    assert "(django.tasks" not in body(reader(), page_of(TaskFactory(priority=100)))
