"""The backends of the suites for the backport."""

from __future__ import annotations

from conformance.kinds import InlineMixin, ServedMixin

from horsies_django.backends.backport import HorsiesBackend as Queued


class Inline(InlineMixin, Queued):
    """Runs a task as soon as it is sent."""


class Served(ServedMixin, Queued):
    """Waits for a worker."""


__all__ = ["Inline", "Queued", "Served"]
