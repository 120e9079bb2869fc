"""The main functions of a worker and of a scheduler, for the commands and ``worker.api``."""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from horsies_django.conf import config
from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.logs.console import configure_logging, relayed_logs
from horsies_django.worker.pool.launch import CannotFork, Forker
from horsies_django.worker.process.options import (
    LOG_LEVELS,
    WorkerOptions,
    refuse_impossible,
    usable_cpus,
)
from horsies_django.worker.process.shutdown import Shutdown
from horsies_django.worker.scheduler import SchedulerLoop
from horsies_django.worker.startup import (
    Start,
    refuse_main_module,
    refuse_unready_database,
    refuse_unready_tasks,
)
from horsies_django.worker.supervisor import Supervisor

logger = logging.getLogger("horsies.worker")
schedule_logger = logging.getLogger("horsies.scheduler")


def work(
    stopping: Shutdown, *, processes: int | None, queues: Iterable[str] | None, **others: Any
) -> int:
    """Run a worker until a signal stops it; return its exit code.

    ``others`` are further options of ``WorkerOptions``. Raises HorsiesError, and
    ImproperlyConfigured for invalid settings.
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
        refuse_main_module()

    forker = Forker(options)
    try:
        options = load_and_fork(options, forker, stopping)
        stopping.end_if_it_hangs()
        worker = Supervisor(config(), options, stopping, forker)
        # again, because the project's code may have added a handler
        configure_logging(options.loglevel)
        with relayed_logs():
            return worker.run()
    finally:
        forker.close()


def load_and_fork(options: WorkerOptions, forker: Forker, stopping: Shutdown) -> WorkerOptions:
    """Load the tasks and fork the template, before the first thread, socket and connection.

    Return the options, with the start method spawn if the project cannot be forked. Raises
    WorkerStartError.
    """
    refuse_unready_tasks(config())

    gc.collect()
    # the garbage collector need not examine the loaded project again, nor copy its pages in
    # children
    gc.freeze()

    if not options.forks:
        return options

    try:
        forker.prepare(stopping.forget)
    except CannotFork as error:
        logger.warning(
            "the project cannot be forked: %s. Children start as fresh interpreters instead, which "
            "is slower and takes more memory. Open connections and start threads at first use, not "
            "at import",
            error,
        )
        return replace(options, start_method="spawn")

    return options


def schedule(stopping: Shutdown, loglevel: str) -> int:
    """Run a scheduler until a signal stops it; return its exit code.

    Raises HorsiesError, ImproperlyConfigured and DatabaseError.
    """
    if loglevel not in LOG_LEVELS:
        raise WorkerStartError(f"--loglevel: {loglevel!r} is not one of {', '.join(LOG_LEVELS)}")

    configure_logging(loglevel)
    stopping.end_if_it_hangs()
    refuse_main_module()

    actor = f"scheduler on {socket.gethostname()}"
    scheduler_loop = SchedulerLoop(config(), actor, gives_up=True, wakeup=stopping.wakeup)

    with relayed_logs():
        try:
            with stopping.interruptible():
                start = Start(scheduler_loop, scheduler_loop.config.resilience, stopping)
                refuse_unready_tasks(scheduler_loop.config)
                start.retry(lambda: refuse_unready_database(scheduler_loop.config), connected=False)
                start.retry(scheduler_loop.declare, connected=False)

            stopping.on_stop = scheduler_loop.stop
            if stopping.seen:
                scheduler_loop.stop()

            line = "Scheduler started: process %s, %s schedules in its code"
            schedule_logger.info(line, os.getpid(), len(scheduler_loop.names))
            scheduler_loop.run()
            schedule_logger.info("Scheduler stopped")
        except DatabaseGaveUp as error:
            schedule_logger.critical("%s", error)
            return 1

    return 0
