"""Processes that send tasks one by one, each on a connection of its own.

They send at a steady pace or as fast as they can. ``python -m benchmarks.senders`` reads orders,
one JSON object a line, and answers each with a line: the ids of the sent tasks and the times of the
commits, by the machine's clock.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import django
from django.db import connection

from benchmarks.machine import ROOT

READY = "ready\n"
NOTICE_SECONDS = 0.2  # from an order to its beginning, so that all begin together
Sent = list[tuple[str, float]]


class Senders:
    """A group of these processes, which get the same orders."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def send(self, seconds: float, rate: float | None = None) -> Sent:
        """Send for so long, at ``rate`` tasks a second in all, and return the sent tasks.

        The pace is that of a clock: a late sender sends without pause until it has caught up.
        Without ``rate`` no sender pauses.
        """
        begin = time.time() + NOTICE_SECONDS
        count = len(self.processes)

        for place, process in enumerate(self.processes):
            step = count / rate if rate else 0.0
            order = {"begin": begin + step * place / count, "end": begin + seconds, "step": step}
            cast(IO[str], process.stdin).write(json.dumps(order) + "\n")
            cast(IO[str], process.stdin).flush()

        return [tuple(item) for process in self.processes for item in json.loads(answer(process))]


def answer(process: subprocess.Popen[str]) -> str:
    """Return the next line of a sender.

    Raises RuntimeError if it has ended instead; its own message is on the error output.
    """
    if line := cast(IO[str], process.stdout).readline():
        return line
    raise RuntimeError(f"a sender ended with exit code {process.wait()}")


@contextmanager
def senders(count: int) -> Iterator[Senders]:
    """Run so many senders during the block, all of them connected."""
    command = [sys.executable, "-m", "benchmarks.senders"]
    processes: list[subprocess.Popen[str]] = []

    try:
        for _ in range(count):
            processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )

        for process in processes:
            if (line := answer(process)) != READY:
                raise RuntimeError(f"a sender said {line!r}")

        yield Senders(processes)
    finally:
        for process in processes:
            process.terminate()
            process.communicate()


def obey(begin: float, end: float, step: float) -> Sent:
    """Send from ``begin`` to ``end``, one task every ``step`` seconds."""
    from benchmarks.load import tasks  # it needs Django to be set up

    sent: Sent = []
    for turn in itertools.count():
        due = begin + turn * step
        now = time.time()
        if max(due, now) >= end:
            break

        if due > now:
            time.sleep(due - now)

        handle: Any = tasks.moment.send()
        sent.append((str(handle.task_id), time.time()))

    return sent


def main() -> None:
    """Obey until the orders end."""
    django.setup()
    connection.ensure_connection()
    sys.stdout.write(READY)
    sys.stdout.flush()

    for line in sys.stdin:
        print(json.dumps(obey(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
