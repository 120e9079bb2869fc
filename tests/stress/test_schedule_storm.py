"""Each fire time becomes exactly one task while schedulers are killed, stopped and frozen: a storm, then a judge."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction

from horsies_django import schedules
from horsies_django.models import Schedule, ScheduleTick, Task
from tests.conftest import wait_until
from tests.support.factories import now
from tests.support.sizes import sized
from tests.support.workers import SchedulerProcess

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True), pytest.mark.timeout(420)]

SECONDS, SCHEDULES, SCHEDULERS, SEED = sized(30, 120), 50, 3, 6
DEATHS = [signal.SIGKILL] * sized(12, 50) + [signal.SIGTERM] * sized(7, 30) + [signal.SIGINT] * sized(5, 20)
FREEZES = sized(4, 16)
FROZEN_SECONDS = (0.2, 3.0)
SECOND = timedelta(seconds=1)


class Storm:
    """Schedulers, each of which is started again when it has ended, and what befalls them at which second."""

    def __init__(self, start: Callable[[], SchedulerProcess]) -> None:
        self.start = start
        self.dice = random.Random(SEED)
        self.crew = [start() for _ in range(SCHEDULERS)]
        self.frozen: dict[SchedulerProcess, float] = {}  # until when
        self.ended: Counter[int] = Counter()  # by exit code
        self.logs: list[SchedulerProcess] = []

    def rage(self) -> None:
        """Let it rage, to its last fault."""
        faults = [*DEATHS, *[signal.SIGSTOP] * FREEZES]
        self.dice.shuffle(faults)
        begin = time.monotonic()
        for moment, fault in zip(sorted(self.dice.uniform(0, SECONDS) for _ in faults), faults, strict=True):
            wait_until(lambda moment=moment: self.tended() and time.monotonic() > begin + moment, "its moment comes")
            self.befall(self.dice.choice(wait_until(self.whole, "somebody is there to be hit")), fault)

    def befall(self, victim: SchedulerProcess, fault: int) -> None:
        """Do it to one of them."""
        victim.signal(fault)
        if fault == signal.SIGSTOP:
            self.frozen[victim] = time.monotonic() + self.dice.uniform(*FROZEN_SECONDS)
        else:
            self.ended[victim.wait()] += 1
            self.logs.append(victim)
            self.crew[self.crew.index(victim)] = self.start()

    def whole(self) -> list[SchedulerProcess]:
        """Return those that have started and are not frozen."""
        self.tended()
        return [one for one in self.crew if one not in self.frozen and one.greeting in one.log]

    def tended(self) -> bool:
        """Let those go on that were frozen for long enough; nobody ends unasked."""
        for one in [one for one, until in self.frozen.items() if until < time.monotonic()]:
            del self.frozen[one]
            one.signal(signal.SIGCONT)
        assert [one.log for one in self.crew if one.process.poll() is not None] == []
        return True

    def clear(self) -> None:
        """End them all."""
        wait_until(lambda: self.tended() and not self.frozen, "nobody is frozen")
        for one in self.crew:
            self.ended[one.ready().stop()] += 1
        self.logs += self.crew


def test_kills_and_stops_leave_each_fire_time_with_exactly_one_task(
    scheduler: Callable[..., SchedulerProcess],
) -> None:
    with transaction.atomic():
        for number in range(SCHEDULES):
            definition = {"pattern": "every 1 second", "catch_up": "all", "most": 1_000}
            schedules.create(f"nr. {number}", {"task": "tests.apps.project.tasks.noop", **definition}, actor="a test")
    storm = Storm(scheduler)
    storm.rage()
    storm.clear()
    end = now()
    last = scheduler().ready()
    behind = Schedule.objects.exclude(last_fire_at__gte=end)
    wait_until(lambda: not behind.exists(), "all that was missed is sent")
    assert last.stop() == 0

    judge()
    # that it stormed indeed: each death was the one that was meant, and ticks were sent all the while
    asked = sum(number != signal.SIGKILL for number in DEATHS) + SCHEDULERS
    assert storm.ended == {-signal.SIGKILL: DEATHS.count(signal.SIGKILL), 0: asked}
    assert [one.log for one in storm.logs if "Traceback" in one.log] == []
    assert ScheduleTick.objects.filter(sent_at__lt=end).count() > SCHEDULES * SECONDS / 2


def judge() -> None:
    """Compare what was sent with the fire times that there were, from when each schedule is in force to its last one."""
    expected = Counter[tuple[str, object]]()
    for found in Schedule.objects.all():
        fire_time = found.since.replace(microsecond=0)
        assert found.last_fire_at is not None
        assert found.last_fire_at - fire_time >= SECONDS * SECOND
        while (fire_time := fire_time + SECOND) <= found.last_fire_at:
            expected[found.name, fire_time] += 1
    ticks = list(ScheduleTick.objects.values_list("schedule_name", "fire_at", "task_id"))
    assert Counter((name, fire_time) for name, fire_time, _ in ticks) == expected
    assert Counter(task_id for _, _, task_id in ticks) == Counter(Task.objects.values_list("id", flat=True))
