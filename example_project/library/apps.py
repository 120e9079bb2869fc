"""The library as a Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LibraryConfig(AppConfig):
    """The app, which connects the receiver that sends the indexing of saved documents."""

    name = "example_project.library"
    verbose_name = _("Document library")

    def ready(self) -> None:
        from example_project.library import signals  # noqa: F401 - its decorator connects the receiver
