"""The demo as a Django app, because it has tasks and a table of its own."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DemoConfig(AppConfig):
    """The app of the demo, which connects nothing."""

    name = "example_project.demo"
    verbose_name = _("Demo")
