"""The main function of a child, which runs tasks until its lanes end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import MutableSequence

from horsies_django.worker.child import bootstrap
from horsies_django.worker.ipc import Channel, send_all
from horsies_django.worker.process.options import WorkerOptions

logger = logging.getLogger("horsies.worker")


def main(
    options: WorkerOptions,
    modules: list[str] | None,
    sync: socket.socket,
    async_: socket.socket,
    control: socket.socket,
    started: MutableSequence[int],
    worker_pid: int,
) -> None:
    """Run as a child of the worker ``worker_pid``.

    The first message is "ready", or "failed" with the reason. A fresh interpreter gets the other
    ``modules`` with tasks that the worker has imported. None means that the project is loaded.
    """
    channel = Channel(sync)
    bootstrap.keep_out_of_the_way()
    bootstrap.outlive_output()

    try:
        kind, text = prepare_process(options, modules, worker_pid)
    except BaseException:
        kind = "failed"
        text = traceback.format_exc()

    send_all(channel, (kind, text))
    if kind != "ready":
        return

    from horsies_django.worker.child import lifecycle
    from horsies_django.worker.child.executor import Executor
    from horsies_django.worker.child.interrupts import INTERRUPT, on_interrupt

    signal.signal(INTERRUPT, on_interrupt)
    lanes = (channel, Channel(async_), Channel(control))
    Executor(*lanes, options.threads, started, give_up, options.max_memory_per_child_mb).run()

    timer = end_in_time("a receiver of child_stopping has not returned")
    lifecycle.send_child_stopping(worker_pid)
    timer.cancel()
    end_in_time("tasks left threads or processes that do not end")


def prepare_process(
    options: WorkerOptions, modules: list[str] | None, worker_pid: int
) -> tuple[str, str]:
    """Prepare this process for tasks, and return its first message.

    If there is a memory limit, the text of the message "ready" is the memory in MB.
    """
    from horsies_django.worker.limits.memory import memory_mb
    from horsies_django.worker.logs.console import configure_logging

    failed = []
    if modules is not None:
        bootstrap.die_with_parent(worker_pid)
        failed = bootstrap.load_project(modules)

    from horsies_django.conf import config
    from horsies_django.worker.child import lifecycle, middleware
    from horsies_django.worker.child.db_sessions import keep_connections

    configure_logging(options.loglevel)
    for module, error in failed:
        logger.error(
            "this child cannot import the module %s, although the worker could: in this child, the "
            "tasks of the module fail with WORKER_RESOLUTION_ERROR: %r",
            module,
            error,
        )

    keep_connections(config().child_conn_max_age)
    middleware.load()
    lifecycle.send_child_started(worker_pid)
    configure_logging(options.loglevel)  # again, because a receiver may have added a handler

    if options.max_memory_per_child_mb is None:
        return "ready", ""

    gc.collect()
    return "ready", str(memory_mb(os.getpid()))


def end_in_time(obstacle: str) -> threading.Timer:
    """Start and return a timer that ends this process even if the ``obstacle`` prevents its end."""
    # the worker waits longer than that before it kills a child
    timer = threading.Timer(2.0, leave_behind, [obstacle])
    timer.daemon = True
    timer.start()
    return timer


def leave_behind(obstacle: str) -> None:
    """End this process without waiting for other threads and processes."""
    names = [thread.name for thread in threading.enumerate() if not thread.daemon]
    logger.warning("%s (threads: %s); the child exits without waiting", obstacle, names)
    os._exit(0)


def give_up(error: BaseException) -> None:
    """End this process at once, because the worker is gone or a lane cannot run tasks any more."""
    if not isinstance(error, EOFError):
        logger.critical(
            "this child cannot run tasks any more; it ends, and its tasks count as crashed",
            exc_info=error,
        )
    os._exit(1)
