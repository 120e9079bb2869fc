"""Children that fail to start for a moment, fail before their first task or never become ready."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from django.db import connection

from horsies_django import explain
from horsies_django.models import Heartbeat
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, apps, given, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

IMPATIENT = {"RECOVERY": {"CHILD_READY_TIMEOUT_MS": 1_000}}


@pytest.fixture
def lacks(tmp_path: Path) -> Path:
    """Return the file that names the missing resource."""
    return tmp_path / "lacks"


def project(lacks: Path) -> dict[str, str]:
    return {**apps("project", "cramped"), "CRAMPED": str(lacks)}


@pytest.mark.boundary
@pytest.mark.parametrize("what", ["fork", "pipe", "socketpair"])
def test_a_start_that_fails_is_tried_again_beside_a_long_task(
    worker: Start, lacks: Path, what: str
) -> None:
    """Fails if: the worker and its tasks end because a limit of processes, memory or descriptors is
    reached for a moment.
    """
    process = worker("--processes=2", "--max-tasks-per-child=2", **project(lacks)).ready()
    long = tasks.hold.send("long")
    held_by("long")

    lacks.write_text(what)
    short = tasks.pid.send_many([{}] * 8)
    wait_until(lambda: "a child cannot be started now" in process.log, "it says so")
    lacks.unlink()

    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in short)
    let_go("long")
    assert long.get(timeout_ms=30_000).is_ok()
    assert process.stop() == 0


def test_tasks_run_while_a_successor_cannot_be_started(worker: Start, lacks: Path) -> None:
    """Fails if: a child that has run its number of tasks ends although no successor can start."""
    worker("--processes=1", "--max-tasks-per-child=2", **project(lacks)).ready()

    lacks.write_text("fork")
    short = tasks.pid.send_many([{}] * 8)

    assert len({handle.get(timeout_ms=60_000).ok_value for handle in short}) <= 2


def test_a_fork_server_is_forked_again_once_that_is_possible(worker: Start, lacks: Path) -> None:
    """Fails if: the template process ends because a fork fails."""
    process = worker("--processes=1", **project(lacks)).ready()
    child = tasks.pid.send().get(timeout_ms=30_000).ok_value
    (server,) = (
        one for one in process.family() if child in [below.pid for below in one.children()]
    )

    lacks.write_text("fork")
    server.kill()
    wait_until(lambda: "a child cannot be started now" in process.log, "it says so")
    lacks.unlink()

    assert tasks.pid.send().get(timeout_ms=30_000).ok_value != child
    assert process.stop() == 0


def test_a_worker_outlives_a_moment_without_descriptors(worker: Start, lacks: Path) -> None:
    """Fails if: an error other than a database error ends a thread of the worker."""
    process = worker(
        "--processes=2", "--health-port=0", HORSIES_TEST_SNAPSHOT_MS="1000", **project(lacks)
    ).ready()
    child = tasks.pid.send().get(timeout_ms=30_000).ok_value
    before = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)

    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: "a child cannot be started now" in process.log, "it says so")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'horsies %'"
        )
    wait_until(lambda: process.log.count("the database is not available") >= 2, "it cannot connect")
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, before)

    wait_until(lambda: Heartbeat.objects.filter(role="runner").count() == 2, "heartbeats go on")
    assert tasks.add.send(1).get(timeout_ms=30_000).is_ok()
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("what", "line"),
    [("thread", "exited with code 1"), ("service", "cannot run tasks")],
    ids=["threads", "middleware"],
)
def test_children_that_fail_before_their_first_task(
    worker: Start, lacks: Path, what: str, line: str
) -> None:
    """Fails if: the worker ends, or starts children without a pause."""
    settings = given(MIDDLEWARE=["tests.apps.cramped.apps.middleware"])
    process = worker("--processes=2", **project(lacks), **settings).ready()
    long = tasks.hold.send("long")
    held_by("long")

    lacks.write_text(what)
    dead = tasks.dies.send("exit")
    wait_until(lambda: process.log.count(line) >= 4, "some fail")
    lacks.unlink()

    assert dead.get(timeout_ms=30_000).is_err()
    assert tasks.add.send(1).get(timeout_ms=30_000).is_ok()
    let_go("long")
    assert long.get(timeout_ms=30_000).is_ok()
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("fork", "this process cannot be forked: Resource temporarily unavailable"),
        ("pipe", "a child process cannot be started: Too many open files"),
    ],
)
def test_a_worker_that_starts_without_room_exits(
    worker: Start, lacks: Path, what: str, line: str
) -> None:
    lacks.write_text(what)
    process = worker("--processes=1", **project(lacks))

    assert process.wait() == 1
    assert line in process.log


@pytest.mark.boundary
def test_tasks_run_while_a_successor_does_not_become_ready(worker: Start, lacks: Path) -> None:
    """Fails if: a child that never becomes ready replaces a child that works."""
    settings = given(**IMPATIENT)
    process = worker(
        "--processes=1", "--max-tasks-per-child=3", **project(lacks), **settings
    ).ready()

    lacks.write_text("answer")
    handles = tasks.pid.send_many([{}] * 20)

    assert len({handle.get(timeout_ms=60_000).ok_value for handle in handles}) <= 2
    wait_until(lambda: "is not ready after 1 s" in process.log, "it says so")
    assert "was killed, because it did not become ready" in process.log
    lacks.unlink()
    assert process.stop() == 0


def test_explain_reports_a_worker_without_a_ready_child(worker: Start, lacks: Path) -> None:
    """Fails if: slots of processes that are not ready count as free."""
    worker("--processes=1", **project(lacks)).ready()
    child = tasks.pid.send().get(timeout_ms=30_000).ok_value

    lacks.write_text("answer")
    os.kill(child, signal.SIGKILL)
    waits = tasks.pid.send()

    wait_until(lambda: "no process is ready" in str(explain(waits.task_id)), "it is explained")


def test_a_worker_whose_children_stall_at_its_start_exits(worker: Start, lacks: Path) -> None:
    lacks.write_text("answer")
    process = worker("--processes=1", **project(lacks), **given(**IMPATIENT))

    assert process.wait() == 1
    assert "the last one was killed, because it did not become ready" in process.log
