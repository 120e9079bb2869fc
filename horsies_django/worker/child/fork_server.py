"""The fork server, which imports the project once, so that a child costs a fork and no imports.

Importing this module prepares the process: path, Django, task modules. It must not raise, because ``multiprocessing`` would
ignore that; an error is kept in ``state`` for the first child to report. A process may be forked only while it holds nothing
that two processes cannot share. ``state.unsafe`` says what the project opened at import; it is updated before each fork.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import traceback
import warnings

from horsies_django.worker.child.bootstrap import die_with_parent, keep_out_of_the_way, load_others, load_project, state
from horsies_django.worker.process import kill_timer

ORDER = "HORSIES_FORKSERVER"
PR_SET_CHILD_SUBREAPER = 36


def order(parent_pid: int, modules: list[str], deadline_file: str | None = None) -> dict[str, str]:
    """Return the environment that tells a fork server what to prepare; PYTHONPATH lets it find this module.

    ``modules`` are imported besides those that each worker imports; a child reports those that fail.
    ``deadline_file`` tells the fork server when to exit (``kill_timer.follow``); None means never.
    """
    path = [os.path.abspath(entry or os.getcwd()) for entry in sys.path]
    pythonpath = os.environ.get("PYTHONPATH")
    ordered = {"path": path, "parent_pid": parent_pid, "pythonpath": pythonpath}
    ordered |= {"modules": modules, "deadline_file": deadline_file}
    return {ORDER: json.dumps(ordered), "PYTHONPATH": os.pathsep.join(path)}


def adopt_orphans() -> None:
    """Make this fork server the parent of orphaned processes of tasks (Linux), and reap them without warnings.

    For a worker that is process 1: there is no other init, so these processes would remain zombies. The fork server of
    ``multiprocessing`` reaps all its children, and only warns of pids that it does not know.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
        warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")


def open_things() -> str | None:
    """Return what this process holds that a fork would share or lose, as text, or None."""
    from django.db import connections

    found = [
        f"a connection to the database {connection.alias!r}"
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None
    ]
    for connection in connections.all(initialized_only=True):
        pools = getattr(connection, "_connection_pools", {})
        found += [f"a connection pool for the database {alias!r}" for alias in pools]
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    found += [f"the thread {name!r}" for name in threads]
    if not threads and os.path.isdir("/proc/self/task") and (count := len(os.listdir("/proc/self/task"))) > 1:
        found.append(f"{count - 1} thread(s) of a C extension")
    return " and ".join(dict.fromkeys(found)) or None


def look_again() -> None:
    """Update ``state.unsafe``; runs before each fork."""
    state.unsafe = open_things()


def prepare(text: str) -> None:
    """Load the project into this fork server."""
    ordered = json.loads(text)
    os.environ.pop(ORDER, None)
    if ordered["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = ordered["pythonpath"]
    die_with_parent(ordered["parent_pid"])
    keep_out_of_the_way()
    if ordered["parent_pid"] == 1:
        adopt_orphans()
    sys.path[:] = ordered["path"]
    load_project()
    load_others(ordered["modules"])
    import horsies_django.worker.child.executor
    import horsies_django.worker.child.lifecycle
    import horsies_django.worker.child.main
    import horsies_django.worker.process.logs  # noqa: F401 - imported here so that no child has to

    if ordered["deadline_file"] is not None:
        kill_timer.follow(ordered["deadline_file"])
    look_again()
    os.register_at_fork(before=look_again)
    gc.collect()
    gc.freeze()


if ORDER in os.environ:
    state.pid = os.getpid()
    try:
        prepare(os.environ[ORDER])
    except BaseException:
        state.problem = traceback.format_exc()
