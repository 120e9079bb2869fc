"""The verdict on a storm as plain values: violations, and counts of events."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from horsies_django.conf import config
from tests.stress.chaos import evidence
from tests.stress.chaos.judge import (
    accounts,
    broken_words,
    fired,
    histories,
    missing,
    twice,
    unended,
)
from tests.stress.chaos.notes import collect
from tests.stress.chaos.storm import Storm
from tests.stress.oracle.judge import ghosts, judge, strangers

SHOWN = 20
VERBS = ("kill", "stop", "cut", "restart", "promote")


def raised(storm: Storm) -> dict[str, Any]:
    """Run a storm and return the verdict; print the logs of the workers if there are violations."""
    try:
        storm.raise_()
    finally:
        leaks = storm.end()

    verdict = report(storm, leaks + evidence.left_behind())
    if verdict["violations"] or verdict["leaks"]:
        print(storm.logs(), file=sys.stderr)
    return verdict


def report(storm: Storm, leaks: Sequence[str]) -> dict[str, Any]:
    """Check the rows and notes that the storm left."""
    ticks = evidence.ticks(0, time.time())
    left = evidence.Left(
        evidence.task_rows(), evidence.attempts(), collect(storm.notes), ticks, storm.chronicles()
    )

    limits = judge(left.runs, left.chronicles)
    found = [*violations(storm, left), *limits.violations]
    seconds = storm.ended - storm.began

    return {
        "tasks": storm.sender.sent,
        "faults": sum(
            count for name, count in storm.happened.items() if name.partition(" ")[0] in VERBS
        ),
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
        "fire times": len(ticks),
        "tasks retried": sum(row.retry_count > 0 for row in left.rows),
        "peaks": {f"{level} {name}": peak for (level, name), peak in sorted(limits.peaks.items())},
        "full": sorted(f"{level} {name}" for level, name in limits.full),
        **storm.report(left),
    }


def violations(storm: Storm, left: evidence.Left) -> list[str]:
    """Return all violations that the judge finds, except those of limits."""
    by_id = {row.id: row for row in left.rows}
    sender = storm.sender
    return [
        *missing((row for row in left.rows if row.number >= 0), sender.dispatches),
        *unended(left.rows, evidence.dead()),
        *histories(left.rows, left.attempts, config().recovery.max_crashes),
        *accounts(by_id, left.attempts, left.noted),
        *twice(by_id, left.noted),
        *broken_words(left.rows, sender.verdicts, sender.told),
        *fired(left.ticks, left.rows),
        *ghosts(left.runs, storm.thaws),
        *strangers(left.runs),
        *storm.violations(left),
    ]
