"""Adds the forms that override, clear, pause and resume a queue; they need ``horsies.configure_queue``."""

from __future__ import annotations

from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeMixin, Words
from horsies_django.admin.base.history import OF_QUEUES
from horsies_django.admin.queues.queue_forms import FORMS
from horsies_django.models import Queue


class ConfigureMixin(ChangeMixin):
    """Adds the change forms of a queue to its page."""

    change_forms = FORMS
    subjects = OF_QUEUES
    words = Words(
        gettext_lazy("There is no queue “%(name)s”."),
        gettext_lazy("Queue %(name)s: nothing was changed, because it already has these values."),
        gettext_lazy("Queue %(name)s: %(did)s."),
        gettext_lazy(
            "While the form was open, %(actor)s also changed queue %(name)s: %(did)s. The last change applies."
        ),
    )

    def verbs(self, row: Queue) -> list[str]:
        """Return override, clear, and pause or resume."""
        return ["override"] + ["clear"] * (row.override is not None) + ["resume" if row.paused_at else "pause"]
