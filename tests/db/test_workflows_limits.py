"""Tasks that the database sends for a workflow are like any others: limits, priorities and options hold. Retention of runs."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.db import connection

from horsies_django import RetryPolicy, Workflow
from horsies_django.models import Task, TaskAttempt, TaskStep, WorkflowEdge, WorkflowNode, WorkflowRun, WorkflowSignal
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.testing import drain
from horsies_django.workflows.advancer import Advancer
from tests.apps.project import flows
from tests.conftest import Claimer, Claimers, limit
from tests.db.drives import ended
from tests.support.factories import now

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def settle(worker: Claimer, claims: list[Any], values: list[Any], code: str | None = None) -> None:
    """Complete tasks with these values, or let them fail with a code, and advance their runs as an engine does."""
    outcomes = [ended(claim, value, code) for claim, value in zip(claims, values, strict=True)]
    advancer = Advancer(1_000_000)
    advancer.owe(worker.run_pass(outcomes=outcomes).in_runs)
    while advancer.owed:
        advancer.turn(advancer.store(worker.conn, worker.channel))


def arguments(claims: list[Any], name: str) -> list[Any]:
    return sorted(json.loads(claim.kwargs)[name] for claim in claims)


@pytest.mark.promise("S4.24")
def test_limits_per_partition_hold_for_maps_and_nodes_whose_arguments_are_results(claimer: Claimers) -> None:
    worker = claimer(default=1, mail=2)
    limit("mail", partition_by_args=["a"], partition_max_concurrency=1)
    plus = flows.plus.with_options(queue="mail")
    flow = Workflow("partitions")
    flow.map(plus, a=flow.add(flows.numbers, 9), b=0)
    one = flow.add(flows.number, 5)
    flow.add(plus, one, b=1)
    flow.add(plus, one, b=2)
    flow.send()
    first = worker.run_pass(sync=10).claims
    assert len(first) == 2
    lists = [claim for claim in first if claim.task_name.endswith(".numbers")]
    settle(worker, lists, [[7, 7, 8]])
    settle(worker, [claim for claim in first if claim not in lists], [5])
    claims = worker.run_pass(sync=10).claims
    assert arguments(claims, "a") == [5, 7, 8]
    settle(worker, claims, [1, 1, 1])
    assert arguments(worker.run_pass(sync=10).claims, "a") == [5, 7]


@pytest.mark.promise("S4.24")
def test_the_cap_of_a_queue_bounds_tasks_of_workflows_together_with_others(claimer: Claimers) -> None:
    worker = claimer(default=1)
    limit("default", max_concurrency=3)
    flow = Workflow("cap")
    flow.map(flows.plus, a=flow.add(flows.numbers, 9))
    flow.send()
    settle(worker, worker.run_pass(sync=10).claims, [[1, 2]])
    flows.number.send_many([{"n": 1}] * 4)
    assert len(worker.run_pass(sync=10).claims) == 3
    assert worker.run_pass(sync=10).claims == []


def test_a_task_that_the_database_sends_has_the_priority_retries_and_options_of_its_node(claimer: Claimers) -> None:
    worker = claimer(default=1)
    plus = flows.plus.with_options(priority=3, retry_policy=RetryPolicy.fixed([5, 60]), timeout_ms=7_000)
    flow = Workflow("options")
    flow.add(plus, flow.add(flows.number, 1))
    flow.map(plus, a=flow.add(flows.numbers, 1))
    flow.send()
    expected = plus.send(4)
    claims = worker.run_pass(sync=10).claims
    settle(worker, claims, [[2] if claim.task_name.endswith(".numbers") else 1 for claim in claims])
    columns = ("task_name", "queue_name", "lane", "priority", "max_retries", "options")
    alike = Task.objects.filter(task_name=flows.plus.name).values_list(*columns)
    assert len(alike) == 3
    assert set(map(repr, alike)) == {repr(Task.objects.values_list(*columns).get(pk=expected.task_id))}


# retention of runs: they are deleted whole, in small batches, and never while one of their tasks runs


def run(width: int = 5) -> Any:
    """Run a workflow with a map and a run inside it to its end."""
    child = Workflow("child")
    child.add(flows.number, 1)
    flow = Workflow("run")
    flow.add(flows.total, flow.map(flows.plus, a=list(range(width))))
    flow.add(child)
    flow.signal("go")
    handle = flow.send()
    handle.signal("go")
    drain()
    return handle


def age(days: int) -> None:
    """Let everything have finished so many days earlier."""
    with connection.cursor() as cursor:
        for table in ("horsies_tasks", "horsies_workflows"):
            cursor.execute(f"UPDATE {table} SET finished_at = finished_at - make_interval(days => %s)", [days])


def rows() -> list[int]:
    return [model.objects.count() for model in (WorkflowRun, WorkflowNode, WorkflowEdge, Task, TaskAttempt)]


def test_a_run_is_deleted_with_all_that_belongs_to_it_and_younger_runs_stay() -> None:
    run()
    age(2)
    old = set(Task.objects.values_list("pk", flat=True))
    young = run()
    tasks = set(Task.objects.values_list("pk", flat=True))
    TaskStep.objects.bulk_create(TaskStep(task_id=task, name="a", digest="d", result=1) for task in tasks)
    both = rows()
    store = RetentionStore(connection)
    assert store.prune_runs(DAY, 1_000) == (1, 7, 7, False)
    assert rows() == [count // 2 for count in both]
    assert set(WorkflowSignal.objects.values_list("workflow_id", flat=True)) == {young.workflow_id}
    assert set(TaskStep.objects.values_list("task_id", flat=True)) == tasks - old
    assert (young.status(), young.get(0).is_ok()) == ("COMPLETED", True)
    assert store.prune_runs(DAY, 1_000) == (0, 0, 0, False)


@pytest.mark.django_db
def test_a_call_does_not_read_again_the_runs_that_it_deleted() -> None:
    old = {"name": "run", "on_error": "fail", "status": "COMPLETED"}
    for number in range(60):
        WorkflowRun(id=uuid.uuid4(), finished_at=now() - 9 * DAY + number * HOUR, **old).save_base(raw=True)
    with connection.cursor() as cursor:

        def read() -> int:
            cursor.execute("SELECT pg_stat_get_xact_tuples_returned('horsies_workflows_finished'::regclass)")
            return int(cursor.fetchone()[0])

        before = read()
        assert RetentionStore(connection).prune_runs(DAY, 1_000) == (60, 0, 0, False)
        assert read() - before < 400
    assert not WorkflowRun.objects.exists()


def test_the_row_of_a_large_run_is_the_last_to_go() -> None:
    handle = run(width=40)
    age(2)
    batches = 0
    while RetentionStore(connection).prune_runs(DAY, 10)[3]:
        batches += 1
        if sum(rows()[1:]):
            assert handle.status() == "COMPLETED", "what is left can be found"
    assert batches >= 4
    assert rows() == [0, 0, 0, 0, 0]


def test_retention_of_tasks_leaves_those_of_workflows_to_the_run() -> None:
    handle = run()
    flows.number.send(1)
    drain()
    age(2)
    assert RetentionStore(connection).prune_tasks(Kept((), others=True, age=DAY), 1_000).tasks == 1
    assert handle.results()["plus"].ok_value == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_whose_task_still_runs_stays(inside: bool) -> None:
    flow = Workflow("cancelled")
    flow.add(flows.number, 1)
    if inside:
        child, flow = flow, Workflow("parent")
        flow.add(child)
    handle = flow.send()
    Task.objects.update(status="RUNNING", claimed_by=handle.workflow_id, claimed_at=now())
    handle.cancel()
    age(2)
    store = RetentionStore(connection)
    assert store.prune_runs(DAY, 1_000) == (0, 0, 0, False)
    assert handle.status() == "CANCELLED"
    Task.objects.update(status="CANCELLED", claimed_by=None, finished_at=now(), error_code="TASK_CANCELLED")
    drain()  # takes it into account
    age(2)
    assert store.prune_runs(DAY, 1_000)[0] == 1
    assert sum(rows()) == 0
