"""The storm: a sender that the faults pace, workers that run its tasks, and one fault at a time.

Each fault releases a share of the tasks. The next fault comes when most of them are done, or after
a while, and only while two workers are whole: the tasks of dead workers need a rescuer.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from horsies_django import schedules
from horsies_django.models import Schedule
from tests.stress.chaos.evidence import Left, counted, dead, from_now_on, living, steady, unfinished
from tests.stress.chaos.faults import LONG_ROUND, ROUND, Faults
from tests.stress.chaos.judge import miscounted
from tests.stress.chaos.members import Member
from tests.stress.chaos.notes import DIRECTORY
from tests.stress.chaos.sending import Aside, Sender
from tests.stress.oracle.judge import Thaw
from tests.support.deadlines import wait_until

TICK_SECONDS = 0.05
LULL_SECONDS = 2.0  # without a fault: then the next one does not wait for the tasks
FASTEST = 500  # tasks a second; with more tasks for each fault, the pauses are longer
BREATH_SECONDS = 0.3  # at least, between two faults
BACKLOG = 3  # shares of unfinished tasks that the next fault allows
ALWAYS = "cut all"
LONG_FAULTS = 100  # with so many faults or more, the server is also killed, not only restarted
MARK = "CHAOS_MARK"
# the options of each worker, and whether it claims ahead of time
SHAPES = (
    (
        ("--with-scheduler", "--processes=2", "--async-concurrency=6", "--max-tasks-per-child=25"),
        False,
    ),
    (
        (
            "--with-scheduler",
            "--processes=1",
            "--threads=3",
            "--async-concurrency=6",
            "--max-tasks-per-child=60",
        ),
        False,
    ),
    (("--with-scheduler", "--processes=2", "--async-concurrency=4"), True),
)


class Shape(NamedTuple):
    """The size of a storm."""

    tasks: int
    faults: int
    workers: int = 3
    seed: int = 1


class Storm:
    """One storm. ``raise_`` returns when all tasks and workers have recovered.

    Every wait also restarts and continues workers meanwhile.
    """

    patience_seconds = 90.0
    shapes: Sequence[tuple[Sequence[str], bool]] = SHAPES

    def __init__(self, shape: Shape, faults: Faults, sender: Sender, directory: Path) -> None:
        self.happened: Counter[str] = Counter()
        self.thaws: list[Thaw] = []

        self.shape = shape
        self.faults = faults
        self.sender = sender
        self.random = random.Random(shape.seed)

        self.mark = uuid.uuid4().hex
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.chronicles = from_now_on()
        self.fleet = [self.member(number, directory) for number in range(shape.workers)]

        self.threads: list[Aside] = [sender]
        self.over = threading.Event()
        self.moment = threading.Event()

    def member(self, number: int, directory: Path) -> Member:
        """Start a worker; a mark in the environment identifies all its processes."""
        options, soft = self.shapes[number % len(self.shapes)]
        environment = {DIRECTORY: str(self.notes), MARK: self.mark, "CHAOS_NAME": "chaos task"}
        return Member(
            number, directory, options, environment | ({"CHAOS_SOFT": "1"} if soft else {})
        )

    def raise_(self) -> None:
        """Run the storm."""
        self.up()
        self.began = time.time()
        self.sender.start()

        for number, name in enumerate(self.weather(), 1):
            self.sender.allowed = round(self.shape.tasks * number / self.shape.faults)
            self.lull(self.shape.tasks / self.shape.faults)
            self.befall(name)

        self.clear()
        self.ended = time.time()
        self.sender.end()
        self.killed = dead()

    def weather(self) -> Iterator[str]:
        """Yield the names of the faults: rounds of all of them, each in random order."""
        names: list[str] = []
        for _ in range(self.shape.faults):
            if not names:
                names = list(LONG_ROUND if self.shape.faults >= LONG_FAULTS else ROUND)
                self.random.shuffle(names)
            yield names.pop()

    def lull(self, share: float) -> None:
        """Wait until the next fault may come: never right after the last one.

        It comes when most tasks are done, or after a long time.
        """
        since = time.monotonic()
        longest = max(LULL_SECONDS, share / FASTEST)

        while (passed := time.monotonic() - since) < longest:
            self.tend()
            if (
                passed > BREATH_SECONDS
                and self.sender.sent >= self.sender.allowed
                and self.left() < BACKLOG * share
            ):
                return
            self.moment.wait(TICK_SECONDS)

    def befall(self, name: str) -> None:
        """Apply a fault to a whole worker while another one is whole, too."""
        self.until(lambda: sum(member.ready for member in self.fleet) > 1, "two workers are whole")
        whole = [member for member in self.fleet if member.ready]
        while not self.faults.strike(name, self.random.choice(whole)):
            name = ALWAYS  # there was no target
        self.happened[name] += 1

    def tend(self) -> None:
        """Continue the workers that were declared dead, and start those that have ended.

        Raises the error that ended a thread.
        """
        for member in self.fleet:
            if member.stopped:
                if member.given_up():
                    self.thaws.append(member.go_on())
            elif member.process.poll() is not None:
                self.happened["replaced"] += 1
                member.start()

        for thread in self.threads:
            if thread.crashed is not None:
                raise thread.crashed

    def until(self, condition: Callable[[], Any], what: str, *, tended: bool = True) -> None:
        """Wait for a condition. Raises TimeoutError with the logs."""
        since = time.monotonic()
        while not condition():
            if tended:
                self.tend()
            if time.monotonic() - since > self.patience_seconds:
                raise TimeoutError(f"not in time: {what}\n{self.logs()}")
            self.moment.wait(TICK_SECONDS)

    def up(self) -> None:
        """Wait until all workers have started."""
        self.until(lambda: all(member.ready for member in self.fleet), "all workers are up")

    def clear(self) -> None:
        """Wait until all tasks are over, all workers are up, and dead workers are declared dead."""
        steady(end_schedules)

        while (left := self.left()) or self.sender.sent < self.sender.allowed:
            over = self.sender.sent - left
            self.until(
                lambda over=over: self.sender.sent - self.left() > over, "more tasks are over"
            )

        self.up()
        self.until(lambda: steady(living) == len(self.fleet), "the killed are known to be dead")

    def logs(self) -> str:
        """Return the end of each worker's log."""
        return "\n".join(
            f"--- {member.log.name}\n{member.log.read_text()[-3_000:]}" for member in self.fleet
        )

    def left(self) -> int:
        """Return the number of unfinished tasks."""
        return steady(unfinished)

    def violations(self, left: Left) -> list[str]:
        """Return the violations that only this kind of storm can cause."""
        return miscounted(left.rows, left.tried, counted(), self.killed)

    def report(self, left: Left) -> dict[str, Any]:
        """Return the part of the report that only this kind of storm has."""
        return {}

    def end(self) -> list[str]:
        """End the sender and the workers.

        Return the errors of their ends, and the processes that outlived them.
        """
        self.over.set()
        self.sender.over.set()

        codes = [member.end() for member in self.fleet]
        found = [f"a worker ended with exit code {code}" for code in codes if code]

        with suppress(AssertionError):
            wait_until(lambda: not self.survivors(), "what dies with its parent is gone")

        return found + [
            f"process {one.pid} is left: {' '.join(one.cmdline())}" for one in self.survivors()
        ]

    def survivors(self) -> list[psutil.Process]:
        """Return the processes of the workers that still run."""
        found = []
        for one in psutil.process_iter():
            try:
                if one.environ().get(MARK) == self.mark and one.pid != os.getpid():
                    found.append(one)
            except psutil.Error:
                continue

        return found


def end_schedules() -> None:
    """Stop all schedules."""
    for name in Schedule.objects.values_list("name", flat=True):
        schedules.disable(name, actor="storm")
