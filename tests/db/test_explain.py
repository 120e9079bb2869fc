"""Why a task does not run: each reason comes and goes with its cause, and is read through indexes
without a lock.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from typing import Any, NamedTuple

import pytest
from django.conf import settings as project
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django import explain
from horsies_django.core.explanations import Explanation, Reason, ReasonCode
from horsies_django.core.records import Wanted
from horsies_django.models import Heartbeat, Task, Worker
from horsies_django.store.overviews import OverviewStore
from horsies_django.store.workers import WorkerStore
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Claimers, Connect, sweep, tenant
from tests.db.test_pass import failed
from tests.db.test_statements import complete, explained, plans, states
from tests.support import factories
from tests.support.factories import HeartbeatFactory, TaskFactory, WorkerFactory, now
from tests.support.sizes import examples
from tests.support.statements import FUNCTIONS, STATEMENTS

HOUR = dt.timedelta(hours=1)


def codes(id_: uuid.UUID) -> list[str]:
    return [reason.code.value for reason in explain(id_).reasons]


def reason(id_: uuid.UUID, code: str) -> Reason:
    """Return the one reason with this code."""
    (found,) = (one for one in explain(id_).reasons if one.code == code)
    return found


def text(id_: uuid.UUID, code: str) -> str:
    return reason(id_, code).text


def details(id_: uuid.UUID, code: str) -> Any:
    return reason(id_, code).details


def holders(id_: uuid.UUID, code: str) -> list[uuid.UUID]:
    """Return the tasks that a reason names as holders of permits."""
    return [uuid.UUID(holder["task_id"]) for holder in details(id_, code)["holders"]]


def serving(*queues: str, slots: int = 9, **columns: Any) -> Worker:
    shape = {"processes": 1, "threads": slots, "async_concurrency": slots}
    return factories.serving(*queues or ["default"], **{**shape, **columns})


def living(worker: Claimer, **columns: Any) -> Claimer:
    serving(*worker.served.queues, id=worker.id, **columns)
    return worker


def test_an_explanation_of_the_next_task_locks_nothing(
    claimer: Claimers,
) -> None:
    """A task that nothing holds up is explained as next, and the explanation locks nothing."""
    worker = living(claimer())
    (id_,) = put()

    with transaction.atomic():
        (found,) = explain(str(id_)).reasons
        assert found.code == "NEXT"
        assert found.text.endswith("should start within 1 s.")
        row = Worker.objects.get()
        assert found.details["workers"] == [
            {"worker_id": str(worker.id), "hostname": "web-1", "pid": row.pid}
        ]

        assert [claim.id for claim in worker.run_pass(sync=1).claims] == [id_]
        assert codes(id_) == ["RUNNING"]


def test_a_finished_task_is_explained_by_its_outcome() -> None:
    """A finished task is explained by its outcome; an unknown id, or a text that is none, is an
    error.
    """
    failed = TaskFactory(status="FAILED").id
    assert "It ended as FAILED with UNHANDLED_ERROR at " in text(failed, "FINISHED")
    assert details(failed, "FINISHED")["error_code"] == "UNHANDLED_ERROR"
    assert codes(TaskFactory(status="COMPLETED").id) == ["FINISHED"]

    with pytest.raises(LookupError, match="there is no task .* in the database 'default'"):
        explain(uuid.uuid4())
    with pytest.raises(ValueError, match="'17' is not a task id"):
        explain("17")


def test_a_running_task_names_its_worker_and_its_rescue() -> None:
    """The explanation of a running task names its worker, and the time of the rescue once that
    worker sends no heartbeats.
    """
    worker = serving()
    other = serving()
    id_ = TaskFactory(status="RUNNING", claimed_by=worker.id).id
    beats = Heartbeat.objects.filter(pk=worker.id)

    assert text(id_, "RUNNING").endswith(f" on web-1:{worker.pid}.")
    HeartbeatFactory(worker_id=worker.id, pid=77, holding=[str(id_)])
    assert text(id_, "RUNNING").endswith(f" on web-1:{worker.pid}, in process 77.")
    assert details(id_, "RUNNING")["child_pid"] == 77

    beats.update(sent_at=now() - dt.timedelta(seconds=5))
    said = text(id_, "CLAIMED_BY_SILENT_WORKER")
    found = details(id_, "CLAIMED_BY_SILENT_WORKER")
    assert re.search(
        "which runs it, was last seen at .*; the task fails with WORKER_CRASHED after ", said
    )

    assert found["reapers"] is True
    beat, rescue = (dt.datetime.fromisoformat(found[name]) for name in ("beat_at", "rescue_at"))
    assert rescue - beat == dt.timedelta(seconds=10)

    beats.update(died_at=now())
    assert "at the next check by a live worker" in text(id_, "CLAIMED_BY_SILENT_WORKER")
    Heartbeat.objects.filter(pk=other.id).delete()
    assert "start one" in text(id_, "CLAIMED_BY_SILENT_WORKER")

    beats.update(died_at=None, sent_at=now())
    assert codes(id_) == ["RUNNING"]


def test_a_task_of_a_worker_without_a_heartbeat_is_orphaned(
    claimer: Claimers,
) -> None:
    """A running task without a heartbeat of its worker is explained as claimed by a silent worker,
    and the reaper rescues it.
    """
    task = TaskFactory(status="RUNNING", sent_at=now() - dt.timedelta(seconds=30))
    assert codes(task.id) == ["CLAIMED_BY_SILENT_WORKER"]
    assert codes(TaskFactory(status="RUNNING").id) == ["RUNNING"]

    happened = WorkerStore(claimer().conn).reap(
        dt.timedelta(seconds=10), declare_dead=True, many=10
    )

    assert [each[:4] for each in happened] == [("failed", task.id, task.task_name, 1)]
    assert codes(task.id) == ["FINISHED"]


def test_a_claim_in_a_buffer_is_explained_until_its_lease_ends(
    settings: Any,
) -> None:
    """A prefetched claim is explained as such until its lease ends, and holds no permit in soft
    mode.
    """
    worker = serving()
    id_ = TaskFactory(status="CLAIMED", claimed_by=worker.id, claim_expires_at=now() + HOUR).id

    limit("default", max_concurrency=1)
    (other,) = put()
    assert codes(other) == ["QUEUE_AT_CAP"]

    settings.HORSIES = {**settings.HORSIES, "PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 5_000}
    assert codes(other) == ["NEXT"]
    assert f"Worker web-1:{worker.pid} has prefetched it" in text(id_, "CLAIMED_WAITING")
    assert details(id_, "CLAIMED_WAITING")["lease_ends_at"]
    assert codes(id_) == ["CLAIMED_WAITING"]

    limit("default", paused_at="now", paused_by="ann")
    assert codes(id_) == ["CLAIMED_WAITING", "QUEUE_PAUSED"]
    Task.objects.filter(pk=id_).update(claim_expires_at=now() - HOUR)
    assert "ended at" in text(id_, "CLAIMED_WAITING")

    Heartbeat.objects.update(died_at=now())
    assert re.search("has claimed it, .* is pending again", text(id_, "CLAIMED_BY_SILENT_WORKER"))


def test_a_pause_names_its_actor_and_reason() -> None:
    """The explanation of a pause names its actor and reason; a cap of 0 is always a pause."""
    serving()
    (id_,) = put()

    limit("default", paused_at="now", paused_by="ann", paused_reason="the disk is full")
    assert text(id_, "QUEUE_PAUSED").startswith("The queue 'default' has been paused since")
    assert text(id_, "QUEUE_PAUSED").endswith(" by ann: the disk is full. None of its tasks start.")
    found = details(id_, "QUEUE_PAUSED")
    assert (found["by"], found["reason"]) == ("ann", "the disk is full")

    limit("default", paused_reason="Look at the disk first.")
    assert text(id_, "QUEUE_PAUSED").endswith(
        "by ann: Look at the disk first. None of its tasks start."
    )

    limit("default", paused_at=None, paused_by=None, paused_reason=None, max_concurrency=0)
    assert "is declared with a cap of 0" in text(id_, "QUEUE_PAUSED")

    overridden = {"override_by": "bob", "override_reason": "sale", "override_at": "now"}
    limit("default", max_concurrency=5, override={"max_concurrency": 0}, **overridden)
    assert "a cap of 0 since" in text(id_, "QUEUE_PAUSED")
    assert details(id_, "QUEUE_PAUSED")["by"] == "bob"

    limit("default", override={"max_concurrency": None}, **overridden)
    assert codes(id_) == ["NEXT"]

    limit("*", paused_at="now", paused_by="ann")
    assert text(id_, "QUEUE_PAUSED").startswith("The whole cluster has been paused since")


@pytest.mark.promise("S0.45", "S1.52")
def test_a_task_that_is_not_due_yet_names_its_reason() -> None:
    """A task that is not due, waits for a retry or is past its ``good_until`` has that as its
    reason.
    """
    serving()
    (id_,) = put(delay=HOUR)
    assert codes(id_) == ["NOT_DUE"]

    Task.objects.update(retry_count=1, max_retries=3)
    assert "It waits for retry 1 of 3, which is due at " in text(id_, "RETRY_WAITING")
    due = dt.datetime.fromisoformat(details(id_, "RETRY_WAITING")["due_at"])
    assert due > dt.datetime.now(dt.UTC)

    Task.objects.update(enqueued_at=now(), good_until=now() - HOUR)
    assert codes(id_) == ["EXPIRED"]
    Task.objects.update(good_until=now() + HOUR)
    assert codes(id_) == ["NEXT"]


@pytest.mark.promise("S0.45", "S1.52")
@pytest.mark.parametrize(("name", "code"), [("mail", "QUEUE_AT_CAP"), ("*", "CLUSTER_AT_CAP")])
def test_a_cap_that_is_reached_names_who_holds_it(claimer: Claimers, name: str, code: str) -> None:
    limit(name, max_concurrency=25)
    *ids, last = put(26, queue="mail")
    worker = living(claimer(mail=1), slots=99)
    claims = worker.run_pass(sync=99).claims

    assert f" by task {ids[0]} on web-1:{Worker.objects.get().pid}." in text(last, code)
    found = details(last, code)
    assert (found["cap"], found["taken"]) == (25, 25)
    assert holders(last, code) == ids[:20], "twenty are named"

    limit(name, max_concurrency=1)
    assert "25 of 1 permits are taken" in text(last, code)

    worker.run_pass(outcomes=complete(claims))
    assert codes(last) == ["NEXT"]


def test_a_full_partition_names_its_holders(
    claimer: Claimers,
) -> None:
    """A full partition names its holders, whether or not the task is parked yet."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = living(claimer())

    running, parked = tenant("a", 2)
    claims = worker.run_pass(sync=9).claims
    assert Task.objects.get(pk=parked).parked

    (new,) = tenant("a")
    (other,) = tenant("b")
    full = 'The partition {"tenant": "a"} of queue \'default\' is at its limit: 1 of 1 permits'
    for id_ in (parked, new):
        assert text(id_, "PARTITION_AT_LIMIT").startswith(full)
        assert holders(id_, "PARTITION_AT_LIMIT") == [running]

    assert codes(other) == ["BEHIND_OTHERS"], "the new one, until a claim meets and parks it"
    assert [claim.id for claim in worker.run_pass(sync=9).claims] == [other]

    limit("default", partition_max_concurrency=2)
    assert "A permit is free now" in text(parked, "PARTITION_AT_LIMIT"), "it waits for the sweep"
    assert worker.run_pass(sync=9).claims == []

    worker.run_pass(outcomes=complete(claims))
    assert codes(parked) == ["NEXT"]


