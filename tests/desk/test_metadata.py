"""Metadata travels with a task through all its lives, is shown like arguments, and is no argument."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse

from horsies_django import RetryPolicy, TaskSendError, Workflow, WorkflowError, current_task, get_handle, task
from horsies_django.models import Task, WorkflowNode
from horsies_django.schedules import create, run_now
from horsies_django.tasks import operations, registry
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from tests.apps.hooked import around
from tests.apps.project import flows, tasks

pytestmark = pytest.mark.django_db

AROUND = "tests.apps.hooked.around"
GIVEN = {"trace": "00-4bf9", "tenant": 7, "roles": ["editor"]}


@contextmanager
def sources(*names: str) -> Iterator[None]:
    with override_settings(HORSIES={**settings.HORSIES, "METADATA": [f"{AROUND}.{name}" for name in names]}):
        yield


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task that returns the metadata of its second attempt."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="tests.tells", retry_policy=RetryPolicy.fixed([1]))
    def tells(attempts: int = 1) -> dict[str, Any]:
        if current_task().attempt < attempts:
            raise LookupError("once more")
        return dict(current_task().metadata)

    return tells


def stored(handle: Any) -> Any:
    return (Task.objects.get(pk=handle.task_id).options or {}).get("metadata")


def test_the_task_reads_what_was_sent_and_its_arguments_are_the_same_as_without(tells: Any) -> None:
    handle = tells.with_options(metadata=GIVEN, timeout_ms=500).send(attempts=1)
    assert drain() == 1
    assert handle.get().ok_value == GIVEN
    row = Task.objects.get(pk=handle.task_id)
    assert row.kwargs == {"attempts": 1}
    assert row.options is not None
    assert (row.options["timeout_ms"], row.options["metadata"]) == (500, GIVEN)


def test_there_is_none_without_and_outside_of_a_worker(tells: Any) -> None:
    handle = tells.send()
    drain()
    assert (handle.get().ok_value, dict(current_task().metadata)) == ({}, {})


def test_async_tasks_have_theirs_and_not_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="tests.atells")
    async def atells() -> int:
        return int(current_task().metadata["n"])

    handles = [atells.with_options(metadata={"n": n}).send() for n in range(5)]
    drain()
    assert [handle.get().ok_value for handle in handles] == list(range(5))


def test_a_retry_has_the_metadata_of_the_first_attempt(tells: Any) -> None:
    """Naive: it travels in the first message to the child only."""
    handle = tells.with_options(metadata=GIVEN).send(attempts=2)
    assert drain(until=dt.timedelta(hours=1)) == 2
    assert handle.get().ok_value == GIVEN


def test_a_copy_that_is_run_again_has_it_too() -> None:
    handle = tasks.raises.with_options(metadata=GIVEN).send("no")
    drain(raise_errors=False)
    copy = operations.retry(handle.task_id, actor="ada")
    assert stored(get_handle(copy)) == GIVEN


def test_redaction_erases_it_and_keeps_the_other_options() -> None:
    handles = [
        tasks.add.with_options(metadata={"mail": "ann@example.org"}).send(1),
        tasks.add.with_options(metadata={"mail": "ann@example.org"}, timeout_ms=500).send(1),
    ]
    drain()
    for handle in handles:
        redact(handle.task_id, actor="ada", reason="request 17")
    bare, timed = (Task.objects.get(pk=handle.task_id).options for handle in handles)
    assert bare is None
    assert timed is not None
    assert (timed["timeout_ms"], "metadata" in timed) == (500, False)


def test_all_tasks_of_one_send_have_it() -> None:
    handles = tasks.add.with_options(metadata=GIVEN).send_many([{"a": 1}, {"a": 2}])
    assert [stored(handle) for handle in handles] == [GIVEN, GIVEN]


def test_options_that_are_added_later_keep_it() -> None:
    assert stored(tasks.add.with_options(metadata=GIVEN).with_options(priority=3).send(1)) == GIVEN


def test_the_metadata_of_one_task_can_be_passed_on_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    @task(name="tests.passes_on")
    def passes_on() -> None:
        tasks.add.with_options(metadata=current_task().metadata).send(1)

    passes_on.with_options(metadata=GIVEN).send()
    assert drain() == 2
    assert stored(get_handle(Task.objects.get(task_name=tasks.add.name).pk)) == GIVEN


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (["a"], r"tests\.apps\.project\.tasks\.add: metadata: it must be a dict, not list"),
        ({"x": "a" * 5_000}, "metadata: it takes 5,008 bytes of JSON, and at most 4,096 travel with a task"),
        ({"at": dt.date(2026, 1, 1)}, r"""argument 'metadata\[key 1\]': expected plain JSON \(.*\), got date"""),
    ],
)
def test_metadata_that_cannot_travel_is_refused_at_the_send(metadata: Any, message: str) -> None:
    with pytest.raises(TaskSendError, match=message) as caught:
        tasks.add.with_options(metadata=metadata).send(1)
    assert caught.value.code == "VALIDATION_FAILED"
    assert not Task.objects.exists()


# HORSIES["METADATA"]


def test_sources_give_metadata_to_every_send_later_ones_win_and_the_sender_above_all() -> None:
    token = around.trace.set("00-4bf9")
    with sources("carrier", "forgetful", "tenant"):
        plain, own = tasks.add.send(1), tasks.add.with_options(metadata={"tenant": 8}).send(1)
        many = tasks.add.send_many([{"a": 1}, {"a": 2}])
    around.trace.reset(token)
    assert stored(plain) == {"trace": "00-4bf9", "by": "tenant", "tenant": 7}
    assert stored(own) == {"trace": "00-4bf9", "by": "tenant", "tenant": 8}
    assert [stored(handle) for handle in many] == [stored(plain)] * 2


def test_sources_that_give_nothing_leave_the_row_without_options() -> None:
    with sources("carrier", "forgetful"):
        handle = tasks.add.send(1)
    assert Task.objects.get(pk=handle.task_id).options is None


async def asent() -> Any:
    around.trace.set("of the request")
    return await tasks.add.asend(1)


@pytest.mark.django_db(transaction=True)
def test_a_source_runs_in_the_context_of_an_async_sender() -> None:
    """Naive: the thread for sync code has no context variables."""
    with sources("carrier"):
        handle = async_to_sync(asent)()
    assert stored(handle) == {"trace": "of the request", "by": "carrier"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("breaks", r"'tests\.apps\.hooked\.around\.breaks': it raised LookupError: no tenant is active"),
        ("a_list", r"'tests\.apps\.hooked\.around\.a_list': it returned list instead of a dict"),
        ("an_object", r"""'metadata\[key 1\]': expected plain JSON"""),
        ("gone", r"'tests\.apps\.hooked\.around\.gone': it raised ImportError: .*gone"),
    ],
)
def test_a_source_that_fails_fails_the_send_and_says_which(name: str, message: str) -> None:
    """Naive: the task is sent without its tenant."""
    with sources(name), pytest.raises(TaskSendError, match=message):
        tasks.add.send(1)
    assert not Task.objects.exists()


def test_the_task_of_a_schedule_gets_it_where_it_is_sent() -> None:
    create("nightly", {"task": tasks.noop.name, "pattern": "daily at 04:30"}, actor="ada")
    with sources("tenant"):
        assert stored(get_handle(run_now("nightly", actor="ada"))) == {"tenant": 7, "by": "tenant"}


# Workflows


def test_nodes_maps_and_undos_have_what_their_task_was_added_with() -> None:
    flow = Workflow("import", on_error="fail")
    one = flow.add(flows.number.with_options(metadata={"n": 1}), 4)
    flow.map(flows.plus.with_options(metadata={"n": 2}), a=[1, 2], b=one)
    paid = flow.add(flows.charge, 5, undo=flows.refund.with_options(metadata={"n": 3}))
    flow.add(flows.broken, after=paid)
    flow.send()
    drain(raise_errors=False)
    found = Task.objects.order_by("id").values_list("task_name", "options")
    named = [(name.rpartition(".")[2], (options or {}).get("metadata")) for name, options in found]
    assert sorted(named, key=str) == sorted(
        [("number", {"n": 1}), ("plus", {"n": 2}), ("plus", {"n": 2}), ("charge", None), ("refund", {"n": 3}), ("broken", None)],
        key=str,
    )  # fmt: skip


def keyed(metadata: dict[str, Any] | None, number: int = 1, priority: int = 5) -> Workflow:
    """Return a workflow with a key, with metadata wherever a graph can have it."""
    inner = Workflow("inner")
    inner.add(flows.number.with_options(metadata=metadata, priority=priority), number)
    flow = Workflow("import", key="book 7")
    flow.add(flows.number.with_options(metadata=metadata, timeout_ms=500), number)
    flow.add(flows.charge, number, undo=flows.refund.with_options(metadata=metadata))
    flow.add(inner)
    return flow


def test_a_key_finds_its_run_also_with_other_metadata_or_none() -> None:
    """Naive: the trace is part of the graph's hash, and a view that is called twice cannot send its workflow again."""
    first = keyed({"trace": "1"}).send()
    for metadata in ({"trace": "2"}, None, {"trace": "1"}):
        assert keyed(metadata).send().workflow_id == first.workflow_id
    assert not WorkflowNode.objects.filter(options__metadata__trace="2").exists()
    for other in (keyed({"trace": "1"}, number=2), keyed({"trace": "1"}, priority=6)):
        with pytest.raises(WorkflowError, match="another graph"):
            other.send()


# The admin


def page(handle: Any, *codenames: str) -> str:
    user = User.objects.create_user(f"user of {'-'.join(codenames)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client.get(reverse("admin:horsies_task_change", args=(handle.task_id,))).content.decode()


def test_the_admin_shows_it_to_those_who_may_see_arguments_and_to_nobody_else() -> None:
    handle = tasks.add.with_options(metadata={"by": "s3cret"}).send(1)
    assert "s3cret" not in page(handle, "view_task")
    html = page(handle, "view_task", "view_payload")
    assert html.count("s3cret") == 1, "neither missing nor shown among the options again"
    assert "field-shown_options" not in html
    timed = page(
        tasks.add.with_options(metadata={"by": "s3cret"}, timeout_ms=86_399_123).send(1), "view_payload", "view_task"
    )
    assert (timed.count("s3cret"), timed.count("86399123")) == (1, 1)
