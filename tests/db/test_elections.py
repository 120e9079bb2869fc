"""Which workers are elected to be notified of new tasks, which ones a worker without free slots
wakes, and which sends are not announced.

Concurrent sends: a burst is announced only in part, and sends in SERIALIZABLE transactions all
succeed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from horsies_django import Workflow, get_handle, schedules
from horsies_django.core.notifications import read_notification
from horsies_django.core.records import NewTasks
from horsies_django.models import Heartbeat, Task, WorkflowRun
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import Load, WorkerStore
from horsies_django.tasks import enqueue
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.notify_throttle import BURST, READ_AGAIN_SECONDS, NotifyThrottle
from horsies_django.testing import drain
from horsies_django.workflows import send as workflow_send
from horsies_django.workflows.advancer import Advancer
from tests.apps.errands import tasks as errands
from tests.apps.project import tasks
from tests.conftest import Claimer, Connect, limit, put, sql
from tests.db.conftest import heard
from tests.db.test_statements import explained, plans, states
from tests.support.factories import TaskFactory

FRESH = timedelta(seconds=10)
Teams = Callable[..., "Team"]


class Team:
    """Workers that send heartbeats over one connection, in the order of their ids, and receive the
    notifications for each of them alone.
    """

    def __init__(self, connection: psycopg.Connection[Any], count: int, **columns: Any) -> None:
        self.connection = connection
        self.store = WorkerStore(connection)
        self.prefix = channel_prefix(connection)
        self.ids = sorted(uuid.uuid4() for _ in range(count))

        columns = {
            "queues": ["default"],
            "task_names": ["a"],
            "processes": 1,
            "threads": 1,
            **columns,
        }

        for id_ in self.ids:
            self.store.register(
                id_, hostname="here", pid=1, version="1", wire=1, async_concurrency=1, **columns
            )
            connection.execute(f'LISTEN "{self.prefix}_{id_}"')

        self.places()

    def beat(self, place: int, *, listens: bool = True) -> int | None:
        return self.store.beat(
            self.ids[place], [], Load(0, 0, 0.0, 0.0), FRESH, listens=listens
        ).place

    def places(self) -> list[int | None]:
        """Send the heartbeat of each worker, and return their places."""
        return [self.beat(place) for place in range(len(self.ids))]

    def pass_on(self, *queues: str, lane: str = "sync") -> int | None:
        """Wake other workers by the first one."""
        return TaskStore(self.connection).pass_on(
            self.ids[0], self.prefix, lane, queues or ("default",)
        )

    def heard(self) -> dict[int, str]:
        """Return the notification that each worker received."""
        self.connection.execute("NOTIFY nobody")
        return {
            self.ids.index(uuid.UUID(one.channel.removeprefix(self.prefix + "_"))): one.payload
            for one in self.connection.notifies(timeout=0)
        }

    def claim(self, place: int, count: int) -> None:
        claimer = Claimer(self.connection)
        claimer.id = self.ids[place]
        assert len(claimer.run_pass(sync=count).claims) == count


@pytest.fixture
def team(connect: Connect) -> Teams:
    return lambda count=5, **columns: Team(connect(), count, **columns)


@pytest.mark.parametrize("places", [[0], [0, 1], [0, 1, 2], [0, 1, None, None, 2]])
def test_the_two_oldest_and_the_youngest_of_a_team_are_elected(
    team: Teams, places: list[int | None]
) -> None:
    """Fails if: the three oldest are elected; they may have started together on one machine, and
    die with it.
    """
    assert team(len(places)).places() == places


@pytest.mark.parametrize("other", [{"queues": ["default", "mail"]}, {"task_names": ["a", "b"]}])
def test_workers_that_can_run_other_tasks_elect_their_own(
    team: Teams, other: dict[str, Any]
) -> None:
    ours = team(2)
    others = team(2, **other)

    assert ours.places() == others.places() == [0, 1]


def test_a_worker_that_does_not_listen_is_not_elected(team: Teams) -> None:
    """A worker that does not listen is not elected, and gets its place back once it listens."""
    ours = team(5)

    assert ours.beat(1, listens=False) is None
    assert [ours.beat(place) for place in (0, 2, 3, 4)] == [0, 1, None, 2]
    assert ours.places()[1:] == [1, None, None, 2]

    assert ours.beat(4, listens=False) is None
    assert ours.beat(3) == 2


@pytest.mark.parametrize(("column", "ago"), [("died_at", timedelta(0)), ("sent_at", FRESH)])
def test_a_worker_that_is_dead_or_silent_is_not_elected(
    team: Teams, column: str, ago: timedelta
) -> None:
    """A worker that was declared dead, or sends no heartbeats, is not elected."""
    ours = team(4)
    Heartbeat.objects.filter(pk=ours.ids[0]).update(**{column: timezone.now() - ago})

    assert [ours.beat(place) for place in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "stops", "told"),
    [
        (5, 0, {1: "place 0", 2: "place 1"}),
        (5, 1, {2: "place 1"}),
        (5, 4, {3: "place 2"}),
        (3, 2, {}),
        (2, 0, {1: "place 0"}),
    ],
)
def test_a_replacement_of_an_elected_worker_is_notified_at_once(
    team: Teams, count: int, stops: int, told: dict[int, str]
) -> None:
    """When an elected worker stops, its replacements are notified of their places at once."""
    ours = team(count)
    ours.store.stop(ours.ids[stops])

    assert ours.heard() == told

    left = [place for place in range(count) if place != stops]
    assert {place: f"place {ours.beat(place)}" for place in told} == told
    assert len([place for place in left if ours.beat(place) is not None]) == min(3, len(left))


def test_as_many_others_are_woken_as_tasks_wait(team: Teams) -> None:
    ours = team(5)
    put(2)

    assert ours.pass_on() == 2
    told = ours.heard()
    assert list(told.values()) == ["now sync default"] * 2
    assert 0 not in told

    put(9)
    assert ours.pass_on() == 4
    assert ours.heard().keys() == {1, 2, 3, 4}


def test_only_workers_with_a_free_slot_of_the_lane_are_woken(team: Teams) -> None:
    ours = team(4)
    put(4)
    put(lane="async")
    ours.claim(0, 1)
    ours.claim(2, 1)

    assert ours.pass_on() == 2
    assert ours.heard().keys() == {1, 3}

    ours.claim(1, 1)
    ours.claim(3, 1)
    put()
    assert ours.pass_on() == 0, "a task waits, and nobody has a slot for it"
    assert ours.pass_on(lane="async") == 1
    assert set(ours.heard().values()) == {"now async default"}

    larger = team(2, processes=2, threads=2)
    put(4)
    larger.claim(1, 3)
    assert larger.pass_on() == 1
    larger.claim(1, 1)
    assert larger.pass_on() == 0


def test_who_wakes_others_counts_tasks_through_their_indexes(team: Teams, connect: Connect) -> None:
    for state in states(connect()):
        ours = team(3, task_names=[state])
        put(3)
        ours.claim(1, 1)

        notices = explained(Claimer(ours.connection))
        assert ours.pass_on() == 1, state

        counting = plans(notices, "horsies_tasks t")
        assert "using horsies_tasks_holding" in "\n".join(counting), state
        counting = [plan for plan in counting if "horsies_tasks_claim" in plan]
        assert len(counting) >= 2, "the first task, and those beside it"
        assert not any("Sort" in plan for plan in counting), state


def test_nobody_is_woken_if_nothing_waits_or_nobody_else_listens(team: Teams) -> None:
    ours = team(2, queues=["default", "mail"])
    put(5, priority=1, due_at=timezone.now() + timedelta(hours=1))
    put(queue="bulk")
    assert ours.pass_on("default", "mail") is None

    put(queue="mail", priority=7)
    ours.beat(1, listens=False)
    assert ours.pass_on("default", "mail") is None

    ours.beat(1)
    assert ours.pass_on("default", "mail") == 1, (
        "behind others that are due later, and in another queue"
    )
    assert ours.heard() == {1: "now sync *"}


Hear = Callable[[], list[str]]


@pytest.fixture
def hear(connect: Connect) -> Hear:
    """Return a function that returns all new notifications: the marks after the time, and the
    queue.
    """
    listener = connect()
    listener.execute(f"LISTEN {channel_prefix(listener)}_new")

    return lambda: [told.lstrip("0123456789.").lstrip(" ") for told in heard(listener)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make sends use a clock that stands still, and return its hand, a list with the time."""
    hand = [0.0]
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(lambda: hand[0]))
    return hand


