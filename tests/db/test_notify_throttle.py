"""What workers hear of a send: in a burst of sends not each of them, of everything else every statement."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from horsies_django import get_handle
from horsies_django.core.records import NewTasks
from horsies_django.models import Task
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import enqueue
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.notify_throttle import BURST, LOOK_SECONDS, NotifyThrottle
from tests.apps.project import tasks
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)

Hear = Callable[[], list[str]]


@pytest.fixture
def hear(connect: Callable[[], psycopg.Connection[Any]]) -> Hear:
    """Give a function that returns what was notified since: for each notification the marks behind its time, and its queue."""
    listener = connect()
    listener.execute(f"LISTEN {channel_prefix(listener)}_new")

    def heard() -> list[str]:
        listener.execute("NOTIFY nobody")  # whatever was sent before this has arrived
        words = [item.payload.split(" ") for item in listener.notifies(timeout=0)]
        return [" ".join([moment.lstrip("0123456789."), queue]).strip() for moment, queue in words]

    return heard


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have sends go by a clock that stands still, and give its hand."""
    hand = [0.0]
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(lambda: hand[0]))
    return hand


def begin_burst(hear: Hear) -> None:
    for number in range(BURST):
        tasks.add.send(number)
    assert hear() == ["!sync default"] * BURST


def test_in_a_burst_the_sends_right_behind_an_announced_one_are_quiet(hear: Hear, clock: list[float]) -> None:
    begin_burst(hear)
    tasks.add.send(3)
    assert hear() == []
    tasks.add.schedule(60, 4)
    assert hear() == ["default"]  # not all of it is due: workers ask when
    tasks.mail.send("a@example.org")
    assert hear() == ["!sync mail"]
    clock[0] += 0.006
    tasks.add.send(5)
    assert hear() == ["!sync default"]
    assert Task.objects.count() == BURST + 4


def test_a_send_in_a_transaction_is_always_announced(hear: Hear, clock: list[float]) -> None:
    begin_burst(hear)
    with transaction.atomic():
        tasks.add.send(3)
    assert hear() == ["!sync default"]
    transaction.set_autocommit(False)
    try:
        tasks.add.send(4)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert hear() == ["!sync default"]
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        tasks.add.send(5)
        cursor.execute("COMMIT")
    assert hear() == ["!sync default"]
    tasks.add.send(6)
    assert hear() == []


def test_every_other_way_to_insert_is_announced(hear: Hear, clock: list[float]) -> None:
    begin_burst(hear)
    tasks.add.send_many([{"a": 3}])
    assert hear() == ["!sync default"]
    TaskFactory()
    assert hear() == ["!sync default"]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs) "
            "VALUES (gen_random_uuid(), 'by.hand', 'mail', 'sync', '{}')"
        )
    assert hear() == ["!sync mail"]


def test_what_is_inserted_after_a_quiet_send_in_its_transaction_is_announced(hear: Hear) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 'horsies_tasks'::regclass::oid")
        (table,) = cursor.fetchone()
    new = NewTasks("t", "default", "sync", 100, [uuid7()], ["{}"])
    with transaction.atomic():
        assert TaskStore(connection).send(new, table) == table
    assert hear() == []
    with transaction.atomic():
        TaskStore(connection).send(new._replace(ids=[uuid7()]), table)
        TaskFactory(queue_name="mail")
    assert hear() == ["!sync mail"]


def test_a_quiet_send_leaves_nothing_in_a_session_that_a_pooler_lends_to_others(hear: Hear, clock: list[float]) -> None:
    begin_burst(hear)
    tasks.add.send(3)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('horsies.quiet', true)")
        assert cursor.fetchone()[0] in (None, "")
    assert hear() == []


def test_a_send_that_is_quiet_for_another_table_is_announced_in_its_own(hear: Hear) -> None:
    new = NewTasks("t", "default", "sync", 100, [uuid7()], ["{}"])
    table = TaskStore(connection).send(new)
    assert hear() == ["!sync default"]
    assert TaskStore(connection).send(new._replace(ids=[uuid7()]), table + 1) == table
    assert hear() == ["!sync default"]


def test_a_task_that_was_due_before_the_announcement_gets_one_of_its_own(hear: Hear) -> None:
    new = NewTasks("t", "default", "sync", 100, [uuid7()], ["{}"])
    table = TaskStore(connection).send(new)
    assert hear() == ["!sync default"]
    due_at = timezone.now() - timedelta(seconds=1)
    TaskStore(connection).send(new._replace(ids=[uuid7()], due_at=due_at), table)
    assert hear() == ["!sync default"]


class Passing:
    """A clock that passes ``seconds`` between the beginning and the end of a send, and does something then."""

    def __init__(self, seconds: float, then: Callable[[], object] = list) -> None:
        self.seconds = seconds
        self.then = then
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        if self.reads <= 2 * BURST + 1:  # the sends that begin a burst, and the beginning of the next
            return 0.0
        self.then()
        return self.seconds


def test_a_quiet_send_that_took_long_is_announced_when_it_is_done(hear: Hear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(Passing(LOOK_SECONDS + 0.001)))
    begin_burst(hear)
    tasks.add.send(3)
    assert hear() == ["default"]


def test_a_committed_task_that_cannot_be_announced_is_sent_all_the_same(
    hear: Hear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_connection() -> None:
        connection.connection.close()

    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(Passing(LOOK_SECONDS + 0.001, break_connection)))
    begin_burst(hear)
    handle = tasks.add.send(3)
    connection.close()
    assert get_handle(handle.task_id).info().status == "PENDING"
    assert "workers could not be notified" in caplog.text
