"""The samples: memory and disk at a moment, and how long tasks waited lately."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from tests.stress.chaos.evidence import clock, rows, unfinished
from tests.stress.chaos.members import Member

MB = 1_048_576
LAG_SECONDS = 2.0  # after so long, attempts are committed
TABLES = """
SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)), sum(n_live_tup), sum(n_dead_tup)
FROM pg_stat_user_tables WHERE starts_with(relname, 'horsies_')
"""
# Of tasks without a limit that were not retried: the time from due to claimed, in ms.
STARTS = """
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0),
       coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), 0)
FROM (SELECT extract(epoch FROM started_at - enqueued_at)::float8 * 1000 AS ms FROM horsies_tasks
      WHERE finished_at > to_timestamp(%s) AND finished_at <= to_timestamp(%s)
        AND queue_name = 'free' AND retry_count = 0 AND started_at IS NOT NULL) AS started
"""
FINISHED = (
    "SELECT count(*) FROM horsies_tasks WHERE finished_at > to_timestamp(%s) AND finished_at <= "
    "to_timestamp(%s)"
)


class Sampler:
    """Takes samples; the first of the workers is the one that is never replaced."""

    def __init__(self, fleet: Sequence[Member]) -> None:
        self.fleet = fleet
        self.began = time.monotonic()
        self.until = clock() - LAG_SECONDS
        self.samples: list[dict[str, float]] = []

    def take(self) -> dict[str, float]:
        """Take a sample and keep it."""
        after, self.until = self.until, clock() - LAG_SECONDS
        tables, indexes, live, dead = rows(TABLES)[0]
        p50, p99 = rows(STARTS, after, self.until)[0]
        children = [rss for one in self.fleet[0].runners() if (rss := resident(one.pid))]

        sample = {
            "seconds": time.monotonic() - self.began,
            "parent MB": resident(self.fleet[0].process.pid),
            "child MB": sum(children) / max(1, len(children)),
            "tables MB": float(tables) / MB,
            "indexes MB": float(indexes) / MB,
            "live rows": float(live),
            "dead rows": float(dead),
            "backlog": float(unfinished()),
            "start p50 ms": p50,
            "start p99 ms": p99,
            "finished/s": float(rows(FINISHED, after, self.until)[0][0])
            / max(0.1, self.until - after),
        }

        self.samples.append({name: round(value, 3) for name, value in sample.items()})
        return self.samples[-1]


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB, 0 when it is gone."""
    try:
        return float(psutil.Process(pid).memory_info().rss) / MB
    except psutil.Error:
        return 0.0
