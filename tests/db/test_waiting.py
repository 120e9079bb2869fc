"""Waiting for results: no wait hangs, no wake-up is lost, all waits share one connection, and
nonsense in notifications does no harm.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import selectors
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from horsies_django import TaskError, TaskNotCommitted, TaskResult, get_handle
from horsies_django.conf import config
from horsies_django.core.records import Outcome
from horsies_django.models import Task, Waiter
from horsies_django.store.tasks import Found
from horsies_django.tasks import result_listener
from horsies_django.tasks.result_listener import ResultListener, Update
from tests.apps.project import tasks
from tests.conftest import Claimer, Claimers, put, sql, wait_until
from tests.db.conftest import Aside
from tests.support.payloads import HOSTILE, sendable


def finish(worker: Claimer, *results: str, code: str | None = None) -> None:
    """Complete all tasks with these results, or end them as failed with a code."""
    status = "COMPLETED" if code is None else "FAILED"
    claims = worker.run_pass(sync=100, async_=100).claims
    ends = zip(claims, results or ['{"ok": 3}'] * len(claims), strict=True)
    worker.run_pass(
        outcomes=[Outcome(one.id, one.generation, status, result, code) for one, result in ends]
    )


def connections_of(name: str) -> int:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name "
        "= %s"
    )
    return len(sql(query, [name]))


@pytest.fixture
def waiter(aside: Aside) -> Future[TaskResult[Any]]:
    """Give the future of a thread that waits for a task and has registered its process."""
    made = aside(tasks.add.send(1).get, 60_000)
    wait_until(Waiter.objects.exists, "the process says that it waits")
    return made


@pytest.mark.promise("S3.13")
def test_a_stored_result_needs_no_waiting_connection(
    claimer: Claimers, django_assert_num_queries: Any
) -> None:
    """A stored result needs no waiting connection, and the handle keeps it."""
    handle = tasks.add.send(1)
    finish(claimer())

    assert handle.get() == TaskResult(ok=3)
    assert connections_of("horsies waiting") == 0

    with django_assert_num_queries(0):
        assert handle.get() == TaskResult(ok=3)


def test_a_timeout_is_not_kept_and_ends_the_wait(
    claimer: Claimers,
) -> None:
    """A timeout is an error that the handle does not keep, and it ends the wait."""
    handle = tasks.add.send(1)

    for timeout in (50, 0, dt.timedelta(milliseconds=20)):
        assert handle.get(timeout).err_value.error_code == "WAIT_TIMEOUT"
        assert async_to_sync(handle.aget)(timeout).err_value.error_code == "WAIT_TIMEOUT"

    wait_until(lambda: connections_of("horsies waiting") == 0, "the connection is closed")
    assert not Waiter.objects.exists()

    finish(claimer())
    assert handle.get(0) == TaskResult(ok=3)


def test_an_id_without_a_task_returns_task_not_found_at_once(claimer: Claimers) -> None:
    handle = get_handle(uuid.uuid4())

    assert handle.get(None).err_value.error_code == "TASK_NOT_FOUND"
    assert async_to_sync(handle.aget)(None).err_value.error_code == "TASK_NOT_FOUND"
    assert handle.info() is None


def test_an_invalid_id_or_timeout_is_refused() -> None:
    """An id that is no UUID and a timeout that is no duration are refused."""
    for bad in ("", "7", None, 12, "x" * 5000):
        with pytest.raises(ValueError, match="is not a task id"):
            get_handle(bad)

    for timeout, error in (
        (-1, ValueError),
        (float("nan"), ValueError),
        (True, TypeError),
        ("1", TypeError),
    ):
        with pytest.raises(error, match="timeout_ms"):
            get_handle(uuid.uuid4()).get(timeout)


def test_waiting_for_a_task_of_the_open_transaction_raises() -> None:
    """Waiting for a task of the own open transaction raises at once."""
    with transaction.atomic():
        handle = tasks.add.send(1)
        for get in (handle.get, async_to_sync(handle.aget)):
            with pytest.raises(TaskNotCommitted, match=r"horsies_django\.testing\.drain\(\)"):
                get(None)

    assert handle.get(20).err_value.error_code == "WAIT_TIMEOUT"


def test_many_waits_share_one_connection(claimer: Claimers, aside: Aside) -> None:
    """Many waits share one connection, and each gets its own result."""
    waiters = [aside(tasks.add.send(number).get, 60_000) for number in range(8)]
    wait_until(lambda: len(result_listener.get_listener().callers) == 8, "all eight wait")
    assert wait_until(lambda: connections_of("horsies waiting"), "they are connected") == 1

    finish(claimer(), *(f'{{"ok": {index}}}' for index in range(8)))

    assert [waiter.result(30).ok_value for waiter in waiters] == list(range(8))


def cut(condition: str) -> None:
    """Cut connections, like a server that shuts down."""
    sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        f"AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition}"
    )


@pytest.mark.parametrize(
    "which", ["application_name = 'horsies waiting'", "true"], ids=["waiting", "all others"]
)
def test_a_waiting_connection_that_is_cut_is_no_end_of_waiting(
    claimer: Claimers, waiter: Future[Any], which: str
) -> None:
    cut(which)
    finish(claimer())

    assert waiter.result(30) == TaskResult(ok=3)


def test_a_wait_in_a_transaction_ends_with_its_connection(
    aside: Aside,
) -> None:
    """A wait in a transaction ends with its connection, because the transaction is lost."""
    handle = tasks.add.send(1)
    waiting = aside(transaction.atomic(handle.get), 60_000)
    wait_until(Waiter.objects.exists, "the process says that it waits")

    cut("true")

    with pytest.raises(OperationalError):
        waiting.result(30)


def test_polling_carries_on_without_a_waiting_connection(
    claimer: Claimers, aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polling continues if no waiting connection can be opened."""
    connect = psycopg.connect

    def full_for_waiting(**params: Any) -> Any:
        if params.get("application_name") == "horsies waiting":
            raise psycopg.OperationalError("sorry, too many clients already")
        return connect(**params)

    monkeypatch.setattr(psycopg, "connect", full_for_waiting)
    waiting = aside(tasks.add.send(1).get, 60_000)
    finish(claimer())

    assert waiting.result(30) == TaskResult(ok=3)
    assert tasks.add.send(1).get(100).err_value.error_code == "WAIT_TIMEOUT"


