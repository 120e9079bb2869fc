"""The storm over limits: workers are killed or stopped, and limits change, in turns.

There is always work. A stopped worker is continued when others have declared it dead and given its
tasks away.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from horsies_django import TaskHandle, queues
from tests.stress.chaos.evidence import Left, rows
from tests.stress.chaos.faults import Faults
from tests.stress.chaos.members import Member
from tests.stress.chaos.sending import Kind, Sender
from tests.stress.chaos.storm import Shape, Storm
from tests.stress.chaos.tasks import awork, work
from tests.stress.oracle import tasks
from tests.stress.oracle.judge import CLUSTER, disorder
from tests.stress.oracle.usage import Hold, Span, handed_on, usage
from tests.support.server import Server

RECOVERY_SECONDS = (
    6.0  # after the loss of a worker: until its tasks are rescued and the next worker is up
)
CHANGE_SECONDS = 0.5
CALM_BACKLOG = 2_000
STRIKES = ("stop parent", "kill parent", "kill child", "stop group", "kill group")
LEAST_EVENTS = 2 * len(STRIKES)
CHANGES = (
    "change",
    "pause",
    "override",
    "change",
    "resume",
    "clear",
    "pause",
    "change",
    "override",
    "resume",
)
POLICIES = ("stop", "continue", "cancel")
CAPS = {"tight": (1, 5), "wide": (2, 9), "pausing": (1, 6)}
PAUSED = ("pausing", "tenants", "tight")
OVERRIDDEN = ("tenants", "wide", "kinds")
ENDINGS = {"COMPLETED", "FAILED WORKER_CRASHED", "CANCELLED MERGED", "CANCELLED ORDER_CANCELLED"}
STOPPED = """
SELECT horsies_skip_stopped(
  'line', NULL, t.partition_key::json, NULL, 'storm', 'it goes on', horsies_channel()
)
FROM horsies_tasks t WHERE t.queue_name = 'line' AND t.order_stop = 'stop'
"""
ANSWERS = """
WITH RECURSIVE answer AS (
  SELECT t.id, t.merged_into, t.status, t.result FROM horsies_tasks t WHERE t.queue_name = 'same'
  UNION ALL
  SELECT a.id, t.merged_into, t.status, t.result
  FROM answer a JOIN horsies_tasks t ON t.id = a.merged_into
)
SELECT a.id, (a.result ->> 'ok')::int FROM answer a
WHERE a.merged_into IS NULL AND a.status = 'COMPLETED'
"""
TWINS = """
SELECT one.id, other.id FROM horsies_tasks one JOIN horsies_tasks other
  ON other.task_name = 'single' AND other.kwargs ->> 'page' = one.kwargs ->> 'page'
  AND other.id > one.id AND other.sent_at < one.finished_at
