"""Rows are kept for minutes, so that an hour prunes as much as weeks do; the settings take whole hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.apps import AppConfig

from horsies_django import conf

KEPT_SECONDS = 120
KINDS = ("terminal_record", "worker_state", "worker", "audit")


class SoakConfig(AppConfig):
    """Shortens what was parsed."""

    name = "tests.stress.soak"

    def ready(self) -> None:
        """Give every kind of row the same short retention."""
        parse = conf.parse
        kept: dict[str, Any] = {f"{kind}_retention_hours": KEPT_SECONDS / 3600 for kind in KINDS}

        def shortened(given: Any, *, databases: Mapping[str, Any]) -> tuple[conf.Config, list[conf.Problem]]:
            found, problems = parse(given, databases=databases)
            return replace(found, retention=replace(found.retention, **kept)), problems

        conf.parse = shortened
        conf.config.cache_clear()
