"""The thread in which Django runs the ORM calls of async code. All async tasks of a process share its connection.

The calls run one after another, so calls of other tasks may run between two calls of one task. A transaction that a call leaves
open would include their writes, and a rollback would undo them although those tasks are COMPLETED. So after each call:

- A transaction that it left open is rolled back, and the call raises TransactionManagementError, unless it raised already.
- A closed connection is dropped, and so is one that a failing call opened, because Django may not have set it up.

Other changes of the session last until an async task of the process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.transaction import TransactionManagementError

from horsies_django.worker.child import db_sessions

LEFT_OPEN = (
    "a transaction cannot stay open between two awaits, as all async tasks of a process share one connection; it was rolled "
    "back: put the whole transaction into one function, and call that by sync_to_async"
)


class OneThread(ThreadPoolExecutor):
    """Replaces asgiref's executor, which runs the sync calls of async code."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.connected = False  # whether it held a connection when the last call ended

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._look_after, call, *args, **kwargs)

    def _look_after(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        before = [getattr(wrapper, "connection", None) for wrapper in db_sessions.thread.wrappers.values()]
        try:
            result = call(*args, **kwargs)
        except BaseException:
            db_sessions.drop_unfit(opened_beside=before)
            raise
        else:
            left_open = db_sessions.drop_unfit()
        finally:
            self.connected = db_sessions.may_be_open(db_sessions.thread.wrappers.values())
        if left_open:
            raise TransactionManagementError(LEFT_OPEN)
        return result

    def look_after(self) -> None:
        """Clean up the connections of the thread after a sync task that ran async code in its own loop."""
        with suppress(RuntimeError):  # a task has shut it down
            self.submit(db_sessions.before_task)

    def close(self) -> None:
        """Close the connections of the thread, without waiting for a call that does not end."""
        if self.connected:
            with suppress(RuntimeError):
                wait([self.submit(connections.close_all)], 2.0)


def executor() -> OneThread:
    """Return the executor, and install it first if necessary."""
    if not isinstance(SyncToAsync.single_thread_executor, OneThread):
        SyncToAsync.single_thread_executor = OneThread()
    return SyncToAsync.single_thread_executor
