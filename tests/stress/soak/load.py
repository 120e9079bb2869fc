"""What is sent: tasks of the storm at an even pace, most of them short, and workflows beside them."""

from __future__ import annotations

import time
from typing import Any

from django.db import connection

from tests.stress.chaos import tasks
from tests.stress.chaos.sending import TENANTS, Sender
from tests.stress.oracle.evidence import unfinished

# fate -> its share of the tasks
FATES = {"ok": 800, "query": 100, "fail": 30, "again": 30, "flaky": 30, "long": 5, "slow": 3, "listen": 1, "deaf": 1}
CALM = {"ok": 8, "query": 1}
MS = (0, 1, 3, 10)
CLEAR_SECONDS = 300  # how long the backlog of the calibration may take


class Steady(Sender):
    """Sends ``rate`` tasks a second from when it is started, and waits for none; others do that."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        super().__init__(seed)
        self.fates = CALM if calm else FATES
        self.rate = 0.0
        self.before = 0  # what was sent by then
        self.began = 0.0

    def go(self, rate: float) -> None:
        """Begin to send so many a second."""
        self.rate, self.before, self.began = rate, self.sent, time.monotonic()
        self.start()

    @property
    def allowed(self) -> int:
        """How many may have been sent by now."""
        return self.before + int(self.rate * (time.monotonic() - self.began))

    @allowed.setter
    def allowed(self, value: int) -> None:
        """The clock says it, nobody else."""

    def call(self, number: int) -> dict[str, Any]:
        """Draw what a task does."""
        fate = self.random.choices(list(self.fates), self.fates.values())[0]
        call = tasks.Call(fate, float(self.random.choice(MS)))
        return {"number": number, "tenant": self.random.choice(TENANTS), "call": call}

    def wait(self, handles: Any) -> None:
        """Wait for nobody."""


def capacity(sender: Steady, many: int) -> float:
    """Send so many tasks at once, and return how many a second the workers finish. Raises TimeoutError if they do not."""
    while sender.sent < many:
        sender.send(min(100, many - sender.sent))
    connection.close()
    began, until = time.monotonic(), time.monotonic() + CLEAR_SECONDS
    while unfinished():
        if time.monotonic() > until:
            raise TimeoutError(f"the workers did not finish {many} tasks in {CLEAR_SECONDS} s")
        time.sleep(0.1)
    return many / (time.monotonic() - began)
