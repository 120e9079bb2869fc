"""Pauses, retries and caps of runs: which tasks a pause holds back, which a resume starts, and late
events.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from horsies_django import RetryPolicy, Workflow
from horsies_django.core.records import Claim
from horsies_django.models import Task, WorkflowNode, WorkflowRun
from horsies_django.monitoring.explain import explain
from horsies_django.store.health import HealthStore
from horsies_django.store.workers import WorkerStore
from horsies_django.testing import drain, travel
from horsies_django.workflows.advancer import Advancer
from horsies_django.workflows.handle import WorkflowHandle
from tests.apps.project import flows
from tests.conftest import Claimer, Claimers, Connect, limit, put, sql
from tests.db.conftest import heard
from tests.db.drives import Hand, ended
from tests.db.graphs import AGAIN
from tests.db.test_caps import ahead
from tests.db.test_elections import Team
from tests.db.test_pass import done, failed
from tests.db.test_workflows import statuses

EVERYWHERE = [{"low": 1, "high": 32_767}]


def whole(worker: Claimer) -> list[Claim]:
    return worker.run_pass(sync=9).claims


def short(worker: Claimer) -> list[Claim]:
    passed = worker.run_pass(sync=9, news="default")
    assert passed.short
    return list(passed.claims)


def one(name: str = "one", **options: Any) -> WorkflowHandle[Any]:
    """Send a run of one task."""
    flow = Workflow(name)
    flow.add(flows.number.with_options(**options) if options else flows.number, 1)
    return flow.send()


def again(worker: Claimer, *claims: Claim) -> None:
    """Fail tasks so that they are retried at once."""
    worker.run_pass(outcomes=[failed(claim, "AGAIN") for claim in claims])


def left_over(worker: Claimer) -> WorkflowHandle[Any]:
    """Return a paused run whose task came back, as if its child process had died."""
    handle = one()
    claims = whole(worker)
    assert handle.pause()
    worker.run_pass(releases=claims)
    return handle


def alter(handle: WorkflowHandle[Any], **columns: Any) -> None:
    WorkflowRun.objects.filter(pk=handle.workflow_id).update(**columns)


@pytest.mark.parametrize("claim", [whole, short, ahead])
@pytest.mark.parametrize(
    "how", ["locked", "given back", "failed before", "failed during", "worker died", "lease ended"]
)
def test_a_task_of_a_paused_run_starts_after_the_resume(
    claimer: Claimers, connect: Connect, how: str, claim: Callable[[Claimer], list[Claim]]
) -> None:
    """A task that waits or comes back during a pause starts after the resume."""
    worker = claimer(default=100)
    other = claimer(default=100)
    holder = connect()
    handle = one(retry_policy=AGAIN)
    take = ahead if how in ("worker died", "lease ended") else whole
    claims = [] if how == "locked" else take(worker)

    if how == "failed before":
        again(worker, *claims)

    with holder.transaction():
        if how == "locked":
            holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
        assert handle.pause()

    if how == "given back":
        worker.run_pass(releases=claims)
    elif how == "failed during":
        again(worker, *claims)
    elif how == "worker died":
        WorkerStore(connection).reap(dt.timedelta(0), declare_dead=False, many=9)
    elif how == "lease ended":
        Task.objects.update(claim_expires_at=dt.datetime.now(dt.UTC))
        worker.run_pass(expired_leases=True)

    assert not handle.pause()
    assert Task.objects.get().status == "PENDING"
    assert claim(other) == []

    assert handle.resume()
    assert not handle.resume()
    assert [found.attempt for found in claim(other)] == [2 if how.startswith("failed") else 1]


def test_a_prefetched_task_of_a_paused_run_is_given_back(
    claimer: Claimers,
) -> None:
    """A prefetched task of a paused run is given back, and other tasks can use its slot."""
    handle = one()
    worker = claimer()
    put(1)
    paused, other = ahead(worker, 2)
    limit("default", max_concurrency=1)

    assert handle.pause()
    passed = worker.run_pass(starts=[paused, other])
    assert (passed.started, passed.returned) == ([other.id], [paused.id])
    assert whole(worker) == []

    handle.resume()
    worker.run_pass(outcomes=[done(other)])
    assert [claim.id for claim in whole(worker)] == [paused.id]


@pytest.mark.parametrize(
    "cursors", [None, json.dumps({"default": {"sync": EVERYWHERE, "async": EVERYWHERE}})]
)
def test_the_task_of_a_paused_run_wakes_nobody_until_the_resume(
    claimer: Claimers, connect: Connect, cursors: str | None
) -> None:
    """Fails if: during the pause each free permit and each full worker wakes other workers for the
    task.

    Fails if: the resume wakes no worker, and the task lies behind the scan cursors until the next
    poll.
    """
    limit("default", max_concurrency=2)
    worker = claimer()
    listener = connect()
    store = HealthStore(connection)
    team = Team(connect(), 2)

    handle = left_over(worker)
    listener.execute(f"LISTEN {worker.channel}_new")
    put(1)
    (claim,) = whole(worker)
    heard(listener)

    worker.run_pass(outcomes=[done(claim)], cursors=cursors)
    assert (heard(listener), team.pass_on(), store.waits(["default"])) == ([], None, {})

    handle.resume()
    (said,) = heard(listener)
    moment, queue = said.split(" ")
    left = Task.objects.get(workflow_id=handle.workflow_id)
    assert (float(moment), queue) == (left.enqueued_at.timestamp(), "default")
    assert (team.pass_on(), [*store.waits(["default"])]) == (1, ["default"])


def test_a_free_permit_goes_to_a_task_that_may_start(claimer: Claimers) -> None:
    """A free permit of a partition goes to a task that may start.

    Fails if: the task of the paused run comes first and keeps the permit, and the partition stands
    still until a sweep.
    """
    limit("default", partition_by_args=["n"], partition_max_concurrency=1)
    worker = claimer()
    running = put(1, kwargs=['{"n": 1}'])
    (first,) = whole(worker)

    left = one()
    put(1, kwargs=['{"n": 1}'])
    assert whole(worker) == []
    assert Task.objects.filter(parked=True).count() == 2

    alter(left, status="PAUSED")  # as if another transaction held the row during the pause
    worker.run_pass(outcomes=[done(first)])
    (claim,) = whole(worker)

    assert claim.id not in {*running, Task.objects.get(workflow_id=left.workflow_id).pk}


def test_only_callbacks_of_an_ended_run_start(claimer: Claimers) -> None:
    """No remaining task of an ended run starts, except callbacks."""
    worker = claimer(default=100)
    handle = one()
    begun = {"status": "RUNNING", "on_error": "fail", "error_code": None, "continued_as": None}
    stopped = {"on_error": "stop", "error_code": "BROKEN"}

    for columns in (
        {"status": "CANCELLED", "error_code": "WORKFLOW_CANCELLED"},
        {"status": "COMPENSATING"},
        {"status": "COMPLETED", "continued_as": "0190163d-8694-739b-aea5-966c26f8ad91"},
        stopped,
    ):
        alter(handle, **begun | columns)
        assert (whole(worker), short(worker), ahead(worker)) == ([], [], []), columns
        assert [reason.code for reason in explain(Task.objects.get().pk).reasons][0] == "RUN_ENDED"

    for rule in ("failed", "finished"):
        WorkflowNode.objects.update(rule=rule)
        (claim,) = short(worker)
        worker.run_pass(releases=[claim])

    sql("DELETE FROM horsies_workflows WHERE id = %s", [handle.workflow_id])
    assert len(whole(worker)) == 1


def test_the_explanation_of_a_task_reports_its_paused_run(claimer: Claimers) -> None:
    worker = claimer()
    left = left_over(worker)

    said = (
        f"RUN_PAUSED: Its run, one {left.workflow_id}, is paused. None of its tasks start until it "
        "is resumed."
    )
    assert said in str(explain(Task.objects.get().pk))

    assert left.cancel()
    later = one("later", retry_policy=AGAIN)
    again(worker, *whole(worker))
    assert later.pause()

    due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    task = Task.objects.filter(workflow_id=later.workflow_id)
    task.update(next_retry_at=due)

    reasons = explain(task.get().pk).reasons
    assert [reason.code.value for reason in reasons] == [
        "RUN_PAUSED",
        "NO_LIVE_WORKER",
        "RETRY_WAITING",
    ]
    assert dt.datetime.fromisoformat(reasons[-1].details["due_at"]) == due


def moments() -> set[dt.datetime]:
    return set(Task.objects.filter(status="PENDING").values_list("enqueued_at", flat=True))


def test_only_a_retry_begins_a_delay_anew() -> None:
    """A retry begins a delay anew, a pause does not, and a delay may end during a pause."""
    flow = Workflow("delayed")
    flow.add(flows.number.with_options(delay=3_600), 1, name="node")
    flow.map(flows.plus.with_options(delay=3_600), a=[1, 2, 3], name="map")
    handle = flow.send()

    (before,) = moments()
    assert handle.pause()
    assert not Task.objects.exists()
    assert handle.resume()
    assert moments() == {before}
    assert Task.objects.count() == 4

    assert handle.cancel()
    handle.retry()
    assert min(moments()) > before

    assert handle.pause()
    WorkflowNode.objects.update(due_at=dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))
    resumed = dt.datetime.now(dt.UTC)
    assert handle.resume()
    assert min(moments()) >= resumed  # not earlier, because scans no longer read that part
    assert drain() == 4


# retries, and late events


def test_a_cap_on_tasks_in_flight_holds_through_pause_and_retry(hand: Hand) -> None:
    """A cap on tasks in flight holds through a pause and a retry."""
    flow = Workflow("capped", max_in_flight=2)
    flow.map(flows.act, value=list(range(10)))
    handle = flow.send()
    most = []

    def end(place: int, code: str | None = None) -> None:
        most.append(Task.objects.filter(workflow_id=handle.workflow_id, finished_at=None).count())
        hand.take()
        hand.end(f"element {place}", code=code)

    for place in range(10):
        end(place, "BROKEN" if place % 2 else None)
        if place == 2:
            handle.pause()
            handle.resume()

    assert handle.status() == "FAILED"
    handle.retry()
    for place in range(1, 10, 2):
        end(place)

    assert (max(most), handle.status()) == (2, "COMPLETED")


def test_the_retry_of_a_paused_run_starts_postponed_tasks(hand: Hand) -> None:
    """The retry of a paused run starts its postponed tasks."""
    flow = Workflow("pauses", on_error="pause")
    flow.add(flows.act.with_options(retry_policy=AGAIN), name="tried")
    flow.add(flows.act, name="fails")
    handle = hand.send(flow)

    hand.end("tried", code="AGAIN")
    hand.end("fails", code="BROKEN")
    assert (handle.status(), hand.take()) == ("PAUSED", set())

    handle.retry()
    hand.finish()
    assert handle.status() == "COMPLETED"


def test_a_run_cancelled_after_its_last_node_is_retried(hand: Hand) -> None:
    """A run that was cancelled after all its nodes had completed can be retried."""
    child = Workflow("child")
    child.add(flows.number, 1, name="inside")
    flow = Workflow("parent")
    flow.add(flows.number, 2, after=flow.add(child))

    handle = hand.send(flow)
    inside = handle.children()["child"]
    inside.pause()
    hand.end("inside")
    assert (inside.status(), statuses(inside)) == ("PAUSED", {"inside": "COMPLETED"})

    assert handle.cancel()
    hand.engine.advance()
    assert set(statuses(handle).values()) == {"CANCELLED"}

    handle.retry()
    hand.finish()
    assert handle.status() == "COMPLETED"


def test_a_deadline_that_passes_during_a_pause_expires_tasks() -> None:
    """If the deadline passes during a pause, the tasks expire at the resume."""
    flow = Workflow("late", good_until=dt.timedelta(hours=1))
    flow.add(flows.number, 1)
    handle = flow.send()

    assert handle.pause()
    sql("UPDATE horsies_workflows SET good_until = now() - interval '1 second'")
    assert handle.resume()

    assert drain() == 0
    assert statuses(handle) == {"number": "EXPIRED"}
    assert handle.status() == "FAILED"


@pytest.mark.parametrize("of", ["run", "node", "child"])
def test_a_retried_run_has_no_good_until_any_more(of: str) -> None:
    """Fails if: a retry keeps the old time, so that its tasks expire again at each retry."""
    hour = dt.timedelta(hours=1)
    flow = Workflow("late", good_until=hour if of == "run" else None)
    pair = Workflow("pair", good_until=hour) if of == "child" else flow
    first = pair.add(
        flows.number.with_options(good_until=hour if of == "node" else None), 1, name="first"
    )
    pair.add(flows.plus, first, name="second")
    if of == "child":
        flow.add(pair, name="pair")

    handle = flow.send()
    with travel(2 * hour):
        drain(raise_errors=False)
        ended = handle.status()

        handle.retry()
        drain()

    assert (ended, handle.status()) == ("FAILED", "COMPLETED")
    assert set(WorkflowRun.objects.values_list("good_until", flat=True)) == {None}
    assert set(WorkflowNode.objects.values_list("good_until", flat=True)) == {None}


def test_expired_elements_of_a_map_run_after_a_retry() -> None:
    flow = Workflow("late", good_until=dt.timedelta(hours=1))
    flow.map(flows.number, n=[1, 2, 3])
    handle = flow.send()

    with travel(dt.timedelta(hours=2)):
        drain(raise_errors=False)

        handle.retry()

        assert drain() == 3

    assert handle.status() == "COMPLETED"


# Limits, priorities and options hold for tasks that the database sends for a workflow as for any
# others.


def settle(worker: Claimer, claims: list[Any], values: list[Any], code: str | None = None) -> None:
    """Complete or fail tasks, and advance their runs as an engine does."""
    outcomes = [ended(claim, value, code) for claim, value in zip(claims, values, strict=True)]
    advancer = Advancer(1_000_000)
    advancer.note_finished(worker.run_pass(outcomes=outcomes).in_runs)
    while advancer.pending_runs:
        advancer.turn(advancer.store(worker.conn, worker.channel))


def arguments(claims: list[Any], name: str) -> list[Any]:
    return sorted(json.loads(claim.kwargs)[name] for claim in claims)


@pytest.mark.promise("S4.24")
def test_limits_per_partition_hold_for_arguments_from_results(
    claimer: Claimers,
) -> None:
    """Limits per partition hold for maps and nodes whose arguments are results."""
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
def test_the_cap_of_a_queue_includes_tasks_of_workflows(
    claimer: Claimers,
) -> None:
    """The cap of a queue counts tasks of workflows together with all others."""
    worker = claimer(default=1)
    limit("default", max_concurrency=3)
    flow = Workflow("cap")
    flow.map(flows.plus, a=flow.add(flows.numbers, 9))
    flow.send()

    settle(worker, worker.run_pass(sync=10).claims, [[1, 2]])
    flows.number.send_many([{"n": 1}] * 4)

    assert len(worker.run_pass(sync=10).claims) == 3
    assert worker.run_pass(sync=10).claims == []


def test_a_task_sent_by_the_database_has_the_options_of_its_node(
    claimer: Claimers,
) -> None:
    """A task that the database sends has the priority, retries and options of its node."""
    worker = claimer(default=1)
    plus = flows.plus.with_options(
        priority=3, retry_policy=RetryPolicy.fixed([5, 60]), timeout_ms=7_000
    )

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
    assert set(map(repr, alike)) == {
        repr(Task.objects.values_list(*columns).get(pk=expected.task_id))
    }
