"""The statements about tasks: send, the pass, and the looks at what became of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from horsies_django.core.records import Claim, NewTasks, Outcome
from horsies_django.store.base import Connection, execute, run


class Served:
    """The queues that a worker serves, in the order of the priorities that serve them.

    The pass takes them as PostgreSQL's text form of arrays, written once here instead of once per pass.
    """

    def __init__(self, priorities: Mapping[str, int]) -> None:
        ordered = sorted(priorities.items(), key=lambda item: (item[1], item[0]))
        self.queues = [name for name, _ in ordered]
        self.queues_array = "{" + ",".join(map(array_element, self.queues)) + "}"
        self.priorities_array = "{" + ",".join(str(priority) for _, priority in ordered) + "}"


class Passed(NamedTuple):
    """What a pass brought: the ids that landed, the new claims, whether tasks expired, and seconds until the next is due."""

    landed: set[uuid.UUID]
    claims: list[Claim]
    expired: int
    due_in: float | None


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
        *,
        outcomes: Sequence[Outcome] = (),
        releases: Sequence[Claim] = (),
        sync: int = 0,
        async_: int = 0,
    ) -> Passed:
        """Settle ``outcomes``, give ``releases`` back, then claim for the free slots of each lane; one transaction."""
        rows = run(
            self.connection,
            "task_pass",
            {
                "worker": worker,
                "channel": channel,
                "outcomes": outcomes_json(outcomes) if outcomes else None,
                "releases": releases_json(releases) if releases else None,
                "queues": served.queues_array,
                "priorities": served.priorities_array,
                "sync": sync,
                "async": async_,
            },
        )
        passed = Passed(set(), [], 0, None)
        for kind, id_, generation, lane, task_name, kwargs, seconds in rows:
            if kind == "settled":
                passed.landed.add(id_)
            elif kind == "claimed":
                passed.claims.append(Claim(id_, generation, lane, task_name, kwargs))
            elif kind == "expired":
                passed = passed._replace(expired=passed.expired + 1)
            else:
                passed = passed._replace(due_in=max(seconds, 0.0))
        return passed

    def unsettled(self, worker: uuid.UUID, claims: Sequence[Outcome | Claim]) -> dict[uuid.UUID, str]:
        """Tell for each write that did not land whether its task is 'held', 'settled' or 'lost'."""
        ids, generations = [claim.id for claim in claims], [claim.generation for claim in claims]
        return dict(run(self.connection, "task_unsettled", {"worker": worker, "ids": ids, "generations": generations}))

    def held(self, worker: uuid.UUID) -> dict[uuid.UUID, int]:
        """Return the tasks in flight that the database says ``worker`` holds, with their claim generation."""
        return dict(run(self.connection, "task_held", {"worker": worker}))

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


def releases_json(claims: Sequence[Claim]) -> str:
    """Write claims as the JSON that the release function reads."""
    return json.dumps([{"id": str(claim.id), "generation": claim.generation} for claim in claims])
