"""Drive random workflows on a database, step by step in random order.

Workers are sessions that only run statements: no code of a task runs, a plan decides how each task
ends. Between any two steps an engine may die, lose the list of what it was to advance, or be
overtaken by another engine.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from horsies_django import Workflow, WorkflowError
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task, WorkflowNode
from horsies_django.store.passes import Passed
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import WorkerStore
from horsies_django.store.workflows import Advanced, WorkflowStore
from horsies_django.tasks.context import CurrentTask
from horsies_django.workflows import operations
from horsies_django.workflows.advancer import Advancer
from horsies_django.workflows.growth import RunningWorkflow, workflow_of
from horsies_django.workflows.handle import WorkflowHandle
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows
from tests.conftest import Claimer, Connect, sql
from tests.db.graphs import Dice, acting, add, build, graph_of, spot_of
from tests.db.lives import THRESHOLD, enlist
from tests.support.models.workflows import (
    BAD,
    FINAL,
    LARGE,
    Fate,
    Graph,
    Path,
    Place,
    Run,
    Spot,
    too_large,
)

TABLES = (
    "task_attempts",
    "tasks",
    "workflow_signals",
    "workflow_edges",
    "workflow_nodes",
    "workflows",
    "heartbeats",
    "workers",
    "audit",
)
MAX_BYTES = 1_000_000
LIMIT = 20_000  # MAX_PAYLOAD_BYTES of a drive; two values that are LARGE are larger
ADDED = 1_000_000  # the smallest number of a node added by a task
CODES = {"FAILED": "BROKEN", "SKIPPED": "TASK_SKIPPED", "CANCELLED": "TASK_CANCELLED"}
NODES = "SELECT n.workflow_id, n.number, n.status FROM horsies_workflow_nodes n"
MISCOUNTED = """
SELECT n.workflow_id, n.name, n.status, (n.open, n.ok, n.bad)::text, (c.open, c.ok, c.bad)::text
FROM horsies_workflow_nodes n
JOIN horsies_workflows w ON w.id = n.workflow_id
  AND w.status <> 'CANCELLED'
  AND w.continued_as IS NULL
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE u.finished_at IS NULL) AS open,
         count(*) FILTER (WHERE e.counts AND u.status = 'COMPLETED') AS ok,
         count(*) FILTER (
           WHERE e.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED'
         ) AS bad
  FROM horsies_workflow_edges e
  JOIN horsies_workflow_nodes u ON u.workflow_id = e.workflow_id AND u.number = e.upstream
  WHERE e.workflow_id = n.workflow_id AND e.downstream = n.number
) AS c
WHERE n.status <> 'ADDED' AND (n.open, n.ok, n.bad) <> (c.open, c.ok, c.bad)
  -- the run ended before it was admitted, so it was never counted
  AND NOT (n.added_by >= 0 AND n.status = 'CANCELLED')
  -- this, too, may end it before it is admitted
  AND n.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND'
