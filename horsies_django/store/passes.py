"""Writes the input of a pass as JSON for the SQL functions, and reads its result into records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.records import Claim, Outcome


class PassRow(NamedTuple):
    """The row that the pass returns; arrays are None if empty. See ``horsies_pass``."""

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
    in_runs: list[list[uuid.UUID]] | None

    def claims(self) -> Iterator[tuple[str, Claim]]:
        """Return the tasks that the pass found, each with its verdict: "start", "prefetch" or "late"."""
        fields = (
            self.ids, self.generations, self.lanes, self.task_names, self.kwargs, self.attempts, self.options, self.queue_names,
        )  # fmt: skip
        return zip(self.verdicts or (), claims_of(fields), strict=True)


@dataclass(slots=True)
class Passed:
    """The result of a pass.

    ``landed``: the outcomes and releases that were written. ``decided``: retries and poison among failures, by id (see
    ``horsies_settle``). ``claims`` are running, ``prefetched`` ones wait for a start. ``started``, ``returned`` (no room: pending
    again) and ``expired`` tasks; ``late``: the expired ones that the claim found. ``due_in``: seconds until the next task is due.
    ``again``: the pass ended early, run another one at once. ``limited``: a cap or the total left tasks behind. ``dead``: this
    worker was declared dead. ``firsts`` and ``held`` are for the next cursors: JSON texts of where the scans found their first
    tasks, at the epoch ``now``, and of when the tasks in flight were claimed. ``short``: it was a short pass, which reads one
    queue and does not return when the next task becomes due. ``in_runs``: finished tasks of workflows, each after its run.
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
    in_runs: list[list[uuid.UUID]] = field(default_factory=list)


def passed_of(row: PassRow, written: set[uuid.UUID]) -> Passed:
    """Return the result in the row of a pass; ``written`` are the outcomes and releases that it was to write."""
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
        in_runs=row.in_runs or [],
    )
    kinds = {"start": passed.claims, "prefetch": passed.prefetched, "late": passed.late}
    for verdict, claim in row.claims():
        kinds[verdict].append(claim)
    passed.expired += [claim.id for claim in passed.late]
    return passed


def claims_of(arrays: Iterable[Iterable[Any] | None]) -> list[Claim]:
    """Return the claims whose fields are in parallel arrays; the arrays are None if there are no claims."""
    return [Claim(*fields) for fields in zip(*(array or () for array in arrays), strict=True)]


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """Write outcomes as JSON for horsies_settle. Results are strings in it, because jsonb would change them."""
    return "[" + ",".join(map(outcome_json, outcomes)) + "]"


def outcome_json(outcome: Outcome) -> str:
    text = (
        f'{{"id":"{outcome.id.hex}","generation":{outcome.generation},"status":"{outcome.status}",'
        f'"result":{write_json(outcome.result)},"child_pid":{"null" if outcome.child_pid is None else outcome.child_pid}'
    )
    if outcome.error_code is None:
        return text + "}"
    return (
        f'{text},"error_code":{json.dumps(outcome.error_code)},"error_message":{json.dumps(outcome.error_message)},'
        f'"classes":{json.dumps(outcome.classes)},"retry":{json.dumps(outcome.retry)},"crashed":{json.dumps(outcome.crashed)}}}'
    )


def claims_json(claims: Sequence[Claim]) -> str:
    """Write claims as JSON for the statements that release, start and renew them."""
    return json.dumps([{"id": str(claim.id), "generation": claim.generation} for claim in claims])