def test_aget_waits_without_blocking_the_loop(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    worker = claimer()

    async def view() -> tuple[TaskResult[int], int]:
        ticks = 0
        waiter = asyncio.ensure_future(handle.aget())

        while not waiter.done():
            ticks += 1
            if ticks == 5:
                await asyncio.to_thread(finish, worker)
            await asyncio.sleep(0)

        return waiter.result(), ticks

    result, ticks = async_to_sync(view)()

    assert result == TaskResult(ok=3)
    assert ticks >= 5


def test_get_on_a_running_loop_names_aget() -> None:
    handle = get_handle(uuid.uuid4())

    async def view() -> None:
        handle.get()

    with pytest.raises(RuntimeError, match="await handle.aget"):
        asyncio.run(view())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_opens_a_waiting_connection_of_its_own(
    claimer: Claimers, waiter: Future[Any]
) -> None:
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, b"0" if result_listener._listeners else b"1")
        os._exit(0)

    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"

    finish(claimer())
    assert waiter.result(30) == TaskResult(ok=3)  # the parent's connection survived the child


def test_another_process_gets_a_typed_result_by_id(
    claimer: Claimers,
) -> None:
    """Another process gets a typed result by id; a result of another type is an error."""
    handle = tasks.mirror.send(tasks.Point(1, 2))
    odd = tasks.mirror.send(tasks.Point(1, 2))
    finish(claimer(), '{"ok": {"x": 2, "y": 1}}', '{"ok": "not a point"}')

    assert tasks.mirror.handle(str(handle.task_id)).get() == TaskResult(ok=tasks.Point(2, 1))
    assert get_handle(handle.task_id).get() == TaskResult(ok={"x": 2, "y": 1})
    assert odd.get().err_value.error_code == "RESULT_DESERIALIZATION_ERROR"


@pytest.mark.promise("S3.13")
def test_the_error_of_a_task_comes_back_with_its_code_and_data(claimer: Claimers) -> None:
    handle = tasks.mail.send("nobody")
    envelope = (
        '{"err": {"error_code": "NO_ADDRESS", "message": "m", "data": {"to": "nobody"}, '
        '"exception": null}}'
    )
    finish(claimer(mail=1), envelope, code="NO_ADDRESS")

    assert handle.get() == TaskResult(err=TaskError("NO_ADDRESS", "m", data={"to": "nobody"}))

    (expired,) = put(good_until=dt.datetime.now(dt.UTC))
    claimer().run_pass(sync=1)
    assert get_handle(expired).get().err_value.error_code == "TASK_EXPIRED"


