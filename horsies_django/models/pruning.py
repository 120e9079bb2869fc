"""The progress of retention: one row per set of queues whose finished tasks are kept equally long."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Pruning(models.Model):
    """How far the finished tasks of a set of queues were pruned; the next round continues there.

    ``key`` identifies the set of queues: a different set starts at the beginning. ``left_at`` is set if a task that finished then
    was locked and is still to be deleted, so the next round starts just before it.
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
