"""What one task does to its database session, the next does not see, whether Django closes, keeps or pools connections."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from tests.apps.project import tasks, traps
from tests.conftest import wait_until
from tests.e2e.test_traps import SECONDS_30, look, wreck
from tests.support.workers import Start, WorkerProcess, held_by, let_go

POOL = pytest.param(
    "pool", marks=pytest.mark.skipif(importlib.util.find_spec("psycopg_pool") is None, reason="needs psycopg[pool]")
)
KEPT = pytest.mark.parametrize("kept", ["default", "0", POOL])


def start(worker: Start, kept: str, *options: str) -> WorkerProcess:
    """Start a worker whose connections are kept so many seconds, or in a pool."""
    options = options or ("--processes=1",)
    return worker(*options, DJANGO_SETTINGS_MODULE="tests.settings.traps", HORSIES_TEST_KEPT=kept).ready()


@KEPT
def test_a_transaction_that_a_task_or_a_coroutine_leaves_open_is_rolled_back_before_the_next(
    worker: Start, kept: str
) -> None:
    process = start(worker, kept)
    before = look("nothing")
    for number, kind in enumerate(("autocommit", "atomic", "atomic, closed", "needs_rollback", "begin"), 1):
        assert wreck(kind) is None
        assert look("groups") == (before[0], "[]"), kind
        assert look("insert") == (before[0], "next"), kind
        assert Group.objects.get().name == "next", kind  # and it is committed
        Group.objects.all().delete()
        assert process.log.count("left a transaction open") == number, kind
    error = traps.awreck.send("atomic").get(timeout_ms=SECONDS_30).err_value
    assert "a transaction cannot stay open between two awaits" in error.message
    assert traps.awreck.send("insert").get(timeout_ms=SECONDS_30).is_ok()
    wait_until(lambda: list(Group.objects.values_list("name", flat=True)) == ["next"], "only the second one committed")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
        )
        assert cursor.fetchone() == (0,)


@KEPT
def test_the_next_task_finds_the_session_as_django_and_the_project_set_it_up(worker: Start, kept: str) -> None:
    start(worker, kept)
    before = look("groups")
    assert wreck("terminated") is None
    assert look("groups") == before
    for kind in ("search_path", "role", "timeout", "tenant", "lock", "listen"):
        before = look(kind)
        assert wreck(kind) is None
        assert look(kind) == before, kind
    assert wreck("temp") is None  # a temporary table does not hide the real one
    assert look("insert")[1] == "next"
    assert Group.objects.get().name == "next"
    zone = look("time zone of the session")
    assert zone[1] == "UTC"
    assert traps.sets_up_sessions.send().get(timeout_ms=SECONDS_30).is_ok()
    assert look("search_path")[1] == "public, pg_temp"
    assert wreck("search_path") is None
    assert look("search_path")[1] == "public, pg_temp"
    assert look("time zone of the session") == zone
    is_kept_as_the_settings_say_and_replaced_when_it_broke(kept)


def is_kept_as_the_settings_say_and_replaced_when_it_broke(kept: str) -> None:
    first, second = (tasks.backend_pid.send().get(timeout_ms=SECONDS_30).ok_value for _ in range(2))
    assert (first == second) == (kept != "0")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [second])
    third = tasks.backend_pid.send().get(timeout_ms=SECONDS_30)
    assert third.is_ok()
    assert third.ok_value != second


@KEPT
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_two_processes_share_a_socket(worker: Start, kept: str) -> None:
    process = start(worker, kept, "--processes=2")
    for name in ("one", "other"):
        tasks.hold.send(name)
    one, other = held_by("one"), held_by("other")
    assert sockets(one)
    assert sockets(other)
    assert not sockets(one) & sockets(other)
    assert not sockets(one) & sockets(process.process.pid)
    let_go("one")
    let_go("other")


def sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open."""
    found = (os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists() or entry.is_symlink())
    return {target for target in found if target.startswith("socket:")}
