"""Sends beside other sends: in a burst workers do not hear of each of them, and in SERIALIZABLE transactions all succeed."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from horsies_django import Workflow, get_handle, schedules
from horsies_django.core.notifications import read_told
from horsies_django.core.records import NewTasks
from horsies_django.models import Task, WorkflowRun
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import enqueue
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.notify_throttle import BURST, LOOK_SECONDS, NotifyThrottle
from horsies_django.testing import drain
from horsies_django.workflows import send as workflow_send
from horsies_django.workflows.advancer import Advancer
from tests.apps.errands import tasks as errands
from tests.apps.project import tasks
from tests.conftest import Connect, limit, sql
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.django_db(transaction=True)

Hear = Callable[[], list[str]]


@pytest.fixture
def hear(connect: Connect) -> Hear:
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
    with connection.cursor() as cursor:  # a pooler lends the session to others
        cursor.execute("SELECT current_setting('horsies.quiet', true)")
        assert cursor.fetchone()[0] in (None, "")
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
    sql(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs) "
        "VALUES (gen_random_uuid(), 'by.hand', 'mail', 'sync', '{}')"
    )
    assert hear() == ["!sync mail"]


def send(quiet_for: int | None = None, **columns: Any) -> int:
    """Send a task that may be quiet if its table is that one, and return which table it is."""
    new = NewTasks("t", "default", "sync", 100, [uuid7()], ["{}"])
    return TaskStore(connection).send(new._replace(**columns), quiet_for)


def test_a_send_for_another_table_or_of_a_task_that_was_due_before_the_announcement_is_not_quiet(hear: Hear) -> None:
    table = send()
    assert hear() == ["!sync default"]
    assert send(table + 1) == table
    assert hear() == ["!sync default"]
    send(table, due_at=timezone.now() - timedelta(seconds=1))
    assert hear() == ["!sync default"]


def test_what_is_inserted_after_a_quiet_send_in_its_transaction_is_announced(hear: Hear) -> None:
    table = send()
    hear()
    with transaction.atomic():
        send(table)
    assert hear() == []
    with transaction.atomic():
        send(table)
        TaskFactory(queue_name="mail")
    assert hear() == ["!sync mail"]


def slow_send(then: Callable[[], object] = list) -> Iterator[float]:
    """Give what a clock shows: between the beginning and the end of the send behind a burst much time passes."""
    yield from [0.0] * (2 * BURST + 1)
    then()
    while True:
        yield LOOK_SECONDS + 0.001


def test_a_quiet_send_that_took_long_is_announced_when_it_is_done(hear: Hear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(slow_send().__next__))
    begin_burst(hear)
    tasks.add.send(3)
    assert hear() == ["default"]


def test_a_committed_task_that_cannot_be_announced_is_sent_all_the_same(
    hear: Hear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_connection() -> None:
        connection.connection.close()

    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(slow_send(break_connection).__next__))
    begin_burst(hear)
    handle = tasks.add.send(3)
    connection.close()
    assert get_handle(handle.task_id).info().status == "PENDING"
    assert "workers could not be notified" in caplog.text


numbers = itertools.count()


def chain(key: str | None = None) -> None:
    flow = Workflow("chain", key=key)
    flow.add(tasks.add, flow.add(tasks.add, 1), 2)
    flow.send()


def map_() -> None:
    flow = Workflow("map")
    flow.map(tasks.add, a=[1, 2, 3])
    flow.send()


SENDS: dict[str, Callable[[], Any]] = {
    "send": lambda: tasks.add.send(1),
    "schedule": lambda: tasks.add.schedule(dt.timedelta(hours=1), 1),
    "partition": lambda: tasks.add.with_options(queue="bulk").send(1),
    "send_many": lambda: tasks.add.send_many([{"a": n} for n in range(3)]),
    "chunks": lambda: tasks.add.send_many([{"a": n} for n in range(7)]),
    "enqueue": lambda: errands.add.enqueue(1, 2),
    "enqueue later": lambda: errands.add.using(run_after=dt.timedelta(hours=1)).enqueue(1, 2),
    "run now": lambda: schedules.run_now("nightly", actor="a test"),
    "workflow": chain,
    "workflow with a key": lambda: chain(f"key {next(numbers)}"),
    "map": map_,
}


@pytest.fixture
def declared(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = {"task": tasks.add.name, "pattern": "daily at 04:30", "zone": "Europe/Istanbul", "kwargs": {"a": 1}}
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"nightly": nightly}}
    schedules.declare(actor="a scheduler")
    limit("bulk", partition_by_args=["a"], partition_max_concurrency=2)
    monkeypatch.setattr(enqueue, "CHUNK", 3)


@contextmanager
def serializable(using: Any) -> Iterator[None]:
    """Let Django's connection be this one, in a SERIALIZABLE transaction that stays open after the block."""
    own, connections["default"] = connections["default"], using
    try:
        using.set_autocommit(False)
        using.cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        yield
    finally:
        connections["default"] = own


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_sends_in_serializable_transactions_do_not_make_each_other_fail(
    declared: None, send: Callable[[], Any]
) -> None:
    """PostgreSQL ends one of them with 40001 if each reads where the next one writes: no send may read back what it wrote."""
    first, second, third = (connections["default"].copy() for _ in range(3))
    with closing(first), closing(second), closing(third):
        for each in (first, second, third):
            with serializable(each):
                send()
        for each in (third, second, first):  # each has read where the next one wrote; the last of them commits first
            each.commit()
    drain(until=dt.timedelta(hours=2))
    for model in (Task, WorkflowRun):
        assert not model.objects.exclude(status="COMPLETED").exists()
    assert Task.objects.count() >= 3


@pytest.mark.parametrize("chunk", [1, 5_000])
def test_a_worker_that_hears_of_such_a_run_sends_its_first_tasks(
    declared: None, connect: Connect, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(workflow_send, "CHUNK", chunk)  # nodes in one statement, or in several
    listener, other = connect(), connect()
    prefix = channel_prefix(listener)
    listener.execute(f"LISTEN {prefix}_new")
    with transaction.atomic():
        connections["default"].cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        chain()
    assert not Task.objects.exists()
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    told = read_told(heard.payload)
    advancer = Advancer(1_000_000)
    advancer.tell(told.run)
    assert advancer.turn(advancer.store(other, prefix))
    assert Task.objects.count() == 1
