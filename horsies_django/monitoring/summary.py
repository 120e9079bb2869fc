"""What the overview of the admin shows: the state, what is wrong with it, and what was counted in the last hour, day or week."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from horsies_django.conf import config
from horsies_django.monitoring.health import Health, Problem, examine, problems
from horsies_django.monitoring.history import Step, series
from horsies_django.monitoring.reading import Cached, connected
from horsies_django.store.base import Connection, said
from horsies_django.store.health import HealthStore, WaitingGates
from horsies_django.store.history import Failures, HistoryStore

logger = logging.getLogger("horsies.admin")

# What is looked at, and in how many steps
SPANS = {"hour": (dt.timedelta(hours=1), 60), "day": (dt.timedelta(days=1), 24), "week": (dt.timedelta(days=7), 56)}
MOST_FAILURES = 10


class Summary(NamedTuple):
    """The state; ``steps`` by queue, ``failures`` the largest groups. If it is not complete, only the problems are known."""

    health: Health
    problems: list[Problem]
    steps: dict[str, list[Step]]
    failures: list[Failures]
    gates: list[WaitingGates]


def summary(connection: Connection, span: str) -> Summary:
    """Read what is to be shown of a span (a key of ``SPANS``), in autocommit mode. Raises the errors of the driver."""
    health, (length, points) = examine(connection), SPANS[span]
    found = Summary(health, problems(health), {}, [], [])
    if not health.complete:
        return found
    steps, failures = summaries.read(  # workers add to it once a minute
        f"history of {span}",
        lambda: (series(connection, length, points), HistoryStore(connection).failures(length, MOST_FAILURES)),
        seconds=60.0,
    )
    return found._replace(steps=steps, failures=failures, gates=HealthStore(connection).waiting_gates())


summaries: Cached[Any] = Cached()


def read(span: str) -> Summary | DatabaseError:
    """Return the summary, or why the database refused; both five seconds old at most, and what was counted a minute."""

    def make() -> Summary | DatabaseError:
        try:
            with connections[config().database].wrap_database_errors, connected() as connection:
                return summary(connection, span)
        except DatabaseError as error:
            logger.warning("the database refused to show the overview: %s", said(error))
            return error

    found: Summary | DatabaseError = summaries.read(span, make)
    return found
