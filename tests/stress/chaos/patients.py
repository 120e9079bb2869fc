"""Callers that send workflows one after another and wait for the value of each.

They do so whatever happens to the database.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, NamedTuple

from django.db import InterfaceError, OperationalError, connection

from horsies_django import TaskSendError
from tests.stress.chaos import tasks
from tests.stress.chaos.sending import Aside

TICK_SECONDS = 0.05
WAIT_MS = 240_000  # a task that a worker in soft mode has claimed waits behind its whole buffer
MOST = 6  # elements of a map


class Answer(NamedTuple):
    """The value or the error of a ``get``; ``calls`` are the times of its calls."""

    run: str
    expected: int
    given: Any
    began: float
    ended: float

    @property
    def complaint(self) -> str:
        """Return the error in the answer, or None if it is as expected."""
        return f"a waiter for workflow {self.run} was told {self.given!r:.200}, not {self.expected}"


class Patient(Aside):
    """Sends and waits until ``over``.

    A send that broke is repeated under its key, and so creates one run in any case.
    """

    def __init__(self, number: int, over: threading.Event, pause: float = 0.0) -> None:
        super().__init__(f"patient {number}", over)
        self.number = number
        self.pause = pause
        self.random = random.Random(number)

        self.sent = 0
        self.answers: list[Answer] = []

    def work(self) -> None:
        """Send and wait until it is over."""
        while not self.over.wait(self.pause):
            most = self.random.randrange(MOST)
            handle = self.send(most)
            while not self.waited(handle, sum(range(0, 2 * most, 2))):
                connection.close()

    def send(self, most: int) -> Any:
        """Send a workflow, and repeat the send until it succeeds."""
        flow = tasks.flow_of(most)
        flow.key = f"{self.number} {self.sent}"

        while True:
            try:
                handle = flow.send()
            except (OperationalError, InterfaceError, TaskSendError):
                connection.close()
                threading.Event().wait(TICK_SECONDS)
            else:
                self.sent += 1
                return handle

    def waited(self, handle: Any, expected: int) -> bool:
        """Wait for the value; return whether there was an answer other than a database error."""
        began = time.time()
        given: Any
        try:
            result = handle.get(timeout_ms=WAIT_MS)
            given = result.ok_value if result.is_ok() else result.err_value
        except (OperationalError, InterfaceError) as error:
            given = error

        self.answers.append(Answer(str(handle.workflow_id), expected, given, began, time.time()))
        return not isinstance(given, Exception)