WHERE one.task_name = 'single'
"""


class Crowd(Sender):
    """Sends plain tasks to all queues, most of them of a few tenants, and changes pages.

    It cancels no task.
    """

    queues = {
        "free": 20,
        "tight": 10,
        "wide": 18,
        "tenants": 18,
        "kinds": 14,
        "pausing": 10,
        "line": 10,
    }
    fates = {"ok": 1}
    tenants = {f"tenant-{place}": 1 / (place + 1) for place in range(12)}
    batch = 1_000
    cancels = 0.0
    waits = 0.0

    def __init__(self, seed: int, slow: float) -> None:
        super().__init__(seed)
        self.ms = [slow * ms for ms in (0, 1, 2, 4, 8)]
        # The version of the page with which a task was sent, unless that was rolled back.
        self.versions: dict[uuid.UUID, int] = {}
        self.singles = 0
        self.found = 0  # sends of unique tasks that found an existing one

    def kind(self) -> Kind:
        """Draw the function and the queue."""
        task = work if self.random.random() < 0.3 else awork
        return Kind(task, self.drawn(self.queues), "none", None, None)

    def send(self, many: int) -> list[tuple[int, TaskHandle[Any]]]:
        """Send ``count`` tasks, and a change of a page with every twentieth."""
        handles = super().send(many)
        for _ in range(many // 20):
            self.send_change()
        return handles

    def send_change(self) -> None:
        """Change a page and send its rebuild, in a transaction that may be rolled back.

        Also send a unique task.
        """
        page = self.random.randrange(10)
        rolled_back = self.random.random() < 0.2

        with transaction.atomic():
            query = (
                "UPDATE oracle_pages SET version = version + 1 WHERE page = %s RETURNING version"
            )
            ((version,),) = rows(query, page)
            handle = tasks.rebuild.send(page)
            transaction.set_rollback(rolled_back)

        if not rolled_back:
            self.versions[handle.task_id] = version

        new = tasks.single.send(page).is_new
        self.singles += new
        self.found += not new


class Limits(Faults):
    """The faults of the workers, and the changes of limits; it records the disturbed times."""

    def __init__(self, server: Server, seed: int, names: list[str]) -> None:
        super().__init__(server, seed)
        self.names = names  # the queues whose caps are set, and the cluster
        self.disturbed: list[Span] = []

    def strike(self, name: str, member: Member) -> bool:
        """Apply a fault to a worker."""
        now = time.time()
        if name in CHANGES:
            getattr(self, name)()
            self.disturbed.append((now - CHANGE_SECONDS, time.time() + CHANGE_SECONDS))
            return True

        if name.startswith("kill"):
            self.disturbed.append((now, now + RECOVERY_SECONDS))

        return super().strike(name, member)

    def change(self) -> None:
        """Set the declared cap of a queue or the cluster, and the ordered queue's failure rule."""
        queues.change("line", {"partition_policy": self.random.choice(POLICIES)}, actor="storm")
        name = self.random.choice(self.names)
        low, high = (4, 10) if name == CLUSTER else CAPS[name]
        queues.change(name, {"max_concurrency": self.random.randint(low, high)}, actor="storm")

    def override(self) -> None:
        """Override the limits of a queue with partitions, or of one without."""
        limits: dict[str, int | None] = {
            "partition_max_concurrency": self.random.randint(1, 4),
            "partition_local_limit": 2,
        }
        name = self.random.choice(OVERRIDDEN)
        if name == "wide":
            limits = {
                "max_concurrency": self.random.choice((None, 4, 6)),
                "local_limit": self.random.randint(1, 3),
            }
        queues.override(name, limits, actor="storm", reason="bad weather")

    def clear(self) -> None:
        """End an override, if there is one."""
        queues.clear(self.random.choice(OVERRIDDEN), actor="storm")

    def pause(self) -> None:
        """Pause a queue."""
        queues.pause(self.random.choice(PAUSED), actor="storm")

    def resume(self) -> None:
        """Resume all queues."""
        for name in PAUSED:
            queues.resume(name, actor="storm")

    def clear_up(self) -> None:
        """End pauses and overrides."""
        self.resume()
        for name in OVERRIDDEN:
            queues.clear(name, actor="storm")


