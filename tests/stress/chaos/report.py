"""The verdict on a storm as plain values: violations, what happened, and how long the dead were mourned."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.stress.chaos import evidence
from tests.stress.chaos.failover import FailoverStorm
from tests.stress.chaos.faults import ChildDeath
from tests.stress.chaos.judge import (
    Attempt,
    Row,
    accounts,
    broken_words,
    histories,
    miscounted,
    missing,
    twice,
    unended,
)
from tests.stress.chaos.notes import Noted, collect
from tests.stress.chaos.storm import Storm
from tests.stress.oracle.judge import Chronicle, ghosts, judge

SHOWN = 20


def report(
    storm: Storm, chronicles: Mapping[str, Chronicle], leaks: Collection[str], max_crashes: int
) -> dict[str, Any]:
    """Judge what the storm left in the database and in the notes."""
    rows, attempts, runs = evidence.task_rows(), evidence.attempts(), collect(storm.notes)
    found = violations(storm, rows, attempts, runs, max_crashes)
    limits = judge(evidence.oracle_runs(runs, attempts, {row.id: row.number for row in rows}), chronicles)
    found += limits.violations
    seconds = storm.ended - storm.began
    ended = Counter(f"{row.status} {row.error_code or ''}".strip() for row in rows)
    tried = [one for its in attempts.values() for one in its]
    return {
        "tasks": storm.sender.sent,
        "faults": sum(count for name, count in storm.happened.items() if name.partition(" ")[0] in VERBS),
        "seconds": round(seconds, 1),
        "rate": round(storm.sender.sent / seconds, 1),
        "lost": sum(" was lost:" in text for text in found),
        "finished twice": sum("finished twice" in text for text in found),
        "violations": found[:SHOWN],
        "violations in all": len(found),
        "leaks": list(leaks)[:SHOWN],
        "weather": dict(sorted(storm.happened.items())),
        "sender": dict(sorted(storm.sender.happened.items())),
        "continued": len(storm.thaws),
        "endings": dict(sorted(ended.items())),
        "counted": evidence.counted(),
        "attempts": dict(sorted(Counter(one.outcome for one in tried).items())),
        "runs": len(runs),
        "runs without an end": sum(run.ended is None for run in runs),
        "tasks retried": sum(row.retry_count > 0 for row in rows),
        "full": sorted(f"{level} {name}" for level, name in limits.full),
        "child death to its attempt's end": spread(mourning(storm.faults.deaths, tried)),
        **(storm.report(attempts) if isinstance(storm, FailoverStorm) else {}),
    }


VERBS = ("kill", "stop", "cut", "restart", "promote")


def violations(
    storm: Storm, rows: Sequence[Row], attempts: Mapping[str, Sequence[Attempt]], runs: Sequence[Noted], most: int
) -> list[str]:
    """Return everything that the judge finds, but for the limits."""
    by_id = {row.id: row for row in rows}
    numbers = {row.id: row.number for row in rows}
    sender = storm.sender
    return [
        *missing((row for row in rows if row.number >= 0), sender.dispatches),
        *unended(rows, evidence.dead()),
        *histories(rows, attempts, most),
        *accounts(by_id, attempts, runs),
        *twice(by_id, runs),
        *broken_words(rows, sender.verdicts, sender.told),
        *ghosts(evidence.oracle_runs(runs, attempts, numbers), storm.thaws),
        *(storm.violations() if isinstance(storm, FailoverStorm) else counts(storm, rows, attempts)),
    ]


def counts(storm: Storm, rows: Sequence[Row], attempts: Mapping[str, Sequence[Attempt]]) -> list[str]:
    """Return where the history does not fit; after a failover, the new primary may not have what workers have counted."""
    return miscounted(rows, [one for its in attempts.values() for one in its], evidence.counted(), storm.killed)


def mourning(deaths: Sequence[ChildDeath], tried: Sequence[Attempt]) -> list[float]:
    """Return how long after the death of a child each of its attempts was closed, to be retried or as the last."""
    return [
        one.finished_at - death.at
        for death in deaths
        for one in tried
        if one.pid == death.pid and one.outcome == "WORKER_FAILURE" and one.started_at <= death.at <= one.finished_at
    ]


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Return the middle, the 99th percentile and the greatest of some seconds."""
    if not samples:
        return {"samples": 0}
    cuts = statistics.quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else [samples[0]] * 99
    return {
        "samples": len(samples),
        "p50_s": round(cuts[49], 3),
        "p99_s": round(cuts[98], 3),
        "max_s": round(max(samples), 3),
    }
