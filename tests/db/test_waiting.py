"""Waiting for results: never a hang, never a lost wake-up, one connection however many wait."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, transaction

from horsies_django import (
    TaskError,
    TaskNotCommitted,
    TaskResult,
    get_handle,
)
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task, Waiter
from horsies_django.tasks import result_listener
from tests.apps.project import tasks
from tests.conftest import Claimer, put, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]


def finish(worker: Claimer, status: str = "COMPLETED", result: str = '{"ok": 3}') -> list[Claim]:
    claims = worker.run_pass(sync=100, async_=100).claims
    code = "NO_ADDRESS" if status == "FAILED" else None
    worker.run_pass(outcomes=[Outcome(claim.id, claim.generation, status, result, code) for claim in claims])
    return claims


def connections_of(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s", [name]
        )
        return int(cursor.fetchone()[0])


class Waiting(threading.Thread):
    """A thread in get()."""

    def __init__(self, handle: Any, timeout_ms: int | None = 60_000) -> None:
        super().__init__(daemon=True)
        self.handle, self.timeout_ms = handle, timeout_ms
        self.result: TaskResult[Any] | None = None
        self.start()

    def run(self) -> None:
        from django.db import connections

        try:
            self.result = self.handle.get(self.timeout_ms)
        finally:
            connections.close_all()

    def answer(self) -> TaskResult[Any]:
        self.join(30)
        assert self.result is not None
        return self.result


@pytest.mark.promise("S3.13")
def test_a_waiting_get_returns_when_the_task_is_settled(claimer: Claimers) -> None:
    waiter = Waiting(tasks.add.send(1))
    wait_until(Waiter.objects.exists, "the process says that it waits")
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)


@pytest.mark.promise("S3.13")
def test_a_result_that_is_there_already_needs_no_waiting_connection(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    finish(claimer())
    assert handle.get() == TaskResult(ok=3)
    assert connections_of("horsies waiting") == 0


@pytest.mark.promise("S3.13")
def test_a_final_result_is_kept_and_returned_without_the_database(
    claimer: Claimers, django_assert_num_queries: Any
) -> None:
    handle = tasks.add.send(1)
    finish(claimer())
    handle.get()
    with django_assert_num_queries(0):
        assert handle.get() == TaskResult(ok=3)


def test_a_timeout_is_an_error_that_is_not_kept(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    assert handle.get(50).err_value.error_code == "WAIT_TIMEOUT"
    assert handle.get(0).err_value.error_code == "WAIT_TIMEOUT"
    finish(claimer())
    assert handle.get(0) == TaskResult(ok=3)


def test_an_id_that_does_not_exist_is_told_at_once(claimer: Claimers) -> None:
    handle = get_handle(uuid.uuid4())
    assert handle.get(None).err_value.error_code == "TASK_NOT_FOUND"
    assert async_to_sync(handle.aget)(None).err_value.error_code == "TASK_NOT_FOUND"
    assert handle.info() is None


@pytest.mark.parametrize("bad", ["", "7", None, 12, "x" * 5000])
def test_an_id_that_is_no_uuid_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="is not a task id"):
        get_handle(bad)


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), (float("nan"), ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_timeout_that_is_no_time_is_refused(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout_ms"):
        get_handle(uuid.uuid4()).get(timeout)


def test_a_timeout_may_be_a_timedelta() -> None:
    assert tasks.add.send(1).get(dt.timedelta(milliseconds=20)).err_value.error_code == "WAIT_TIMEOUT"


def test_waiting_for_a_task_of_the_own_open_transaction_raises_at_once() -> None:
    with transaction.atomic():
        handle = tasks.add.send(1)
        with pytest.raises(TaskNotCommitted, match=r"horsies_django\.testing\.drain\(\)"):
            handle.get(None)
    assert handle.get(20).err_value.error_code == "WAIT_TIMEOUT"


def test_many_who_wait_share_one_connection_and_each_gets_its_own_result(claimer: Claimers) -> None:
    waiters = [Waiting(tasks.add.send(number)) for number in range(20)]
    wait_until(lambda: len(result_listener.get_listener().callers) == 20, "all twenty wait")
    assert connections_of("horsies waiting") == 1
    worker = claimer()
    claims = worker.run_pass(sync=100).claims
    worker.run_pass(
        outcomes=[Outcome(c.id, c.generation, "COMPLETED", f'{{"ok": {index}}}') for index, c in enumerate(claims)]
    )
    assert [waiter.answer().ok_value for waiter in waiters] == list(range(20))


def test_the_waiting_connection_and_row_go_when_nobody_waits_any_more() -> None:
    tasks.add.send(1).get(50)
    wait_until(lambda: connections_of("horsies waiting") == 0, "the connection is closed")
    assert not Waiter.objects.exists()


def test_a_result_whose_announcement_was_missed_is_found_by_the_poll(claimer: Claimers) -> None:
    waiter = Waiting(tasks.add.send(1))
    wait_until(Waiter.objects.exists, "the process says that it waits")
    Waiter.objects.all().delete()  # no worker announces anything now
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)


def test_a_waiting_connection_that_is_cut_is_no_end_of_waiting(claimer: Claimers) -> None:
    waiter = Waiting(tasks.add.send(1))
    wait_until(Waiter.objects.exists, "the process says that it waits")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'horsies waiting'"
        )
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)


def cut_all_others() -> None:
    """Cut every connection but this one, as a server does that ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