"""
CROWDED = """
SELECT w.id, w.max_in_flight, c.many FROM horsies_workflows w
CROSS JOIN LATERAL (
  SELECT (SELECT count(*) FROM horsies_tasks t
          WHERE t.workflow_id = w.id AND t.finished_at IS NULL)
       + (SELECT count(*) FROM horsies_workflow_nodes n
          WHERE n.workflow_id = w.id AND n.kind = 'workflow' AND n.status = 'ENQUEUED') AS many
) AS c
WHERE c.many > w.max_in_flight
"""


@dataclass
class Plan:
    """What the tasks of one place do: fail ``failures`` attempts that are retried, add nodes, and
    end.

    ``wavers``: each attempt adds its nodes with other arguments.
    """

    fate: Fate
    failures: int = 0
    grows: list[Spot] = field(default_factory=list)
    wavers: bool = False


class Engine(Claimer):
    """A worker that only runs its statements, and that also advances runs."""

    def __init__(self, conn: psycopg.Connection[Any], max_bytes: int = MAX_BYTES) -> None:
        super().__init__(conn)
        self.max_bytes = max_bytes
        self.goes_on: int | None = max_bytes  # None: its passes leave all advancing to the advancer
        self.start()

    def start(self) -> None:
        """Start again as another worker with empty memory."""
        self.id = uuid.uuid4()
        self.claims: list[tuple[Claim, Place]] = []
        self.growing: dict[uuid.UUID, Iterator[None]] = {}
        self.advancer = Advancer(self.max_bytes)
        enlist(self.conn, self.id, "default")

    @property
    def workflows(self) -> WorkflowStore:
        return self.advancer.store(self.conn, self.channel)

    def run_pass(self, many: int = 0, outcomes: Sequence[Outcome] = (), **owed: Any) -> Passed:
        """Run a pass that claims up to ``many`` tasks."""
        return super().run_pass(many, outcomes=list(outcomes), max_bytes=self.goes_on, **owed)

    def take(self, many: int = 100) -> list[Claim]:
        """Claim tasks."""
        return self.run_pass(many).claims

    def named(self) -> dict[str, Claim]:
        """Claim tasks; return the claims by the names of their nodes, or by the indexes of the
        elements of a map.
        """
        claims = {claim.id: claim for claim in self.take()}
        names = dict(WorkflowNode.objects.filter(task_id__in=claims).values_list("task_id", "name"))
        places = Task.objects.filter(id__in=claims).values_list("id", "node_index")
        return {names.get(id_, f"element {place}"): claims[id_] for id_, place in places}

    def settle(self, *claims: Claim, value: Any = 1, code: str | None = None) -> Passed:
        """Complete tasks with a value, or end them with an error."""
        passed = self.run_pass(outcomes=[ended(claim, value, code) for claim in claims])
        self.advancer.note_finished(passed.in_runs)
        return passed

    def end(self, *claims: Claim, value: Any = 1, code: str | None = None) -> None:
        """End tasks, and advance everything that is due."""
        self.settle(*claims, value=value, code=code)
        self.advance()

    def advance_run(
        self,
        run: uuid.UUID,
        tasks: Iterable[uuid.UUID] = (),
        children: Iterable[uuid.UUID] = (),
        limit: int = 200,
    ) -> Advanced:
        """Advance one run, perhaps inside an open transaction."""
        with self.workflows.advancing(run, tasks, children, limit) as cursor:
            return Advanced(*cursor.fetchall()[0])

    def advance(self) -> None:
        """Advance everything that is due."""
        while self.advancer.find(self.workflows, None, 1_000) or self.advancer.pending_runs:
            self.advancer.turn(self.workflows)

    def run_all(self) -> None:
        """Complete all tasks."""
        self.advance()
        while claims := self.take():
            self.end(*claims)


def ended(claim: Claim, value: Any = 1, code: str | None = None) -> Outcome:
    """Return the outcome of an attempt: a value, or an error code."""
    if code is None:
        return Outcome(
            claim.id, claim.generation, "COMPLETED", json.dumps({"ok": value}), in_run=claim.in_run
        )

    status = "CANCELLED" if code in ("TASK_SKIPPED", "TASK_CANCELLED") else "FAILED"
    error = {"error_code": code, "message": "no", "data": None, "exception": None}
    return Outcome(
        claim.id, claim.generation, status, json.dumps({"err": error}), code, in_run=claim.in_run
    )


class Hand:
    """An engine whose tasks end by name, one by one or together."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.claims: dict[str, Claim] = {}

    def take(self) -> set[str]:
        """Claim all tasks; return the names of all running ones."""
        self.claims |= self.engine.named()
        return {*self.claims}

    def send(self, flow: Workflow) -> WorkflowHandle:
        """Send a run and claim its first tasks."""
        handle = flow.send()
        self.take()
        return handle

    def end(self, *names: str, value: Any = 1, code: str | None = None) -> None:
        """End running tasks, and advance."""
        self.engine.end(*(self.claims.pop(name) for name in names), value=value, code=code)

    def finish(self) -> None:
        """Complete all other tasks."""
        self.engine.settle(*self.claims.values())
        self.claims.clear()
        self.engine.run_all()


