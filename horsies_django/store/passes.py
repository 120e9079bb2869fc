"""What goes into a pass, as the JSON that its functions read, and what comes out of it, as a record."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horsies_django.core.records import Claim, Outcome


class PassRow(NamedTuple):
    """The one row that the pass returns; its arrays are None where there is nothing. See ``horsies_pass``."""

    missed: list[uuid.UUID] | None
    decided: str | None
    started: list[uuid.UUID] | None
    returned: list[uuid.UUID] | None
    expired: list[uuid.UUID] | None
    verdicts: list[str] | None
    ids: list[uuid.UUID] | None
    generations: list[int] | None
    lanes: list[str] | None
    task_names: list[str] | None
    kwargs: list[str] | None
    attempts: list[int] | None
    options: list[str | None] | None
    queue_names: list[str] | None
    due_in: float | None
    limited: bool
    again: bool
    dead: bool
    firsts: list[str] | None
    held: str | None
    looked_at: float | None

    def claims(self) -> Iterator[tuple[str, Claim]]:
        """Return the tasks that the pass met, each with its verdict: "start", "prefetch" or "late"."""
        return zip(self.verdicts or (), claims_of(self[6:14]), strict=True)


@dataclass(slots=True)
class Passed:
    """What a pass brought.

    ``landed``: the outcomes and releases that were written; ``decided``: what became of failed ones beyond that, by id (see
    ``horsies_settle``). ``claims`` run now, ``prefetched`` ones wait for a start. ``started``, ``returned`` (no room: pending
    again) and ``expired`` tasks; ``late``: those of the latter that the claim met. ``due_in``: seconds until the next is due.
    ``again``: the pass stopped short, come round at once. ``limited``: a cap or the budget left tasks behind. ``dead``: this
    worker was declared dead, its tasks are being given away. ``firsts`` and ``held`` are for the next cursors: JSON texts of
    where the scans found something first, at the epoch ``now``, and of when what is in flight was claimed. ``short``: it was a
    short pass, which looks at one queue and does not tell what becomes due.
    """

    landed: set[uuid.UUID] = field(default_factory=set)
    decided: Mapping[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    prefetched: list[Claim] = field(default_factory=list)
    started: list[uuid.UUID] = field(default_factory=list)
    returned: list[uuid.UUID] = field(default_factory=list)
    expired: list[uuid.UUID] = field(default_factory=list)
    late: list[Claim] = field(default_factory=list)
    due_in: float | None = None
    again: bool = False
    limited: bool = False
    dead: bool = False
    firsts: list[str] = field(default_factory=list)
    held: str | None = None
    now: float = 0.0
    short: bool = False


def passed_of(row: PassRow, written: set[uuid.UUID]) -> Passed:
    """Return what the row of a pass says; ``written`` are the outcomes and releases that it was given."""
    passed = Passed(
        landed=written.difference(row.missed or ()),
        decided=json.loads(row.decided) if row.decided else {},
        started=row.started or [],
        returned=row.returned or [],
        expired=row.expired or [],
        due_in=None if row.due_in is None else max(row.due_in, 0.0),
        again=row.again,
        limited=row.limited,
        dead=row.dead,
        firsts=row.firsts or [],
        held=row.held,
        now=row.looked_at or 0.0,
    )
    kinds = {"start": passed.claims, "prefetch": passed.prefetched, "late": passed.late}
    for verdict, claim in row.claims():
        kinds[verdict].append(claim)
    passed.expired += [claim.id for claim in passed.late]
    return passed


def claims_of(arrays: Iterable[Iterable[Any] | None]) -> list[Claim]:
    """Return the claims whose fields, in their order, stand in arrays side by side; an array is None where there are none."""
    return [Claim(*fields) for fields in zip(*(array or () for array in arrays), strict=True)]


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
