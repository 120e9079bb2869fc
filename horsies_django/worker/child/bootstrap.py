"""The start of a process of the pool: it dies with its parent, leaves signals to the worker, and
loads the project.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from horsies_django.worker.process.shutdown import take

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux); exit now if the parent is
    already dead.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_out_of_the_way() -> None:
    """Ignore signals that stop the worker: terminals and containers send them to the whole process
    group.

    Uses an empty handler, because programs started by tasks would inherit SIG_IGN.
    """
    take(lambda signum, frame: None)


class Output(io.FileIO):
    """A standard stream that may break, as a pipe to a log shipper that dies, or a full disk: what
    is written to it is lost.
    """

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
            setattr(
                sys,
                name,
                io.TextIOWrapper(raw, stream.encoding, stream.errors, None, stream.line_buffering),
            )


def load_project(others: Iterable[str]) -> list[Any]:
    """Set Django up and import all task modules, and ``others``; return an ImportProblem for each
    of these that failed.

    Raises RuntimeError naming the task modules that failed.
    """
    import django

    django.setup()
    from horsies_django.tasks import registry

    if problems := registry.autodiscover():
        told = "; ".join(f"importing {item.module}: {item.error!r}" for item in problems)
        raise RuntimeError(told) from problems[0].error

    return registry.import_all(others)