class Driven:
    """A run that engines drive at random: ``step`` does one random thing, ``finish`` the rest."""

    STEPS: dict[str, float]  # the possible steps and their weights
    dice: Dice
    handle: WorkflowHandle
    outcome: Callable[[Claim, Any], Outcome]  # how an attempt of a task at a place ends
    settled: Callable[[Outcome, Any, Passed], None]  # notes that this was written
    # notes that a task was claimed, checks that it may run now, returns its place
    began: Callable[[Engine, Claim], Any]

    def __init__(self, connect: Connect, max_bytes: int, engines: int = 2) -> None:
        self.looker = connect()
        self.engines = [Engine(connect(), max_bytes) for _ in range(engines)]
        self.done: list[str] = []

    def clear(self) -> None:
        """Empty the tables, and restart all engines."""
        with self.looker.transaction():
            for table in TABLES:
                self.looker.execute(f"DELETE FROM horsies_{table}")

        for engine in self.engines:
            engine.start()

        self.done = []

    def rows(self, query: str, params: Sequence[Any] | None = None) -> list[Any]:
        return self.looker.execute(query, params).fetchall()

    def step(self) -> None:
        """Do one random step."""
        what = self.dice.choices([*self.STEPS], [*self.STEPS.values()])[0]
        self.done.append(what)
        getattr(self, what)(self.dice.choice(self.engines))
        self.check()

    def advance(self, engine: Engine) -> None:
        """Advance all runs that are due."""
        engine.advancer.turn(engine.workflows)

    def find(self, engine: Engine) -> None:
        """Search the tables for runs that are due."""
        engine.advancer.find(engine.workflows, None, self.dice.choice([1, 3, 1_000]))

    def hold(self, engine: Engine) -> None:
        """Advance in a transaction of one engine that stays open while others try to advance, and
        that may be rolled back.
        """
        commits = self.dice.chance(0.5)

        with engine.conn.transaction(force_rollback=not commits):
            for run, pending in [*engine.advancer.pending_runs.items()]:
                assert not engine.advance_run(run, pending.tasks, pending.children, 3).busy
                for other in self.engines:
                    assert other is engine or other.advance_run(run, [], [], 3).busy

        if not commits and self.dice.chance(0.5):
            engine.advancer = Advancer(engine.max_bytes)  # it died, its memory is lost

    def finish(self) -> None:
        """Do all that is left, without further faults."""
        for _ in range(300):
            self.resume()
            for engine in self.engines:
                self.work(engine, all_=True)
                engine.advancer.find(engine.workflows, None, 1_000)
                self.advance(engine)
            self.check()

            busy = any(engine.claims or engine.advancer.pending_runs for engine in self.engines)
            if not busy and not self.rows(
                "SELECT FROM horsies_workflows w WHERE w.finished_at IS NULL"
            ):
                return

        raise AssertionError(f"stuck as {self.handle.status()}: {self.left()}")

    def work(self, engine: Engine, *, all_: bool = False) -> None:
        """Run a pass that settles some tasks, or all, and claims others.

        The ids of the settled tasks may get lost before the engine advances.
        """
        ends = []
        kept = []
        for claim, place in engine.claims:
            if (all_ or not self.dice.chance(0.4)) and self.runs(engine, claim, place, all_=all_):
                ends.append((self.outcome(claim, place), place))
            else:
                kept.append((claim, place))

        engine.goes_on = self.dice.choice([None, engine.max_bytes])
        passed = engine.run_pass(
            100 if all_ else self.dice.choice([0, 1, 2, 3, 8]), [outcome for outcome, _ in ends]
        )
        assert passed.landed == {outcome.id for outcome, _ in ends}

        for outcome, place in ends:
            self.settled(outcome, place, passed)

        engine.claims = kept
        for claim in passed.claims:
            engine.claims.append((claim, self.began(engine, claim)))

        if not self.dice.chance(0.2):
            engine.advancer.note_finished(passed.in_runs)

    def runs(self, engine: Engine, claim: Claim, place: Any, *, all_: bool) -> bool:
        """Continue the code of a task; return whether it has reached its end."""
        return True

    def resume(self) -> None:
        """Resume the run."""
        self.handle.resume()

    def check(self) -> None:
        """Check what must hold after each step."""

    def left(self) -> list[Any]:
        """Return the nodes that have not ended, each between its run and its task and child run."""
        nodes = """
        SELECT to_jsonb(w), to_jsonb(n), to_jsonb(t), to_jsonb(c)
        FROM horsies_workflow_nodes n
        JOIN horsies_workflows w ON w.id = n.workflow_id
        LEFT JOIN horsies_tasks t ON t.id = n.task_id
        LEFT JOIN horsies_workflows c ON c.id = n.task_id
        WHERE n.finished_at IS NULL"""
        return self.rows(nodes)

    def reap(self, engine: Engine) -> dict[uuid.UUID, str]:
        """Kill an engine while its tasks run, and rescue them by another one; return the outcome of
        each.
        """
        self.looker.execute(
            "UPDATE horsies_heartbeats SET died_at = now() WHERE id = %s", [engine.id]
        )
        told = WorkerStore(self.looker).reap(THRESHOLD, declare_dead=False, many=1_000)
        return {id_: kind for kind, id_, *_ in told}

    def judge_nothing_left(self) -> None:
        """Check that all nodes and tasks have ended, and that no run is due for advancing."""
        assert self.left() == []
        assert not self.rows(
            "SELECT t.task_name, t.status, t.node FROM horsies_tasks t WHERE t.finished_at IS NULL"
        )
        assert self.engines[0].workflows.advance_reasons(None, 1_000) == []


