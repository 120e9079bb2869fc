"""The reasons why a task is not running, from facts of the database.

The SQL functions that claim tasks also compute the facts, such as free permits, lost claims and
living workers. This module only orders the reasons, the most decisive first, and writes their
sentences. It returns all reasons that apply, not only the first.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from horsies_django.core.explanations import (
    Explanation,
    Facts,
    Reason,
    ReasonCode,
    at_limit,
    clock_time,
    level_name,
    parse_time,
    pick,
    worker_name,
)
from horsies_django.core.queues import shown_priority


class Timing(NamedTuple):
    """The times from the settings, and the time zone of the texts.

    A worker is silent after ``silence`` without a heartbeat, and counts as dead after
    ``threshold``. It polls for tasks every ``poll``. For ``grace`` after a task became due, workers
    that do not have the task skip it.
    """

    poll: dt.timedelta
    silence: dt.timedelta
    threshold: dt.timedelta
    grace: dt.timedelta
    zone: dt.tzinfo


def reasoned(facts: Facts, timing: Timing) -> Explanation:
    """Return the explanation of a task for the facts that ``horsies_explain`` returned."""
    task = facts["task"]
    return Explanation(uuid.UUID(task["id"]), task["status"], tuple(Case(facts, timing).reasons()))


class BaseCase:
    """Facts about a task or a node at one moment."""

    def __init__(self, facts: Facts, timing: Timing) -> None:
        self.facts = facts
        self.timing = timing
        self.now = parse_time(facts["now"])

    def at(self, text: str | dt.datetime) -> str:
        """Return a datetime as text in the time zone, without the date if it is today."""
        return clock_time(text, self.now, self.timing.zone)

    def ended_as(self, row: Facts) -> str:
        """Return the sentence with the end of a task or a node."""
        code = f" with {row['error_code']}" if row["error_code"] else ""
        return f"It ended as {row['status']}{code} at {self.at(row['finished_at'])}."


class Case(BaseCase):
    """One task at one moment."""

    def __init__(self, facts: Facts, timing: Timing) -> None:
        super().__init__(facts, timing)
        self.task: Facts = facts["task"]

        living = [
            one
            for one in facts.get("workers", ())
            if not self.silent_since(one["beat_at"], timing.threshold)
        ]
        self.workers: Sequence[Facts] = living

        # Until then, workers that do not have the task skip it.
        self.skipped_until = parse_time(self.task["enqueued_at"]) + timing.grace
        skipped = self.skipped_until > self.now
        # The workers that would claim the task now
        self.takers = [one for one in living if one["knows"] or not skipped] or living

    def reasons(self) -> Iterator[Reason]:
        """Yield all reasons, the most decisive first."""
        if self.task["finished_at"]:
            yield self.finished()
        elif self.task["status"] == "RUNNING":
            yield self.silent_holder() or self.running()
        else:
            found = list(self.waiting())
            yield from found or [self.next()]

    def waiting(self) -> Iterator[Reason]:
        """Yield the reasons why a task has not started."""
        if claimed := self.task["status"] == "CLAIMED":
            yield self.silent_holder() or self.buffered()

        yield from self.expired()
        yield from self.run_halted()
        for name in ("cluster", "queue"):
            yield from self.paused(name)

        if not claimed:
            yield from self.unserved()
        yield from self.unknown_name()
        yield from self.not_due()

        for name in ("cluster", "queue"):
            yield from self.at_cap(name)
        yield from self.in_order()
        yield from self.crowded()
        yield from self.behind()

    def finished(self) -> Reason:
        task = self.task
        text = self.ended_as(task)
        if task["order_stop"] == "stop":
            text += " The later tasks of its key wait until it is retried or skipped."
        return Reason(
            ReasonCode.FINISHED,
            text,
            pick(task, "status", "finished_at", "error_code", "order_stop"),
        )

    def running(self) -> Reason:
        child = self.facts["holder"]["child_pid"]
        where = "" if child is None else f", in process {child}"
        text = (
            f"It has been running since {self.at(self.task['started_at'])} on "
            f"{worker_name(self.facts['holder'])}{where}."
        )

        if requested_at := self.task["cancel_requested_at"]:
            text += f" Its cancellation was requested at {self.at(requested_at)}"
            killed = ", and its process is killed if it does not stop"
            text += f"{killed}." if self.task["terminate"] else "."

        return Reason(ReasonCode.RUNNING, text, {**self.holder(), "since": self.task["started_at"]})

    def buffered(self) -> Reason:
        """Return the reason of a claimed task, which waits for a slot of its worker.

        Usually the worker has prefetched it (soft mode).
        """
        ends = self.task["claim_expires_at"]
        where = worker_name(self.facts["holder"])
        details = {**self.holder(), "since": self.task["claimed_at"], "lease_ends_at": ends}

        if ends is None:
            text = (
                f"Worker {where} claimed it at {self.at(self.task['claimed_at'])} and is about to "
                "start it."
            )
        elif parse_time(ends) > self.now:
            text = (
                f"Worker {where} has prefetched it, and it waits for a free slot there; its lease "
                f"ends at {self.at(ends)}."
            )
        else:
            text = (
                f"Its lease on worker {where} ended at {self.at(ends)}: a worker will soon make it "
                "available again."
            )

        return Reason(ReasonCode.CLAIMED_WAITING, text, details)

    def silent_holder(self) -> Reason | None:
        """Return the reason if the worker of a claimed or running task is silent, dead or deleted.

        Return None if the worker is not silent.
        """
        holder = self.facts["holder"]
        task = self.task
        last_seen = holder["beat_at"] or task["claimed_at"]
        if not (holder["orphaned"] or self.silent_since(last_seen, self.timing.silence)):
            return None

        rescue = parse_time(holder["died_at"] or last_seen)
        if not holder["died_at"]:
            rescue += self.timing.threshold

        does = "runs" if task["status"] == "RUNNING" else "has claimed"
        becomes = "fails with WORKER_CRASHED" if task["status"] == "RUNNING" else "is pending again"
        when = (
            f"after {self.at(rescue)}"
            if rescue > self.now
            else "at the next check by a live worker"
        )
        text = (
            f"Worker {worker_name(holder)}, which {does} it, was last seen at "
            f"{self.at(last_seen)}; the task {becomes} {when}."
        )

        reapers = bool(holder["heard_at"]) and not self.silent_since(
            holder["heard_at"], self.timing.silence
        )
        if not reapers:
            text += " There is no live worker to recover it: start one."

        details = {
            **self.holder(),
            **pick(holder, "beat_at", "died_at"),
            "rescue_at": rescue.isoformat(),
        }
        return Reason(ReasonCode.CLAIMED_BY_SILENT_WORKER, text, {**details, "reapers": reapers})

    def expired(self) -> Iterator[Reason]:
        until = self.task["good_until"]
        if until and parse_time(until) <= self.now:
            text = (
                f"Its good_until passed at {self.at(until)}: it will not run, and becomes EXPIRED "
                "when a worker finds it."
            )
            yield Reason(ReasonCode.EXPIRED, text, {"good_until": until})

    def run_halted(self) -> Iterator[Reason]:
        """Yield a reason if the workflow run of the task is paused or starts no more tasks."""
        if run := self.facts.get("run"):
            text = "starts no more tasks: it was cancelled, stopped or continued."
            if paused := run["status"] == "PAUSED":
                text = "is paused. None of its tasks start until it is resumed."
            text = f"Its run, {run['name']} {run['workflow_id']}, {text}"
            yield Reason(ReasonCode.RUN_PAUSED if paused else ReasonCode.RUN_ENDED, text, run)

    def paused(self, level: str) -> Iterator[Reason]:
        row = self.facts.get(level)
        if row is None or row["max_concurrency"] != 0:
            return

        details = {"queue": row["name"]}
        if row["paused_at"]:
            by = row["paused_by"]
            since = row["paused_at"]
            reason = row["paused_reason"]
            state = f"has been paused since {self.at(since)} by {by}"
        elif (row["override"] or {}).get("max_concurrency") == 0:
            by = row["override_by"]
            since = row["override_at"]
            reason = row["override_reason"]
            state = f"has been overridden with a cap of 0 since {self.at(since)} by {by}"
            details["until"] = row["override_until"]
        else:
            by = since = reason = None
            state = "is declared with a cap of 0"

        if reason:
            state += f": {reason.removesuffix('.')}"
        text = f"{level_name(row)} {state}. None of its tasks start."
        yield Reason(
            ReasonCode.QUEUE_PAUSED, text, {**details, "by": by, "since": since, "reason": reason}
        )

    def unserved(self) -> Iterator[Reason]:
        queue = self.task["queue_name"]
        if self.workers and self.facts.get("queue"):
            return

        former = [
            pick(one, "worker_id", "hostname", "pid", "seen_at", "stopping_at", "stopped_at")
            for one in self.facts["former"]
        ]
        details = {"queue": queue, "known": self.facts.get("queue") is not None, "former": former}

        if not details["known"]:
            text = (
                f"There is no queue {queue!r} in the database, so its tasks do not start: declare "
                "it and run 'migrate'."
            )
        elif former:
            text = (
                f"No live worker serves the queue {queue!r}: the last one, "
                f"{worker_name(former[0])}, "
                f"{self.end_of(former[0])}."
            )
        else:
            text = f"No worker has ever served the queue {queue!r}: start one that serves it."

        yield Reason(ReasonCode.NO_LIVE_WORKER, text, details)

    def end_of(self, worker: Facts) -> str:
        """Return a phrase about the end of a worker that is not living."""
        if worker["stopped_at"]:
            return f"stopped at {self.at(worker['seen_at'])}"
        if worker["stopping_at"]:
            return f"has been stopping since {self.at(worker['stopping_at'])}"
        return f"was last seen at {self.at(worker['seen_at'])}"

    def unknown_name(self) -> Iterator[Reason]:
        """Yield a reason if no living worker has the task.

        The workers skip the task for some time. Then it fails.
        """
        if not self.workers or any(one["knows"] for one in self.workers):
            return

        name = self.task["task_name"]
        wire = self.task["wire"]
        until = self.skipped_until
        held = until > self.now
        newest = max(one["wire"] for one in self.workers)

        newer = (
            f" in the format of a newer release (format version {wire})" if wire > newest else ""
        )
        wait = f"workers skip it until {self.at(until)}; after that, " if held else ""
        text = (
            f"No live worker of its queue can run the task {name!r}{newer}: {wait}it fails with "
            "WORKER_RESOLUTION_ERROR when a worker claims it. Deploy the code that defines it to "
            "the workers."
        )

        details = {
            "task_name": name,
            "until": until.isoformat() if held else None,
            "workers": self.crew(self.workers),
        }
        yield Reason(ReasonCode.UNKNOWN_TASK_NAME, text, details)

    def not_due(self) -> Iterator[Reason]:
        task = self.task
        due = self.task["enqueued_at"]
        if parse_time(due) <= self.now:
            return

        if task["snoozed"]:
            text = f"It is snoozed until {self.at(due)}, as its code requested."
            yield Reason(ReasonCode.SNOOZED, text, {"due_at": due, **pick(task, "snooze_count")})
        elif task["retry_count"]:
            text = (
                f"It waits for retry {task['retry_count']} of {task['max_retries']}, which is due "
                f"at {self.at(due)}."
            )
            yield Reason(
                ReasonCode.RETRY_WAITING,
                text,
                {"due_at": due, **pick(task, "retry_count", "max_retries")},
            )
        else:
            yield Reason(
                ReasonCode.NOT_DUE, f"It is not due before {self.at(due)}.", {"due_at": due}
            )

    def at_cap(self, level: str) -> Iterator[Reason]:
        row = self.facts.get(level)
        if row is None or not row["max_concurrency"] or row["room"] > 0:
            return

        cap = row["max_concurrency"]
        taken = row["taken"]
        holders = row["holders"]

        text = (
            f"{level_name(row)} is at its cap: {taken} of {cap} permits are "
            f"taken{self.longest(holders)}."
        )
        code = ReasonCode.CLUSTER_AT_CAP if level == "cluster" else ReasonCode.QUEUE_AT_CAP
        yield Reason(
            code, text, {"queue": row["name"], "cap": cap, "taken": taken, "holders": holders}
        )

    def in_order(self) -> Iterator[Reason]:
        """Yield the reasons that the policy of the partitions of the queue causes.

        Another task comes first in the partition, or workers have not ordered the tasks yet.
        """
        queue = self.task["queue_name"]
        first = self.facts.get("order")

        if ((self.facts.get("queue") or {}).get("sweep") or {}).get("rule"):
            text = (
                f"The queue {queue!r} starts no tasks until workers have ordered all waiting tasks "
                "by its new rule."
            )
            yield Reason(ReasonCode.ORDER_PENDING, text, {"queue": queue})

        if first is None:
            return

        if first["status"] == "FAILED" and first["order_stop"] == "stop":
            does = (
                f"it has been FAILED since {self.at(first['finished_at'])}, and the later tasks of "
                "the key wait until it is retried or skipped"
            )
        elif first["finished_at"]:
            does = (
                f"it has been {first['status']} since {self.at(first['finished_at'])}, and the "
                "tasks that were sent until then are being cancelled"
            )
        elif first["started_at"]:
            does = f"it has been {first['status']} since {self.at(first['started_at'])}"
        elif parse_time(first["enqueued_at"]) > self.now:
            does = f"it waits for its next attempt until {self.at(first['enqueued_at'])}"
        else:
            does = f"it is {first['status']}"

        text = (
            f"Task {first['task_id']} comes before it in the order of partition "
            f"{first['partition']}: {does}."
        )
        yield Reason(ReasonCode.BEHIND_IN_ORDER, text, {"queue": queue, **first})

    def crowded(self) -> Iterator[Reason]:
        """Yield the reasons that limits of the partition or of workers cause, and missing slots.

        A limit per worker is a reason only if no worker can claim the task.
        """
        full = [one for one in self.takers if at_limit(one["partition_room"])]
        local = [one for one in self.takers if at_limit(one["room"])]
        busy = [one for one in self.takers if one["busy"] >= one["slots"]]
        none_can = all(one in full or one in local or one in busy for one in self.takers)

        if not self.facts.get("order"):
            yield from self.partition(full if none_can else [])

        if none_can and local:
            limit = self.facts["queue"]["local_limit"]
            text = f"{self.share(local)} at the limit of {limit} per worker."
            details = {
                "queue": self.task["queue_name"],
                "local_limit": limit,
                "workers": self.crew(local),
            }
            yield Reason(ReasonCode.WORKERS_AT_LOCAL_LIMIT, text, details)

        if none_can and busy:
            lane = self.task["lane"]
            slots = sum(one["slots"] for one in busy)
            text = f"{self.share(busy)} without a free slot for {lane} tasks: "
            text += (
                f"{sum(one['busy'] for one in busy)} of {slots} are taken."
                if slots
                else "no process is ready."
            )

            if idle := [f"{one['hostname']}:{one['pid']}" for one in busy if not one["slots"]]:
                text += f" The log of {', '.join(idle[:3])} has the reason."
            details = {"lane": lane, "workers": self.crew(busy, "slots", "busy")}
            yield Reason(ReasonCode.NO_FREE_SLOT, text, details)

    def partition(self, full: Sequence[Facts]) -> Iterator[Reason]:
        """Yield a reason if the partition is at its limit, or if the task is still parked.

        ``full`` are the workers in which the partition is at its limit per worker.
        """
        found = self.facts.get("partition") or {
            "partition": None,
            "room": None,
            "taken": 0,
            "holders": [],
        }
        crowded = at_limit(found["room"])
        if not (crowded or full or self.task["parked"]):
            return

        queue = self.task["queue_name"]
        limit = None if found["room"] is None else found["room"] + found["taken"]
        name = (
            f"The partition {found['partition']} of queue {queue!r}"
            if found["partition"]
            else "Its partition"
        )
        longest = self.longest(found["holders"])

        if crowded:
            text = (
                f"{name} is at its limit: {found['taken']} of {limit} permits are taken{longest}."
            )
        elif full:
            limit = self.facts["queue"]["partition_local_limit"]
            text = f"{name} is at its limit of {limit} in each worker{longest}."
        else:
            text = (
                f"{name} was at its limit when a worker last checked. A permit is free now, "
                "and the task becomes available within 30 s."
            )

        details = {"queue": queue, **pick(found, "partition", "taken", "holders"), "limit": limit}
        yield Reason(ReasonCode.PARTITION_AT_LIMIT, text, {**details, "workers": self.crew(full)})

    def behind(self) -> Iterator[Reason]:
        count = self.facts.get("before") or 0
        bound = self.facts["bound"]

        if count:
            shown = "1 task of its queue is" if count == 1 else f"{count:,} tasks of its queue are"
            if more := count > bound:
                shown = f"More than {bound:,} tasks of its queue are"

            details = {"count": min(count, bound), "more": more}
            text = f"{shown} ahead of it and may start first"
            if self.task["codec"]:
                text += (
                    f"; its priority is {shown_priority(self.task['priority'], self.task['codec'])}"
                )
            yield Reason(ReasonCode.BEHIND_OTHERS, f"{text}.", details)

    def next(self) -> Reason:
        seconds = self.timing.poll.total_seconds()
        text = (
            "Nothing holds it back: it is the next task of its queue and should start within "
            f"{seconds:g} s."
        )
        return Reason(
            ReasonCode.NEXT, text, {"workers": self.crew(self.takers), "poll_seconds": seconds}
        )

    def holder(self) -> dict[str, Any]:
        return pick(self.facts["holder"], "worker_id", "hostname", "pid", "child_pid")

    def silent_since(self, last_seen: str, patience: dt.timedelta) -> bool:
        return parse_time(last_seen) < self.now - patience

    def longest(self, holders: Sequence[Facts]) -> str:
        """Return a phrase about the task with the oldest permit, or "" if there is none."""
        if not holders:
            return ""
        first = holders[0]
        return (
            f", the longest since {self.at(first['since'])} by task {first['task_id']} on "
            f"{worker_name(first)}"
        )

    def share(self, some: Sequence[Facts]) -> str:
        """Return the beginning of a sentence about some of the workers that can claim the task."""
        many = len(self.takers)
        few = len(self.takers) < len(self.workers)

        if many == 1:
            code = " and has its code" if few else ""
            return f"The only live worker that serves its queue{code} is"
        counted = f"All {many}" if len(some) == many else f"{len(some)} of the {many}"
        return (
            f"{counted} live workers that serve its queue{' and have its code' if few else ''} are"
        )

    def crew(self, workers: Sequence[Facts], *more: str) -> list[dict[str, Any]]:
        return [pick(one, "worker_id", "hostname", "pid", *more) for one in workers]
