"""The time of a claim: it does not grow with waiting, blocked or finished tasks.

The statements are those of one worker alone. A measurement claims eight tasks a pass and settles
them in another, which is not timed. The other rows are written into the table as the queue would
have left them: tasks of a partition at its limit are parked, their head is running.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from django.db import connection

from benchmarks.caps.ratios import Ratio, compare
from benchmarks.caps.running import FREE, set_limits
from benchmarks.machine import empty_tables, report
from horsies_django.core.records import Outcome, Wanted
from horsies_django.store.notify import channel_prefix, direct_connection
from horsies_django.store.tasks import Served, TaskStore

BATCH = 8
PASSES = 500
WARM = 50
PARTITIONED = FREE | {"partition_by_args": ["tenant"], "partition_max_concurrency": 1}
CAPPED = FREE | {"max_concurrency": 100_000}
# All rows are of one queue and lane, so the index of claimable tasks has them side by side.
ROWS = """
INSERT INTO horsies_tasks (
  id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, status, parked,
  partition_key, partition_version, claimed_at, started_at, claimed_by, claim_generation,
  finished_at, result
)
SELECT gen_random_uuid(), 'noop', 'default', 'sync', %(priority)s, made.kwargs, made.sent,
       made.sent + %(delay)s::interval, %(status)s, %(parked)s,
       horsies_partition_key(
         l.partition_by_args, l.partition_by_task, made.kwargs::json, 'noop', NULL
       ),
       l.partition_version,
       CASE WHEN %(status)s <> 'PENDING' THEN made.sent END,
       CASE WHEN %(status)s <> 'PENDING' THEN made.sent END,
       CASE WHEN %(status)s <> 'PENDING' THEN %(worker)s::uuid END,
       (%(status)s <> 'PENDING')::int,
       CASE WHEN %(status)s = 'COMPLETED' THEN made.sent END,
       CASE WHEN %(status)s = 'COMPLETED' THEN '{"ok": null}'::jsonb END
FROM horsies_limits l
CROSS JOIN LATERAL (
  SELECT jsonb_build_object('tenant', %(prefix)s || number %% %(tenants)s) AS kwargs,
         now() - interval '1 day' * %(days)s + interval '1 ms' * number AS sent
  FROM generate_series(1, %(count)s) AS number
) AS made
WHERE l.queue_name = 'default'
"""


def put(
    count: int,
    *,
    prefix: str = "open-",
    tenants: int = 1_000,
    status: str = "PENDING",
    **columns: Any,
) -> None:
    """Write rows as the queue would have left them."""
    values: dict[str, Any] = {"priority": 100, "delay": "0", "parked": False, "days": 1, **columns}
    with connection.cursor() as cursor:
        params = {
            "count": count,
            "prefix": prefix,
            "tenants": tenants,
            "status": status,
            "worker": uuid.uuid4(),
            **values,
        }
        cursor.execute(ROWS, params)


def flat(repeats: int, scale: float) -> list[Ratio]:
    """Compare tables that have a million other rows with tables that have none."""
    million = round(1_000_000 * scale)
    crowd = max(2, round(5_000 * scale))

    def one_tenant() -> None:
        put(1, prefix="full-", tenants=1, status="RUNNING", days=9)
        put(million, prefix="full-", tenants=1, parked=True, days=9)

    def running_tenants() -> None:
        put(crowd, prefix="full-", tenants=crowd, status="RUNNING", days=9)

    def many_tenants() -> None:
        running_tenants()
        put(20 * crowd, prefix="full-", tenants=crowd, parked=True, days=9)

    tables: dict[str, Callable[[], None]] = {
        "nothing in the way": lambda: None,
        "1,000,000 tasks of one tenant at its limit": one_tenant,
        "5,000 tenants running": running_tenants,
        "10,000 tenants, half at their limit": many_tenants,
        "1,000,000 tasks due in a month at a better priority": lambda: put(
            million, priority=1, delay="30 days"
        ),
        "1,000,000 finished tasks": lambda: put(million, status="COMPLETED", days=9),
    }

    found = in_turns(tables, PARTITIONED, repeats, scale)
    clear = found.pop("nothing in the way")
    running = found.pop("5,000 tenants running")

    ratios = [
        compare(f"claim with {name}, to without", times, clear, "ms", 2.0, at_most=True)
        for name, times in found.items()
    ]

    half = found["10,000 tenants, half at their limit"]
    return [
        *ratios,
        compare(
            "claim with half at their limit, to as many running",
            half,
            running,
            "ms",
            2.0,
            at_most=True,
        ),
    ]


def counting(repeats: int, scale: float) -> list[Ratio]:
    """Compare 2,000 tasks in flight under a cap with 20."""
    tables = {
        f"{count:,} in flight": lambda count=count: put(count, status="RUNNING", days=9)
        for count in (20, 2_000)
    }
    found = in_turns(tables, CAPPED, repeats, scale)

    many = found["2,000 in flight"]
    few = found["20 in flight"]
    return [
        compare("claim under a cap with 2,000 in flight, to 20", many, few, "ms", 3.0, at_most=True)
    ]


def in_turns(
    tables: dict[str, Callable[[], None]], limits: dict[str, Any], repeats: int, scale: float
) -> dict[str, list[float]]:
    """Measure each table ``repeats`` times, in turns; return the medians in milliseconds."""
    medians: dict[str, list[float]] = {name: [] for name in tables}
    passes = max(20, round(PASSES * min(1.0, scale * 10)))

    for _ in range(repeats):
        for name, fill in tables.items():
            empty_tables()
            set_limits(limits, wait=False)  # no worker reacts to the change
            put((passes + WARM) * BATCH * 2)
            fill()
            with connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE horsies_tasks")

            samples = claim_times(passes)
            medians[name].append(statistics.median(samples) * 1_000)
            report(
                f"caps claim, {name}",
                passes,
                sum(samples),
                f"{BATCH} tasks a pass, one connection",
                samples,
            )

    return medians


def claim_times(passes: int) -> list[float]:
    """Claim so many times, after a warm-up; return the seconds of each claim.

    Raises RuntimeError if a claim got too few tasks.
    """
    times = []
    with direct_connection("default", application_name="benchmarks", prepare=True) as conn:
        store = TaskStore(conn)
        worker = uuid.uuid4()
        channel = channel_prefix(conn)
        served = Served(["default"])

        for number in range(WARM + passes):
            begin = time.perf_counter()
            claims = store.run_pass(worker, channel, served, Wanted(sync=BATCH)).claims
            taken = time.perf_counter() - begin

            if len(claims) != BATCH:
                raise RuntimeError(f"a claim brought {len(claims)} of {BATCH} tasks")

            outcomes = [
                Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": null}') for claim in claims
            ]
            store.run_pass(worker, channel, served, outcomes=outcomes)
            if number >= WARM:
                times.append(taken)

    return times
