"""``manage.py horsies_worker``: run a worker until it is told to stop."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from horsies_django.conf import config
from horsies_django.core.errors import HorsiesError
from horsies_django.management.quantities import megabytes, port, seconds, whole
from horsies_django.worker.logs import configure_logging, end_process, relayed_logs
from horsies_django.worker.options import MAX_TASKS_PER_CHILD, START_METHODS, WorkerOptions, usable_cpus
from horsies_django.worker.stopping import Stopping, StopRequested
from horsies_django.worker.supervisor import Supervisor

logger = logging.getLogger("horsies.worker")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


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
            help="replace a child after this many tasks, so that the memory it leaked goes back (100; 0: never)",
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
        with Stopping(ends_process=self._called_from_command_line) as self.stopping:
            try:
                with self.stopping.interruptible():
                    super().execute(*args, **options)
            except StopRequested:
                configure_logging(options["loglevel"])
                logger.info("Stopped before it started: nothing was claimed")

    def handle(self, **options: Any) -> None:
        configure_logging(options["loglevel"])
        processes = usable_cpus() if options["processes"] is None else options["processes"]
        most, memory = options["max_tasks_per_child"], options["max_memory_per_child_mb"]
        if not processes and (most or memory is not None):
            raise CommandError(
                "horsies_worker: --processes=0 has no children: --max-tasks-per-child and --max-memory-per-child-mb need "
                "--processes=1 or more"
            )
        try:
            worker = Supervisor(
                config(),
                WorkerOptions(
                    queues=tuple(queue_names(options["queues"]) or sorted(config().queues)),
                    processes=processes,
                    threads=options["threads"],
                    async_concurrency=options["async_concurrency"],
                    until_empty=options["until_empty"],
                    shutdown_timeout=options["shutdown_timeout"],
                    start_method=options["start_method"],
                    loglevel=options["loglevel"],
                    max_claim_batch=options["max_claim_batch"],
                    max_claim_per_worker=options["max_claim_per_worker"],
                    max_tasks_per_child=MAX_TASKS_PER_CHILD if most is None else most,
                    max_memory_per_child_mb=memory,
                    with_scheduler=options["with_scheduler"],
                    health_port=options["health_port"],
                    health_host=options["health_host"],
                ),
                self.stopping,
            )
            with relayed_logs():
                code = worker.run()
        except (HorsiesError, ImproperlyConfigured) as error:
            raise CommandError(f"horsies_worker: {error}", returncode=1) from error
        if code and not processes:
            end_process(code)  # threads on which tasks still run: they were written down as crashed
        if code:
            sys.exit(code)


def queue_names(given: list[str] | None) -> list[str]:
    """Return the names in ``--queues=a,b --queues=c``, each once."""
    names = [name.strip() for part in given or [] for name in part.split(",")]
    return list(dict.fromkeys(name for name in names if name))
