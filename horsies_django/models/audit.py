"""The audit of changes, with actor and reason, and a table for audit entries that were lost."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from horsies_django.models.fields import StoredJSON


class AuditEntry(models.Model):
    """One change by a user, a command or the settings.

    It is written in the transaction of the change, and never updated.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    at = models.DateTimeField(_("at"), db_default=Now())
    actor = models.TextField(_("by"))
    action = models.CharField(_("action"), max_length=50)
    subject = models.TextField(_("subject"))
    reason = models.TextField(_("reason"), null=True)  # noqa: DJ001 - NULL: no reason was given
    before = StoredJSON(_("before"), null=True)
    after = StoredJSON(_("after"), null=True)

    class Meta:
        db_table = "horsies_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit")
        default_permissions = ("view",)
        indexes = (models.Index(fields=["subject", "-at"], name="horsies_audit_subject"),)

    def __str__(self) -> str:
        return f"{self.action} {self.subject}"


class LostRecord(models.Model):
    """The last audit entry ("audit") or snapshot of a worker ("snapshot") that was lost.

    ``what`` names the entry or the worker, and ``error`` is the reason.
    """

    kind = models.CharField(_("kind"), max_length=10, primary_key=True)
    at = models.DateTimeField(_("at"))
    what = models.TextField(_("name"))
    error = models.TextField(_("error"))

    class Meta:
        db_table = "horsies_lost_records"
        verbose_name = _("lost record")
        verbose_name_plural = _("lost records")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"
