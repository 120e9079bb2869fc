"""``horsies_worker --reload``: starts the worker again when its code has changed.

There are two processes. The outer one looks for changed files as ``runserver`` does, lets the worker stop in order, and starts it
again. It imports no tasks, so it survives code that cannot be imported, and then waits for the next change. The worker runs in a
session of its own, so a terminal sends Ctrl-C to the outer process only, which passes signals on. On Linux the worker also stops
when the outer process is killed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from django.apps import apps
from django.conf import settings
from django.utils.autoreload import StatReloader, autoreload_started, get_child_arguments

from horsies_django.worker.child.bootstrap import die_with_parent
from horsies_django.worker.ipc.channel import wait_readable
from horsies_django.worker.process.shutdown import take

logger = logging.getLogger("horsies.worker")

FINAL = (0, 2)  # exit codes of a worker that ended in order, or whose options are wrong: no change of the code helps
INNER = "HORSIES_RELOADED"  # the environment variable that tells the worker that it is one
INSTALLED = {"site-packages", "dist-packages"}


class OuterProcess:
    """Runs the worker of this command line until it is told to stop, or ends for another reason than changed code."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.owed: deque[int] = deque()  # of them, those that were not passed on yet
        self.worker: subprocess.Popen[bytes] | None = None
        self.restarting = False  # the worker was told to stop, and counts the next signal as a second one
        self.bell, self.ringer = socket.socketpair()
        self.ringer.setblocking(False)
        self.files = StatReloader()
        watch_project(self.files)

    def run(self) -> int:
        """Return the exit code of the worker; 0 if it was told to stop while there was none."""
        logger.info("Watching the code for changes")
        handlers = take(self.note)
        try:
            return self.supervise()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def supervise(self) -> int:
        """Start the worker again and again."""
        while not self.signals:
            before = dict(self.files.snapshot_files())
            code = self.run_worker(before)
            if -code in self.signals:  # one came before the worker handled signals
                return 0
            if self.signals or (code in FINAL and not self.restarting):
                return max(code, 1) if code else 0
            if self.restarting:
                continue
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            logger.error("the worker %s: waiting for a change of the code", how)
            if (changed := self.wait_for_change(before)) is not None:
                logger.info("%s changed: starting the worker", changed)
        return 0

    def run_worker(self, before: dict[Path, float]) -> int:
        """Run the worker until it ends, or code changes; return its exit code, -n if signal n killed it."""
        self.restarting = False
        self.worker = subprocess.Popen(
            get_child_arguments(),
            env={**os.environ, INNER: "1"},
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # there are no other threads
        )
        self.pass_on()
        if (changed := self.wait_for_change(before)) is not None:
            self.restarting = (
                not self.signals
            )  # else a signal was passed on just now, and another one would end the tasks
            if self.restarting:
                logger.info("%s changed: restarting the worker; running tasks finish first", changed)
                self.worker.terminate()
        code, self.worker = self.worker.wait(), None
        return code

    def wait_for_change(self, before: dict[Path, float]) -> Path | None:
        """Wait until a file differs from what it was, and return its path; None: a signal came, or the worker ended, first."""
        while not self.signals and (self.worker is None or self.worker.poll() is None):
            now = dict(self.files.snapshot_files())
            if changed := [path for path in {**before, **now} if before.get(path) != now.get(path)]:
                return changed[0]
            wait_readable([self.bell], 1.0)
        return None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: pass it on to the worker, and start none again."""
        if self.signals or not self.restarting or number == signal.SIGQUIT:
            self.owed.append(number)
        self.signals.append(number)
        self.pass_on()
        with suppress(BlockingIOError):
            self.ringer.send(b".")

    def pass_on(self) -> None:
        """Pass signals on to the worker, each once, although a handler may interrupt this at any instruction."""
        with suppress(IndexError):
            while self.worker is not None:
                self.worker.send_signal(self.owed.popleft())


def is_inner() -> bool:
    """Return whether this process is the worker that an outer process restarts. Tasks do not inherit the mark."""
    return os.environ.pop(INNER, None) is not None


def watch_project(reloader: StatReloader) -> None:
    """Watch the Python files of the project, also those that only tasks import, and what apps ask for, such as templates."""
    autoreload_started.send(sender=reloader)
    for directory in project_directories():
        reloader.watch_dir(directory, "**/*.py")


def project_directories() -> Iterator[Path]:
    """Yield the directories of apps and settings, and the packages beside manage.py; not what is installed."""
    found = [Path(config.path) for config in apps.get_app_configs()]
    module = getattr(settings, "SETTINGS_MODULE", None)
    spec = importlib.util.find_spec(module) if module else None
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent)
    beside = Path(sys.path[0] or ".")
    if beside.is_dir():
        found += [path.parent for path in beside.glob("*/__init__.py")]
    yield from {path.resolve() for path in found if not INSTALLED & set(path.resolve().parts)}