def begin_burst(hear: Hear) -> None:
    for number in range(BURST):
        tasks.add.send(number)
    assert hear() == ["!sync default"] * BURST


def test_sends_right_behind_an_announced_send_are_quiet(hear: Hear, clock: list[float]) -> None:
    """In a burst, sends right after an announced one are not announced."""
    begin_burst(hear)
    tasks.add.send(3)
    assert hear() == []

    with connection.cursor() as cursor:  # a pooler lends the session to others
        cursor.execute("SELECT current_setting('horsies.quiet', true)")
        assert cursor.fetchone()[0] in (None, "")

    tasks.add.schedule(60, 4)
    assert hear() == ["default"]  # its task is not due yet: workers read when it is
    tasks.mail.send("a@example.org")
    assert hear() == ["!sync mail"]

    clock[0] += 0.006
    tasks.add.send(5)
    assert hear() == ["!sync default"]
    assert Task.objects.count() == BURST + 4


def test_every_other_way_to_insert_a_task_is_announced(hear: Hear, clock: list[float]) -> None:
    """A send in a transaction, and every other way to insert a task, is announced."""
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

    sql("BEGIN")
    tasks.add.send(5)
    sql("COMMIT")
    assert hear() == ["!sync default"]

    tasks.add.send(6)
    assert hear() == []
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
    """Send a task that may be quiet if its table is number ``quiet_for``; return that number."""
    new = NewTasks("t", "default", "sync", 100, [uuid7()], ["{}"])
    return TaskStore(connection).send(new._replace(**columns), quiet_for)


