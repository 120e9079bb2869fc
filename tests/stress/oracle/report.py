"""The verdict on a storm as plain values: violations, peaks, and how much of the caps was used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.stress.oracle import evidence
from tests.stress.oracle.judge import CLUSTER, Chronicle, Run, disorder, fates, ghosts, judge, strangers
from tests.stress.oracle.storm import Storm
from tests.stress.oracle.usage import calm_spans, common, handed_on, union, usage

SHOWN = 20
CAPPED = ("tight", "wide", "pausing")


def report(storm: Storm, chronicles: Mapping[str, Chronicle]) -> dict[str, Any]:
    """Judge what the storm left in the database."""
    runs, violations = evidence.runs()
    verdict = judge(runs, chronicles)
    violations = [*verdict.violations, *fates(runs), *ghosts(runs, storm.thaws), *strangers(runs), *violations]
    violations += [*disorder(runs, chronicles), *evidence.unseen(storm.versions), *evidence.twins()]
    seconds = storm.ended - storm.began
    return {
        "tasks": storm.sent,
        "noting": storm.noting,
        "runs": len(runs),
        "without an end": sum(run.ended_at is None for run in runs),
        "seconds": round(seconds, 1),
        "rate": round(storm.sent / seconds, 1),
        "weather": dict(sorted(storm.happened.items())),
        "continued": len(storm.thaws),
        "merged": evidence.ended_with("MERGED"),
        "cancelled": evidence.ended_with("ORDER_CANCELLED"),
        "unique": storm.found,
        "skipped": storm.skipped,
        "violations": violations[:SHOWN],
        "violations in all": len(violations),
        "peaks": {f"{level} {name}": peak for (level, name), peak in sorted(verdict.peaks.items())},
        "full": sorted(f"{level} {name}" for level, name in verdict.full),
        "usage": used(storm, runs, chronicles),
    }


def used(storm: Storm, runs: list[Run], chronicles: Mapping[str, Chronicle]) -> dict[str, Any]:
    """Return how much of each cap was used while work was there and nobody was hurt lately.

    Under the cap of the cluster work is surely there while tasks of the queue without limits wait.
    """
    held, waited = evidence.held(), evidence.waited()
    names = [CLUSTER] if storm.shape.cluster_cap else list(CAPPED)
    figures = {}
    for name in names:
        mine = handed_on([hold for hold in held if name in (CLUSTER, hold.queue)])
        running = [(run.started_at, run.until) for run in runs if name in (CLUSTER, run.queue)]
        work = union(waited["free" if name == CLUSTER else name])
        calm = common(calm_spans((storm.began + 1.0, storm.ended), storm.disturbed), work)
        found = usage(mine, running, limits(chronicles[name]), calm)
        if found is not None:
            figures[name] = {key: round(value, 3) for key, value in found._asdict().items()}
    return figures


def limits(chronicle: Chronicle) -> list[tuple[float, int | None]]:
    """Return the caps in force, each with its moment."""
    return list(zip(chronicle.moments, chronicle.limits("max_concurrency"), strict=True))
