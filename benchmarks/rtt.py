"""The cost of a distant server: a round trip of 2 ms between the worker and PostgreSQL.

The delay is that of ``benchmarks.link``. Measured: sync no-ops in soft mode, two processes, where
one round trip carries many tasks; and in hard mode tasks of 20 ms on four processes, where each
slot waits for the round trip that settles one task and claims the next. The second is a share of
the limit slots / (duration + 2 round trips), over the middle eight tenths of the tasks, without the
first claims and the last ends. The share is computed with 2 ms; the round trip that a client
measured is given beside.

Only the worker is behind the link, and the children of this worker use no database. Limits of the
figures: they do not cover a link that loses packets, or whose delay varies; a link through which
many clients go at once also has a bandwidth.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from functools import partial

import psycopg

from benchmarks.figures import Case, Goal, Reading
from benchmarks.link import far_away
from benchmarks.load import tasks
from benchmarks.machine import SOFT, backlog, drained, empty_tables, middle, worker

ONE_WAY_MS = 1.0
PINGS = 100
ROUND_TRIP = 2 * ONE_WAY_MS / 1000
DRAINED = 30_000
SLOTS = 4
DURATION_MS = 20
PAUSES = 4_000
ALLOWED = SLOTS / (DURATION_MS / 1000 + 2 * ROUND_TRIP)
SOFT_DRAIN = "rtt drain sync, soft mode, 2 processes"
HARD_SHARE = "rtt tasks of 20 ms, hard mode, 4 processes, share of what is possible"

GOALS = (Goal("P11", SOFT_DRAIN, 6_000), Goal("P11", HARD_SHARE, 0.85))


def cases(scale: float) -> Sequence[Case]:
    """Return one case for each mode."""
    return [
        Case("rtt soft mode", partial(soft, max(10, round(DRAINED * scale)))),
        Case("rtt hard mode", partial(hard, max(20, round(PAUSES * scale)))),
    ]


def soft(n: int) -> Sequence[Reading]:
    """Drain ``n`` no-ops."""
    empty_tables()
    backlog(tasks.noop, n)
    round_trip = let_run("--processes=2", **SOFT)
    return [Reading(SOFT_DRAIN, n / drained(n), "tasks/s", {"round trip, ms": round_trip})]


def hard(n: int) -> Sequence[Reading]:
    """Run ``n`` tasks of 20 ms, each of which needs a slot."""
    empty_tables()
    tasks.pause.send_many([{"tenant": 0, "ms": DURATION_MS}] * n)
    round_trip = let_run(f"--processes={SLOTS}")

    rate = 0.8 * n / middle(n)
    details = {"tasks/s": rate, "tasks/s possible": ALLOWED, "round trip, ms": round_trip}
    return [Reading(HARD_SHARE, rate / ALLOWED, "share", details)]


def let_run(*options: str, **environment: str) -> float:
    """Drain the table with a worker behind the link; return the round trip in ms."""
    with far_away(os.environ["DATABASE_URL"], ONE_WAY_MS) as url:
        round_trip = ping(url)
        with worker(*options, "--until-empty", wait=True, DATABASE_URL=url, **environment):
            pass
    return round_trip


def ping(url: str) -> float:
    """Return the median time of the simplest query to a server, in ms."""
    samples = []
    with psycopg.connect(url, autocommit=True) as client:
        for _ in range(PINGS):
            began = time.perf_counter()
            client.execute("SELECT 1")
            samples.append(time.perf_counter() - began)

    return 1000 * statistics.median(samples)
