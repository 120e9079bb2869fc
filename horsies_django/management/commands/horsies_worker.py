"""``manage.py horsies_worker``: run a worker until a signal stops it.

With ``--reload``, the worker is restarted when its code changes. Then there are two processes. The
outer process watches files for changes as ``runserver`` does, stops the worker in order, and starts
it again. It imports no tasks, so it survives code that cannot be imported, and then waits for the
next change. The worker runs in a session of its own, so a terminal sends Ctrl-C only to the outer
process, which passes signals on to the worker. On Linux the worker also stops when the outer
process is killed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.utils.autoreload import StatReloader, autoreload_started, get_child_arguments

from horsies_django.core.errors import HorsiesError
from horsies_django.management import shared
from horsies_django.management.shared import megabytes_type, port, seconds_type, whole_number_type
from horsies_django.worker.api import under_signals
from horsies_django.worker.child.bootstrap import die_with_parent, outlive_output
from horsies_django.worker.ipc import wait_readable
from horsies_django.worker.logs.console import choose_colors, configure_logging
from horsies_django.worker.logs.relay import end_process
from horsies_django.worker.main import work
from horsies_django.worker.process.options import (
    LOG_LEVELS,
    START_METHOD,
    START_METHODS,
    WorkerOptions,
)
from horsies_django.worker.process.shutdown import Shutdown, take

logger = logging.getLogger("horsies.worker")

# Exit codes of a worker that ended in order, or whose options are wrong. A change of the code would
# not help.
FINAL_EXIT_CODES = (0, 2)
INNER = "HORSIES_RELOADED"  # the environment variable that marks the worker of an outer process
INSTALLED_FOLDERS = {"site-packages", "dist-packages"}


class Command(shared.Command):
    """The command that runs a worker: a pool of processes that serves the queues."""

    _called_from_command_line: bool  # set by Django; True if the process ends with this command

    help = "Run a worker: a pool of processes that claim tasks from PostgreSQL and run them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        number = partial(parser.add_argument, metavar="N")
        number(
            "--processes",
            type=whole_number_type(0),
            help=(
                "number of child processes (default: the usable CPUs); 0 runs tasks in the worker "
                "process itself"
            ),
        )
        number(
            "--threads",
            type=whole_number_type(1),
            default=1,
            help="sync tasks that a process runs at once (default: 1)",
        )
        number(
            "--async-concurrency",
            type=whole_number_type(1),
            default=100,
            help="async tasks that a process runs at once (default: 100)",
        )

        parser.add_argument(
            "--queues",
            action="append",
            metavar="A,B",
            help="queues to serve, comma-separated; may be repeated (default: all)",
        )
        parser.add_argument(
            "--loglevel",
            type=str.upper,
            choices=LOG_LEVELS,
            default="INFO",
            help="log level (default: INFO)",
        )

        number(
            "--max-claim-batch",
            type=whole_number_type(0),
            default=0,
            help=(
                "tasks claimed from a queue at a time, so that one worker does not take them all "
                "(default: 0, the free slots)"
            ),
        )
        number(
            "--max-claim-per-worker",
            type=whole_number_type(0),
            default=0,
            help=(
                "tasks that may be claimed and not started (default: 0, the slots plus the "
                "prefetch buffer)"
            ),
        )

        number(
            "--max-tasks-per-child",
            type=whole_number_type(0),
            help=(
                "replace a child after this many tasks, which frees leaked memory; 0 means never "
                "(default: 100, but not before the child is a minute old)"
            ),
        )

        self.add_arguments_of_service(parser)

    def add_arguments_of_service(self, parser: ArgumentParser) -> None:
        """Add the options for recycling, shutdown, scheduling and health checks."""
        parser.add_argument(
            "--max-memory-per-child-mb",
            type=megabytes_type,
            metavar="MB",
            help=(
                "replace a child whose resident memory has reached this after a task (default: "
                "never)"
            ),
        )

        parser.add_argument("--until-empty", action="store_true", help="exit when no task is due")
        parser.add_argument(
            "--reload",
            action="store_true",
            help="for development: restart when code changes; running tasks finish first",
        )

        parser.add_argument(
            "--shutdown-timeout",
            type=seconds_type,
            default=300.0,
            metavar="SECONDS",
            help=(
                "time for running tasks to finish after the first stop signal (default: 300); a "
                "second signal ends them at once"
            ),
        )

        parser.add_argument(
            "--start-method",
            choices=START_METHODS,
            default=START_METHOD,
            help="how children start: as forks with the loaded project, or as new interpreters",
        )
        parser.add_argument(
            "--with-scheduler",
            action="store_true",
            help="also send the tasks of schedules, as horsies_scheduler does",
        )

        parser.add_argument(
            "--health-port",
            type=port,
            metavar="PORT",
            help=(
                "answer GET /live and /ready on this port (default: no port); 0 chooses a free one"
            ),
        )
        parser.add_argument(
            "--health-host",
            default="127.0.0.1",
            metavar="HOST",
            help="address of that port (default: 127.0.0.1)",
        )

    def execute(self, *args: Any, **options: Any) -> None:
        """Run the command with signal handlers that are in place before the system checks.

        The system checks import all tasks.
        """
        if self._called_from_command_line:
            choose_colors(no_color=options["no_color"], force_color=options["force_color"])

        if options["reload"] and not is_inner():
            self.supervise(options)
            return

        execute = super().execute

        def action(stopping: Shutdown) -> int:
            self.stopping = stopping
            execute(*args, **options)
            return 0

        under_signals(action, options["loglevel"], ends_process=self._called_from_command_line)

    def supervise(self, options: dict[str, Any]) -> None:
        """Run the worker in a process of its own, and start it again when code changes."""
        if not self._called_from_command_line:
            raise CommandError(
                "horsies_worker: --reload runs the command line again, so call_command() cannot "
                "run it. Start it from the command line"
            )
        if options["until_empty"]:
            raise CommandError(
                "horsies_worker: --reload cannot be combined with --until-empty, because it does "
                "not end. Remove one of the two"
            )

        configure_logging(options["loglevel"])
        if code := OuterProcess().run():
            sys.exit(code)

    def handle(self, **options: Any) -> None:
        chosen = {field.name: options[field.name] for field in fields(WorkerOptions)}
        if self._called_from_command_line and options["processes"] == 0:
            outlive_output()  # tasks print in this process

        try:
            # An option may name several queues, as in --queues=a,b.
            names = (name.strip() for part in options["queues"] or [] for name in part.split(","))
            code = work(
                self.stopping, **{**chosen, "queues": list(dict.fromkeys(filter(None, names)))}
            )
        except (HorsiesError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_worker: {error}", returncode=1) from error

        # Threads may still be running tasks that were recorded as crashed.
        if code and options["processes"] == 0:
            end_process(code)
        if code:
            sys.exit(code)


class OuterProcess:
    """The process that runs the worker of this command line, and restarts it when code changes.

    It ends when a signal stops it, or when the worker ends for another reason than changed code.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.not_passed_on: deque[int] = deque()  # signals that were not passed on yet
        self.worker: subprocess.Popen[bytes] | None = None
        # True if the worker was sent a signal to restart. It would take the next one as its second.
        self.restarting = False

        self.bell, self.ringer = socket.socketpair()
        self.ringer.setblocking(False)

        self.files = StatReloader()
        autoreload_started.send(sender=self.files)  # apps add files of their own, such as templates
        for directory in project_directories():  # also modules that only tasks import
            self.files.watch_dir(directory, "**/*.py")

    def run(self) -> int:
        """Return the exit code of the worker, or 0 if a signal came while there was no worker."""
        logger.info("Watching the code for changes")
        handlers = take(self.note)
        try:
            return self.supervise()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def supervise(self) -> int:
        """Start the worker again and again, and return its exit code."""
        while not self.signals:
            before = dict(self.files.snapshot_files())
            code = self.run_worker(before)

            if -code in self.signals:  # a signal came before the worker handled signals
                return 0
            if self.signals or (code in FINAL_EXIT_CODES and not self.restarting):
                return max(code, 1) if code else 0
            if self.restarting:
                continue

            ending = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"exited with code {code}"
            )
            logger.error("the worker %s: waiting for a change of the code", ending)
            if (changed := self.wait_for_change(before)) is not None:
                logger.info("%s changed: starting the worker", changed)

        return 0

    def run_worker(self, before: dict[Path, float]) -> int:
        """Run the worker until it ends or code changes, and return its exit code.

        The exit code is -n if signal n killed the worker.
        """
        self.restarting = False

        self.worker = subprocess.Popen(
            get_child_arguments(),
            env={**os.environ, INNER: "1"},
            start_new_session=True,
            # This process has no other threads.
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
        )
        self.pass_on()

        if (changed := self.wait_for_change(before)) is not None:
            # A signal that has just been passed on stops the worker already. A second one would end
            # its tasks.
            self.restarting = not self.signals
            if self.restarting:
                logger.info(
                    "%s changed: restarting the worker; running tasks finish first", changed
                )
                self.worker.terminate()

        code = self.worker.wait()
        self.worker = None
        return code

    def wait_for_change(self, before: dict[Path, float]) -> Path | None:
        """Wait until a file has changed, and return its path.

        Return None if a signal came, or if the worker ended, before a file changed.
        """
        while not self.signals and (self.worker is None or self.worker.poll() is None):
            now = dict(self.files.snapshot_files())
            if changed := [path for path in {**before, **now} if before.get(path) != now.get(path)]:
                return changed[0]
            wait_readable([self.bell], 1.0)
        return None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: pass it on to the worker, and start no other worker."""
        if self.signals or not self.restarting or number == signal.SIGQUIT:
            self.not_passed_on.append(number)
        self.signals.append(number)
        self.pass_on()
        with suppress(BlockingIOError):
            self.ringer.send(b".")

    def pass_on(self) -> None:
        """Pass signals on to the worker, each of them once.

        A handler may interrupt this method at any instruction.
        """
        with suppress(IndexError):
            while self.worker is not None:
                self.worker.send_signal(self.not_passed_on.popleft())


def is_inner() -> bool:
    """Return whether this process is the worker that an outer process restarts.

    The mark is removed from the environment, so that tasks do not inherit it.
    """
    return os.environ.pop(INNER, None) is not None


def project_directories() -> Iterator[Path]:
    """Yield the directories of apps and settings, and of the packages beside manage.py.

    Directories of installed packages are left out.
    """
    found = [Path(config.path) for config in apps.get_app_configs()]
    module = getattr(settings, "SETTINGS_MODULE", None)
    spec = importlib.util.find_spec(module) if module else None
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent)

    beside = Path(sys.path[0] or ".")
    if beside.is_dir():
        found += [path.parent for path in beside.glob("*/__init__.py")]

    yield from {
        path.resolve() for path in found if not INSTALLED_FOLDERS & set(path.resolve().parts)
    }
