"""Explanation and pass agree: a task that nothing but other tasks holds up is claimed if it waits alone, and any other is not.

And they cannot drift apart: no predicate that both need exists in a second text.
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
from horsies_django.core.explanations import Explanation
from horsies_django.core.records import Wanted
from horsies_django.models import Task
from tests.conftest import Claimer, limit, put
from tests.support.factories import HeartbeatFactory, WorkerFactory, now
from tests.support.sizes import examples
from tests.support.statements import FUNCTIONS, STATEMENTS

CALM = settings(
    max_examples=examples(60, 1_000), deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip
QUEUES = ("mail", "bulk", "twin")
HERE, ELSEWHERE, FAILED = "here", "elsewhere", "failed"
KNOWN, STRANGE = "tests.nothing", "tests.strange"
MINUTE = dt.timedelta(minutes=1)
GRACE = 1.5 * MINUTE  # what has been due for two minutes is taken, whoever knows it


class Row(NamedTuple):
    """A task as the example wishes it; ``holder`` None waits, one that is FAILED stops its partition if the queue is ordered."""

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
SHAPES = st.fixed_dictionaries({
    "priority": st.integers(1, 2),
    "max_concurrency": st.sampled_from([None, None, 0, 1, 2, 4]),
    "local_limit": st.sampled_from([None, None, 1, 2]),
    "partition_by_args": st.sampled_from([None, ["tenant"]]),
    "partition_max_concurrency": st.sampled_from([None, 1, 2]),
    "partition_local_limit": st.sampled_from([None, None, 1]),
    "partition_policy": st.sampled_from([None, None, "stop", "coalesce"]),
})  # fmt: skip
CAPS = st.sampled_from([None, None, 1, 3, 6])


def build(rows: list[Row], shapes: list[dict[str, Any]], cap: int | None) -> tuple[Claimer, list[uuid.UUID]]:
    """Put limits and tasks into the tables; return the worker that has a slot of each lane free, and the waiting tasks."""
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
        (id_,) = put(name=row.name, queue=row.queue, kwargs=[json.dumps({"tenant": row.tenant})], lane=row.lane)
        changes: dict[str, Any] = {"enqueued_at": now() + row.due_in * MINUTE, "priority": row.priority}
        # A pass that expires a task unparks the head of its partition, and may take that in its next round.
        changes["parked"] = row.parked and row.holder is None and not any(r.late and r.queue == row.queue for r in rows)
        # With a policy, it would be parked behind another one, which the example takes away.
        changes["parked"] = changes["parked"] and policies[row.queue] is None
        if row.late:
            changes["good_until"] = now() - MINUTE
        if row.holder == FAILED:
            stops = "stop" if policies[row.queue] == "stop" else None
            changes |= {"status": FAILED.upper(), "finished_at": now(), "error_code": "BROKEN", "order_stop": stops}
        elif row.holder:
            changes |= {"status": "RUNNING", "claimed_by": ids[row.holder], "claimed_at": now(), "started_at": now()}
        else:
            waiting.append(id_)
        Task.objects.filter(pk=id_).update(**changes, claim_generation=0 if row.holder is None else 1)
    for name, id_ in ids.items():
        held = {lane: sum(row.holder == name and row.lane == lane for row in rows) for lane in ("sync", "async")}
        free = 1 if name == HERE else 0
        shape = {"processes": 1, "threads": held["sync"] + free, "async_concurrency": held["async"] + free}
        WorkerFactory(id=id_, queues=list(QUEUES), task_names=[KNOWN], **shape)
        HeartbeatFactory(id=id_, worker_id=id_, role="claimer")
    return worker, waiting


@pytest.mark.thorough
@CALM
@given(rows=st.lists(ROWS, min_size=5, max_size=10), shapes=st.lists(SHAPES, min_size=3, max_size=3), cap=CAPS)
def test_what_only_others_hold_up_is_claimed_if_it_waits_alone_and_nothing_else_is(
    rows: list[Row], shapes: list[dict[str, Any]], cap: int | None
) -> None:
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
    """Whether nothing holds a task up but others before it, or that it will fail."""
    reasons = [one for one in explanation.reasons if one.code not in ("NEXT", "BEHIND_OTHERS")]
    reasons = [one for one in reasons if (one.code, one.details.get("status")) != ("BEHIND_IN_ORDER", "PENDING")]
    return all(one.code == "UNKNOWN_TASK_NAME" and not one.details["until"] for one in reasons)


# What a predicate cannot do without, names of tables and parameters apart -> under the one function that may have it,
# and others that ask something else of the same columns.
MARKS = {
    "horsies_holds_permit": (r"claim_expires_at > ", {"horsies_start"}),  # a start asks for its own lease
    "horsies_effective_limits": (r"coalesce\(override,", set()),
    "horsies_remaining_capacity": (r"(?<!partition_)max_concurrency - ", set()),
    "horsies_partition_rooms": (r"local_limit \*", set()),
    "horsies_partition_key": (r"kwargs ->", {"horsies_named_arguments"}),  # which reads the plain form for it
    "horsies_is_orphaned": (r"claimed_at < ", set()),
    "horsies_workers_serving": (r"stopped_at is null", set()),
    "horsies_worker_knows": (r"task_names \?", set()),
}
TEXTS = {name: path.read_text() for name, path in {**STATEMENTS, **FUNCTIONS}.items()}


def plain(text: str) -> str:
    """Return SQL without comments, names of tables and cursors of parameters, on one line."""
    text = re.sub(r"--.*", "", text)
    text = re.sub(r"\b[a-z_]\w*\.(?=[a-z_])|\b[pv]_(?=\w)", "", text)
    return re.sub(r"\s+", " ", text).lower()


def called(*names: str) -> set[str]:
    """Return all functions that some call, directly or by others."""
    found: set[str] = set()
    open_ = set(names)
    while open_:
        name = open_.pop()
        found.add(name)
        open_ |= set(re.findall(r"horsies_\w+(?=\()", TEXTS[name].partition("$$")[2])) & set(TEXTS) - found
    return found


@pytest.mark.parametrize("name", MARKS)
def test_a_predicate_of_the_claim_has_one_text(name: str) -> None:
    mark, others = MARKS[name]
    assert {stem for stem, text in TEXTS.items() if re.search(mark, plain(text))} == {name} | others


def test_the_claim_and_the_explanation_ask_the_same_functions() -> None:
    assert set(MARKS) - called("horsies_pass", "horsies_configure_queue", "horsies_reap") == set()
    assert set(MARKS) - called("horsies_explain") == set()
