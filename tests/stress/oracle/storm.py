"""The storm: a backlog that is kept up, workers that run it, and weather over both.

The weather goes by progress, not by time: after so many tasks the next thing happens, to a worker or to the limits in turns.
A stopped worker is continued when others have declared it dead and given its tasks away. A worker is struck only while all are
well, or nobody would be left to judge the dead.
"""

from __future__ import annotations

import random
import threading
import uuid
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from django.db import transaction

from horsies_django import queues
from tests.stress.oracle import tasks
from tests.stress.oracle.evidence import clock, go_on, living, rows, unfinished
from tests.stress.oracle.fleet import TICK_SECONDS, Fleet, Member
from tests.stress.oracle.judge import CLUSTER
from tests.stress.oracle.usage import Span
from tests.support.runners import kill_a_runner

PATIENCE_TICKS = 600  # without progress: then something is stuck
STALL_TICKS = 40  # without progress: a pause is over, so that a storm of paused queues ends
RECOVERY_SECONDS = 6.0  # after a worker was lost: until its tasks are rescued and the next one is up
CHANGE_SECONDS = 0.5
BACKLOG, CHUNK = 40_000, 5_000
CALM_BACKLOG = 2_000
TENANTS = [f"tenant-{number}" for number in range(12)]
STRIKES = ("stop", "kill", "kill child", "stop group", "kill group")
CHANGES = ("change", "pause", "override", "change", "resume", "clear", "pause", "change", "override", "resume")
TASK_MS = (0, 1, 2, 4, 8)
# queue -> its share of the tasks
SHARES = {"free": 20, "tight": 10, "wide": 18, "tenants": 18, "kinds": 14, "pausing": 10, "line": 10}
POLICIES = ("stop", "continue", "cancel")
CAPS = {"tight": (1, 5), "wide": (2, 9), "pausing": (1, 6)}


class Shape(NamedTuple):
    """How large a storm is: tasks, workers, the factor on what tasks take, tasks between events, and the cap of the cluster.

    ``calm``: for how many seconds there is work at its end after everybody has recovered, however fast the tasks ran before.
    """

    claims: int
    workers: int = 3
    seed: int = 1
    slow: float = 1.0
    every: int | None = None
    cluster_cap: int | None = None
    calm: float = 0.0


