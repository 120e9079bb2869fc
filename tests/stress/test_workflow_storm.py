"""Workflows end as the model says while workers and children are killed, connections are cut, and runs are paused."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path as Directory
from typing import Any

import pytest
from django.db import connection

from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import sql, wait_until
from tests.db.graphs import Dice, build, graph_of
from tests.stress.chaos.notes import DIRECTORY, collect
from tests.support.models.workflows import Fate, Path, Place, Run, Spot
from tests.support.runners import kill_a_runner
from tests.support.sizes import sized
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

RUNS, FAULTS, WORKERS, SEED = sized(100, 2_000), sized(10, 200), 2, 15
KINDS = ("kill worker", "kill child", "kill child", "cut", "cut", "pause")  # as often as each other
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('horsies engine', 'horsies maintenance', 'horsies listener')
"""
LULL_SECONDS = 1.0
ADDED = Fate("COMPLETED")


class Sent:
    """A run that was sent, and the model of it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        dice = Dice(f"storm {seed}")
        self.run = Run(graph_of(dice, dice.randint(1, 12)), self.fate)
        self.adds: dict[tuple[Path, int], int] = {}
        self.handle = build(self.run.graph, f"storm {seed}", self.work).send()

    def work(self, path: Path, spot: Spot) -> tuple[Any, dict[str, Any]]:
        """Return what the tasks of a node are told to do."""
        if spot.kind == "workflow":
            return None, {}
        if spot.kind == "map":
            return flows.fated, {"fate": "ELEMENT", "fails_on": self.dice(path, spot.number).choice([None, None, 3])}
        fate = self.fate((path, spot.number, 0))
        self.adds[path, spot.number] = self.dice(path, -spot.number - 1).choice([0] * 9 + [3])
        return flows.fated, {"fate": fate.status, "result": fate.value, "adds": self.adds[path, spot.number]}

    def dice(self, path: Path, number: int) -> Dice:
        return Dice(f"{self.seed} {path} {number}")

    def fate(self, place: Place) -> Fate:
        """Return what becomes of a task."""
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

    def judge(self, nodes: dict[uuid.UUID, list[WorkflowNode]], runs: dict[uuid.UUID, WorkflowRun]) -> list[Any]:
        """Return what differs from the model: runs and nodes, with what they are and what they should be."""
        ids: dict[uuid.UUID, Path] = {self.handle.workflow_id: ()}
        for id_ in ids.copy():
            self.follow(id_, nodes, ids)
        differs: list[Any] = []
        for id_, path in ids.items():
            model = self.run.find(path)
            for node in nodes[id_]:
                if node.added_by >= 0:
                    model.graph.spots[node.number] = Spot(node.number)
            model.forget()
            added = Counter(node.added_by for node in nodes[id_] if node.added_by >= 0)
            expected = {number: many for number in model.graph.spots
                        if number < 1_000 and (many := self.adds.get((path, number), 0)) and model.began(number)}  # fmt: skip
            if added != expected:
                differs.append((self.seed, path, "added", added, expected))
        for id_, path in ids.items():
            model = self.run.find(path)
            if runs[id_].status != model.status():
                differs.append((self.seed, path, runs[id_].status, model.status()))
            found = {node.number: node.status for node in nodes[id_]}
            expected_statuses = {number: model.node(number) for number in model.graph.spots}
            if found != expected_statuses:
                differs.append((self.seed, path, found, expected_statuses))
        if {*ids.values()} != {run.path for run in self.run.all()}:
            differs.append((self.seed, "children", ids.values()))
        return differs

    def follow(self, id_: uuid.UUID, nodes: dict[uuid.UUID, list[WorkflowNode]], ids: dict[uuid.UUID, Path]) -> None:
        """Note the places of the child runs of a run."""
        for node in nodes[id_]:
            if node.kind == "workflow" and node.task_id is not None:
                ids[node.task_id] = (*ids[id_], node.number)
                self.follow(node.task_id, nodes, ids)


class Storm:
    """Workers, and what befalls them."""

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
                lambda until=until: few_open() or time.monotonic() > until, "few are left, or some time has passed"
            )
            if self.dice.chance(0.5):
                resume()

    def strike(self, kind: str) -> bool:
        """Do it; return whether anything was hit."""
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
        running = [*WorkflowRun.objects.filter(status="RUNNING", parent_id=None).values_list("pk", flat=True)]
        return sum(WorkflowHandle(run).pause() for run in self.dice.sample(running, min(len(running), 5))) > 0


def few_open() -> bool:
    return WorkflowRun.objects.filter(finished_at=None).count() < 10


def resume() -> bool:
    """Resume all paused runs; return whether no run is open."""
    for run in WorkflowRun.objects.filter(status="PAUSED").values_list("pk", flat=True):
        WorkflowHandle(run).resume()
    return not WorkflowRun.objects.filter(finished_at=None).exists()


def test_workflows_end_as_the_model_says_in_a_storm(worker: Callable[..., WorkerProcess], tmp_path: Directory) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    how = {DIRECTORY: str(notes), "HORSIES_TEST_STALE_MS": "2500"}
    storm = Storm(lambda: worker("--processes=2", **how))
    storm.rage()
    wait_until(resume, "all runs have ended")
    owed = "SELECT count(*) FROM horsies_owed(NULL, 1000)"
    with connection.cursor() as cursor:
        wait_until(lambda: cursor.execute(owed) or not cursor.fetchone()[0], "nothing is owed")
    for each in storm.workers:
        each.stop()
    nodes: dict[uuid.UUID, list[WorkflowNode]] = {}
    for node in WorkflowNode.objects.all():
        nodes.setdefault(node.workflow_id, []).append(node)
    runs = {run.pk: run for run in WorkflowRun.objects.all()}
    assert [differs for sent in storm.sent for differs in sent.judge(nodes, runs)] == []
    assert not WorkflowNode.objects.filter(finished_at=None).exists()
    assert not Task.objects.filter(finished_at=None).exists()
    ran = Counter((each.task, each.attempt) for each in collect(notes))
    assert {place: many for place, many in ran.items() if many > 1} == {}, "an attempt ran twice"
    assert {task for task, _ in ran} >= {
        str(id_) for id_ in Task.objects.filter(status="COMPLETED").values_list("pk", flat=True)
    }
    assert storm.happened.keys() == {*KINDS}
    assert all(storm.happened.values()), storm.happened
