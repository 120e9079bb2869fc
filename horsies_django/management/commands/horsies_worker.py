"""``manage.py horsies_worker``: run a worker until it is told to stop."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import fields
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from horsies_django.core.errors import HorsiesError
from horsies_django.management.quantities import megabytes, port, seconds, whole
from horsies_django.worker.api import under_signals
from horsies_django.worker.main import work
from horsies_django.worker.process.logs import end_process
from horsies_django.worker.process.options import LEVELS, START_METHODS, WorkerOptions
from horsies_django.worker.process.shutdown import Shutdown


class Command(BaseCommand):
    """Runs a worker: a pool of processes that serves the queues."""

    _called_from_command_line: bool  # Django sets it: whether the process ends with this command

    help = "Run a worker: a pool of processes that claims tasks from PostgreSQL and runs them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--processes", type=whole(0), metavar="N",
            help="child processes (default: the CPUs this process may use); 0 runs tasks in the worker itself",
        )  # fmt: skip
        parser.add_argument(
            "--threads", type=whole(1), default=1, metavar="N", help="sync tasks at once per process (1)"
        )
        parser.add_argument(
            "--async-concurrency", type=whole(1), default=100, metavar="N", help="async tasks at once per process (100)"
        )
        parser.add_argument(
            "--queues",
            action="append",
            metavar="A,B",
            help="queues to serve, comma-separated, repeatable (default: all)",
        )
        parser.add_argument(
            "--loglevel", type=str.upper, choices=LEVELS, default="INFO", help="level of the log (INFO)"
        )
        parser.add_argument(
            "--max-claim-batch", type=whole(0), default=0, metavar="N",
            help="tasks claimed per queue and pass, so that one worker does not take them all (0: as many as it has slots)",
        )  # fmt: skip
        parser.add_argument(
            "--max-claim-per-worker", type=whole(0), default=0, metavar="N",
            help="tasks this worker may have claimed and not started (0: as many as it has slots and places in its buffer)",
        )  # fmt: skip
        self.add_arguments_of_service(parser)

    def add_arguments_of_service(self, parser: ArgumentParser) -> None:
        """Add the options about the lives of processes, and about how the worker is run and watched."""
        parser.add_argument(
            "--max-tasks-per-child", type=whole(0), metavar="N",
            help="replace a child after this many tasks, so that the memory it leaked goes back; 0: never "
            "(default: after 100, and no child before it is a minute old)",
        )  # fmt: skip
        parser.add_argument(
            "--max-memory-per-child-mb", type=megabytes, metavar="MB",
            help="replace a child once its resident memory has reached this after a task (default: never)",
        )  # fmt: skip
        parser.add_argument("--until-empty", action="store_true", help="exit once nothing is due any more")
        parser.add_argument(
            "--shutdown-timeout", type=seconds, default=300.0, metavar="SECONDS",
            help="after a first signal to stop, how long running tasks may take to finish (300); a second one ends them at once",
        )  # fmt: skip
        parser.add_argument(
            "--start-method", choices=START_METHODS, default="forkserver",
            help="how children start: forked from a server that has the project loaded, or as fresh interpreters",
        )  # fmt: skip
        parser.add_argument(
            "--with-scheduler", action="store_true", help="send the tasks of schedules, too, as horsies_scheduler does"
        )
        parser.add_argument(
            "--health-port", type=port, metavar="PORT",
            help="answer GET /live and /ready on that port (default: on none); 0: on any that is free",
        )  # fmt: skip
        parser.add_argument(
            "--health-host", default="127.0.0.1", metavar="HOST", help="the address of that port (127.0.0.1)"
        )

    def execute(self, *args: Any, **options: Any) -> None:
        """Run with our signal handlers in place from the first check on, which imports all tasks."""
        execute = super().execute

        def action(stopping: Shutdown) -> int:
            self.stopping = stopping
            execute(*args, **options)
            return 0

        under_signals(action, options["loglevel"], ends_process=self._called_from_command_line)

    def handle(self, **options: Any) -> None:
        chosen = {field.name: options[field.name] for field in fields(WorkerOptions)}
        try:
            code = work(self.stopping, **{**chosen, "queues": queue_names(options["queues"])})
        except (HorsiesError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_worker: {error}", returncode=1) from error
        if code and options["processes"] == 0:
            end_process(code)  # threads on which tasks still run: they were written down as crashed
        if code:
            sys.exit(code)


def queue_names(given: list[str] | None) -> list[str]:
    """Return the names in ``--queues=a,b --queues=c``, each once."""
    names = [name.strip() for part in given or [] for name in part.split(",")]
    return list(dict.fromkeys(name for name in names if name))
