"""Random runs whose nodes have undos, driven step by step in random order, and what must hold of them.

Engines are reduced to their statements, as in ``drives.py``. The drive's own record of attempts is the model: from it follows
which elements have begun, and so what has to be undone, with which value, and after what.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from horsies_django import RetryPolicy, Workflow, WorkflowError
from horsies_django.core.records import Claim, Outcome
from horsies_django.workflows import operations
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.drives import MAX_BYTES, Driven, Engine, ended, inside
from tests.db.graphs import Dice

AGAIN = RetryPolicy.fixed([0] * 9, auto_retry_for=["AGAIN", "TASK_TIMEOUT", "WORKER_CRASHED"], jitter=False)
UNKNOWN = ("WORKER_CRASHED", "TASK_TIMEOUT", "TASK_CANCELLED")
ENDS: dict[str | None, float] = {
    None: 12, "BROKEN": 1.5, "AGAIN": 2, "TASK_SKIPPED": 0.5, "WORKER_CRASHED": 1, "TASK_TIMEOUT": 1, "TASK_CANCELLED": 0.3
}  # fmt: skip
UNDO_ENDS: dict[str | None, float] = {None: 8, "REFUSED": 1, "AGAIN": 2, "WORKER_CRASHED": 0.5, "TASK_SKIPPED": 0.5}


class Spot(NamedTuple):
    """A task: of a node and an element, or the undo of these."""

    number: int
    element: int
    undo: bool


@dataclass
class Record:
    """What became of an element of a node, over all attempts of all its tasks."""

    value: Any = None
    completed: bool = False
    unknown: bool = False

    @property
    def begun(self) -> bool:
        return self.completed or self.unknown


class Saga(Driven):
    """One run whose nodes have undos. ``judge`` checks the end."""

    STEPS = {
        "work": 12, "advance": 6, "find": 2, "hold": 2, "die": 0.5, "control": 1, "retry": 2, "skip": 0.4, "cancel": 0.15,
        "grow": 0.5,
    }  # fmt: skip

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect, MAX_BYTES)

    def begin(self, seed: int, size: int) -> None:
        """Send a random workflow into empty tables."""
        self.clear()
        self.dice = Dice(f"saga {seed}")
        self.below: dict[int, set[int]] = defaultdict(set)  # node -> those that wait for it, and that it added
        self.undoable: set[int] = set()
        self.records: dict[tuple[int, int], Record] = defaultdict(Record)
        self.undone: dict[tuple[int, int], str | None] = {}  # the code with which the undo of an element ended
        self.skipped: set[int] = set()  # nodes whose undo was skipped by hand
        self.cancelled = False
        self.handle = self.build(size).send()

    def build(self, size: int) -> Workflow:
        dice = self.dice
        on_error, most = dice.choice(["fail", "stop", "pause", "pause"]), dice.choice([None, None, 1, 3])
        flow = Workflow("saga", on_error=on_error, max_in_flight=most)
        made: list[Node] = []
        for number in range(size):
            upstream = dice.sample(made, min(len(made), dice.choice([0, 1, 1, 2, 3])))
            how: dict[str, Any] = {"after": upstream, "allow_failed": dice.chance(0.3), "name": f"n{number}"}
            if dice.chance(0.6):
                how["undo"] = flows.unact.with_options(retry_policy=AGAIN)
                self.undoable.add(number)
            task = flows.act.with_options(retry_policy=AGAIN) if dice.chance(0.5) else flows.act
            if dice.chance(0.25):
                made.append(flow.map(task, value=list(range(dice.choice([0, 1, 3, 7]))), **how))
            else:
                made.append(flow.add(task, number, **how))
            for node in upstream:
                self.below[node.number].add(number)
        return flow

    # what engines do

    def work(self, engine: Engine, *, all_: bool = False) -> None:
        kept, outcomes, ends = [], [], []
        for claim, spot in engine.claims:
            if not all_ and self.dice.chance(0.4):
                kept.append((claim, spot))
                continue
            codes = UNDO_ENDS if spot.undo else ENDS
            code = self.dice.choices([*codes], [*codes.values()])[0]
            value = self.dice.randrange(9)
            outcomes.append(outcome(claim, value, code))
            ends.append((claim, spot, code, value))
        passed = engine.run_pass(100 if all_ else self.dice.choice([0, 1, 2, 3, 8]), outcomes)
        assert passed.landed == {each.id for each in outcomes}
        for claim, spot, code, value in ends:
            self.note(claim.id, spot, code, value)
        engine.claims = kept
        for claim in passed.claims:
            self.take(engine, claim)
        if not self.dice.chance(0.2):
            engine.advancer.owe(passed.in_runs)

    def note(self, task: uuid.UUID, spot: Spot, code: str | None, value: Any) -> None:
        """Record how an attempt ended."""
        if not spot.undo:
            record = self.records[spot.number, spot.element]
            record.unknown = record.unknown or code in UNKNOWN
            if code is None:
                record.completed, record.value = True, value
        elif self.rows("SELECT FROM horsies_tasks t WHERE t.id = %s AND t.finished_at IS NOT NULL", [task]):
            assert self.undone.get((spot.number, spot.element), "") is not None, "it was undone before"
            self.undone[spot.number, spot.element] = None if code == "TASK_SKIPPED" else code

    def take(self, engine: Engine, claim: Claim) -> None:
        """Note a claim, and check that it may run now."""
        query = """
        SELECT t.node, t.node_index, n.undoes FROM horsies_tasks t
        JOIN horsies_workflow_nodes n ON n.workflow_id = t.workflow_id AND n.number = t.node WHERE t.id = %s"""
        ((node, element, undoes),) = self.rows(query, [claim.id])
        spot = Spot(node if undoes is None else undoes, element, undoes is not None)
        engine.claims.append((claim, spot))
        if not spot.undo:
            return
        running = [each for other in self.engines for _, each in other.claims if not each.undo]
        assert not running, ("an undo runs beside tasks of the run", spot, running)
        record = self.records[spot.number, spot.element]
        assert spot.number in self.undoable
        assert record.begun, ("it did not begin", spot, record)
        arguments = json.loads(claim.kwargs)
        assert arguments["result"] == (record.value if record.completed else None), (spot, record, arguments)
        below = self.descendants(spot.number)
        early = [place for place, each in self.records.items() if place[0] in below & self.undoable and each.begun
                 and place not in self.undone and place[0] not in self.skipped]  # fmt: skip
        assert not early, ("the undo of a descendant has not ended", spot, early)

    def descendants(self, number: int) -> set[int]:
        found, left = set[int](), [number]
        while left:
            new = self.below[left.pop()] - found
            found |= new
            left += new
        return found

    def die(self, engine: Engine) -> None:
        """Let an engine die with its tasks running, and another one rescue them."""
        self.reap(engine)
        for claim, spot in engine.claims:
            self.note(claim.id, spot, "WORKER_CRASHED", None)
        engine.start()

    def grow(self, engine: Engine) -> None:
        """Let a running task add a node that can be undone."""
        own = [(claim, spot) for claim, spot in engine.claims if not spot.undo]
        if not own:
            return
        claim, spot = self.dice.choice(own)
        undo = flows.unact.with_options(retry_policy=AGAIN)
        node = inside(claim).add(flows.act, 1, name=f"g{len(self.done)}", undo=undo)
        self.below[spot.number].add(node.number)
        self.undoable.add(node.number)

    # what people do

    def control(self, engine: Engine) -> None:
        if self.dice.chance(0.4):
            self.handle.pause()
        else:
            self.handle.resume()

    def retry(self, engine: Engine) -> None:
        """Run failed nodes of the run again, which is paused in most cases, before it is undone; or failed undos."""
        if self.handle.status() not in ("PAUSED", "RUNNING"):
            return
        with suppress(WorkflowError):
            self.handle.retry()

    def retry_undos(self) -> None:
        self.handle.retry()
        self.undone = {place: code for place, code in self.undone.items() if code is None}

    def skip(self, engine: Engine) -> None:
        query = "SELECT n.number, n.undoes FROM horsies_workflow_nodes n ORDER BY n.number"
        number, undoes = self.dice.choice(self.rows(query))
        with suppress(WorkflowError):
            operations.skip(self.handle.workflow_id, number)
            if undoes is not None:
                self.skipped.add(undoes)

    def cancel(self, engine: Engine) -> None:
        self.cancelled = self.handle.cancel() or self.cancelled

    # what must hold

    def judge(self) -> None:
        """Check that each element that began was undone once, or is told in the result, and that nothing else was."""
        self.judge_nothing_left()
        ((status, result),) = self.rows("SELECT w.status, w.result FROM horsies_workflows w")
        begun = {place for place, record in self.records.items() if record.begun and place[0] in self.undoable}
        if status == "COMPLETED":
            assert self.undone == {}
            return
        expected = {place for place in begun if place[0] not in self.skipped}
        assert self.undone.keys() == expected
        tasks = """
        SELECT n.undoes, t.node_index FROM horsies_tasks t
        JOIN horsies_workflow_nodes n ON n.workflow_id = t.workflow_id AND n.number = t.node WHERE n.kind = 'undo'"""
        assert sorted(self.rows(tasks)) == sorted(expected)
        failed = {number for (number, _), code in self.undone.items() if code is not None}
        names = dict(self.rows("SELECT n.number, n.name FROM horsies_workflow_nodes n"))
        error = result["err"]
        if begun:
            assert error["data"]["undone"] == len({number for number, _ in expected} - failed)
        not_undone = {each["node"] for each in (error["data"] or {}).get("not_undone", [])}
        assert not_undone == {names[number] for number in failed}
        cause = "WORKFLOW_CANCELLED" if self.cancelled else "WORKFLOW_FAILED"
        assert error["error_code"] == ("COMPENSATION_FAILED" if failed else cause)
        assert status == ("CANCELLED" if self.cancelled and not failed else "FAILED")


def outcome(claim: Claim, value: Any, code: str | None) -> Outcome:
    return ended(claim, value, code)._replace(crashed=code == "WORKER_CRASHED")
