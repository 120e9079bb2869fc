"""Queues: declared limits, overrides, the limits in force, and the progress of pruning."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from horsies_django.core.queues import CLUSTER
from horsies_django.models.fields import StoredJSON


class Limits(models.Model):
    """The columns of a queue's limits.

    NULL means no limit. A ``max_concurrency`` of 0 means that the queue is paused.
    """

    priority = models.SmallIntegerField(_("priority"), default=100, db_default=100)
    max_concurrency = models.IntegerField(_("concurrency"), null=True)
    local_limit = models.IntegerField(_("concurrency per worker"), null=True)
    partition_by_args = StoredJSON(_("partition by arguments"), null=True)
    partition_by_task = models.BooleanField(_("partition by task"), default=False, db_default=False)
    partition_version = models.IntegerField(
        _("version of the partition rule"), default=0, db_default=0
    )
    partition_max_concurrency = models.IntegerField(_("concurrency per partition"), null=True)
    partition_local_limit = models.IntegerField(
        _("concurrency per partition and worker"), null=True
    )
    partition_policy = models.CharField(_("policy of partitions"), max_length=10, null=True)  # noqa: DJ001 - NULL: none

    class Meta:
        abstract = True


class Queue(Limits):
    """A queue with its declared limits, its override and its pause.

    The row with the name ``*`` is the whole cluster.
    """

    name = models.CharField(_("name"), max_length=100, primary_key=True)
    override = StoredJSON(_("override"), null=True)
    override_by = models.TextField(_("overridden by"), null=True)  # noqa: DJ001 - NULL: no override
    override_reason = models.TextField(_("reason"), null=True)  # noqa: DJ001 - NULL: no override
    override_at = models.DateTimeField(_("overridden"), null=True)
    override_until = models.DateTimeField(_("override ends"), null=True)
    paused_at = models.DateTimeField(_("paused"), null=True)
    paused_by = models.TextField(_("paused by"), null=True)  # noqa: DJ001 - NULL: not paused
    paused_reason = models.TextField(_("reason for the pause"), null=True)  # noqa: DJ001 - NULL: not paused
    # The progress of applying changed limits to waiting tasks, NULL if it is done.
    sweep = StoredJSON(_("sweep"), null=True)
    served_at = models.DateTimeField(_("last served"), null=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    updated_at = models.DateTimeField(_("updated"), db_default=Now())

    class Meta:
        db_table = "horsies_queues"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = (
            ("configure_queue", _("Can change limits, pause queues and edit schedules")),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(priority__range=(1, 100)), name="horsies_queues_priority"
            ),
            models.CheckConstraint(
                condition=Q(
                    override__isnull=True, override_at__isnull=True, override_until__isnull=True
                )
                | Q(
                    override__isnull=False, override_at__isnull=False, override_reason__isnull=False
                ),
                name="horsies_queues_override",
            ),
        )

    def __str__(self) -> str:
        return str(_("the whole cluster")) if self.name == CLUSTER else self.name


class QueueLimits(Limits):
    """The limits in force for a queue, from its declaration or its override.

    ``max_concurrency`` is 0 while the queue is paused. Every pass reads this table first, and every
    change locks it first, so a pass either ends before a change or obeys it. It is a separate table
    because senders, whose transactions may be long, read ``horsies_queues`` instead.
    """

    queue_name = models.CharField(_("queue"), max_length=100, primary_key=True)

    class Meta:
        db_table = "horsies_limits"
        verbose_name = _("limits in force")
        verbose_name_plural = _("limits in force")
        default_permissions = ()

    def __str__(self) -> str:
        return self.queue_name


class Pruning(models.Model):
    """How far the finished tasks of a set of queues were pruned. The next round continues there.

    ``key`` identifies the set of queues: a different set starts at the beginning. ``left_at`` is
    set if a task that finished at that time was locked and is still to be deleted, so the next
    round starts just before it. ``done_at`` is the time when nothing was left to delete.
    """

    key = models.CharField(_("queues"), max_length=100, primary_key=True)
    reached_at = models.DateTimeField(_("reached"), null=True)
    left_at = models.DateTimeField(_("left behind"), null=True)
    began_at = models.DateTimeField(_("began"), db_default=Now())
    pruned_at = models.DateTimeField(_("last round"), db_default=Now())
    done_at = models.DateTimeField(_("done"), db_default=Now())

    class Meta:
        db_table = "horsies_prunings"
        verbose_name = _("pruning")
        verbose_name_plural = _("prunings")
        default_permissions = ()

    def __str__(self) -> str:
        return self.key
