"""``manage.py horsies_worker``: run a worker until it is told to stop."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import fields
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from horsies_django.core.errors import HorsiesError
from horsies_django.management.reload import OuterProcess, is_inner
from horsies_django.management.shared import megabytes, port, seconds, whole
from horsies_django.worker.api import under_signals
from horsies_django.worker.child.bootstrap import outlive_output
from horsies_django.worker.main import work
from horsies_django.worker.process.logs import choose_colors, configure_logging, end_process
from horsies_django.worker.process.options import LEVELS, START_METHOD, START_METHODS, WorkerOptions
from horsies_django.worker.process.shutdown import Shutdown


class Command(BaseCommand):
    """Runs a worker: a pool of processes that serves the queues."""

    _called_from_command_line: bool  # Django sets it: whether the process ends with this command

    help = "Run a worker: a pool of processes that claim tasks from PostgreSQL and run them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        number = partial(parser.add_argument, metavar="N")
        number(
            "--processes", type=whole(0),
            help="number of child processes (default: the usable CPUs); 0 runs tasks in the worker process itself",
        )  # fmt: skip
        number("--threads", type=whole(1), default=1, help="running sync tasks per process (default: 1)")
        number("--async-concurrency", type=whole(1), default=100, help="running async tasks per process (default: 100)")
        parser.add_argument(
            "--queues", action="append", metavar="A,B", help="queues to serve, comma-separated; may be repeated (default: all)"
        )  # fmt: skip
        parser.add_argument(
            "--loglevel", type=str.upper, choices=LEVELS, default="INFO", help="log level (default: INFO)"
        )
        number(
            "--max-claim-batch", type=whole(0), default=0,
            help="tasks claimed from a queue at a time, so that one worker does not take them all (default: 0, the free slots)",
        )  # fmt: skip
        number(
            "--max-claim-per-worker", type=whole(0), default=0,
            help="tasks that may be claimed and not started (default: 0, the slots plus the prefetch buffer)",
        )  # fmt: skip
        number(
            "--max-tasks-per-child", type=whole(0),
            help="replace a child after this many tasks, which frees leaked memory; 0: never "
            "(default: 100, but no child before it is a minute old)",
        )  # fmt: skip
        self.add_arguments_of_service(parser)

    def add_arguments_of_service(self, parser: ArgumentParser) -> None:
        """Add the options for recycling, shutdown, scheduling and health checks."""
        parser.add_argument(
            "--max-memory-per-child-mb", type=megabytes, metavar="MB",
            help="replace a child whose resident memory has reached this after a task (default: never)",
        )  # fmt: skip
        parser.add_argument("--until-empty", action="store_true", help="exit when no task is due")
        parser.add_argument(
            "--reload",
            action="store_true",
            help="for development: restart when code changes; running tasks finish first",
        )
        parser.add_argument(
            "--shutdown-timeout", type=seconds, default=300.0, metavar="SECONDS",
            help="time for running tasks to finish after the first stop signal (default: 300); a second one ends them at once",
        )  # fmt: skip
        parser.add_argument(
            "--start-method", choices=START_METHODS, default=START_METHOD,
            help="how children start: forks of what the worker has loaded, or new interpreters",
        )  # fmt: skip
        parser.add_argument(
            "--with-scheduler", action="store_true", help="also send the tasks of schedules, as horsies_scheduler does"
        )
        parser.add_argument(
            "--health-port", type=port, metavar="PORT",
            help="answer GET /live and /ready on this port (default: no port); 0 chooses a free one",
        )  # fmt: skip
        parser.add_argument(
            "--health-host", default="127.0.0.1", metavar="HOST", help="address of that port (default: 127.0.0.1)"
        )

    def execute(self, *args: Any, **options: Any) -> None:
        """Install the signal handlers before the system checks, which import all tasks."""
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
        """Run the worker in a process of its own, which is started again when code changes."""
        if not self._called_from_command_line:
            raise CommandError("horsies_worker: --reload runs the command line again, so it works only from there")
        if options["until_empty"]:
            raise CommandError("horsies_worker: --reload does not end, so it does not go with --until-empty")
        configure_logging(options["loglevel"])
        if code := OuterProcess().run():
            sys.exit(code)

    def handle(self, **options: Any) -> None:
        chosen = {field.name: options[field.name] for field in fields(WorkerOptions)}
        if self._called_from_command_line and options["processes"] == 0:
            outlive_output()  # tasks print here
        try:
            code = work(self.stopping, **{**chosen, "queues": queue_names(options["queues"])})
        except (HorsiesError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_worker: {error}", returncode=1) from error
        if code and options["processes"] == 0:  # threads may still run tasks, which were recorded as crashed
            end_process(code)
        if code:
            sys.exit(code)


def queue_names(given: list[str] | None) -> list[str]:
    """Return the names in ``--queues=a,b --queues=c``, each once."""
    names = [name.strip() for part in given or [] for name in part.split(",")]
    return list(dict.fromkeys(name for name in names if name))
