"""A module that opens things on import, and a task that returns their state in a child."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import random
import signal
import sqlite3
import sys
import tempfile
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy.random

from horsies_django import task

told: set[int] = set()
util.register_after_fork(told, lambda pids: pids.add(os.getpid()))
table = sqlite3.connect(":memory:", check_same_thread=False)
table.execute("CREATE TABLE answers AS SELECT 42 AS answer")
file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open
fcntl.flock(file, fcntl.LOCK_EX)


@atexit.register
def leave() -> None:
    if (left := os.environ.get("LEFT")) is not None:
        with Path(left).open("a") as lines:
            lines.write(f"{os.getpid()} left\n")


@task
def look() -> dict[str, Any]:
    """Return random numbers, rows and the state of this process."""
    logging.getLogger(__name__).info("a line of %s", os.getpid())
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock that all processes share
    return {
        "pid": os.getpid(),
        "drawn": [random.random(), float(numpy.random.random())],
        "told": sorted(told),
        "answer": table.execute("SELECT answer FROM answers").fetchone()[0],
        "signals": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        and signal.set_wakeup_fd(-1) == -1,
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }
