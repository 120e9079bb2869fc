"""What goes into a pass, as the JSON that its functions read, and what comes out of it, as a record."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horsies_django.core.records import Claim, Outcome


@dataclass(slots=True)
class Passed:
    """What a pass brought.

    ``landed``: the outcomes and releases that were written; ``decided``: what became of failed ones beyond that, by id (see
    ``horsies_settle``). ``claims`` run now, ``buffered`` ones wait for a start. ``started``, ``returned`` (no room: pending
    again) and ``expired`` tasks; ``late``: those of the latter that no start met. ``due_in``: seconds until the next task becomes
    due. ``again``: the pass stopped short, come round at once. ``limited``: a cap or the budget left tasks behind. ``dead``: this
    worker was declared dead, its tasks are being given away. ``firsts`` and ``held`` are for the next marks: JSON texts of where
    the scans found something first, at the epoch ``now``, and of when what is in flight was claimed. ``short``: it was a short
    pass, which looks at one queue and does not tell what becomes due.
    """

    landed: set[uuid.UUID] = field(default_factory=set)
    decided: Mapping[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    buffered: list[Claim] = field(default_factory=list)
    started: list[uuid.UUID] = field(default_factory=list)
    returned: list[uuid.UUID] = field(default_factory=list)
    expired: list[uuid.UUID] = field(default_factory=list)
    late: list[Claim] = field(default_factory=list)
    due_in: float | None = None
    again: bool = False
    limited: bool = False
    dead: bool = False
    firsts: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    now: float = 0.0
    short: bool = False


def take_in(passed: Passed, rows: Iterable[Sequence[Any]]) -> None:
    """Note what the rows of a pass tell."""
    for kind, id_, generation, lane, task_name, kwargs, attempt, options, number, queue in sorted(rows, key=place):
        if kind == "missed":
            passed.landed.discard(id_)
        elif kind in ("claimed", "buffered"):
            claim = Claim(id_, generation, lane, task_name, kwargs, attempt, options, queue)
            (passed.claims if kind == "claimed" else passed.buffered).append(claim)
        elif kind == "due":
            passed.due_in = max(number, 0.0)
        elif kind in ("firsts", "held"):
            getattr(passed, kind).append(kwargs)
            passed.now = number
        elif kind == "decided":
            passed.decided = json.loads(kwargs)
        elif id_ is None:
            setattr(passed, kind, True)  # again, limited, dead
        else:
            getattr(passed, kind).append(id_)  # started, returned, expired
            if task_name is not None:
                passed.late.append(Claim(id_, generation, lane, task_name, "", attempt, None, queue))


def place(row: Sequence[Any]) -> float:
    """Return the place of a row of the pass in the order of claims."""
    return row[8] or 0.0


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """Write outcomes as the JSON that the settle function reads. Results are JSON already and pass through as they are."""
    return "[" + ",".join(map(outcome_json, outcomes)) + "]"


def outcome_json(outcome: Outcome) -> str:
    """Write one outcome as an object of that JSON."""
    text = (
        f'{{"id":"{outcome.id}","generation":{outcome.generation},"status":"{outcome.status}","result":{outcome.result},'
        f'"child_pid":{"null" if outcome.child_pid is None else outcome.child_pid}'
    )
    if outcome.error_code is None:
        return text + "}"
    return (
        f'{text},"error_code":{json.dumps(outcome.error_code)},"error_message":{json.dumps(outcome.error_message)},'
        f'"classes":{json.dumps(outcome.classes)},"retry":{json.dumps(outcome.retry)},"crashed":{json.dumps(outcome.crashed)}}}'
    )


def claims_json(claims: Sequence[Claim]) -> str:
    """Write claims as the JSON that releasing, starting and renewing read."""
    return json.dumps([{"id": str(claim.id), "generation": claim.generation} for claim in claims])
