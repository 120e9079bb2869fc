"""Why a task does not run: each reason with its cause, gone without it, and all of them in agreement with the pass."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from horsies_django import explain
from horsies_django.core.explanations import ReasonCode
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Heartbeat, Task, Worker
from horsies_django.store.workers import WorkerStore
from tests.conftest import Claimer, limit, put
from tests.support.factories import HeartbeatFactory, TaskFactory, WorkerFactory, now

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
HOUR = dt.timedelta(hours=1)


def codes(id_: uuid.UUID) -> list[str]:
    return [reason.code.value for reason in explain(id_).reasons]


def reason(id_: uuid.UUID, code: str) -> Any:
    """Return the one reason of that code."""
    (found,) = (one for one in explain(id_).reasons if one.code == code)
    return found


def serving(*queues: str, slots: int = 9, **columns: Any) -> Worker:
    """Put a living worker into the tables."""
    shape = {"processes": 1, "threads": slots, "async_concurrency": slots, "queues": list(queues) or ["default"]}
    worker = WorkerFactory(**{**shape, **columns})
    HeartbeatFactory(id=worker.id, worker_id=worker.id, role="claimer")
    return worker


def living(worker: Claimer, **columns: Any) -> Claimer:
    """Give a claimer its rows."""
    serving(*worker.served.queues, id=worker.id, **columns)
    return worker


def done(claims: list[Claim]) -> list[Outcome]:
    return [Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": null}') for claim in claims]


def tenant(name: str, count: int = 1, **columns: Any) -> list[uuid.UUID]:
    return put(count, kwargs=[f'{{"tenant": "{name}"}}'] * count, **columns)


def test_a_task_that_nothing_holds_up_is_next() -> None:
    worker = serving()
    (id_,) = put()
    (found,) = explain(str(id_)).reasons
    assert found.code == "NEXT"
    assert found.text.endswith("should start within 1 s.")
    assert found.details["workers"] == [{"worker_id": str(worker.id), "hostname": "web-1", "pid": worker.pid}]


def test_an_unknown_id_and_no_id_at_all_are_errors_that_say_so() -> None:
    with pytest.raises(LookupError, match="there is no task .* in the database 'default'"):
        explain(uuid.uuid4())
    with pytest.raises(ValueError, match="'17' is not a task id"):
        explain("17")


def test_a_finished_task_says_how_it_ended() -> None:
    failed, completed = TaskFactory(status="FAILED"), TaskFactory(status="COMPLETED")
    found = reason(failed.id, "FINISHED")
    assert "It ended as FAILED with UNHANDLED_ERROR at " in found.text
    assert found.details["error_code"] == "UNHANDLED_ERROR"
    assert codes(completed.id) == ["FINISHED"]


def test_a_running_task_says_where_and_in_which_process() -> None:
    worker = serving()
    task = TaskFactory(status="RUNNING", claimed_by=worker.id)
    assert f" on web-1:{worker.pid}." in reason(task.id, "RUNNING").text
    HeartbeatFactory(worker_id=worker.id, pid=77, holding=[str(task.id)])
    found = reason(task.id, "RUNNING")
    assert found.text.endswith(f" on web-1:{worker.pid}, in process 77.")
    assert found.details["child_pid"] == 77


def test_a_task_held_by_a_worker_that_stopped_beating_says_when_it_is_rescued() -> None:
    worker, other = serving(), serving()
    task = TaskFactory(status="RUNNING", claimed_by=worker.id)
    beats = Heartbeat.objects.filter(pk=worker.id)
    assert codes(task.id) == ["RUNNING"]
    beats.update(sent_at=now() - dt.timedelta(seconds=5))
    found = reason(task.id, "CLAIMED_BY_SILENT_WORKER")
    assert "which runs it, was last seen at" in found.text
    assert "the task fails with WORKER_CRASHED after " in found.text
    assert found.details["reapers"] is True
    rescue = dt.datetime.fromisoformat(found.details["rescue_at"])
    assert rescue - dt.datetime.fromisoformat(found.details["beat_at"]) == dt.timedelta(seconds=10)
    beats.update(died_at=now())
    assert "at the next check by a live worker" in reason(task.id, "CLAIMED_BY_SILENT_WORKER").text
    Heartbeat.objects.filter(pk=other.id).delete()
    assert "start one" in reason(task.id, "CLAIMED_BY_SILENT_WORKER").text
    beats.update(died_at=None, sent_at=now())
    assert codes(task.id) == ["RUNNING"]


def test_a_task_of_a_worker_without_a_heartbeat_is_what_the_reaper_calls_an_orphan(claimer: Claimers) -> None:
    task = TaskFactory(status="RUNNING", sent_at=now() - dt.timedelta(seconds=30))
    young = TaskFactory(status="RUNNING")
    assert codes(task.id) == ["CLAIMED_BY_SILENT_WORKER"]
    assert codes(young.id) == ["RUNNING"]
    happened = WorkerStore(claimer().conn).reap(dt.timedelta(seconds=10), judge=True, many=10)
    assert [each[:4] for each in happened] == [("failed", task.id, task.task_name, 1)]
    assert codes(task.id) == ["FINISHED"]


def test_a_claim_that_waits_in_a_buffer_says_so_until_its_lease_ends() -> None:
    worker = serving()
    task = TaskFactory(status="CLAIMED", claimed_by=worker.id, claim_expires_at=now() + HOUR)
    found = reason(task.id, "CLAIMED_WAITING")
    assert f"Worker web-1:{worker.pid} has prefetched it" in found.text
    assert found.details["lease_ends_at"]
    assert codes(task.id) == ["CLAIMED_WAITING"]
    limit("default", paused_at="now", paused_by="ann")
    assert codes(task.id) == ["CLAIMED_WAITING", "QUEUE_PAUSED"]
    Task.objects.filter(pk=task.id).update(claim_expires_at=now() - HOUR)
    assert "ended at" in reason(task.id, "CLAIMED_WAITING").text
    Heartbeat.objects.update(died_at=now())
    found = reason(task.id, "CLAIMED_BY_SILENT_WORKER")
    assert "has claimed it" in found.text
    assert "is pending again" in found.text


def test_a_paused_queue_says_who_and_why_and_a_resumed_one_nothing() -> None:
    serving()
    (id_,) = put()
    limit("default", paused_at="now", paused_by="ann", paused_reason="the disk is full")
    found = reason(id_, "QUEUE_PAUSED")
    assert re.fullmatch(
        r"The queue 'default' has been paused since \d\d:\d\d:\d\d by ann: the disk is full. None of its tasks start.",
        found.text,
    )
    assert (found.details["by"], found.details["reason"]) == ("ann", "the disk is full")
    limit("default", paused_at=None, paused_by=None, paused_reason=None)
    assert codes(id_) == ["NEXT"]


def test_a_cap_of_0_is_a_pause_whoever_set_it() -> None:
    serving()
    (id_,) = put()
    limit("default", max_concurrency=0)
    assert "is declared with a cap of 0" in reason(id_, "QUEUE_PAUSED").text
    overridden = {"override_by": "bob", "override_reason": "sale", "override_at": "now"}
    limit("default", max_concurrency=5, override={"max_concurrency": 0}, **overridden)
    assert "a cap of 0 since" in reason(id_, "QUEUE_PAUSED").text
    assert reason(id_, "QUEUE_PAUSED").details["by"] == "bob"
    limit("default", override={"max_concurrency": None}, **overridden)
    assert codes(id_) == ["NEXT"]
    limit("*", paused_at="now", paused_by="ann")
    assert reason(id_, "QUEUE_PAUSED").text.startswith("The whole cluster has been paused since")


def test_a_task_that_is_not_due_says_when_and_a_retry_which() -> None:
    serving()
    (id_,) = put(delay=HOUR)
    assert codes(id_) == ["NOT_DUE"]
    Task.objects.filter(pk=id_).update(retry_count=1, max_retries=3)
    found = reason(id_, "RETRY_WAITING")
    assert "It waits for retry 1 of 3, which is due at " in found.text
    assert dt.datetime.fromisoformat(found.details["due_at"]) > dt.datetime.now(dt.UTC)
    Task.objects.filter(pk=id_).update(enqueued_at=now())
    assert codes(id_) == ["NEXT"]


@pytest.mark.promise("S0.45", "S1.52")
def test_a_task_past_its_good_until_is_told_to_expire() -> None:
    serving()
    (late,) = put(good_until=dt.datetime.now(dt.UTC) - HOUR)
    assert codes(late) == ["EXPIRED"]
    Task.objects.filter(pk=late).delete()
    (timely,) = put(good_until=dt.datetime.now(dt.UTC) + HOUR)
    assert codes(timely) == ["NEXT"]


@pytest.mark.promise("S0.45", "S1.52")
@pytest.mark.parametrize(
    ("name", "code", "who"),
    [("mail", "QUEUE_AT_CAP", "The queue 'mail'"), ("*", "CLUSTER_AT_CAP", "The whole cluster")],
)
def test_a_cap_that_is_reached_names_who_holds_it(claimer: Claimers, name: str, code: str, who: str) -> None:
    limit(name, max_concurrency=2)
    ids = put(3, queue="mail")
    worker = living(claimer(mail=1))
    claims = worker.run_pass(sync=9).claims
    found = reason(ids[2], code)
    host = f"web-1:{Worker.objects.get().pid}"
    assert re.fullmatch(
        rf"{re.escape(who)} is at its cap: 2 of 2 permits are taken, the longest since [\d:]+ by task {ids[0]} on {host}\.",
        found.text,
    )
    assert (found.details["cap"], found.details["taken"]) == (2, 2)
    assert [holder["task_id"] for holder in found.details["holders"]] == [str(ids[0]), str(ids[1])]
    limit(name, max_concurrency=1)
    assert "2 of 1 permits are taken" in reason(ids[2], code).text
    worker.run_pass(outcomes=done(claims[:2]))
    assert codes(ids[2]) == ["NEXT"]


def test_of_many_holders_twenty_are_named(claimer: Claimers) -> None:
    limit("default", max_concurrency=25)
    ids = put(26)
    living(claimer(), slots=99).run_pass(sync=99)
    found = reason(ids[25], "QUEUE_AT_CAP")
    assert found.details["taken"] == 25
    assert [holder["task_id"] for holder in found.details["holders"]] == [str(id_) for id_ in ids[:20]]


def test_a_full_partition_names_its_holders_whether_the_task_is_parked_yet_or_not(claimer: Claimers) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = living(claimer())
    ids = tenant("a", 2)
    claims = worker.run_pass(sync=9).claims
    assert Task.objects.get(pk=ids[1]).parked
    (new,) = tenant("a")
    (other,) = tenant("b")
    for id_ in (ids[1], new):
        found = reason(id_, "PARTITION_AT_LIMIT")
        assert found.text.startswith(
            'The partition {"tenant": "a"} of queue \'default\' is at its limit: 1 of 1 permits'
        )
        assert [holder["task_id"] for holder in found.details["holders"]] == [str(ids[0])]
    assert codes(other) == ["BEHIND_OTHERS"], "the new one, until a claim meets and parks it"
    worker.run_pass(outcomes=done(claims))
    assert codes(ids[1]) == ["NEXT"]


def test_a_parked_task_of_a_partition_with_room_waits_for_the_sweep(claimer: Claimers) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = living(claimer())
    ids = tenant("a", 2)
    worker.run_pass(sync=9)
    limit("default", partition_max_concurrency=2)
    assert "A permit is free now" in reason(ids[1], "PARTITION_AT_LIMIT").text
    assert worker.run_pass(sync=9).claims == []


def test_a_partition_that_is_full_in_each_worker_is_at_its_limit(claimer: Claimers) -> None:
    limit("default", partition_by_args=["tenant"], partition_local_limit=1)
    first, second = living(claimer()), living(claimer())
    ids = tenant("a", 3)
    first.run_pass(sync=1)
    assert codes(ids[1]) == ["NEXT"], "the second worker can take it"
    second.run_pass(sync=1)
    assert "2 of 2 permits" in reason(ids[2], "PARTITION_AT_LIMIT").text
    Worker.objects.filter(pk=second.id).update(threads=1)
    Task.objects.filter(pk=ids[1]).update(queue_name="mail")
    found = explain(ids[2]).reasons
    assert [one.code for one in found] == ["PARTITION_AT_LIMIT", "NO_FREE_SLOT"], (
        "one worker has one against it, one the other"
    )
    assert "is at its limit of 1 in each worker" in found[0].text
    assert found[1].text.startswith("1 of the 2 live workers that serve its queue are without a free slot")


def test_workers_at_their_own_limit_are_named_once_all_are(claimer: Claimers) -> None:
    limit("default", local_limit=1)
    first, second = living(claimer()), living(claimer())
    ids = put(3)
    first.run_pass(sync=2)
    assert codes(ids[1]) == ["NEXT"]
    second.run_pass(sync=2)
    found = reason(ids[2], "WORKERS_AT_LOCAL_LIMIT")
    assert found.text == "All 2 live workers that serve its queue are at the limit of 1 per worker."
    assert {worker["worker_id"] for worker in found.details["workers"]} == {str(first.id), str(second.id)}


def test_workers_without_a_free_slot_of_the_lane_are_named(claimer: Claimers) -> None:
    worker = living(claimer(), slots=2)
    ids, (other,) = put(3), put(lane="async")
    claims = worker.run_pass(sync=2).claims
    found = reason(ids[2], "NO_FREE_SLOT")
    assert found.text == (
        "The only live worker that serves its queue is without a free slot for sync tasks: 2 of 2 are taken."
    )
    assert (found.details["workers"][0]["busy"], found.details["lane"]) == (2, "sync")
    assert codes(other) == ["NEXT"]
    worker.run_pass(outcomes=done(claims[:1]))
    assert codes(ids[2]) == ["NEXT"]


def test_a_queue_that_nobody_serves_names_who_did_last() -> None:
    (id_,) = put()
    serving("mail")
    text = reason(id_, "NO_LIVE_WORKER").text
    assert text == "No worker serves the queue 'default', and none ever has: start one that does."
    worker = serving()
    assert codes(id_) == ["NEXT"]
    WorkerStore(connection).stop(worker.id)
    found = reason(id_, "NO_LIVE_WORKER")
    assert f"the last one, web-1:{worker.pid}, stopped at" in found.text
    assert [one["worker_id"] for one in found.details["former"]] == [str(worker.id)]


def test_a_worker_that_was_not_heard_for_long_serves_nothing_even_if_nobody_is_there_to_declare_it_dead() -> None:
    (id_,) = put()
    worker = serving()
    Heartbeat.objects.filter(pk=worker.id).update(sent_at=now() - dt.timedelta(seconds=11))
    assert "was last seen at" in reason(id_, "NO_LIVE_WORKER").text
    Heartbeat.objects.filter(pk=worker.id).update(sent_at=now())
    assert codes(id_) == ["NEXT"]
    Heartbeat.objects.filter(pk=worker.id).update(died_at=now())
    assert codes(id_) == ["NO_LIVE_WORKER"]


def test_a_queue_that_is_not_in_the_table_is_named() -> None:
    serving("nowhere")
    (id_,) = put(queue="mail")
    Task.objects.filter(pk=id_).update(queue_name="nowhere")
    assert "There is no queue 'nowhere' in the database" in reason(id_, "NO_LIVE_WORKER").text


def test_a_name_that_no_worker_knows_is_told_as_soon_as_no_worker_knows_it() -> None:
    old = serving(task_names=["shop.tasks.old"])
    (id_,) = put(name="shop.tasks.new")
    found = reason(id_, "UNKNOWN_TASK_NAME")
    assert "they leave it to others until" in found.text
    assert dt.datetime.fromisoformat(found.details["until"]) > dt.datetime.now(dt.UTC) + dt.timedelta(minutes=4)
    assert found.details["workers"][0]["worker_id"] == str(old.id)
    Task.objects.filter(pk=id_).update(enqueued_at=now() - HOUR)
    found = reason(id_, "UNKNOWN_TASK_NAME")
    assert "'shop.tasks.new': the first to claim it fails it with WORKER_RESOLUTION_ERROR" in found.text
    Task.objects.filter(pk=id_).update(enqueued_at=now())
    new = serving(task_names=["shop.tasks.new", "shop.tasks.old"])
    assert codes(id_) == ["NEXT"]
    Worker.objects.filter(pk=new.id).update(task_names=None)
    assert codes(id_) == ["NEXT"], "a worker of an earlier release does not say what it knows"


def test_a_task_in_a_form_that_no_worker_reads_waits_like_one_that_none_knows() -> None:
    serving(wire=1)
    (id_,) = put(options='{"wire": 2}')
    assert "in the format of a newer release (format version 2)" in reason(id_, "UNKNOWN_TASK_NAME").text
    serving(wire=2)
    assert codes(id_) == ["NEXT"]


def test_those_that_stand_before_it_are_counted_in_the_order_of_the_claim() -> None:
    limit("mail", priority=1)
    limit("bulk", priority=50)
    limit("twin", priority=50)
    first, last = put(2, queue="bulk")
    serving("bulk", "mail", "twin")
    assert codes(first) == ["NEXT"]
    assert reason(last, "BEHIND_OTHERS").text == "1 task of its queue is ahead of it and may start first."
    put(2, queue="mail")
    put(queue="twin", priority=1)
    put(queue="bulk", priority=1, delay=HOUR)
    put(queue="bulk", priority=1, good_until=dt.datetime.now(dt.UTC) - HOUR)
    put(queue="bulk", priority=1, lane="async")
    put(queue="default")
    assert reason(last, "BEHIND_OTHERS").details == {"count": 2, "more": False}
    parked = put(3, queue="bulk")
    Task.objects.filter(pk__in=[*parked, last]).update(parked=True, partition_key="a")
    Task.objects.filter(pk=last).update(partition_key="b")
    assert reason(parked[2], "BEHIND_OTHERS").details["count"] == 2, "those of its partition"


def test_those_before_it_are_counted_up_to_a_thousand() -> None:
    serving()
    put(1_001)
    (id_,) = put()
    assert reason(id_, "BEHIND_OTHERS").text.startswith("More than 1,000 tasks of its queue are ahead of it")
    assert reason(id_, "BEHIND_OTHERS").details == {"count": 1_000, "more": True}


@pytest.mark.promise("S0.45")
def test_all_reasons_that_hold_come_the_most_decisive_first(claimer: Claimers) -> None:
    limit("*", max_concurrency=1)
    limit("default", max_concurrency=1, local_limit=1, partition_by_args=["tenant"], partition_max_concurrency=1)
    worker = living(claimer(), slots=1, task_names=[])
    tenant("a")
    worker.run_pass(sync=1)
    limit("mail", paused_at="now", paused_by="ann")
    tenant("a", 2)
    (id_,) = tenant("a", good_until=dt.datetime.now(dt.UTC) - HOUR)
    found = codes(id_)
    assert found == [
        "EXPIRED", "UNKNOWN_TASK_NAME", "CLUSTER_AT_CAP", "QUEUE_AT_CAP", "PARTITION_AT_LIMIT", "WORKERS_AT_LOCAL_LIMIT",
        "NO_FREE_SLOT", "BEHIND_OTHERS",
    ]  # fmt: skip
    places = [list(ReasonCode).index(ReasonCode(code)) for code in found]
    assert places == sorted(places)


def test_in_soft_mode_only_what_runs_is_counted(settings: Any) -> None:
    worker = serving()
    limit("default", max_concurrency=1)
    TaskFactory(status="CLAIMED", claimed_by=worker.id, claim_expires_at=now() + HOUR)
    (id_,) = put()
    assert codes(id_) == ["QUEUE_AT_CAP"]
    settings.HORSIES = {**settings.HORSIES, "PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 5_000}
    assert codes(id_) == ["NEXT"]


def test_it_locks_nothing(claimer: Claimers) -> None:
    worker = living(claimer())
    (id_,) = put()
    with transaction.atomic():
        assert codes(id_) == ["NEXT"]
        assert [claim.id for claim in worker.run_pass(sync=1).claims] == [id_]
        assert codes(id_) == ["RUNNING"]
