"""Changes that one task makes to its database session do not reach the next task.

This holds whether Django closes, keeps or pools connections.
"""

from __future__ import annotations

import importlib.util
import os
from itertools import count
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from tests.apps.cutting import tasks as cutting
from tests.apps.project import tasks, traps
from tests.conftest import sql, wait_until
from tests.e2e.test_traps import SECONDS_30, look, wreck
from tests.support.workers import Start, apps, held_by, let_go

POOL = pytest.param(
    "pool",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("psycopg_pool") is None, reason="needs psycopg[pool]"
    ),
)
KEPT = pytest.mark.parametrize("kept", ["default", "0", POOL])


@KEPT
def test_an_open_transaction_is_rolled_back_before_the_next_task(worker: Start, kept: str) -> None:
    """A transaction that a task or a coroutine leaves open is rolled back before the next task."""
    process = worker("--processes=1", HORSIES_TEST_KEPT=kept).ready()
    before = look("nothing")

    for number, kind in enumerate(
        ("autocommit", "atomic", "atomic, closed", "needs_rollback", "begin"), 1
    ):
        assert wreck(kind) is None
        assert look("groups") == (before[0], "[]"), kind
        assert look("insert") == (before[0], "next"), kind
        assert Group.objects.get().name == "next", kind  # and it is committed
        Group.objects.all().delete()
        assert process.log.count("left a transaction open") == number, kind

    error = traps.awreck.send("atomic").get(timeout_ms=SECONDS_30).err_value
    assert "a transaction cannot stay open between two awaits" in error.message
    assert traps.awreck.send("insert").get(timeout_ms=SECONDS_30).is_ok()

    wait_until(
        lambda: list(Group.objects.values_list("name", flat=True)) == ["next"],
        "only the second one committed",
    )

    assert sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE "
        "'idle in transaction%'"
    )[0] == (0,)


@KEPT
def test_the_next_task_finds_the_session_as_it_was_set_up(worker: Start, kept: str) -> None:
    """The next task finds the session as Django and the project set it up."""
    worker("--processes=1", HORSIES_TEST_KEPT=kept).ready()
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

    sql("SELECT pg_terminate_backend(%s)", [second])
    third = tasks.backend_pid.send().get(timeout_ms=SECONDS_30)
    assert third.is_ok()
    assert third.ok_value != second


@KEPT
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_two_processes_share_a_socket(worker: Start, kept: str) -> None:
    process = worker("--processes=2", HORSIES_TEST_KEPT=kept).ready()
    for name in ("one", "other"):
        tasks.hold.send(name)
    one = held_by("one")
    other = held_by("other")

    assert sockets(one)
    assert sockets(other)
    assert not sockets(one) & sockets(other)
    assert not sockets(one) & sockets(process.process.pid)

    let_go("one")
    let_go("other")


def sockets(pid: int) -> set[str]:
    """Return the open sockets of a process."""
    found = (
        os.readlink(entry)
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if entry.exists() or entry.is_symlink()
    )
    return {target for target in found if target.startswith("socket:")}


# Connections that Django could not finish opening, for which no signal is sent

WAYS = (cutting.note, cutting.note_on_threads, cutting.anote, cutting.note_by_a_loop)
names = (f"row {number}" for number in count())


def errors(each: int) -> list[str | None]:
    """Write rows in each of the ways, and return the error codes.

    A task that succeeded has left its row.
    """
    sent = [(name, way.send(name)) for _ in range(each) for way in WAYS if (name := next(names))]
    results = [handle.get(timeout_ms=SECONDS_30) for _, handle in sent]
    codes = [None if result.is_ok() else str(result.err_value.error_code) for result in results]
    written = list(Group.objects.values_list("name", flat=True))

    for (name, _), code in zip(sent, codes, strict=True):
        assert code is not None or name in written, f"COMPLETED, and {name} does not exist"

    return codes


@pytest.mark.parametrize(
    ("kept", "options"),
    [
        ("0", ("--processes=1", "--threads=2")),
        ("default", ("--processes=1", "--threads=2")),
        pytest.param("pool", ("--processes=1",), marks=POOL.marks),
        ("0", ("--processes=0", "--threads=2")),
    ],
    ids=["closed", "kept", "pool", "no children"],
)
@pytest.mark.parametrize("harm", ["cut", "open"])
@pytest.mark.boundary
def test_a_cut_connection_fails_its_own_task_only(
    worker: Start, tmp_path: Path, kept: str, options: tuple[str, ...], harm: str
) -> None:
    """A cut connection fails its own task only, and no later one.

    It is cut while it opens, or is left in a transaction.
    """
    order = tmp_path / "order"  # the receiver of the project reads from this file which harm to do
    how = {
        **apps("project", "cutting"),
        "HORSIES_TEST_ORDER": str(order),
        "HORSIES_TEST_KEPT": kept,
    }
    process = worker(*options, "--max-tasks-per-child=0", **how).ready()

    order.write_text(harm)
    assert set(errors(3)) == {"UNHANDLED_ERROR"}

    order.unlink()
    assert set(errors(5)) == {None}

    assert ("left a transaction open" in process.log) == (harm == "open")
