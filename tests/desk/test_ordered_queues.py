"""Ordered queues: keys that a failed task stops, skips from each place, and refused sends."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from horsies_django import TaskSendError, Workflow, queues, signals
from horsies_django.core.errors import QueueError, TaskSendErrorCode, WorkflowDefinitionError
from horsies_django.models import AuditEntry, Queue, Task
from horsies_django.monitoring import overview
from horsies_django.schedules import definition_problems
from horsies_django.testing import drain
from tests.apps.errands import tasks as plain
from tests.apps.project import tasks
from tests.conftest import Claimers, limit, put
from tests.desk.test_admin import body, client_with, page_of, says, table
from tests.desk.test_admin_task import opened
from tests.support.commands import command
from tests.support.factories import TaskFactory, error, now

pytestmark = pytest.mark.django_db(transaction=True)

WHO = {"actor": "ann", "reason": "broken data"}
URL = reverse("admin:horsies_queue_change", args=(quote("mail"),))
HELD = '{"customer": "acme"}'
run, machine, refusal = command("horsies_queue")


def ordered(policy: str = "stop", **columns: Any) -> None:
    limit("mail", **{"partition_by_args": ["customer"], "partition_policy": policy, **columns})


def stop(key: Any = "acme", behind: int = 2, **columns: Any) -> uuid.UUID:
    """Write a failed task that stops its key, and tasks behind it; return the first one's id."""
    kwargs = {"customer": key}
    held = {
        "queue_name": "mail",
        "kwargs": kwargs,
        "partition_key": json.dumps(kwargs),
        "ordered": True,
        **columns,
    }

    failed: uuid.UUID = TaskFactory(status="FAILED", order_stop="stop", **held).pk
    version = Queue.objects.get(pk="mail").partition_version
    TaskFactory.create_batch(behind, parked=True, partition_version=version, **held)

    return failed


@pytest.mark.parametrize("door", ["function", "button"])
def test_a_skip_gives_up_the_failed_task_and_the_next_one_starts(
    claimer: Claimers, door: str
) -> None:
    ordered()
    failed = stop(behind=2)
    worker = claimer(mail=1)
    assert worker.run_pass(sync=9).claims == []

    if door == "function":
        assert queues.skip("mail", {"customer": "acme"}, **WHO) == failed
    else:
        boss = client_with("view_task", "operate_task", "view_auditentry")
        given = {**opened(boss, "skip", Task.objects.get(pk=failed)), "reason": WHO["reason"]}
        for _click in range(2):
            boss.post(reverse("admin:horsies_task_skip", args=(failed,)), given)

    assert len(worker.run_pass(sync=9).claims) == 1
    assert Task.objects.get(pk=failed).status == "FAILED"

    written, *more = AuditEntry.objects.filter(action__endswith=".skip").order_by("pk")
    assert (written.action, written.subject, written.reason) == (
        "queue.skip",
        "mail",
        "broken data",
    )

    assert (written.actor == "ann") == (door == "function")
    assert written.before == {"task": str(failed)}, "and not the key, which contains arguments"
    of_the_task = [("task.skip", str(failed), "broken data")] if door == "button" else []
    assert [(entry.action, entry.subject, entry.reason) for entry in more] == of_the_task


@pytest.mark.parametrize("key", [7, "7", True, None, 1.5, [1, "a"], {"b": 1, "a": "ü"}])
def test_the_values_of_a_key_keep_their_types(key: Any) -> None:
    """The values of a key are those of the arguments, in any type.

    Fails if: 7 and "7" are one key, or the order of the keys of an object matters.
    """
    ordered()
    (id_,) = put(queue="mail", kwargs=[json.dumps({"other": 1, "customer": key})])

    ended = {
        "status": "FAILED",
        "finished_at": now(),
        "error_code": "X",
        "result": error("X"),
        "claim_generation": 1,
    }
    Task.objects.filter(pk=id_).update(order_stop="stop", **ended)

    with pytest.raises(QueueError, match="no failed task stops the key"):
        queues.skip("mail", {"customer": "another"}, **WHO)

    assert queues.skip("mail", {"customer": key}, **WHO) == id_


