"""Explaining a task reads no more of the table than a pass would, whatever the statistics say."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django.models import Task
from horsies_django.store.overviews import ExplanationStore
from tests.conftest import Claimer, limit, put
from tests.db.test_statements import explained, fill
from tests.support.factories import HeartbeatFactory, WorkerFactory

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = dt.timedelta(minutes=1)


@pytest.mark.parametrize("state", ["stale", "large"])
def test_it_reads_tasks_through_their_indexes_whatever_the_statistics_say(
    claimer: Callable[..., Claimer], connect: Callable[[], psycopg.Connection[Any]], state: str
) -> None:
    limit("default", max_concurrency=3, partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = claimer()
    put(3, kwargs=['{"tenant": 1}', '{"tenant": 2}', '{"tenant": 3}'])
    fill(state, connect(), kwargs=['{"tenant": 1}'] * 20_000)
    worker.run_pass(sync=2)
    id_, parked = put(2, kwargs=['{"tenant": 1}'] * 2)
    Task.objects.filter(pk=parked).update(parked=True)
    WorkerFactory(id=worker.id, queues=["default"])
    HeartbeatFactory(id=worker.id, worker_id=worker.id, role="claimer")
    notices = explained(worker)
    store = ExplanationStore(worker.conn)
    found = [store.facts(one, claimed=True, threshold=MINUTE) for one in (id_, parked)]
    assert found[0] is not None
    assert found[0]["before"] == 1_001
    shown = "\n".join(notices)
    assert not re.search(r"Seq Scan on horsies_tasks\b", shown)
    assert re.search(r"Index (Only )?Scan using horsies_tasks_claim", shown)
    counts = [text.partition("plan:")[2] for text in shown.split("duration:") if "AS earlier" in text]
    assert len(counts) == 2
    assert "horsies_tasks_parked" in counts[1]
    assert not any("Sort" in plan for plan in counts)
