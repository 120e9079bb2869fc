"""Workers that a storm can kill, stop, continue and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from example_project.demo.processes import end_with_parent
from tests.stress.chaos.evidence import clock, rows, steady
from tests.stress.oracle.judge import Thaw
from tests.support.runners import runners_of

ROOT = Path(__file__).parents[3]
STANDING = """
SELECT b.died_at IS NULL
    OR EXISTS (SELECT FROM horsies_tasks t WHERE t.claimed_by = w.id AND t.finished_at IS NULL)
FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id
WHERE w.pid = %s
ORDER BY w.started_at DESC LIMIT 1
"""


class Member:
    """One place in the fleet: a worker, and its successor when it has ended.

    ``environment`` is added to that of this process.
    """

    def __init__(
        self, number: int, directory: Path, options: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.options = options
        self.environment = {**os.environ, **environment}
        self.log = directory / f"worker-{number}.log"
        self.log.write_text("")

        self.stopped: Thaw | None = None
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
        """Whether the worker runs and has logged its start."""
        if self.process.poll() is not None or self.stopped:
            return False
        with self.log.open("rb") as log:
            log.seek(self.heard)
            return b"Worker started" in log.read()

    def family(self) -> list[psutil.Process]:
        """Return the living processes of the worker, the worker itself last."""
        try:
            worker = psutil.Process(self.process.pid)
            return [*worker.children(recursive=True), worker]
        except psutil.NoSuchProcess:
            return []

    def runners(self) -> list[psutil.Process]:
        """Return the processes that run tasks."""
        return runners_of(self.process.pid)

    def kill(self, *, group: bool) -> None:
        """End the worker by SIGKILL, with its processes or alone."""
        self.send(signal.SIGKILL, group=group)
        self.process.wait()

    def stop(self, *, group: bool) -> None:
        """Stop the worker by SIGSTOP, with its processes or alone."""
        self.stopped = Thaw(float("inf"), {one.pid for one in self.family()}, time.time(), group)
        self.send(signal.SIGSTOP, group=group)

    def send(self, number: int, *, group: bool) -> None:
        """Send a signal to the worker, and optionally to its processes."""
        (os.killpg if group else os.kill)(self.process.pid, number)

    def given_up(self) -> bool:
        """Whether others declared the stopped worker dead and gave its tasks away."""
        return not any(standing for (standing,) in steady(lambda: rows(STANDING, self.process.pid)))

    def go_on(self) -> Thaw:
        """Continue the worker by SIGCONT; record a moment just before that."""
        assert self.stopped is not None
        thaw, self.stopped = self.stopped._replace(at=steady(clock)), None
        with suppress(ProcessLookupError):  # a worker without its fork server has ended itself
            self.send(signal.SIGCONT, group=thaw.group)
        return thaw

    def end(self) -> int:
        """End the worker as a service manager would, and return its exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(60)
