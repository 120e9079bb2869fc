"""The checks of Django's connections between two tasks, and the repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import ConnectionHandler, connection, connections
from django.db.backends.postgresql import base
from django.db.transaction import TransactionManagementError

from horsies_django.worker.child import db_sessions
from horsies_django.worker.child.db_sessions import OneThread
from tests.apps.project import traps
from tests.conftest import sql

pytestmark = pytest.mark.django_db(transaction=True)

Elsewhere = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Yield a function that calls another one on its own thread, like the threads of a worker."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(30)
        pool.submit(connections.close_all).result(30)


@pytest.fixture
def orm() -> Iterator[OneThread]:
    """Yield a thread such as Django's for async code."""
    with OneThread() as pool:
        yield pool
        pool.close()


def seen() -> bool:
    return db_sessions.may_be_open(db_sessions.wrappers_here().values())


def note() -> None:
    Group.objects.create(name="next")


def test_a_connection_is_seen_in_the_wrapper_itself(elsewhere: Elsewhere) -> None:
    def look() -> list[bool]:
        asyncio.run(asyncio.to_thread(connections.all))
        looks = [seen()]

        acts = (
            lambda: connections["default"],
            connection.ensure_connection,
            connection.close,
            traps.closed_inside,
        )

        for act in acts:
            act()
            looks.append(seen())

        db_sessions.after_task()
        return [*looks, seen()]

    assert elsewhere(db_sessions.wrappers_here) is not db_sessions.UNKNOWN_WRAPPERS
    assert elsewhere(look) == [False, False, True, False, True, False]


def test_unreadable_wrappers_do_not_hide_an_open_connection(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_sessions, "wrappers_here", lambda: db_sessions.UNKNOWN_WRAPPERS)

    def leave() -> tuple[bool, Any]:
        traps.begun_by_hand()
        db_sessions.before_task()
        return seen(), connection.connection

    assert elsewhere(leave) == (True, None)

    elsewhere(note)
    assert Group.objects.get().name == "next"


def test_a_wrapper_of_another_thread_is_dropped_without_an_error(elsewhere: Elsewhere) -> None:
    """The connection of another thread is dropped, and no error is raised."""

    def take_over() -> None:
        connections["default"] = foreign
        db_sessions.after_task()
        note()
        db_sessions.after_task()

    connection.ensure_connection()
    foreign = connections["default"]

    elsewhere(take_over)

    assert Group.objects.get().name == "next"


@pytest.mark.parametrize(
    "kind", ["autocommit", "atomic", "atomic, closed", "needs_rollback", "begin"]
)
def test_an_open_async_transaction_excludes_the_next_call(orm: OneThread, kind: str) -> None:
    """The next call of async code is not part of a transaction that was left open."""
    opened = orm.submit(traps.WRECKS[kind])
    written = orm.submit(note)

    with pytest.raises(TransactionManagementError, match="cannot stay open between two awaits"):
        opened.result(30)
    written.result(30)

    assert Group.objects.get().name == "next"


def test_a_failed_call_of_async_code_leaves_no_new_connection(
    orm: OneThread,
) -> None:
    """A failed call of async code leaves no connection that it opened."""

    def half_made() -> None:
        connection.ensure_connection()
        connection.cursor().execute("SET search_path = pg_catalog")
        raise LookupError("as a receiver of connection_created might")

    def fails_later() -> None:
        raise LookupError("in the task's own code")

    with pytest.raises(LookupError):
        orm.submit(half_made).result(30)
    assert not orm.connected

    orm.submit(note).result(30)
    with pytest.raises(LookupError):
        orm.submit(fails_later).result(30)
    assert orm.connected


def test_a_child_keeps_connections_between_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child keeps connections between tasks unless the project configures an age or a pool.

    Fails if: a pool refuses an age, or a connection that is kept for ever is closed after a minute.
    """
    given = {
        "short": {"CONN_MAX_AGE": 0},
        "long": {"CONN_MAX_AGE": 600},
        "endless": {"CONN_MAX_AGE": None},
        "pooled": {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}},
        "file": {"CONN_MAX_AGE": 0, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }

    default = {**connections.settings["default"], "CONN_HEALTH_CHECKS": False, "OPTIONS": {}}
    handler = ConnectionHandler(
        {"default": default} | {alias: default | own for alias, own in given.items()}
    )
    monkeypatch.setattr(db_sessions, "connections", handler)

    db_sessions.keep_connections(0)
    assert handler.settings["short"]["CONN_MAX_AGE"] == 0

    db_sessions.keep_connections(60)
    found = {
        alias: (
            handler.settings[alias]["CONN_MAX_AGE"],
            handler.settings[alias]["CONN_HEALTH_CHECKS"],
        )
        for alias in given
    }

    others = {
        "long": (600, False),
        "endless": (None, False),
        "pooled": (0, False),
        "file": (0, False),
    }
    assert found == {"short": (60, True), **others}


@pytest.mark.parametrize("threshold", [0, 2])
def test_prepared_statements_run_again_after_a_session_reset(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, threshold: int
) -> None:
    """Statements that the driver prepared run again after the session was reset."""
    options = {"prepare_threshold": threshold, "server_side_binding": True}

    def run_tasks() -> set[int]:
        kept = {**connections.settings["default"], "CONN_MAX_AGE": 600, "OPTIONS": options}
        monkeypatch.setattr(connections["default"], "settings_dict", kept)

        backends = set()
        for ready in (False, True, True, True):
            db_sessions.before_task()
            backends.add(sql("SELECT pg_backend_pid()")[0][0])
            if ready:  # with threshold 2, the first run prepares nothing
                assert [Group.objects.filter(name="next").count() for _ in range(4)] == [1] * 4
            db_sessions.after_task()

        return backends

    note()
    assert len(elsewhere(run_tasks)) == 1, "the connection was kept, and nothing failed"


class Tenants(base.DatabaseWrapper):
    """A backend that keeps the tenant in its wrapper, as that of django-tenants does."""

    schema_name = "public"

    def set_schema_to_public(self) -> None:
        if self.schema_name == "broken":
            raise LookupError("no such tenant")
        self.schema_name = "public"


def choose(name: str, query: bool = True) -> None:
    connection.schema_name = name
    if query:
        connection.ensure_connection()


def schema_here() -> str:
    name: str = connection.schema_name
    return name


@pytest.fixture
def tenants() -> Callable[[], None]:
    """Return a function that makes the thread use such a backend."""

    def use() -> None:
        connections["default"] = Tenants(connections["default"].settings_dict, "default")

    return use


@pytest.mark.parametrize("name", ["acme", "broken"])
@pytest.mark.parametrize("query", [True, False], ids=["with a query", "without"])
def test_the_tenant_of_a_task_is_not_that_of_the_next_one(
    elsewhere: Elsewhere, tenants: Callable[[], None], name: str, query: bool
) -> None:
    def two() -> str:
        choose(name, query)
        db_sessions.after_task()
        return getattr(connection, "schema_name", "public")

    elsewhere(tenants)

    assert elsewhere(two) == "public"


def test_the_tenant_of_a_call_is_not_that_of_the_next_one(
    orm: OneThread, tenants: Callable[[], None]
) -> None:
    orm.submit(tenants).result(30)

    orm.submit(choose, "acme").result(30)

    assert orm.submit(schema_here).result(30) == "public"
