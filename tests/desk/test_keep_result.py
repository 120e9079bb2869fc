"""keep_result: a value that nobody needs is not stored, its row goes early, and what somebody needs cannot be dropped."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.urls import reverse

from horsies_django import TaskDefinitionError, TaskSendError, Workflow, WorkflowDefinitionError, get_handle, task
from horsies_django.core.options import drops_result, options_text, own_retention
from horsies_django.core.records import Claim, Outcome
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.desk.test_operations import operator

pytestmark = pytest.mark.django_db

plus_dropped = flows.plus.with_options(keep_result=False)


def stored(handle: Any) -> Any:
    return Task.objects.values_list("options", "result").get(pk=handle.task_id)


def test_a_value_that_is_not_kept_is_not_stored_and_its_handle_still_says_that_the_task_completed() -> None:
    """Naive: the typed handle decodes null as an int, and tells of a result that does not fit."""
    handle = tasks.add.with_options(keep_result=False).send(40, b=2)
    drain()
    options, result = stored(handle)
    assert options["keep_result"] is False
    assert result == {"ok": None, "kept": False}
    for one in (handle, get_handle(handle.task_id)):
        assert one.get(0).is_ok()
        assert one.get(0).ok_value is None
    assert handle.info().status == "COMPLETED"


def test_an_error_is_kept_whatever_was_said_of_the_result() -> None:
    handle = tasks.raises.with_options(keep_result=False).send("a reason")
    drain(raise_errors=False)
    assert "a reason" in handle.get(0).err_value.message
    assert handle.get(0).err_value.exception["traceback"]


def test_an_async_task_drops_its_value_too() -> None:
    handle = tasks.anoop.with_options(keep_result=False).send()
    drain()
    assert stored(handle)[1] == {"ok": None, "kept": False}


def test_what_is_said_at_the_send_counts_more_than_the_decorator_and_true_undoes_it() -> None:
    @task(name="tests.keep.dropped", keep_result=False)
    def dropped() -> int:
        return 7

    @task(name="tests.keep.for_an_hour", keep_result=dt.timedelta(hours=1))
    def for_an_hour() -> int:
        return 8

    handles = [
        dropped.send(),
        dropped.with_options(keep_result=True).send(),
        dropped.with_options(keep_result=dt.timedelta(minutes=2)).send(),
        for_an_hour.send(),
        for_an_hour.with_options(keep_result=False).send(),
        tasks.add.with_options(keep_result=True).send(1),
    ]
    found = [stored(handle)[0] for handle in handles]
    assert [options and options["keep_result"] for options in found] == [False, None, 120_000, 3_600_000, False, None]
    drain()
    assert [handle.get(0).ok for handle in handles] == [None, 7, 7, 8, None, 1]


@pytest.mark.parametrize("wrong", [0, 3600, "1h", dt.timedelta(0), dt.timedelta(seconds=59), dt.timedelta(days=40_000)])
def test_what_is_no_duration_is_refused_when_the_task_is_declared_and_when_it_is_sent(wrong: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="keep_result must be True, False or a timedelta"):
        task(keep_result=wrong)(_plain)
    with pytest.raises(TaskSendError, match="keep_result must be True, False or a timedelta"):
        tasks.add.with_options(keep_result=wrong).send(1)
    assert not Task.objects.exists()


def _plain() -> None:
    """Be a function that could be a task."""


@pytest.mark.parametrize(
    "text",
    [
        None, "{}", "[]", "7", '"keep_result"', "{", '{"keep_result": null}', '{"keep_result": true}', '{"keep_result": 0}',
        '{"keep_result": -5}', '{"keep_result": 59999}', '{"keep_result": 4000000000000}', '{"keep_result": "1h"}',
        '{"keep_result": 1.5}', '{"metadata": {"keep_result": false}}', '{"wire": "x", "keep_result": false}',
        '{"keep_result": ' + "[" * 600 + "]" * 600 + "}",
    ],
)  # fmt: skip
def test_options_that_are_any_json_never_drop_a_result(text: str | None) -> None:
    assert own_retention(text) is None
    assert not drops_result(text)


def test_a_reply_of_a_task_that_drops_its_value_loses_only_the_value_of_a_success() -> None:
    claim = Claim(uuid.uuid4(), 1, "sync", "x", "{}", options=options_text(None, None, False))
    kept = claim._replace(options=options_text(None, 300, dt.timedelta(hours=1)))
    ok, failed = (
        ("COMPLETED", '{"ok": 1}', None, None, None, False, ()),
        ("FAILED", '{"err": 1}', "X", "m", None, False, ()),
    )
    assert Outcome.of(claim, ok).result == '{"ok":null,"kept":false}'
    assert Outcome.of(claim, failed).result == '{"err": 1}'
    assert Outcome.of(kept, ok).result == '{"ok": 1}'
    assert own_retention(kept.options) == 3_600_000


def problems(flow: Workflow) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as caught:
        flow.send()
    return caught.value.problems


def takes_argument(flow: Workflow, node: Any) -> None:
    flow.add(flows.plus, node)


def takes_list(flow: Workflow, node: Any) -> None:
    flow.add(flows.total, [flow.add(flows.number, 1), node])


def takes_outcome(flow: Workflow, node: Any) -> None:
    flow.add(flows.describe, node, allow_failed=True)


def takes_condition(flow: Workflow, node: Any) -> None:
    flow.add(flows.number, 1, when=node.matches("$ > 1"))


def takes_value_of_the_run(flow: Workflow, node: Any) -> None:
    flow.returns(node)


@pytest.mark.parametrize(
    "take",
    [takes_argument, takes_list, takes_outcome, takes_condition, takes_value_of_the_run],
    ids=lambda take: take.__name__,
)
def test_a_node_whose_result_is_taken_cannot_drop_it(take: Any) -> None:
    """Naive: the next node gets None, or fails in a worker because None is no int."""
    flow = Workflow("drops")
    take(flow, flow.add(plus_dropped, 1, name="dropped"))
    (problem,) = problems(flow)
    assert "it takes the result of dropped, whose task does not keep it" in problem
    assert not Task.objects.exists()


def test_a_map_over_values_that_are_not_kept_is_refused() -> None:
    flow = Workflow("drops")
    listed = flow.add(flows.numbers.with_options(keep_result=False), 3, name="dropped")
    flow.map(flows.plus, a=listed)
    assert ["it takes the result of dropped" in each for each in problems(flow)] == [True]
    flow = Workflow("drops")
    flow.add(flows.total, flow.map(plus_dropped, a=[1, 2], name="mapped"))
    assert ["it takes the result of mapped" in each for each in problems(flow)] == [True]


def test_an_undo_that_takes_the_result_needs_it_kept() -> None:
    flow = Workflow("drops")
    flow.add(plus_dropped, 1, name="dropped", undo=tasks.hold_undo)
    (problem,) = problems(flow)
    assert "its undo tests.apps.project.tasks.hold_undo: it takes the result of dropped" in problem


def test_a_node_that_nobody_takes_anything_from_drops_its_value_and_others_keep_theirs() -> None:
    flow = Workflow("drops")
    first = flow.add(plus_dropped, 1, name="dropped")
    last = flow.add(flows.number, 5, after=first)
    flow.returns(last)
    run = flow.send()
    drain()
    assert run.get(0).ok_value == 5
    assert run.results()["dropped"].ok is None
    task_of_first = Task.objects.get(node=0)
    assert task_of_first.result == {"ok": None, "kept": False}


def test_the_admin_says_that_the_value_was_not_kept() -> None:
    handle = tasks.add.with_options(keep_result=False).send(1)
    drain()
    client = operator("view_task", "view_payload")
    shown = client.get(reverse("admin:horsies_task_change", args=(handle.task_id,))).content.decode()
    assert "not kept" in shown
