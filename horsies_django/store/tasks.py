"""The statements about tasks: send, the pass, and the looks at what became of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.records import Claim, NewTasks, Outcome, Wanted
from horsies_django.store.base import Connection, execute, run

NOTHING = Wanted()


class Served:
    """The queues that a worker serves, as the pass takes them: PostgreSQL's text form of an array, written once."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = sorted(queues)
        self.queues_array = "{" + ",".join(map(array_element, self.queues)) + "}"


@dataclass(slots=True)
class Passed:
    """What a pass brought.

    ``landed``: the outcomes and releases that were written. ``claims`` run now, ``buffered`` ones wait for a start. ``started``,
    ``returned`` (no room: pending again) and ``expired`` tasks. ``due_in``: seconds until the next task becomes due. ``again``:
    the pass stopped short, come round at once. ``limited``: a cap or the budget left tasks behind. ``dead``: this worker was
    declared dead, its tasks are being given away.
    """

    landed: set[uuid.UUID] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)
    buffered: list[Claim] = field(default_factory=list)
    started: list[uuid.UUID] = field(default_factory=list)
    returned: list[uuid.UUID] = field(default_factory=list)
    expired: list[uuid.UUID] = field(default_factory=list)
    due_in: float | None = None
    again: bool = False
    limited: bool = False
    dead: bool = False


class Found(NamedTuple):
    """A task as a waiting caller sees it: its status and, once final, the JSON envelope of its result."""

    status: str
    result: str | None


class TaskStore:
    """Runs the task statements on the given connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, tasks: NewTasks) -> int:
        """Insert the tasks and return how many."""
        return execute(self.connection, "task_send", tasks._asdict())

    def run_pass(
        self,
        worker: uuid.UUID,
        channel: str,
        served: Served,
        wanted: Wanted = NOTHING,
        *,
        outcomes: Sequence[Outcome] = (),
        releases: Sequence[Claim] = (),
        starts: Sequence[Claim] = (),
        sweep: bool = False,
    ) -> Passed:
        """Settle ``outcomes``, give ``releases`` back, start ``starts``, then claim what is wanted; one transaction.

        ``sweep`` also takes back claims of any worker whose lease ended.
        """
        rows = run(
            self.connection,
            "task_pass",
            {
                "worker": worker,
                "channel": channel,
                "outcomes": outcomes_json(outcomes) if outcomes else None,
                "releases": claims_json(releases) if releases else None,
                "starts": claims_json(starts) if starts else None,
                "queues": served.queues_array,
                "sweep": sweep,
                **wanted._asdict(),
            },
        )
        passed = Passed({outcome.id for outcome in outcomes} | {claim.id for claim in releases})
        for kind, id_, generation, lane, task_name, kwargs, number in sorted(rows, key=lambda row: row[6] or 0.0):
            if kind == "missed":
                passed.landed.discard(id_)
            elif kind in ("claimed", "buffered"):
                claim = Claim(id_, generation, lane, task_name, kwargs)
                (passed.claims if kind == "claimed" else passed.buffered).append(claim)
            elif kind == "due":
                passed.due_in = max(number, 0.0)
            elif id_ is None:
                setattr(passed, kind, True)  # again, limited, dead
            else:
                getattr(passed, kind).append(id_)  # started, returned, expired
        return passed

    def unsettled(self, worker: uuid.UUID, claims: Sequence[Outcome | Claim]) -> dict[uuid.UUID, str]:
        """Tell for each write that did not land whether its task is 'held', 'waiting', 'settled' or 'lost'."""
        ids, generations = [claim.id for claim in claims], [claim.generation for claim in claims]
        return dict(run(self.connection, "task_unsettled", {"worker": worker, "ids": ids, "generations": generations}))

    def held(self, worker: uuid.UUID) -> dict[uuid.UUID, int]:
        """Return the tasks in flight that the database says ``worker`` holds, with their claim generation."""
        return dict(run(self.connection, "task_held", {"worker": worker}))

    def renew(self, worker: uuid.UUID, claims: Sequence[Claim], lease: timedelta) -> int:
        """Let the leases of tasks that wait in the buffer end ``lease`` from now; return how many are still this worker's."""
        return execute(self.connection, "task_renew", {"worker": worker, "claims": claims_json(claims), "lease": lease})

    def find(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Found]:
        """Return the tasks among ``ids`` that this connection can see."""
        rows = run(self.connection, "task_find", {"ids": list(ids)})
        return {id_: Found(status, result) for id_, status, result in rows}


def array_element(text: str) -> str:
    """Quote a text as an element of an array in PostgreSQL's text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def outcomes_json(outcomes: Sequence[Outcome]) -> str:
    """Write outcomes as the JSON that the settle function reads. Results are JSON already and pass through as they are."""
    return "[" + ",".join(map(outcome_json, outcomes)) + "]"


def outcome_json(outcome: Outcome) -> str:
    """Write one outcome as an object of that JSON."""
    return (
        f'{{"id":"{outcome.id}","generation":{outcome.generation},"status":"{outcome.status}","result":{outcome.result},'
        f'"error_code":{json.dumps(outcome.error_code)},"error_message":{json.dumps(outcome.error_message)},'
        f'"child_pid":{json.dumps(outcome.child_pid)},"crashed":{json.dumps(outcome.crashed)}}}'
    )


def claims_json(claims: Sequence[Claim]) -> str:
    """Write claims as the JSON that releasing, starting and renewing read."""
    return json.dumps([{"id": str(claim.id), "generation": claim.generation} for claim in claims])
