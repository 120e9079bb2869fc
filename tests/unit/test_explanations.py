"""Facts become sentences: in the reader's zone, with the day if it is another one, and with details
that JSON can hold.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest

from horsies_django.core.explanations import Explanation, Reason, ReasonCode
from horsies_django.core.reasoning import Timing, reasoned

ID = uuid.UUID(int=7)
WORKER = str(uuid.UUID(int=8))
NOW = "2030-01-31T12:00:00+00:00"
TIMING = Timing(
    poll=dt.timedelta(seconds=5),
    silence=dt.timedelta(seconds=5),
    threshold=dt.timedelta(seconds=10),
    grace=dt.timedelta(minutes=5),
    zone=dt.timezone(dt.timedelta(hours=3)),
)
TASK = {
    "id": str(ID),
    "task_name": "shop.tasks.add",
    "queue_name": "verify",
    "lane": "sync",
    "status": "PENDING",
    "parked": False,
    "enqueued_at": "2030-01-31T11:00:00+00:00",
    "good_until": None,
    "retry_count": 0,
    "max_retries": 0,
    "claimed_at": None,
    "claim_expires_at": None,
    "started_at": None,
    "finished_at": None,
    "error_code": None,
    "wire": 1,
    "snoozed": False,
    "snooze_count": 0,
    "order_stop": None,
    "priority": 100,
    "codec": None,
}
QUEUE = {
    "name": "verify",
    "max_concurrency": None,
    "local_limit": None,
    "partition_local_limit": None,
    "room": None,
    "taken": 0,
    "holders": None,
    "paused_at": None,
    "paused_by": None,
    "paused_reason": None,
    "override": None,
    "override_until": None,
}
TAKER = {
    "worker_id": WORKER,
    "hostname": "web-1",
    "pid": 41,
    "beat_at": NOW,
    "slots": 2,
    "busy": 0,
    "room": None,
    "partition_room": None,
    "wire": 1,
    "knows": True,
}
STRANGER = TAKER | {"knows": False}
YOUNG = {"enqueued_at": "2030-01-31T11:58:00+00:00"}
HELD_SINCE = {"task_id": str(ID), "hostname": "web-1", "pid": 41, "worker_id": WORKER}


def told(task: dict[str, Any] | None = None, **facts: Any) -> Explanation:
    """Explain a pending task that nothing holds back, except the given facts."""
    given = {
        "now": NOW,
        "bound": 1_000,
        "task": TASK | (task or {}),
        "queue": QUEUE,
        "workers": [TAKER],
        "former": [],
    }
    return reasoned(given | facts, TIMING)


def only(code: str, explanation: Explanation) -> Reason:
    (found,) = explanation.reasons
    assert found.code == code
    json.dumps(found.details)
    return found


def test_an_explanation_is_never_empty_and_reads_as_lines() -> None:
    assert str(told()) == (
        f"Task {ID} is PENDING.\n  NEXT: Nothing holds it back: it is the next task of its queue "
        "and should start within 5 s."
    )
    assert told().reasons[0].code is ReasonCode.NEXT


def test_times_are_shown_in_the_time_zone_of_the_reader() -> None:
    """Times are shown in the time zone of the reader, with the day if it is another one."""
    soon = only("NOT_DUE", told({"enqueued_at": "2030-01-31T12:30:00+00:00"}))
    assert soon.text == "It is not due before 15:30:00."
    assert soon.details == {"due_at": "2030-01-31T12:30:00+00:00"}

    late = only("NOT_DUE", told({"enqueued_at": "2030-01-31T22:30:00+00:00"}))
    assert late.text == "It is not due before 2030-02-01 01:30:00."


def test_an_unknown_task_waits_until_its_grace_ends() -> None:
    """Workers that do not have a task skip it until its grace ends."""
    found = only("UNKNOWN_TASK_NAME", told(YOUNG, workers=[STRANGER]))
    assert found.text == (
        "No live worker of its queue can run the task 'shop.tasks.add': workers skip it until "
        "15:03:00; after that, it fails with WORKER_RESOLUTION_ERROR when a worker claims it. "
        "Deploy the code that defines it to the workers."
    )
    assert found.details["until"] == "2030-01-31T12:03:00+00:00"

    newer = only("UNKNOWN_TASK_NAME", told(YOUNG | {"wire": 2}, workers=[STRANGER]))
    assert (
        "'shop.tasks.add' in the format of a newer release (format version 2): workers skip"
        in newer.text
    )

    same = only("UNKNOWN_TASK_NAME", told(YOUNG | {"wire": 2}, workers=[STRANGER | {"wire": 2}]))
    assert "newer" not in same.text, "they read it, and do not have the task"

    old = only("UNKNOWN_TASK_NAME", told(workers=[STRANGER]))
    assert (
        "'shop.tasks.add': it fails with WORKER_RESOLUTION_ERROR when a worker claims" in old.text
    )
    assert old.details["until"] is None


def test_a_worker_without_the_code_of_a_task_has_no_slot_for_it() -> None:
    busy = TAKER | {"worker_id": str(ID), "busy": 2}

    assert only("NO_FREE_SLOT", told(YOUNG, workers=[STRANGER, busy])).text == (
        "The only live worker that serves its queue and has its code is without a free slot for "
        "sync tasks: 2 of 2 are taken."
    )
    assert (
        only("NEXT", told(YOUNG, workers=[STRANGER, TAKER])).details["workers"][0]["worker_id"]
        == WORKER
    )


def test_a_worker_whose_processes_are_not_ready_has_no_slot() -> None:
    """Fails if: the explanation says that a task will start soon, although it waits for a hanging
    child.
    """
    idle = TAKER | {"worker_id": str(ID), "slots": 0, "busy": 0}

    assert only("NO_FREE_SLOT", told(workers=[idle])).text == (
        "The only live worker that serves its queue is without a free slot for sync tasks: no "
        "process is ready. "
        f"The log of {idle['hostname']}:{idle['pid']} has the reason."
    )


def test_a_cap_names_the_holder_of_its_longest_held_permit() -> None:
    """The reason names the holder of the longest held permit, if there is one."""
    holder = HELD_SINCE | {"since": "2030-01-31T11:02:11+00:00"}
    full = QUEUE | {"max_concurrency": 2, "room": 0, "taken": 2}
    said = "The queue 'verify' is at its cap: 2 of 2 permits are taken"

    for holders, longest in (
        ([holder], f", the longest since 14:02:11 by task {ID} on web-1:41."),
        (
            [holder | {"hostname": None}],  # the row of the worker is gone
            f", the longest since 14:02:11 by task {ID} on {WORKER}.",
        ),
        ([], "."),
    ):
        assert only("QUEUE_AT_CAP", told(queue=full | {"holders": holders})).text == said + longest


def test_obstacles_of_workers_count_only_if_every_worker_has_one() -> None:
    """Obstacles of single workers count only if every worker has one."""
    busy = TAKER | {"busy": 2}
    limited = TAKER | {"room": 0}
    queue = QUEUE | {"local_limit": 1}

    only("NEXT", told(queue=queue, workers=[busy, TAKER]))

    both = told(queue=queue, workers=[busy, limited])
    assert [reason.code for reason in both.reasons] == ["WORKERS_AT_LOCAL_LIMIT", "NO_FREE_SLOT"]
    assert both.reasons[0].text.startswith(
        "1 of the 2 live workers that serve its queue are at the limit of 1 per worker."
    )


@pytest.mark.parametrize(("seconds", "code"), [(9, "NEXT"), (11, "NO_LIVE_WORKER")])
def test_a_worker_counts_until_its_silence_reaches_the_threshold(seconds: int, code: str) -> None:
    beat = dt.datetime.fromisoformat(NOW) - dt.timedelta(seconds=seconds)
    only(code, told(workers=[TAKER | {"beat_at": beat.isoformat()}]))


def test_a_claim_without_a_lease_is_about_to_start() -> None:
    holder = {
        "worker_id": WORKER,
        "hostname": "web-1",
        "pid": 41,
        "child_pid": None,
        "beat_at": NOW,
        "died_at": None,
        "orphaned": False,
        "heard_at": NOW,
    }

    found = told({"status": "CLAIMED", "claimed_at": NOW}, holder=holder)

    assert (
        only("CLAIMED_WAITING", found).text
        == "Worker web-1:41 claimed it at 15:00:00 and is about to start it."
    )


def test_an_explanation_counts_at_most_a_thousand_tasks_ahead() -> None:
    for before, count, verb in (
        (1, "1 task", "is"),
        (1_000, "1,000 tasks", "are"),
        (1_001, "More than 1,000 tasks", "are"),
    ):
        found = only("BEHIND_OTHERS", told(before=before))
        assert found.text == f"{count} of its queue {verb} ahead of it and may start first."
        assert found.details == {"count": min(before, 1_000), "more": before > 1_000}

    plain = only("BEHIND_OTHERS", told({"priority": 111, "codec": "plain"}, before=1))
    assert plain.text.endswith(
        "is ahead of it and may start first; its priority is 111 (django.tasks: -10)."
    )