def test_info_returns_the_row_and_its_attempts(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    info = handle.info()

    assert (info.status, info.task_name, info.attempts) == (
        "PENDING",
        "tests.apps.project.tasks.add",
        (),
    )

    worker = claimer()
    finish(worker)
    info = async_to_sync(handle.ainfo)()

    assert (info.status, info.worker_id, info.result) == ("COMPLETED", worker.id, {"ok": 3})
    assert [(attempt.attempt, attempt.outcome) for attempt in info.attempts] == [(1, "COMPLETED")]
    assert Task.objects.get().finished_at == info.finished_at


def test_the_connection_outlives_the_last_wait_by_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outside tests the connection outlives the last wait by a minute."""
    from django.test.utils import _TestState

    assert result_listener.linger_seconds() == 0.0
    monkeypatch.delattr(_TestState, "saved_data")
    assert result_listener.linger_seconds() == 60.0


FOR_EVER = 3_600.0


@pytest.fixture
def no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch renewals off, because they check every task as well."""
    monkeypatch.setattr(result_listener, "RENEW_SECONDS", FOR_EVER)


@contextmanager
def looked_for(poll_seconds: float) -> Iterator[None]:
    """Wait for a task that ends in the block, after the listener checked it twice.

    After the block, check that the answer arrives.
    """
    resilience = replace(config().resilience, notify_poll_interval_ms=int(poll_seconds * 1000))
    (id_,) = put()
    news = list[Update]()

    with ResultListener(replace(config(), resilience=resilience)).expecting(id_, news.append):
        wait_until(lambda: len(news) >= 2, "it looks when somebody comes, and shortly after")
        assert [item.status for item in news if isinstance(item, Found)] == ["PENDING"] * len(news)

        yield

        wait_until(
            lambda: isinstance(news[-1], Exception) or news[-1].status == "COMPLETED",
            "there is an answer",
        )

    assert isinstance(news[-1], Found)


@pytest.mark.usefixtures("no_renewal")
@pytest.mark.promise("S3.9", "S3.13")
def test_a_task_that_ends_after_the_second_check_is_not_polled(claimer: Claimers) -> None:
    """The end of a task after the second check arrives by notification, without a poll."""
    with looked_for(FOR_EVER):
        finish(claimer())


@pytest.mark.usefixtures("no_renewal")
@pytest.mark.promise("S3.13")
def test_a_result_that_is_not_announced_is_found_by_the_poll(claimer: Claimers) -> None:
    """A result that is not announced is found by the poll, without a renewal."""
    with looked_for(0.2):
        Waiter.objects.all().delete()  # now no worker announces results
        finish(claimer())


@pytest.mark.usefixtures("no_renewal")
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example([text for text in HOSTILE if text.isprintable()])
@given(st.lists(sendable, min_size=1, max_size=12))
def test_hostile_notifications_hide_no_finished_task(claimer: Claimers, said: list[str]) -> None:
    worker = claimer()

    with looked_for(FOR_EVER):
        for payload in said:
            worker.conn.execute("SELECT pg_notify(%s, %s)", [worker.channel + "_done", payload])
        finish(worker)

    worker.conn.close()


def one_wait(aside: Aside, claimer: Claimers) -> TaskResult[Any]:
    """Wait for a task that finishes during the wait, and return the result."""
    made = aside(tasks.add.send(1).get, 60_000)
    wait_until(Waiter.objects.exists, "the process says that it waits")
    finish(claimer())
    return made.result(30)


@pytest.mark.parametrize("part", ["socketpair", "selector", "thread"])
def test_a_process_out_of_descriptors_or_threads_waits_again(
    claimer: Claimers, aside: Aside, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Fails if: the waiting thread ends for good, so that each later wait times out."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise (
            RuntimeError("can't start new thread")
            if part == "thread"
            else OSError(24, "Too many open files")
        )

    handle = tasks.add.send(1)
    with monkeypatch.context() as patched:
        owner, name = {
            "socketpair": (socket, "socketpair"),
            "selector": (selectors, "DefaultSelector"),
            "thread": (threading.Thread, "start"),
        }[part]
        patched.setattr(owner, name, refuse)
        assert handle.get(300).err_value.error_code == "WAIT_TIMEOUT"

    finish(claimer())
    assert one_wait(aside, claimer) == TaskResult(ok=3)


def test_a_loop_closed_under_a_wait_ends_no_other_wait(claimer: Claimers) -> None:
    """Fails if: the thread ends at the error of a caller whose loop is closed, or that caller stays
    for ever.
    """
    (abandoned,) = put()
    (other,) = put()
    news = list[Update]()
    listener = ResultListener(config())
    loop = asyncio.new_event_loop()
    loop.close()

    def tell(item: Update) -> None:
        loop.call_soon_threadsafe(news.append, item)

    with listener.expecting(other, news.append), listener.expecting(abandoned, tell):
        wait_until(lambda: abandoned not in listener.callers, "the caller is removed")
        thread = listener.thread
        finish(claimer())
        wait_until(
            lambda: isinstance(news[-1], Found) and news[-1].status == "COMPLETED",
            "the other one is told",
        )

    assert listener.thread in (thread, None)
