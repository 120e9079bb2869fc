"""What came of a task: each way to return, to fail and to misbehave, as the caller and the row tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from horsies_django import TaskError, TaskHandle, TaskResult
from horsies_django.models import Task, TaskAttempt
from horsies_django.tasks import registry
from horsies_django.testing import drain
from horsies_django.worker.child.run_task import describe
from tests.apps.project import tasks, unspeakable

pytestmark = pytest.mark.django_db


def replace_function(monkeypatch: pytest.MonkeyPatch, task: Any, function: Callable[..., Any]) -> None:
    """Let workers of this process find another function under a task's name."""
    monkeypatch.setitem(registry._tasks, task.name, replace(task.definition, function=function))


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
def test_an_error_that_a_task_returns_keeps_its_code_message_and_data() -> None:
    handle = tasks.mail.send("nobody")
    assert outcome(handle) == TaskResult(err=TaskError("NO_ADDRESS", "nobody is no address", data={"to": "nobody"}))
    assert Task.objects.get().error_code == "NO_ADDRESS"
    assert TaskAttempt.objects.get().error_message == "nobody is no address"
    assert outcome(tasks.mail.send("a@example.org")) == TaskResult(ok="sent to a@example.org")


@pytest.mark.promise("S2.21", "S2.15")
def test_an_exception_is_an_unhandled_error_with_its_traceback() -> None:
    error = outcome(tasks.raises.send("no such thing")).err_value
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.message == "LookupError: no such thing"
    assert error.exception is not None
    assert error.exception["type"] == "LookupError"
    assert error.exception["module"] == "builtins"
    assert "tests/apps/project/tasks.py" in error.exception["traceback"]


def test_the_code_of_unhandled_errors_is_the_settings_choice(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "DEFAULT_UNHANDLED_ERROR_CODE": "OUR_BUG"}
    assert code_of(tasks.raises.send("x")) == "OUR_BUG"


def test_system_exit_is_a_failure_of_the_task_alone() -> None:
    assert code_of(tasks.exits.send(0)) == "UNHANDLED_ERROR"


def test_none_from_a_task_that_declares_a_result_is_an_error() -> None:
    assert code_of(tasks.returns_nothing.send()) == "TASK_EXCEPTION"


def test_a_value_of_another_type_is_a_mismatch() -> None:
    assert code_of(tasks.returns_wrong_type.send()) == "RETURN_TYPE_MISMATCH"


@pytest.mark.promise("S2.21")
def test_a_value_that_json_cannot_hold_is_a_serialization_error() -> None:
    assert code_of(tasks.returns_not_a_number.send()) == "WORKER_SERIALIZATION_ERROR"


def test_a_result_beyond_the_limit_is_too_large(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 2_000}
    assert code_of(tasks.returns_text.send(2_100)) == "PAYLOAD_TOO_LARGE"
    assert outcome(tasks.returns_text.send(1_500)).is_ok()


@pytest.mark.parametrize("text", ["nul \x00 byte", "lone \ud800 surrogate"], ids=["nul", "surrogate"])
def test_text_in_an_exception_that_postgresql_cannot_hold_is_made_visible(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: str) -> None:
        raise LookupError(text)

    replace_function(monkeypatch, tasks.raises, fail)
    error = outcome(tasks.raises.send("x")).err_value
    assert error.error_code == "UNHANDLED_ERROR"
    assert text.split()[0] in error.message
    assert "\x00" not in error.message


@pytest.mark.promise("S2.21")
def test_stored_arguments_that_no_longer_fit_fail_before_user_code() -> None:
    handle = tasks.add.send(1)
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE horsies_tasks SET kwargs = '{"a": "one"}'""")
    assert code_of(handle) == "WORKER_SERIALIZATION_ERROR"
    renamed = tasks.add.send(1)
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE horsies_tasks SET kwargs = '{"z": 1}' WHERE status = 'PENDING'""")
    assert code_of(renamed) == "WORKER_SERIALIZATION_ERROR"


@pytest.mark.promise("S2.21")
def test_a_name_that_nobody_knows_is_a_resolution_error_and_the_row_stays() -> None:
    handle = tasks.noop.send()
    Task.objects.filter(pk=handle.task_id).update(task_name="gone.tasks.vanished")
    assert code_of(handle) == "WORKER_RESOLUTION_ERROR"
    assert "gone.tasks.vanished" in handle.get().err_value.message


def test_a_failed_task_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    handle = tasks.raises.send("seen")
    outcome(handle)
    (record,) = [record for record in caplog.records if record.name == "horsies.task"]
    assert record.levelname == "ERROR"
    assert f"tests.apps.project.tasks.raises {handle.task_id} (attempt 1) failed" in record.getMessage()
    assert "UNHANDLED_ERROR: LookupError: seen" in record.getMessage()
    assert "raise LookupError(message)" in str(record.exc_info[1].__notes__)


def test_an_exception_that_cannot_even_be_shown_is_described() -> None:
    class Stubborn(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    described = describe(Stubborn())
    assert "not available" in described["message"]
    assert described["type"].endswith("Stubborn")


def test_a_very_long_traceback_is_cut_in_the_middle() -> None:
    described = describe(ValueError("x" * 1_000_000))
    assert len(described["message"]) == 2_000
    assert len(described["traceback"]) < 60_000
    assert "characters left out" in described["traceback"]


def test_the_data_of_an_error_beyond_the_limit_is_left_out_and_the_rest_is_kept(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": 2_000}
    huge = TaskResult[str](err=TaskError("TOO_MUCH", "see data", data="d" * 5_000))
    replace_function(monkeypatch, tasks.mail, lambda to: huge)
    error = outcome(tasks.mail.send("x")).err_value
    assert (error.error_code, error.data) == ("TOO_MUCH", None)
    assert "data is left out" in error.message


@pytest.mark.parametrize("kind", unspeakable.KINDS)
def test_an_exception_that_raises_when_it_is_looked_at_fails_its_task_and_nothing_else(kind: str) -> None:
    assert code_of(unspeakable.raises.send(kind)) == "UNHANDLED_ERROR"
    assert code_of(unspeakable.araises.send(kind)) == "UNHANDLED_ERROR"


def test_an_exception_whose_text_raises_keeps_its_type_and_its_code(settings: Any) -> None:
    mapper = {"builtins.LookupError": "NOT_THERE"}
    settings.HORSIES = {**settings.HORSIES, "EXCEPTION_MAPPER": mapper}
    error = outcome(unspeakable.raises.send("cause that cannot be shown")).err_value
    assert error.error_code == "NOT_THERE"
    error = outcome(unspeakable.raises.send("str: SystemExit")).err_value
    assert error.message == "Unspeakable: <Unspeakable, whose text is not available: SystemExit>"


def test_a_result_that_raises_when_it_is_read_fails_its_task_and_nothing_else() -> None:
    assert code_of(unspeakable.returns.send()) == "UNHANDLED_ERROR"
    assert code_of(unspeakable.areturns.send()) == "UNHANDLED_ERROR"


def test_an_argument_that_raises_when_it_is_made_fails_its_task_and_nothing_else() -> None:
    trap = unspeakable.Trapped("trap")
    trap.name = "trapped"
    assert code_of(unspeakable.takes.send(trap)) == "UNHANDLED_ERROR"


@pytest.mark.parametrize("kind", unspeakable.ERRORS)
def test_an_error_that_a_task_returns_may_hold_anything(kind: str) -> None:
    assert code_of(unspeakable.returns_error.send(kind)) == "NOT_THERE"
