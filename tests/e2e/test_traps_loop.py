"""What a task does to the event loop that it shares, or with an exception that cannot be shown, is nobody else's trouble."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from horsies_django.worker.pool.process import is_over
from tests.apps.project import tasks, unspeakable
from tests.conftest import wait_until
from tests.e2e.test_traps_database import SECONDS_30
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
WITHOUT_CHILDREN = ("--processes=0",)
WHERE = pytest.mark.parametrize("options", [("--processes=1",), WITHOUT_CHILDREN], ids=" ".join)


def start(worker: Start, *options: str) -> WorkerProcess:
    """Start a worker whose tasks find a connection open, so that there is something to do around each of them."""
    environment = {"DJANGO_SETTINGS_MODULE": "tests.settings.traps", "HORSIES_TEST_KEPT": "600"}
    return worker(*options, "--threads=2", "--max-tasks-per-child=0", **environment).ready()


def async_pid() -> int:
    return int(unspeakable.apid.send().get(timeout_ms=SECONDS_30).unwrap())


@WHERE
def test_a_task_that_takes_its_readers_and_writers_from_the_loop_harms_no_other(
    worker: Start, options: tuple[str, ...]
) -> None:
    process = start(worker, *options)
    pid = async_pid()
    for how in ("remove_writer", "stop", "close", "cancel"):
        for _ in range(3):
            unspeakable.abreaks.send(how).get(timeout_ms=SECONDS_30)
            assert async_pid() == pid, how
    for how in ("remove_writer", "remove_reader"):
        breaker = unspeakable.abreaks.send(how, name="goes on")
        held_by("goes on")
        wait_until(lambda how=how: (async_pid() == pid) == (how == "remove_writer" or options == WITHOUT_CHILDREN), how)
        let_go("goes on")
        assert breaker.get(timeout_ms=SECONDS_30).ok_value == pid
    assert process.stop() == 0


@WHERE
def test_a_task_that_cancels_all_others_leaves_none_without_an_outcome(worker: Start, options: tuple[str, ...]) -> None:
    process = start(worker, *options)
    pid = async_pid()
    running = tasks.ahold.send("running")
    assert held_by("running") == pid
    breaker = unspeakable.abreaks.send_many([{"how": "cancel"}] * 20)
    others = unspeakable.apid.send_many([{}] * 60)
    results = [handle.get(timeout_ms=SECONDS_30) for handle in (*breaker, *others)]
    assert {result.err_value.error_code for result in results if result.is_err()} <= {"UNHANDLED_ERROR"}
    assert {result.ok_value for result in results if result.is_ok()} <= {pid}
    assert running.get(timeout_ms=SECONDS_30).err_value.error_code == "UNHANDLED_ERROR"
    assert async_pid() == pid
    assert process.stop() == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("how", ["close sockets", "close epoll", "close for real"])
def test_a_task_that_breaks_the_loop_beyond_repair_has_its_child_replaced(worker: Start, how: str) -> None:
    process = start(worker, "--processes=1")
    pid = async_pid()
    assert unspeakable.abreaks.send(how).get(timeout_ms=SECONDS_30).err_value.error_code == "WORKER_CRASHED"
    assert async_pid() != pid
    assert is_over(pid)
    assert process.stop() == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("how", ["close sockets", "close epoll", "close for real"])
def test_a_task_that_breaks_the_loop_beyond_repair_ends_a_worker_without_children(worker: Start, how: str) -> None:
    process = start(worker, "--processes=0")
    unspeakable.abreaks.send(how)
    assert process.wait() == 1


@WHERE
def test_an_exception_that_cannot_be_shown_ends_only_its_own_task(worker: Start, options: tuple[str, ...]) -> None:
    process = start(worker, *options)
    sibling, asibling = tasks.hold.send("sibling"), tasks.ahold.send("asibling")
    pid = held_by("sibling")
    assert held_by("asibling") == pid
    for way in (unspeakable.raises, unspeakable.araises):
        for handle in way.send_many([{"kind": kind} for kind in unspeakable.KINDS]):
            assert handle.get(timeout_ms=SECONDS_30).err_value.error_code == "UNHANDLED_ERROR"
    let_go("sibling")
    let_go("asibling")
    assert sibling.get(timeout_ms=SECONDS_30).ok_value == pid
    assert asibling.get(timeout_ms=SECONDS_30).ok_value == pid
    assert process.stop() == 0
