"""Random workflows, sagas and waits, driven in random order by engines that die and forget, end as the pure model says."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from horsies_django import Workflow, WorkflowError
from horsies_django.models import WorkflowNode, WorkflowSignal
from horsies_django.tasks.options import simulated_now
from horsies_django.workflows.handle import WorkflowHandle
from tests.conftest import Connect
from tests.db.conftest import Parts
from tests.db.drives import LIMIT, MAX_BYTES, MISCOUNTED, Drive, Driven, Engine
from tests.db.graphs import Dice
from tests.db.sagas import Saga
from tests.support.models.waits import Line, Sent, Waiter
from tests.support.sizes import examples

SEEDS = examples(40, 3_000)
SAGAS = examples(60, 3_000)
WAITS = examples(25, 2_000)
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(max(240, 2 * SAGAS)),
    pytest.mark.thorough,
]


@pytest.fixture(params=[1_000, 2], ids=["whole", "in parts of 2"])
def in_parts(parts: Parts, settings: Any, request: pytest.FixtureRequest) -> None:
    """Let a transaction move so many nodes, and values be so large."""
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": LIMIT}
    parts(request.param)


@contextmanager
def noted(drive: Driven, seed: int, size: int) -> Iterator[None]:
    """Note in an error with which seed the drive began, and what it has done."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {seed}, {size} nodes, {len(drive.done)} steps: {drive.done}")
        raise


def step(drive: Driven, *many: int) -> None:
    """Take one of so many steps."""
    for _ in range(drive.dice.choice(many)):
        drive.step()


