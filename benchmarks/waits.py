"""Workflows that wait: 10,000 runs that wake at the same moment, and 10,000 signals.

While the runs sleep, an idle look for due nodes is run on its own, and the buffers that it reads
are counted, with and without sleeping runs. Then all timers end at one moment, and each lets one
task follow: time counts from that moment to the send of the last of these tasks, by the server's
clock, while a worker with ``--processes=4`` also runs them. The longest pass of its engine is read
from pg_stat_statements, if the server counts statements.

Signals: ten runs, each with a chain of waits for each of eight senders, which sends its signals
with a key of its own. Meanwhile a worker gives them to the nodes. Time counts from the first signal
to the end of the last run. The benchmark checks that each was taken once, and that those of a
sender were taken in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import timedelta

from django.db import DatabaseError, connection, transaction

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, wait_for, worker
from horsies_django import Workflow, WorkflowHandle
from horsies_django.models import WorkflowNode, WorkflowSignal
from horsies_django.store.base import statement_text

SLEEPERS = 10_000
SIGNALS = 10_000
RUNS = 10
SENDERS = 8
CHUNK = 1_000
READY_SECONDS = 5.0  # for the worker to start before the timers end
OPTIONS = ("--processes=4",)

WAKE = "workflow wake of 10,000 runs"
LONGEST = "workflow wake of 10,000 runs, longest pass"
IDLE = "workflow idle tick with 10,000 sleeping runs"
IDLE_EMPTY = "workflow idle tick with none"
SIGNALLED = "workflow signals"
GOALS = (
    Goal("workflow", WAKE, 5, at_most=True),
    Goal("workflow", LONGEST, 50, at_most=True),
    Goal("workflow", IDLE, 1.5, over=IDLE_EMPTY, at_most=True),
)
LOOKS = {
    "horsies_owed": {"age": None, "many": 1_000, "now": None},
    "horsies_wake": {"many": 50, "limit": 200, "max_bytes": 1_000_000, "channel": "x", "now": None},
}
END_TIMERS = """
UPDATE horsies_workflow_nodes
SET due_at = clock_timestamp() + %s
WHERE status = 'WAITING'
RETURNING due_at
"""
PROMOTED = "SELECT count(*) = %s FROM horsies_tasks"
LAST = (
    "SELECT extract(epoch FROM max(sent_at) - %s), extract(epoch FROM max(finished_at) - %s) FROM "
    "horsies_tasks"
)
PASSES = "SELECT max(max_exec_time) FROM pg_stat_statements WHERE query LIKE '%horsies%pass(%'"
FORGET = (
    "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = current_database()"
)
ALL_RUNS_ENDED = "SELECT NOT EXISTS (SELECT FROM horsies_workflows WHERE finished_at IS NULL)"
TOOK = """
SELECT extract(epoch FROM (SELECT max(finished_at) FROM horsies_workflows) - min(sent_at))
FROM horsies_workflow_signals
"""


def cases(scale: float) -> Sequence[Case]:
    """Return the cases; a scale above 1 has no effect."""
    return [
        Case(WAKE, lambda: wake(max(20, round(SLEEPERS * min(scale, 1.0))))),
        Case(SIGNALLED, lambda: signals(max(SENDERS * RUNS, round(SIGNALS * min(scale, 1.0))))),
    ]


def wake(n: int) -> list[Reading]:
    """Create sleeping runs, look for due nodes, and wake all runs at once while a worker runs."""
    empty_tables()
    idle = buffers()

    for start in range(0, n, CHUNK):
        with transaction.atomic():
            for number in range(start, min(start + CHUNK, n)):
                flow = Workflow("sleeper")
                flow.add(tasks.noop, number, after=flow.sleep(timedelta(days=1)))
                flow.send()

    asked(
        "VACUUM ANALYZE horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges, "
        "horsies_tasks"
    )
    asleep = buffers()

    with worker(*OPTIONS, wait=False) as process:
        counted = forget()
        (due,) = asked(END_TIMERS, timedelta(seconds=READY_SECONDS))
        wait_for(PROMOTED, n, process=process)
        wait_for(ALL_RUNS_ENDED, process=process)
        longest = asked(PASSES)[0] if counted else None

    promoted, finished = asked(LAST, due, due)
    readings = [
        Reading(IDLE_EMPTY, idle, "buffers"),
        Reading(IDLE, asleep, "buffers"),
        Reading(WAKE, float(promoted), "s", {"until all tasks had run, s": float(finished)}),
    ]

    return readings if longest is None else [*readings, Reading(LONGEST, longest, "ms")]


def buffers() -> float:
    """Return how many buffers the looks of an idle tick read, when they have run before."""
    found = 0
    with connection.cursor() as cursor:
        for name, params in LOOKS.items():
            for _ in range(3):
                cursor.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement_text(name, params)}",
                    params,
                )
                (plan,) = cursor.fetchone()

            plan = json.loads(plan) if isinstance(plan, str) else plan
            found += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

    return float(found)


def signals(n: int) -> list[Reading]:
    """Send signals from several senders, each with its key, to runs of waiting nodes."""
    empty_tables()
    length = n // (RUNS * SENDERS)
    handles = [chains(length) for _ in range(RUNS)]

    asked(
        "VACUUM ANALYZE horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges, "
        "horsies_tasks"
    )

    with worker(*OPTIONS, wait=False) as process:
        threads = [
            threading.Thread(target=send, args=(handles, sender, length))
            for sender in range(SENDERS)
        ]

        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(ALL_RUNS_ENDED, process=process)

    check(length)
    return [Reading(SIGNALLED, length * RUNS * SENDERS / float(asked(TOOK)[0]), "signals/s")]


def chains(length: int) -> WorkflowHandle:
    """Send a run with a chain of waits for each sender."""
    flow = Workflow("signals")
    for sender in range(SENDERS):
        before = flow.signal("go", key=str(sender))
        for _ in range(length - 1):
            before = flow.signal("go", key=str(sender), after=before)

    return flow.send()


def send(handles: Sequence[WorkflowHandle], sender: int, length: int) -> None:
    """Send the signals of one sender, to the runs in turns."""
    try:
        for number in range(length):
            for handle in handles:
                handle.signal("go", number, key=str(sender))
    finally:
        connection.close()


def check(length: int) -> None:
    """Raise RuntimeError unless each signal was taken once, and those of each sender in order."""
    if WorkflowSignal.objects.filter(used_at=None).exists():
        raise RuntimeError("some signals were not taken")

    taken: dict[tuple[object, str], list[int]] = {}
    rows = WorkflowNode.objects.order_by("number").values_list("workflow_id", "signal_key", "value")
    for run, key, value in rows:
        taken.setdefault((run, key), []).append(value)

    if any(values != list(range(length)) for values in taken.values()):
        raise RuntimeError("signals were taken twice, or not in order")


def asked(query: str, *params: object) -> tuple[object, ...]:
    """Run a query and return its first row, empty if it has none."""
    with connection.cursor() as cursor:
        cursor.execute(query, params or None)
        return cursor.fetchone() if cursor.description else ()


def forget() -> bool:
    """Reset the times of statements; return whether the server counts them."""
    try:
        asked(FORGET)
    except DatabaseError:
        return False
    return True
