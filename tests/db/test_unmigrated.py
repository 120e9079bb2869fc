"""A database in which 'migrate' did not run: whoever meets it is told to run it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import InternalError, ProgrammingError, connection, transaction

from horsies_django import (
    TaskSendError,
    explain,
    get_handle,
    queues,
    schedules,
)
from horsies_django.models import Task
from horsies_django.store.base import NotMigrated
from horsies_django.tasks import operations
from tests.apps.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)

MIGRATE = "run 'python manage.py migrate'$"


@pytest.fixture
def unmigrated() -> Iterator[None]:
    """Have Django's connection look into an empty schema."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA nothing; SET search_path = nothing")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET search_path; DROP SCHEMA nothing")


def awaited(verb: Callable[..., Awaitable[Any]], *args: Any) -> Callable[[], Any]:
    async def call() -> Any:
        return await verb(*args)

    return async_to_sync(call)


SENDS: dict[str, Callable[[], Any]] = {
    "send": lambda: tasks.add.send(1),
    "schedule": lambda: tasks.add.schedule(60, 1),
    "send_many": lambda: tasks.add.send_many([{"a": 1}, {"a": 2}]),
    "send_many in portions": lambda: tasks.add.send_many([{"a": number} for number in range(6_000)]),
    "asend": awaited(tasks.add.asend, 1),
    "aschedule": awaited(tasks.add.aschedule, 60, 1),
    "asend_many": awaited(tasks.add.asend_many, [{"a": 1}]),
}
ID = uuid.UUID("0193a000-0000-7000-8000-000000000000")
CALLS: dict[str, Callable[[], Any]] = {
    "get": lambda: get_handle(ID).get(timeout_ms=1_000),
    "aget": awaited(get_handle(ID).aget, 1_000),
    "cancel": lambda: get_handle(ID).cancel(),
    "retry": lambda: operations.retry(ID, actor="ann"),
    "explain": lambda: explain(ID),
    "pause": lambda: queues.pause("mail", actor="ann"),
    "create": lambda: schedules.create("x", {"pattern": "* * * * *", "task": tasks.noop.name}, actor="ann"),
}


@pytest.mark.parametrize("verb", SENDS)
def test_a_send_into_an_unmigrated_database_is_a_send_error_that_says_migrate(unmigrated: None, verb: str) -> None:
    with pytest.raises(TaskSendError, match=f"the database 'default' does not have the tables .*: {MIGRATE}") as caught:
        SENDS[verb]()
    assert (caught.value.code, caught.value.retryable) == ("ENQUEUE_FAILED", True)


@pytest.mark.parametrize("call", CALLS)
def test_what_else_asks_an_unmigrated_database_says_migrate_too(unmigrated: None, call: str) -> None:
    with pytest.raises(ProgrammingError, match=MIGRATE):
        CALLS[call]()


def test_a_send_that_an_unmigrated_database_refused_ends_the_transaction_around_it(unmigrated: None) -> None:
    with pytest.raises(InternalError, match="transaction is aborted"), transaction.atomic():
        with pytest.raises(TaskSendError, match=MIGRATE):
            tasks.add.send(1)
        Task.objects.exists()


def test_another_alias_is_named_for_migrate() -> None:
    assert str(NotMigrated("queue", "no table")).endswith(": run 'python manage.py migrate --database=queue'")