class Drive(Driven):
    """One run of a random graph. ``judge`` compares it with the model."""

    STEPS = {
        "work": 12,
        "advance": 6,
        "find": 2,
        "repeat": 1,
        "hold": 2,
        "control": 2,
        "skip": 1,
        "die": 0.4,
        "cancel_task": 0.4,
        "give_back": 0.6,
        "retry": 0.8,
    }

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect, LIMIT)

    def begin(self, seed: int, size: int, **how: Any) -> None:
        """Send a random workflow into empty tables.

        The settings must have the same MAX_PAYLOAD_BYTES.
        """
        self.clear()
        # Plans depend on the numbers of nodes.
        self.looker.execute("ALTER SEQUENCE horsies_workflow_node_numbers RESTART")

        self.seed = seed
        self.dice = Dice(f"{seed}")

        self.plans: dict[Place, Plan] = {}
        self.fates: dict[Place, Fate] = {}  # how tasks ended against their plan
        self.retried = False
        self.attempts: Counter[uuid.UUID] = Counter()
        self.over: set[uuid.UUID] = set()
        self.owner: dict[uuid.UUID, Engine] = {}
        self.dues: dict[tuple[uuid.UUID, int], Any] = {}  # until when nodes are delayed
        self.retrying = False  # whether a retry was under way at the last check

        self.run = Run(graph_of(self.dice, size, large=self.dice.chance(0.3), **how), self.fate)
        self.handle = build(self.run.graph, "model").send()
        self.paths: dict[uuid.UUID, Path] = {self.handle.workflow_id: ()}
        # the runs at each place at the last check
        self.latest: dict[Path, uuid.UUID] = {}

    # tasks

    def plan(self, place: Place) -> Plan:
        """Return what the tasks of a place do; the same plan at each call."""
        if place not in self.plans:
            dice = Dice(f"{self.seed} {place}")
            path, number, _ = place
            spot = self.run.find(path).graph.spots[number]

            ends = ["COMPLETED"] * 12 + ["FAILED"] * 3 + ["SKIPPED"] * 1 + ["CANCELLED"] * 1
            value = (
                [dice.randrange(4) for _ in range(dice.choice([0, 1, 4]))]
                if dice.chance(0.3)
                else dice.randrange(3)
            )
            if self.run.graph.large and dice.chance(0.4):
                value = LARGE

            status = dice.choice(ends)
            plan = Plan(
                Fate(status, value if status == "COMPLETED" else None),
                dice.choice([0, 1, 2]) if spot.retries else 0,
            )

            if number < ADDED and dice.chance(0.1):
                plan.grows = self.grown(dice)
                plan.wavers = dice.chance(0.5)

            self.plans[place] = plan

        return self.plans[place]

    def grown(self, dice: Dice) -> list[Spot]:
        """Return nodes that a task adds; they may wait for one another."""
        graph = Graph(large=self.run.graph.large)
        for number in range(dice.randint(1, 4)):
            graph.spots[number] = spot_of(dice, graph, number, 0, 2)
        return list(graph.spots.values())

    def fate(self, place: Place) -> Fate:
        """Return how a task ends, for the model."""
        return self.fates.get(place) or self.plan(place).fate

    def grow(self, claim: Claim, place: Place) -> Iterator[None]:
        """Add the nodes of a task, one at a time."""
        path, number, index = place
        flow = inside(claim)
        plan = self.plan(place)
        made: dict[int, Node] = {}

        for spot in plan.grows:
            constant = (
                claim.attempt
                if plan.wavers and spot.kind == "task" and spot.source is None
                else None
            )

            def work(
                path: Path, spot: Spot, constant: Any = constant
            ) -> tuple[Any, dict[str, Any]]:
                return acting(path, spot)[0], {} if constant is None else {"value": constant}

            node = made[spot.number] = add(
                flow, spot, made, f"g{number}.{index}.{spot.number}", work
            )

            def real(each: Any, made: dict[int, Node] = made) -> Any:
                """Return the numbers of nodes in the run."""
                if isinstance(each, tuple | frozenset):
                    return type(each)(made[n].number for n in each)
                return each if each is None or isinstance(each, list) else made[each].number

            # Otherwise a retry has replaced the run of the task.
            if self.row(claim.id)[1] in self.current():
                numbers = {
                    field: real(getattr(spot, field))
                    for field in ("upstream", "branches", "over", "source")
                }
                when = None if spot.when is None else (real(spot.when[0]), spot.when[1])
                self.run.find(path).add(
                    replace(spot, number=node.number, when=when, constant=constant, **numbers)
                )

            yield

    def row(self, task: uuid.UUID) -> Any:
        query = """
        SELECT t.status, t.workflow_id, t.node, t.node_index, w.status
        FROM horsies_tasks t JOIN horsies_workflows w ON w.id = t.workflow_id
        WHERE t.id = %s"""
        return self.rows(query, [task])[0]

    def path(self, run: uuid.UUID) -> Path:
        """Return the path of a run."""
        if run not in self.paths:
            query = "SELECT w.parent_id, w.parent_node FROM horsies_workflows w WHERE w.id = %s"
            ((parent, node),) = self.rows(query, [run])
            self.paths[run] = (*self.path(parent), node)
        return self.paths[run]

    # engines

    def work(self, engine: Engine, *, all_: bool = False) -> None:
        self.note_renewed()
        super().work(engine, all_=all_)

    def runs(self, engine: Engine, claim: Claim, place: Place, *, all_: bool) -> bool:
        growth = engine.growing.setdefault(claim.id, self.grow(claim, place))
        while next(growth, self) is None:  # it has added a node
            if not all_:
                return False
        return True

    def settled(self, outcome: Outcome, place: Place, passed: Passed) -> None:
        self.attempts[outcome.id] += 1
        engine = self.owner.pop(outcome.id)
        del engine.growing[outcome.id]
        if "retry" not in passed.decided.get(str(outcome.id), ()):
            self.over.add(outcome.id)

    def began(self, engine: Engine, claim: Claim) -> Place:
        assert claim.id not in self.owner, "two engines run the same attempt"
        assert claim.id not in self.over, "a finished task runs again"

        self.owner[claim.id] = engine
        _, run, node, index, status = self.row(claim.id)
        assert status not in ("PAUSED", "CANCELLED"), f"a task of a run that is {status} starts"

        place = (self.path(run), node, index)
        # A task at this place was cancelled, and a retry has replaced it.
        if not self.fate(place).begins:
            self.fates[place] = self.fate(place)._replace(begins=True)

        self.check_arguments(claim, place)
        return place

    def outcome(self, claim: Claim, place: Place) -> Outcome:
        plan = self.plan(place)
        if claim.attempt <= plan.failures:
            return ended(claim, code="AGAIN")

        fate = self.fate(place)
        return ended(claim, fate.value, CODES.get(fate.status))

    def check_arguments(self, claim: Claim, place: Place) -> None:
        """Compare the arguments of a task with the model."""
        path, number, index = place
        run = self.run.find(path)
        spot = run.graph.spots[number]
        run.forget()

        found = json.loads(claim.kwargs)
        expected = (
            {"value": (run.elements(spot) or [])[index]}
            if spot.kind == "map"
            else run.argument(spot)
        )

        early = spot.rule == "quorum" and (
            isinstance(spot.source, tuple) or spot.source in spot.branches
        )
        # Or it was sent before a retry of the nodes whose values it takes.
        early = early or number in run.decided

        assert found == expected or (spot.kind == "task" and early), (found, expected, spot)

    def repeat(self, engine: Engine) -> None:
        """Advance a run once more, for tasks that were taken into account long ago."""
        run = self.dice.choice([*self.paths])
        tasks = self.rows("SELECT t.id FROM horsies_tasks t WHERE t.workflow_id = %s", [run])
        children = self.rows("SELECT w.id FROM horsies_workflows w WHERE w.parent_id = %s", [run])

        pending = engine.advancer.pending_run(run)
        pending.tasks |= {row[0] for row in tasks}
        pending.children |= {row[0] for row in children}
        self.advance(engine)

    # people

    def control(self, engine: Engine) -> None:
        """Pause the run, perhaps while another transaction holds tasks, or resume it."""
        if self.dice.chance(0.4):
            with engine.conn.transaction():
                if self.dice.chance(0.5):
                    engine.conn.execute(
                        "SELECT FROM horsies_tasks WHERE status = 'PENDING' FOR UPDATE"
                    )
                self.handle.pause()

            running = "SELECT w.id FROM horsies_workflows w WHERE w.status = 'RUNNING'"
            assert not self.rows(running), "a run inside runs on"
        else:
            self.resume()

    def resume(self) -> None:
        """Resume the run, and the runs inside it that a failure paused."""
        if self.handle.resume():
            self.check_paused_runs_have_failed()

        paused = "SELECT w.id FROM horsies_workflows w WHERE w.status = 'PAUSED' ORDER BY w.sent_at"
        for (run,) in self.rows(paused):
            WorkflowHandle(run).resume()

    def skip(self, engine: Engine) -> None:
        """Skip a node by hand."""
        run, number, status = self.dice.choice(
            self.rows(f"{NODES} ORDER BY n.workflow_id, n.number")
        )

        try:
            operations.skip(run, number)
        except WorkflowError:
            return

        assert status in ("ADDED", "PENDING", "READY", "ENQUEUED")
        self.run.find(self.path(run)).skipped.add(number)

    def die(self, engine: Engine) -> None:
        """Kill an engine while its tasks run, and rescue them by another one."""
        ends = self.reap(engine)
        assert ends.keys() == {claim.id for claim, _ in engine.claims}

        for claim, place in engine.claims:
            del self.owner[claim.id]
            self.attempts[claim.id] += 1
            if ends[claim.id] == "failed":
                self.over.add(claim.id)
                self.fates[place] = Fate("FAILED")

        engine.start()

    def give_back(self, engine: Engine) -> None:
        """Give back tasks that have not begun, as when a child process dies."""
        back = [
            claim
            for claim, _ in engine.claims
            if claim.id not in engine.growing and self.dice.chance(0.5)
        ]
        engine.run_pass(releases=back)

        for claim, place in engine.claims:
            if claim in back:
                del self.owner[claim.id]
                if self.row(claim.id)[0] == "CANCELLED":
                    self.over.add(claim.id)
                    self.fates[place] = Fate("CANCELLED")

        engine.claims = [pair for pair in engine.claims if pair[0] not in back]

    def cancel_task(self, engine: Engine) -> None:
        """Cancel a waiting task by hand."""
        waiting = """
        SELECT t.id, t.workflow_id, t.node, t.node_index, t.retry_count > 0 FROM horsies_tasks t
        WHERE t.status = 'PENDING' ORDER BY t.id"""
        rows = self.rows(waiting)

        if rows:
            task, run, node, index, begun = self.dice.choice(rows)
            TaskStore(self.looker).cancel([task], engine.channel, terminate=False)
            self.over.add(task)
            self.fates[self.path(run), node, index] = Fate("CANCELLED", begins=begun)

    def retry(self, engine: Engine | None = None) -> None:
        """Retry failed nodes, most of which complete now, and resume everything that is paused."""
        if self.run.graph.on_error == "stop" or self.handle.status() == "CANCELLED":
            return  # how nodes end depends on when they were broken off

        self.engines[0].advance()  # a retry takes into account which nodes have ended
        self.run.forget()
        ended = self.handle.status() == "FAILED"
        if self.run.graph.large and not ended:
            return  # the values that a waiting node takes depend on the moment of the retry

        self.dues.clear()
        runs = [*self.retried_runs(self.run, retried=True)]

        try:
            self.handle.retry()
        except WorkflowError:
            assert not ended
            assert not any(again for _, _, again in runs), runs
            return

        assert ended or any(again for _, _, again in runs)
        self.check_paused_runs_have_failed()

        for run, now, again in runs:
            run.keep(now, again)
            for number, child in run.children.items():
                if number in again and run.graph.spots[number].upstream & again:
                    self.renew(child)

        places = {(run.path, number) for run, _, again in runs for number in again}
        for place in [
            place for place in {*self.plans, *self.fates} if self.fate(place).status in BAD
        ]:
            if place[:2] in places and self.dice.chance(0.8):
                self.fates[place] = Fate("COMPLETED", 1)

        self.run.forget()
        self.retried = True

    def retried_runs(
        self, run: Run, *, retried: bool
    ) -> Iterator[tuple[Run, dict[int, str], set[int]]]:
        """Yield each run with the statuses of its nodes now and the nodes that run again; none run
        again in a run whose end counts.
        """
        now = self.statuses(run)
        final = {number: status for number, status in now.items() if status in FINAL}
        assert final == {number: run.node(number) for number in final}, (run.path, final)

        again = run.again(now) if retried else set()
        yield run, now, again

        for number, child in run.children.items():
            renewed = number in again and run.graph.spots[number].upstream & again
            if not renewed and self.statuses(child):
                yield from self.retried_runs(
                    child, retried=number in again or now[number] == "ENQUEUED"
                )

    def statuses(self, run: Run) -> dict[int, str]:
        """Return the statuses of the nodes of a run; empty if it has not begun."""
        query = "SELECT n.number, n.status FROM horsies_workflow_nodes n WHERE n.workflow_id = %s"
        current = [id_ for id_ in self.current() if self.path(id_) == run.path]
        return dict(self.rows(query, current)) if current else {}

    def renew(self, run: Run) -> None:
        """Note that another run takes the place of this one."""
        run.kept = {}
        run.decided = set()
        run.skipped = set()
        run.told = 0

        run.graph.spots = {
            number: spot for number, spot in run.graph.spots.items() if number < ADDED
        }
        self.latest.pop(run.path, None)

        for child in run.children.values():
            self.renew(child)

    def note_renewed(self) -> None:
        """Note runs that have replaced others: a node that fails during a retry in parts also runs
        again.
        """
        for id_ in self.current():
            path = self.path(id_)
            if self.latest.setdefault(path, id_) != id_:
                self.renew(self.run.find(path))
                self.latest[path] = id_

    def check_paused_runs_have_failed(self) -> None:
        """Check that each paused run was paused by a failure of its own."""
        query = (
            "SELECT w.id FROM horsies_workflows w WHERE w.status = 'PAUSED' AND w.error_code IS "
            "NULL"
        )
        assert not self.rows(query), self.done[-5:]

    def cancel(self) -> None:
        """Cancel the run, perhaps during a retry; nodes that the retry has not reached stay as they
        are.
        """
        for run in self.run.all() if self.retrying else ():
            run.kept |= {
                number: status for number, status in self.statuses(run).items() if status in BAD
            }

        self.handle.cancel()

    # checks

    def check(self) -> None:
        """Check what must hold after each step."""
        for query in (MISCOUNTED,) if self.retried else (MISCOUNTED, CROWDED):
            found = self.rows(query)
            assert not found, (self.done[-12:], found)

        retrying = self.rows(
            "SELECT count(*) FROM horsies_workflows WHERE retrying IS NOT NULL"
        ) != [(0,)]
        if retrying or self.retrying:  # a delay begins anew with each part of it
            self.dues.clear()
        self.retrying = retrying

        delays = """
        SELECT n.workflow_id, n.number, n.due_at FROM horsies_workflow_nodes n
        WHERE n.delay IS NOT NULL AND n.due_at IS NOT NULL"""
        for run, number, due in self.rows(delays):
            assert self.dues.setdefault((run, number), due) == due, "a delay begins anew"

    def current(self) -> set[uuid.UUID]:
        """Return the runs that count, without those that a retry replaced by a new run, and their
        children.
        """
        query = """
        WITH RECURSIVE run (id) AS (
          SELECT %s UNION ALL
          SELECT w.id FROM run r JOIN horsies_workflow_nodes n ON n.workflow_id = r.id
          JOIN horsies_workflows w ON w.id = n.task_id) SELECT r.id FROM run r"""
        return {id_ for (id_,) in self.rows(query, [self.handle.workflow_id])}

    def judge(self) -> None:
        """Compare everything with the model."""
        self.judge_nothing_left()
        self.run.forget()
        current = self.current()

        found = {
            (self.path(run), number): status
            for run, number, status in self.rows(NODES)
            if run in current
        }
        assert found == {
            (run.path, number): run.node(number)
            for run in self.run.all()
            for number in run.graph.spots
        }

        all_runs = self.rows("SELECT w.id, w.status, w.result FROM horsies_workflows w")
        runs = {self.path(row[0]): row for row in all_runs if row[0] in current}
        assert {path: row[1] for path, row in runs.items()} == {
            run.path: run.status() for run in self.run.all()
        }

        for run in self.run.all():
            id_, _, result = runs[run.path]
            self.judge_result(run, id_, result)
            self.judge_handle(
                run, WorkflowHandle(id_), {path: row[0] for path, row in runs.items()}
            )

        self.judge_tasks()

    def judge_broken_off(self) -> None:
        """Check a run that was stopped or cancelled: nodes that ended match the model, and the rest
        is cancelled.
        """
        self.judge_nothing_left()
        self.run.forget()

        found = {(self.path(run), number): status for run, number, status in self.rows(NODES)}
        wrong = {
            place: status
            for place, status in found.items()
            if status not in (self.run.find(place[0]).node(place[1]), "CANCELLED", "SKIPPED")
        }

        self.judge_broken_maps()

        # Also right are: a child that was stopped, a map one of whose tasks was stopped, and a task
        # that was not retried because it was to stop.
        for (path, number), status in [*wrong.items()]:
            spot = self.run.find(path).graph.spots[number]
            stopped = (
                spot.retries
                or spot.kind == "map"
                or any(
                    each == "CANCELLED"
                    for (inside, _), each in found.items()
                    if inside[: len(path) + 1] == (*path, number)
                )
            )
            if status == "FAILED" and stopped:
                del wrong[path, number]

        assert not wrong, [
            (place, self.run.find(place[0]).graph.spots[place[1]]) for place in wrong
        ]

    def judge_broken_maps(self) -> None:
        """Check that a map is CANCELLED if none of its tasks began or some were not sent, and else
        FAILED.
        """
        maps = """
        SELECT n.workflow_id, n.number, n.status, n.error_code, n.total,
               coalesce(array_agg(t.id) FILTER (WHERE t.id IS NOT NULL), '{}')
        FROM horsies_workflow_nodes n
        LEFT JOIN horsies_tasks t ON t.workflow_id = n.workflow_id AND t.node = n.number
        WHERE n.kind = 'map' AND n.status IN ('FAILED', 'CANCELLED')
          AND n.error_code <> 'MAP_WITHOUT_LIST'
        GROUP BY n.workflow_id, n.number"""

        for run, number, status, code, total, tasks in self.rows(maps):
            if code == "WORKFLOW_ENDED":  # before it joined the run, or joined it again by a retry
                assert status == "CANCELLED", (self.path(run), number)
            elif code == "WORKFLOW_CANCELLED":
                assert (status, total is None or len(tasks) < total) == ("CANCELLED", True), (
                    self.path(run),
                    number,
                )
            else:
                passed_over = total is not None and len(tasks) < total
                begun = passed_over or any(self.attempts[task] for task in tasks)
                assert status == ("FAILED" if begun else "CANCELLED"), (self.path(run), number)

    def judge_handle(self, run: Run, handle: WorkflowHandle, ids: Mapping[Path, uuid.UUID]) -> None:
        """Compare all that a handle returns with the model."""
        query = "SELECT n.number, n.name FROM horsies_workflow_nodes n WHERE n.workflow_id = %s"
        names = dict(self.rows(query, [handle.workflow_id]))
        children = {names[path[-1]]: ids[path] for path in ids if path[:-1] == run.path and path}
        assert {name: child.workflow_id for name, child in handle.children().items()} == children

        results = {name: each for name, each in handle.results().items() if each is not None}
        assert results.keys() == {*names.values()}
        values = {
            names[number]: run.value(number) for number in names if run.node(number) == "COMPLETED"
        }
        assert {name: each.ok_value for name, each in results.items() if each.is_ok()} == values

        # Otherwise a pause may have withdrawn tasks of the map.
        if not self.retried and not any(
            run.graph.spots[number].kind == "map" for number in run.skipped
        ):
            assert handle.progress()[:4] == run.progress(), run.path

        assert [change.action for change in handle.history()].count("workflow.keep") == run.told, (
            run.path
        )

    def judge_result(self, run: Run, id_: uuid.UUID, result: Any) -> None:
        """Compare the result of a run with the model."""
        if run.fatal():
            query = "SELECT n.name, n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = %s"
            numbers = dict(self.rows(query, [id_]))
            assert numbers[result["err"]["data"]["node"]] in run.fatal(), (run.path, result)
        elif too_large(run.result()):
            assert result["err"]["error_code"] == "PAYLOAD_TOO_LARGE"
        elif run.graph.output is None or run.node(run.graph.output) == "COMPLETED":
            assert result == {"ok": run.result()}, (run.path, result, run.result())
        else:
            assert "err" in result, (run.path, result)

    def judge_tasks(self) -> None:
        """Check that each task has one attempt for each time it was settled, and that there are no
        other tasks.
        """
        attempts = self.rows(
            "SELECT a.task_id, count(*) FROM horsies_task_attempts a GROUP BY a.task_id"
        )
        assert dict(attempts) == self.attempts

        tasks = self.rows(
            "SELECT t.workflow_id, t.node FROM horsies_tasks t WHERE t.node IS NOT NULL"
        )
        current = self.current()
        found = Counter((self.path(run), node) for run, node in tasks if run in current)
        assert found == Counter(
            {
                (run.path, number): run.many(number)
                for run in self.run.all()
                for number in run.graph.spots
            }
        )


def miscounted() -> list[Any]:
    """Return the nodes whose counters differ from the statuses of their upstream nodes."""
    return list(sql(MISCOUNTED))


def inside(claim: Claim) -> RunningWorkflow:
    """Return the workflow as the code of a claimed task sees it."""
    return workflow_of(CurrentTask(claim))


def chain(*names: str, undo: Any = None, **options: Any) -> Workflow:
    """Return a workflow of tasks, each of which takes the result of the one before it."""
    flow = Workflow("chain", **options)
    for name in names:
        flow.add(flows.act, *flow.nodes[-1:], name=name, undo=undo)
    return flow
