"""Sends in SERIALIZABLE transactions that run at the same time.

PostgreSQL ends one of them with 40001 if each reads, by an index, where the next one writes. So a send may not read back what it
has just written.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from horsies_django import Workflow, schedules
from horsies_django.core.notifications import read_told
from horsies_django.models import Task, WorkflowRun
from horsies_django.store.notify import channel_prefix
from horsies_django.tasks import enqueue
from horsies_django.testing import drain
from horsies_django.workflows.advancer import Advancer
from tests.apps.errands import tasks as errands
from tests.apps.project import tasks
from tests.conftest import limit

pytestmark = pytest.mark.django_db(transaction=True)

numbers = itertools.count()


def chain(key: str | None = None) -> None:
    flow = Workflow("chain", key=key)
    flow.add(tasks.add, flow.add(tasks.add, 1), 2)
    flow.send()


def map_() -> None:
    flow = Workflow("map")
    flow.map(tasks.add, a=[1, 2, 3])
    flow.send()


SENDS: dict[str, Callable[[], Any]] = {
    "send": lambda: tasks.add.send(1),
    "schedule": lambda: tasks.add.schedule(dt.timedelta(hours=1), 1),
    "partition": lambda: tasks.add.with_options(queue="bulk").send(1),
    "send_many": lambda: tasks.add.send_many([{"a": n} for n in range(3)]),
    "chunks": lambda: tasks.add.send_many([{"a": n} for n in range(7)]),
    "enqueue": lambda: errands.add.enqueue(1, 2),
    "enqueue later": lambda: errands.add.using(run_after=dt.timedelta(hours=1)).enqueue(1, 2),
    "run now": lambda: schedules.run_now("nightly", actor="a test"),
    "workflow": chain,
    "workflow with a key": lambda: chain(f"key {next(numbers)}"),
    "map": map_,
}


@pytest.fixture(autouse=True)
def declared(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = {"task": tasks.add.name, "pattern": "daily at 04:30", "zone": "Europe/Istanbul", "kwargs": {"a": 1}}
    settings.HORSIES = {**settings.HORSIES, "SCHEDULES": {"nightly": nightly}}
    schedules.declare(actor="a scheduler")
    limit("bulk", partition_by_args=["a"], partition_max_concurrency=2)
    monkeypatch.setattr(enqueue, "CHUNK", 3)


@contextmanager
def serializable(using: Any) -> Iterator[None]:
    """Let Django's connection be this one, in a SERIALIZABLE transaction that stays open after the block."""
    own, connections["default"] = connections["default"], using
    try:
        using.set_autocommit(False)
        using.cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        yield
    finally:
        connections["default"] = own


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_sends_side_by_side_do_not_make_each_other_fail(send: Callable[[], Any]) -> None:
    first, second, third = (connections["default"].copy() for _ in range(3))
    with closing(first), closing(second), closing(third):
        for each in (first, second, third):
            with serializable(each):
                send()
        for each in (
            third,
            second,
            first,
        ):  # each has read where the next one wrote, and the last of them commits first
            each.commit()
    drain(until=dt.timedelta(hours=2))
    for model in (Task, WorkflowRun):
        assert not model.objects.exclude(status="COMPLETED").exists()
    assert Task.objects.count() >= 3


def test_a_worker_that_hears_of_such_a_run_sends_its_first_tasks(
    connect: Callable[[], psycopg.Connection[Any]],
) -> None:
    listener, other = connect(), connect()
    prefix = channel_prefix(listener)
    listener.execute(f"LISTEN {prefix}_new")
    with transaction.atomic():
        connections["default"].cursor().execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        chain()
    assert not Task.objects.exists()
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    told = read_told(heard.payload)
    assert told is not None
    assert told.run is not None
    advancer = Advancer(1_000_000)
    advancer.tell(told.run)
    assert advancer.turn(advancer.store(other, prefix))
    assert Task.objects.count() == 1
