"""The pages that change a queue: override, clear, pause, resume; each a form, for those with ``horsies.configure_queue``."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeMixin, Tool, Words
from horsies_django.admin.base.history import OF_QUEUES
from horsies_django.admin.queues.queue_forms import FORMS
from horsies_django.models import Queue


class ConfigureMixin(ChangeMixin):
    """The forms of a queue, beside its page."""

    change_forms = FORMS
    subjects = OF_QUEUES
    words = Words(
        gettext_lazy("There is no queue “%(name)s”."),
        gettext_lazy("Queue %(name)s: nothing to change, it is so already."),
        gettext_lazy("Queue %(name)s: %(did)s."),
        gettext_lazy(
            "While the form was open, %(actor)s changed queue %(name)s too: %(did)s. What was written last holds."
        ),
    )

    def tools(self, request: HttpRequest, queue: Queue) -> list[Tool]:
        """Return the forms that this user may open for the queue as it stands."""
        if not self.has_configure_permission(request):
            return []
        verbs = ["override"] + ["clear"] * (queue.override is not None) + ["resume" if queue.paused_at else "pause"]
        return [self.tool(verb, queue) for verb in verbs]