def test_a_send_that_is_due_before_the_last_one_is_not_quiet(
    hear: Hear,
) -> None:
    """A send to another table, a send due before the last one, and an insert after a quiet send in
    the same transaction are announced.
    """
    table = send()
    assert hear() == ["!sync default"]

    assert send(table + 1) == table
    assert hear() == ["!sync default"]

    send(table, due_at=timezone.now() - timedelta(seconds=1))
    assert hear() == ["!sync default"]

    with transaction.atomic():
        send(table)
    assert hear() == []

    with transaction.atomic():
        send(table)
        TaskFactory(queue_name="mail")
    assert hear() == ["!sync mail"]


def slow_send(then: Callable[[], object] = list) -> Iterator[float]:
    """Yield the times of a clock on which the send after a burst takes long; ``then`` is called
    during that send.
    """
    yield from [0.0] * (2 * BURST + 1)
    then()
    while True:
        yield READ_AGAIN_SECONDS + 0.001


def test_a_quiet_send_that_took_long_is_announced_at_its_end(
    hear: Hear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet send that took long is announced when it ends."""
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(slow_send().__next__))
    begin_burst(hear)

    tasks.add.send(3)

    assert hear() == ["default"]


def test_a_failed_announcement_does_not_undo_a_committed_send(
    hear: Hear, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A committed task stays sent if its announcement fails."""
    breaks = slow_send(lambda: connection.connection.close())
    monkeypatch.setattr(enqueue, "throttle", NotifyThrottle(breaks.__next__))
    begin_burst(hear)

    handle = tasks.add.send(3)
    connection.close()

    assert get_handle(handle.task_id).info().status == "PENDING"
    assert "workers could not be notified" in caplog.text


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
    "workflow with a key": lambda: chain(f"key {uuid.uuid4()}"),
    "map": map_,
}


@pytest.fixture
def declared(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = {
        "task": tasks.add.name,
        "pattern": "daily at 04:30",
        "zone": "Europe/Istanbul",
        "kwargs": {"a": 1},
    }
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"nightly": nightly}}
    schedules.declare(actor="a scheduler")

    limit("bulk", partition_by_args=["a"], partition_max_concurrency=2)
    monkeypatch.setattr(enqueue, "CHUNK_ROWS", 3)


@contextmanager
def serializable(using: Any) -> Iterator[None]:
    """Use another connection as Django's, in a SERIALIZABLE transaction that stays open after the
    block.
    """
    own, connections["default"] = connections["default"], using
    try:
        using.set_autocommit(False)
        using.cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        yield
    finally:
        connections["default"] = own


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_serializable_transactions_can_send_side_by_side(
    declared: None, send: Callable[[], Any]
) -> None:
    """Concurrent sends in SERIALIZABLE transactions all succeed.

    PostgreSQL ends one of them with 40001 if each reads where the next one writes, so no send may
    read its own rows back.
    """
    first, second, third = (connections["default"].copy() for _ in range(3))
    with closing(first), closing(second), closing(third):
        for each in (first, second, third):
            with serializable(each):
                send()

        # Each has read where the next one wrote; the last of them commits first.
        for each in (third, second, first):
            each.commit()

    drain(until=dt.timedelta(hours=2))

    for model in (Task, WorkflowRun):
        assert not model.objects.exclude(status="COMPLETED").exists()
    assert Task.objects.count() >= 3


@pytest.mark.parametrize("chunk", [1, 5_000])
def test_a_worker_sends_the_first_tasks_of_a_serializable_run(
    declared: None, connect: Connect, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(workflow_send, "CHUNK_ROWS", chunk)  # nodes in one statement, or in several
    listener = connect()
    other = connect()
    prefix = channel_prefix(listener)
    listener.execute(f"LISTEN {prefix}_new")

    with transaction.atomic():
        connections["default"].cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        chain()

    assert not Task.objects.exists()
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    told = read_notification(heard.payload)

    advancer = Advancer(1_000_000)
    advancer.note_signal(told.run)
    assert advancer.turn(advancer.store(other, prefix))

    assert Task.objects.count() == 1
