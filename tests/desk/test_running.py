"""Outcomes of a task: each way to return, to fail and to be retried, and which results are kept."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.urls import reverse

from horsies_django import (
    RetryPolicy,
    TaskDefinitionError,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskSendError,
    Workflow,
    WorkflowDefinitionError,
    get_handle,
    task,
)
from horsies_django.conf import parse_settings
from horsies_django.core.options import drops_result, own_retention
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks import registry
from horsies_django.testing import drain
from horsies_django.worker.child.run_task import describe_exception
from tests.apps.project import flows, tasks, unspeakable
from tests.desk.test_admin import body, client_with

pytestmark = pytest.mark.django_db


def outcome(handle: TaskHandle[Any]) -> TaskResult[Any]:
    drain(raise_errors=False)
    return handle.get(0)


def code_of(handle: TaskHandle[Any]) -> str:
    error: TaskError = outcome(handle).err_value
    row = Task.objects.get(pk=handle.task_id)
    attempt = TaskAttempt.objects.get(task_id=handle.task_id)

    assert row.status == "FAILED"
    assert row.error_code == attempt.error_code == error.error_code
    return error.error_code


@pytest.mark.promise("S3.7")
def test_a_plain_return_is_the_ok_value() -> None:
    assert outcome(tasks.add.send(1, 2)) == TaskResult(ok=3)
    assert outcome(tasks.noop.send()) == TaskResult(ok=None)
    assert outcome(tasks.mirror.send(tasks.Point(1, 2))) == TaskResult(ok=tasks.Point(2, 1))


@pytest.mark.promise("S2.21", "S3.8")
def test_a_returned_error_keeps_its_code_message_and_data() -> None:
    """An error that a task returns keeps its code, message and data."""
    handle = tasks.mail.send("nobody")

    assert outcome(handle) == TaskResult(
        err=TaskError("NO_ADDRESS", "nobody is no address", data={"to": "nobody"})
    )
    assert Task.objects.get().error_code == "NO_ADDRESS"
    assert TaskAttempt.objects.get().error_message == "nobody is no address"

    assert outcome(tasks.mail.send("a@example.org")) == TaskResult(ok="sent to a@example.org")


@pytest.mark.promise("S2.21", "S2.15")
def test_an_exception_is_an_unhandled_error_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = tasks.raises.send("no such thing")
    error = outcome(handle).err_value

    assert (error.error_code, error.message) == ("UNHANDLED_ERROR", "LookupError: no such thing")
    assert (error.exception["type"], error.exception["module"]) == ("LookupError", "builtins")
    assert "tests/apps/project/tasks.py" in error.exception["traceback"]

    attempt = TaskAttempt.objects.get()
    line = inspect.unwrap(tasks.raises).__code__.co_firstlineno + 2
    assert (attempt.site, attempt.site_line) == ("tests/apps/project/tasks.py in raises", line)
    (told,) = handle.info().attempts
    assert (told.site, told.site_line) == (attempt.site, line)

    (record,) = [record for record in caplog.records if record.name == "horsies.task"]
    assert record.levelname == "ERROR"
    assert (
        f"tests.apps.project.tasks.raises {handle.task_id} (attempt 1) failed"
        in record.getMessage()
    )
    assert "UNHANDLED_ERROR: LookupError: no such thing" in record.getMessage()
    assert "raise LookupError(message)" in str(record.exc_info[1].__notes__)


def trap() -> unspeakable.Trapped:
    found = unspeakable.Trapped("trap")
    found.name = "trapped"
    return found


def changed(handle: TaskHandle[Any], **columns: Any) -> TaskHandle[Any]:
    """Write columns of a row as another release of the code would have written them."""
    Task.objects.filter(pk=handle.task_id).update(**columns)
    return handle


@pytest.mark.promise("S2.21")
@pytest.mark.parametrize(
    ("send", "code"),
    [
        (lambda: tasks.raises.send("x"), "OUR_BUG"),
        (lambda: tasks.exits.send(0), "OUR_BUG"),
        (lambda: tasks.returns_nothing.send(), "TASK_EXCEPTION"),
        (lambda: tasks.returns_wrong_type.send(), "RETURN_TYPE_MISMATCH"),
        (lambda: tasks.returns_not_a_number.send(), "WORKER_SERIALIZATION_ERROR"),
        (lambda: changed(tasks.add.send(1), kwargs={"a": "one"}), "WORKER_SERIALIZATION_ERROR"),
        (lambda: changed(tasks.add.send(1), kwargs={"z": 1}), "WORKER_SERIALIZATION_ERROR"),
        (
            lambda: changed(tasks.noop.send(), task_name="gone.tasks.vanished"),
            "WORKER_RESOLUTION_ERROR",
        ),
        (lambda: unspeakable.returns.send(), "OUR_BUG"),  # a result that raises when it is read
        (lambda: unspeakable.areturns.send(), "OUR_BUG"),
        # An argument that raises when it is made:
        (lambda: unspeakable.takes.send(trap()), "OUR_BUG"),
    ],
)
def test_each_kind_of_error_fails_its_task_alone_with_its_code(
    settings: Any, send: Any, code: str
) -> None:
    settings.HORSIES = {**settings.HORSIES, "DEFAULT_UNHANDLED_ERROR_CODE": "OUR_BUG"}

    assert code_of(send()) == code


def test_a_result_beyond_the_limit_is_refused_and_data_left_out(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 2_000}

    assert code_of(tasks.returns_text.send(2_100)) == "PAYLOAD_TOO_LARGE"
    assert outcome(tasks.returns_text.send(1_500)).is_ok()

    huge = TaskResult[str](err=TaskError("TOO_MUCH", "see data", data="d" * 5_000))
    monkeypatch.setitem(
        registry._tasks, tasks.mail.name, replace(tasks.mail.definition, function=lambda to: huge)
    )

    error = outcome(tasks.mail.send("x")).err_value
    assert (error.error_code, error.data) == ("TOO_MUCH", None)
    assert "data is omitted" in error.message


@pytest.mark.parametrize("kind", unspeakable.KINDS)
def test_an_exception_that_cannot_be_read_fails_its_task_alone(
    kind: str,
) -> None:
    """An exception that raises when it is read fails its task and no other one."""
    assert code_of(unspeakable.raises.send(kind)) == "UNHANDLED_ERROR"
    assert code_of(unspeakable.araises.send(kind)) == "UNHANDLED_ERROR"


@pytest.mark.parametrize("kind", unspeakable.ERRORS)
def test_an_error_that_a_task_returns_may_hold_anything(kind: str) -> None:
    assert code_of(unspeakable.returns_error.send(kind)) == "NOT_THERE"


def test_a_long_text_of_an_exception_is_cut(
    settings: Any,
) -> None:
    """A long text of an exception is cut.

    An exception whose text cannot be read keeps its type and code.
    """
    settings.HORSIES = {
        **settings.HORSIES,
        "EXCEPTION_MAPPER": {"builtins.LookupError": "NOT_THERE"},
    }

    error = outcome(unspeakable.raises.send("cause that cannot be shown")).err_value
    assert error.error_code == "NOT_THERE"
    error = outcome(unspeakable.raises.send("str: SystemExit")).err_value
    assert error.message == "Unspeakable: <Unspeakable, whose text is not available: SystemExit>"

    described = describe_exception(ValueError("x" * 1_000_000))
    assert len(described["message"]) == 2_000
    assert len(described["traceback"]) < 60_000
    assert "characters left out" in described["traceback"]


def test_a_task_that_fails_with_a_listed_code_is_retried() -> None:
    """A task that fails with a listed code is retried until it succeeds or its policy ends."""
    handle = tasks.mails.send(2)
    assert drain() == 3
    assert handle.get(0).ok_value == 3

    attempts = TaskAttempt.objects.order_by("attempt").values_list(
        "outcome", "error_code", "will_retry"
    )
    assert list(attempts) == [("FAILED", "MAIL_DOWN", True)] * 2 + [("COMPLETED", None, False)]

    info = handle.info()
    assert (info.retry_count, info.max_retries, len(info.attempts)) == (2, 2, 3)

    handle = tasks.mails.send(9)
    assert drain(raise_errors=False) == 3
    error = handle.get(0).err_value
    assert (error.error_code, error.message) == ("MAIL_DOWN", "MailDown: no answer")


USUAL = RetryPolicy.fixed([0, 0])


def listing(*kinds: Any) -> RetryPolicy:
    return RetryPolicy.fixed([0, 0], auto_retry_for=kinds)


@pytest.mark.parametrize(
    ("send", "args", "policy", "ran"),
    [
        (tasks.mails, [9], USUAL, 3),  # without a list: any exception
        (tasks.mails, [9], listing(tasks.MailDown), 3),  # whatever its code in the mapper is
        (tasks.mails, [9], listing("tests.apps.project.tasks.MailDown"), 3),
        (tasks.mails, [9], listing(LookupError, "OTHER"), 1),
        (tasks.araises, [], USUAL, 3),
        (tasks.breaks_sql, [], USUAL, 3),
        (tasks.exits, [3], USUAL, 1),  # an exit is no exception
        (tasks.mail, ["nowhere"], USUAL, 1),  # an error that was returned is an answer
        (tasks.mail, ["nowhere"], listing("NO_ADDRESS"), 3),
    ],
)
def test_an_exception_is_retried_by_its_class_or_a_base_class(
    send: Any, args: Any, policy: Any, ran: int
) -> None:
    """An exception is retried if its class or a base class is listed."""
    send.with_options(retry_policy=policy).send(*args)

    assert drain(raise_errors=False) == ran


def test_a_task_requests_its_own_retry() -> None:
    """A task can request its own retry, with a delay and a code.

    It fails with that code after its last attempt, and without a policy with a hint to add one.
    """
    handles = [tasks.asks_again.send(delay, code) for delay, code in ((7.5, None), (None, "BUSY"))]
    drain()

    for handle, pause, code in zip(handles, (7.5, 60), ("RETRY_REQUESTED", "BUSY"), strict=True):
        row = Task.objects.get(pk=handle.task_id)
        attempt = TaskAttempt.objects.get(task_id=handle.task_id)
        assert row.status == "PENDING"
        assert row.next_retry_at - attempt.finished_at == dt.timedelta(seconds=pause)
        assert (attempt.error_code, attempt.error_message, attempt.will_retry) == (
            code,
            "come back later",
            True,
        )

    last = tasks.asks_again.send(0, None)
    without = tasks.asks_again_without_a_policy.send()
    assert drain(raise_errors=False) == 3

    error = last.get(0).err_value
    assert (error.error_code, error.data, error.exception["type"]) == (
        "RETRY_REQUESTED",
        {"after": 0},
        "MailDown",
    )
    assert (
        "write @task(retry_policy=RetryPolicy.fixed([60, 300]))" in without.get(0).err_value.message
    )


def test_the_mapper_of_the_settings_holds_for_all_tasks(
    settings: Any,
) -> None:
    """The mapper of the settings applies to all tasks, and each invalid entry is a problem."""
    mapper = {
        "builtins.LookupError": "NOT_THERE",
        OSError: "WORKER_CRASHED",
        7: "Y",
        "no.such.Error": "X",
    }

    config, problems = parse_settings({"EXCEPTION_MAPPER": mapper}, databases={"default"})

    assert [problem.id for problem in problems] == ["E020", "E020", "E020"]
    assert dict(config.exception_mapper) == {LookupError: "NOT_THERE"}
    assert [
        one.id for one in parse_settings({"EXCEPTION_MAPPER": []}, databases={"default"})[1]
    ] == ["E001"]

    settings.HORSIES = {
        **settings.HORSIES,
        "EXCEPTION_MAPPER": {"builtins.LookupError": "NOT_THERE", OSError: "IO"},
    }
    assert code_of(tasks.raises.send("x")) == "NOT_THERE"


NO_DURATIONS = (0, 3600, "1h", dt.timedelta(0), dt.timedelta(seconds=59), dt.timedelta(days=40_000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry_policy": [60]}, "RetryPolicy.fixed"),
        ({"timeout_ms": 5}, "timeout_ms must be"),
        ({"timeout_ms": dt.timedelta(days=40)}, "timeout_ms must be"),
        ({"exception_mapper": {OSError: "lower"}}, "exception_mapper"),
        *[
            ({"keep_result": wrong}, "keep_result must be True, False or a timedelta")
            for wrong in NO_DURATIONS
        ],
    ],
)
def test_options_that_cannot_be_are_refused_where_they_are_given(
    options: dict[str, Any], said: str
) -> None:
    def never() -> None: ...

    with pytest.raises(TaskDefinitionError, match=said):
        task(**options)(never)

    if "exception_mapper" not in options:
        with pytest.raises(TaskSendError, match=said):
            tasks.noop.with_options(**options).send()
        assert not Task.objects.exists()


NOT_KEPT = {"ok": None, "kept": False}
plus_dropped = flows.plus.with_options(keep_result=False)
numbers_dropped = flows.numbers.with_options(keep_result=False)


def stored(handle: Any) -> Any:
    return Task.objects.values_list("options", "result").get(pk=handle.task_id)


def test_a_value_that_is_not_kept_is_not_stored() -> None:
    """With ``keep_result=False`` no value is stored, but errors and the status are.

    Fails if: the typed handle decodes null as an int, and reports a result of the wrong type.
    """
    handle = tasks.add.with_options(keep_result=False).send(40, b=2)
    coroutine = tasks.anoop.with_options(keep_result=False).send()
    drain()

    assert stored(handle) == ({"wire": 1, "keep_result": False}, NOT_KEPT)
    assert stored(coroutine)[1] == NOT_KEPT

    for one in (handle, get_handle(handle.task_id)):
        assert (one.get(0).is_ok(), one.get(0).ok_value) == (True, None)
    assert handle.info().status == "COMPLETED"

    client = client_with("view_task", "view_payload")
    assert "not kept" in body(client, reverse("admin:horsies_task_change", args=(handle.task_id,)))

    error = outcome(tasks.raises.with_options(keep_result=False).send("a reason")).err_value
    assert ("a reason" in error.message, "raise LookupError" in error.exception["traceback"]) == (
        True,
        True,
    )


def test_an_option_of_the_send_overrides_the_decorator() -> None:
    """An option of the send overrides the decorator.

    ``keep_result=True`` keeps a result that the decorator would drop.
    """

    @task(name="tests.keep.dropped", keep_result=False)
    def dropped() -> int:
        return 7

    @task(name="tests.keep.for_an_hour", keep_result=dt.timedelta(hours=1))
    def for_an_hour() -> int:
        return 8

    cases = [
        (dropped, False, None),
        (dropped.with_options(keep_result=True), None, 7),
        (dropped.with_options(keep_result=dt.timedelta(minutes=2)), 120_000, 7),
        (for_an_hour, 3_600_000, 8),
        (for_an_hour.with_options(keep_result=False), False, None),
    ]

    handles = [case[0].send() for case in cases]
    found = [stored(handle)[0] for handle in handles]

    assert [options and options["keep_result"] for options in found] == [
        keep for _task, keep, _value in cases
    ]

    drain()
    assert [handle.get(0).ok for handle in handles] == [value for _task, _keep, value in cases]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        '"keep_result"',
        "{",
        '{"keep_result": null}',
        '{"keep_result": true}',
        '{"keep_result": 59999}',
        '{"keep_result": 4000000000000}',
        '{"keep_result": "1h"}',
        '{"keep_result": 1.5}',
        '{"metadata": {"keep_result": false}}',
        '{"wire": "x", "keep_result": false}',
    ],
)
def test_options_that_are_any_json_never_drop_a_result(text: str | None) -> None:
    assert own_retention(text) is None
    assert not drops_result(text)


TAKERS: dict[str, Callable[[Workflow, Any], Any]] = {
    "an argument": lambda flow, node: flow.add(flows.plus, node),
    "a list": lambda flow, node: flow.add(flows.total, [flow.add(flows.number, 1), node]),
    "an outcome": lambda flow, node: flow.add(flows.describe, node, allow_failed=True),
    "a condition": lambda flow, node: flow.add(flows.number, 1, when=node.matches("$ > 1")),
    "the value of the run": lambda flow, node: flow.returns(node),
    "a map": lambda flow, _: flow.map(flows.plus, a=flow.add(numbers_dropped, 3, name="dropped")),
    "all of a map": lambda flow, _: flow.add(
        flows.total, flow.map(plus_dropped, a=[1, 2], name="dropped")
    ),
    "an undo": lambda flow, _: flow.add(plus_dropped, 1, name="dropped", undo=tasks.hold_undo),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_node_whose_result_is_taken_cannot_drop_it(taker: str) -> None:
    flow = Workflow("drops")
    own = taker in ("a map", "all of a map", "an undo")  # they add the node themselves
    TAKERS[taker](flow, None if own else flow.add(plus_dropped, 1, name="dropped"))

    with pytest.raises(WorkflowDefinitionError) as caught:
        flow.send()

    (problem,) = caught.value.problems
    assert "the task of dropped does not keep its result" in problem
    if taker == "an undo":
        assert "the undo tests.apps.project.tasks.hold_undo: the task of" in problem

    assert not Task.objects.exists()


def test_a_node_without_consumers_drops_its_value() -> None:
    """A node whose value no other node uses drops it, and the other nodes keep theirs."""
    flow = Workflow("drops")
    flow.returns(flow.add(flows.number, 5, after=flow.add(plus_dropped, 1, name="dropped")))

    run = flow.send()
    drain()

    assert run.get(0).ok_value == 5
    assert run.results()["dropped"].ok is None
    assert Task.objects.get(node=0).result == NOT_KEPT
