"""Send: part of the caller's transaction, checked before anything is written, heard by workers at the commit."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import Error, connection, transaction
from django.utils import timezone

from horsies_django import TaskSendError, task
from horsies_django.core.records import NewTasks
from horsies_django.models import Task
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import enqueue, options, registry
from horsies_django.tasks.ids import Clockwork, uuid7
from tests.apps.project import tasks
from tests.support import refusing

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]


def count_seen_by(other: psycopg.Connection[Any]) -> int:
    return int(other.execute("SELECT count(*) FROM horsies_tasks").fetchone()[0])


@pytest.mark.promise("S3.1", "S3.4")
def test_a_task_exists_exactly_when_the_senders_transaction_commits(connect: Connect) -> None:
    other = connect()
    with transaction.atomic():
        tasks.add.send(1)
        assert Task.objects.count() == 1
        assert count_seen_by(other) == 0
    assert count_seen_by(other) == 1


def test_a_rollback_takes_the_task_with_it() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        Group.objects.create(name="with the task")
        tasks.add.send(1)
        raise RuntimeError
    assert not Task.objects.exists()
    assert not Group.objects.exists()


def test_a_rollback_to_a_savepoint_takes_only_what_was_sent_after_it() -> None:
    with transaction.atomic():
        tasks.add.send(1)
        with pytest.raises(RuntimeError), transaction.atomic():
            tasks.add.send(2)
            raise RuntimeError
    assert Task.objects.get().kwargs == {"a": 1}


@pytest.mark.promise("S3.4", "S3.9")
def test_one_notification_per_queue_and_transaction_arrives_at_the_commit(connect: Connect) -> None:
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
def test_every_option_is_stored_whether_parameters_are_bound_by_the_driver_or_by_the_server(
    server_side_binding: bool,
) -> None:
    aware = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    other = connection.copy()
    other.settings_dict["OPTIONS"] = {**connection.settings_dict["OPTIONS"], "server_side_binding": server_side_binding}
    common: dict[str, Any] = {
        "task_name": "x",
        "queue_name": "default",
        "lane": "sync",
        "priority": 7,
        "kwargs": ["{}"],
    }
    try:
        store = TaskStore(other)
        table = store.send(
            NewTasks(**common, ids=[uuid7()], due_at=aware, good_for=dt.timedelta(days=36_500), max_retries=3)
        )
        store.send(NewTasks(**common, ids=[uuid7()], delay=dt.timedelta(days=2), good_until=aware, now=aware), table)
        store.send_timed(NewTasks(**common, ids=[uuid7()], options='{"timeout_ms": 500}', codec="plain"), table)
    finally:
        other.close()
    due, delayed, timed = Task.objects.order_by("id").values()
    assert due["priority"] == 7
    assert due["max_retries"] == 3
    assert due["good_until"] > due["enqueued_at"]
    assert delayed["enqueued_at"] - delayed["sent_at"] == dt.timedelta(days=2)
    assert delayed["good_until"] == delayed["sent_at"]
    assert timed["options"] == {"timeout_ms": 500}
    assert timed["codec"] == "plain"


@pytest.mark.promise("S3.12")
def test_the_row_carries_what_was_sent() -> None:
    until = timezone.now() + dt.timedelta(hours=1) if timezone.is_aware(timezone.now()) else None
    handle = tasks.mail.send("a@example.org")
    row = Task.objects.get(pk=handle.task_id)
    assert (row.task_name, row.queue_name, row.lane, row.priority) == (
        "tests.apps.project.tasks.mail",
        "mail",
        "sync",
        7,
    )
    assert (row.kwargs, row.status, row.claim_generation, row.retry_count) == ({"to": "a@example.org"}, "PENDING", 0, 0)
    other = tasks.anoop.with_options(queue="bulk", priority=3, good_until=until).send()
    row = Task.objects.get(pk=other.task_id)
    assert (row.queue_name, row.lane, row.priority, row.good_until) == ("bulk", "async", 3, until)


def test_positional_and_named_arguments_travel_by_name_and_defaults_do_not() -> None:
    tasks.add.send(1, b=2)
    tasks.add.send(a=1)
    assert list(Task.objects.order_by("id").values_list("kwargs", flat=True)) == [{"a": 1, "b": 2}, {"a": 1}]


def test_send_many_sends_all_in_order_or_none() -> None:
    handles = tasks.add.send_many([{"a": number} for number in range(12_000)])
    stored = list(Task.objects.order_by("id").values_list("id", "kwargs"))
    assert [handle.task_id for handle in handles] == [id_ for id_, _ in stored]
    assert [kwargs["a"] for _, kwargs in stored] == list(range(12_000))
    Task.objects.all().delete()
    with pytest.raises(TaskSendError, match="item 1") as caught:
        tasks.add.send_many([{"a": 1}, {"a": "one"}])
    assert caught.value.code == "VALIDATION_FAILED"
    with pytest.raises(TaskSendError, match="item 0 is int"):
        tasks.add.send_many([1])  # type: ignore[list-item]
    assert tasks.add.send_many([]) == []
    assert not Task.objects.exists()


def test_send_many_cuts_by_rows_and_by_size_and_loses_none() -> None:
    def sizes(calls: list[dict[str, str]]) -> list[int]:
        template = options.prepare(tasks.echo.definition, options.SendOptions(), None)
        chunks = list(enqueue.encoded(tasks.echo.definition, template, calls))
        assert [len(chunk.ids) for chunk in chunks] == [len(chunk.kwargs) for chunk in chunks]
        assert [text for chunk in chunks for text in chunk.kwargs] == [
            json.dumps(call, separators=(",", ":")) for call in calls
        ]
        return [len(chunk.ids) for chunk in chunks]

    assert sizes([{"text": ""}] * 12_001) == [5_000, 5_000, 2_001]
    assert sizes([{"text": "x" * 6_000_000}] * 8) == [3, 3, 2]
    assert sizes([{"text": "x" * 16_777_000}, {"text": "x" * 1_000}, {"text": ""}]) == [2, 1]
    assert sizes([]) == []


def test_the_tasks_of_a_large_transaction_do_not_share_one_moment() -> None:
    """Else scan cursors could not tell apart what is claimed from what waits: each scan would read all dead entries before it."""
    with transaction.atomic():
        tasks.add.send_many([{"a": number} for number in range(enqueue.CHUNK + 1)])
        tasks.add.send(a=enqueue.CHUNK + 1)
    found = Task.objects.order_by("enqueued_at", "id").values_list("kwargs__a", "enqueued_at")
    assert [number for number, _ in found] == list(range(enqueue.CHUNK + 2))
    assert len({moment for _, moment in found}) == 3


def test_calls_may_come_from_a_query_on_the_same_connection_that_is_read_in_pieces() -> None:
    tasks.add.send_many([{"a": number} for number in range(11_000)])
    rows = Task.objects.order_by("id").values_list("kwargs", flat=True)
    with transaction.atomic():
        handles = tasks.add.send_many({"a": kwargs["a"] + 11_000} for kwargs in rows.iterator(chunk_size=100))
    assert len(handles) == 11_000
    assert sorted(kwargs["a"] for kwargs in rows) == list(range(22_000))


@pytest.mark.parametrize("supported", [True, False], ids=["pipeline", "no pipeline"])
def test_what_is_wrong_with_a_late_item_of_many_undoes_all_and_leaves_the_transaction_usable(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue.Pipeline, "is_supported", lambda: supported)
    calls: list[dict[str, Any]] = [{"a": number} for number in range(12_000)]
    with transaction.atomic():
        tasks.add.send(1)
        with pytest.raises(TaskSendError, match="item 11000: .*add") as caught:
            tasks.add.send_many([*calls[:11_000], {"a": "one"}, *calls])
        assert caught.value.code == "VALIDATION_FAILED"
        assert Task.objects.count() == 1
        tasks.add.send_many(calls)
    assert Task.objects.count() == 12_001


@pytest.mark.parametrize("supported", [True, False], ids=["pipeline", "no pipeline"])
def test_what_the_database_refuses_of_many_undoes_all_and_is_told(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue.Pipeline, "is_supported", lambda: supported)
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE horsies_tasks ADD CONSTRAINT nothing_large CHECK ((kwargs ->> 'a')::int < 11000) NOT VALID"
        )
    try:
        with transaction.atomic(), pytest.raises(Error, match="nothing_large"):
            tasks.add.send_many([{"a": number} for number in range(30_000)])
        assert not Task.objects.exists()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT nothing_large")


def test_schedule_counts_a_delay_from_now_and_takes_aware_moments() -> None:
    moment = dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    by_seconds = tasks.add.schedule(90, 1)
    by_delta = tasks.add.schedule(dt.timedelta(hours=1), 1)
    by_moment = tasks.add.schedule(moment, 1)
    delays = [
        (row.enqueued_at - row.sent_at).total_seconds()
        for row in (Task.objects.get(pk=handle.task_id) for handle in (by_seconds, by_delta))
    ]
    assert delays == [pytest.approx(90, abs=1), pytest.approx(3600, abs=1)]
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM enqueued_at) FROM horsies_tasks WHERE id = %s", [by_moment.task_id])
        assert cursor.fetchone()[0] == moment.timestamp()


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (-1, "in the future"),
        (dt.timedelta(days=40_000), "in the future"),
        (float("nan"), "not a valid number of seconds"),
        (True, "bool"),
        ("soon", "str"),
        (dt.datetime(2030, 1, 1), "no time zone"),
    ],
)
def test_a_moment_that_cannot_be_is_refused(when: Any, words: str) -> None:
    with pytest.raises(TaskSendError, match=words) as caught:
        tasks.add.schedule(when, 1)
    assert caught.value.code == "VALIDATION_FAILED"
    assert not caught.value.retryable
    assert not Task.objects.exists()


def refused(send: Callable[[], Any], code: str, *words: str) -> None:
    with transaction.atomic():
        with pytest.raises(TaskSendError) as caught:
            send()
        assert caught.value.code == code
        for word in words:
            assert word in str(caught.value)
        assert not Task.objects.exists()  # the caller's transaction is still usable, and nothing was written


def test_a_naive_good_until_is_refused() -> None:
    naive = dt.datetime(2030, 1, 1)
    refused(lambda: tasks.add.with_options(good_until=naive).send(1), "VALIDATION_FAILED", "good_until", "no time zone")


def test_an_unknown_queue_is_refused_naming_the_declared_ones() -> None:
    refused(
        lambda: tasks.add.with_options(queue="mial").send(1), "VALIDATION_FAILED", "'mial'", "bulk, default, mail, twin"
    )


@pytest.mark.parametrize("priority", [0, 101, True, "1"])
def test_a_priority_outside_1_to_100_is_refused(priority: Any) -> None:
    refused(
        lambda: tasks.add.with_options(priority=priority).send(1), "VALIDATION_FAILED", "priority", "1 (first) to 100"
    )


def test_an_argument_that_does_not_fit_is_refused_with_its_name() -> None:
    refused(lambda: tasks.add.send("one"), "VALIDATION_FAILED", "argument 'a'")  # type: ignore[arg-type]
    refused(lambda: tasks.echo.send(object()), "VALIDATION_FAILED", "argument 'text'")  # type: ignore[arg-type]
    refused(lambda: tasks.add.send(), "VALIDATION_FAILED", "a")  # type: ignore[call-arg]
    refused(lambda: tasks.add.send(1, c=2), "VALIDATION_FAILED", "c")  # type: ignore[call-arg]


@pytest.mark.parametrize("text", ["nul \x00 byte", "lone \ud800 surrogate"])
def test_text_that_postgresql_cannot_hold_is_refused_with_the_arguments_name(text: str) -> None:
    refused(lambda: tasks.echo.send(text), "VALIDATION_FAILED", "argument 'text'")


def test_a_model_instance_is_refused_with_what_to_pass_instead() -> None:
    user = User(pk=7, username="u")
    refused(lambda: tasks.echo.send(user), "VALIDATION_FAILED", "argument 'text'", "pass text.pk")  # type: ignore[arg-type]


def test_a_large_argument_passes_with_a_warning_that_does_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    enqueue._warned.clear()
    with caplog.at_level(logging.WARNING, "horsies"):
        tasks.echo.send("y" * 1_100_000)
    assert Task.objects.get().kwargs == {"text": "y" * 1_100_000}
    assert "tests.apps.project.tasks.echo" in caplog.text
    assert "yyy" not in caplog.text


def test_an_argument_beyond_the_limit_is_refused() -> None:
    refused(lambda: tasks.echo.send("z" * 50_000_000), "PAYLOAD_TOO_LARGE", "MAX_PAYLOAD_BYTES", "16,777,216")


def test_the_limit_counts_bytes_and_not_characters(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 400_000}
    refused(lambda: tasks.echo.send("\N{SNOWMAN}" * 300_000), "PAYLOAD_TOO_LARGE")
    tasks.echo.send("s" * 300_000)
    assert Task.objects.count() == 1


def test_a_send_on_a_running_loop_names_its_async_twin() -> None:
    async def view() -> None:
        tasks.add.send(1)

    with pytest.raises(TaskSendError, match=r"await add\.asend\(") as caught:
        asyncio.run(view())
    assert caught.value.code == "ASYNC_CONTEXT"


def test_the_async_verbs_send_as_their_twins_do() -> None:
    from asgiref.sync import async_to_sync

    async def view() -> None:
        await tasks.add.asend(1)
        await tasks.add.aschedule(60, 2)
        await tasks.add.asend_many([{"a": 3}, {"a": 4}])
        await tasks.add.with_options(priority=5).asend(5)

    async_to_sync(view)()
    assert [kwargs["a"] for kwargs in Task.objects.order_by("id").values_list("kwargs", flat=True)] == [1, 2, 3, 4, 5]


def test_a_send_while_apps_load_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "ready", False)
    with pytest.raises(TaskSendError, match="still loading") as caught:
        tasks.add.send(1)
    assert caught.value.code == "SEND_SUPPRESSED"


def test_a_send_while_task_modules_are_imported_is_refused_in_that_thread_only() -> None:
    with registry.suppressed_sends():
        refused(lambda: tasks.add.send(1), "SEND_SUPPRESSED", "Module-level code")
        other = threading.Thread(target=lambda: seen.append(registry.discovering()))
        seen: list[bool] = []
        other.start()
        other.join()
        assert seen == [False]
    tasks.add.send(1)
    assert Task.objects.count() == 1


def test_a_database_that_is_gone_is_a_send_error_that_may_be_retried() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in PLAIN}) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
    with pytest.raises(TaskSendError) as caught:
        tasks.add.send(1)
    assert (caught.value.code, caught.value.retryable) == ("ENQUEUE_FAILED", True)
    connection.close()


def test_a_value_that_the_database_cannot_take_is_a_send_error_that_is_not_to_be_retried() -> None:
    """As a character that its encoding does not have, which is one error of class 22 of many."""
    with refusing.refused("horsies_tasks", event="INSERT", code="22P05"), pytest.raises(TaskSendError) as caught:
        tasks.add.send(1)
    assert (caught.value.code, caught.value.retryable) == ("VALIDATION_FAILED", False)


def test_what_the_database_says_comes_without_the_statement_and_its_arguments(
    connect: Connect,
) -> None:
    other = connect()
    with other.transaction(), pytest.raises(TaskSendError) as caught, transaction.atomic():
        other.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '100ms'")
        tasks.echo.send("a secret")
    assert caught.value.message == "the database did not accept the task: canceling statement due to lock timeout"


PLAIN = {"dbname", "user", "password", "host", "port"}


def test_calling_a_task_runs_it_here_without_the_queue() -> None:
    assert tasks.add(2, b=3) == 5
    assert not Task.objects.exists()


def test_ids_grow_within_a_process_whatever_the_clock_does() -> None:
    clockwork = Clockwork()
    clockwork.last = 2**47 << 42  # a clock that was set back far behind
    ids = [clockwork.next() for _ in range(500)] + clockwork.take(500)
    assert ids == sorted(set(ids))
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, "specified in RFC 4122")}
    threads_ids = [uuid7() for _ in range(1000)]
    assert threads_ids == sorted(set(threads_ids))


def test_a_task_defined_twice_under_one_name_is_refused() -> None:
    from horsies_django import TaskDefinitionError

    @task(name="tests.taken")
    def first() -> None: ...

    with pytest.raises(TaskDefinitionError, match=r"two tasks are named 'tests.taken'.*first.*second"):

        @task(name="tests.taken")
        def second() -> None: ...

    registry._tasks.pop("tests.taken")
    assert first.name == "tests.taken"


def test_an_id_that_the_database_makes_tells_its_time_to_the_microsecond_and_then_its_place() -> None:
    """The pages of the audit are ordered by it."""
    with connection.cursor() as cursor:
        now = "extract(epoch FROM clock_timestamp())::float8"
        cursor.execute(f"SELECT {now}, horsies_uuid7(1715004), {now}")
        before, id_, after = cursor.fetchone()
    units = (id_.int >> 80) << 12 | id_.int >> 64 & 0xFFF
    assert before - 1e-6 <= units / 4_096_000 <= after + 1e-6
    assert (id_.version, id_.variant, id_.hex[17:23]) == (7, uuid.RFC_4122, "1a2b3c")
