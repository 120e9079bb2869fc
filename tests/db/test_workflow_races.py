"""Two and three sessions on one run: nothing is advanced twice, nothing waits for ever, and nothing is half done.

Sessions are engines reduced to their statements. One is held by running its statement in a transaction that stays open; who waits is
read from pg_blocking_pids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from horsies_django import Workflow, WorkflowError, quorum
from horsies_django.core.records import Claim
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.store.workers import WorkerStore
from horsies_django.tasks.context import CurrentTask
from horsies_django.workflows.growth import RunningWorkflow, workflow_of
from tests.apps.project import flows
from tests.db.conftest import Aside, wait_for_waiting
from tests.db.drives import MISCOUNTED, Engine
from tests.db.graphs import AGAIN
from tests.db.lives import THRESHOLD

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]


@pytest.fixture
def engine(connect: Connect) -> Callable[[], Engine]:
    """Give a function that makes engines, each on a connection of its own."""
    return lambda: Engine(connect())


Engines = Callable[[], Engine]


def statuses(handle: Any) -> dict[str, str]:
    nodes = WorkflowNode.objects.filter(workflow_id=handle.workflow_id).order_by("number")
    return {node.name: node.status for node in nodes}


def inside(claim: Claim) -> RunningWorkflow:
    """Return the workflow as the code of a claimed task sees it."""
    return workflow_of(CurrentTask(str(claim.id), claim.task_name, claim.attempt))


def miscounted() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(MISCOUNTED)
        return list(cursor.fetchall())


def chain() -> Workflow:
    flow = Workflow("chain")
    flow.add(flows.act, flow.add(flows.act, name="first"), name="second")
    return flow


# the counters of nodes


def test_a_node_added_after_its_upstream_node_finished_does_not_count_it_twice(engine: Engines) -> None:
    """Naive: the run is advanced for a finished node, admits one that waits for it and counts it, then tells it of it again."""
    one = engine()
    flow = Workflow("grows")
    flow.add(flows.act, name="grows")
    handle = flow.send()
    (grows,) = one.take()
    growing = inside(grows)
    first, second = growing.add(flows.act, name="a"), growing.add(flows.act, name="b")
    one.advance()
    claims = {claim.id: claim for claim in one.take()}
    task = WorkflowNode.objects.get(name="a").task_id
    one.settle(claims.pop(task))
    growing.add(flows.act, name="both", after=[first, second], join=quorum(2))
    one.advance()
    assert statuses(handle)["both"] == "PENDING"
    assert miscounted() == []
    one.settle(grows, *claims.values())
    one.run_all()
    assert set(statuses(handle).values()) == {"COMPLETED"}


def test_a_retry_counts_again_what_the_nodes_that_stay_wait_for(engine: Engines) -> None:
    """Naive: a node that ran although one failed is told of that one a second time, and waits for -1 nodes."""
    one = engine()
    flow = Workflow("tolerates")
    bad = flow.add(flows.act, name="bad")
    flow.add(flows.act, name="end", after=[bad], allow_failed=True)
    flow.add(flows.act, name="other", after=[bad])
    flow.add(flows.act, name="alone")
    handle = flow.send()
    claims = {claim.id: claim for claim in one.take()}
    for node in WorkflowNode.objects.filter(name__in=["bad", "alone"]):
        one.settle(claims[node.task_id], code="BROKEN")
    one.run_all()
    assert statuses(handle) == {"bad": "FAILED", "end": "COMPLETED", "other": "SKIPPED", "alone": "FAILED"}
    handle.retry()
    assert miscounted() == []
    one.run_all()
    assert set(statuses(handle).values()) == {"COMPLETED"}
    assert miscounted() == []


def test_a_condition_waits_for_its_node_although_the_quorum_is_met(engine: Engines) -> None:
    """Naive: the condition is looked at when the quorum is met, by a node whose value is not there yet: it depends on who is first."""
    one = engine()
    flow = Workflow("gated")
    fast, slow = flow.add(flows.act, name="fast"), flow.add(flows.act, name="slow")
    flow.add(flows.act, name="yes", after=[fast, slow], join="any", when=slow.matches("$ == 1"))
    flow.add(flows.act, name="no", after=[fast, slow], join="any", when=slow.matches("$ == 2"))
    handle = flow.send()
    first, last = sorted(one.take(), key=lambda claim: claim.id)
    one.settle(first)
    one.advance()
    assert statuses(handle) == {"fast": "COMPLETED", "slow": "ENQUEUED", "yes": "PENDING", "no": "PENDING"}
    one.settle(last)
    one.run_all()
    assert statuses(handle) == {"fast": "COMPLETED", "slow": "COMPLETED", "yes": "COMPLETED", "no": "SKIPPED"}


def test_a_child_that_failed_again_before_its_first_end_was_noted_is_told_to_its_parent(engine: Engines) -> None:
    """Naive: whoever advanced the parent then notes that the child was told, though a retry has run it once more meanwhile."""
    one, two = engine(), engine()
    child = Workflow("child")
    child.add(flows.act, name="inner")
    flow = Workflow("parent")
    flow.add(child)
    handle = flow.send()
    one.settle(*one.take(), code="BROKEN")
    run = WorkflowRun.objects.get(parent_id=handle.workflow_id).pk
    one.workflows.advance(run, Task.objects.values_list("id", flat=True), [], 9)
    one.workflows.advance(handle.workflow_id, [], [run], 9)
    assert statuses(handle) == {"child": "FAILED"}
    handle.retry()
    two.settle(*two.take(), code="BROKEN")
    two.workflows.advance(run, Task.objects.values_list("id", flat=True), [], 9)
    one.workflows.told([run])  # of its first end
    engine().advance()
    assert (statuses(handle), handle.status()) == ({"child": "FAILED"}, "FAILED")
