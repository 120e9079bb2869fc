"""Schedules: their declarations, the changes of users, their progress, and the fire times sent."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, JSONField, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from horsies_django.models.fields import StoredJSON
from horsies_django.models.tasks import ReadOnlyRow


class Schedule(ReadOnlyRow):
    """A schedule of a task.

    ``definition`` is the one in force: the declaration in the code, overridden by the changes of
    users. A schedule that was created in the admin has only changes. The keys are those of
    ``horsies_django.schedules.ScheduleConfig``.
    """

    name = models.CharField(_("name"), max_length=255, primary_key=True)
    declared = StoredJSON(_("declared"), db_default=Value({}, JSONField()))
    declared_in = models.TextField(_("declared in"), null=True)  # noqa: DJ001 - NULL: created in the admin
    # The time when a scheduler last had it in its code.
    declared_at = models.DateTimeField(_("last declared"), null=True)
    gone_at = models.DateTimeField(_("gone from the code"), null=True)
    changes = StoredJSON(_("changes"), db_default=Value({}, JSONField()))
    # Fire times before this time do not count.
    since = models.DateTimeField(_("in force since"), db_default=Now())
    last_fire_at = models.DateTimeField(_("last fire time"), null=True)
    next_fire_at = models.DateTimeField(_("next fire time"), null=True)
    next_at = models.DateTimeField(_("next check"), null=True)  # NULL: it will not fire
    # The version of the rules that computed next_fire_at.
    rules = models.SmallIntegerField(_("rules"), null=True)
    error = models.TextField(_("error"), null=True)  # noqa: DJ001 - NULL: the last task was sent
    error_at = models.DateTimeField(_("error at"), null=True)
    # The time when a scheduler last found missed fire times.
    missed_at = models.DateTimeField(_("missed fire times at"), null=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    updated_at = models.DateTimeField(_("updated"), db_default=Now())

    class Meta:
        db_table = "horsies_schedules"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        default_permissions = ("view",)
        indexes = (
            models.Index(
                F("next_at"), condition=Q(next_at__isnull=False), name="horsies_schedules_next"
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def definition(self) -> dict[str, Any]:
        """The definition in force."""
        return {**self.declared, **self.changes}


class ScheduleTick(ReadOnlyRow):
    """A fire time that was skipped, or that was sent, with its task.

    The primary key ensures that at most one task is sent for a fire time.
    """

    pk = models.CompositePrimaryKey("schedule_name", "fire_at")
    schedule_name = models.CharField(_("schedule"), max_length=255)
    fire_at = models.DateTimeField(_("fire time"))
    task_id = models.UUIDField(_("task"), null=True)  # NULL: skipped
    # The earlier task that had not finished.
    skipped_for = models.UUIDField(_("skipped because of task"), null=True)
    sent_at = models.DateTimeField(_("sent"), db_default=Now())

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_schedule_ticks"
        verbose_name = _("fire time")
        verbose_name_plural = _("fire times")
        indexes = (models.Index(F("sent_at"), name="horsies_schedule_ticks_sent"),)

    def __str__(self) -> str:
        return f"{self.schedule_name} {self.fire_at}"
