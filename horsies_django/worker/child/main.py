"""A child process: it says that it is ready, then runs tasks until its lanes end.

And the start of any process of the pool: it dies with its parent, leaves signals to the worker, and loads the project.
"""

from __future__ import annotations

import ctypes
import gc
import io
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, MutableSequence
from contextlib import suppress
from typing import Any

from horsies_django.worker.ipc import Channel, send_all
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import take

logger = logging.getLogger("horsies.worker")

PR_SET_PDEATHSIG = 1


def main(
    options: WorkerOptions,
    modules: list[str] | None,
    sync: socket.socket,
    async_: socket.socket,
    control: socket.socket,
    started: MutableSequence[int],
    worker_pid: int,
) -> None:
    """Run as a child of the worker ``worker_pid``. Its first message is "ready" or "failed", with the reason.

    ``modules`` are the other modules whose tasks the worker knows, for a fresh interpreter; None: the project is loaded.
    """
    channel = Channel(sync)
    keep_out_of_the_way()
    outlive_output()
    try:
        kind, text = prepare(options, modules, worker_pid)
    except BaseException:
        kind, text = "failed", traceback.format_exc()
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
    lifecycle.stopping(worker_pid)
    timer.cancel()
    end_in_time("tasks left threads or processes behind that do not end")


def prepare(options: WorkerOptions, modules: list[str] | None, worker_pid: int) -> tuple[str, str]:
    """Make this process fit to run tasks and return its first message; with "ready" comes its memory, where that is limited."""
    from horsies_django.worker.process.logs import configure_logging
    from horsies_django.worker.process.memory import memory_mb

    failed = []
    if modules is not None:
        die_with_parent(worker_pid)
        failed = load_project(modules)
    from horsies_django.conf import config
    from horsies_django.worker.child import lifecycle, middleware
    from horsies_django.worker.child.db_sessions import keep_connections

    configure_logging(options.loglevel)
    for module, error in failed:
        logger.error(
            "the module %s cannot be imported by this child, but by the worker: its tasks fail here with "
            "WORKER_RESOLUTION_ERROR: %r", module, error,
        )  # fmt: skip
    keep_connections(config().child_conn_max_age)
    middleware.load()
    lifecycle.started(worker_pid)
    if options.max_memory_per_child_mb is None:
        return "ready", ""
    gc.collect()
    return "ready", str(memory_mb(os.getpid()))


def end_in_time(obstacle: str) -> threading.Timer:
    """End this process soon, whatever may prevent its end; return the timer that does it."""
    timer = threading.Timer(2.0, leave_behind, [obstacle])  # less than the worker waits before it kills a child
    timer.daemon = True
    timer.start()
    return timer


def leave_behind(obstacle: str) -> None:
    """End this process without waiting for what still runs."""
    names = [thread.name for thread in threading.enumerate() if not thread.daemon]
    logger.warning("%s (threads: %s); not waiting for it", obstacle, names)
    os._exit(0)


def give_up(error: BaseException) -> None:
    """End this process at once: the worker is gone, or a lane broke and cannot be trusted with tasks."""
    if not isinstance(error, EOFError):
        logger.critical("this child cannot run tasks any more; it ends, and its tasks count as crashed", exc_info=error)
    os._exit(1)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux); exit now if the parent is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_out_of_the_way() -> None:
    """Ignore signals that stop the worker: terminals and containers send them to the whole process group.

    Uses an empty handler, because programs started by tasks would inherit SIG_IGN.
    """
    take(lambda signum, frame: None)


class Output(io.FileIO):
    """A standard stream that may break, as a pipe to a log shipper that dies, or a full disk: what is written to it is lost."""

    def write(self, data: Any) -> int:
        """Write, or do as if, so that no task fails that prints."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def outlive_output() -> None:
    """Let nothing fail that prints to a standard stream that broke."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with suppress(AttributeError, OSError, ValueError):  # it is closed, or no file
            raw = io.BufferedWriter(Output(stream.fileno(), "w", closefd=False))
            stream.flush()
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, None, stream.line_buffering))


def load_project(others: Iterable[str]) -> list[Any]:
    """Set Django up and import all task modules, and ``others``; return an ImportProblem for each of these that failed.

    Raises RuntimeError naming the task modules that failed.
    """
    import django

    django.setup()
    from horsies_django.tasks import registry

    if problems := registry.autodiscover():
        told = "; ".join(f"importing {item.module}: {item.error!r}" for item in problems)
        raise RuntimeError(told) from problems[0].error
    return registry.import_all(others)
