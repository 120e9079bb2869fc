"""How far retention came: one row for each set of queues whose finished tasks are kept equally long."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Pruning(models.Model):
    """How far the finished tasks of some queues were looked at; the next round goes on there, not at the start of history.

    ``key`` stands for the set of queues: another set starts anew. ``left_at``: somebody held a task of that moment, so the next
    round starts just before it.
    """

    key = models.CharField(_("queues"), max_length=100, primary_key=True)
    reached_at = models.DateTimeField(_("reached"), null=True)
    left_at = models.DateTimeField(_("left behind"), null=True)
    began_at = models.DateTimeField(_("began"), db_default=Now())
    pruned_at = models.DateTimeField(_("last round"), db_default=Now())

    class Meta:
        db_table = "horsies_prunings"
        verbose_name = _("pruning")
        verbose_name_plural = _("prunings")
        default_permissions = ()

    def __str__(self) -> str:
        return self.key
