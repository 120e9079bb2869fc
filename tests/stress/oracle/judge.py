"""The judge: decides from the notes of runs and the limits whether more ran at once than allowed.

The counting: a run lies between its own two notes; one without an end lasts until its attempt was
closed, by the worker that lost the child or by the reaper. At every start the judge counts the runs
of the same cluster, queue, partition and worker that have started and not ended, this one among
them.

The limit: limits change meanwhile, and lowering one ends no task. Of the runs that overlap at a
start, the judge takes the one that was claimed last: at that claim all of them were in flight, so
their number must not exceed the limit in force then. That is exact: a claim and a change never
overlap, since a change waits for the claims under way and holds up the next, and the database's
clock stamps both while they exclude each other. So no overlap is excused by a nearby change, and a
start that a raised cap allowed is not blamed on the cap that was lowered before its first line ran.
The claim's moment only chooses the limit; the overlap comes from the runs' own notes.

Times are seconds by the database's clock. A run that ends at the moment at which another starts
does not overlap with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

CLUSTER = "*"
PID_LASTS_SECONDS = 60.0  # in which no process id is given out twice


class Run(NamedTuple):
    """A run of a task: its own notes, and the attempt of the queue that it belongs to."""

    number: int
    task: str
    queue: str
    tenant: str
    worker: str
    worker_pid: int
    child_pid: int
    claimed_at: float
    started_at: float
    ended_at: float | None
    closed_at: float
    sent_at: float = 0.0

    @property
    def until(self) -> float:
        """When the run was over."""
        return self.closed_at if self.ended_at is None else self.ended_at


class Thaw(NamedTuple):
    """A stopped worker that was declared dead and continued.

    It has these processes, stood still ``since`` a moment, and was continued ``at`` another.
    """

    at: float
    pids: Collection[int]
    since: float = 0.0
    group: bool = False  # whether all of them were stopped, or the worker alone


class Chronicle:
    """The history of a queue's row: its first state, then the values that each change set.

    The limits in force follow from it.
    """

    def __init__(
        self, first: Mapping[str, Any], changes: Iterable[tuple[float, Mapping[str, Any]]] = ()
    ) -> None:
        self.moments = [float("-inf")]
        self.rows = [dict(first)]
        for at, changed in changes:
            self.moments.append(at)
            self.rows.append({**self.rows[-1], **changed})

    def limits(self, name: str) -> list[int | None]:
        """Return a limit after each change: overridden, else declared; 0 during a pause."""

        def limit(row: Mapping[str, Any]) -> int | None:
            if name == "max_concurrency" and row.get("paused_at"):
                return 0
            if name == "partition_max_concurrency" and row.get("partition_policy"):
                return 1
            overridden: Mapping[str, int | None] = row.get("override") or {}
            return overridden.get(name, row.get(name))

        return [limit(row) for row in self.rows]

    def caps(self) -> list[tuple[float, int | None]]:
        """Return the caps in force, each with its moment."""
        return list(zip(self.moments, self.limits("max_concurrency"), strict=True))

    def partition(self, run: Run) -> tuple[str, ...] | None:
        """Return the partition of a run by the first rule, or None if the queue has no rule.

        The storm does not change rules, and its tasks have one argument that a rule can name.
        """
        row = self.rows[0]
        tenant = () if row.get("partition_by_args") is None else (run.tenant,)
        return (tenant + ((run.task,) if row.get("partition_by_task") else ())) or None


class Verdict(NamedTuple):
    """The verdict: ``violations`` as sentences, overlaps, and fully used limits.

    The greatest overlap is kept per level and name.
    """

    violations: list[str]
    peaks: dict[tuple[str, str], int]
    full: set[tuple[str, str]]


# level -> the limit that bounds it
LEVELS = {
    "cluster": "max_concurrency",
    "queue": "max_concurrency",
    "queue and worker": "local_limit",
    "partition": "partition_max_concurrency",
    "partition and worker": "partition_local_limit",
}


def judge(runs: Iterable[Run], chronicles: Mapping[str, Chronicle]) -> Verdict:
    """Check runs against the limits of their queues and the cluster (chronicle ``*``)."""
    groups: defaultdict[tuple[str, str, tuple[str, ...]], list[Run]] = defaultdict(list)
    for run in runs:
        partition = chronicles[run.queue].partition(run)
        groups["cluster", CLUSTER, ()].append(run)
        groups["queue", run.queue, ()].append(run)
        groups["queue and worker", run.queue, (run.worker,)].append(run)
        if partition is not None:
            groups["partition", run.queue, partition].append(run)
            groups["partition and worker", run.queue, (*partition, run.worker)].append(run)

    verdict = Verdict([], defaultdict(int), set())
    for (level, name, key), members in groups.items():
        chronicle = chronicles.get(name, Chronicle({}))
        where = f"{level} {name}" + (f" {'/'.join(key)}" if key else "")
        peak, full, found = sweep(members, chronicle.moments, chronicle.limits(LEVELS[level]))

        verdict.peaks[level, name] = max(verdict.peaks[level, name], peak)
        verdict.violations.extend(f"{where}: {text}" for text in found)
        if full:
            verdict.full.add((level, name))

    return verdict


def sweep(
    runs: list[Run], moments: list[float], limits: list[int | None]
) -> tuple[int, bool, list[str]]:
    """Go through starts and ends in order.

    Return the greatest overlap, whether a limit was reached, and violations.
    """
    known = [limit for limit in limits if limit is not None]
    lowest = min(known, default=None)
    lasting = [run for run in runs if run.until > run.started_at]
    events = sorted(
        [(run.started_at, 1, run) for run in lasting] + [(run.until, 0, run) for run in lasting]
    )

    active: set[Run] = set()
    peak = 0
    full = False
    violations = []

    for at, starts, run in events:
        if not starts:
            active.discard(run)
            continue

        active.add(run)
        peak = max(peak, len(active))
        if lowest is None or len(active) < lowest:
            continue

        newest = max(one.claimed_at for one in active)
        limit = limits[bisect_right(moments, newest) - 1]
        if limit is None:
            continue

        full = full or len(active) == limit
        if len(active) > limit:
            numbers = ", ".join(str(one.number) for one in sorted(active))
            violations.append(
                f"{len(active)} at once at {at:.6f}, the limit was {limit} at {newest:.6f}: "
                f"{numbers}"
            )

    return peak, full, violations


def disorder(runs: Iterable[Run], chronicles: Mapping[str, Chronicle]) -> list[str]:
    """Return the runs of ordered partitions that began after one that was sent later."""
    last: dict[tuple[str, Any], Run] = {}
    found = []

    for run in sorted(runs, key=lambda run: run.started_at):
        if chronicles[run.queue].rows[0].get("partition_policy") in ("stop", "continue", "cancel"):
            key = (run.queue, chronicles[run.queue].partition(run))
            if key in last and last[key].sent_at >= run.sent_at:
                found.append(
                    f"{run.queue} {key[1]}: task {run.number} ran after task {last[key].number}, "
                    "which was sent later"
                )
            last[key] = run

    return found


def ghosts(runs: Iterable[Run], thaws: Iterable[Thaw]) -> list[str]:
    """Return the writes by processes of stopped workers after the worker was continued.

    A write of a run that had begun before counts however late it comes. One of a later run counts
    only while its process id surely belongs to no other process: in a long storm the numbers
    repeat.
    """
    thawed: dict[int, float] = {}
    for thaw in thaws:
        for pid in thaw.pids:
            thawed[pid] = min(thaw.at, thawed.get(pid, thaw.at))
    return [
        f"process {run.child_pid} wrote on task {run.number} at {at:.6f}, its worker went on at "
        f"{thawed[run.child_pid]:.6f}"
        for run in runs
        if run.child_pid in thawed
        for at in (run.started_at, run.ended_at)
        if at is not None
        and at > thawed[run.child_pid]
        and run.started_at < thawed[run.child_pid] + PID_LASTS_SECONDS
    ]


def strangers(runs: Iterable[Run]) -> list[str]:
    """Return the workers in whose name more than one worker process ran tasks."""
    pids: defaultdict[str, set[int]] = defaultdict(set)
    for run in runs:
        pids[run.worker].add(run.worker_pid)
    return [
        f"tasks of worker {worker} ran under the processes {sorted(found)}"
        for worker, found in pids.items()
        if len(found) > 1
    ]