def test_a_partition_that_is_full_in_each_worker_is_at_its_limit(claimer: Claimers) -> None:
    limit("default", partition_by_args=["tenant"], partition_local_limit=1)
    first = living(claimer())
    second = living(claimer())
    ids = tenant("a", 3)

    first.run_pass(sync=1)
    assert codes(ids[1]) == ["NEXT"], "the second worker can take it"

    second.run_pass(sync=1)
    assert "2 of 2 permits" in text(ids[2], "PARTITION_AT_LIMIT")

    Worker.objects.filter(pk=second.id).update(threads=1)
    Task.objects.filter(pk=ids[1]).update(queue_name="mail")
    assert codes(ids[2]) == ["PARTITION_AT_LIMIT", "NO_FREE_SLOT"], (
        "one worker has one against it, one the other"
    )
    assert "is at its limit of 1 in each worker" in text(ids[2], "PARTITION_AT_LIMIT")
    assert text(ids[2], "NO_FREE_SLOT").startswith(
        "1 of the 2 live workers that serve its queue are without a free slot"
    )


def test_the_first_task_of_a_partition_is_named_with_its_state(
    claimer: Claimers,
) -> None:
    """The explanation names the first task of a partition, and the state of that task.

    Fails if: the partition is said to be at its limit, or to have a free permit.
    """
    limit("default", partition_by_args=["tenant"], partition_policy="stop")
    worker = living(claimer())
    first, second, third = tenant("a", 3, max_retries=1)
    (other,) = tenant("b")
    begins = f'Task {first} comes before it in the order of partition {{"tenant": "a"}}: '

    def does() -> str:
        """Return the described state of the first task; it is the same for tasks that a pass has
        met and for others.
        """
        (found,) = {text(one, "BEHIND_IN_ORDER") for one in (second, third)}
        assert "PARTITION_AT_LIMIT" not in codes(second) + codes(third)
        assert found.startswith(begins)
        return re.sub(r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d ", "", found.removeprefix(begins))

    assert "BEHIND_IN_ORDER" not in codes(first) + codes(other)
    assert does() == "it is PENDING."

    claim = next(one for one in worker.run_pass(sync=9).claims if one.id == first)
    assert does() == "it has been RUNNING since ."
    worker.run_pass(outcomes=[failed(claim, retry=3_600)])

    assert does() == "it waits for its next attempt until ."
    assert codes(first) == ["RETRY_WAITING"]

    Task.objects.filter(pk=first).update(enqueued_at=now(), next_retry_at=None)
    (again,) = worker.run_pass(sync=9).claims
    worker.run_pass(outcomes=[failed(again)])
    assert does() == (
        "it has been FAILED since , and the later tasks of the key wait until it is retried or "
        "skipped."
    )

    said = {"task_id": str(first), "status": "FAILED", "order_stop": "stop", "queue": "default"}
    assert details(second, "BEHIND_IN_ORDER").items() >= said.items()
    assert text(first, "FINISHED").endswith(
        "The later tasks of its key wait until it is retried or skipped."
    )
    assert details(first, "FINISHED")["order_stop"] == "stop"

    Task.objects.filter(pk=first).update(order_stop="cancel")
    assert does() == (
        "it has been FAILED since , and the tasks that were sent until then are being cancelled."
    )
    assert not text(first, "FINISHED").endswith("skipped.")

    Task.objects.filter(pk=first).update(order_stop=None)
    assert "BEHIND_IN_ORDER" not in codes(second)
    assert str(second) in text(third, "BEHIND_IN_ORDER")


def test_a_task_is_behind_an_equal_task_only_once_that_has_begun(claimer: Claimers) -> None:
    """Of equal tasks only one that has begun comes before the others.

    Fails if: the second one waits for the first, although a pass may start either.
    """
    limit("default", partition_by_args=[], partition_by_task=True, partition_policy="coalesce")
    worker = living(claimer())
    first, second = put(2)

    assert "BEHIND_IN_ORDER" not in codes(first) + codes(second)

    (claim,) = worker.run_pass(sync=1).claims
    (third,) = put()

    assert codes(third)[0] == "BEHIND_IN_ORDER"
    assert f"Task {claim.id} comes before it" in text(third, "BEHIND_IN_ORDER")


def test_a_task_waits_until_its_queue_has_been_put_in_order(claimer: Claimers) -> None:
    """A task of a queue that is not yet put in order has that as its reason."""
    worker = living(claimer())
    (id_,) = tenant("a")
    limit("default", partition_by_args=["tenant"], partition_policy="stop")

    assert worker.run_pass(sync=9).claims == []
    assert codes(id_) == ["ORDER_PENDING"]

    sweep(many=10)
    assert codes(id_) == ["NEXT"]
    assert len(worker.run_pass(sync=9).claims) == 1


def test_a_queue_without_living_workers_names_its_last_one() -> None:
    """The explanation for a queue without living workers names the last worker that served it."""
    (id_,) = put()
    serving("mail")
    assert "No worker has ever served the queue 'default': start one" in text(id_, "NO_LIVE_WORKER")

    worker = serving()
    beats = Heartbeat.objects.filter(pk=worker.id)
    assert codes(id_) == ["NEXT"]

    beats.update(sent_at=now() - dt.timedelta(seconds=11))
    assert "was last seen at" in text(id_, "NO_LIVE_WORKER"), (
        "though nobody is there to declare it dead"
    )

    beats.update(sent_at=now(), died_at=now())
    assert codes(id_) == ["NO_LIVE_WORKER"]

    beats.update(died_at=None)
    WorkerStore(connection).stop(worker.id)
    assert f"the last one, web-1:{worker.pid}, stopped at" in text(id_, "NO_LIVE_WORKER")
    former = details(id_, "NO_LIVE_WORKER")["former"]
    assert [one["worker_id"] for one in former] == [str(worker.id)]

    Task.objects.update(queue_name="nowhere")
    assert "There is no queue 'nowhere' in the database" in text(id_, "NO_LIVE_WORKER")


def test_a_stopping_worker_is_explained_as_no_live_worker() -> None:
    """Fails if: the explanation names a start within seconds, while the only worker claims
    no more.
    """
    (id_,) = put()
    serving(stopping_at=now())

    (reason,) = explain(id_).reasons

    assert reason.code == "NO_LIVE_WORKER"
    assert "has been stopping since" in reason.text


def test_a_task_name_unknown_to_all_workers_is_a_reason() -> None:
    """A task name or wire format is a reason as soon as no living worker knows it."""
    old = serving(task_names=["shop.tasks.old"], wire=1)
    (id_,) = put(name="shop.tasks.new", options='{"wire": 2}')

    found = details(id_, "UNKNOWN_TASK_NAME")
    assert dt.datetime.fromisoformat(found["until"]) > dt.datetime.now(dt.UTC) + dt.timedelta(
        minutes=4
    )
    assert found["workers"][0]["worker_id"] == str(old.id)

    new = serving(task_names=["shop.tasks.new", "shop.tasks.old"], wire=1)
    assert codes(id_) == ["UNKNOWN_TASK_NAME"], "in this form"
    Worker.objects.filter(pk=new.id).update(wire=2)
    assert codes(id_) == ["NEXT"]

    Worker.objects.filter(pk=new.id).update(task_names=["shop.tasks.old"])
    assert codes(id_) == ["UNKNOWN_TASK_NAME"], "by this name"
    Worker.objects.filter(pk=new.id).update(task_names=None)
    assert codes(id_) == ["NEXT"], "a worker of an earlier release does not say what it knows"


def test_tasks_ahead_are_counted_in_the_order_of_the_claim() -> None:
    """The tasks ahead of a task are counted in the order of the claim."""
    limit("mail", priority=1)
    limit("bulk", priority=50)
    limit("twin", priority=50)
    first, last = put(2, queue="bulk")
    serving("bulk", "mail", "twin")

    assert codes(first) == ["NEXT"]
    assert text(last, "BEHIND_OTHERS") == "1 task of its queue is ahead of it and may start first."

    put(2, queue="mail")
    put(queue="twin", priority=1)
    put(queue="bulk", priority=1, delay=HOUR)
    put(queue="bulk", priority=1, good_until=dt.datetime.now(dt.UTC) - HOUR)
    put(queue="bulk", priority=1, lane="async")
    put(queue="default")

    assert details(last, "BEHIND_OTHERS") == {"count": 2, "more": False}

    parked = put(3, queue="bulk")
    Task.objects.filter(pk__in=[*parked, last]).update(parked=True, partition_key="a")
    Task.objects.filter(pk=last).update(partition_key="b")
    assert details(parked[2], "BEHIND_OTHERS")["count"] == 2, "those of its partition"


@pytest.mark.promise("S0.45")
def test_all_reasons_that_hold_come_the_most_decisive_first(claimer: Claimers) -> None:
    limit("*", max_concurrency=1)
    limit(
        "default",
        max_concurrency=1,
        local_limit=1,
        partition_by_args=["tenant"],
        partition_max_concurrency=1,
    )

    worker = living(claimer(), slots=1, task_names=[])
    tenant("a")
    worker.run_pass(sync=1)
    limit("mail", paused_at="now", paused_by="ann")
    tenant("a", 2)
    (id_,) = tenant("a", good_until=dt.datetime.now(dt.UTC) - HOUR)

    found = codes(id_)
    held = {
        "EXPIRED",
        "UNKNOWN_TASK_NAME",
        "CLUSTER_AT_CAP",
        "QUEUE_AT_CAP",
        "PARTITION_AT_LIMIT",
        "WORKERS_AT_LOCAL_LIMIT",
        "NO_FREE_SLOT",
        "BEHIND_OTHERS",
    }

    assert found == [code for code in ReasonCode if code in held]


def test_it_reads_tasks_through_their_indexes_always(claimer: Claimers, connect: Connect) -> None:
    limit("default", max_concurrency=3, partition_by_args=["tenant"], partition_max_concurrency=1)

    for state in states(connect(), kwargs=['{"tenant": 1}'] * 20_000):
        worker = living(claimer())
        put(3, kwargs=['{"tenant": 1}', '{"tenant": 2}', '{"tenant": 3}'])
        worker.run_pass(sync=2)
        id_, parked = put(2, kwargs=['{"tenant": 1}'] * 2)
        Task.objects.filter(pk=parked).update(parked=True)

        notices = explained(worker)
        store = OverviewStore(worker.conn)
        found, _ = (store.facts(one, claimed=True, threshold=HOUR) for one in (id_, parked))
        assert found is not None
        assert state == "empty" or found["before"] == 1_001, "no more are counted"

        first, second = plans(notices, "AS earlier")
        assert re.search(r"Index (Only )?Scan using horsies_tasks_claim", first), state
        assert "horsies_tasks_parked" in second, state
        assert "Sort" not in first + second, state


# Explanation and pass agree: a task that only other tasks hold up is claimed if it waits alone, and
# any other task is not. They cannot drift apart: no predicate that both need exists in a second
# text.

CALM = settings(
    max_examples=examples(60, 1_000),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
QUEUES = ("mail", "bulk", "twin")
HERE = "here"
ELSEWHERE = "elsewhere"
FAILED = "failed"
KNOWN = "tests.nothing"
STRANGE = "tests.strange"
MINUTE = dt.timedelta(minutes=1)
GRACE = 1.5 * MINUTE  # tasks due for two minutes are claimed even if unknown


class Row(NamedTuple):
    """A task of an example. Without a ``holder`` it waits; a FAILED one stops its partition if the
    queue is ordered.
    """

    queue: str
    tenant: int
    lane: str
    priority: int
    due_in: int  # minutes
    late: bool
    parked: bool
    holder: str | None
    name: str = KNOWN


ROWS = st.builds(
    Row,
    queue=st.sampled_from(QUEUES),
    tenant=st.integers(1, 2),
    lane=st.sampled_from(["sync", "sync", "async"]),
    priority=st.integers(1, 2),
    due_in=st.sampled_from([-2, -1, -1, -1, 5]),
    late=st.sampled_from([False, False, False, True]),
    parked=st.sampled_from([False, False, False, True]),
    holder=st.sampled_from([None, None, None, HERE, ELSEWHERE, FAILED]),
    name=st.sampled_from([KNOWN, KNOWN, STRANGE]),
)
SHAPES = st.fixed_dictionaries(
    {
        "priority": st.integers(1, 2),
        "max_concurrency": st.sampled_from([None, None, 0, 1, 2, 4]),
        "local_limit": st.sampled_from([None, None, 1, 2]),
        "partition_by_args": st.sampled_from([None, ["tenant"]]),
        "partition_max_concurrency": st.sampled_from([None, 1, 2]),
        "partition_local_limit": st.sampled_from([None, None, 1]),
        "partition_policy": st.sampled_from([None, None, "stop", "coalesce"]),
    }
)
CAPS = st.sampled_from([None, None, 1, 3, 6])


def build(
    rows: list[Row], shapes: list[dict[str, Any]], cap: int | None
) -> tuple[Claimer, list[uuid.UUID]]:
    """Write limits and tasks; return the worker with one free slot of each lane, and the waiting
    tasks.
    """
    limit("*", max_concurrency=cap)
    policies = {}
    for name, shape in zip(QUEUES, shapes, strict=True):
        policies[name] = shape["partition_policy"] if shape["partition_by_args"] else None
        limit(name, **{**shape, "partition_policy": policies[name]})

    worker = Claimer(connection)
    worker.served.__init__(QUEUES)  # type: ignore[misc]
    ids = {HERE: worker.id, ELSEWHERE: uuid.uuid4()}

    waiting = []
    for row in rows:
        (id_,) = put(
            name=row.name,
            queue=row.queue,
            kwargs=[json.dumps({"tenant": row.tenant})],
            lane=row.lane,
        )

        changes: dict[str, Any] = {
            "enqueued_at": now() + row.due_in * MINUTE,
            "priority": row.priority,
        }

        # A pass that expires a task unparks the head of its partition, and may claim it in its next
        # round.
        changes["parked"] = (
            row.parked
            and row.holder is None
            and not any(r.late and r.queue == row.queue for r in rows)
        )
        # With a policy it would be parked behind another task, which the example removes.
        changes["parked"] = changes["parked"] and policies[row.queue] is None

        if row.late:
            changes["good_until"] = now() - MINUTE
        if row.holder == FAILED:
            stops = "stop" if policies[row.queue] == "stop" else None
            changes |= {
                "status": FAILED.upper(),
                "finished_at": now(),
                "error_code": "BROKEN",
                "order_stop": stops,
            }
        elif row.holder:
            changes |= {
                "status": "RUNNING",
                "claimed_by": ids[row.holder],
                "claimed_at": now(),
                "started_at": now(),
            }
        else:
            waiting.append(id_)

        Task.objects.filter(pk=id_).update(
            **changes, claim_generation=0 if row.holder is None else 1
        )

    for name, id_ in ids.items():
        held = {
            lane: sum(row.holder == name and row.lane == lane for row in rows)
            for lane in ("sync", "async")
        }
        free = 1 if name == HERE else 0
        shape = {
            "processes": 1,
            "threads": held["sync"] + free,
            "async_concurrency": held["async"] + free,
        }

        WorkerFactory(id=id_, queues=list(QUEUES), task_names=[KNOWN], **shape)
        HeartbeatFactory(id=id_, worker_id=id_, role="claimer")

    return worker, waiting


@pytest.mark.thorough
@CALM
@given(
    rows=st.lists(ROWS, min_size=5, max_size=10),
    shapes=st.lists(SHAPES, min_size=3, max_size=3),
    cap=CAPS,
)
def test_only_a_task_held_up_by_others_is_claimed_when_alone(
    rows: list[Row], shapes: list[dict[str, Any]], cap: int | None
) -> None:
    """A task that only other tasks hold up is claimed if it waits alone, and no other task is."""
    limits = {**project.HORSIES, "UNKNOWN_TASK_GRACE_MS": GRACE}

    with transaction.atomic(), override_settings(HORSIES=limits):
        worker, waiting = build(rows, shapes, cap)

        for id_ in waiting:
            with transaction.atomic():
                explanation = explain(id_)
                Task.objects.filter(pk__in=waiting).exclude(pk=id_).delete()
                claimed = bool(worker.run_pass(wanted=Wanted(1, 1), grace=GRACE).claims)

                assert could_start(explanation) == claimed, f"{explanation}\nclaimed: {claimed}"
                transaction.set_rollback(True)
        transaction.set_rollback(True)


def could_start(explanation: Explanation) -> bool:
    """Return whether only earlier tasks hold a task up; an unknown task past its grace starts as
    well, and fails.
    """
    reasons = [one for one in explanation.reasons if one.code not in ("NEXT", "BEHIND_OTHERS")]
    reasons = [
        one
        for one in reasons
        if (one.code, one.details.get("status")) != ("BEHIND_IN_ORDER", "PENDING")
    ]
    return all(one.code == "UNKNOWN_TASK_NAME" and not one.details["until"] for one in reasons)


# For each predicate the one function that may contain it: a pattern that it cannot do without,
# apart from names of tables and parameters, and the functions that use the same columns for
# something else.
MARKS = {
    # ``horsies_start`` checks its own lease.
    "horsies_holds_permit": (r"claim_expires_at > ", {"horsies_start"}),
    "horsies_effective_limits": (r"coalesce\(override,", set()),
    "horsies_remaining_capacity": (r"(?<!partition_)max_concurrency - ", set()),
    "horsies_partition_rooms": (r"local_limit \*", set()),
    # ``horsies_named_arguments`` reads the plain form for it.
    "horsies_partition_key": (r"kwargs ->", {"horsies_named_arguments"}),
    "horsies_is_orphaned": (r"claimed_at < ", set()),
    "horsies_workers_serving": (r"stopped_at is null", set()),
    "horsies_worker_knows": (r"task_names \?", set()),
}
TEXTS = {name: path.read_text() for name, path in {**STATEMENTS, **FUNCTIONS}.items()}


def plain(text: str) -> str:
    """Return SQL in lower case on one line, without comments, table names and prefixes of
    parameters.
    """
    text = re.sub(r"--.*", "", text)
    text = re.sub(r"\b[a-z_]\w*\.(?=[a-z_])|\b[pv]_(?=\w)", "", text)
    return re.sub(r"\s+", " ", text).lower()


def called(*names: str) -> set[str]:
    """Return all functions that these call, directly or through others."""
    found: set[str] = set()
    open_ = set(names)

    while open_:
        name = open_.pop()
        found.add(name)
        open_ |= (
            set(re.findall(r"horsies_\w+(?=\()", TEXTS[name].partition("$$")[2]))
            & set(TEXTS) - found
        )

    return found


@pytest.mark.parametrize("name", MARKS)
def test_a_predicate_of_the_claim_has_one_text(name: str) -> None:
    mark, others = MARKS[name]

    assert {stem for stem, text in TEXTS.items() if re.search(mark, plain(text))} == {name} | others


def test_the_claim_and_the_explanation_call_the_same_functions() -> None:
    assert set(MARKS) - called("horsies_pass", "horsies_configure_queue", "horsies_reap") == set()
    assert set(MARKS) - called("horsies_explain") == set()
