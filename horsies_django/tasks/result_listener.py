"""The result listener, which waits for tasks that workers finish.

One direct connection per process and alias listens for all callers. It is opened for the first
caller, so never before a fork, and closed a minute after the last one.

The order of the steps matters. The listener runs LISTEN, commits a row in ``horsies_waiters`` that
makes workers notify of finished tasks, reads the task, and then waits. A worker that has read the
waiters before that commit may not notify. So the listener reads the tasks again shortly after it
has added the row, and then at every poll.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg
from django.db import Error

from horsies_django.conf import Config, config
from horsies_django.core.notifications import read_ids
from horsies_django.store.base import error_text
from horsies_django.store.notify import Listener
from horsies_django.store.tasks import Found, TaskStore
from horsies_django.store.workers import WaiterStore

logger = logging.getLogger("horsies.waiting")

LINGER_SECONDS = 60.0
RENEW_SECONDS = 20.0

# A caller receives the task, None if the task does not exist, or the error that stopped the
# listener.
Update = Found | None | Exception
Deliver = Callable[[Update], None]


class ResultListener:
    """A thread and a connection that wait for tasks on behalf of all callers in this process."""

    def __init__(self, conf: Config) -> None:
        self.alias = conf.listen_database or conf.database
        self.poll_seconds = conf.resilience.notify_poll_interval_ms / 1000
        self.id = uuid.uuid4()
        # The lock is reentrant, because an abandoned coroutine leaves ``expecting`` where it is
        # collected as garbage, which may happen while this thread holds the lock.
        self.lock = threading.RLock()
        self.thread: threading.Thread | None = None
        self.callers: dict[uuid.UUID, list[Deliver]] = defaultdict(list)
        self.arrived: set[uuid.UUID] = set()
        self.waker: socket.socket | None = None

    @contextmanager
    def expecting(self, task_id: uuid.UUID, deliver: Deliver) -> Iterator[None]:
        """Call ``deliver`` with the task, at once and after each notification, during the block.

        It is called in the thread of the listener. If no thread can be started, it is called in
        this thread with the error.
        """
        with self.lock:
            self.callers[task_id].append(deliver)
            self.arrived.add(task_id)

            try:
                self._start()
            except RuntimeError as error:
                logger.warning(
                    "no thread can be started to wait for results; callers poll instead: %s", error
                )
                deliver(error)

            self._wake()

        try:
            yield
        finally:
            with self.lock:
                self._remove_caller(task_id, deliver)
                thread = self.thread
                if linger_seconds() == 0:
                    self._wake()

            ends = linger_seconds() == 0 and not self.callers
            if ends and thread is not None and thread is not threading.current_thread():
                thread.join(5)

    def _start(self) -> None:
        """Start the thread if none is running.

        Raises RuntimeError if the process has too many threads.
        """
        if self.thread is None:
            thread = threading.Thread(target=self._serve, name="horsies-waiting", daemon=True)
            thread.start()
            self.thread = thread

    def _remove_caller(self, task_id: uuid.UUID, deliver: Deliver) -> None:
        """Remove a caller of a task, if it has not been removed already."""
        if task_id in self.callers:
            with suppress(ValueError):
                self.callers[task_id].remove(deliver)
            if not self.callers[task_id]:
                del self.callers[task_id]

    def _wake(self) -> None:
        if self.waker is not None:
            with suppress(BlockingIOError):  # the thread is being woken already
                self.waker.send(b".")

    def _serve(self) -> None:
        """Wait for tasks until there has been no caller for a minute, or until an error.

        After an error, the callers poll, and the next caller starts another thread.
        """
        listener = Listener(self.alias, "_done", application_name="horsies waiting")

        try:
            with self._woken() as wakeup, selectors.DefaultSelector() as selector:
                listener.open()
                for end in (listener, wakeup):
                    selector.register(end, selectors.EVENT_READ)
                self._wait(listener, wakeup, selector)
        except Exception as error:
            foreseen = isinstance(error, psycopg.Error | Error | OSError)
            logger.warning(
                "the connection that waits for results was lost; callers poll instead: %s",
                error_text(error),
                exc_info=not foreseen,
            )
            self._leave(error)
        finally:
            listener.close()

    @contextmanager
    def _woken(self) -> Iterator[socket.socket]:
        """Yield a socket that becomes readable when a caller arrives.

        Raises OSError if the process has no free file descriptor.
        """
        wakeup, waker = socket.socketpair()
        with wakeup, waker:
            wakeup.setblocking(False)
            waker.setblocking(False)

            with self.lock:
                self.waker = waker
            try:
                yield wakeup
            finally:
                with self.lock:
                    if self.waker is waker:  # the next thread may have set its own already
                        self.waker = None

    def _leave(self, error: Exception | None) -> bool:
        """Stop the listener if there is an error or no caller, and return whether it stopped.

        The callers receive the error. The next caller starts the listener again.
        """
        with self.lock:
            if error is None and self.callers:
                return False

            self.thread = self.waker = None
            for id_ in list(self.callers):
                self._deliver(id_, error)
            return True

    def _deliver(self, task_id: uuid.UUID, item: Update) -> None:
        """Call the callers of a task with an update.

        Remove a caller whose event loop was closed.
        """
        for deliver in list(self.callers.get(task_id, ())):
            try:
                deliver(item)
            except RuntimeError:
                self._remove_caller(task_id, deliver)

    def _wait(
        self, listener: Listener, wakeup: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        connection = listener.connection
        assert connection is not None
        tasks = TaskStore(connection)
        waiters = WaiterStore(connection)
        renew_at = poll_at = last_expected = time.monotonic()

        while True:
            now = time.monotonic()
            with self.lock:
                expected = set(self.callers)
                arrived = self.arrived
                self.arrived = set()

            if expected:
                last_expected = now
            elif now - last_expected >= linger_seconds() and self._leave(None):
                waiters.remove(self.id)
                return

            if now >= renew_at:
                waiters.register(self.id, timedelta(seconds=LINGER_SECONDS))
                renew_at = now + RENEW_SECONDS
                poll_at = now + 0.05
                arrived = expected
            elif now >= poll_at:
                poll_at = now + self.poll_seconds
                arrived = expected

            self._deliver_found(tasks, arrived & expected)

            # Notifications that arrived during the statements above are no longer in the socket, so
            # the selector would not report them.
            if not self._note(listener.payloads()):
                patience = (
                    min(renew_at, poll_at if expected else last_expected + linger_seconds())
                    - time.monotonic()
                )
                selector.select(max(0.0, patience))
                with suppress(BlockingIOError):
                    wakeup.recv(4096)
                self._note(listener.payloads())

    def _note(self, payloads: list[str]) -> bool:
        """Record the finished tasks in notifications for which callers wait.

        Return whether there were any notifications.
        """
        announced = {id_ for payload in payloads for id_ in read_ids(payload)}
        with self.lock:
            self.arrived |= announced & self.callers.keys()
        return bool(announced)

    def _deliver_found(self, tasks: TaskStore, ids: set[uuid.UUID]) -> None:
        if not ids:
            return
        found = tasks.find(ids)
        with self.lock:
            for id_ in ids:
                self._deliver(id_, found.get(id_))


def linger_seconds() -> float:
    """Return how many seconds the connection stays open after the last wait.

    Return 0 in tests, so that the test database can be dropped.
    """
    test_state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return 0.0 if hasattr(test_state, "saved_data") else LINGER_SECONDS


_listeners: dict[tuple[str, float], ResultListener] = {}
_inherited: list[ResultListener] = []


def get_listener() -> ResultListener:
    """Return the result listener of this process for the database in the settings."""
    conf = config()
    key = (conf.listen_database or conf.database, conf.resilience.notify_poll_interval_ms / 1000)
    found = _listeners.get(key)
    return found if found is not None else _listeners.setdefault(key, ResultListener(conf))


def drop_listeners() -> None:
    """Drop the listeners in a forked child, because the parent owns their threads and connections.

    The listeners are kept in a list, so that they are not collected as garbage.
    """
    _inherited.extend(_listeners.values())
    _listeners.clear()


os.register_at_fork(after_in_child=drop_listeners)