def test_a_server_that_goes_away_and_comes_back_is_no_end_of_waiting(claimer: Claimers) -> None:
    waiter = Waiting(tasks.add.send(1))
    wait_until(Waiter.objects.exists, "the process says that it waits")
    cut_all_others()
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)


def test_a_wait_in_a_transaction_ends_with_the_connection_because_the_transaction_is_lost() -> None:
    handle, raised = tasks.add.send(1), []

    def wait() -> None:
        try:
            with pytest.raises(OperationalError), transaction.atomic():
                raised.append(handle.get(60_000))
            raised.append("OperationalError")
        finally:
            connection.close()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until(Waiter.objects.exists, "the process says that it waits")
    cut_all_others()
    thread.join(30)
    assert raised == ["OperationalError"]


def test_polling_carries_on_when_no_waiting_connection_can_be_opened(
    claimer: Claimers, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = psycopg.connect

    def full_for_waiting(**params: Any) -> Any:
        if params.get("application_name") == "horsies waiting":
            raise psycopg.OperationalError("sorry, too many clients already")
        return connect(**params)

    monkeypatch.setattr(psycopg, "connect", full_for_waiting)
    waiter = Waiting(tasks.add.send(1))
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)
    assert tasks.add.send(1).get(100).err_value.error_code == "WAIT_TIMEOUT"


def test_aget_waits_without_blocking_the_loop(claimer: Claimers) -> None:
    handle, worker = tasks.add.send(1), claimer()

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


def test_aget_times_out_and_knows_uncommitted_tasks() -> None:
    assert async_to_sync(tasks.add.send(1).aget)(30).err_value.error_code == "WAIT_TIMEOUT"
    with transaction.atomic():
        handle = tasks.add.send(1)
        with pytest.raises(TaskNotCommitted):
            async_to_sync(handle.aget)()


def test_get_on_a_running_loop_names_aget() -> None:
    handle = get_handle(uuid.uuid4())

    async def view() -> None:
        handle.get()

    with pytest.raises(RuntimeError, match="await handle.aget"):
        asyncio.run(view())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_opens_a_waiting_connection_of_its_own(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    waiter = Waiting(handle)
    wait_until(Waiter.objects.exists, "the parent waits")
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, b"0" if result_listener._listeners else b"1")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    finish(claimer())
    assert waiter.answer() == TaskResult(ok=3)  # the parent's connection survived the child


def test_another_process_gets_a_typed_result_by_id(claimer: Claimers) -> None:
    handle = tasks.mirror.send(tasks.Point(1, 2))
    finish(claimer(), result='{"ok": {"x": 2, "y": 1}}')
    assert tasks.mirror.handle(str(handle.task_id)).get() == TaskResult(ok=tasks.Point(2, 1))
    assert get_handle(handle.task_id).get() == TaskResult(ok={"x": 2, "y": 1})


@pytest.mark.promise("S3.13")
def test_the_error_of_a_task_comes_back_with_its_code_and_data(claimer: Claimers) -> None:
    handle = tasks.mail.send("nobody")
    envelope = '{"err": {"error_code": "NO_ADDRESS", "message": "m", "data": {"to": "nobody"}, "exception": null}}'
    finish(claimer(mail=1), "FAILED", envelope)
    assert handle.get() == TaskResult(err=TaskError("NO_ADDRESS", "m", data={"to": "nobody"}))


def test_a_stored_result_that_no_longer_fits_is_an_error_and_not_an_exception(claimer: Claimers) -> None:
    handle = tasks.mirror.send(tasks.Point(1, 2))
    finish(claimer(), result='{"ok": "not a point"}')
    assert handle.get().err_value.error_code == "RESULT_DESERIALIZATION_ERROR"


def test_an_expired_task_answers_with_task_expired(claimer: Claimers) -> None:
    (id_,) = put(good_until=dt.datetime.now(dt.UTC))
    claimer().run_pass(sync=1)
    assert get_handle(id_).get().err_value.error_code == "TASK_EXPIRED"


def test_info_tells_the_row_and_its_attempts(claimer: Claimers) -> None:
    handle = tasks.add.send(1)
    info = handle.info()
    assert (info.status, info.task_name, info.attempts) == ("PENDING", "tests.apps.project.tasks.add", ())
    worker = claimer()
    finish(worker)
    info = async_to_sync(handle.ainfo)()
    assert (info.status, info.worker_id, info.result) == ("COMPLETED", worker.id, {"ok": 3})
    assert [(attempt.attempt, attempt.outcome) for attempt in info.attempts] == [(1, "COMPLETED")]
    assert Task.objects.get().finished_at == info.finished_at


def test_outside_tests_the_connection_outlives_the_last_wait_by_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.test.utils import _TestState

    assert result_listener.linger_seconds() == 0.0
    monkeypatch.delattr(_TestState, "saved_data")
    assert result_listener.linger_seconds() == 60.0
