"""``settings.HORSIES`` as one frozen value, or all its problems at once.

One parser serves the running code (``config``), the system checks (``read``) and the tests (``parse``, which is pure).
The ids of problems are those of the system checks; ``checks.IDS`` lists them all.
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

from horsies_django.conf.parsing import parse
from horsies_django.conf.section import Problem
from horsies_django.conf.values import (
    DEFAULT_QUEUE,
    LARGEST_LIMIT,
    MODES,
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
    "MODES",
    "RANGES",
    "Config",
    "PartitionConfig",
    "Problem",
    "QueueConfig",
    "Recovery",
    "Resilience",
    "Retention",
    "config",
    "parse",
    "read",
]


@functools.cache
def config() -> Config:
    """Return the settings. Raises ImproperlyConfigured, which names every problem at once."""
    found, problems = read()
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ImproperlyConfigured("\n".join([f"settings.HORSIES has {count}:", *(f"- {p}" for p in problems)]))
    return found


@receiver(setting_changed, dispatch_uid="horsies_config")
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"HORSIES", "DATABASES"}:
        config.cache_clear()


def read() -> tuple[Config, list[Problem]]:
    """Read the settings as they are now, and see what their databases are; connects to none of them."""
    found, problems = parse(getattr(settings, "HORSIES", {}), databases=settings.DATABASES)
    return found, problems + _backend_problems(found, {problem.where for problem in problems})


def _backend_problems(found: Config, broken: Collection[str]) -> list[Problem]:
    """Return what is wrong with the engines of the aliases, but for those in ``broken``: they name no alias at all."""
    problems = []
    for key, alias in (("DATABASE", found.database), ("LISTEN_DATABASE", found.listen_database)):
        where = f"HORSIES['{key}']"
        if alias is None or where in broken:
            continue
        if connections[alias].vendor != "postgresql":
            engine = connections.settings[alias]["ENGINE"]
            message = f"The database {alias!r} is not PostgreSQL but {engine}."
            problems.append(Problem("E008", message, "Name an alias whose ENGINE is PostgreSQL's.", where))
            continue
        # Imported late: without any psycopg this module of Django's raises, and only an alias of PostgreSQL needs one.
        from django.db.backends.postgresql import psycopg_any

        if not psycopg_any.is_psycopg3:
            message = f"Django runs the database {alias!r} on psycopg2, because it could not import psycopg 3."
            hint = "Install it with its library: pip install 'psycopg[binary]'."
            problems.append(Problem("E009", message, hint, where))
    return problems
