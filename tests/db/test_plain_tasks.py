"""Tasks of ``django.tasks`` beside typed ones: partitions, copies, attempts, priorities, schedules,
and workflows.
"""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django import (
    Workflow,
    WorkflowDefinitionError,
    explain,
    explain_node,
    get_handle,
    schedules,
)
from horsies_django.core.codec.plain import named_arguments
from horsies_django.core.options import read_options
from horsies_django.core.records import Outcome
from horsies_django.models import Schedule, Task, TaskAttempt, WorkflowNode
from horsies_django.store.tasks import TaskStore
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition, define
from horsies_django.tasks.enqueue import send_call
from horsies_django.tasks.ids import uuid7
from horsies_django.tasks.options import SendOptions
from horsies_django.testing import drain, open_gate
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from tests.apps.project import flows, plain, tasks
from tests.conftest import Claimers, limit, put, send_plain, sql
from tests.db.conftest import sweep
from tests.support.commands import command, ran
from tests.support.factories import error
from tests.support.sizes import examples

Plain = dict[str, TaskDefinition]


def row(id_: uuid.UUID) -> Task:
    return Task.objects.get(pk=id_)


@pytest.mark.parametrize(
    ("by_args", "by_task", "expected"),
    [
        (["name"], False, '{"name": "Ann"}'),
        ([], False, '{"name": "Ann", "greeting": "hi"}'),
        (["greeting"], True, '{"": "tests.apps.project.plain.greet", "greeting": "hi"}'),
    ],
)
def test_a_change_of_the_rule_finds_new_keys_for_plain_tasks(
    plain_tasks: Plain, claimer: Claimers, by_args: list[str], by_task: bool, expected: str
) -> None:
    """Fails if: one of the statements that compute keys does not support the plain form."""
    rule: dict[str, Any] = {
        "partition_by_args": by_args,
        "partition_by_task": by_task,
        "partition_max_concurrency": 1,
    }
    ids = [
        send_plain(plain_tasks["greet"], "Ann", "hi"),
        send_plain(plain_tasks["greet"], greeting="hi", name="Ann"),
    ]

    limit("default", partition_by_args=["no such name"], partition_max_concurrency=1)
    worker = claimer()
    assert len(worker.run_pass(sync=9).claims) == 1, "the other one is parked"

    limit("default", **rule)
    sweep(many=10)
    ids += [
        send_plain(plain_tasks["greet"], "Ann", "hi"),
        send_plain(plain_tasks["greet"], greeting="hi", name="Ann"),
    ]

    assert {row(id_).partition_key for id_ in ids} == {expected}
    assert worker.run_pass(sync=9).claims == []


def test_a_claim_computes_the_key_of_a_plain_task(plain_tasks: Plain, claimer: Claimers) -> None:
    """A claim computes the key of a plain task that has none for the current rule."""
    id_ = send_plain(plain_tasks["greet"], "Ann")
    same = send_plain(plain_tasks["greet"], name="Ann")
    sql("UPDATE horsies_tasks SET partition_version = NULL, partition_key = NULL")
    limit("default", partition_by_args=["name"], partition_max_concurrency=1)

    assert [claim.id for claim in claimer().run_pass(sync=9).claims] == [id_]

    (reason,) = (one for one in explain(same).reasons if one.code == "PARTITION_AT_LIMIT")
    assert reason.details["partition"] == '{"name": "Ann"}'


STORED = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab*", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["args", "kwargs", "names", "a", "b", "*"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
CALLS = st.fixed_dictionaries(
    {
        "args": st.lists(STORED, max_size=3),
        "kwargs": st.dictionaries(st.sampled_from("ab"), STORED),
    },
    optional={"names": st.lists(st.sampled_from("abc"), unique=True, max_size=2)},
)


def named(stored: Any) -> Any:
    return json.loads(sql("SELECT horsies_named_arguments(%s::jsonb)", [json.dumps(stored)])[0][0])


