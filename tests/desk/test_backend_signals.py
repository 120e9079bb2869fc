"""Django's signals round a task: who gets them, with what, and what a receiver cannot break."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.backends import HorsiesBackend
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import TaskResultStatus, signals

pytestmark = pytest.mark.django_db

NAMES = ("task_enqueued", "task_started", "task_finished")
Told = list[tuple[str, str, str, int, type | None]]


@pytest.fixture
def told() -> Iterator[Told]:
    """Collect the signals that name the backend class as their sender: name, id, status, attempts, the exception on its way."""
    found: Told = []
    receivers = []
    for name in NAMES:

        def hear(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            found.append((name, task_result.id, str(task_result.status), task_result.attempts, sys.exc_info()[0]))

        receivers.append((getattr(signals, name), hear))
        receivers[-1][0].connect(hear, sender=HorsiesBackend)
    yield found
    for signal, receiver in receivers:
        signal.disconnect(receiver, sender=HorsiesBackend)


@pytest.mark.parametrize("task", [tasks.add, tasks.later])
def test_each_step_of_a_task_is_told_with_the_backend_class_as_sender(told: Told, task: Any) -> None:
    """Naive: the sender is an instance, so ``@receiver(task_started, sender=HorsiesBackend)`` never hears it."""
    result = task.enqueue(1)
    drain()
    assert told == [
        ("task_enqueued", result.id, "READY", 0, None),
        ("task_started", result.id, "RUNNING", 1, None),
        ("task_finished", result.id, "SUCCESSFUL", 1, None),
    ]


def test_async_code_that_sends_is_heard_as_well(told: Told) -> None:
    async def view() -> None:
        await tasks.add.aenqueue(1)

    async_to_sync(view)()
    assert [name for name, *_ in told] == ["task_enqueued"]


@pytest.mark.parametrize("task", [tasks.fails, tasks.fails_async])
def test_the_end_of_a_failure_is_told_while_the_exception_is_handled(told: Told, task: Any) -> None:
    """Naive: it is told afterwards, so nobody can report the traceback."""
    task.enqueue()
    drain(raise_errors=False)
    assert told[-1][0] == "task_finished"
    assert told[-1][2:] == ("FAILED", 1, ValueError)


def test_the_end_is_told_once_after_the_last_attempt(told: Told) -> None:
    """Naive: each failed attempt ends the task for those who listen."""
    tasks.CALLS.clear()
    tasks.tried.enqueue(3)
    drain(raise_errors=False)
    assert [(name, status, attempts) for name, _, status, attempts, _ in told[1:]] == [
        ("task_started", "RUNNING", 1), ("task_started", "RUNNING", 2), ("task_started", "RUNNING", 3),
        ("task_finished", "FAILED", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "args", "told_end"),
    [
        (tasks.waits, ("no",), False),
        (tasks.paused, ("no",), False),
        (tasks.paused, ("never",), True),
        (tasks.tried, (1, "KeyError"), True),
        (tasks.asks, (), True),
        (tasks.interrupted, (), False),
        (tasks.breaks_transaction, (), True),
    ],
)
def test_the_end_is_told_if_and_only_if_the_task_has_ended(
    told: Told, task: Any, args: tuple[Any, ...], told_end: bool
) -> None:
    tasks.CALLS.clear()
    result = task.enqueue(*args)
    drain(raise_errors=False)
    result.refresh()
    assert ("task_finished" in [name for name, *_ in told]) is told_end
    assert result.is_finished is told_end


def test_who_listens_to_the_end_reads_errors_and_times_by_the_clock_of_the_database() -> None:
    """Naive: ``finished_at`` is Python's clock, which may be before ``started_at``."""
    seen: list[Any] = []

    def hear(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append([task_result.enqueued_at, task_result.started_at, task_result.finished_at])
        seen.append([error.exception_class for error in task_result.errors])

    signals.task_finished.connect(hear)
    try:
        tasks.fails.enqueue()
        with CaptureQueriesContext(connection) as queries:
            drain(raise_errors=False)
    finally:
        signals.task_finished.disconnect(hear)
    assert seen[0] == sorted(seen[0])
    assert seen[1] == [ValueError]
    reads = [query for query in queries.captured_queries if "task.codec = 'plain'" in query["sql"]]
    assert len(reads) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", [tasks.add, tasks.later])
def test_a_receiver_that_raises_changes_nothing_and_has_its_line(
    name: str, task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: its exception is that of the task, or of ``enqueue``, though the task was sent."""

    def wrong(sender: Any, **kwargs: Any) -> None:
        raise LookupError("the receiver is wrong")

    getattr(signals, name).connect(wrong)
    try:
        with caplog.at_level(logging.ERROR):
            result = task.enqueue(1)
            drain()
    finally:
        getattr(signals, name).disconnect(wrong)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "horsies.task"]
    assert "wrong raised LookupError" in line
    assert result.id in line


def test_the_log_of_django_says_how_a_task_went(caplog: pytest.LogCaptureFixture) -> None:
    logger = HorsiesBackend.api.package
    with caplog.at_level(logging.DEBUG, logger):
        tasks.add.enqueue(1)
        tasks.fails.enqueue()
        drain(raise_errors=False)
    lines = [(record.levelname, record.getMessage().split()[-1]) for record in caplog.records if record.name == logger]
    assert sorted(lines) == [
        ("DEBUG", "backend=default"), ("DEBUG", "backend=default"), ("ERROR", "state=FAILED"),
        ("INFO", "state=RUNNING"), ("INFO", "state=RUNNING"), ("INFO", "state=SUCCESSFUL"),
    ]  # fmt: skip
    (failed,) = [record for record in caplog.records if record.name == logger and record.levelname == "ERROR"]
    assert failed.exc_info is not None
    assert failed.exc_info[0] is ValueError
