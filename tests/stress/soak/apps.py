"""The app of a soak, whose rows are kept for minutes; the settings take whole hours only.

So one hour prunes as often as weeks do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.apps import AppConfig

from horsies_django import conf

KINDS = ("terminal_record", "worker_state", "worker", "audit")
KEPT: dict[str, Any] = {f"{kind}_retention_hours": 120 / 3600 for kind in KINDS}  # 120 seconds


class SoakConfig(AppConfig):
    """The app's config with shorter retentions than the settings allow."""

    name = "tests.stress.soak"

    def ready(self) -> None:
        """Set the same short retention for every kind of row."""
        parse = conf.parse_settings

        def shortened(
            given: Any, *, databases: Mapping[str, Any]
        ) -> tuple[conf.Config, list[conf.SettingProblem]]:
            found, problems = parse(given, databases=databases)
            return replace(found, retention=replace(found.retention, **KEPT)), problems

        conf.parse_settings = shortened
        conf.config.cache_clear()
