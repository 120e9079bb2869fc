"""The history: what the workers have counted, by the minute and by the hour."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from horsies_django.models.fields import IntegerArray
from horsies_django.models.tasks import ReadOnlyRow


class History(ReadOnlyRow):
    """How often a result of a task occurred in the minute or hour (``width``, in seconds) that begins ``at``.

    For the results, and what the durations are, see ``horsies_django.core.counts``.
    """

    pk = models.CompositePrimaryKey("width", "at", "queue", "task", "result")
    width = models.IntegerField(_("width"))
    at = models.DateTimeField(_("begin"))
    queue = models.CharField(_("queue"), max_length=100)
    task = models.CharField(_("name"), max_length=255)
    result = models.CharField(_("result"), max_length=100)
    n = models.IntegerField(_("number"))
    seconds = models.FloatField(_("seconds in all"))
    buckets = IntegerArray(_("histogram"))

    class Meta:
        db_table = "horsies_history"
        verbose_name = _("history")
        verbose_name_plural = _("history")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.task} {self.result} {self.at}"
