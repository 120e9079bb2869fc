"""The watch over running tasks: what runs long is said, and said once."""

from __future__ import annotations

import logging
import uuid

import pytest

from horsies_django.core.records import Claim
from horsies_django.worker.pool.process import PoolProcess
from horsies_django.worker.pool.timeouts import StuckWatch
from horsies_django.worker.process.options import WorkerOptions


@pytest.fixture
def member() -> PoolProcess:
    made = PoolProcess(WorkerOptions(queues=(), processes=1))
    made.pid = 7
    return made


def runs(member: PoolProcess, number: int, since: float, name: str = "tests.nothing") -> Claim:
    """Have a process hold a task that was handed over at a moment."""
    claim = Claim(uuid.uuid4(), 1, "sync", name, "{}")
    member.held["sync"][number], member.since["sync"][number] = claim, since
    return claim


def test_a_task_that_runs_long_is_reported_once_however_many_beats_follow(
    member: PoolProcess, caplog: pytest.LogCaptureFixture
) -> None:
    watch = StuckWatch(stopped_seconds=10.0, long_seconds=60.0)
    claim = runs(member, 1, since=100.0)
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        watch.look([member], 159.0)
        assert caplog.messages == []
        for now in (161.0, 162.0, 163.0):  # the report, and two beats after it
            watch.look([member], now)
        assert [str(claim.id) in line for line in caplog.messages] == [True]
        assert "(tests.nothing) has been running for more than 60 s in process 7" in caplog.text
        member.take_off("sync", 1)
        other = runs(member, 2, since=163.0)
        for now in (222.0, 224.0, 225.0):
            watch.look([member], now)
    assert [str(other.id) in line for line in caplog.messages] == [False, True]


def test_the_name_of_a_task_that_runs_long_forges_no_line(
    member: PoolProcess, caplog: pytest.LogCaptureFixture
) -> None:
    runs(member, 1, since=100.0, name="a\n[CRITICAL] \x1b[2J")
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        StuckWatch(stopped_seconds=10.0, long_seconds=60.0).look([member], 161.0)
    assert [line.isprintable() for line in caplog.messages] == [True]
