"""Factories of rows for tests.

Tasks, attempts, workers and heartbeats refuse ``save()``, so bulk_create writes them.
``TaskFactory(status="FAILED")`` fills in the columns that the table demands of a failed task; given
values stay as they are.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import Any

import factory
from django.utils import timezone
from factory.django import DjangoModelFactory

from horsies_django.models import (
    AuditEntry,
    Heartbeat,
    ScheduleTick,
    Task,
    TaskAttempt,
    Worker,
    WorkerState,
)
from horsies_django.tasks.ids import uuid7

IN_FLIGHT = ("CLAIMED", "RUNNING")
FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
CODES = {"FAILED": "UNHANDLED_ERROR", "CANCELLED": "TASK_CANCELLED", "EXPIRED": "TASK_EXPIRED"}


def now() -> dt.datetime:
    """Return the current time as the columns take it: aware, or naive with USE_TZ off."""
    return timezone.now()


def error(code: str, message: str = "it went wrong", **rest: Any) -> dict[str, Any]:
    """Return a result that is an error, as a worker stores it."""
    return {
        "err": {"error_code": code, "message": message, "data": None, "exception": None, **rest}
    }


class RowFactory(DjangoModelFactory):
    """Writes rows without ``save()``."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[Any], *args: Any, **kwargs: Any) -> Any:
        return model_class.objects.bulk_create([model_class(*args, **kwargs)])[0]

    @classmethod
    def create_batch(cls, size: int, **kwargs: Any) -> list[Any]:
        """Write ``size`` rows with one statement."""
        return list(cls._meta.model.objects.bulk_create(cls.build_batch(size, **kwargs)))


class WorkerFactory(RowFactory):
    """A worker that is up."""

    class Meta:
        model = Worker

    id = factory.LazyFunction(uuid.uuid4)
    hostname = "web-1"
    pid = factory.Sequence(lambda n: 4_000 + n)
    version = "0.1.0"
    queues = factory.LazyFunction(lambda: ["default"])
    processes = 2
    threads = 1
    async_concurrency = 100
    started_at = factory.LazyFunction(now)
    seen_at = factory.LazyFunction(now)


class HeartbeatFactory(RowFactory):
    """A child of some worker; ``role="claimer"`` makes it the parent."""

    class Meta:
        model = Heartbeat

    id = factory.LazyFunction(uuid.uuid4)
    worker_id = factory.LazyFunction(uuid.uuid4)
    role = "runner"
    pid = factory.Sequence(lambda n: 5_000 + n)
    sent_at = factory.LazyFunction(now)


def living_worker(*queues: str, beat: dict[str, Any] | None = None, **columns: Any) -> Any:
    """Write a worker that serves queues, and its heartbeat.

    The heartbeat is of this moment, unless ``beat`` is given.
    """
    worker = WorkerFactory(queues=list(queues or ["default"]), **columns)
    HeartbeatFactory(
        id=worker.pk, worker_id=worker.pk, role="claimer", pid=worker.pid, **beat or {}
    )
    return worker


class TaskFactory(RowFactory):
    """A pending task, or one of any other status, sent a moment ago."""

    class Meta:
        model = Task

    id = factory.LazyFunction(uuid7)
    task_name = "shop.tasks.send_receipt"
    queue_name = "default"
    lane = "sync"
    status = "PENDING"
    kwargs = factory.LazyFunction(dict)
    sent_at = factory.LazyFunction(now)
    enqueued_at = factory.SelfAttribute("sent_at")

    @factory.lazy_attribute
    def claimed_by(self) -> uuid.UUID | None:
        return uuid.uuid4() if self.status in (*IN_FLIGHT, "COMPLETED", "FAILED") else None

    @factory.lazy_attribute
    def claimed_at(self) -> dt.datetime | None:
        return self.sent_at if self.claimed_by else None

    @factory.lazy_attribute
    def started_at(self) -> dt.datetime | None:
        return self.claimed_at if self.status != "CLAIMED" else None

    @factory.lazy_attribute
    def finished_at(self) -> dt.datetime | None:
        if self.status not in FINISHED:
            return None
        return (self.started_at or self.sent_at) + dt.timedelta(milliseconds=20)

    @factory.lazy_attribute
    def claim_generation(self) -> int:
        return 1 if self.claimed_by else 0

    @factory.lazy_attribute
    def error_code(self) -> str | None:
        return CODES.get(self.status)

    @factory.lazy_attribute
    def result(self) -> Any:
        if self.error_code:
            return error(self.error_code)
        return {"ok": None} if self.status == "COMPLETED" else None


class TaskAttemptFactory(RowFactory):
    """An attempt that completed, or failed when it is given an error code."""

    class Meta:
        model = TaskAttempt

    task_id = factory.LazyFunction(uuid7)
    attempt = 1
    claim_generation = factory.SelfAttribute("attempt")
    outcome = factory.LazyAttribute(lambda o: "FAILED" if o.error_code else "COMPLETED")
    started_at = factory.LazyFunction(now)
    finished_at = factory.LazyAttribute(lambda o: o.started_at + dt.timedelta(milliseconds=20))
    error_code = None
    worker_id = factory.LazyFunction(uuid.uuid4)
    child_pid = factory.LazyFunction(os.getpid)


def serving(*queues: str, silent: dt.timedelta = dt.timedelta(0), **columns: Any) -> Worker:
    """Create a worker of these queues, whose last heartbeat is some time ago."""
    at = now() - silent
    worker: Worker = living_worker(*queues, beat={"sent_at": at}, seen_at=at, **columns)
    return worker


class WorkerStateFactory(RowFactory):
    """The state of a worker a moment ago."""

    class Meta:
        model = WorkerState

    id = factory.LazyFunction(uuid7)
    worker_id = factory.LazyFunction(uuid.uuid4)
    snapshot_at = factory.LazyFunction(now)
    running_sync = 1
    running_async = 20
    buffered = 0
    children = 2
    memory_usage_mb = 50.5
    children_memory_mb = 120.0
    cpu_percent = 37.5


class ScheduleTickFactory(RowFactory):
    """A fire time that was sent, of the schedule ``nightly``."""

    class Meta:
        model = ScheduleTick

    schedule_name = "nightly"
    fire_at = factory.SelfAttribute("sent_at")
    task_id = factory.LazyFunction(uuid.uuid4)
    sent_at = factory.LazyFunction(now)


class AuditEntryFactory(RowFactory):
    """A change of the queue ``default`` by a person."""

    class Meta:
        model = AuditEntry

    id = factory.LazyFunction(uuid7)
    at = factory.LazyFunction(now)
    actor = "somebody"
    action = "queue.set"
    subject = "default"
