"""Signals where tasks are sent, and in drain(): their moments, their arguments, and receivers that fail."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import transaction

from horsies_django import RetryPolicy, signals
from horsies_django.models import Task
from horsies_django.models.fields import aware
from horsies_django.schedules import create, run_now
from horsies_django.testing import drain
from tests.apps.project import tasks

pytestmark = pytest.mark.django_db

Got = list[tuple[str, Any, dict[str, Any]]]
Watch = Callable[..., Got]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Give a function that connects a receiver to signals, and returns the list of what it gets."""
    for name in signals.__all__:
        monkeypatch.setattr(getattr(signals, name), "receivers", [])

    def connect(*names: str, **how: Any) -> Got:
        got: Got = []

        def note(sender: Any, signal: Any, **values: Any) -> None:
            got.append((signal.name, sender, values))

        for name in names:
            getattr(signals, name).connect(note, weak=False, **how)
        return got

    return connect


def test_a_send_is_told_after_its_insert_with_plain_values(watch: Watch) -> None:
    got = watch("task_sent")
    handle = tasks.mail.with_options(metadata={"tenant": 7}).send("a@example.org")
    assert got == [
        (
            "task_sent",
            tasks.mail.definition,
            {
                "task_ids": (handle.task_id,),
                "task_name": tasks.mail.name,
                "queue_name": "mail",
                "priority": 7,
                "metadata": {"tenant": 7},
                "using": "default",
            },
        )
    ]
    assert isinstance(got[0][2]["metadata"], MappingProxyType)


@pytest.mark.django_db(transaction=True)
def test_it_is_told_in_the_sender_s_transaction_and_work_for_later_waits_for_the_commit(watch: Watch) -> None:
    watch()
    done = []

    def receive(task_ids: tuple[uuid.UUID, ...], using: str, **values: Any) -> None:
        assert Task.objects.filter(pk__in=task_ids).exists()
        Group.objects.create(name=f"sent {task_ids[0]}")
        transaction.on_commit(lambda: done.append(task_ids[0]), using=using)

    signals.task_sent.connect(receive, weak=False)
    with transaction.atomic():
        kept = tasks.noop.send()
        assert done == []
    with pytest.raises(LookupError), transaction.atomic():
        tasks.noop.send()
        raise LookupError
    assert done == [kept.task_id]
    assert [group.name for group in Group.objects.all()] == [f"sent {kept.task_id}"]


def test_a_send_of_many_is_one_signal_with_all_its_ids(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: a signal for each of 100,000 rows, or one for each INSERT."""
    got = watch("task_sent")
    few = tasks.add.send_many([{"a": 1}, {"a": 2}])
    monkeypatch.setattr("horsies_django.tasks.enqueue.CHUNK", 2)
    many = tasks.add.send_many([{"a": n} for n in range(5)])
    assert tasks.add.send_many([]) == []
    assert [values["task_ids"] for _, _, values in got] == [
        tuple(handle.task_id for handle in handles) for handles in (few, many)
    ]


def test_async_sends_schedules_and_delays_are_sends_too(watch: Watch) -> None:
    got = watch("task_sent")
    handles = [
        async_to_sync(tasks.add.asend)(1),
        tasks.add.schedule(60, 1),
        tasks.add.with_options(delay=60).send(1),
    ]
    create("nightly", {"task": tasks.add.name, "kwargs": {"a": 1}, "pattern": "daily at 04:30"}, actor="ada")
    ids = [*(handle.task_id for handle in handles), run_now("nightly", actor="ada")]
    assert [values["task_ids"] for _, _, values in got] == [(id_,) for id_ in ids]


def test_a_send_that_is_refused_is_not_told(watch: Watch) -> None:
    got = watch("task_sent")
    with pytest.raises(Exception, match="priority must be"):
        tasks.add.with_options(priority=0).send(1)
    assert got == []


def test_a_receiver_that_raises_is_named_in_the_log_once_and_the_task_is_sent(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: Django's own method raises AttributeError for a receiver that is an object."""

    class Broken:
        def __call__(self, **values: Any) -> None:
            raise LookupError("no such metric")

    got = watch("task_sent")
    broken = Broken()
    signals.task_sent.connect(broken)
    signals.task_sent.connect(refuses)
    late = watch_also(signals.task_sent)
    handle = tasks.add.send(1)
    assert Task.objects.filter(pk=handle.task_id).exists()
    assert (len(got), len(late)) == (1, 1), "the others got it, before and after"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "the receiver tests.desk.test_signals.test_a_receiver_that_raises_is_named_in_the_log_once_and_the_task_is_sent."
        "<locals>.Broken of task_sent raised LookupError('no such metric')",
        "the receiver tests.desk.test_signals.refuses of task_sent raised "
        "TypeError(\"'mappingproxy' object does not support item assignment\")",
    ]
    assert all(record.name == "horsies.signals" and record.exc_info for record in errors)
    assert Task.objects.get(pk=handle.task_id).options is None


def refuses(metadata: Any, **values: Any) -> None:
    metadata["tenant"] = 8


def watch_also(signal: signals.HorsiesSignal) -> list[Any]:
    got: list[Any] = []
    signal.connect(lambda **values: got.append(values), weak=False)
    return got


def test_a_receiver_can_be_connected_to_one_task_and_disconnected(watch: Watch) -> None:
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
    tasks.add.send(1)
    assert len(got) == 2


def test_drain_tells_what_a_worker_would(watch: Watch) -> None:
    got = watch("task_started", "task_retried", "task_finished")
    policy = RetryPolicy.fixed([60], jitter=False)
    handle = tasks.raises.with_options(retry_policy=policy, metadata={"tenant": 7}).send("no")
    drain(until=dt.timedelta(minutes=2), raise_errors=False)
    about = {
        "task_id": handle.task_id,
        "task_name": tasks.raises.name,
        "queue_name": "default",
        "metadata": {"tenant": 7},
    }
    assert [name for name, _, _ in got] == ["task_started", "task_retried", "task_started", "task_finished"]
    assert {sender for _, sender, _ in got} == {tasks.raises.definition}
    for (_, _, values), attempt in zip(got, (1, 1, 2, 2), strict=True):
        assert {**about, "attempt": attempt}.items() <= values.items()
        assert isinstance(values["worker_id"], uuid.UUID)
    retried, finished = got[1][2], got[3][2]
    assert (retried["error_code"], finished["error_code"], finished["status"]) == (*["UNHANDLED_ERROR"] * 2, "FAILED")
    assert "LookupError: no" in finished["error_message"]
    info = handle.info()
    assert info is not None
    assert retried["retry_at"] == aware(info.attempts[0].finished_at) + dt.timedelta(seconds=60)
