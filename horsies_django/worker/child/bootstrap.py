"""How a process of the pool begins, forked or fresh: it ends with its parent, leaves signals to the worker, loads the project."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from horsies_django.worker.process.shutdown import take

PR_SET_PDEATHSIG = 1


class State:
    """How far the preparation of this process went."""

    pid: int | None = None  # the process that was prepared
    problem: str | None = None
    unsafe: str | None = None


state = State()


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process with its parent (Linux), and end it now if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_out_of_the_way() -> None:
    """Leave stopping to the worker: a terminal or a container sends its signals to the whole process group.

    A handler that does nothing, not SIG_IGN: programs that a task starts would inherit the latter.
    """
    take(lambda signum, frame: None)


def load_project() -> None:
    """Set Django up and import all task modules. Raises RuntimeError naming the modules that failed."""
    import django

    django.setup()
    from horsies_django.tasks import registry

    if problems := registry.autodiscover():
        raise RuntimeError("; ".join(f"importing {item.module}: {item.error!r}" for item in problems)) from problems[
            0
        ].error
