"""Explaining a task reads no more of the table than a pass would, whatever the statistics say."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies_django.store.explanations import ExplanationStore
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
    (id_,) = put(kwargs=['{"tenant": 1}'])
    WorkerFactory(id=worker.id, queues=["default"])
    HeartbeatFactory(id=worker.id, worker_id=worker.id, role="claimer")
    notices = explained(worker)
    facts = ExplanationStore(worker.conn).facts(id_, claimed=True, threshold=MINUTE, grace=MINUTE)
    assert facts is not None
    assert facts["before"] == 1_001
    shown = "\n".join(notices)
    assert not re.search(r"Seq Scan on horsies_tasks\b", shown)
    assert re.search(r"Index (Only )?Scan using horsies_tasks_claim", shown)
    assert "horsies_tasks_parked" in shown
    for plan in (text.partition("plan:")[2] for text in shown.split("duration:") if "c_looks - v_looked" in text):
        assert "Sort" not in plan
