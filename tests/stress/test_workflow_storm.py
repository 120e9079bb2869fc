"""Workflows end as the model says while workers and children are killed and connections are cut.

Runs are paused, too. Beside them, eight senders send signals to chains of waits: each signal is
taken once, and those of a key in the order of sending.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as Directory
from typing import Any

import pytest
from django.db import connection

from horsies_django import RetryPolicy, Workflow
from horsies_django.models import Task, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import sql, wait_until
from tests.db.graphs import Dice, build, graph_of
from tests.stress.chaos.notes import DIRECTORY, collect
from tests.support.models.workflows import Fate, Path, Place, Run, Spot
from tests.support.runners import kill_a_runner
from tests.support.sizes import sized
from tests.support.workers import Start, WorkerProcess

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

RUNS = sized(100, 2_000)
FAULTS = sized(10, 200)
WORKERS = 2
SEED = 15
AGAIN = RetryPolicy.fixed([0] * 9, jitter=False)
KINDS = ("kill worker", "kill child", "kill child", "cut", "cut", "pause")  # equally often
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database()
  AND application_name IN ('horsies engine', 'horsies maintenance', 'horsies listener')
"""
CHAINS = 10
SENDERS = 8
LENGTH = sized(5, 125)
LULL_SECONDS = 1.0
ADDED = Fate("COMPLETED")


