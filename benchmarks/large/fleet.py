"""1,000 idle workers: the server's costs of their heartbeats, snapshots and reaper rounds.

The workers are simulated: their statements are run at the rates of the defaults, one after another
on a few connections, by the code that a worker's maintenance thread runs. The figure is the CPU
time of all processes of the server, for each second of the life of the fleet. Afterwards the same
is measured for one UPDATE of a row by its key for each heartbeat, whose commit does not wait for
the disk: no fleet with heartbeats costs less. Connections of a thousand workers have colder caches
than these few.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import cycle
from typing import Any

from django.db import connection

from benchmarks.figures import Case, Goal, Reading
from benchmarks.machine import empty_tables
from benchmarks.meters import server_seconds
from horsies_django.conf import config
from horsies_django.core.options import WIRE
from horsies_django.store.notify import direct_connection
from horsies_django.store.workers import Load, Process, WorkerStore
from horsies_django.tasks import registry
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.maintenance.reaper import OverdueWorkflows, Reaper
from horsies_django.workflows.advancer import Advancer

WORKERS = 1_000
CHILDREN = 4
SECONDS = 30
CONNECTIONS = 8
STEPS = 2  # in a second: no action is more frequent
BARE = "UPDATE horsies_heartbeats SET sent_at = clock_timestamp() WHERE id = %s"
FLEET = "large fleet of 1,000 workers, a second"
FLOOR = "large fleet, one UPDATE for each heartbeat, a second"
GOALS = (Goal("large", FLEET, 30, at_most=True),)


@dataclass
class Member:
    """A worker of the fleet: the state of its maintenance thread."""

    number: int
    id: uuid.UUID = field(default_factory=uuid7)
    on_duty: bool = False
    beats: int = 0

    def __post_init__(self) -> None:
        recovery = config().recovery
        self.fresh = timedelta(milliseconds=2 * recovery.claimer_heartbeat_interval_ms)

        self.children = [Process(uuid.uuid4(), 1_000 + number) for number in range(CHILDREN)]
        self.reaper = Reaper(recovery, None, ["default"], self.id, lambda seconds: True)
        self.overdue = OverdueWorkflows(Advancer(config().max_payload_bytes))

        self.beat_steps = recovery.claimer_heartbeat_interval_ms * STEPS // 1_000
        self.reap_steps = max(1, recovery.check_interval_ms * STEPS // 1_000)
        self.snapshot_steps = recovery.worker_state_snapshot_interval_ms * STEPS // 1_000

    def register(self, conn: Any) -> None:
        """Register the worker."""
        names = registry.names()
        WorkerStore(conn).register(
            self.id,
            hostname="simulated",
            pid=self.number,
            version="0",
            queues=["default"],
            task_names=names,
            wire=WIRE,
            processes=CHILDREN,
            threads=1,
            async_concurrency=1,
        )

    def live(self, conn: Any, step: int) -> None:
        """Do the work that is due at a step, as heartbeat and maintenance thread do.

        Raises RuntimeError if it was declared dead.
        """
        store = WorkerStore(conn)
        load = Load(0, 0, 100.0, 400.0)

        if (step + self.number) % self.beat_steps == 0:
            changed = not self.beats % (self.snapshot_steps // self.beat_steps)
            beaten = store.beat(
                self.id, self.children if changed else None, load, self.fresh, listens=True
            )
            self.on_duty = beaten.on_duty
            self.beats += 1

            if not beaten.alive:
                raise RuntimeError(
                    "a simulated worker was declared dead: the machine is too slow for this many"
                )

        if (step + self.number) % self.snapshot_steps == 0:
            memories = dict.fromkeys((child.id for child in self.children), 50.0)
            store.snapshot(self.id, load, memories, buffered=0, cpu_percent=1.0)

        if (step + self.number) % (60 * STEPS) == 0:
            self.reaper.note_served(conn)
        if (step + self.number) % self.reap_steps == 0 and self.on_duty:
            self.reaper.tick(conn)
            self.overdue.tick(conn)


def cases(scale: float) -> Sequence[Case]:
    """Return the one case, whose parts take turns."""
    return [Case("large fleet", partial(measure, scale))]


def measure(scale: float) -> list[Reading]:
    """Run a fleet for some seconds, and write bare heartbeats for as many."""
    seconds = max(3, round(SECONDS * min(1.0, scale)))
    empty_tables()

    with connections() as each:
        fleet = [Member(number) for number in range(max(10, round(WORKERS * min(1.0, scale))))]
        for member in fleet:
            member.register(next(each))
        ids = cycle([member.id for member in fleet])

        def life(step: int) -> None:
            for member in fleet:
                member.live(next(each), step)

        def bare(step: int) -> None:
            for _ in range(len(fleet) // fleet[0].beat_steps):
                next(each).execute(BARE, [next(ids)], prepare=True)

        for step in range(4 * fleet[0].beat_steps):  # warm-up: each session plans its statements
            life(step)

        times = {FLEET: cpu(life, seconds)}
        for _ in range(CONNECTIONS):
            next(each).execute("SET synchronous_commit = off")
        times[FLOOR] = cpu(bare, seconds)

    empty_tables()
    details = {"workers": len(fleet), "on duty": sum(member.on_duty for member in fleet)}
    return [
        Reading(name, time * 1_000, "ms", details)
        for name, time in times.items()
        if time is not None
    ]


def cpu(act: Callable[[int], None], seconds: int) -> float | None:
    """Return the CPU seconds of the server in each of so many seconds of the fleet.

    None if the server runs elsewhere.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()

    before = server_seconds(backend)
    for step in range(seconds * STEPS):
        act(step)
    after = server_seconds(backend)

    return None if before is None or after is None else (after - before) / seconds


@contextmanager
def connections() -> Iterator[Iterator[Any]]:
    """Open a few connections like those of maintenance threads, and return them in turn."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(
                closing(direct_connection("default", application_name="benchmarks", prepare=True))
            )
            for _ in range(CONNECTIONS)
        ]
        yield cycle(opened)
