"""The history of counts is read in steps of time, and through its key."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter, defaultdict
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.core.counts import BOUNDS, CLAIMED, COMPLETED, NO_FAILURE, RETURNED
from horsies_django.models import WorkflowRun
from horsies_django.monitoring.history import NONE, Step, series
from horsies_django.store.base import now
from horsies_django.store.health import HealthStore
from horsies_django.store.history import HistoryStore
from horsies_django.testing import drain
from tests.conftest import Connect, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
INTO = "INSERT INTO horsies_history (width, at, queue, task, result, n, seconds, buckets)"
SPANS = [(HOUR, 60, MINUTE, 1), (2 * HOUR, 24, MINUTE, 5), (24 * HOUR, 24, HOUR, 1), (168 * HOUR, 56, HOUR, 3)]


def counted(
    conn: Any, width: dt.timedelta, ago: int, queue: str, task: str, result: str, n: int = 1, bucket: int = 0
) -> None:
    """Put a row into the history that began so many minutes or hours before the present one."""
    seconds = int(width.total_seconds())
    at = dt.datetime.fromtimestamp(now(conn).timestamp() // seconds * seconds, dt.UTC) - ago * width
    with conn.cursor() as cursor:
        cursor.execute(
            f"{INTO} VALUES (%s, %s, %s, %s, %s, %s, 0, %s)",
            (seconds, at, queue, task, result, n, [n * (place == bucket) for place in range(len(BOUNDS))]),
        )


@pytest.mark.parametrize(("span", "points", "width", "each"), SPANS)
def test_steps_hold_what_was_counted_in_them(
    connect: Connect, span: dt.timedelta, points: int, width: dt.timedelta, each: int
) -> None:
    """Naive: the last step has only what was counted since the last whole step, or the first also what is older."""
    conn, chance = connect(), random.Random(7)
    wait_until(lambda: now(conn).second < 40, "the minute is that of all rows")
    expected: dict[str, dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    groups: Counter[tuple[str, str]] = Counter()
    keys = [
        (ago, queue, result) for ago in range(points * each + 3) for queue in ("mail", "bulk") for result in RESULTS
    ]
    for ago, queue, result in chance.sample(keys, 300):
        n, place = chance.randrange(1, 9), points - 1 - ago // each
        counted(conn, width, ago, queue, "" if result == CLAIMED else "shop.pay", result, n, bucket=ago % 16)
        other = HOUR if width == MINUTE else MINUTE
        counted(conn, other, ago, queue, "shop.other", result, 99)
        if place >= 0:
            expected[queue][place][result] += n
            groups["shop.pay", result] += n * (result not in NO_FAILURE)
    found, failed = series(conn, span, points), HistoryStore(conn).failures(span, 9)
    for queue, steps in expected.items():
        assert len(found[queue]) == points
        for place in range(points):
            counts, step = steps[place], found[queue][place]
            assert step.completed == counts[COMPLETED] + counts[RETURNED]
            assert step.failed == counts["OH_NO"] + counts["TASK_TIMEOUT"]
            assert sum(step.waits) == counts[CLAIMED]
            assert sum(step.runs) == counts.total() - counts[CLAIMED]
    assert found.keys() == expected.keys()
    assert [tuple(one) for one in failed] == [(*key, n) for key, n in groups.most_common() if n]


RESULTS = (COMPLETED, RETURNED, CLAIMED, "RETRIED", "CANCELLED", "OH_NO", "TASK_TIMEOUT")


def test_a_queue_of_which_nothing_was_counted_is_missing_and_a_step_without_counts_is_empty(connect: Connect) -> None:
    conn = connect()
    assert (series(conn, HOUR, 60), HistoryStore(conn).failures(HOUR, 5)) == ({}, [])
    counted(conn, MINUTE, 3, "mail", "", CLAIMED, bucket=2)
    (steps,) = series(conn, HOUR, 60).values()
    assert [step for step in steps if step != Step()] == [Step(waits=(0, 0, 1, *NONE[3:]))]


def test_steps_and_failures_are_read_through_the_key_of_the_history(connect: Connect) -> None:
    conn = connect()
    for state in ("empty", "stale", "large"):
        plans: list[str] = []
        session = connect()
        try:
            session.execute("LOAD 'auto_explain'")
        except psycopg.Error as error:
            pytest.skip(f"auto_explain cannot be loaded: {error}")
        session.add_notice_handler(lambda notice, plans=plans: plans.append(notice.message_primary or ""))  # type: ignore[misc]
        for setting in (
            "auto_explain.log_min_duration = 0",
            "auto_explain.log_nested_statements = on",
            "client_min_messages = log",
        ):
            session.execute(f"SET {setting}".encode())
        series(session, HOUR, 60)
        HistoryStore(session).failures(HOUR, 5)
        text = "\n".join(plans)
        assert len(re.findall(r"Index Cond: \(\(width = .*\) AND \(at > ", text)) == 2, (state, text)
        assert "Seq Scan" not in text, state
        if state == "empty":
            rows = "SELECT 60, now() - n * interval '1 min', 'mail', 'shop.' || m, 'COMPLETED', 1, 0, array_fill(0, ARRAY[16])"
            series_ = "generate_series(1, 1000) AS n, generate_series(1, 9) AS m"
            conn.execute(f"{INTO} {rows} FROM {series_}".encode())
        else:
            conn.execute("ANALYZE horsies_history")


def test_gates_that_wait_are_counted_by_workflow_and_name_with_the_oldest(connect: Connect) -> None:
    """With and without a timeout; timers, and gates that are decided or whose run has ended, are none of them."""
    runs = []
    for timeout in (None, HOUR, None):
        flow = Workflow("order")
        flow.gate("approve", timeout=timeout)
        flow.sleep(2 * HOUR, name="a night")
        runs.append(flow.send())
    other = Workflow("other")
    other.gate("look")
    ended = other.send()
    drain(raise_errors=False)
    runs[2].approve("approve", actor="ada")
    ended.cancel(actor="ada")
    drain(raise_errors=False)
    (found,) = HealthStore(connection).waiting_gates()
    assert (found.workflow, found.gate, found.many, found.run) == ("order", "approve", 2, runs[0].workflow_id)
    assert WorkflowRun.objects.filter(pk=found.run).exists()
