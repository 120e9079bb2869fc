"""``horsies_worker --reload``: starts the worker again when its code has changed.

There are two processes. The outer one starts the worker, and starts it again each time it exits with the code ``RELOAD``. It
imports no tasks, so it survives code that cannot be imported, and then waits for the next change. In the worker, a thread looks
for changed files, as ``runserver`` does, and asks for an ordinary shutdown; the worker keeps the main thread, which alone handles
signals.

A terminal sends Ctrl-C to both processes, everybody else a signal to the outer one, which passes it on. So that no signal counts
twice, it passes them on through a pipe, and the worker obeys whichever of both is more urgent. The end of the pipe is the end of
the outer process, and the worker stops.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils.autoreload import (
    BaseReloader,
    StatReloader,
    autoreload_started,
    file_changed,
    get_child_arguments,
    get_reloader,
)

from horsies_django.worker.ipc.channel import wait_readable
from horsies_django.worker.process.shutdown import Shutdown, heard, take

logger = logging.getLogger("horsies.worker")

RELOAD = 3  # the exit code of a worker that is to be started again
FINAL = (0, 2)  # of one that ended in order, or whose options are wrong: no change of the code helps
PIPE = "HORSIES_RELOAD_PIPE"  # the environment variable that tells the worker that it is one
LOOK_SECONDS = 1.0
INSTALLED = {"site-packages", "dist-packages"}


class OuterProcess:
    """Runs the worker of this command line until it is told to stop, or ends for another reason than changed code."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.writing: int | None = None  # the pipe to the worker
        self.bell, self.ringer = socket.socketpair()
        self.ringer.setblocking(False)

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
            before = snapshot()
            code = self.run_worker()
            if code == RELOAD:
                continue
            if -code in self.signals:  # one came before the worker handled signals
                return 0
            if code in FINAL or self.signals:
                return max(code, 1) if code else 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            logger.error("the worker %s: waiting for a change of the code", how)
            if (changed := self.wait_for_change(before)) is not None:
                logger.info("%s changed: starting the worker", changed)
        return 0

    def run_worker(self) -> int:
        """Run the worker as a process of its own, and return its exit code, -n if signal n killed it."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self.writing = writing
        try:
            self.pass_on(*self.signals)
            try:
                environment = {**os.environ, PIPE: str(reading)}
                process = subprocess.Popen(get_child_arguments(), env=environment, pass_fds=[reading])
            finally:
                os.close(reading)
            return process.wait()
        finally:
            self.writing = None
            os.close(writing)

    def wait_for_change(self, before: dict[Path, float]) -> Path | None:
        """Wait until a file differs from what it was, and return its path; None: a signal came first."""
        while not self.signals:
            now = snapshot()
            if changed := [path for path in {**before, **now} if before.get(path) != now.get(path)]:
                return changed[0]
            wait_readable([self.bell], LOOK_SECONDS)
        return None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: pass it on to the worker, and start none again."""
        self.signals.append(number)
        self.pass_on(number)
        with suppress(BlockingIOError):
            self.ringer.send(b".")

    def pass_on(self, *numbers: int) -> None:
        """Tell the worker of signals; a full pipe has more of them than it takes to end it."""
        if self.writing is not None and numbers:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self.writing, bytes(numbers))


class ReloadedWorker:
    """Context manager in the worker: watches its code and the outer process, and tells ``stopping``.

    At its end, a worker that stopped because code changed exits with the code RELOAD.
    """

    def __init__(self, stopping: Shutdown, reading: int) -> None:
        self.stopping = stopping
        self.reading = reading
        os.set_inheritable(reading, False)
        self.asked: deque[int] = deque()
        self.changed = False
        self.main = threading.main_thread().ident or 0

    def __enter__(self) -> ReloadedWorker:
        self.handler = signal.signal(signal.SIGURG, self.press)
        file_changed.connect(self.notice)
        self.reloader = get_reloader()
        for name, target in (("horsies-reload", self.watch), ("horsies-outer", self.listen)):
            threading.Thread(target=target, name=name, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reloader.stop()
        file_changed.disconnect(self.notice)
        signal.signal(signal.SIGURG, self.handler)
        if self.wanted:
            raise SystemExit(RELOAD)

    @property
    def wanted(self) -> bool:
        """Whether the worker is to be started again."""
        return self.changed and not self.stopping.urgency

    def watch(self) -> None:
        """Look for changed files; in a thread of its own."""
        watch_project(self.reloader)
        self.reloader.run_loop()

    def notice(self, sender: Any, file_path: Path, **kwargs: Any) -> bool:
        """Stop the worker because of a changed file; True keeps Django from ending the process itself."""
        if not self.changed:
            self.changed = True
            logger.info("%s changed: restarting the worker; running tasks finish first", file_path)
            self.ask(0)
        return True

    def listen(self) -> None:
        """Take the signals that the outer process passes on, until it ends; in a thread of its own."""
        urgency = 0
        while numbers := os.read(self.reading, 100):
            for number in numbers:
                urgency = heard(urgency, number)
            self.ask(urgency)
        logger.error("the process that restarts this worker is gone: stopping")
        self.ask(1)

    def ask(self, urgency: int) -> None:
        """Let the main thread stop the worker: a signal also interrupts its system calls."""
        self.asked.append(urgency)
        signal.pthread_kill(self.main, signal.SIGURG)

    def press(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal of ``ask``."""
        asked = [self.asked.popleft() for _ in range(len(self.asked))]
        if asked:
            self.stopping.press(max(asked))


def inherited_pipe() -> int | None:
    """Return the pipe from the outer process, None in any other process than its worker. Tasks do not inherit it."""
    number = os.environ.pop(PIPE, None)
    return None if number is None else int(number)


def snapshot() -> dict[Path, float]:
    """Return the times at which the files of the project were last changed."""
    reloader = StatReloader()
    watch_project(reloader)
    return dict(reloader.snapshot_files())


def watch_project(reloader: BaseReloader) -> None:
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
