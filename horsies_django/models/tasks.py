"""Tasks and their attempts.

Two conditions define what workers may do with a row. A row is *claimable* if no worker owns it and
it has not finished, and *in flight* if a worker owns it and it has not finished. Partial indexes
contain only these rows, so neither history nor backlog slows a claim or a count. Two triggers tie
``status`` to the same columns, so the indexes always agree with it. They check each new row, and
changes that were not made by a pass.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Least, Now
from django.utils.translation import gettext_lazy as _

from horsies_django.core.status import Status
from horsies_django.models.fields import KeptJSON, Moment, StoredJSON

PENDING = Q(claimed_by__isnull=True, finished_at__isnull=True)  # claimable
IN_FLIGHT = Q(claimed_by__isnull=False, finished_at__isnull=True)
IS_FINISHED = Q(finished_at__isnull=False)
UNADVANCED = Q(workflow_id__isnull=False, finished_at__isnull=False, advanced_at__isnull=True)
IN_ORDER = Q(Q(finished_at__isnull=True) | Q(order_stop__isnull=False), ordered=True)
BEGUN = Least(F("claim_generation"), 1)
NOT_COMPLETED = Q(error_code__isnull=False, finished_at__isnull=False)


class ReadOnlyRow(models.Model):
    """A row that only the statements of the store write.

    To save a stale object would undo changes by workers.
    """

    class Meta:
        abstract = True
        default_permissions = ()  # for the models whose Meta extends this one

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError, because rows are not saved."""
        self._refuse("save")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError, because rows are not deleted by the ORM."""
        self._refuse("delete")

    def _refuse(self, by: str) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} rows cannot be changed by {by}(). Use the functions, handles and commands of "
            "horsies_django"
        )


class Task(ReadOnlyRow):
    """A task."""

    id = models.UUIDField(primary_key=True, editable=False)
    task_name = models.CharField(_("name"), max_length=255)
    queue_name = models.CharField(_("queue"), max_length=100)
    lane = models.CharField(_("lane"), max_length=5)
    priority = models.SmallIntegerField(_("priority"), default=100, db_default=100)
    kwargs = KeptJSON(_("arguments"))
    codec = models.CharField(_("form of the arguments"), max_length=10, null=True)  # noqa: DJ001 - NULL: by name
    options = StoredJSON(_("options"), null=True)
    status = models.CharField(
        _("status"), max_length=10, default=Status.PENDING.value, db_default=Status.PENDING.value
    )
    partition_key = models.TextField(_("partition"), null=True)  # noqa: DJ001 - NULL: no partition
    partition_version = models.IntegerField(_("version of the partition rule"), null=True)
    parked = models.BooleanField(_("parked"), default=False, db_default=False)
    ordered = models.BooleanField(_("ordered"), null=True)
    order_stop = models.CharField(_("stops its partition"), max_length=10, null=True)  # noqa: DJ001 - NULL: it does not
    sent_at = models.DateTimeField(_("sent"), db_default=Now())
    enqueued_at = Moment(_("eligible from"), db_default=Now())
    good_until = models.DateTimeField(_("good until"), null=True)
    claimed_at = Moment(_("claimed"), null=True)
    claimed_by = models.UUIDField(_("worker"), null=True)
    claim_generation = models.IntegerField(_("claim generation"), default=0, db_default=0)
    claim_expires_at = Moment(_("lease ends"), null=True)
    started_at = Moment(_("started"), null=True)
    finished_at = Moment(_("finished"), null=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested"), null=True)
    terminate = models.BooleanField(_("to be terminated"), default=False, db_default=False)
    retry_count = models.SmallIntegerField(_("retries"), default=0, db_default=0)
    max_retries = models.SmallIntegerField(_("retries allowed"), default=0, db_default=0)
    snooze_count = models.SmallIntegerField(_("snoozes"), null=True)
    attempts_before = models.SmallIntegerField(_("attempts before a manual retry"), null=True)
    next_retry_at = Moment(_("next retry"), null=True)
    result = KeptJSON(_("result"), null=True)
    error_code = models.CharField(_("error code"), max_length=100, null=True)  # noqa: DJ001 - NULL: no error
    redacted_at = models.DateTimeField(_("redacted"), null=True)
    copy_of = models.UUIDField(_("copy of"), null=True)
    merged_into = models.UUIDField(_("merged into"), null=True)
    workflow_id = models.UUIDField(_("workflow"), null=True)
    node = models.BigIntegerField(_("node"), null=True)
    node_index = models.IntegerField(_("element"), null=True)
    advanced_at = Moment(_("workflow advanced"), null=True)

    class Meta:
        db_table = "horsies_tasks"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ("view",)
        permissions = (
            ("operate_task", _("Can retry, cancel and delete tasks")),
            ("view_payload", _("Can see arguments, results and tracebacks of tasks")),
        )
        indexes = (
            models.Index(
                F("queue_name"),
                F("lane"),
                F("priority"),
                F("enqueued_at"),
                F("id"),
                condition=PENDING & Q(parked=False),
                name="horsies_tasks_claim",
            ),
            models.Index(
                F("queue_name"),
                F("partition_version"),
                F("partition_key"),
                F("claimed_at"),
                condition=IN_FLIGHT,
                name="horsies_tasks_holding",
            ),
            models.Index(
                F("queue_name"),
                F("partition_key"),
                F("lane"),
                F("priority"),
                F("enqueued_at"),
                F("id"),
                condition=PENDING & Q(parked=True),
                name="horsies_tasks_parked",
            ),
            models.Index(
                F("good_until"),
                condition=PENDING & Q(good_until__isnull=False),
                name="horsies_tasks_deadline",
            ),
            models.Index(F("finished_at"), condition=IS_FINISHED, name="horsies_tasks_finished"),
            models.Index(
                F("finished_at"), condition=NOT_COMPLETED, name="horsies_tasks_unsuccessful"
            ),
            models.Index(
                F("copy_of"), condition=Q(copy_of__isnull=False), name="horsies_tasks_copies"
            ),
            models.Index(F("finished_at"), condition=UNADVANCED, name="horsies_tasks_unadvanced"),
            models.Index(
                F("queue_name"),
                F("partition_key"),
                BEGUN.desc(),
                F("sent_at"),
                F("id"),
                condition=IN_ORDER,
                name="horsies_tasks_order",
            ),
            models.Index(
                F("queue_name"),
                F("finished_at"),
                condition=Q(order_stop__isnull=False),
                name="horsies_tasks_stopped",
            ),
            models.Index(
                F("merged_into"),
                condition=Q(merged_into__isnull=False),
                name="horsies_tasks_merged",
            ),
        )
        constraints = (  # tasks that were replaced have NULL as node, which is never a duplicate
            models.UniqueConstraint(
                fields=["workflow_id", "node", "node_index"],
                condition=Q(workflow_id__isnull=False),
                name="horsies_tasks_node",
            ),
        )

    def __str__(self) -> str:
        return f"{self.task_name} {self.pk}"


class TaskAttempt(ReadOnlyRow):
    """One finished attempt of a task, by the claim under which it ran, or a task's last snooze.

    The statement that settles the attempt writes the row.
    """

    pk = models.CompositePrimaryKey("task_id", "claim_generation")
    task_id = models.UUIDField(_("task"))
    attempt = models.SmallIntegerField(_("attempt"))
    claim_generation = models.IntegerField(_("claim generation"))
    outcome = models.CharField(_("outcome"), max_length=14)
    will_retry = models.BooleanField(_("will be retried"), default=False, db_default=False)
    started_at = Moment(_("started"))
    finished_at = Moment(_("finished"))
    error_code = models.CharField(_("error code"), max_length=100, null=True)  # noqa: DJ001 - NULL: no error
    error_message = models.TextField(_("error message"), null=True)  # noqa: DJ001 - NULL: no error
    exception_class = models.TextField(_("exception"), null=True)  # noqa: DJ001 - NULL: no exception
    traceback = models.TextField(_("traceback"), null=True)  # noqa: DJ001 - NULL: no exception
    site = models.TextField(_("where it failed"), null=True)  # noqa: DJ001 - NULL: not in code of the project
    site_line = models.IntegerField(_("line"), null=True)
    worker_id = models.UUIDField(_("worker"), null=True)
    child_pid = models.IntegerField(_("process"), null=True)

    class Meta:
        db_table = "horsies_task_attempts"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.task_id} #{self.attempt}"


class SendKey(ReadOnlyRow):
    """A digest that makes a send unique, and the task that was sent.

    A task that is sent with a key has a digest of its name and key, and another one of its
    arguments. A unique task has one digest, of its name and the arguments that make it unique.
    """

    digest = models.BinaryField(_("digest"), primary_key=True)
    task_id = models.UUIDField(_("task"))
    arguments = models.BinaryField(_("digest of the arguments"), null=True)
    sent_at = models.DateTimeField(_("sent"))

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_send_keys"
        verbose_name = _("task key")
        verbose_name_plural = _("task keys")
        indexes = (
            models.Index(
                "task_id", condition=Q(arguments__isnull=False), name="horsies_send_keys_task"
            ),
            models.Index(
                "sent_at", condition=Q(arguments__isnull=False), name="horsies_send_keys_sent"
            ),
        )

    def __str__(self) -> str:
        return str(self.task_id)


class TaskStep(ReadOnlyRow):
    """A recorded step of a task. It is written by the attempt that ran it, and never updated."""

    pk = models.CompositePrimaryKey("task_id", "name")
    task_id = models.UUIDField(_("task"))
    name = models.CharField(_("name"), max_length=200)
    digest = models.CharField(_("digest of the arguments"), max_length=32)
    result = StoredJSON(_("result"))
    created_at = models.DateTimeField(_("recorded"), db_default=Now())

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_task_steps"
        verbose_name = _("step")
        verbose_name_plural = _("steps")

    def __str__(self) -> str:
        return self.name
