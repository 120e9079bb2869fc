"""What tests of several sessions share: a thread to wait in, and a look at who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.conftest import wait_until

Aside = Callable[..., Future[Any]]


@pytest.fixture
def aside(connect: Callable[[], psycopg.Connection[Any]]) -> Iterator[Aside]:
    """Give a function that runs another one in a thread."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def wait_for_waiting(watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any]) -> None:
    """Return when the session of ``waiting`` waits for a lock."""
    query, pid = "SELECT cardinality(pg_blocking_pids(%s)) > 0", waiting.info.backend_pid
    wait_until(lambda: watcher.execute(query, [pid]).fetchone()[0], "a session waits for a lock")