class Sent:
    """A run that was sent, and its model."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Dice(f"storm {seed}")
        self.run = Run(graph_of(dice, dice.randint(1, 12)), self.fate)
        self.adds: dict[tuple[Path, int], int] = {}
        self.handle = build(self.run.graph, f"storm {seed}", self.work).send()

    def work(self, path: Path, spot: Spot) -> tuple[Any, dict[str, Any]]:
        """Return the arguments of the tasks of a node."""
        if spot.kind == "workflow":
            return None, {}
        if spot.kind == "map":
            return flows.fated, {
                "fate": "ELEMENT",
                "fails_on": self.dice(path, spot.number).choice([None, None, 3]),
            }

        fate = self.fate((path, spot.number, 0))
        self.adds[path, spot.number] = self.dice(path, -spot.number - 1).choice([0] * 9 + [3])
        return flows.fated, {
            "fate": fate.status,
            "result": fate.value,
            "adds": self.adds[path, spot.number],
        }

    def dice(self, path: Path, number: int) -> Dice:
        return Dice(f"{self.seed} {path} {number}")

    def fate(self, place: Place) -> Fate:
        """Return the outcome of a task."""
        path, number, index = place
        run = self.run.find(path)

        if number not in range(1_000):
            return ADDED

        dice = self.dice(path, number)
        if run.graph.spots[number].kind == "map":
            value = (run.elements(run.graph.spots[number]) or [])[index]
            bad = dice.choice([None, None, 3])
            return Fate("FAILED") if bad is not None and value == bad else Fate("COMPLETED", value)

        status = dice.choice(["COMPLETED"] * 8 + ["FAILED", "SKIPPED"])
        value = [dice.randrange(4) for _ in range(3)] if dice.chance(0.3) else dice.randrange(3)
        return Fate(status, value if status == "COMPLETED" else None)

    def judge(
        self, nodes: dict[uuid.UUID, list[WorkflowNode]], runs: dict[uuid.UUID, WorkflowRun]
    ) -> list[Any]:
        """Return the differences from the model: runs and nodes, with actual and expected state."""
        ids: dict[uuid.UUID, Path] = {self.handle.workflow_id: ()}
        self.follow(self.handle.workflow_id, nodes, ids)

        for id_, path in ids.items():
            model = self.run.find(path)
            model.graph.spots |= {
                node.number: Spot(node.number) for node in nodes[id_] if node.added_by >= 0
            }
            model.forget()

        found: dict[Path, Any] = {}
        expected: dict[Path, Any] = {run.path: "a run" for run in self.run.all()}

        for id_, path in ids.items():
            added = Counter(node.added_by for node in nodes[id_] if node.added_by >= 0)
            found[path] = runs[id_].status, {node.number: node.status for node in nodes[id_]}, added
            expected[path] = self.expected(path)

        paths = sorted(found.keys() | expected.keys())
        return [
            (self.seed, path, found.get(path), expected.get(path))
            for path in paths
            if found.get(path) != expected.get(path)
        ]

    def expected(self, path: Path) -> tuple[str, dict[int, str], dict[int, int]]:
        """Return the expected statuses of a run and its nodes.

        Beside them: how many nodes each node adds.
        """
        model = self.run.find(path)
        adds = {
            number: self.adds.get((path, number), 0)
            for number in model.graph.spots
            if number < 1_000
        }
        added = {number: many for number, many in adds.items() if many and model.began(number)}
        return model.status(), {number: model.node(number) for number in model.graph.spots}, added

    def follow(
        self, id_: uuid.UUID, nodes: dict[uuid.UUID, list[WorkflowNode]], ids: dict[uuid.UUID, Path]
    ) -> None:
        """Record the places of the child runs of a run."""
        for node in nodes[id_]:
            if node.kind == "workflow" and node.task_id is not None:
                ids[node.task_id] = (*ids[id_], node.number)
                self.follow(node.task_id, nodes, ids)


class Storm:
    """The workers, and the faults."""

    def __init__(self, start: Callable[[], WorkerProcess]) -> None:
        self.start = start
        self.dice = Dice(f"{SEED}")
        self.workers = [start() for _ in range(WORKERS)]
        self.sent: list[Sent] = []
        self.happened: Counter[str] = Counter()

    def rage(self) -> None:
        """Send a share of the runs before each fault."""
        for fault in range(FAULTS):
            while len(self.sent) < RUNS * (fault + 1) // FAULTS:
                self.sent.append(Sent(len(self.sent)))

            wait_until(lambda: [worker.ready() for worker in self.workers], "all workers are up")
            kind = self.dice.choice(KINDS) if fault >= len(KINDS) else KINDS[fault]
            self.happened[kind] += self.strike(kind)

            until = time.monotonic() + LULL_SECONDS
            wait_until(
                lambda until=until: few_open() or time.monotonic() > until,
                "few are left, or some time has passed",
            )

            if self.dice.chance(0.5):
                resume()

    def strike(self, kind: str) -> bool:
        """Apply the fault; return whether there was a target."""
        place = self.dice.randrange(WORKERS)
        if kind == "kill worker":
            os.kill(self.workers[place].process.pid, signal.SIGKILL)
            self.workers[place].process.wait()
            self.workers[place] = self.start()
            return True

        if kind == "kill child":
            return kill_a_runner(self.workers[place].process.pid, self.dice)
        if kind == "cut":
            return bool(sql(CUT)[0][0])

        running = [
            *WorkflowRun.objects.filter(status="RUNNING", parent_id=None).values_list(
                "pk", flat=True
            )
        ]

        return (
            sum(
                WorkflowHandle(run).pause()
                for run in self.dice.sample(running, min(len(running), 5))
            )
            > 0
        )


def chains() -> Any:
    """Send a run with a chain of waits for each sender, and a task that takes their values."""
    flow = Workflow("signals")
    for sender in range(SENDERS):
        nodes = [flow.signal("go", key=str(sender))]
        for _ in range(LENGTH - 1):
            nodes.append(flow.signal("go", key=str(sender), after=nodes[-1]))
        # Its process may be killed.
        flow.add(flows.total_list.with_options(retry_policy=AGAIN), nodes)

    return flow.send()


def give(handles: list[Any], sender: int) -> None:
    """Send the signals of one sender to all of these runs, in turns."""
    try:
        for number in range(LENGTH):
            for handle in handles:
                handle.signal("go", number, key=str(sender))
    finally:
        connection.close()


def judge_signals() -> None:
    """Check that each signal was taken by a node of its own, and those of a key in their order."""
    assert not WorkflowSignal.objects.filter(used_at=None).exists()
    taken = WorkflowSignal.objects.values_list("workflow_id", "node")
    assert len(taken) == len({*taken}) == CHAINS * SENDERS * LENGTH, (
        "a signal is lost, or a node took two"
    )

    values: dict[Any, list[int]] = {}
    waits = WorkflowNode.objects.filter(kind="signal").order_by("number")
    for run, key, value in waits.values_list("workflow_id", "signal_key", "value"):
        values.setdefault((run, key), []).append(value)

    assert all(each == list(range(LENGTH)) for each in values.values())
    assert {*WorkflowRun.objects.filter(name="signals").values_list("status", flat=True)} == {
        "COMPLETED"
    }


def few_open() -> bool:
    return WorkflowRun.objects.filter(finished_at=None).count() < 10


def resume() -> bool:
    """Resume all paused runs; return whether all runs have ended."""
    for run in WorkflowRun.objects.filter(status="PAUSED").values_list("pk", flat=True):
        WorkflowHandle(run).resume()
    return not WorkflowRun.objects.filter(finished_at=None).exists()


def test_workflows_end_as_the_model_predicts_in_a_storm(worker: Start, tmp_path: Directory) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    how = {DIRECTORY: str(notes), "HORSIES_TEST_STALE_MS": "2500"}
    storm = Storm(lambda: worker("--processes=2", **how))

    handles = [chains() for _ in range(CHAINS)]
    with ThreadPoolExecutor(SENDERS) as senders:
        sending = [senders.submit(give, handles, sender) for sender in range(SENDERS)]
        storm.rage()
        for each in sending:
            each.result()

    wait_until(resume, "all runs have ended")
    owed = "SELECT count(*) FROM horsies_owed(NULL, 1000)"
    with connection.cursor() as cursor:
        wait_until(lambda: cursor.execute(owed) or not cursor.fetchone()[0], "nothing is owed")

    for worker_ in storm.workers:
        worker_.stop()
    judge_signals()

    nodes: dict[uuid.UUID, list[WorkflowNode]] = {}
    for node in WorkflowNode.objects.all():
        nodes.setdefault(node.workflow_id, []).append(node)
    runs = {run.pk: run for run in WorkflowRun.objects.all()}

    assert [differs for sent in storm.sent for differs in sent.judge(nodes, runs)] == []
    assert not WorkflowNode.objects.filter(finished_at=None).exists()
    assert not Task.objects.filter(finished_at=None).exists()

    ran = Counter((run.task, run.attempt) for run in collect(notes))
    assert {place: many for place, many in ran.items() if many > 1} == {}, "an attempt ran twice"
    completed = Task.objects.filter(status="COMPLETED", task_name=flows.fated.name)
    assert {task for task, _ in ran} >= {str(id_) for id_ in completed.values_list("pk", flat=True)}

    assert storm.happened.keys() == {*KINDS}
    assert all(storm.happened.values()), storm.happened
