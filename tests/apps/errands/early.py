"""An app that imports tasks of ``django.tasks`` before any model exists."""

from __future__ import annotations

from django.apps import AppConfig

from tests.apps.errands import elsewhere


class Early(AppConfig):
    """An app whose configuration imports tasks."""

    name = "tests.apps.errands"
    defined = elsewhere.far_away.name
