"""Reads the facts of an explanation, which are JSON values from the database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from horsies_django.core.queues import CLUSTER

Facts = Mapping[str, Any]


def pick(facts: Facts, *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in names}


def moment(text: str | dt.datetime) -> dt.datetime:
    return text if isinstance(text, dt.datetime) else dt.datetime.fromisoformat(text)


def at_limit(room: int | None) -> bool:
    """Whether a limit leaves no permits; None means no limit."""
    return room is not None and room <= 0


def worker_name(facts: Facts) -> str:
    """Return the name of a worker, or its id if its row was deleted."""
    return f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])


def level_name(row: Facts) -> str:
    """Return the name of a queue or of the whole cluster, for the start of a sentence."""
    return "The whole cluster" if row["name"] == CLUSTER else f"The queue {row['name']!r}"


def clock_time(when: str | dt.datetime, now: dt.datetime, zone: dt.tzinfo) -> str:
    """Return a datetime as text in a time zone, without the date if it is today."""
    told, today = (moment(one).astimezone(zone) for one in (when, now))
    return f"{told:%H:%M:%S}" if told.date() == today.date() else f"{told:%Y-%m-%d %H:%M:%S}"
