"""Tasks that the database sends for a workflow are like any others: limits, priorities and options hold for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from horsies_django import RetryPolicy, Workflow
from horsies_django.models import Task
from horsies_django.workflows.advancer import Advancer
from tests.apps.project import flows
from tests.conftest import Claimer, Claimers, limit
from tests.db.drives import ended

pytestmark = pytest.mark.django_db(transaction=True)


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
