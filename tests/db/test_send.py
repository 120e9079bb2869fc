"""Send: part of the caller's transaction, checked before anything is written, announced to workers
at the commit.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import Error, connection, transaction
from django.utils import timezone

from horsies_django import TaskDefinitionError, TaskSendError, task
from horsies_django.core.records import NewTasks
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import enqueue, options, registry
from horsies_django.tasks.handle import TaskHandle
from horsies_django.tasks.ids import Clockwork, uuid7
from horsies_django.testing import travel
from tests.apps.project import tasks
from tests.conftest import Connect, sql
from tests.support import refusing


@pytest.mark.promise("S3.1", "S3.4")
def test_a_task_exists_exactly_when_its_transaction_commits(connect: Connect) -> None:
    """A task exists exactly when the sender's transaction commits."""
    other = connect()

    with transaction.atomic():
        tasks.add.send(1)
        with pytest.raises(RuntimeError), transaction.atomic():
            Group.objects.create(name="with the task")
            tasks.add.send(2)
            raise RuntimeError

        assert Task.objects.get().kwargs == {"a": 1}
        assert other.execute("SELECT count(*) FROM horsies_tasks").fetchone() == (0,)

    assert other.execute("SELECT kwargs FROM horsies_tasks").fetchall() == [({"a": 1},)]
    assert not Group.objects.exists()


@pytest.mark.direct
@pytest.mark.promise("S3.4", "S3.9")
def test_each_queue_is_notified_once_per_transaction(connect: Connect) -> None:
    """Each queue gets one notification per transaction, at the commit."""
    listener = connect()
    listener.execute(f"LISTEN {channel_prefix(listener)}_new")

    with transaction.atomic():
        for number in range(5):
            tasks.add.send(number)
        tasks.mail.send("a@example.org")
        assert list(listener.notifies(timeout=0)) == []

    heard = [item.payload.split(" ")[1] for item in listener.notifies(timeout=10, stop_after=2)]
    assert sorted(heard) == ["default", "mail"]
    assert list(listener.notifies(timeout=0)) == []


@pytest.mark.parametrize("server_side_binding", [False, True])
def test_every_option_is_stored_under_either_binding(
    server_side_binding: bool,
) -> None:
    """Every option is stored, whether the driver or the server binds parameters."""

    def new(**columns: Any) -> NewTasks:
        return NewTasks("x", "default", "sync", 7, [uuid7()], ["{}"], **columns)

    due_at = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    other = connection.copy()
    other.settings_dict["OPTIONS"] = {
        **connection.settings_dict["OPTIONS"],
        "server_side_binding": server_side_binding,
    }

    with closing(other):
        store = TaskStore(other)
        table = store.send(new(due_at=due_at, good_for=dt.timedelta(days=36_500), max_retries=3))
        store.send(new(delay=dt.timedelta(days=2), good_until=due_at, now=due_at), table)
        store.send_timed(new(options='{"timeout_ms": 500}', codec="plain"), table)

    due, delayed, timed = Task.objects.order_by("id")
    assert (due.priority, due.max_retries) == (7, 3)
    assert due.good_until > due.enqueued_at
    assert delayed.enqueued_at - delayed.sent_at == dt.timedelta(days=2)
    assert delayed.good_until == delayed.sent_at
    assert (timed.options, timed.codec) == ({"timeout_ms": 500}, "plain")


