"""The signals of a process that runs tasks: ``child_started`` and ``child_stopping``.

They are sent before its first task and after its last one. A receiver may use the database. Its
connection is cleaned up as after a task.
"""

from __future__ import annotations

import logging
import os
from functools import partial

from horsies_django.signals import HorsiesSignal, child_started, child_stopping
from horsies_django.worker.child import db_sessions

logger = logging.getLogger("horsies.signals")


def call_receivers(signal: HorsiesSignal, worker_pid: int) -> None:
    """Call the receivers of a signal, and log their exceptions."""
    if signal.receivers:
        try:
            signal.send_robust(None, pid=os.getpid(), worker_pid=worker_pid)
        except BaseException:  # such as SystemExit
            logger.exception(
                "a receiver of %s raised an exception, so later receivers were not called",
                signal.name,
            )
        db_sessions.after_task()


send_child_started = partial(call_receivers, child_started)
send_child_stopping = partial(call_receivers, child_stopping)
