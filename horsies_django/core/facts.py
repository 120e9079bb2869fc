"""How the facts of an explanation are read and named; they are values of JSON, as the database gives them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from horsies_django.core.queues import CLUSTER

Facts = Mapping[str, Any]


def pick(facts: Facts, *names: str) -> dict[str, Any]:
    """Return some of the facts."""
    return {name: facts[name] for name in names}


def moment(text: str | dt.datetime) -> dt.datetime:
    """Return a moment as JSON has it."""
    return text if isinstance(text, dt.datetime) else dt.datetime.fromisoformat(text)


def at_limit(room: int | None) -> bool:
    """Whether there is a limit and no room under it."""
    return room is not None and room <= 0


def worker_name(facts: Facts) -> str:
    """Name a worker; one whose row is gone by its id."""
    return f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])


def level_name(row: Facts) -> str:
    """Name a queue, or the whole cluster, at the start of a sentence."""
    return "The whole cluster" if row["name"] == CLUSTER else f"The queue {row['name']!r}"
