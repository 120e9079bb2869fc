"""The processes of a demo, a site and a worker, which end with it even if it is killed.

Ctrl-C sends a signal to every process of the terminal's process group. So each process has a
session of its own and is stopped in order. A demo that is killed cannot stop its processes. On
Linux the kernel kills them, if they were started from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from django.db.models import Q

from example_project.demo.ending import ending
from example_project.demo.problems import DemoFailed
from example_project.owned_directory import abandoned_directories, owned_directory
from horsies_django.models import Worker

ROOT = Path(__file__).parents[2]
PREFIX = "horsies-demo-"
START_SECONDS = 40
STOP_SECONDS = 15
POLL_SECONDS = 0.05
LOG_CHARACTERS = 2_000
PR_SET_PDEATHSIG = 1
# The concurrency is small, because each open request of a task costs the site a thread and a
# database connection.
WORKER_OPTIONS = ("--async-concurrency=8", "--shutdown-timeout=5", "--with-scheduler")
T = TypeVar("T")


class Service:
    """A process of the demo and its log."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log_path = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), *arguments],
                cwd=ROOT,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent(),
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def refuse_ended(self) -> None:
        """Raise DemoFailed with the end of the log if the process has ended."""
        if (code := self.process.poll()) is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with code {code}"
            )
            raise DemoFailed(
                f"the {self.name} {how}; its log ends with:\n{self.log[-LOG_CHARACTERS:].strip()}"
            )

    def stop(self) -> None:
        """Stop the process by SIGTERM, or by SIGKILL if it does not end in time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return

            self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)


class Services:
    """A running site and a running worker."""

    def __init__(self, home: Path, url: str, processes: int) -> None:
        # With DEBUG, Django keeps the text of every query, and those of uploads are long.
        environment = {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "DATABASE_URL": url,
            "DEBUG": "False",
        }

        self.processes = processes
        self.home = home
        self.worker_environment = {**environment, "CONN_MAX_AGE": "60"}
        self.workers = 0

        # With port 0 the system chooses a free port while it binds it, so no other process can take
        # it before.
        self.site = Service(
            "site",
            ["runserver", "--noreload", "--insecure", "127.0.0.1:0"],
            home / "site.log",
            environment,
        )

        try:
            self.worker = self.another_worker()
        except BaseException:
            self.site.stop()
            raise

    def another_worker(self) -> Service:
        """Start a worker and return it."""
        self.workers += 1
        return Service(
            "worker",
            ["horsies_worker", f"--processes={self.processes}", *WORKER_OPTIONS],
            self.home / f"worker-{self.workers}.log",
            self.worker_environment,
        )

    def kill_worker(self) -> None:
        """Kill the worker with all its processes, and start another one.

        This has the same effect as a power failure of its machine.
        """
        os.killpg(self.worker.process.pid, signal.SIGKILL)
        self.worker.process.wait()
        self.worker = self.another_worker()

    def address(self) -> str:
        """Wait until the site has started, and return its address."""
        found = self.until(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", self.site.log),
            "the site starts",
            START_SECONDS,
        )
        return found.group()

    def worker_row(self) -> Worker:
        """Wait until the worker has a row in its table, and return the row."""
        mine = Q(pid=self.worker.process.pid, stopped_at=None)
        return self.until(
            lambda: Worker.objects.filter(mine).order_by("-started_at").first(),
            "the worker starts",
            START_SECONDS,
        )

    def until(self, condition: Callable[[], T | None], what: str, seconds: float) -> T:
        """Wait until ``condition`` returns a true value, and return that value.

        Raises DemoFailed if there is none in time, or if a process has ended.
        """
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            ending.unwind()
            self.site.refuse_ended()
            self.worker.refuse_ended()

            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {seconds:.0f} s: {what}")
            time.sleep(POLL_SECONDS)

        return value

    def stop(self) -> None:
        """Stop the worker and the site."""
        self.worker.stop()
        self.site.stop()


@contextmanager
def services(url: str, processes: int) -> Iterator[Services]:
    """Run a site and a worker on the database at ``url``.

    Their logs are in a directory of their own, which is removed at the end.
    """
    for home in abandoned_directories(PREFIX, {os.geteuid()}):
        shutil.rmtree(home, ignore_errors=True)

    with owned_directory(PREFIX) as home:
        running = Services(home, url, processes)
        try:
            yield running
        except DemoFailed as failure:
            for service in (running.site, running.worker):
                if "Traceback" in service.log:
                    failure.add_note(
                        f"The log of the {service.name} ends "
                        f"with:\n{service.log[-LOG_CHARACTERS:].strip()}"
                    )
            raise
        finally:
            running.stop()


def end_with_parent() -> Callable[[], None] | None:
    """Return the function that a new process calls before exec to be killed with the demo.

    It requests a signal from the kernel for the moment when the demo dies. None is returned on
    other systems than Linux.
    """
    if sys.platform != "linux":
        return None

    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask_for_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # it died before the request, so no signal would come
            os._exit(1)

    return ask_for_signal


def began_at(pid: int) -> float | None:
    """Return the time when a process began, or None if it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None
