"""What the overview of the admin shows: the state, what is wrong with it, and what was counted in the last hour, day or week."""

from __future__ import annotations

import datetime as dt
import logging
from typing import NamedTuple

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
    counted = HistoryStore(connection).failures(length, MOST_FAILURES)
    gates = HealthStore(connection).waiting_gates()
    return found._replace(steps=series(connection, length, points), failures=counted, gates=gates)


summaries: Cached[Summary | DatabaseError] = Cached()


def read(span: str) -> Summary | DatabaseError:
    """Return the summary, or why the database refused; five seconds old at most, so that who waits does not ask again."""

    def make() -> Summary | DatabaseError:
        try:
            with connections[config().database].wrap_database_errors, connected() as connection:
                return summary(connection, span)
        except DatabaseError as error:
            logger.warning("the database refused to show the overview: %s", said(error))
            return error

    return summaries.read(span, make)