@pytest.mark.usefixtures("in_parts")
@pytest.mark.promise("S3.1", "S4.24")
def test_workflows_end_as_the_model_says_whatever_the_order_and_whoever_dies(connect: Connect) -> None:
    """Naive, in parts of 2: a node is decided about before all that it waits for is to run again, or stays skipped."""
    drive = Drive(connect)
    for seed in range(SEEDS):
        size = 1 + seed % 60
        with noted(drive, seed, size):
            drive.begin(seed, size)
            step(drive, 0, 10, 40, 40 + 2 * size)
            drive.finish()
            drive.judge()
            if drive.handle.status() == "FAILED" and seed % 2:
                drive.retry()
                step(drive, 0, 10, 40)
                drive.finish()
                drive.judge()


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_what_is_stopped_or_cancelled_leaves_nothing_open_whatever_the_order_and_whoever_dies(
    connect: Connect, how: str
) -> None:
    drive = Drive(connect)
    for seed in range(SEEDS // 2):
        size = 1 + seed % 60
        with noted(drive, seed, size):
            drive.begin(seed, size, on_error="stop" if how == "stop" else None)
            step(drive, 3, 10, 40, size)
            if how == "cancel":
                drive.cancel()
                step(drive, 10)
            drive.finish()
            drive.judge_broken_off()
            assert drive.handle.status() in ("FAILED" if how == "stop" else "CANCELLED", drive.run.status())


@pytest.mark.usefixtures("in_parts")
def test_what_began_is_undone_once_and_after_what_depends_on_it_whoever_dies(connect: Connect) -> None:
    saga, ends = Saga(connect), Counter[str]()
    for seed in range(SAGAS):
        size = 1 + seed % 25
        with noted(saga, seed, size):
            saga.begin(seed, size)
            step(saga, 0, 10, 40, 40 + 2 * size)
            if saga.dice.chance(0.2):
                saga.cancel(saga.engines[0])
            saga.finish()
            saga.judge()
            ends[saga.handle.status()] += 1
            while any(saga.undone.values()) and saga.dice.chance(0.7):
                ends["retried"] += 1
                saga.retry_undos()
                step(saga, 0, 10)
                saga.finish()
                saga.judge()
    assert min(ends[each] for each in ("COMPLETED", "FAILED", "CANCELLED", "retried")) > 0, ends


# waits

BEGIN = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


class Waits(Driven):
    """A run that only waits, or continues as another one, and the model of it. All is sent to the first run."""

    STEPS = {"signal": 8, "decide": 2, "pass_time": 3, "advance": 4, "die": 1, "flood": 0.3}

    def begin(self, seed: int) -> None:
        """Send a random run into empty tables."""
        self.clear()
        self.dice = Dice(f"waits {seed}")
        self.first = Line(self.waiters(self.dice.randint(1, 12)))
        self.at(0)
        self.handle = self.built(self.first.nodes).send()
        self.first.move(self.now)

    @property
    def line(self) -> Line:
        return self.first.last()

    def waiters(self, many: int, depth: int = 0) -> list[Waiter]:
        nodes: list[Waiter] = []
        for number in range(many):
            nodes.append(self.waiter(number, [node.number for node in nodes if node.kind != "continue"], depth))
        return nodes

    def waiter(self, number: int, before: list[int], depth: int) -> Waiter:
        dice = self.dice
        kind = dice.choice(["signal"] * 5 + ["timer", "gate"] + ["continue"] * (depth < 2))
        name = {"signal": dice.choice("ab"), "gate": f"gate {number}"}.get(kind)
        node = Waiter(number, kind, name, timeout=dice.choice([None, None, 0, 2, 5, 9]))
        if kind == "signal":
            node.key = dice.choice([None, None, "x", "y"])
        if kind == "timer":
            node.timeout, node.on_timeout = node.timeout or 0, "complete"
        else:
            node.on_timeout = dice.choice(["fail", "skip", "complete"])
        node.upstream = tuple(dice.sample(before, min(len(before), dice.choice([0, 0, 1, 1, 2]))))
        node.allow_failed = dice.chance(0.4)
        if kind == "continue":
            node.following = self.waiters(dice.randint(1, 6), depth + 1)
        return node

    def built(self, nodes: list[Waiter]) -> Workflow:
        flow = Workflow("waits")
        made: list[Any] = []
        for node in nodes:
            how: dict[str, Any] = {"after": [made[each] for each in node.upstream], "allow_failed": node.allow_failed}
            limit = {"timeout": node.timeout, "on_timeout": node.on_timeout}
            if node.kind == "timer":
                made.append(flow.sleep(node.timeout or 0, **how))
            elif node.kind == "gate":
                made.append(flow.gate(f"gate {node.number}", **limit, **how))
            elif node.kind == "continue":
                made.append(flow.continue_as(self.built(node.following), name=f"continue {node.number}", **how))
            else:
                made.append(flow.signal(node.signal or "", key=node.key, **limit, **how))
        return flow

    def at(self, seconds: int) -> None:
        """Let it be so many seconds after the beginning."""
        self.now = seconds
        moment = BEGIN + dt.timedelta(seconds=seconds)
        simulated_now.set(moment)
        for engine in self.engines:
            engine.advancer.now = moment

    def signal(self, engine: Engine) -> None:
        sent = Sent(self.dice.choice("ab"), self.dice.choice([None, "x", "y"]), len(self.line.sent), self.now)
        self.send(sent)

    def flood(self, engine: Engine) -> None:
        """Send more signals of one name and key than an advance takes, and others after them, and let time pass."""
        late = [node for node in self.line.nodes if node.kind in ("signal", "continue") and node.status == "PENDING"]
        if not late:  # what these get of the signals that an advance has not seen depends on when they begin
            name, key = self.dice.choice("ab"), self.dice.choice([None, "x", "y"])
            for _ in range(205):
                self.send(Sent(name, key, len(self.line.sent), self.now))
            for _ in range(9):
                self.signal(engine)
            self.pass_time(engine)

    def decide(self, engine: Engine) -> None:
        gates = [node.signal for line in self.first.all() for node in line.nodes if node.kind == "gate"]
        if gates:
            name, approved = self.dice.choice(gates) or "", self.dice.chance(0.6)
            counts = self.line.decide(name, approved, {"by": "ada", "reason": None}, self.now)
            try:
                (self.handle.approve if approved else self.handle.reject)(name, actor="ada")
            except (WorkflowError, LookupError):
                assert not counts
            else:
                assert counts

    def send(self, sent: Sent) -> None:
        """Send a signal, which is refused if no node will ever take it; the tables may know that later than the model."""
        try:
            self.handle.signal(sent.name, sent.value, key=sent.key)
        except (WorkflowError, LookupError):
            assert not self.line.takes(sent.name)
        else:
            assert self.line.takes(sent.name)
            self.line.sent.append(sent)

    def pass_time(self, engine: Engine) -> None:
        self.at(self.now + self.dice.randint(1, 4))

    def advance(self, engine: Engine) -> None:
        """Advance all that is owed, some of it together."""
        if self.dice.chance(0.3):
            engine.advancer.wake(engine.workflows)
        engine.advance()
        self.line.advance(self.now)
        self.judge()

    def die(self, engine: Engine) -> None:
        """Let an engine die before it commits."""
        with engine.conn.transaction(force_rollback=True):
            engine.advance_run(self.handle.latest().workflow_id)

    def judge(self) -> None:
        handle: WorkflowHandle[Any] | None = self.handle
        for line in self.first.all():
            assert handle is not None, "the run did not continue"
            rows = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
            assert list(rows.values_list("status", "value")) == [(node.status, node.value) for node in line.nodes]
            unused = WorkflowSignal.objects.filter(workflow_id=handle.workflow_id, used_at=None).order_by("pk")
            assert list(unused.values_list("name", "key")) == [
                (sent.name, sent.key) for sent in line.sent if not sent.used
            ]
            ended = "COMPLETED" if line.next or not line.failed() else "FAILED"
            assert handle.status() == (ended if line.ended() else "RUNNING")
            handle = handle.successor()
        assert handle is None, "the run continued"
        found = self.handle.get(0)
        code = None if found.is_ok() else found.err_value.error_code
        assert code == (("WORKFLOW_FAILED" if self.line.failed() else None) if self.line.ended() else "WAIT_TIMEOUT")
        assert not self.rows(MISCOUNTED)


def test_signals_and_timeouts_end_waits_as_the_model_says(connect: Connect) -> None:
    waits, before = Waits(connect, MAX_BYTES), simulated_now.get()
    try:
        for seed in range(WAITS):
            waits.begin(seed)
            with noted(waits, seed, len(waits.first.nodes)):
                step(waits, 5, 20, 60)
                waits.advance(waits.engines[0])
    finally:
        simulated_now.set(before)
