"""Signals of sends and of ``drain()``, ours and Django's: their order, values and receivers."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Retry, RetryPolicy, signals
from horsies_django.backends import HorsiesBackend
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.schedules import create, run_now
from horsies_django.testing import drain
from tests.apps.errands import tasks as errands
from tests.apps.errands.api import TaskResultStatus
from tests.apps.errands.api import signals as django_signals
from tests.apps.project import tasks
from tests.desk.conftest import Watch

pytestmark = pytest.mark.django_db


def test_the_task_sent_signal_follows_the_insert(
    watch: Watch,
) -> None:
    """``task_sent`` is sent after the INSERT, with plain values, and not for a refused send."""
    got = watch("task_sent")
    with pytest.raises(Exception, match="priority must be"):
        tasks.add.with_options(priority=0).send(1)

    handle = tasks.mail.with_options(metadata={"tenant": 7}).send("a@example.org")

    ((name, sender, values),) = got
    assert (name, sender) == ("task_sent", tasks.mail.definition)
    assert isinstance(values["metadata"], MappingProxyType)
    assert values == {
        "task_ids": (handle.task_id,),
        "task_name": tasks.mail.name,
        "queue_name": "mail",
        "priority": 7,
        "metadata": {"tenant": 7},
        "using": "default",
    }


def test_the_task_sent_signal_is_in_the_sender_s_transaction(watch: Watch) -> None:
    watch()

    def receive(task_ids: tuple[uuid.UUID, ...], **values: Any) -> None:
        Group.objects.create(name=f"sent {Task.objects.get(pk__in=task_ids).pk}")

    signals.task_sent.connect(receive, weak=False)
    kept = tasks.noop.send()

    with pytest.raises(LookupError), transaction.atomic():
        tasks.noop.send()
        raise LookupError

    assert Group.objects.get().name == f"sent {kept.task_id}"


def test_each_way_to_send_is_one_signal_with_all_its_ids(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: there is a signal for each of 100,000 rows, or one for each INSERT."""
    got = watch("task_sent")
    monkeypatch.setattr("horsies_django.tasks.enqueue.CHUNK_ROWS", 2)

    many = tasks.add.send_many([{"a": n} for n in range(5)])
    assert tasks.add.send_many([]) == []

    handles = [
        async_to_sync(tasks.add.asend)(1),
        tasks.add.schedule(60, 1),
        tasks.add.with_options(delay=60).send(1),
    ]

    create(
        "nightly",
        {"task": tasks.add.name, "kwargs": {"a": 1}, "pattern": "daily at 04:30"},
        actor="ada",
    )

    single = [*(handle.task_id for handle in handles), run_now("nightly", actor="ada")]
    single.append(uuid.UUID(errands.add.enqueue(1).id))

    expected = [tuple(handle.task_id for handle in many), *((id_,) for id_ in single)]
    assert [values["task_ids"] for _, _, values in got] == expected


def test_a_receiver_that_raises_is_named_and_the_task_sent(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: Django's own method raises AttributeError for a receiver that is an object."""
    early = watch("task_sent")
    broken = partial(refuses)
    signals.task_sent.connect(broken)
    signals.task_sent.connect(refuses)
    late = watch("task_sent")

    handle = tasks.add.send(1)

    assert (len(early), len(late)) == (1, 1), "the others got it, before and after"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        f"the receiver {name} of task_sent raised TypeError(\"'mappingproxy' object does not "
        'support item assignment")'
        for name in ("functools.partial", f"{__name__}.refuses")
    ]
    assert all(record.name == "horsies.signals" and record.exc_info for record in errors)
    assert Task.objects.get(pk=handle.task_id).options is None


def refuses(metadata: Any, **values: Any) -> None:
    metadata["tenant"] = 8


def test_a_receiver_can_be_connected_to_one_task(watch: Watch) -> None:
    """A receiver can be connected to one task and be disconnected."""
    watch()
    got: list[Any] = []

    def receive(**values: Any) -> None:
        got.append(values["task_name"])

    signals.task_sent.connect(receive, sender=tasks.add)
    signals.task_finished.connect(receive, sender=tasks.add.definition)

    tasks.add.send(1)
    tasks.noop.send()
    drain()

    assert got == [tasks.add.name] * 2
    assert signals.task_sent.disconnect(receive, sender=tasks.add)
    assert not signals.task_sent.disconnect(receive, sender=tasks.add)


def test_drain_sends_the_signals_of_a_worker(watch: Watch) -> None:
    got = watch("task_started", "task_retried", "task_finished", "task_failed")
    policy = RetryPolicy.fixed([60], jitter=False)
    metadata = {"tenant": 7}

    handle = tasks.raises.with_options(retry_policy=policy, metadata=metadata).send("no")
    drain(until=dt.timedelta(minutes=2), raise_errors=False)

    about = {
        "task_id": handle.task_id,
        "task_name": tasks.raises.name,
        "queue_name": "default",
        "metadata": metadata,
    }

    told = [name.removeprefix("task_") for name, _, _ in got]
    assert told == ["started", "retried", "started", "finished", "failed"]

    for (_, sender, values), attempt in zip(got, (1, 1, 2, 2, 2), strict=True):
        assert sender is tasks.raises.definition
        assert {**about, "attempt": attempt}.items() <= values.items()
        assert isinstance(values["worker_id"], uuid.UUID)

    retried = got[1][2]
    finished = got[3][2]
    assert retried["error_code"] == finished["error_code"] == "UNHANDLED_ERROR"
    assert finished["status"] == "FAILED"
    assert "LookupError: no" in finished["error_message"]
    assert got[4][2]["traceback"].endswith("LookupError: no\n")

    first = handle.info().attempts[0]  # type: ignore[union-attr]
    assert retried["retry_at"] == aware(first.finished_at) + dt.timedelta(seconds=60)


