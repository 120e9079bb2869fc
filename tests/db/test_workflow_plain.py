"""What a pass itself does for the workflows whose tasks it settles, and what it leaves to an advance."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from horsies_django import Workflow, quorum
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from tests.apps.project import flows
from tests.conftest import Connect
from tests.db.conftest import heard
from tests.db.drives import Engine, chain, ended, inside, miscounted
from tests.db.test_statements import explained
from tests.db.test_workflows import statuses

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_pass_goes_on_with_a_chain_and_claims_what_it_sends(engine: Engine) -> None:
    """Naive: settle, advance and claim are three round trips, and two commits more."""
    handle = chain("a", "b", "c").send()
    (first,) = engine.take()
    passed = engine.run_pass(5, [ended(first, 7)])
    (second,) = passed.claims
    assert (passed.in_runs, second.task_name) == ([], flows.act.name)
    assert statuses(handle) == {"a": "COMPLETED", "b": "ENQUEUED", "c": "PENDING"}
    assert "7" in second.kwargs, "it has the result of the task that this pass settled"
    (third,) = engine.run_pass(5, [ended(second)]).claims
    assert None not in Task.objects.exclude(pk=third.id).values_list("advanced_at", flat=True)
    assert engine.run_pass(5, [ended(third)]).in_runs == []
    assert (handle.status(), miscounted(), engine.workflows.owed(None, 1_000)) == ("COMPLETED", [], [])


def test_a_pass_ends_a_run_with_its_value_and_tells_who_waits_for_it(engine: Engine, connect: Connect) -> None:
    """Naive: the last node of a run is an advance of its own, with a round trip and a commit more."""
    flow = Workflow("two")
    first = flow.add(flows.act, name="a")
    flow.add(flows.act, name="b")
    flow.returns(first)
    handle = flow.send()
    listener = connect()
    listener.execute("INSERT INTO horsies_waiters VALUES (gen_random_uuid(), now() + interval '1 h')")
    listener.execute(f"LISTEN {engine.channel}_done")
    one, other = sorted(engine.take(), key=lambda claim: Task.objects.get(pk=claim.id).node or 0)
    assert engine.settle(one, value=[7]).in_runs == []
    assert handle.status() == "RUNNING", "another node is open"
    assert engine.settle(other).in_runs == []
    assert (handle.status(), handle.get(0).ok_value) == ("COMPLETED", [7])
    assert str(handle.workflow_id) in " ".join(heard(listener)).split()


def test_a_join_starts_in_the_pass_that_settles_its_last_task(engine: Engine) -> None:
    flow = Workflow("join")
    flow.add(flows.act, after=[flow.add(flows.act, name=name) for name in "abc"], name="end")
    handle = flow.send()
    first, *others = engine.take()
    assert engine.run_pass(5, [ended(first)]).claims == []
    assert statuses(handle)["end"] == "PENDING"
    (last,) = engine.run_pass(5, [ended(claim) for claim in others]).claims
    assert (Task.objects.get(pk=last.id).node, miscounted()) == (WorkflowNode.objects.get(name="end").number, [])


LEFT: dict[str, Callable[[Workflow, Any], object]] = {
    "a condition": lambda flow, first: flow.add(flows.act, after=first, when=first.matches("$ == 1")),
    "any": lambda flow, first: flow.add(flows.act, after=[first, flow.gate("never")], join="any"),
    "a quorum": lambda flow, first: flow.add(flows.act, after=[first, flow.gate("never")], join=quorum(1)),
    "a delay": lambda flow, first: flow.add(flows.act.with_options(delay=60), after=first),
    "a map": lambda flow, first: flow.map(flows.act, value=[1, 2], after=first),
    "a timer": lambda flow, first: flow.sleep(1_000, after=first),
    "a run inside": lambda flow, first: flow.add(chain("inner"), after=first),
    "one task beside another": lambda flow, first: [flow.add(flows.act, after=first), flow.gate("wait", after=first)],
}


@pytest.mark.parametrize("what", LEFT)
def test_where_more_has_to_be_decided_a_pass_leaves_the_run_as_it_is(engine: Engine, what: str) -> None:
    flow = Workflow("left")
    LEFT[what](flow, flow.add(flows.act, name="first"))
    handle = flow.send()
    (claim,) = engine.take()
    before = statuses(handle)
    passed = engine.settle(claim)
    assert (passed.in_runs, statuses(handle)) == ([(handle.workflow_id, claim.id)], before)
    assert Task.objects.get(pk=claim.id).advanced_at is None
    engine.advance()
    assert (statuses(handle)["first"], miscounted()) == ("COMPLETED", [])


@pytest.mark.parametrize("what", ["a limit", "a pause", "a part that is left", "added nodes", "a failure", "a skip"])
def test_a_run_in_which_something_matters_is_left_to_an_advance(engine: Engine, what: str) -> None:
    handle = chain("a", "b", "c", max_in_flight=1 if what == "a limit" else None).send()
    (claim,) = engine.take()
    if what == "a pause":
        handle.pause()
    elif what == "a part that is left":
        WorkflowRun.objects.update(owed_at=Now())
    elif what == "added nodes":
        inside(claim).add(flows.act, name="added")
    passed = engine.settle(claim, code={"a failure": "BROKEN", "a skip": "TASK_SKIPPED"}.get(what))
    assert (passed.in_runs, Task.objects.count()) == ([(handle.workflow_id, claim.id)], 1)
    engine.advance()
    assert miscounted() == []


def test_a_run_inside_another_one_is_left_to_an_advance_which_looks_at_its_parent(engine: Engine) -> None:
    flow = Workflow("parent")
    flow.add(chain("a", "b"))
    handle = flow.send()
    (claim,) = engine.take()
    WorkflowRun.objects.filter(pk=handle.workflow_id).update(status="CANCELLED")
    assert len(engine.settle(claim).in_runs) == 1
    engine.advance()
    assert Task.objects.count() == 1


def test_a_task_that_failed_leaves_those_of_its_run_that_completed_beside_it(engine: Engine) -> None:
    flow = Workflow("two")
    for name in "ab":
        flow.add(flows.act, after=flow.add(flows.act, name=name), name=f"after {name}")
    flow.send()
    one, two = engine.take()
    passed = engine.run_pass(0, [ended(one), ended(two, code="BROKEN")])
    assert {task for _, task in passed.in_runs} == {one.id, two.id}


def test_a_run_that_another_transaction_holds_is_not_waited_for(engine: Engine, connect: Connect) -> None:
    handle = chain("a", "b").send()
    (claim,) = engine.take()
    holder = connect()
    engine.conn.execute("SET lock_timeout = '5s'")
    with holder.transaction():
        holder.execute("SELECT FROM horsies_workflows WHERE id = %s FOR UPDATE", [handle.workflow_id])
        passed = engine.settle(claim)
    assert (passed.landed, passed.in_runs) == ({claim.id}, [(handle.workflow_id, claim.id)])


def test_a_task_that_cannot_be_sent_does_not_refuse_the_outcome_before_it(engine: Engine) -> None:
    """Naive: the error of the send ends the pass, and all of its outcomes are refused."""
    handle, other = chain("a", "b").send(), chain("a", "b").send()
    claims = engine.take()
    engine.goes_on = 100
    long = next(claim for claim in claims if Task.objects.get(pk=claim.id).workflow_id == handle.workflow_id)
    (short,) = (claim for claim in claims if claim is not long)
    passed = engine.run_pass(5, [ended(long, "x" * 200), ended(short, 1)])
    assert (passed.landed, len(passed.in_runs)) == ({long.id, short.id}, 2)
    assert set(Task.objects.values_list("advanced_at", flat=True)) == {None}
    engine.advancer.owe(passed.in_runs)
    engine.advancer.max_bytes = 100
    engine.run_all()
    assert (statuses(handle)["b"], other.status()) == ("FAILED", "COMPLETED")


def test_a_pass_sends_no_task_against_the_rules_of_its_table_for_a_node_that_a_stranger_wrote(engine: Engine) -> None:
    """Naive: rows that a pass writes are not checked, so it sends what no later statement could bear."""
    chain("a", "b").send()
    (first,) = engine.take()
    WorkflowNode.objects.filter(name="b").update(priority=0)
    passed = engine.run_pass(5, [ended(first)])
    assert (passed.landed, len(passed.in_runs), Task.objects.count()) == ({first.id}, 1, 1)


def test_workers_are_told_of_what_a_pass_sent_and_did_not_claim(engine: Engine, connect: Connect) -> None:
    """Naive: all tasks that it sends are announced, so each hop wakes a worker for nothing; or none is, and one waits."""
    flow = Workflow("fan")
    first = flow.add(flows.act, name="first")
    for name in "abc":
        flow.add(flows.act, after=flow.add(flows.act, after=first, name=name), name=f"after {name}")
    flow.send()
    listener = connect()
    (claim,) = engine.take()
    listener.execute(f"LISTEN {engine.channel}_new")
    claims = engine.run_pass(2, [ended(claim)]).claims
    assert (len(claims), [text.split()[-1] for text in heard(listener)]) == (2, ["default"]), "one is left"
    claims += engine.take(1)
    claims = engine.run_pass(3, [ended(claim) for claim in claims]).claims
    assert (len(claims), heard(listener)) == (3, [])


def test_of_a_run_of_many_nodes_a_pass_reads_those_that_it_moves(engine: Engine, connect: Connect) -> None:
    """Naive: with the run as a constant, a plan of an empty table reads all nodes of the run for each of its tasks."""
    for _ in range(100):
        chain("a", "b", "c").send()
    connect().execute("ANALYZE")
    for _ in range(3):
        engine.settle(*engine.take())
    flow = chain(*map(str, range(300)))
    flow.send()
    notices = explained(engine)  # type: ignore[arg-type]
    engine.run_pass(1, [ended(claim) for claim in engine.take()])
    scans = re.findall(r"Scan using horsies_workflow_nodes_pkey on .*\n\s+Index Cond: (.*)", "\n".join(notices))
    assert len(scans) > 5
    assert [condition for condition in scans if "number = " not in condition] == []