@pytest.mark.promise("S3.12")
def test_the_row_contains_the_sent_arguments_and_options() -> None:
    until = timezone.now() + dt.timedelta(hours=1) if timezone.is_aware(timezone.now()) else None
    row = Task.objects.get(pk=tasks.mail.send("a@example.org").task_id)
    assert (row.task_name, row.queue_name, row.lane, row.priority) == (
        tasks.mail.name,
        "mail",
        "sync",
        7,
    )
    assert (row.kwargs, row.status, row.claim_generation, row.retry_count) == (
        {"to": "a@example.org"},
        "PENDING",
        0,
        0,
    )

    sender = tasks.anoop.with_options(queue="bulk", delay=60).with_options(
        priority=3, good_until=until, delay=0
    )
    row = Task.objects.get(pk=sender.send().task_id)
    assert (row.queue_name, row.lane, row.priority, row.good_until) == (
        "bulk",
        "async",
        3,
        until,
    ), "options add up"
    assert row.enqueued_at == row.sent_at

    row = Task.objects.get(pk=tasks.add.send(1, b=2).task_id)
    assert row.kwargs == {"a": 1, "b": 2}, "by name, and without defaults"
    assert tasks.add(2, b=3) == 5
    assert Task.objects.count() == 3, "a call runs it here"


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send at most 50 calls with one statement."""
    monkeypatch.setattr(enqueue, "CHUNK_ROWS", 50)


def calls(*numbers: int) -> list[dict[str, Any]]:
    return [{"a": number} for number in range(*numbers)]


def test_each_statement_of_send_many_has_its_own_moment(chunks: None) -> None:
    """``send_many`` sends all calls in order, and each statement has a moment of its own.

    Fails if: all statements have the same moment, so that scan cursors cannot separate claimed from
    waiting tasks, and each scan reads all dead entries before it.
    """
    with transaction.atomic():
        handles = tasks.add.send_many(calls(120))
        handles.append(tasks.add.send(a=120))

    found = Task.objects.order_by("enqueued_at", "id").values_list("id", "kwargs__a", "enqueued_at")
    assert [(handle.task_id, number) for number, handle in enumerate(handles)] == [
        (id_, a) for id_, a, _ in found
    ]
    assert len({moment for *_, moment in found}) == 4
    assert tasks.add.send_many([]) == []


@pytest.mark.direct
def test_send_many_reads_calls_from_a_cursor_of_its_connection(
    chunks: None,
) -> None:
    """``send_many`` can read its calls in pieces from a query on the same connection."""
    tasks.add.send_many(calls(110))
    rows = Task.objects.order_by("id").values_list("kwargs", flat=True)

    with transaction.atomic():
        handles = tasks.add.send_many(
            {"a": kwargs["a"] + 110} for kwargs in rows.iterator(chunk_size=10)
        )

    assert len(handles) == 110
    assert sorted(kwargs["a"] for kwargs in rows) == list(range(220))


def test_send_many_cuts_by_rows_and_by_size_and_loses_none() -> None:
    template = options.prepare_send(tasks.echo.definition, options.SendOptions(), None)
    for texts, sizes in (
        ([""] * 12_001, [5_000, 5_000, 2_001]),
        (["x" * 6_000_000] * 8, [3, 3, 2]),
        (["x" * 16_777_000, "x" * 1_000, ""], [2, 1]),
        ([], []),
    ):
        chunks = list(
            enqueue.encode_calls(
                tasks.echo.definition, template, [{"text": text} for text in texts]
            )
        )

        assert (
            [len(chunk.ids) for chunk in chunks] == [len(chunk.kwargs) for chunk in chunks] == sizes
        )
        assert [json.loads(text)["text"] for chunk in chunks for text in chunk.kwargs] == texts


@pytest.mark.parametrize("supported", [True, False], ids=["pipeline", "no pipeline"])
def test_a_wrong_late_item_undoes_all_of_send_many(
    supported: bool, chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a late item undoes all of ``send_many``, and the transaction stays usable."""
    monkeypatch.setattr(enqueue.Pipeline, "is_supported", lambda: supported)

    with transaction.atomic():
        tasks.add.send(1)
        for many, said in (
            ([*calls(110), {"a": "one"}, *calls(120)], "item 110: .*add"),
            ([{"a": 1}, {"a": "one"}], "item 1"),
            ([1], "item 0 is int"),
        ):
            with pytest.raises(TaskSendError, match=f"VALIDATION_FAILED.*{said}"):
                tasks.add.send_many(many)
        assert Task.objects.count() == 1

        with (
            refusing.refused("horsies_tasks", "(NEW.kwargs ->> 'a')::int >= 110", "INSERT"),
            pytest.raises(Error, match="refused"),
            transaction.atomic(),
        ):
            tasks.add.send_many(calls(300))

        tasks.add.send_many(calls(120))

    assert Task.objects.count() == 121