NAMES = ("task_enqueued", "task_started", "task_finished")
Told = list[tuple[str, str, str, int, type | None]]


@contextmanager
def connected(receiver: Any, *names: str) -> Iterator[None]:
    for name in names:
        getattr(django_signals, name).connect(receiver, sender=HorsiesBackend)

    try:
        yield
    finally:
        for name in names:
            getattr(django_signals, name).disconnect(receiver, sender=HorsiesBackend)


@pytest.fixture
def told() -> Iterator[Told]:
    """Collect the signals whose sender is the backend class.

    Each is (name, id, status, attempts, the class of the exception that is being handled).
    """
    found: Told = []
    signal_names = {getattr(django_signals, name): name for name in NAMES}

    def hear(signal: Any, task_result: Any, **kwargs: Any) -> None:
        status = str(task_result.status)
        attempts = task_result.attempts
        found.append((signal_names[signal], task_result.id, status, attempts, sys.exc_info()[0]))

    with connected(hear, *NAMES):
        yield found


@pytest.mark.parametrize(
    ("task", "args", "starts", "end"),
    [
        (errands.add, (1,), 1, ("SUCCESSFUL", 1, None)),
        (errands.later, (1,), 1, ("SUCCESSFUL", 1, None)),
        (errands.fails, (), 1, ("FAILED", 1, ValueError)),
        (errands.fails_async, (), 1, ("FAILED", 1, ValueError)),
        (errands.tried, (2,), 3, ("SUCCESSFUL", 3, None)),
        (errands.tried, (3,), 3, ("FAILED", 3, ValueError)),
        (errands.tried, (1, "KeyError"), 1, ("FAILED", 1, KeyError)),
        (errands.waits, ("no",), 1, None),
        (errands.paused, ("never",), 1, ("FAILED", 1, ValueError)),
        (errands.asks, (), 2, ("FAILED", 2, Retry)),
        (errands.rests, (1,), 1, None),  # a snooze is no end
        (errands.interrupted, (), 1, None),
        (errands.breaks_transaction, (), 1, ("FAILED", 1, ProgrammingError)),
    ],
)
def test_the_sender_of_each_start_and_end_is_the_backend_class(
    told: Told, task: Any, args: tuple[Any, ...], starts: int, end: Any
) -> None:
    """The sender of each start, and of the end if there is one, is the backend class.

    Fails if: the sender is an instance, or the end is sent when the exception can no longer be
    reported.
    """
    errands.CALLS.clear()
    result = async_to_sync(task.aenqueue)(*args) if task is errands.tried else task.enqueue(*args)
    drain(raise_errors=False)

    expected = [("task_enqueued", "READY", 0, None)]
    expected += [("task_started", "RUNNING", start, None) for start in range(1, starts + 1)]
    expected += [("task_finished", *end)] if end else []
    assert told == [(name, result.id, *rest) for name, *rest in expected]

    result.refresh()
    assert result.is_finished is bool(end)


def test_a_receiver_of_the_end_reads_errors_and_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A receiver of the end can read errors and times, and the log has the signals.

    Fails if: ``finished_at`` is Python's clock, which may be before ``started_at``.
    """
    seen: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        seen.append([task_result.enqueued_at, task_result.started_at, task_result.finished_at])
        seen.append([error.exception_class for error in task_result.errors])

    logger = HorsiesBackend.api.package
    with connected(hear, "task_finished"), caplog.at_level(logging.DEBUG, logger):
        errands.fails.enqueue()
        with CaptureQueriesContext(connection) as queries:
            drain(raise_errors=False)

        assert seen[0] == sorted(seen[0])
        assert seen[1] == [ValueError]
        assert (
            len(
                [
                    query
                    for query in queries.captured_queries
                    if "task.codec = 'plain'" in query["sql"]
                ]
            )
            == 1
        )

        errands.add.enqueue(1)
        drain()

    records = [record for record in caplog.records if record.name == logger]
    assert [(record.levelname, record.getMessage().split()[-1]) for record in records] == [
        ("DEBUG", "backend=default"),
        ("INFO", "state=RUNNING"),
        ("ERROR", "state=FAILED"),
        ("DEBUG", "backend=default"),
        ("INFO", "state=RUNNING"),
        ("INFO", "state=SUCCESSFUL"),
    ]
    assert records[2].exc_info[0] is ValueError


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", [errands.add, errands.later])
def test_a_receiver_that_raises_changes_nothing_and_has_its_line(
    name: str, task: Any, caplog: Any
) -> None:
    def wrong(**kwargs: Any) -> None:
        raise LookupError("the receiver is wrong")

    with connected(wrong, name), caplog.at_level(logging.ERROR):
        result = task.enqueue(1)
        drain()

    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "horsies.task"]
    assert "wrong raised LookupError" in line
    assert result.id in line
