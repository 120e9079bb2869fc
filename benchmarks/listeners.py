"""The floor of each notification: the server's CPU time of a bare NOTIFY beside idle listeners.

The idle sessions LISTEN on another channel. PostgreSQL up to 18 signals every session of the
database that listens, whatever its channel: each of them wakes and reads the queue. So each worker
with a channel of its own costs that much per send, even if no notification is for it. Notifications
are 40 ms apart, as lone sends are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from benchmarks.figures import Case, Goal, Reading
from benchmarks.latency import pace
from horsies_django.store.notify import direct_connection

SESSIONS = (1, 16, 64)
NOTIFIES = 250
PAUSE_SECONDS = 0.04
GOALS: tuple[Goal, ...] = ()


def cases(scale: float) -> Sequence[Case]:
    """Return a case for each number of listening sessions."""
    return [
        Case(f"listeners {count}", partial(measure, count, max(5, round(NOTIFIES * scale))))
        for count in SESSIONS
    ]


def measure(count: int, notifies: int) -> list[Reading]:
    """Run NOTIFY, each in a transaction of its own, beside ``count`` idle sessions that listen."""
    with ExitStack() as stack:
        sender, *others = (
            stack.enter_context(direct_connection("default", application_name="horsies benchmark"))
            for _ in range(count + 1)
        )

        for place, other in enumerate(others):
            other.execute(f"LISTEN horsies_floor_{place}")
        for _ in range(5):
            sender.execute("NOTIFY horsies_nobody")

        server = ServerCpu(sender.info.backend_pid)
        before = server.read()
        for _ in pace(notifies, PAUSE_SECONDS):
            sender.execute("NOTIFY horsies_nobody")
        spent = server.read() - before

    return [
        Reading(
            f"listeners idle beside a NOTIFY: {count}, server CPU", spent / notifies * 1e6, "us"
        )
    ]


class ServerCpu:
    """The CPU seconds of all processes of the server that has a ``backend``.

    The clock is the kernel's finest one: ticks of 10 ms would be too coarse for sessions that use
    10 us at a time. A process of PostgreSQL has one thread. The time that a process uses between
    the last ``read`` and its end is left out.
    """

    def __init__(self, backend: int) -> None:
        found = psutil.Process(backend).parent()
        assert found is not None
        self.server = found
        self.known: dict[int, int] = {}  # nanoseconds by process, at the last read
        self.nanoseconds = 0

    def read(self) -> float:
        """Return the seconds that were used until now.

        Only the difference of two of them has a meaning.
        """
        for process in (self.server, *self.server.children()):
            try:
                used = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended

            self.nanoseconds += used - self.known.get(process.pid, 0)
            self.known[process.pid] = used

        return self.nanoseconds / 1e9