@settings(
    max_examples=examples(50, 500),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(CALLS, STORED)
def test_the_database_and_the_admin_name_the_same_arguments(
    db: None, call: dict[str, Any], stored: Any
) -> None:
    """The database and the admin give the same names to the arguments of a plain call.

    No stored JSON makes a partition fail.

    Fails if: ``jsonb_array_elements()`` raises for a value that is no array, and one row stops all
    claims of its queue.
    """
    assert named(call) == named_arguments(call)
    assert isinstance(named(stored), dict)


def test_a_worker_of_the_previous_release_runs_no_plain_task(
    plain_tasks: Plain, claimer: Claimers
) -> None:
    """A worker of the previous release leaves plain tasks to other workers.

    Fails if: a worker that has a typed task of the same name takes the row, and fails it because of
    its arguments.
    """
    id_ = send_plain(plain_tasks["greet"], "Ann")
    # workers of the previous release skip tasks with this wire format, see tests/db/test_claims.py
    assert read_options(json.dumps(row(id_).options)).wire == 2

    claims = claimer().run_pass(sync=1).claims
    assert UnknownTasks(timedelta(minutes=5)).split(claims) == (claims, [])

    typed = row(tasks.add.with_options(timeout_ms=500).send(1).task_id)
    # the format that they can run
    assert (typed.codec, typed.options) == (None, {"wire": 1, "timeout_ms": 500})


def test_a_task_that_changed_its_kind_fails_clearly(
    plain_tasks: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(name: str) -> str:
        return name

    was_plain = send_plain(plain_tasks["greet"], "Ann")
    (was_typed,) = put(name=plain_tasks["double"].name, kwargs=['{"n": 1}'])
    monkeypatch.setitem(
        registry._tasks, plain_tasks["greet"].name, define(greet, name=plain_tasks["greet"].name)
    )

    drain(raise_errors=False)
    found = [row(id_).result["err"] for id_ in (was_plain, was_typed)]

    assert [one["error_code"] for one in found] == ["WORKER_SERIALIZATION_ERROR"] * 2
    assert "got an argument that it does not take" in found[0]["message"]
    assert "the sender may have been a task with typed arguments" in found[1]["message"]


def test_each_failed_attempt_keeps_its_traceback(plain_tasks: Plain) -> None:
    """Each failed attempt keeps its traceback, and a copied task keeps the form of its arguments.

    Fails if: only the last attempt has a traceback, in the result, and that of a retried attempt is
    lost.
    """
    handle, done = (
        get_handle(send_plain(plain_tasks[name], arg))
        for name, arg in (("breaks", "it broke"), ("double", 1))
    )

    drain(raise_errors=False)
    first, second = handle.info().attempts

    assert [(one.attempt, one.will_retry, one.exception_class) for one in (first, second)] == [
        (1, True, "builtins.ValueError"),
        (2, False, "builtins.ValueError"),
    ]

    for attempt in (first, second):
        assert attempt.traceback.endswith("ValueError: it broke\n")
        assert "in breaks" in attempt.traceback

    (attempt,) = done.info().attempts
    assert (attempt.exception_class, attempt.traceback) == (None, None)

    _, machine, _ = command("horsies_task")
    assert "ValueError" not in json.dumps(machine("show", handle.task_id))
    assert (
        machine("show", handle.task_id, "--payload")["attempts"][0]["traceback"] == first.traceback
    )

    copy = uuid7()
    old = row(handle.task_id)
    assert TaskStore(connection).copy(old.pk, copy).copied

    assert (row(copy).codec, row(copy).kwargs, row(copy).options) == (
        old.codec,
        old.kwargs,
        old.options,
    )


def test_an_attempt_with_any_exception_is_written(claimer: Claimers) -> None:
    """An attempt is written whatever the exception in its error looks like.

    Fails if: an exception of another shape, or a traceback that is too long, stops the settle of
    the whole batch.
    """
    kept: list[tuple[Any, str | None, str | None]] = [
        (None, None, None),
        ({}, None, None),
        ([1], None, None),
        ("text", None, None),
        ({"type": "Oops"}, "Oops", None),
        ({"type": "Oops", "module": "shop"}, "shop.Oops", None),
        ({"type": 5, "traceback": {"a": 1}}, "5", '{"a": 1}'),
        ({"type": "X" * 5_000, "traceback": "t" * 300_000}, "X" * 1_000, "t" * 100_000),
        ({"site": ["s"] * 900, "line": 10**12}, None, None),
        ({"site": "s", "line": "7; or so"}, None, None),
    ]

    worker = claimer()
    put(len(kept) + 1)
    good, *hostile = worker.run_pass(sync=len(kept) + 1).claims

    outcomes = [Outcome(good.id, good.generation, "COMPLETED", '{"ok": 1}')]
    for claim, (exception, *_) in zip(hostile, kept, strict=True):
        result = json.dumps(error("BROKEN", "no", exception=exception))
        outcomes.append(Outcome(claim.id, claim.generation, "FAILED", result, "BROKEN", "no"))

    assert len(worker.run_pass(outcomes=outcomes).landed) == len(kept) + 1

    for claim, (_, class_, traceback) in zip(hostile, kept, strict=True):
        attempt = TaskAttempt.objects.get(task_id=claim.id)
        assert (attempt.exception_class, attempt.traceback) == (class_, traceback)
        assert (len(attempt.site or "") <= 1_000, attempt.site_line) == (True, None)


def test_plain_and_typed_tasks_mix_by_their_stored_priority(
    plain_tasks: Plain, claimer: Claimers
) -> None:
    """The stored priority is 101 - p.

    A priority of 100 in ``django.tasks`` comes together with our first priority, and its default of
    0 just behind our last.
    """
    sent = {
        stored: send_call(plain_tasks["double"], SendOptions(priority=stored), (stored,), {})[0]
        for stored in (201, 101, 51, 1)
    }
    (last, middle) = (*put(priority=100), *put(priority=50))

    claims = [claim.id for claim in claimer().run_pass(sync=9).claims]

    assert claims == [sent[1], middle, sent[51], last, sent[101], sent[201]]


def test_a_schedule_sends_a_plain_task(plain_tasks: Plain) -> None:
    """Fails if: the arguments are stored in the form of a plain task, and wrapped again when the
    task is sent.
    """
    name = plain_tasks["greet"].name
    schedules.create(
        "greetings", {"task": name, "pattern": "every hour", "kwargs": {"name": "Ann"}}, actor="ada"
    )
    stored = Schedule.objects.get(name="greetings").definition["kwargs"]
    assert stored == {"name": "Ann"}

    id_ = schedules.run_now("greetings", actor="ada")
    assert (row(id_).codec, row(id_).kwargs) == ("plain", {"args": [], "kwargs": {"name": "Ann"}})
    assert (row(id_).priority, row(id_).options) == (101, {"wire": 2})

    drain()
    assert plain.RAN == [("greet", ("Ann", "hello"), {"loud": False})]

    in_wire_form = schedules.in_wire_form(
        {"task": name, "pattern": "every hour", "kwargs": {"name": "Ann"}}
    )
    assert in_wire_form["kwargs"] == {"name": "Ann"}

    with pytest.raises(schedules.ScheduleError, match="missing a required argument: 'name'"):
        schedules.change("greetings", {"kwargs": {}}, actor="ada")


# workflows


class DjangoTask:
    """The part of a Task of ``django.tasks`` that a workflow needs."""

    def __init__(self, definition: TaskDefinition, **options: Any) -> None:
        self.definition = definition
        self.send_options = SendOptions(**options)


def stored(name: str) -> list[dict[str, Any]]:
    """Return the stored arguments of the tasks of a function."""
    name = plain.TASKS[name].name
    return list(Task.objects.filter(task_name=name).order_by("pk").values_list("kwargs", flat=True))


def test_results_become_arguments_of_a_plain_node_by_name(plain_tasks: Plain) -> None:
    """Fails if: a promoted node stores its arguments in the form of a typed task, with which the
    plain function cannot be called.
    """
    double = plain_tasks["double"]
    inner = Workflow("inner")
    flow = Workflow("plain")
    inner.returns(inner.add(double.name, inner.input("n")))

    one = flow.add(DjangoTask(double), 3, name="one")
    two = flow.add(double.name, one, name="two")

    flow.add(plain_tasks["greet"].name, two, loud=True)
    flow.add(plain_tasks["listed"].name, [one, two])
    flow.add(flows.plus, two, b=1)
    flow.add(plain_tasks["at"].name, two, scale=2, name="positional only")
    flow.map(double.name, n=flow.map(double.name, n=[50, 51], name="map"), name="map over map")
    flow.add(inner, n=two)

    handle = flow.send()
    assert stored("double") == [{"args": [], "kwargs": {"n": n}} for n in (3, 50, 51)]

    drain()
    promoted = [each["kwargs"]["n"] for each in stored("double")[3:]]
    assert sorted(promoted) == [6, 12, 100, 102]
    assert all(each["args"] == [] for each in stored("double"))

    assert set(Task.objects.values_list("codec", flat=True)) == {"plain", None}
    assert {name: each.ok_value for name, each in handle.results().items()} == {
        "one": 6,
        "two": 12,
        "greet": "hello 12!",
        "listed": [6, 12],
        "plus": 13,
        "positional only": [24, 0],
        "map": [100, 102],
        "map over map": [200, 204],
        "inner": 24,
    }


@pytest.mark.parametrize("undo", ["halve", "typed_undo"])
@pytest.mark.parametrize("undone", ["double", "number"])
def test_a_plain_task_undoes_and_is_undone_by_name(
    plain_tasks: Plain, undo: str, undone: str
) -> None:
    """Fails if: an undo looks for the parameters of its function in ``{"args": ..., "kwargs":
    ...}``, and gets none.
    """
    flow = Workflow("plain")
    task = plain_tasks["double"].name if undone == "double" else flows.number
    first = flow.add(
        task,
        4,
        undo=DjangoTask(plain_tasks[undo]) if undone == "number" else plain_tasks[undo].name,
    )
    flow.add(flows.broken, after=first)
    handle = flow.send()

    drain(raise_errors=False)

    result, before = (8, 1) if undone == "double" else (4, 0)
    assert plain.RAN[before:] == [
        (undo, (4, result), {"comment": "undone"} if undo == "halve" else {})
    ]
    assert handle.get(0).err_value.data["undone"] == 1


def test_a_partition_counts_promoted_and_swept_plain_tasks(
    plain_tasks: Plain,
) -> None:
    """A partition counts plain tasks that were promoted or found by a sweep."""
    flow = Workflow("plain")
    flow.add(plain_tasks["double"].name, 9)
    flow.map(plain_tasks["double"].name, n=flow.add(plain_tasks["listed"].name, [7]))
    flow.send()

    limit("default", partition_by_args=["n"], partition_max_concurrency=1)
    sweep(many=10)
    drain()

    doubles = Task.objects.filter(task_name=plain_tasks["double"].name).order_by("pk")
    assert list(doubles.values_list("partition_key", flat=True)) == ['{"n": 9}', '{"n": 7}']


def test_problems_of_plain_nodes_are_named_at_send(plain_tasks: Plain) -> None:
    """Fails if: a plain function accepts any argument, so that a misspelt name fails only when the
    node runs.
    """
    flow = Workflow("plain")
    flow.add(plain_tasks["greet"].name, nmae="Ann")
    flow.add(plain_tasks["double"].name, flow.add(flows.number, 1), allow_failed=True)
    flow.add(flows.number, 1, undo=plain_tasks["greet"].name)

    flow.add(plain_tasks["double"].name, flow.add(flows.number, 1, name="fits"), name="fits-2")
    flow.add(flows.plus, flow.add(plain_tasks["listed"].name, [1], name="fits-3"), name="fits-4")
    flow.add(
        plain_tasks["note"].name, anything=flow.add(flows.number, 1, name="fits-5"), name="fits-6"
    )

    with pytest.raises(WorkflowDefinitionError) as refused:
        flow.send()

    found = str(refused.value)
    for said in (
        "greet: greet() got an unexpected keyword argument 'nmae'",
        "double: the node may run without a value for 'n'. Give the parameter a default",
        "the undo tests.apps.project.plain.greet takes 'name', which is neither 'result' nor a "
        "parameter of",
    ):
        assert said in found

    assert "TaskResult" not in found
    assert "fits" not in found


def check() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ran("horsies_workflow", "check", "--json")[1])[
        "problems"
    ]
    return found


def test_the_check_of_workflows_reads_plain_signatures(
    plain_tasks: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: ``*args`` and ``**kwargs`` count as parameters, or the arguments are compared with
    types.
    """
    flow = Workflow("waiting")
    first = flow.add(flows.number, 1)
    name = plain_tasks["greet"].name
    flow.add(plain_tasks["note"].name, after=first, anything=1)
    flow.add(name, "Ann", after=first)
    flow.send()

    assert check() == []

    def typed(name: str) -> str:
        return name

    monkeypatch.setitem(
        registry._tasks, name, plain.define_plain(lambda who, name=1: None, name=name)
    )
    assert [(one["code"], one["argument"]) for one in check()] == [("MISSING_ARGUMENT", "who")]

    monkeypatch.setitem(registry._tasks, name, plain.define_plain(lambda name: None, name=name))
    assert check() == []

    monkeypatch.setitem(registry._tasks, name, define(typed, name=name))
    (found,) = check()
    said = "it takes typed arguments by name now, but the calls were stored in another form"
    assert (found["code"], found["problem"]) == ("OTHER_FORM", said)


def test_options_gates_growth_and_retries_support_plain_tasks(plain_tasks: Plain) -> None:
    flow = Workflow("plain")
    flow.add(DjangoTask(plain_tasks["double"], queue="mail", priority=201), 3)
    flow.gate("review", announce=plain_tasks["tell"].name)
    flow.add(plain_tasks["grows"].name, 21)
    flow.add(plain_tasks["breaks"].name, "again")
    handle = flow.send()

    task = Task.objects.get(queue_name="mail")
    assert (task.priority, task.options, task.codec) == (201, {"wire": 2}, "plain")

    drain(raise_errors=False)
    assert ("tell", ("review",), {}) in plain.RAN
    assert stored("double") == [{"args": [], "kwargs": {"n": n}} for n in (3, 21)]

    node = WorkflowNode.objects.get(name="added")
    assert (node.codec, explain_node(handle.workflow_id, node.number).status) == (
        "plain",
        "COMPLETED",
    )

    open_gate(handle, "review")
    handle.retry()
    drain(raise_errors=False)

    assert stored("breaks") == [{"args": [], "kwargs": {"message": "again"}}] * 2
    assert handle.progress().open == 0
