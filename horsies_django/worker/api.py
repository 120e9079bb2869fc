"""Functions that run a worker or a scheduler from code.

They do the same as ``manage.py horsies_worker`` and ``manage.py horsies_scheduler``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

import django
from django.apps import apps

from horsies_django.core.errors import StopRequested, WorkerStartError
from horsies_django.worker.logs.console import configure_logging
from horsies_django.worker.process.options import START_METHOD
from horsies_django.worker.process.shutdown import WORKER_HANGS, Shutdown

logger = logging.getLogger("horsies.worker")

SCHEDULER_HANGS = (
    "the scheduler hangs, so its process exits: its open transaction is rolled back, and another "
    "scheduler sends the due tasks"
)


def run(
    *,
    processes: int | None = None,
    threads: int = 1,
    async_concurrency: int = 100,
    queues: Iterable[str] | None = None,
    loglevel: str = "INFO",
    max_claim_batch: int = 0,
    max_claim_per_worker: int = 0,
    max_tasks_per_child: int | None = None,
    max_memory_per_child_mb: float | None = None,
    until_empty: bool = False,
    shutdown_timeout: float = 300.0,
    start_method: str = START_METHOD,
    with_scheduler: bool = False,
    health_port: int | None = None,
    health_host: str = "127.0.0.1",
) -> int:
    """Run a worker in this process until it is stopped, and return its exit code.

    The options are those of the command horsies_worker; ``shutdown_timeout`` is in seconds. It
    handles the signals of the process, so it must be called in the main thread. It sets up Django
    if necessary. With ``processes=0``, tasks that were ended may continue in daemon threads until
    the process ends.

    Raises WorkerStartError if the worker cannot start, and ImproperlyConfigured for invalid
    settings.
    """
    options = dict(locals())  # all arguments, by name

    def action(stopping: Shutdown) -> int:
        from horsies_django.worker.main import work

        return work(stopping, **options)

    return under_signals(action, loglevel)


def run_scheduler(*, loglevel: str = "INFO") -> int:
    """Run a scheduler in this process until it is stopped, and return its exit code.

    It does the same as the command horsies_scheduler. It handles the signals of the process, so it
    must be called in the main thread. It sets up Django if necessary.

    Raises WorkerStartError if the scheduler cannot start, ImproperlyConfigured for invalid
    settings, ScheduleError for an invalid schedule in the code, and Django's DatabaseError if the
    database refuses a schedule.
    """

    def action(stopping: Shutdown) -> int:
        from horsies_django.worker.main import schedule

        return schedule(stopping, loglevel)

    return under_signals_of_scheduler(action, loglevel)


def under_signals(
    action: Callable[[Shutdown], int],
    loglevel: str,
    *,
    ends_process: bool = False,
    final_message: str = WORKER_HANGS,
    nothing_was: str = "claimed",
) -> int:
    """Handle the signals of this process while ``action`` runs; return its exit code.

    The exit code is 0 if a signal arrives before the worker or scheduler has started. Django is set
    up if necessary. Raises ImproperlyConfigured if there are no settings, and WorkerStartError if
    this is not the main thread, because other threads cannot handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise WorkerStartError(
            "a worker or scheduler handles the signals of its process, so it must run in the main "
            "thread"
        )

    with Shutdown(ends_process=ends_process, final_message=final_message) as stopping:
        try:
            with stopping.interruptible():
                if not apps.ready:
                    django.setup()
                return action(stopping)
        except StopRequested:
            configure_logging(loglevel)
            logger.info("Stopped before it started: nothing was %s", nothing_was)
            return 0


under_signals_of_scheduler = partial(
    under_signals, final_message=SCHEDULER_HANGS, nothing_was="sent"
)
