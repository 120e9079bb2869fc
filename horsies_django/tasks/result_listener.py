"""The waiting room: where this process waits for tasks that workers finish.

One direct connection per process and alias listens for all who wait; it opens at the first wait (so after a fork, never before)
and closes a minute after the last. The order matters: LISTEN, then a committed row in ``horsies_waiters`` that makes workers
announce what they finish, then a look at the task, then the wait. A worker that settled between its look at the waiters
and its commit may still stay silent, so the room looks again shortly after the row is new, and then at every poll.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from horsies_django.conf import Config, config
from horsies_django.core.notifications import read_ids
from horsies_django.core.status import TERMINAL
from horsies_django.store.notify import Listener
from horsies_django.store.tasks import Found, TaskStore
from horsies_django.store.workers import WaiterStore

logger = logging.getLogger("horsies.waiting")

LINGER_SECONDS = 60.0
RENEW_SECONDS = 20.0
SECOND_LOOK_SECONDS = 0.05
FINAL = frozenset(status.value for status in TERMINAL)

# What a waiting caller is told: the task as it stands, None when it is not there, or the error that closed the room
News = Found | None | Exception
Deliver = Callable[[News], None]


class WaitingRoom:
    """Waits, on a thread of its own, for the tasks that callers of this process wait for."""

    def __init__(self, conf: Config) -> None:
        self.alias = conf.listen_database or conf.database
        self.poll_seconds = conf.resilience.notify_poll_interval_ms / 1000
        self.id = uuid.uuid4()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.callers: dict[uuid.UUID, list[Deliver]] = defaultdict(list)
        self.arrived: set[uuid.UUID] = set()
        self.bell: socket.socket | None = None

    @contextmanager
    def expecting(self, task_id: uuid.UUID, deliver: Deliver) -> Iterator[None]:
        """Have ``deliver`` called, on the room's thread, with how the task stands now and at each news of it."""
        with self.lock:
            self.callers[task_id].append(deliver)
            self.arrived.add(task_id)
            if self.thread is None:
                self.thread = threading.Thread(target=self._serve, name="horsies-waiting", daemon=True)
                self.thread.start()
            elif self.bell is not None:
                self._ring()
        try:
            yield
        finally:
            with self.lock:
                self.callers[task_id].remove(deliver)
                if not self.callers[task_id]:
                    del self.callers[task_id]
                thread = self.thread
                if self.bell is not None and linger_seconds() == 0:
                    self._ring()
            if thread is not None and linger_seconds() == 0 and not self.callers:
                thread.join(5)

    def _ring(self) -> None:
        assert self.bell is not None
        try:
            self.bell.send(b".")
        except BlockingIOError:
            return  # it rings already

    def _serve(self) -> None:
        listener = Listener(self.alias, "_done", application_name="horsies waiting")
        heard, bell = socket.socketpair()
        heard.setblocking(False)
        bell.setblocking(False)
        with self.lock:
            self.bell = bell
        try:
            listener.open()
            self._wait(listener, heard)
        except psycopg.Error as error:
            logger.warning(
                "the connection that waits for results was lost; callers poll instead: %s", str(error).strip()
            )
            self._leave(error)
        except BaseException as error:
            self._leave(RuntimeError(f"the waiting room closed: {error!r}"))
            raise
        finally:
            listener.close()
            heard.close()
            bell.close()

    def _leave(self, error: Exception | None) -> bool:
        """Let the next caller start afresh; without an error only when nobody waits. Return whether the room is left."""
        with self.lock:
            if error is None and self.callers:
                return False
            for delivers in self.callers.values():
                for deliver in delivers:
                    deliver(error)
            self.thread = self.bell = None
            return True

    def _wait(self, listener: Listener, heard: socket.socket) -> None:
        connection = listener.connection
        assert connection is not None
        tasks, waiters = TaskStore(connection), WaiterStore(connection)
        renew_at = look_at = last_wanted = time.monotonic()
        while True:
            now = time.monotonic()
            with self.lock:
                wanted, arrived, self.arrived = set(self.callers), self.arrived, set()
            if wanted:
                last_wanted = now
            elif now - last_wanted >= linger_seconds() and self._close(waiters):
                return
            if now >= renew_at:
                waiters.register(self.id, timedelta(seconds=LINGER_SECONDS))
                renew_at, look_at = now + RENEW_SECONDS, now + SECOND_LOOK_SECONDS
                arrived = wanted
            elif now >= look_at:
                look_at, arrived = now + self.poll_seconds, wanted
            self._tell(tasks, arrived & wanted)
            # What was announced while the statements above ran has left the socket: select would not see it.
            if not self._note(listener.payloads()):
                patience = min(renew_at, look_at if wanted else last_wanted + linger_seconds()) - time.monotonic()
                select.select([connection.fileno(), heard.fileno()], [], [], max(0.0, patience))
                drain(heard)
                self._note(listener.payloads())

    def _note(self, payloads: list[str]) -> bool:
        """Note which of the announced tasks somebody waits for, and return whether anything was announced."""
        announced = {id_ for payload in payloads for id_ in read_ids(payload)}
        with self.lock:
            self.arrived |= announced & self.callers.keys()
        return bool(announced)

    def _close(self, waiters: WaiterStore) -> bool:
        if not self._leave(None):
            return False
        waiters.remove(self.id)
        return True

    def _tell(self, tasks: TaskStore, ids: set[uuid.UUID]) -> None:
        if not ids:
            return
        found = tasks.find(ids)
        with self.lock:
            for id_ in ids:
                for deliver in self.callers.get(id_, ()):
                    deliver(found.get(id_))


def drain(heard: socket.socket) -> None:
    """Take the rings that gathered."""
    try:
        heard.recv(4096)
    except BlockingIOError:
        return


def linger_seconds() -> float:
    """Return how long the connection outlives the last wait; in tests not at all, or the test database could not be dropped."""
    test_state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return 0.0 if hasattr(test_state, "saved_data") else LINGER_SECONDS


_rooms: dict[tuple[str, float], WaitingRoom] = {}
_inherited: list[WaitingRoom] = []


def waiting_room() -> WaitingRoom:
    """Return this process's waiting room for the database that the settings name."""
    conf = config()
    key = (conf.listen_database or conf.database, conf.resilience.notify_poll_interval_ms / 1000)
    room = _rooms.get(key)
    return room if room is not None else _rooms.setdefault(key, WaitingRoom(conf))


def forked() -> None:
    """Forget, in a forked child, rooms whose threads stayed behind; their connections belong to the parent and stay untouched."""
    _inherited.extend(_rooms.values())
    _rooms.clear()


os.register_at_fork(after_in_child=forked)
