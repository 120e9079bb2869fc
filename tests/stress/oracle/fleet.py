"""Workers that can be killed, stopped, continued, and come back: what a machine and its operator do to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from example_project.demo.processes import end_with_parent
from tests.stress.oracle.evidence import clock, rows, steady
from tests.stress.oracle.judge import Thaw
from tests.support.runners import runners_of

ROOT = Path(__file__).parents[3]
TICK_SECONDS = 0.05
STANDING = """
SELECT b.died_at IS NULL OR EXISTS (SELECT FROM horsies_tasks t WHERE t.claimed_by = w.id AND t.finished_at IS NULL)
FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id WHERE w.pid = %s ORDER BY w.started_at DESC LIMIT 1
"""


class Stopped(NamedTuple):
    """A worker that stands still, with the processes that it had."""

    pids: frozenset[int]
    group: bool
    since: float


class Member:
    """One place in the fleet: a worker, and the next one when it is gone; ``environment`` is added to that of this process."""

    def __init__(self, number: int, directory: Path, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self.options = options
        self.environment = {**os.environ, **environment}
        self.log = directory / f"worker-{number}.log"
        self.log.write_text("")
        self.stopped: Stopped | None = None
        self.start()

    def start(self) -> None:
        """Start a worker in this place."""
        self.heard = self.log.stat().st_size
        command = [sys.executable, "-m", "django", "horsies_worker", *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent(),
            )

    @property
    def ready(self) -> bool:
        """Whether it runs, and said so."""
        if self.process.poll() is not None or self.stopped:
            return False
        with self.log.open("rb") as log:
            log.seek(self.heard)
            return b"Worker started" in log.read()

    def family(self) -> list[psutil.Process]:
        """Return the worker's processes that live, the worker last."""
        try:
            worker = psutil.Process(self.process.pid)
            return [*worker.children(recursive=True), worker]
        except psutil.NoSuchProcess:
            return []

    def runners(self) -> list[psutil.Process]:
        """Return the processes that run tasks."""
        return runners_of(self.process.pid)

    def kill(self, *, group: bool) -> None:
        """End it by SIGKILL, with its processes or alone."""
        (os.killpg if group else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, *, group: bool) -> None:
        """Stop it by SIGSTOP, with its processes or alone."""
        self.stopped = Stopped(frozenset(one.pid for one in self.family()), group, time.time())
        (os.killpg if group else os.kill)(self.process.pid, signal.SIGSTOP)

    def given_up(self) -> bool:
        """Whether others declared the stopped worker dead and have given its tasks away."""
        return not any(standing for (standing,) in steady(lambda: rows(STANDING, self.process.pid)))

    def go_on(self) -> Thaw:
        """Continue it by SIGCONT; the moment is one before that."""
        assert self.stopped is not None
        thaw = Thaw(steady(clock), self.stopped.pids, self.stopped.since)
        with suppress(ProcessLookupError):  # one that has no fork server ended itself
            (os.killpg if self.stopped.group else os.kill)(self.process.pid, signal.SIGCONT)
        self.stopped = None
        return thaw

    def end(self) -> int:
        """End it as a service manager would, and return its exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(60)


class Fleet:
    """The members of a storm, and how it waits for something while it tends them."""

    fleet: Sequence[Member]
    patience_seconds = 90.0

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()
        self.thaws: list[Thaw] = []

    def tend(self) -> None:
        """Continue whoever was given up, and start whoever is gone."""
        for member in self.fleet:
            if member.stopped:
                if member.given_up():
                    self.thaws.append(member.go_on())
            elif member.process.poll() is not None:
                self.happened["replaced"] += 1
                member.start()

    def up(self, what: str = "all workers are up") -> None:
        """Wait until all workers have started."""
        self.until(lambda: all(member.ready for member in self.fleet), what)

    def until(self, condition: Callable[[], Any], what: str, *, tended: bool = True) -> None:
        """Wait for a condition. Raises TimeoutError with the logs."""
        until, moment = time.monotonic() + self.patience_seconds, threading.Event()
        while not condition():
            if tended:
                self.tend()
            if time.monotonic() > until:
                raise TimeoutError(f"not in time: {what}\n{self.logs()}")
            moment.wait(TICK_SECONDS)

    def logs(self) -> str:
        """Return the end of each worker's log."""
        return "\n".join(f"--- {member.log.name}\n{member.log.read_text()[-3_000:]}" for member in self.fleet)

    def ended_badly(self) -> list[str]:
        """End the workers; returns what they did not do well."""
        codes = [member.end() for member in self.fleet]
        return [f"a worker ended with exit code {code}" for code in codes if code]
