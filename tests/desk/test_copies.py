"""Copies and pickles: of tasks and handles, as caches, sessions and ``setUpTestData`` make them, and of exceptions."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils.translation import gettext_lazy

from horsies_django import TaskError, TaskFailed, TaskResult, TaskSendError, Workflow, get_handle
from horsies_django.core import errors
from horsies_django.core.errors import HorsiesError, TaskSendErrorCode
from horsies_django.testing import drain
from tests.apps.project import flows, tasks

pytestmark = pytest.mark.django_db


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


WAYS = pytest.mark.parametrize("made_of", [copy.copy, copy.deepcopy, pickled])


@WAYS
def test_copies_of_handles_read_the_result_as_their_task_declares_it(made_of: Callable[[Any], Any]) -> None:
    """Naive: a cache refuses the handle, or the value of its copy is plain JSON."""
    handle = tasks.add.send(1, 2)
    first = made_of(handle)
    drain()
    assert first.get(0) == handle.get(0) == made_of(handle).get(0) == made_of(first).get(0)
    assert first.get(0).is_ok()
    assert made_of(get_handle(handle.task_id)).get(0).is_ok()
    flow = Workflow[int]("copied")
    flow.returns(flow.map(flows.number, n=[1, 2]))
    flow.add(flows.number, flow.signal("go", annotation=int), name="told")
    run = made_of(flow.send())
    run.signal("go", 3)
    drain()
    assert made_of(run).get(0).ok_value == [1, 2]
    assert made_of(run).results()["told"] == TaskResult(ok=3)


@WAYS
def test_a_copy_of_a_task_is_the_task(made_of: Callable[[Any], Any]) -> None:
    assert made_of(tasks.add) is tasks.add
    sender = made_of(tasks.add.with_options(priority=5))
    assert sender.send(1, 2).info().priority == 5
    assert made_of(tasks.add.definition) is tasks.add.definition


def test_the_pickle_of_a_task_that_is_gone_names_it() -> None:
    text = pickle.dumps(tasks.add.definition).replace(b"tasks.add", b"tasks.adx")
    with pytest.raises(LookupError, match=r"this process has no task 'tests.apps.project.tasks.adx'"):
        pickle.loads(text)


@WAYS
def test_copies_of_exceptions_and_results_keep_what_they_say(made_of: Callable[[Any], Any]) -> None:
    """Naive: a process pool, whose workers pickle exceptions, dies of one that takes two arguments."""
    failed = TaskFailed(TaskError("OH_NO", "said", data={"a": 1}))
    assert (str(made_of(failed)), made_of(failed).error) == (str(failed), failed.error)
    refused = TaskSendError(TaskSendErrorCode.ENQUEUE_FAILED, "down")
    found = made_of(refused)
    assert (str(found), found.code, found.message, found.retryable) == (
        "[ENQUEUE_FAILED] down",
        refused.code,
        "down",
        True,
    )
    built_in = TaskError.built_in(errors.OperationalErrorCode.WORKER_CRASHED, "gone")
    for result in (TaskResult(ok=1), TaskResult(ok=None), TaskResult(err=failed.error), TaskResult(err=built_in)):
        assert made_of(result) == result
        assert made_of(result).is_ok() is result.is_ok()
    for kind in [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, HorsiesError)]:
        error = kind.__new__(kind, "said")
        error.args, error.__dict__["more"] = ("said",), [1]
        assert (type(made_of(error)), str(made_of(error)), made_of(error).more) == (kind, "said", [1])


def test_an_async_task_counts_as_an_async_function() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async_to_sync(tasks.anoop)()


def test_a_lazy_text_says_so() -> None:
    with pytest.raises(TaskSendError, match=r"expected str, got a lazy text, .*: give str\(\) of it"):
        tasks.echo.send(gettext_lazy("Yes"))  # type: ignore[arg-type]
