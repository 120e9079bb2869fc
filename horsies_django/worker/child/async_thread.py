"""The one thread on which Django runs the ORM calls of async code: its connection is shared by all async tasks of a process.

Their calls run there one after another, in the order in which they came, so between two calls of one task there may be calls of
others. A transaction that a call leaves open would take in what those others write, and roll it back with the task that opened
it: they would be COMPLETED, and their rows would not exist. So each call is looked after when it ends:

- A transaction that it left open is rolled back, and the call raises TransactionManagementError, unless it raised already.
- A connection that is closed is dropped, and so is one that a failing call opened: Django may not have set it up.

What a call changes in its session otherwise lasts until its task, or any other async task of the process, ends.
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

CLOSE_SECONDS = 2.0
LEFT_OPEN = (
    "a transaction cannot stay open between two awaits, as all async tasks of a process share one connection; it was rolled "
    "back: put the whole transaction into one function, and call that by sync_to_async"
)


class OneThread(ThreadPoolExecutor):
    """Django's thread for async code, in the place of asgiref's own."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.connected = False  # whether it held a connection when the last call ended

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
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
        """Have it do what Django does after a request, for a sync task that ran async code on a loop of its own."""
        with suppress(RuntimeError):  # a task has shut it down
            self.submit(db_sessions.before_task)

    def close(self) -> None:
        """Close its connections; a call of a task that does not end is not waited for."""
        if self.connected:
            with suppress(RuntimeError):
                wait([self.submit(connections.close_all)], CLOSE_SECONDS)


def executor() -> OneThread:
    """Return Django's thread for async code, and put ours in its place first if need be."""
    if not isinstance(SyncToAsync.single_thread_executor, OneThread):
        SyncToAsync.single_thread_executor = OneThread()
    return SyncToAsync.single_thread_executor
