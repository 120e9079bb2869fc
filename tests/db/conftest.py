"""What tests of several sessions share: a thread to wait in, a look at who waits, and how large a part of a long act is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django.store.base import load
from tests.conftest import wait_until

Aside = Callable[..., Future[Any]]
Parts = Callable[[int], None]


@pytest.fixture
def aside(connect: Callable[[], psycopg.Connection[Any]]) -> Iterator[Aside]:
    """Give a function that runs another one in a thread."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


@pytest.fixture
def parts() -> Iterator[Parts]:
    """Give a function that says how many nodes and tasks of a run one transaction may end, skip, withdraw or retry."""
    text = load("functions/workflows/horsies_part").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")

    def install(many: int) -> None:
        assert "SELECT 1000 " in text
        with connection.cursor() as cursor:
            cursor.execute(text.replace("SELECT 1000 ", f"SELECT {many} "))

    yield install
    install(1000)


def wait_for_waiting(watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any]) -> None:
    """Return when the session of ``waiting`` waits for a lock."""
    query, pid = "SELECT cardinality(pg_blocking_pids(%s)) > 0", waiting.info.backend_pid
    wait_until(lambda: watcher.execute(query, [pid]).fetchone()[0], "a session waits for a lock")