REFUSED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "queue": (
        lambda: tasks.add.with_options(queue="mial").send(1),
        ["'mial'", "bulk, default, mail, twin"],
    ),
    "priority 0": (
        lambda: tasks.add.with_options(priority=0).send(1),
        ["priority", "1 (first) to 100"],
    ),
    "priority 101": (
        lambda: tasks.add.with_options(priority=101).send(1),
        ["priority", "1 (first) to 100"],
    ),
    "priority True": (
        lambda: tasks.add.with_options(priority=True).send(1),
        ["priority", "1 (first) to 100"],
    ),
    "time": (lambda: tasks.add.with_options(delay=60).schedule(60, 1), ["the time is given twice"]),
    "type": (lambda: tasks.add.send("one"), ["argument 'a'"]),
    "missing": (lambda: tasks.add.send(), ["missing", "'a'"]),
    "model": (
        lambda: tasks.echo.send(User(pk=7, username="u")),
        ["argument 'text'", "pass text.pk"],
    ),
    "size": (lambda: tasks.echo.send("z" * 50_000_000), ["MAX_PAYLOAD_BYTES", "16,777,216"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_send_does_not_touch_the_transaction(
    what: str,
) -> None:
    """A task that cannot be sent is refused before the transaction is touched."""
    send, words = REFUSED[what]

    with transaction.atomic():
        with pytest.raises(
            TaskSendError, match="PAYLOAD_TOO_LARGE" if what == "size" else "VALIDATION_FAILED"
        ) as caught:
            send()

        assert [word for word in words if word not in str(caught.value)] == []
        assert not Task.objects.exists()


def test_a_large_argument_passes_with_a_warning(
    caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """A large argument is sent with a warning that does not show it; the limit counts bytes."""
    enqueue._warned.clear()
    with caplog.at_level(logging.WARNING, "horsies"):
        tasks.echo.send("y" * 1_100_000)

    assert Task.objects.get().kwargs == {"text": "y" * 1_100_000}
    assert "tests.apps.project.tasks.echo" in caplog.text
    assert "yyy" not in caplog.text

    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 400_000}
    with pytest.raises(TaskSendError, match="PAYLOAD_TOO_LARGE"):
        tasks.echo.send("\N{SNOWMAN}" * 300_000)
    tasks.echo.send("s" * 300_000)


def test_the_async_verbs_send_as_their_sync_twins_do() -> None:
    """The async verbs send like their sync twins, which name them on a running loop."""

    async def view() -> None:
        await tasks.add.asend(1)
        await tasks.add.aschedule(60, 2)
        await tasks.add.asend_many([{"a": 3}, {"a": 4}])
        await tasks.add.with_options(priority=5).asend(5)
        with pytest.raises(TaskSendError, match=r"ASYNC_CONTEXT.*await add\.asend\("):
            tasks.add.send(6)

    async_to_sync(view)()

    assert [
        kwargs["a"] for kwargs in Task.objects.order_by("id").values_list("kwargs", flat=True)
    ] == [1, 2, 3, 4, 5]


def test_a_send_while_apps_load_is_refused_in_that_thread_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A send while apps load or tasks are imported is refused, but only in that thread."""
    with registry.suppressed_sends(), ThreadPoolExecutor(1) as other:
        with pytest.raises(TaskSendError, match="SEND_SUPPRESSED.*Module-level code"):
            tasks.add.send(1)
        assert other.submit(registry.discovering).result(30) is False

    tasks.add.send(1)
    assert Task.objects.count() == 1

    monkeypatch.setattr(apps, "ready", False)
    with pytest.raises(TaskSendError, match="SEND_SUPPRESSED.*still loading"):
        tasks.add.send(1)


@pytest.mark.direct
def test_only_a_lost_database_makes_a_send_retryable(
    connect: Connect,
) -> None:
    """A send is retryable if the database is lost, and not if it refuses the value.

    An example of such a value is a character that the encoding does not have, one of many errors of
    class 22.
    """
    other = connect()

    with (
        refusing.refused("horsies_tasks", event="INSERT", code="22P05"),
        pytest.raises(TaskSendError) as caught,
    ):
        tasks.add.send(1)
    assert (caught.value.code, caught.value.retryable) == ("VALIDATION_FAILED", False)

    with other.transaction(), pytest.raises(TaskSendError) as caught, transaction.atomic():
        other.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
        sql("SET LOCAL lock_timeout = '100ms'")
        tasks.echo.send("a secret")

    said = "the database did not accept the task: canceling statement due to lock timeout"
    assert caught.value.message == said, "neither the statement nor its arguments"

    other.execute("SELECT pg_terminate_backend(%s)", sql("SELECT pg_backend_pid()")[0])
    with pytest.raises(TaskSendError) as caught:
        tasks.add.send(1)
    assert (caught.value.code, caught.value.retryable) == ("ENQUEUE_FAILED", True)
    connection.close()


def test_ids_grow_even_if_the_clock_is_set_back() -> None:
    """Ids grow within a process whatever the clock does.

    Ids of the database contain the time and the number of their origin; pages of the audit are
    ordered by them.
    """
    clockwork = Clockwork()
    clockwork.last = 2**47 << 42  # as after a clock was set back very far
    ids = [clockwork.next() for _ in range(500)] + clockwork.take(500)
    assert ids == sorted(set(ids))
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, uuid.RFC_4122)}

    own = [uuid7() for _ in range(1000)]
    assert own == sorted(set(own))

    with connection.cursor() as cursor:
        now = "extract(epoch FROM clock_timestamp())::float8"
        cursor.execute(f"SELECT {now}, horsies_uuid7(1715004), {now}")
        before, id_, after = cursor.fetchone()

    units = (id_.int >> 80) << 12 | id_.int >> 64 & 0xFFF
    assert before - 1e-6 <= units / 4_096_000 <= after + 1e-6, "to the microsecond"
    assert (id_.version, id_.variant, id_.hex[17:23]) == (7, uuid.RFC_4122, "1a2b3c")


def test_a_task_defined_twice_under_one_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    def first() -> None: ...

    def second() -> None: ...

    task(name="tests.taken")(first)
    with pytest.raises(
        TaskDefinitionError, match=r"two tasks are named 'tests.taken'.*first.*second"
    ):
        task(name="tests.taken")(second)


HOUR = dt.timedelta(hours=1)
LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
SOON = dt.datetime.now(dt.UTC) + HOUR / 2


def row(handle: TaskHandle[Any]) -> Task:
    return Task.objects.get(pk=handle.task_id)


def test_a_delay_and_a_good_until_count_from_the_send() -> None:
    """A delay and a ``good_until`` count from the send, not from the start of the transaction."""
    good = tasks.add.with_options(good_until=HOUR)

    with transaction.atomic():
        sql("SELECT pg_sleep(0.05)")  # the transaction begins well before the sends
        ((before,),) = sql("SELECT clock_timestamp()")
        delayed = [tasks.add.schedule(1, 1), tasks.add.with_options(delay=1).send(1)]
        handles = [good.send(1), good.schedule(60, 1), *good.send_many([{"a": 1}, {"a": 2}])]
        ((after,),) = sql("SELECT clock_timestamp()")

    for handle in delayed:
        assert before <= row(handle).enqueued_at - dt.timedelta(seconds=1) <= after
    for handle in handles:
        assert before <= (row(handle).good_until or before) - HOUR <= after


MOMENT = dt.datetime(2100, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "delay", [3_600, 3_600.0, HOUR, MOMENT], ids=["int", "float", "timedelta", "datetime"]
)
def test_a_delay_option_equals_schedule_for_every_verb(delay: Any) -> None:
    """The option ``delay`` has the same effect as ``schedule()``, for every verb."""
    sender = tasks.add.with_options(delay=delay)

    async def later() -> list[TaskHandle[int]]:
        return [await sender.asend(1, b=2), *await sender.asend_many([{"a": 3}, {"a": 4}])]

    handles = [
        sender.send(1, b=2),
        *sender.send_many([{"a": 3}, {"a": 4}]),
        *async_to_sync(later)(),
    ]
    expected = row(tasks.add.schedule(delay, 1))

    for handle in handles:
        found = row(handle)
        if isinstance(delay, dt.datetime):
            assert aware(found.enqueued_at) == aware(expected.enqueued_at) == MOMENT
        else:
            assert (
                found.enqueued_at - found.sent_at == expected.enqueued_at - expected.sent_at == HOUR
            )

    assert row(handles[0]).kwargs == {"a": 1, "b": 2}


OVER = "is not after the time at which the task is due"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"good_until": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)},
            "good_until=2020-01-01T00:00:00.00:00 is in the past",
        ),
        (
            {"good_until": HOUR, "delay": HOUR},
            f"good_until=1:00:00 {OVER}, 1:00:00: the task could never run",
        ),
        ({"good_until": HOUR, "delay": LATER}, f"good_until=1:00:00 {OVER}, 2100-01-01"),
        (
            {"good_until": LATER, "delay": LATER},
            f"good_until=2100-01-01 00:00:00.00:00 {OVER}, 2100",
        ),
        ({"good_until": SOON, "delay": HOUR}, f"good_until=.* {OVER}"),
    ],
)
def test_a_task_that_could_never_run_is_refused(options: dict[str, Any], words: str) -> None:
    """Fails if: the task is sent, and expires in silence."""
    sender = tasks.add.with_options(**options)

    for send in (lambda: sender.send(1), lambda: sender.send_many([{"a": 1}])):
        with pytest.raises(
            TaskSendError, match=f"VALIDATION_FAILED.*tests.apps.project.tasks.add: {words}"
        ):
            send()

    assert not Task.objects.exists()
    with travel(dt.datetime(2019, 1, 1, tzinfo=dt.UTC)):
        assert tasks.add.with_options(good_until=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).send(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": -1}, "delay=-1 day, 23:59:59 must be from 0 seconds to 100 years"),
        ({"delay": dt.timedelta(days=40_000)}, "100 years in the future"),
        ({"delay": 1e300}, "delay=1e\\+300 is not a valid number of seconds"),
        ({"delay": float("nan")}, "delay=nan is not a valid number of seconds"),
        ({"delay": "soon"}, "delay must be seconds, a timedelta or an aware datetime, not str"),
        ({"delay": dt.datetime(2030, 1, 1)}, "delay=2030-01-01T00:00:00 has no time zone"),
        ({"good_until": dt.timedelta(0)}, "good_until=0:00:00 must be more than 0 seconds"),
        ({"good_until": dt.timedelta.max}, "at most 100 years from now"),
        ({"good_until": 60}, "good_until must be an aware datetime or a timedelta, not int"),
        (
            {"good_until": dt.datetime(2030, 1, 1)},
            "good_until=2030-01-01T00:00:00 has no time zone",
        ),
    ],
)
def test_a_moment_among_the_options_that_cannot_be_is_refused(
    options: dict[str, Any], words: str
) -> None:
    sender = tasks.add.with_options(**options)

    async def later() -> None:
        await sender.asend(1)

    for send in (
        lambda: sender.send(1),
        lambda: sender.send_many([{"a": 1}]),
        async_to_sync(later),
    ):
        with pytest.raises(
            TaskSendError, match=f"VALIDATION_FAILED.*tests.apps.project.tasks.add: .*{words}"
        ):
            send()

    if "delay" in options:
        with pytest.raises(TaskSendError, match=words.removeprefix("delay")):
            tasks.add.schedule(options["delay"], 1)

    assert not Task.objects.exists()
