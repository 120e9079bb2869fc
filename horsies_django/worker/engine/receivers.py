"""The signals about tasks from a worker's main process, and the thread that calls their receivers.

Receivers are code of the project, which may be slow or hang. So they run neither in the engine's
thread nor in the thread of the heartbeats: events wait in a queue for a thread of their own. While
too many events wait, further ones are dropped and counted. Events of a signal without receivers are
not queued.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django.db import close_old_connections, connections

from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.metadata import has_metadata, read_metadata
from horsies_django.core.records import Claim, Outcome
from horsies_django.core.texts import printable_name
from horsies_django.signals import (
    HorsiesSignal,
    order_stopped,
    task_failed,
    task_finished,
    task_rescued,
    task_retried,
    task_started,
    worker_stopping,
)
from horsies_django.store.workers import Happened
from horsies_django.tasks import registry
from horsies_django.worker.child.db_sessions import leave_tenants
from horsies_django.worker.logs.relay import MOST_WAITING_RECORDS
from horsies_django.worker.logs.task_log import TaskRecord
from horsies_django.worker.process.shutdown import STOP_SECONDS

logger = logging.getLogger("horsies.signals")

# the time between two reports of dropped events; a receiver that runs longer is reported, too
REPORT_SECONDS = 60.0


class Event(NamedTuple):
    """A signal to send, with its arguments.

    The metadata is not among them; it is read from ``options``, the JSON text of the task's
    options.
    """

    signal: HorsiesSignal
    values: dict[str, Any]
    options: str | None

    def deliver(self) -> None:
        """Call the receivers, and log their exceptions."""
        self.signal.send_robust(
            registry.find(self.values["task_name"]),
            metadata=read_metadata(self.options),
            **self.values,
        )


def start_events(claims: Iterable[Claim], worker: uuid.UUID) -> Iterator[Event]:
    """Yield the event of each task that runs now."""
    for claim in claims:
        yield event(task_started, claim, worker)


def end_events(
    outcomes: Iterable[Outcome], decided: Mapping[str, Any], worker: uuid.UUID
) -> Iterator[Event]:
    """Yield the events of attempts whose outcome was written.

    The SQL function ``horsies_settle`` describes ``decided``.
    """
    for outcome in outcomes:
        decision = decided.get(str(outcome.id), {}) if decided else {}
        values = {
            # "SNOOZED" if the attempt runs again later
            "error_code": decision.get("code") or outcome.error_code,
            "error_message": outcome.error_message,
            "seconds": outcome.seconds,
            "child_pid": outcome.child_pid,
        }

        if "retry" not in decision:
            status = outcome.ended_as(decision)
            yield event(task_finished, outcome, worker, **values, status=status)
            if status == "FAILED" and not outcome.returned and task_failed.receivers:
                yield event(task_failed, outcome, worker, **values, **raised(outcome))
            if "stops" in decision:
                yield event(order_stopped, outcome, worker, partition=decision["stops"])
        else:
            at = decision.get("at")  # None if the reply with the details was lost
            retry_at = None if at is None else dt.datetime.fromtimestamp(at, dt.UTC)
            yield event(task_retried, outcome, worker, **values, retry_at=retry_at)


def rescue_events(happened: Iterable[Happened], worker: uuid.UUID) -> Iterator[Event]:
    for one in happened:
        if one.kind in ("failed", "retried", "returned"):
            yield event(task_rescued, one, worker, outcome=one.kind)

        if one.kind == "failed":
            values: dict[str, Any] = {
                "error_code": one.code or OperationalErrorCode.WORKER_CRASHED.value,
                "error_message": "the worker that ran the task is gone",
                **dict.fromkeys(("seconds", "child_pid", "exception_class", "traceback")),
                "context": {},
            }
            yield event(task_failed, one, worker, **values)


def raised(outcome: Outcome) -> dict[str, Any]:
    """Return the arguments of ``task_failed`` about the exception of a failure.

    These are the dotted path of its class, the end of its traceback, and the context that the code
    of the task left.
    """
    exception = (json.loads(outcome.result).get("err") or {}).get("exception") or {}
    path = ".".join(filter(None, (exception.get("module"), exception.get("type"))))
    trace = exception.get("traceback")

    return {
        "exception_class": path or None,
        # the end of a traceback names the exception and the place
        "traceback": trace and trace[-16_384:],
        "context": read_context(outcome.context),
    }


def read_context(text: str | None) -> dict[str, Any]:
    """Return the context that the code of a failed attempt left, {} if it is no JSON object.

    A task can write any text into the channel of its process.
    """
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def event(signal: HorsiesSignal, task: TaskRecord, worker: uuid.UUID, **more: Any) -> Event:
    """Return an event about a task, with ``more`` arguments.

    It keeps the options only if they contain metadata.
    """
    values = {
        "task_id": task.id,
        "task_name": task.task_name,
        "queue_name": task.queue_name,
        "attempt": task.attempt,
        "worker_id": worker,
        **more,
    }
    return Event(signal, values, task.options if has_metadata(task.options) else None)


class Receivers:
    """The queue of the events of a worker, and the thread that delivers them.

    The thread starts with the first event.
    """

    def __init__(self, worker: uuid.UUID) -> None:
        self.worker = worker
        self.lock = threading.Lock()  # the engine and the reaper add events
        self.waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        # the current event, and since when by the monotonic clock
        self.delivering: tuple[Event, float] | None = None

        self.dropped = 0
        self.report_at = 0.0
        self.stopped = False

    def started(self, claims: Iterable[Claim]) -> None:
        """Queue the event of each task that runs now."""
        if task_started.receivers:
            self.add(start_events(claims, self.worker))

    def settled(self, outcomes: Iterable[Outcome], decided: Mapping[str, Any]) -> None:
        """Queue the events of attempts whose outcome was written."""
        # task_finished is the only one of these signals that is about completed tasks
        if not task_finished.receivers:
            if not (task_failed.receivers or task_retried.receivers or order_stopped.receivers):
                return
            outcomes = [outcome for outcome in outcomes if outcome.status != "COMPLETED"]

        self.add(end_events(outcomes, decided, self.worker))

    def rescued(self, happened: Iterable[Happened]) -> None:
        """Queue the events of tasks that were rescued."""
        if task_rescued.receivers or task_failed.receivers:
            self.add(rescue_events(happened, self.worker))

    def add(self, events: Iterable[Event]) -> None:
        """Queue events whose signal has receivers; drop and count those beyond the limit."""
        with self.lock:
            before = self.dropped
            for event in events:
                if not event.signal.receivers:
                    continue
                if self.waiting.qsize() < MOST_WAITING_RECORDS:
                    self.waiting.put(event)
                else:
                    self.dropped += 1

            if not self.waiting.empty():
                self.start()
            self.report(self.dropped - before)

    def start(self) -> None:
        """Start the thread, unless it was started.

        If the system has no room for another thread, the events wait for the next try.
        """
        if self.thread is not None:
            return

        thread = threading.Thread(target=self.run, name="horsies-receivers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning(
                "the thread that sends signals cannot be started: %s; trying again with the next "
                "signal",
                error,
            )
            return
        self.thread = thread

    def report(self, dropped: int) -> None:
        """Log, once a minute at most, that events were dropped or that a receiver takes long."""
        now = time.monotonic()
        current = self.delivering
        lasts = 0.0 if current is None else now - current[1]
        if now < self.report_at or not (dropped or lasts > REPORT_SECONDS):
            return

        self.report_at = now + REPORT_SECONDS
        slow = (
            f"; {event_text(current[0])} has taken {lasts:.0f} s so far"
            if current is not None and lasts > 1
            else ""
        )

        logger.error(
            "the receivers of signals are too slow: %s signal(s) wait, %s dropped so far%s",
            self.waiting.qsize(),
            self.dropped,
            slow,
        )

    def run(self) -> None:
        """Deliver events until the end of the queue."""
        while not self.stopped and (event := self.waiting.get()) is not None:
            self.delivering = event, time.monotonic()
            try:
                event.deliver()
                close_old_connections()
                leave_tenants()
            except BaseException:
                # a receiver that ends its thread, or connections that cannot be closed
                logger.exception("%s failed", event_text(event))
            self.delivering = None

        try:
            worker_stopping.send_robust(None, worker_id=self.worker)
        except BaseException:  # such as SystemExit
            logger.exception(
                "a receiver of worker_stopping raised an exception, so later receivers were not "
                "called"
            )

        connections.close_all()

    def stop(self) -> None:
        """Deliver the waiting events and ``worker_stopping``, and log how many were not delivered.

        It waits ``STOP_SECONDS`` at most.
        """
        with self.lock:
            if worker_stopping.receivers:
                self.start()

        if self.thread is None:
            return

        self.waiting.put(None)
        self.thread.join(STOP_SECONDS)
        self.stopped = True

        lost = (
            self.waiting.qsize() - 1 + (self.delivering is not None)
            if self.thread.is_alive()
            else 0
        )
        if lost > 0 or self.dropped:
            logger.error(
                "%s signal(s) were dropped, because their receivers were too slow; %s more were "
                "not delivered within %.0f s",
                self.dropped,
                max(0, lost),
                STOP_SECONDS,
            )


def event_text(event: Event) -> str:
    name = printable_name(event.values["task_name"])
    return f"{event.signal.name} of {name} {event.values['task_id']}"