class LimitStorm(Storm):
    """One storm.

    ``calm`` is for how many seconds there is work at its end, after all workers have recovered, and
    no fault.
    """

    faults: Limits
    sender: Crowd
    shapes = (
        (("--processes=2", "--async-concurrency=6"), False),
        (("--processes=1", "--threads=3", "--async-concurrency=6"), False),
        (("--processes=1", "--threads=2", "--async-concurrency=4", "--start-method=spawn"), False),
    )

    def __init__(
        self,
        shape: Shape,
        server: Server,
        directory: Path,
        *,
        slow: float,
        calm: float,
        cluster_cap: int | None,
    ) -> None:
        self.of_cluster = [CLUSTER] if cluster_cap else []
        self.seconds_of_calm = calm
        self.skipped = 0

        with connection.cursor() as cursor:
            cursor.execute(tasks.PAGES)

        faults = Limits(server, shape.seed, [*CAPS, *self.of_cluster])
        super().__init__(shape, faults, Crowd(shape.seed, slow), directory)

    def weather(self) -> Iterator[str]:
        """Yield a fault and a change in turns."""
        kinds = cycle((cycle(STRIKES), cycle(CHANGES)))
        yield from (next(next(kinds)) for _ in range(self.shape.faults))

    def tend(self) -> None:
        """Restart and continue the workers, and resume stopped partitions."""
        self.skipped += len(rows(STOPPED))
        super().tend()

    def clear(self) -> None:
        """Keep the workers busy for the calm time, then wait for the end of all tasks."""
        self.faults.clear_up()
        if self.seconds_of_calm:
            self.until(self.was_calm, "it was calm")
        super().clear()

    def was_calm(self) -> bool:
        """Return whether the calm was long enough; send more tasks until then."""
        if self.left() < CALM_BACKLOG:
            self.sender.allowed = self.sender.sent + CALM_BACKLOG
        return time.time() > max(end for _, end in self.disturbed()) + self.seconds_of_calm

    def disturbed(self) -> list[Span]:
        """Return the disturbed times.

        A worker that is stopped now counts as disturbed for a while.
        """
        still = [
            (member.stopped.since, time.time() + RECOVERY_SECONDS)
            for member in self.fleet
            if member.stopped
        ]
        gone = [(thaw.since, thaw.at + RECOVERY_SECONDS) for thaw in self.thaws]
        return [*self.faults.disturbed, *gone, *still]

    def violations(self, left: Left) -> list[str]:
        """Return errors in the order and the ends of tasks, and in merged and unique tasks."""
        sent = self.sender.sent
        more = len(self.sender.versions) + self.sender.singles
        found = (
            [f"{sent + more} tasks were sent, there are {len(left.rows)}"]
            if sent + more != len(left.rows)
            else []
        )

        found += [
            f"task {row.id} ended {row.ending}" for row in left.rows if row.ending not in ENDINGS
        ]

        found += [
            f"unique task {other} was sent while task {one} had not finished"
            for one, other in rows(TWINS)
        ]

        found += [  # tasks whose run crashed do not count
            f"task {id_} was sent with version {self.sender.versions[id_]}; the run that answers "
            f"it saw {version}"
            for id_, version in rows(ANSWERS)
            if version < self.sender.versions.get(id_, 0)
        ]

        return [*found, *disorder(left.runs, left.chronicles), *super().violations(left)]

    def report(self, left: Left) -> dict[str, Any]:
        """Return counts of the events of this storm, and how far the caps were used."""
        merged = sum(row.error_code == "MERGED" for row in left.rows)
        return {
            "merged": merged,
            "unique": self.sender.found,
            "skipped": self.skipped,
            "usage": self.used(left),
        }

    def used(self, left: Left) -> dict[str, Any]:
        """Return the used share of each cap while work waited and no worker was disturbed lately.

        Work waits while tasks of the async lane wait, for which there are enough slots; under the
        cap of the cluster, the tasks of the queue without limits.
        """
        queue_of = {row.id: row.queue for row in left.rows}
        held = [
            Hold(queue_of[one.task], one.worker, one.started_at, one.finished_at)
            for one in left.tried
        ]

        waited: defaultdict[str, list[Span]] = defaultdict(list)
        for row in left.rows:
            if row.name == awork.name and row.id in left.attempts:
                waited[row.queue].append((row.due_at, left.attempts[row.id][0].started_at))

        disturbed = [
            *self.disturbed(),
            (float("-inf"), self.began + 1.0),
            (self.ended, float("inf")),
        ]

        figures = {}
        for name in self.of_cluster or CAPS:
            mine = handed_on([hold for hold in held if name in (CLUSTER, hold.queue)])
            work = waited["free" if name == CLUSTER else name]
            found = usage(mine, left.chronicles[name].caps(), work, disturbed)

            if found is not None:
                figures[name] = {key: round(value, 3) for key, value in found._asdict().items()}

        return figures
