"""Adds the forms that override, clear, pause and resume a queue; they need ``horsies.configure_queue``."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeMixin, Tool, Words
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

    def tools(self, request: HttpRequest, queue: Queue) -> list[Tool]:
        """Return links to the forms that apply to the queue and that this user may open."""
        if not self.has_configure_permission(request):
            return []
        verbs = ["override"] + ["clear"] * (queue.override is not None) + ["resume" if queue.paused_at else "pause"]
        return [self.tool(verb, queue) for verb in verbs]