@pytest.mark.parametrize(
    ("name", "key", "more", "said"),
    [
        ("nowhere", {}, {}, "there is no queue 'nowhere' in the database"),
        ("bulk", {"customer": 7}, {}, "queue 'bulk' is not ordered: no failed task stops others"),
        ("twin", {"customer": 7}, {}, "queue 'twin' is not ordered"),
        ("mail", {}, {}, r"for each argument of its rule \(customer\), but these were given: none"),
        (
            "mail",
            {"customer": 7, "day": 1},
            {},
            r"\(customer\), but these were given: customer, day",
        ),
        ("mail", {"costumer": 7}, {}, r"\(customer\), but these were given: costumer"),
        (
            "mail",
            {"customer": 7},
            {"task": "shop.add"},
            "its rule is not by task, so a key has no task; remove 'shop.add'",
        ),
        (
            "mail",
            {"customer": 7},
            {},
            "no failed task stops the key .*:7} of queue 'mail' now: the key has no waiting and",
        ),
        ("mail", {"customer": uuid.UUID(int=7)}, {}, "cannot be written as JSON"),
        ("mail", {"customer": "a\x00"}, {}, "cannot be written as JSON"),
        (
            "default",
            {"customer": 7},
            {},
            r"for each argument of its rule \(none\), but these were given: customer",
        ),
        ("default", {}, {}, "its rule is by task, so a key requires the name of the task"),
        ("mail", {"customer": 7}, {"reason": " "}, "queue 'mail': a skip needs a reason"),
        (
            "mail",
            {"customer": 7},
            {"actor": ""},
            "no task of queue 'mail' was skipped: actor must be",
        ),
    ],
)
def test_an_impossible_skip_is_refused_with_the_reason(
    name: str, key: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    ordered()
    limit("twin", partition_by_args=[], partition_by_task=True, partition_policy="coalesce")
    limit("default", partition_by_task=True, partition_policy="stop")
    failed = stop(key="another")

    with pytest.raises(QueueError, match=said):
        queues.skip(name, key, **{**WHO, **more})

    assert Task.objects.get(pk=failed).order_stop == "stop"
    assert not AuditEntry.objects.filter(action="queue.skip").exists()


def test_the_error_of_a_skip_names_the_first_task_of_the_key() -> None:
    """Fails if: the error denies a failure while an earlier, retried task runs before it."""
    ordered()
    (retried,) = put(queue="mail", kwargs=['{"customer": 7}'])
    failed = stop(key=7)
    Task.objects.filter(pk=retried).update(claim_generation=1)

    with pytest.raises(
        QueueError, match=f"now: task {retried} comes first in the key and is PENDING; see"
    ):
        queues.skip("mail", {"customer": 7}, **WHO)
    Task.objects.filter(pk=retried).delete()

    Task.objects.filter(pk=failed).update(order_stop="cancel")
    with pytest.raises(
        QueueError,
        match=f"task {failed} comes first in the key and is FAILED: the later tasks of the key are",
    ):
        queues.skip("mail", {"customer": 7}, **WHO)


def test_the_command_skips_by_task_and_arguments() -> None:
    """The command skips by the task and the arguments, which are JSON or else texts."""
    ordered(partition_by_args=[], partition_by_task=True)
    keys = [{"region": "eu", "customer": customer} for customer in (7, "7", "a=b")]
    ids = [stop(partition_key=json.dumps({"": "shop.pay", **key})) for key in keys]

    how = ("--task=shop.pay", "--reason=bad")
    said = f"Skipped task {ids[0]}: the next task of its key starts.\n"

    other = refusal(
        "skip", "mail", "--key=customer=7", "--key=region=eu", "--task=shop.other", "--reason=bad"
    )
    assert "no failed task stops the key" in other

    assert run("skip", "mail", "--key", "customer=7", "--key", "region=eu", *how) == said
    told = machine("skip", "mail", "--key", 'customer="7"', "--key=region=eu", *how)
    assert told == {"skipped": str(ids[1])}

    run("skip", "mail", "--key", "customer=a=b", "--key", "region=eu", *how)
    assert overview.keys("mail") == []
    assert "no failed task stops the key" in refusal(
        "skip", "mail", "--key", "customer=7", "--key", "region=eu", *how
    )

    assert "a skip needs a reason" in refusal("skip", "mail", "--key", "customer=7")
    assert "'customer' is not NAME=VALUE" in refusal("skip", "mail", "--key", "customer")


def test_the_command_sets_and_shows_a_policy() -> None:
    """The command sets a policy, and shows it with the stopped keys and the command to skip."""
    said = run("set", "mail", "--partition-by-args=customer", "--partition-policy=stop")
    assert 'mail: partition_policy: null -> "stop"' in said
    assert "1 per partition; ordered, a failed task stops its key" in run("list")

    shown = " ".join(run("show", "mail").split())
    says(
        shown,
        "partitions by customer; ordered, a failed task stops its key",
        "in force 1 per partition declared no limit",
    )
    assert "STOPPED KEY" not in shown

    failed = stop(behind=3)
    shown = run("show", "mail")
    (line,) = [each for each in shown.splitlines() if each.startswith(HELD)]
    assert line.split()[2:4] == [str(failed), "shop.tasks.send_receipt"]
    assert line.endswith(" 3")
    assert "horsies_queue skip mail --key customer=VALUE --reason TEXT" in shown

    (found,) = machine("show", "mail")["stopped"]
    told = [found[key] for key in ("partition", "task_id", "behind", "behind_more")]
    assert told == [HELD, str(failed), 3, False]

    run("set", "mail", "--partition-policy=none")
    assert Queue.objects.get(pk="mail").partition_policy is None
    assert "partition_policy must be one of" in refusal("set", "mail", "--partition-policy=halt")


def test_the_admin_shows_keys_only_with_the_permission() -> None:
    """The admin shows the policy and the stopped keys, their values only with the permission."""
    everything = client_with("view_queue", "view_task", "view_payload")
    viewer = client_with("view_queue")

    with CaptureQueriesContext(connection) as read:
        html = body(viewer, URL)

    assert not [query for query in read.captured_queries if "first_of" in query["sql"]], (
        "it has no policy"
    )
    assert table(html, "horsies-limits")[-1] == ["Policy of partitions", "–", "–", "–"]

    ordered()
    failed = stop(behind=3)

    html = body(everything, URL)
    assert [(row[0], row[3]) for row in table(html, "horsies-stopped")] == [(escape(HELD), "3")]
    assert f'<a href="{page_of(Task.objects.get(pk=failed))}">shop.tasks.send_receipt</a>' in html

    for page in (html, body(viewer, URL)):
        says(
            page,
            "Keys stopped by a failed task",
            "ordered, a failed task stops its key",
            "1 per partition",
        )

    queues.skip("mail", {"customer": "acme"}, **WHO)
    after = body(everything, URL)
    assert "Keys stopped by a failed task" not in after
    assert "Failed task skipped" in after
    assert table(after, "horsies-audit")[0][3] == f"task: {failed}"


def test_a_stopped_key_sends_one_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal is sent once for a stopped key, and not for other failures.

    Fails if: it is sent for every failure of an ordered queue, also a retried one, or one whose
    policy continues.
    """
    got: list[dict[str, Any]] = []

    def note(**values: Any) -> None:
        got.append(values)

    monkeypatch.setattr(signals.order_stopped, "receivers", [])
    signals.order_stopped.connect(note)
    fails = tasks.raises.with_options(queue="mail")

    for policy in (None, "continue", "cancel"):
        limit("mail", partition_by_args=["message"], partition_policy=policy)
        fails.send("a")
        drain(raise_errors=False)
    assert got == []

    limit("mail", partition_policy="stop")
    first = fails.send("b")
    second = fails.send("b")
    drain(raise_errors=False)

    (found,) = got
    assert (found["task_id"], found["task_name"], found["queue_name"]) == (
        first.task_id,
        tasks.raises.name,
        "mail",
    )
    assert (found["partition"], found["attempt"], dict(found["metadata"])) == (
        '{"message": "b"}',
        1,
        {},
    )

    assert found["sender"] is tasks.raises.definition
    assert Task.objects.get(pk=second.task_id).status == "PENDING"


# Refused sends

LATER = dt.datetime(2300, 1, 1, tzinfo=dt.UTC)
LIVE = {"partition_by_args": ["account_id"], "partition_policy": "stop"}
SENDS: dict[str, Callable[[], Any]] = {
    "delay": lambda: tasks.add.with_options(queue="mail", delay=60).send(1, 2),
    "schedule": lambda: tasks.add.with_options(queue="mail").schedule(60, 1, 2),
    "a time": lambda: tasks.add.with_options(queue="mail").schedule(LATER, 1, 2),
    "priority": lambda: tasks.add.with_options(queue="mail", priority=5).send(1, 2),
    "many": lambda: tasks.add.with_options(queue="mail", priority=5).send_many([{"a": 1, "b": 2}]),
    "django.tasks": lambda: plain.note.using(queue_name="mail", priority=5).enqueue(1),
    "run_after": lambda: plain.note.using(queue_name="mail", run_after=LATER).enqueue(1),
}


@pytest.fixture
def declared(settings: Any) -> None:
    """Declare the queue of the sends as ordered."""
    mail = {"partition": {"by_args": ["account_id"], "ordered": True}}
    settings.HORSIES = {**settings.HORSIES, "QUEUES": {**settings.HORSIES["QUEUES"], "mail": mail}}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_queue_that_is_ordered_takes_no_delay_and_no_priority(
    request: Any, send: Callable[[], Any]
) -> None:
    """Fails if: a queue that was ordered by a change refuses a send with the driver's DataError."""
    queues.change("mail", LIVE, actor="ann")
    said = 'queue "mail" is ordered: its tasks run in the order'

    for around in (nullcontext(), transaction.atomic()):
        with pytest.raises(TaskSendError, match=said) as caught, around:
            send()
        assert "\n" not in caught.value.message
        assert (caught.value.code, caught.value.retryable) == (
            TaskSendErrorCode.VALIDATION_FAILED,
            False,
        )

    request.getfixturevalue("declared")
    with pytest.raises(
        TaskSendError, match="'mail' is ordered, so its tasks run in the order.*another queue"
    ):
        send()

    assert not Task.objects.exists()


def test_sends_to_an_ordered_queue_run_in_the_order_of_the_calls(
    declared: None,
) -> None:
    """Plain sends to an ordered queue are accepted and run in the order of the calls.

    Fails if: the rows of one INSERT have the same time, and their ids or the lanes decide.
    """
    queues.change("mail", LIVE, actor="ann")
    tasks.add.with_options(queue="mail", priority=100).send(1, 2)
    tasks.add.with_options(queue="mail").send_many([{"a": 1, "b": 2}] * 2)
    plain.note.using(queue_name="mail").enqueue(1)
    tasks.add.with_options(priority=5, delay=60).send(1, 2)

    assert Task.objects.filter(queue_name="mail", ordered=True).count() == 4

    drain()
    Task.objects.all()._raw_delete("default")
    queues.change("mail", {**LIVE, "partition_by_args": ["b"]}, actor="ann")

    handles = tasks.add.with_options(queue="mail").send_many(
        [{"a": number, "b": 1} for number in range(20)]
    )
    last = tasks.add.with_options(queue="mail").send(0, 1)

    assert drain() == 21
    ran = Task.objects.order_by("started_at").values_list("pk", flat=True)
    assert list(ran) == [handle.task_id for handle in (*handles, last)]


@pytest.mark.parametrize("options", [{"delay": 60}, {"priority": 5}], ids=str)
def test_a_node_of_a_workflow_takes_neither(declared: None, options: dict[str, Any]) -> None:
    flow = Workflow("books")
    flow.add(tasks.add.with_options(queue="mail", **options), 1, 2)

    with pytest.raises(WorkflowDefinitionError, match="the queue 'mail' is ordered"):
        flow.send()


def test_a_node_that_the_database_refuses_fails_with_the_reason() -> None:
    queues.change("mail", LIVE, actor="ann")
    flow = Workflow("books")
    flow.add(tasks.add.with_options(queue="mail", priority=5), 1, 2)

    error = flow.send().results()["add"].err_value
    assert (error.error_code, 'queue "mail" is ordered' in error.message) == ("NODE_NOT_SENT", True)


def test_a_schedule_of_an_ordered_queue_has_no_priority(declared: None) -> None:
    definition = {
        "task": tasks.add.name,
        "pattern": "daily at 04:30",
        "queue": "mail",
        "kwargs": {"a": 1},
    }

    assert (
        definition_problems("nightly", definition)
        == definition_problems("nightly", {**definition, "priority": 100})
        == []
    )

    ((key, text),) = definition_problems("nightly", {**definition, "priority": 5})
    assert (key, "'mail' run in the order in which they were sent" in text) == ("priority", True)
