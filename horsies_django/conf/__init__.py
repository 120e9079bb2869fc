"""The settings in ``settings.HORSIES``, as one frozen value or as a list of all problems.

The running code calls ``config``, and the system checks call ``read_settings``. Both use
``parse_settings``, which does not depend on Django's settings. Problems have the ids of the system
checks, which ``docs/reference/checks.md`` explains.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.dispatch import receiver

from horsies_django.conf.parsing import parse_settings
from horsies_django.conf.section import SettingProblem
from horsies_django.conf.values import (
    DEFAULT_QUEUE,
    LARGEST_LIMIT,
    RANGES,
    Config,
    PartitionConfig,
    QueueConfig,
    Recovery,
    Resilience,
    Retention,
)

__all__ = [
    "DEFAULT_QUEUE",
    "LARGEST_LIMIT",
    "RANGES",
    "Config",
    "PartitionConfig",
    "SettingProblem",
    "QueueConfig",
    "Recovery",
    "Resilience",
    "Retention",
    "config",
    "parse_settings",
    "read_settings",
]


@functools.cache
def config() -> Config:
    """Return the settings.

    Raises ImproperlyConfigured, which lists all problems, if a setting is invalid.
    """
    found, problems = read_settings()
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ImproperlyConfigured(
            "\n".join([f"settings.HORSIES has {count}:", *(f"- {p}" for p in problems)])
        )

    return found


@receiver(setting_changed, dispatch_uid="horsies_config")
def _clear_config(*, setting: str, **kwargs: Any) -> None:
    if setting in {"HORSIES", "DATABASES"}:
        config.cache_clear()


def read_settings() -> tuple[Config, list[SettingProblem]]:
    """Return the settings and their problems.

    The engines of the databases are checked too, but no connection is opened.
    """
    found, problems = parse_settings(getattr(settings, "HORSIES", {}), databases=settings.DATABASES)
    return found, problems + _backend_problems(found, {problem.where for problem in problems})


def _backend_problems(found: Config, broken: Collection[str]) -> list[SettingProblem]:
    """Return the problems with the engines of the aliases.

    Settings in ``broken`` are skipped, because they do not name a valid alias.
    """
    problems = []
    for key, alias in (("DATABASE", found.database), ("LISTEN_DATABASE", found.listen_database)):
        where = f"HORSIES['{key}']"
        if alias is None or where in broken:
            continue

        if connections[alias].vendor != "postgresql":
            engine = connections.settings[alias]["ENGINE"]
            message = f"The database {alias!r} uses {engine}, which is not PostgreSQL."
            problems.append(
                SettingProblem("E008", message, "Use an alias whose ENGINE is PostgreSQL.", where)
            )
            continue

        # Imported here, because the import raises an error if psycopg is not installed, which only
        # an alias of PostgreSQL needs.
        from django.db.backends.postgresql import psycopg_any

        if not psycopg_any.is_psycopg3:
            message = (
                f"Django uses psycopg2 for the database {alias!r}, because psycopg 3 cannot be "
                "imported."
            )
            hint = "Install psycopg 3 with its library: pip install 'psycopg[binary]'."
            problems.append(SettingProblem("E009", message, hint, where))

    return problems
