"""The sender: one thread that sends, cancels and waits during the storm.

It remembers every answer, for the judge. A transaction whose connection breaks has committed or
not: it is not repeated.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import InterfaceError, OperationalError, connection, transaction

from horsies_django import RetryPolicy, TaskHandle
from horsies_django.core.errors import RetrievalCode, TaskSendError, TaskSendErrorCode
from tests.stress.chaos import tasks
from tests.stress.chaos.judge import CRASHED, TIMED_OUT, Dispatch

TICK_SECONDS = 0.05
WAIT_MS = 1_500
TIMEOUT_MS = 300
DEADLINES = (0.05, 0.3, 1.0, 4.0, 20.0)  # seconds from now
PAUSES = [0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4]
# policy -> its share of the tasks; "none" and "flaky" do not list WORKER_CRASHED
POLICIES: dict[str, tuple[int, RetryPolicy | None]] = {
    "none": (40, None),
    "flaky": (15, RetryPolicy.fixed(PAUSES[:3], auto_retry_for=[tasks.FLAKY])),
    "crash": (35, RetryPolicy.fixed(PAUSES, auto_retry_for=[CRASHED, TIMED_OUT, tasks.FLAKY])),
    "backing off": (
        10,
        RetryPolicy.exponential(
            base_seconds=0.05,
            max_retries=4,
            max_delay_seconds=1,
            auto_retry_for=[CRASHED, "UNHANDLED_ERROR"],
        ),
    ),
}


class Kind(NamedTuple):
    """The common properties of the tasks of one send."""

    task: Any
    queue: str
    policy: str
    timeout_ms: int | None
    deadline: float | None


class Aside(threading.Thread):
    """A thread that works until it is ``over``; the storm raises the error that ended it."""

    def __init__(self, name: str, over: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.over = over
        self.crashed: BaseException | None = None

    def run(self) -> None:
        """Work, and record an error, so that the storm does not wait for a dead thread."""
        try:
            self.work()
        except BaseException as error:
            self.crashed = error
        finally:
            connection.close()

    def work(self) -> None:
        """Work until it is over."""
        raise NotImplementedError


class Sender(Aside):
    """Sends until ``allowed`` tasks were sent in all. ``end`` ends it."""

    # queue, fate, tenant -> its share of the tasks
    queues: Mapping[str, float] = {"free": 60, "tight": 15, "tenants": 25}
    fates: Mapping[str, float] = {
        "ok": 61,
        "query": 10,
        "long": 5,
        "fail": 5,
        "again": 6,
        "flaky": 6,
        "slow": 3,
        "listen": 2,
        "deaf": 2,
    }
    tenants: Mapping[str, float] = {f"tenant-{number}": 1 for number in range(8)}
    ms: Sequence[float] = (0, 1, 3, 10, 40)  # durations of tasks
    batch = 60
    cancels = 0.04  # share of cancelled tasks
    waits = 0.2  # share of turns in which it waits for one of its tasks
    pause = TICK_SECONDS  # after an error of an outage

    def __init__(self, seed: int) -> None:
        super().__init__("sender", threading.Event())
        self.random = random.Random(seed)
        self.allowed = 0
        self.sent = 0

        self.dispatches: list[Dispatch] = []
        self.verdicts: dict[int, str] = {}
        self.told: dict[int, str | None] = {}
        self.happened: Counter[str] = Counter()

    def work(self) -> None:
        """Send the allowed tasks; in between cancel some, and wait for one."""
        while not self.over.wait(TICK_SECONDS):
            while self.sent < self.allowed and not self.over.is_set():
                handles = self.send(min(self.batch, self.allowed - self.sent))
                self.attempted("cancel", lambda handles=handles: self.cancel(handles))
                self.attempted("wait", lambda handles=handles: self.wait(handles))

    def end(self) -> None:
        """End the thread, and raise the error that ended it earlier."""
        self.over.set()
        self.join(60)
        if self.crashed is not None:
            raise self.crashed

    def attempted(self, what: str, do: Callable[[], Any]) -> Any:
        """Run an action that an outage may break; return None then."""
        try:
            result = do()
        except (OperationalError, InterfaceError, TaskSendError) as error:
            if isinstance(error, TaskSendError) and error.code != TaskSendErrorCode.ENQUEUE_FAILED:
                raise

            connection.close()
            self.happened[f"{what} broken by an outage"] += 1
            self.over.wait(self.pause)
            return None

        self.happened[what] += 1
        return result

    def send(self, many: int) -> list[tuple[int, TaskHandle[Any]]]:
        """Send ``count`` tasks of all kinds in one transaction; return them with their numbers.

        The list is empty if the transaction broke.
        """
        numbers = range(self.sent, self.sent + many)
        mixed: dict[Kind, list[dict[str, Any]]] = {}
        for number in numbers:
            mixed.setdefault(self.kind(), []).append(self.call(number))
        self.sent += many

        handles = self.attempted("send", lambda: self.commit(mixed))
        self.dispatches.append(Dispatch(tuple(numbers), handles is not None))
        return handles or []

    def kind(self) -> Kind:
        """Draw the properties of a task other than its fate."""
        timeout = self.random.choice((None, None, TIMEOUT_MS, 20 * TIMEOUT_MS))
        deadline = self.random.choice(DEADLINES) if self.random.random() < 0.1 else None
        policy = self.drawn({name: share for name, (share, _) in POLICIES.items()})
        task = self.random.choice((tasks.work, tasks.awork, tasks.awork))
        return Kind(task, self.drawn(self.queues), policy, timeout, deadline)

    def drawn(self, shares: Mapping[str, float]) -> str:
        """Draw one of some names by their shares."""
        return self.random.choices(list(shares), shares.values())[0]

    def call(self, number: int) -> dict[str, Any]:
        """Draw the arguments of a task."""
        call = tasks.Call(self.drawn(self.fates), float(self.random.choice(self.ms)))
        return {"number": number, "tenant": self.drawn(self.tenants), "call": call}

    def commit(self, mixed: dict[Kind, list[dict[str, Any]]]) -> list[tuple[int, TaskHandle[Any]]]:
        """Send all calls, each kind by one statement, all in one transaction."""
        handles = []
        with transaction.atomic():
            for kind, calls in mixed.items():
                until = kind.deadline and dt.datetime.now(dt.UTC) + dt.timedelta(
                    seconds=kind.deadline
                )
                sender = kind.task.with_options(
                    queue=kind.queue,
                    retry_policy=POLICIES[kind.policy][1],
                    timeout_ms=kind.timeout_ms,
                    good_until=until,
                )
                handles += zip(
                    [call["number"] for call in calls], sender.send_many(calls), strict=True
                )

        return handles

    def cancel(self, handles: list[tuple[int, TaskHandle[Any]]]) -> None:
        """Cancel a few of the tasks, some at once, others after a wait."""
        for number, handle in handles:
            if self.random.random() < self.cancels:
                self.over.wait(self.random.choice((0, 0, 0.02, 0.1)))
                self.verdicts[number] = handle.cancel(terminate=self.random.random() < 0.5)
                self.happened[f"cancel: {self.verdicts[number]}"] += 1

    def wait(self, handles: list[tuple[int, TaskHandle[Any]]]) -> None:
        """Wait for the result of one of the tasks, sometimes, and remember the answer."""
        if not handles or self.random.random() >= self.waits:
            return

        number, handle = self.random.choice(handles)
        result = handle.get(timeout_ms=WAIT_MS)
        code = None if result.is_ok() else str.__str__(result.err_value.error_code)

        if code != RetrievalCode.WAIT_TIMEOUT.value:
            self.told[number] = code
            self.happened["told"] += 1
