"""Helpers of tests with several sessions: run a call in a thread, wait until a session is blocked,
and set how much of a long operation one transaction does.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from horsies_django.store.base import sql_text
from horsies_django.store.queues import QueueStore
from tests.conftest import Claimer, put, wait_until
from tests.conftest import Claimers as Claimers
from tests.conftest import Connect as Connect
from tests.db.drives import Engine, Hand
from tests.db.lives import enlist

Aside = Callable[..., Future[Any]]
Engines = Callable[[], Engine]
Parts = Callable[[int], None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as committing, unless they have a mark of their own."""
    for item in items:
        if (
            Path(__file__).parent in item.path.parents
            and item.get_closest_marker("django_db") is None
        ):
            item.add_marker(pytest.mark.django_db(transaction=True))


@pytest.fixture
def aside(connect: Connect) -> Iterator[Aside]:
    """Return a function that runs another one in a thread and closes the connections that Django
    opened there.
    """

    def run(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        yield lambda *args, **kwargs: pool.submit(run, *args, **kwargs)


@pytest.fixture
def engines(connect: Connect) -> Engines:
    """Return a function that makes engines, each on a connection of its own."""
    return lambda: Engine(connect())


@pytest.fixture
def engine(engines: Engines) -> Engine:
    """Return an engine that only runs the statements of a worker."""
    return engines()


@pytest.fixture
def hand(engine: Engine) -> Hand:
    """Return a ``Hand``, an engine whose tasks the test ends by name."""
    return Hand(engine)


@pytest.fixture
def parts() -> Iterator[Parts]:
    """Return a function that sets how many nodes and tasks of a run one transaction may end, skip,
    withdraw or retry.
    """
    text = sql_text("functions/workflows/horsies_move_run")

    def install(many: int) -> None:
        assert "v_part CONSTANT int := 1000;" in text
        with connection.cursor() as cursor:
            cursor.execute(text.replace("int := 1000;", f"int := {many};"))

    yield install
    install(1000)


def tenant(name: str, count: int = 1, **columns: Any) -> list[uuid.UUID]:
    """Send tasks of a tenant."""
    return put(count, kwargs=[json.dumps({"tenant": name})] * count, **columns)


def sweep(many: int = 1_000) -> None:
    """Sweep the default queue until there is nothing left to do."""
    while QueueStore(connection).sweep("default", many):
        pass


def wait_for_waiting(watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any]) -> None:
    """Return once the session of ``waiting`` waits for a lock."""
    query = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    pid = waiting.info.backend_pid
    wait_until(lambda: watcher.execute(query, [pid]).fetchone()[0], "a session waits for a lock")


def wait_for_anybody(watcher: psycopg.Connection[Any]) -> None:
    """Return once any session of this database waits for a lock."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pg_blocking_pids(pid) "
        "<> '{}'"
    )
    wait_until(lambda: watcher.execute(query).fetchall(), "a session waits for a lock")


def impatient(worker: Claimer) -> Claimer:
    """Make a worker's statements fail if they wait long for a lock."""
    worker.conn.execute("SET lock_timeout = '5s'")
    return worker


def register(worker: Claimer) -> Claimer:
    """Write a worker's row and its first heartbeat."""
    enlist(worker.conn, worker.id, "default", slots=1, task_names=[])
    return worker


def heard(listener: psycopg.Connection[Any]) -> list[str]:
    """Return the payloads of all notifications that a listening session has received."""
    listener.execute("NOTIFY nobody")  # all earlier notifications have arrived now
    return [told.payload for told in listener.notifies(timeout=0)]
