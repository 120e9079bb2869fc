"""Queues as rows: what the settings declare."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """A queue and its declared priority (1 is served first)."""

    name = models.CharField(_("name"), max_length=100, primary_key=True)
    priority = models.SmallIntegerField(_("priority"), default=100, db_default=100)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    updated_at = models.DateTimeField(_("updated"), db_default=Now())

    class Meta:
        db_table = "horsies_queues"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = (("configure_queue", _("Can change limits, pause queues and edit schedules")),)
        constraints = (models.CheckConstraint(condition=Q(priority__range=(1, 100)), name="horsies_queues_priority"),)

    def __str__(self) -> str:
        return self.name
