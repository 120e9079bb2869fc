"""Processes that wait for results. Workers notify of finished tasks only while there is such a row."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Waiter(models.Model):
    """A process that listens for finished tasks until ``expires_at``."""

    id = models.UUIDField(primary_key=True, editable=False)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        db_table = "horsies_waiters"
        verbose_name = _("waiter")
        verbose_name_plural = _("waiters")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.pk)
