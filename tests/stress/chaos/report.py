"""The verdict on a storm as plain values: violations, what happened, and how long the dead were mourned."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from horsies_django.conf import config
from tests.stress.chaos import evidence
from tests.stress.chaos.faults import ChildDeath
from tests.stress.chaos.judge import Attempt, accounts, broken_words, histories, missing, twice, unended
from tests.stress.chaos.notes import collect
from tests.stress.chaos.storm import Storm
from tests.stress.oracle.judge import ghosts, judge, strangers

SHOWN = 20
VERBS = ("kill", "stop", "cut", "restart", "promote")


def raised(storm: Storm) -> dict[str, Any]:
    """Raise a storm and return the verdict; when something is wrong, print the logs of the workers, too."""
    try:
        leaks = storm.raise_()
    finally:
        left = storm.end()
    verdict = report(storm, leaks + left + evidence.left_behind())
    if verdict["violations"] or verdict["leaks"]:
        print(storm.logs(), file=sys.stderr)
    return verdict


def report(storm: Storm, leaks: Sequence[str]) -> dict[str, Any]:
    """Judge what the storm left in the database and in the notes."""
    left = evidence.Left(evidence.task_rows(), evidence.attempts(), collect(storm.notes), storm.chronicles())
    limits = judge(left.runs, left.chronicles)
    found = [*violations(storm, left), *limits.violations]
    seconds = storm.ended - storm.began
    return {
        "tasks": storm.sender.sent,
        "faults": sum(count for name, count in storm.happened.items() if name.partition(" ")[0] in VERBS),
        "seconds": round(seconds, 1),
        "rate": round(storm.sender.sent / seconds, 1),
        "lost": sum(" was lost:" in text for text in found),
        "finished twice": sum("finished twice" in text for text in found),
        "violations": found[:SHOWN],
        "violations in all": len(found),
        "leaks": leaks[:SHOWN],
        "weather": dict(sorted((+storm.happened).items())),
        "sender": dict(sorted(storm.sender.happened.items())),
        "continued": len(storm.thaws),
        "endings": dict(sorted(Counter(row.ending for row in left.rows).items())),
        "counted": evidence.counted(),
        "attempts": dict(sorted(Counter(one.outcome for one in left.tried).items())),
        "runs": len(left.noted),
        "runs without an end": sum(run.ended is None for run in left.noted),
        "tasks retried": sum(row.retry_count > 0 for row in left.rows),
        "peaks": {f"{level} {name}": peak for (level, name), peak in sorted(limits.peaks.items())},
        "full": sorted(f"{level} {name}" for level, name in limits.full),
        "child death to its attempt's end": spread(mourning(storm.faults.deaths, left.tried)),
        **storm.report(left),
    }


def violations(storm: Storm, left: evidence.Left) -> list[str]:
    """Return everything that the judge finds, but for the limits."""
    by_id = {row.id: row for row in left.rows}
    sender = storm.sender
    return [
        *missing((row for row in left.rows if row.number >= 0), sender.dispatches),
        *unended(left.rows, evidence.dead()),
        *histories(left.rows, left.attempts, config().recovery.max_crashes),
        *accounts(by_id, left.attempts, left.noted),
        *twice(by_id, left.noted),
        *broken_words(left.rows, sender.verdicts, sender.told),
        *ghosts(left.runs, storm.thaws),
        *strangers(left.runs),
        *storm.violations(left),
    ]


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
