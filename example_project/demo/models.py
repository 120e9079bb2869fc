"""The table in which a task that waits to be killed stores the process that runs it."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Hold(models.Model):
    """A running ``hold`` task."""

    token = models.UUIDField(_("token"), primary_key=True)
    pid = models.IntegerField(_("process"))
    began_at = models.DateTimeField(_("began"), db_default=Now())

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")

    def __str__(self) -> str:
        return f"{self.token} in process {self.pid}"
