"""Explanations why a task or a node is not running.

An explanation consists of reasons with a code, a sentence and the facts. The facts are JSON values
from the database.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import visible

Facts = Mapping[str, Any]


class ReasonCode(enum.StrEnum):
    """The reasons why a task is not running, and its other states, the most decisive first."""

    FINISHED = "FINISHED"
    RUNNING = "RUNNING"
    CLAIMED_BY_SILENT_WORKER = "CLAIMED_BY_SILENT_WORKER"
    CLAIMED_WAITING = "CLAIMED_WAITING"
    EXPIRED = "EXPIRED"
    RUN_PAUSED = "RUN_PAUSED"
    RUN_ENDED = "RUN_ENDED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    NO_LIVE_WORKER = "NO_LIVE_WORKER"
    UNKNOWN_TASK_NAME = "UNKNOWN_TASK_NAME"
    NOT_DUE = "NOT_DUE"
    RETRY_WAITING = "RETRY_WAITING"
    SNOOZED = "SNOOZED"
    CLUSTER_AT_CAP = "CLUSTER_AT_CAP"
    QUEUE_AT_CAP = "QUEUE_AT_CAP"
    ORDER_PENDING = "ORDER_PENDING"
    BEHIND_IN_ORDER = "BEHIND_IN_ORDER"
    PARTITION_AT_LIMIT = "PARTITION_AT_LIMIT"
    WORKERS_AT_LOCAL_LIMIT = "WORKERS_AT_LOCAL_LIMIT"
    NO_FREE_SLOT = "NO_FREE_SLOT"
    BEHIND_OTHERS = "BEHIND_OTHERS"
    NEXT = "NEXT"


class NodeReasonCode(enum.StrEnum):
    """The reasons why a node is not running, and its other states, the most decisive first."""

    ENDED = "ENDED"
    SKIPPED_BY_HAND = "SKIPPED_BY_HAND"
    SKIPPED_ITSELF = "SKIPPED_ITSELF"
    TIMED_OUT = "TIMED_OUT"
    UPSTREAM_NOT_COMPLETED = "UPSTREAM_NOT_COMPLETED"
    CONDITION_FALSE = "CONDITION_FALSE"
    RUN_ENDED = "RUN_ENDED"
    RUN_PAUSED = "RUN_PAUSED"
    UNDO = "UNDO"
    WAITING_FOR_NODES = "WAITING_FOR_NODES"
    WAITING_FOR_TIME = "WAITING_FOR_TIME"
    WAITING_FOR_SIGNAL = "WAITING_FOR_SIGNAL"
    WAITING_FOR_DECISION = "WAITING_FOR_DECISION"
    NOT_ADMITTED = "NOT_ADMITTED"
    MAX_IN_FLIGHT = "MAX_IN_FLIGHT"
    NO_WORKER = "NO_WORKER"
    READY = "READY"
    MAP_RUNNING = "MAP_RUNNING"
    CHILD_RUN = "CHILD_RUN"
    TASK = "TASK"


class Reason(NamedTuple):
    """One reason, with its code, a sentence and the facts.

    The facts are JSON values, so ids and datetimes are strings.
    """

    code: ReasonCode | NodeReasonCode
    text: str
    details: dict[str, Any]


class Explanation(NamedTuple):
    """The explanation why a task is not running.

    It has at least one reason, the most decisive first. ``str()`` returns it as text.
    """

    task_id: uuid.UUID
    status: str
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        lines = (f"  {reason.code}: {visible(reason.text)}" for reason in self.reasons)
        return "\n".join([f"Task {self.task_id} is {self.status}.", *lines])


class NodeExplanation(NamedTuple):
    """The explanation why a node of a workflow is not running.

    It has at least one reason, the most decisive first. If the node has a task that has not
    finished, its reasons follow those of the node, and ``task_id`` is the id of that task.
    ``str()`` returns the explanation as text.
    """

    workflow_id: uuid.UUID
    number: int
    name: str
    status: str
    task_id: uuid.UUID | None
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        lines = (f"  {reason.code}: {visible(reason.text)}" for reason in self.reasons)
        return "\n".join(
            [
                f"Node {self.name!r} ({self.number}) of run {self.workflow_id} is {self.status}.",
                *lines,
            ]
        )


def pick(facts: Facts, *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in names}


EARLIEST_TIME = dt.datetime(2, 1, 2, tzinfo=dt.UTC)
LATEST_TIME = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)


def parse_time(text: str | dt.datetime) -> dt.datetime:
    """Return the datetime of a text that PostgreSQL has written in JSON.

    A time that Python cannot represent, such as infinity, becomes ``EARLIEST_TIME`` or
    ``LATEST_TIME``.
    """
    if isinstance(text, dt.datetime):
        return text
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return EARLIEST_TIME if text.startswith("-") or text.endswith("BC") else LATEST_TIME


def at_limit(room: int | None) -> bool:
    """Return whether a limit has no free permits. None means no limit."""
    return room is not None and room <= 0


def worker_name(facts: Facts) -> str:
    """Return the name of a worker, or its id if its row was deleted."""
    return f"{facts['hostname']}:{facts['pid']}" if facts["hostname"] else str(facts["worker_id"])


def level_name(row: Facts) -> str:
    """Return the name of a queue or of the whole cluster, for the beginning of a sentence."""
    return "The whole cluster" if row["name"] == CLUSTER else f"The queue {row['name']!r}"


def clock_time(when: str | dt.datetime, now: dt.datetime, zone: dt.tzinfo) -> str:
    """Return a datetime as text in a time zone, without the date if it is today."""
    local, today = (parse_time(one).astimezone(zone) for one in (when, now))
    return f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M:%S}"
