"""The first steps of a child: it dies with its parent, ignores signals, and loads the project."""

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
    """Request from the kernel a signal to this process when its parent dies (on Linux only).

    The process exits now if the parent is already dead.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_out_of_the_way() -> None:
    """Ignore signals that stop the worker, because the worker itself ends this process.

    Terminals and containers send such signals to the whole process group. The handler is an empty
    function, because programs that tasks start would inherit SIG_IGN.
    """
    take(lambda signum, frame: None)


class Output(io.FileIO):
    """A standard stream that loses its data without an error if it breaks.

    Examples are a pipe to a log shipper that dies, and a full disk.
    """

    def write(self, data: Any) -> int:
        """Write the data, and return its size even if it was lost, so that ``print`` succeeds."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def outlive_output() -> None:
    """Replace the standard streams, so that code that prints does not fail if they break."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with suppress(AttributeError, OSError, ValueError):  # the stream is closed, or not a file
            raw = io.BufferedWriter(Output(stream.fileno(), "w", closefd=False))
            stream.flush()
            setattr(
                sys,
                name,
                io.TextIOWrapper(raw, stream.encoding, stream.errors, None, stream.line_buffering),
            )


def load_project(others: Iterable[str]) -> list[Any]:
    """Set up Django, and import all task modules and the ``others``.

    Return an ImportProblem for each module of ``others`` that failed. Raises RuntimeError with the
    names of the task modules that failed.
    """
    import django

    django.setup()
    from horsies_django.tasks import registry

    if problems := registry.autodiscover():
        message = "; ".join(f"importing {item.module} failed: {item.error!r}" for item in problems)
        raise RuntimeError(message) from problems[0].error

    return registry.import_all(others)