class Storm(Fleet):
    """One storm. ``raise_`` returns when all of them are over and the sky is clear."""

    def __init__(self, shape: Shape, directory: Path) -> None:
        super().__init__()
        self.shape = shape
        self.random = random.Random(shape.seed)
        self.strikes = cycle(STRIKES)
        self.changes = cycle(CHANGES)
        self.every = shape.every or max(400, shape.claims // 100)
        self.targets = cycle(range(shape.workers))
        self.fleet = [Member(number, directory) for number in range(shape.workers)]
        self.sent = 0
        self.noting = 0  # of these, those that note their runs
        self.found = 0  # sends of unique tasks that found one
        self.skipped = 0
        self.versions: dict[uuid.UUID, int] = {}
        self.disturbed: list[Span] = []
        self.stopped_at: dict[Member, float] = {}
        self.moment = threading.Event()

    def raise_(self) -> list[str]:
        """Let it rage. Returns what went wrong, in words."""
        self.up()
        self.began = clock()
        next_at, ticks, least = self.every, 0, 0
        while left := self.feed():
            done = self.sent - left
            ticks = 0 if done > least else ticks + 1
            least = max(done, least)
            if done >= next_at and (done < 0.9 * self.shape.claims or not self.seen_all):
                next_at = done + self.every
                self.happen()
            self.tend()
            if ticks == STALL_TICKS:
                self.clear_up()
            if ticks > PATIENCE_TICKS:
                self.ended = clock()
                return [f"nothing more happens: {left} tasks are not finished"]
            self.moment.wait(TICK_SECONDS)
        self.ended = clock()
        self.clear_up()
        return self.calm()

    @property
    def calm_enough(self) -> bool:
        """Whether the calm at the end has lasted long enough."""
        return clock() > max((end for _, end in self.disturbed), default=self.began) + self.shape.calm

    @property
    def seen_all(self) -> bool:
        """Whether every kind of strike has happened."""
        return self.happened["strikes"] >= len(STRIKES)

    def feed(self) -> int:
        """Send more when the backlog is low, and beyond the claims until all has been seen, and the calm after it.

        Returns how many are not finished.
        """
        left = unfinished()
        while left < BACKLOG and self.sent < self.shape.claims:
            left += self.send(min(CHUNK, self.shape.claims - self.sent))
        if left < self.every and not self.seen_all:
            left += self.send(self.every)
        if left < CALM_BACKLOG and self.shape.calm and self.seen_all and not self.calm_enough:
            left += self.send(CALM_BACKLOG)
        return left

    def send(self, many: int) -> int:
        """Send a mix of both kinds of tasks to all queues, a few tenants have most of the work. Returns how many."""
        numbers = range(self.sent, self.sent + many)
        names = self.random.choices(list(SHARES), SHARES.values(), k=len(numbers))
        weights = [1 / (place + 1) for place in range(len(TENANTS))]
        tenants = self.random.choices(TENANTS, weights, k=len(numbers))
        mixed: dict[tuple[Any, str], list[dict[str, Any]]] = {}
        for number, queue, tenant in zip(numbers, names, tenants, strict=True):
            task = tasks.work if self.random.random() < 0.3 else tasks.awork
            call = {
                "number": number,
                "queue": queue,
                "tenant": tenant,
                "ms": self.shape.slow * self.random.choice(TASK_MS),
            }
            mixed.setdefault((task, queue), []).append(call)
        for (task, queue), calls in mixed.items():
            task.with_options(queue=queue).send_many(calls)
        self.sent += many
        self.noting += many
        return many + sum(self.send_change() for _ in range(many // 20))

    def send_change(self) -> int:
        """Change a page and have it rebuilt, in a transaction that may be rolled back; send a unique task. Returns how many."""
        before, page, rolled_back = self.sent, self.random.randrange(10), self.random.random() < 0.2
        with transaction.atomic():
            query = "UPDATE oracle_pages SET version = version + 1 WHERE page = %s RETURNING version"
            ((version,),) = rows(query, page)
            self.versions[tasks.rebuild.send(page).task_id] = version
            transaction.set_rollback(rolled_back)
        self.sent += not rolled_back
        new = tasks.single.send(page).is_new
        self.sent += new
        self.found += not new
        return self.sent - before

    def happen(self) -> None:
        """Let the next thing happen."""
        if self.happened["strikes"] <= self.happened["changes"] and all(member.ready for member in self.fleet):
            kind, what = "strikes", next(self.strikes)
            verb, _, whom = what.partition(" ")
            self.strike(verb, whom, self.fleet[next(self.targets)])
        else:
            kind, what = "changes", next(self.changes)
            getattr(self, what)()
            now = clock()
            self.disturbed.append((now - CHANGE_SECONDS, now + CHANGE_SECONDS))
        self.happened[kind] += 1
        self.happened[what] += 1

    def strike(self, verb: str, whom: str, member: Member) -> None:
        """Kill a worker, its group, or one of its children; or stop it."""
        now = clock()
        if verb == "stop":
            member.stop(group=whom == "group")
            self.stopped_at[member] = now
            return
        if whom == "child":
            kill_a_runner(member.process.pid, self.random)
        else:
            member.kill(group=whom == "group")
        self.disturbed.append((now, now + RECOVERY_SECONDS))

    def tend(self) -> None:
        """Tend the workers, and let partitions that stand still go on."""
        self.skipped += go_on()
        super().tend()

    def continued(self, member: Member) -> None:
        """Note for how long a worker and its tasks were away."""
        self.disturbed.append((self.stopped_at.pop(member), clock() + RECOVERY_SECONDS))

    def change(self) -> None:
        """Set a queue's declared cap, or the cluster's, and what a failed task of the ordered queue does."""
        queues.change("line", {"partition_policy": self.random.choice(POLICIES)}, actor="storm")
        name = self.random.choice([*CAPS, *([CLUSTER] if self.shape.cluster_cap else [])])
        low, high = (4, 10) if name == CLUSTER else CAPS[name]
        queues.change(name, {"max_concurrency": self.random.randint(low, high)}, actor="storm")

    def override(self) -> None:
        """Override the limits of a queue with partitions, or of one without."""
        limits: dict[str, int | None] = {
            "partition_max_concurrency": self.random.randint(1, 4),
            "partition_local_limit": 2,
        }
        name = self.random.choice(["tenants", "wide", "kinds"])
        if name == "wide":
            limits = {"max_concurrency": self.random.choice((None, 4, 6)), "local_limit": self.random.randint(1, 3)}
        queues.override(name, limits, actor="storm", reason="bad weather")

    def clear(self) -> None:
        """End an override, if there is one."""
        queues.clear(self.random.choice(["tenants", "wide", "kinds"]), actor="storm")

    def pause(self) -> None:
        """Pause a queue."""
        queues.pause(self.random.choice(["pausing", "tenants", "tight"]), actor="storm")

    def resume(self) -> None:
        """Resume all queues."""
        for name in ("pausing", "tenants", "tight"):
            queues.resume(name, actor="storm")

    def clear_up(self) -> None:
        """End pauses and overrides."""
        self.resume()
        for name in ("tenants", "wide", "kinds"):
            queues.clear(name, actor="storm")

    def calm(self) -> list[str]:
        """Wait until every worker is up and well again, and those that were killed are known to be dead."""
        self.up("all workers are up again")
        self.until(lambda: living() == len(self.fleet), "the killed are known to be dead")
        return []
