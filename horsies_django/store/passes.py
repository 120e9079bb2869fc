"""The input of a pass as JSON for the SQL functions, and its result as records."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from horsies_django.core.codec.jsondata import write_text
from horsies_django.core.records import Claim, Outcome


@dataclass(slots=True)
class Passed:
    """The result of a pass.

    - ``landed``: the outcomes and releases that were written.
    - ``decided``: the decisions about failures (retry or poison), by id; see ``horsies_settle``.
    - ``claims``: the claims that are running; ``prefetched``: the claims that wait for a start.
    - ``started``, ``returned`` (there was no room, they are pending again) and ``expired``: tasks.
    - ``late``: the expired tasks that the claim found.
    - ``due_in``: the seconds until the next task is due, or None if there is none or the pass did
      not read it.
    - ``again``: the pass ended early, and another one should follow at once.
    - ``limited``: tasks wait because of a cap or the total.
    - ``dead``: this worker was declared dead.
    - ``firsts`` and ``held``: for the next cursors, where the scans found their first tasks, at the
      epoch ``now`` in seconds, and when the tasks in flight were claimed.
    - ``short``: it was a short pass, which reads one queue and does not return when the next task
      becomes due.
    - ``far``: the pass read much of the index to find tasks.
    - ``in_runs``: the finished tasks of workflows, each after its run.
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
    firsts: list[Mapping[str, Any]] = field(default_factory=list)
    held: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    short: bool = False
    far: bool = False
    in_runs: list[tuple[uuid.UUID, uuid.UUID]] = field(default_factory=list)


PASS_COLUMNS = ("due_in", "limited", "again", "dead", "report")


@functools.cache
def row_readers(*columns: bytes) -> tuple[Callable[[Sequence[Any]], Any], ...]:
    """Return three functions that read parts of a row of ``horsies_passed`` with these columns.

    They return the kind of the row, the ``PASS_COLUMNS``, and the columns of a claim.
    """
    names = [column.decode() for column in columns]
    return itemgetter(names.index("kind")), *(
        itemgetter(*map(names.index, one)) for one in (PASS_COLUMNS, Claim._fields)
    )


def passed_of(cursor: Any, written: set[uuid.UUID]) -> Passed:
    """Return the result of the pass that a cursor has run.

    ``written`` are the outcomes and releases that were sent to the pass.
    """
    result = cursor.pgresult
    kind, summary, claim = row_readers(*map(result.fname, range(result.nfields)))
    *rows, last = cursor.fetchall()

    found: dict[str, list[Claim]] = {"start": [], "prefetch": [], "late": []}
    for row in rows:
        found[kind(row)].append(Claim._make(claim(row)))

    due_in, limited, again, dead, report_text = summary(last)
    passed = Passed(
        written,
        claims=found["start"],
        prefetched=found["prefetch"],
        expired=[late.id for late in found["late"]],
        late=found["late"],
        due_in=None if due_in is None else max(due_in, 0.0),
        again=bool(again),
        limited=bool(limited),
        dead=bool(dead),
        short=kind(last) == "short",
    )

    if report_text is not None:  # there is a report only if the pass had an unusual result
        report = json.loads(report_text)
        passed.landed = passed.landed.difference(ids(report, "missed"))
        passed.decided = report.get("decided") or {}
        passed.started = ids(report, "started")
        passed.returned = ids(report, "returned")
        passed.expired = ids(report, "expired") + passed.expired
        passed.firsts = [firsts for firsts in (report.get("idle"), report.get("firsts")) if firsts]
        passed.held = report.get("held") or {}
        passed.now = report.get("looked_at", 0.0)
        passed.far = "far" in report
        passed.in_runs = [
            (uuid.UUID(run), uuid.UUID(task)) for run, task in report.get("in_runs") or ()
        ]

    return passed


def ids(report: Mapping[str, Any], name: str) -> list[uuid.UUID]:
    return [uuid.UUID(text) for text in report.get(name) or ()]


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as JSON for horsies_settle.

    Results are strings in it, because jsonb would change them.
    """
    return "[" + ",".join(map(outcome_json, outcomes)) + "]"


def outcome_json(outcome: Outcome) -> str:
    child_pid = "null" if outcome.child_pid is None else outcome.child_pid
    text = (
        f'{{"id":"{outcome.id.hex}","generation":{outcome.generation},"status":"{outcome.status}",'
        f'"result":{write_text(outcome.result)},"child_pid":{child_pid}'
    )
    if outcome.error_code is None:
        return text + "}"

    return (
        f'{text},"error_code":{json.dumps(outcome.error_code)},'
        f'"error_message":{json.dumps(outcome.error_message)},'
        f'"classes":{json.dumps(outcome.classes)},"retry":{json.dumps(outcome.retry)},'
        f'"crashed":{json.dumps(outcome.crashed)}}}'
    )


def claims_json(claims: Sequence[Claim]) -> str:
    """Return claims as JSON for the statements that release, start and renew them."""
    return json.dumps([{"id": str(claim.id), "generation": claim.generation} for claim in claims])
