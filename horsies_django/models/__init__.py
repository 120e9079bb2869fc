"""The models of the tables. The ORM reads them; the statements in ``store/sql`` write them."""

from __future__ import annotations

from horsies_django.models.audit import AuditEntry
from horsies_django.models.pruning import Pruning
from horsies_django.models.queues import Queue, QueueLimits
from horsies_django.models.schedules import Schedule, ScheduleTick
from horsies_django.models.tasks import Task, TaskAttempt
from horsies_django.models.waiters import Waiter
from horsies_django.models.workers import Heartbeat, Worker, WorkerState
from horsies_django.models.workflows import WorkflowEdge, WorkflowNode, WorkflowRun, WorkflowSignal

__all__ = [
    "AuditEntry", "Heartbeat", "Pruning", "Queue", "QueueLimits", "Schedule", "ScheduleTick", "Task", "TaskAttempt",
    "Waiter", "Worker", "WorkerState", "WorkflowEdge", "WorkflowNode", "WorkflowRun", "WorkflowSignal",
]  # fmt: skip
