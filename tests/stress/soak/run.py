"""The soak itself: workers under an even load, and faults and deploys by the clock."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.db import connection

from horsies_django.conf import config
from horsies_django.monitoring.health import examine, problems
from tests.stress.chaos.evidence import unfinished
from tests.stress.chaos.faults import Faults
from tests.stress.chaos.patients import Patient
from tests.stress.chaos.sending import Aside
from tests.stress.chaos.storm import Shape, Storm
from tests.stress.soak.flat import grown, thirds
from tests.stress.soak.ledger import Ledger
from tests.stress.soak.load import Steady
from tests.stress.soak.samples import Sampler
from tests.support.server import Server

TICK_SECONDS = 0.1
CLEAR_SECONDS = 180.0
LEDGER_SECONDS = 5.0
TELL_SECONDS = 60.0
KILL_CHILD_SECONDS = 5.0  # between two kills of a child
KILLS = 30  # kills of workers in an hour
DEPLOYS = 12  # in an hour
PATIENTS = 2
PAUSE_SECONDS = 0.2
SHOWN = 20


class Soak(Storm):
    """``soaked`` returns the verdict; ``plan`` holds the options of the command line."""

    # The first worker is never killed or replaced: its memory is measured.
    shapes = (
        (("--processes=2", "--async-concurrency=20", "--with-scheduler"), False),
        (("--processes=1", "--threads=3", "--async-concurrency=20", "--with-scheduler"), False),
        (("--processes=2", "--async-concurrency=10"), False),
    )
    patience_seconds = CLEAR_SECONDS
    sender: Steady

    def __init__(self, plan: argparse.Namespace, server: Server, directory: Path) -> None:
        seed = plan.seed
        self.plan = plan
        self.seconds = plan.minutes * 60

        shape = Shape(0, 0, len(self.shapes), seed)
        super().__init__(shape, Faults(server, seed), Steady(seed, calm=plan.calm), directory)

        self.ledger = Ledger(self.notes, self.sender, config().recovery.max_crashes)
        self.patients = [Patient(number, self.over, PAUSE_SECONDS) for number in range(PATIENTS)]
        self.deploys: list[float] = []  # in seconds of the samples
        self.complaints: list[str] = []

    def soaked(self) -> dict[str, Any]:
        """Measure the capacity, soak, and judge."""
        try:
            self.up()
            capacity = self.capacity()
            rate = capacity * self.plan.load
            tell(f"the workers finish {capacity:.0f} tasks a second; sending {rate:.0f}")

            self.sampler = Sampler(self.fleet)
            looks = (
                Every(self.plan.every, self.sampler.take),
                Every(LEDGER_SECONDS, self.ledger.read),
                Every(TELL_SECONDS, self.tell),
                *([Every(self.plan.every, self.examine)] if self.plan.calm else ()),
            )

            self.threads += [*self.patients, Watcher(looks, self.over)]
            self.sender.go(rate)
            for thread in self.threads[1:]:
                thread.start()

            self.soak()
            self.clear()
        finally:
            self.complaints += self.end()

        return self.verdict(capacity, rate, self.ledger.close())

    def capacity(self) -> float:
        """Send many tasks at once, and return how many tasks the workers finish per second."""
        while (missing := self.plan.drain - self.sender.sent) > 0:
            self.sender.send(min(100, missing))
        began = time.monotonic()
        self.until(lambda: not unfinished(), "the workers finish the tasks of the drain")
        return float(self.plan.drain / (time.monotonic() - began))

    def soak(self) -> None:
        """Run everything that is due, until the time is over."""
        due = [Every(max(self.seconds / DEPLOYS, min(60, self.seconds * 0.6)), self.deploy)]
        if not self.plan.calm:
            due += [
                Every(KILL_CHILD_SECONDS, self.kill_child),
                Every(max(self.seconds / KILLS, min(20, self.seconds * 0.8)), self.kill_worker),
            ]

        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            self.tend()
            for each in due:
                each.tick()
            time.sleep(TICK_SECONDS)

    def examine(self) -> None:
        """Record each problem that the status reports, although there is none."""
        self.happened["examined"] += 1
        self.complaints += [f"{one.code}: {one.text}" for one in problems(examine(connection))]

    def kill_child(self) -> None:
        """Kill a process that runs tasks."""
        self.happened["kill child"] += self.faults.strike(
            "kill child", self.random.choice(self.fleet)
        )

    def kill_worker(self) -> None:
        """Kill a worker, alone or with its processes."""
        name = self.random.choice(("kill parent", "kill group"))
        self.happened[name] += self.faults.strike(name, self.random.choice(self.fleet[1:]))

    def deploy(self) -> None:
        """Replace the workers in turns, as a deploy does.

        Each worker finishes its tasks, and the next one is replaced when it is back.
        """
        self.deploys.append(time.monotonic() - self.sampler.began)

        for member in self.fleet[1:]:
            if member.process.poll() is None:
                self.until(
                    lambda member=member: member.ready, "a worker is up before it is replaced"
                )
                if code := member.end():
                    self.complaints.append(
                        f"a worker that was replaced ended with exit code {code}"
                    )

            member.start()
            self.until(lambda member=member: member.ready, "a worker is up again")

        self.happened["deploy"] += 1

    def clear(self) -> None:
        """Stop sending, end the schedulers, and wait until the last worker has finished."""
        self.over.set()
        self.sender.over.set()
        for thread in self.threads:
            thread.join(CLEAR_SECONDS)

        self.tend()
        self.up()

        for member in self.fleet[:-1]:
            member.end()
        self.until(lambda: not unfinished(), "all tasks have finished", tended=False)

    def tell(self) -> None:
        """Print the progress for people."""
        last = self.sampler.samples[-1] if self.sampler.samples else {}
        tell(
            f"{', '.join(f'{name} {value:,.1f}' for name, value in last.items())}; "
            f"{len(self.ledger.violations)} violations"
        )

    def verdict(self, capacity: float, rate: float, violations: list[str]) -> dict[str, Any]:
        """Return the verdict as plain values."""
        answers = [answer for patient in self.patients for answer in patient.answers]
        violations += [
            one.complaint for one in answers if one.given != one.expected
        ] + self.complaints
        medians = thirds(self.sampler.samples)
        return {
            "seconds": self.seconds,
            "capacity, tasks/s": round(capacity, 1),
            "sent, tasks/s": round(rate, 1),
            "tasks": self.sender.sent,
            "workflows": len(answers),
            "fire times": self.ledger.ticks,
            "weather": dict(sorted((+self.happened).items())),
            "endings": dict(sorted(self.ledger.endings.items())),
            "violations": violations[:SHOWN],
            "violations in all": len(violations),
            "medians of the thirds": medians or "too short to tell",
            "grown": grown(medians) if medians else [],
        }


class Every:
    """An action that is due every so many seconds, the first time after that time."""

    def __init__(self, seconds: float, do: Callable[[], Any]) -> None:
        self.seconds = seconds
        self.do = do
        self.at = time.monotonic() + seconds

    def tick(self) -> None:
        """Run the action if it is due; missed times are not made up for."""
        if time.monotonic() >= self.at:
            self.at = max(self.at + self.seconds, time.monotonic())
            self.do()


class Watcher(Aside):
    """Takes samples and judges finished tasks beside the soak, because a deploy takes a while."""

    def __init__(self, looks: Sequence[Every], over: threading.Event) -> None:
        super().__init__("watcher", over)
        self.looks = looks

    def work(self) -> None:
        """Sample and judge until the soak is over."""
        while not self.over.wait(TICK_SECONDS):
            for look in self.looks:
                look.tick()


def tell(text: str) -> None:
    """Print a line for people."""
    print(text, file=sys.stderr, flush=True)
