"""The table of verbs: all that can be done to one row, from which the pages make their buttons, forms and list actions.

A form with no other field than the reason is a row here and nothing else. The functions are those that the commands call, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.utils.translation import gettext_lazy as _

from horsies_django import queues, schedules
from horsies_django.admin.base.history import OF_QUEUES, OF_SCHEDULES, OF_TASKS, OF_WORKFLOWS
from horsies_django.core.status import Status
from horsies_django.models import Schedule, Task, WorkflowRun
from horsies_django.monitoring.overview import as_object, changed_keys
from horsies_django.tasks import operations as tasks
from horsies_django.tasks.redaction import redact
from horsies_django.workflows import operations as runs

ADD = "add"  # the verb that creates a row; all others change one


class Verb(NamedTuple):
    """Something that can be done to a row.

    ``run`` takes the key of the row and ``actor`` and ``reason``; what it returns is falsy, but not None, if it changed nothing.
    ``when`` tells whether the state of a row allows it; the function decides. ``button`` is the text that submits the form, if it
    is not the label.
    """

    action: str  # its name in the audit
    label: Any  # a lazy text
    run: Callable[..., Any]
    when: Callable[[Any], bool]
    explanation: Any = ""
    permissions: tuple[str, ...] = ("horsies.configure_queue",)
    button: Any = ""
    needs_reason: bool = False
    deletes: bool = False  # then there is no page of the row to return to


def always(_row: Any) -> bool:
    return True


def never(_row: Any) -> bool:
    """Say no: another form leads there, or a link with more in its address."""
    return False


def is_off(schedule: Schedule) -> bool:
    return as_object(schedule.definition).get("enabled") is False


def is_open(run: WorkflowRun) -> bool:
    return run.finished_at is None and run.status != "COMPENSATING"


def has_failed(run: WorkflowRun) -> bool:
    """Whether nodes of a run can be retried. A finished child run is retried with its parent, and one that was undone is not."""
    if run.finished_at is None:
        return is_open(run) and run.error_node is not None
    error = as_object(as_object(run.result).get("err")).get("data")
    undone = isinstance(error, dict) and "undone" in error and "not_undone" not in error
    return run.status in ("FAILED", "CANCELLED") and run.parent_id is None and not undone


def can_retry(task: Any) -> bool:
    """Whether a task can run again under its id, or waits for a retry that can be made due now."""
    if task.finished_at is None:
        return task.status == Status.PENDING and task.next_retry_at is not None and task.next_retry_at > task.read_at
    kept = task.redacted_at is None and task.merged_into is None and task.workflow_id is None
    return kept and task.status != Status.COMPLETED


def is_held(task: Task) -> bool:
    """Whether a worker has a task."""
    return task.finished_at is None and task.claimed_by is not None


def is_kept(task: Task) -> bool:
    return task.finished_at is not None and task.redacted_at is None


def cancel(task: uuid.UUID, **how: Any) -> list[str]:
    """Cancel a task; return nothing if it had finished."""
    return [verdict for verdict in tasks.cancel([task], **how).values() if verdict != "FINISHED"]


OPERATE, PAYLOAD = "horsies.operate_task", "horsies.view_payload"
of_run = partial(Verb, permissions=("horsies.operate_workflow",))
of_task = partial(Verb, permissions=(OPERATE,))
control = {verb: partial(runs.control, verb=verb) for verb in ("pause", "resume", "cancel")}

# By prefix of the actions, and by the last part of the address of the form; the buttons have this order.
VERBS: dict[str, dict[str, Verb]] = {
    OF_QUEUES: {
        "override": Verb(
            "queue.override", _("Override"), queues.override, always,
            _("Leave a limit empty to keep the declared value; enter “none” for no limit. Running tasks continue: after a limit"
              " is lowered, no task starts until enough of them have finished."), needs_reason=True),
        "clear": Verb(
            "queue.clear", _("Clear the override"), queues.clear, lambda row: row.override is not None,
            _("The declared limits apply again. Running tasks continue.")),
        "resume": Verb(
            "queue.resume", _("Resume"), queues.resume, lambda row: row.paused_at is not None,
            _("Waiting tasks start again, within the limits.")),
        "pause": Verb(
            "queue.pause", _("Pause"), queues.pause, lambda row: row.paused_at is None,
            _("No more tasks start until the queue is resumed. Running tasks continue, and tasks can still be sent.")),
    },
    OF_SCHEDULES: {
        "run_now": Verb(
            "schedule.run_now", _("Run now"), schedules.run_now, always,
            _("Sends its task once, now. The fire times of the schedule do not change.")),
        "enable": Verb(
            "schedule.enable", _("Enable"), schedules.enable, lambda row: row.gone_at is None and is_off(row),
            _("It fires from now on. Nothing is sent for the time while it was disabled.")),
        "disable": Verb(
            "schedule.disable", _("Disable"), schedules.disable, lambda row: row.gone_at is None and not is_off(row),
            _("It does not fire until you enable it. Tasks that were sent are not affected.")),
        "edit": Verb(
            "schedule.change", _("Edit"), schedules.change, always,
            _("Your changes override what the code declares, until somebody reverts them. A new pattern or time zone, or enabling"
              " the schedule, takes effect from now on."), button=_("Save"), needs_reason=True),
        "revert": Verb(
            "schedule.revert", _("Revert to the code"), schedules.revert, lambda row: bool(changed_keys(row)),
            _("Drops all changes, so that what the code declares is in force again.")),
        "delete": Verb(
            "schedule.delete", _("Delete"), schedules.delete, lambda row: row.declared_in is None or row.gone_at is not None,
            _("No code declares it. Tasks that were sent are not affected; the audit keeps its definition."), deletes=True),
        ADD: Verb(
            "schedule.create", _("Add a schedule"), schedules.create, never,
            _("Its task must exist in the code; the schedule itself is only in the database."), button=_("Add")),
    },
    OF_WORKFLOWS: {
        "resume": of_run(
            "workflow.resume", _("Resume"), control["resume"], lambda row: row.status == "PAUSED",
            _("Nodes that are ready start again.")),
        "pause": of_run(
            "workflow.pause", _("Pause"), control["pause"], lambda row: is_open(row) and row.status != "PAUSED",
            _("No other node starts until the run is resumed. Running tasks end; tasks that were not tried yet are withdrawn.")),
        "retry": of_run(
            "workflow.retry", _("Retry"), runs.retry, has_failed,
            _("Nodes that failed, expired or were cancelled run again, and so do those that were skipped because of them. What"
              " completed is kept. If nodes were undone, only failed undos run again.")),
        "skip": of_run(
            "workflow.skip", _("Skip a node"), runs.skip, lambda row: row.finished_at is None,
            _("Only a node that has not begun can be skipped. Nodes that depend on it may be skipped, too.")),
        "cancel": of_run(
            "workflow.cancel", _("Cancel"), control["cancel"], is_open,
            _("Nodes that have not started are cancelled. Running tasks are asked to stop. Nodes that have begun are undone if"
              " they have an undo."), button=_("Cancel the run")),
        "approve": of_run(
            "workflow.approve", _("Approve"), partial(runs.decide_opening, approved=True), never,
            _("The gate completes, and the nodes that depend on it run.")),
        "reject": of_run(
            "workflow.reject", _("Reject"), partial(runs.decide_opening, approved=False), never,
            _("The gate fails, and so does what depends on it.")),
    },
    OF_TASKS: {
        "retry": of_task(
            "task.retry", _("Retry"), tasks.retry, can_retry,
            _("It runs again under its id, now. Its attempts are kept, and its retry policy begins anew.")),
        "skip": of_task(
            "task.skip", _("Skip"), tasks.skip, lambda row: row.order_stop == "stop",
            _("Gives it up, so that the next task of its key starts. It stays failed."), needs_reason=True),
        "copy": of_task(
            "task.copy", _("Send a copy"), tasks.copy, is_kept,
            _("Sends it once more under a new id, with the same arguments and options, due now.")),
        "cancel": of_task(
            "task.cancel", _("Cancel"), cancel, lambda row: row.finished_at is None and row.cancel_requested_at is None,
            _("If it waits, it never runs. If it runs, it is asked to stop."), button=_("Cancel the task")),
        "kill": of_task(
            "task.terminate", _("Kill"), partial(cancel, terminate=True), lambda row: is_held(row) and not row.terminate,
            _("It is asked to stop. If it does not, its process is killed.")),
        "redact": of_task(
            "task.redact", _("Redact"), redact, is_kept,
            _("Removes its arguments, its result, its steps and its messages for good. The reason must not"
              " contain personal data."),
            permissions=(OPERATE, PAYLOAD), needs_reason=True),
    },
}  # fmt: skip
