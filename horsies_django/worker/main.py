"""Runs a worker or a scheduler, for the commands and for ``horsies_django.worker``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from typing import Any

from horsies_django.conf import config
from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.process.logs import configure_logging, relayed_logs
from horsies_django.worker.process.options import (
    LEVELS,
    WorkerOptions,
    refuse_impossible,
    usable_cpus,
)
from horsies_django.worker.process.shutdown import Shutdown
from horsies_django.worker.scheduler.scheduler import SchedulerLoop
from horsies_django.worker.startup import (
    Start,
    refuse_main_module,
    refuse_settings_without_module,
    refuse_unready_project,
)
from horsies_django.worker.supervisor import Supervisor

logger = logging.getLogger("horsies.worker")
schedule_logger = logging.getLogger("horsies.scheduler")


def work(stopping: Shutdown, *, processes: int | None, queues: Iterable[str] | None, **others: Any) -> int:
    """Run a worker until a signal stops it; return its exit code. ``others`` are the options of ``WorkerOptions``.

    Raises HorsiesError, and ImproperlyConfigured for invalid settings.
    """
    if isinstance(queues, str):
        raise WorkerStartError(f"queues must be a list of names, not the str {queues!r}")
    options = WorkerOptions(
        queues=tuple(dict.fromkeys(queues or sorted(config().queues))),
        processes=usable_cpus() if processes is None else processes,
        **others,
    )
    refuse_impossible(options)
    configure_logging(options.loglevel)
    if options.processes:
        refuse_settings_without_module()
        refuse_main_module()
    worker = Supervisor(config(), options, stopping)
    with relayed_logs():
        try:
            return worker.run()
        except DatabaseGaveUp as error:
            logger.critical("%s", error)
            return 1


def schedule(stopping: Shutdown, loglevel: str) -> int:
    """Run a scheduler until a signal stops it; return its exit code.

    Raises HorsiesError, ImproperlyConfigured and DatabaseError.
    """
    if loglevel not in LEVELS:
        raise WorkerStartError(f"--loglevel: {loglevel!r} is not one of {', '.join(LEVELS)}")
    configure_logging(loglevel)
    refuse_main_module()
    actor = f"scheduler on {socket.gethostname()}"
    scheduler_loop = SchedulerLoop(config(), actor, gives_up=True, wakeup=stopping.wakeup)
    with relayed_logs():
        try:
            run_scheduler_loop(scheduler_loop, stopping)
        except DatabaseGaveUp as error:
            schedule_logger.critical("%s", error)
            return 1
    return 0


def run_scheduler_loop(scheduler_loop: SchedulerLoop, stopping: Shutdown) -> None:
    """Wait for the database, then send tasks until a signal stops it. Raises HorsiesError and DatabaseError."""
    with stopping.interruptible():
        start = Start(scheduler_loop, scheduler_loop.config.resilience, stopping)
        start.retry(lambda: refuse_unready_project(scheduler_loop.config), connected=False)
        start.retry(scheduler_loop.declare, connected=False)
    stopping.on_stop = scheduler_loop.stop
    if stopping.seen:
        scheduler_loop.stop()
    schedule_logger.info(
        "Scheduler started: process %s, %s schedules in its code", os.getpid(), len(scheduler_loop.names)
    )
    scheduler_loop.run()
    schedule_logger.info("Scheduler stopped")
