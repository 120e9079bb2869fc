"""Whether a drain slows down while an open transaction prevents vacuum.

A forgotten transaction with an id (a shell, a report, a replica that requests old rows) pins the
oldest row version that vacuum and the indexes must keep: each claim and each settle leaves dead
versions at the very place where the next claim reads. Measured: async no-ops in hard mode, two
processes of 200, 1,000,000 of them, sent before in one transaction; the rate of each tenth, by the
times at which its tasks finished. The goal compares the last tenth with the first, and so it does
under a queue's cap of 400, all the slots there are: it never binds, but every pass counts the tasks
in flight. Another hundredth of the tasks comes first and is left out, so that the start of
processes does not make the first tenth look slow.

Limits of the figures: they do not include the time that vacuum takes to make the table small again
once the transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from django.db import connection, transaction

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, worker
from horsies_django import queues
from horsies_django.store.notify import direct_connection

TASKS = 1_000_000
SLOTS = 400
TOGETHER = 50_000
PATIENCE_SECONDS = 3_600  # long enough to measure a drain that slows down without end
CAPS = {"": None, ", queue cap": SLOTS}
# The duration of each tenth: from the end of the one before it, for the first one from the end of
# the tasks that are left out.
TENTHS = """
SELECT extract(epoch FROM ended - lag(ended) OVER (ORDER BY tenth))
FROM (SELECT greatest(0, ceil((place - %(warm)s) / %(size)s::float8)) AS tenth,
             max(finished_at) AS ended
      FROM (SELECT finished_at, row_number() OVER (ORDER BY finished_at) AS place
            FROM horsies_tasks WHERE status = 'COMPLETED') AS done
      GROUP BY 1) AS ends
ORDER BY tenth OFFSET 1
"""

GOALS = tuple(
    Goal("P10", f"xmin last tenth{cap}", 0.8, over=f"xmin first tenth{cap}") for cap in CAPS
)


def cases(scale: float) -> Sequence[Case]:
    """Return the case without a cap and the one with it."""
    return [
        Case(f"xmin{cap}", partial(measure, cap, max(100, round(TASKS * scale)))) for cap in CAPS
    ]


def measure(cap: str, n: int) -> Sequence[Reading]:
    """Drain ``n`` tasks, and some before them, with a worker while a transaction is open."""
    warm = n // 100
    empty_tables()
    send(warm + n)
    shape = ("--processes=2", f"--async-concurrency={SLOTS // 2}")

    with capped(CAPS[cap]), pinned(), worker(*shape, "--until-empty") as process:
        if process.wait(PATIENCE_SECONDS):
            raise RuntimeError("the worker failed")

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'")
        if (count := cursor.fetchone()[0]) != warm + n:
            raise RuntimeError(f"{count} of {warm + n} tasks completed")

        cursor.execute(TENTHS, {"warm": warm, "size": n / 10})
        rates = [n / 10 / max(float(seconds), 1e-6) for (seconds,) in cursor.fetchall()]

    each = {f"tenth {place}": rate for place, rate in enumerate(rates, 1)}
    return [
        Reading(f"xmin first tenth{cap}", rates[0], "tasks/s"),
        Reading(f"xmin last tenth{cap}", rates[-1], "tasks/s", each),
    ]


def send(n: int) -> None:
    """Send ``n`` tasks in one transaction."""
    with transaction.atomic():
        for start in range(0, n, TOGETHER):
            tasks.anoop.send_many(
                [{"n": number} for number in range(start, min(start + TOGETHER, n))]
            )

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks")
        cursor.execute("CHECKPOINT")


@contextmanager
def pinned() -> Iterator[None]:
    """Keep a transaction with an id open, and idle, during the block."""
    holder = direct_connection("default", application_name="holder of an old transaction")
    try:
        holder.execute("BEGIN")
        holder.execute("SELECT txid_current()")
        yield
    finally:
        holder.close()


@contextmanager
def capped(limit: int | None) -> Iterator[None]:
    """Override the queue's cap during the block; None overrides nothing."""
    if limit is None:
        yield
        return

    queues.override(
        "default", {"max_concurrency": limit}, actor="benchmarks", reason="a measurement"
    )

    try:
        yield
    finally:
        queues.clear("default", actor="benchmarks")
