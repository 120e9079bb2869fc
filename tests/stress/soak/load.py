"""The load of a soak: tasks of the storm at an even pace, most of them short."""

from __future__ import annotations

import time

from tests.stress.chaos.sending import Sender


class Steady(Sender):
    """Sends ``rate`` tasks a second once it is started, and does not wait for results."""

    fates = {
        "ok": 800,
        "query": 100,
        "fail": 30,
        "again": 30,
        "flaky": 30,
        "long": 5,
        "slow": 3,
        "listen": 1,
        "deaf": 1,
    }
    ms = (0, 1, 3, 10)
    waits = 0.0
    rate = 0.0

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        super().__init__(seed)
        if calm:
            self.fates = {"ok": 8, "query": 1}

    def go(self, rate: float) -> None:
        """Begin to send ``rate`` tasks a second."""
        self.rate = rate
        self.before = self.sent
        self.began = time.monotonic()
        self.start()

    @property
    def allowed(self) -> int:
        """How many tasks may have been sent by now."""
        return self.before + int(self.rate * (time.monotonic() - self.began))

    @allowed.setter
    def allowed(self, value: int) -> None:
        """Ignore the value: the clock alone sets the pace."""
