"""Fixtures that several layers of the tests share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import TransactionTestCase, override_settings

from horsies_django.core.records import NewTasks, Wanted
from horsies_django.queues import declare_queues
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.passes import Passed
from horsies_django.store.queues import QueueStore
from horsies_django.store.tasks import Served, TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.tasks.enqueue import send_call
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.options import SendOptions
from tests.apps.project import plain
from tests.support.deadlines import wait_until as wait_until

registry.sure.add("benchmarks.load.tasks")  # tests of benchmarks import it, and so do their workers

Connect = Callable[[], psycopg.Connection[Any]]

KEPT: set[str] = set()  # tables that keep their rows while a worker is shared by several tests
WRITTEN = """
SELECT format('%%I.%%I', n.nspname, c.relname), pg_relation_size(c.oid) <= 65536
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema AND c.relkind = 'r' AND pg_relation_size(c.oid) > 0
  AND c.relname NOT IN ('django_migrations', 'django_content_type', 'auth_permission')
  AND c.relname <> ALL (%s)"""


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> Iterator[None]:
    """Empty the tables after a test, but only those that have rows.

    Django's own ``flush`` empties all of them and sends ``post_migrate``. Only our receiver of it
    is needed: content types and permissions were left in place. It declares the queues of the
    settings as they were before any test. The few rows are deleted and vacuumed, which takes 2 ms:
    ``TRUNCATE`` creates a file for each index, which takes 26 ms. While a worker lives, all rows
    are deleted: the locks of ``TRUNCATE`` would deadlock with its statements.
    """
    declared = settings.HORSIES

    def empty(case: TransactionTestCase) -> None:
        for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
            with connections[alias].cursor() as cursor:
                cursor.execute(WRITTEN, [list(KEPT)])
                written = cursor.fetchall()

                few = [table for table, small in written if small or KEPT]
                if few:
                    cursor.execute("; ".join(f"DELETE FROM {table}" for table in few))
                if few and not KEPT:
                    cursor.execute(f"VACUUM (INDEX_CLEANUP ON, SKIP_LOCKED) {', '.join(few)}")

                if many := [table for table, _small in written if table not in few]:
                    cursor.execute(f"TRUNCATE {', '.join(many)} CASCADE")

            with override_settings(HORSIES=declared):
                declare_queues(using=alias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty)
        yield


@pytest.fixture
def connect(transactional_db: None) -> Iterator[Connect]:
    """Return a function that opens further connections to the test database."""
    opened: list[psycopg.Connection[Any]] = []

    def connect_() -> psycopg.Connection[Any]:
        opened.append(direct_connection("default", application_name="horsies test", prepare=True))
        return opened[-1]

    yield connect_

    for item in opened:
        item.close()


class Claimer:
    """A worker reduced to its statements: those of an engine, step by step."""

    def __init__(self, conn: Any, **queues: int) -> None:
        self.conn = conn
        self.store = TaskStore(conn)
        self.id = uuid.uuid4()
        self.channel = channel_prefix(conn)
        self.served = Served(queues or {"default": 100})

        for name, priority in queues.items():
            limit(name, priority=priority)

    def run_pass(
        self, sync: int = 0, async_: int = 0, wanted: Wanted | None = None, **owed: Any
    ) -> Passed:
        """Run one pass."""
        wanted = wanted or Wanted(sync, async_)
        return self.store.run_pass(self.id, self.channel, self.served, wanted, **owed)


Claimers = Callable[..., Claimer]


@pytest.fixture
def claimer(connect: Connect) -> Claimers:
    """Return a function that creates claimers, each on a connection of its own."""
    return lambda **queues: Claimer(connect(), **queues)


def sql(text: str, params: Any = None) -> list[Any]:
    """Run a statement on Django's connection, and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else []


def limit(name: str, **columns: Any) -> None:
    """Set columns of a queue's row by the statement that changes queues.

    The row is created if there is none.
    """
    QueueStore(connection).configure(name, columns, action="queue.set", actor="a test", create=True)


def put(
    count: int = 1, *, name: str = "tests.nothing", queue: str = "default", **columns: Any
) -> list[uuid.UUID]:
    """Put tasks into the table by the statement that sends them, and return their ids."""
    ids = [uuid7() for _ in range(count)]
    values: dict[str, Any] = {
        "lane": "sync",
        "priority": 100,
        "ids": ids,
        "kwargs": ["{}"] * count,
        **columns,
    }
    TaskStore(connection).send(NewTasks(task_name=name, queue_name=queue, **values))
    return ids


@pytest.fixture
def plain_tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, TaskDefinition]:
    """Make tasks of the functions in tests.apps.project.plain, and return them by function name."""
    plain.RAN.clear()
    for definition in plain.TASKS.values():
        monkeypatch.setitem(registry._tasks, definition.name, definition)
    return plain.TASKS


def send_plain(definition: TaskDefinition, *args: Any, **kwargs: Any) -> uuid.UUID:
    """Send a plain task, as a backend of django.tasks does."""
    return send_call(definition, SendOptions(), args, kwargs)[0]
