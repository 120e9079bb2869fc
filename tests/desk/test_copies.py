"""Copies of rows (``dumpdata``), of tasks, handles and exceptions (``copy`` and ``pickle``)."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import pkgutil
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.management import call_command
from django.utils.translation import gettext_lazy

import horsies_django
from horsies_django import (
    Snooze,
    TaskError,
    TaskFailed,
    TaskResult,
    Workflow,
    get_handle,
    models,
    queues,
    schedules,
)
from horsies_django.core import errors
from horsies_django.store.base import NotMigrated
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.support import factories

pytestmark = pytest.mark.django_db


WAYS = pytest.mark.parametrize(
    "made_of", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]
)


@WAYS
def test_a_copy_of_a_handle_reads_the_result_with_its_type(
    made_of: Callable[[Any], Any],
) -> None:
    """A copy of a handle reads the result in the type that its task declares.

    Fails if: a cache refuses the handle, or the value of its copy is plain JSON.
    """
    handle = tasks.add.send(1, 2)
    first = made_of(handle)
    drain()

    for one in (first, made_of(first), made_of(handle), made_of(get_handle(handle.task_id))):
        assert one.get(0) == handle.get(0) == TaskResult(ok=3)

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

    with pytest.raises(
        LookupError, match=r"this process has no task 'tests.apps.project.tasks.adx'"
    ):
        pickle.loads(text)


@WAYS
def test_copies_of_exceptions_and_results_keep_their_content(made_of: Callable[[Any], Any]) -> None:
    """Fails if: an exception that takes two arguments breaks a process pool, which pickles it."""
    failed = TaskFailed(TaskError("OH_NO", "said", data={"a": 1}))
    assert (str(made_of(failed)), made_of(failed).error) == (str(failed), failed.error)

    refused = errors.TaskSendError(errors.TaskSendErrorCode.ENQUEUE_FAILED, "down")
    found = made_of(refused)
    assert str(found) == "[ENQUEUE_FAILED] down"
    assert (found.code, found.message, found.retryable) == (refused.code, "down", True)

    snooze = made_of(Snooze(5, "busy"))
    assert (snooze.until, str(snooze)) == (5, "busy")

    built_in = TaskError.built_in(errors.OperationalErrorCode.WORKER_CRASHED, "gone")
    for result in (
        TaskResult(ok=1),
        TaskResult(ok=None),
        TaskResult(err=failed.error),
        TaskResult(err=built_in),
    ):
        assert made_of(result) == result
        assert made_of(result).is_ok() is result.is_ok()


def exceptions() -> set[type[BaseException]]:
    """Return the exception classes of the package."""
    found = set()
    for module in pkgutil.walk_packages(horsies_django.__path__, "horsies_django."):
        if module.name.split(".")[1] in ("migrations", "backends"):
            continue

        members = vars(importlib.import_module(module.name)).values()
        found |= {
            one for one in members if isinstance(one, type) and issubclass(one, BaseException)
        }

    return {one for one in found if one.__module__.startswith("horsies_django.")}


@WAYS
def test_every_exception_of_the_package_is_copied(made_of: Callable[[Any], Any]) -> None:
    """Fails if: an exception has other arguments than its text, and cannot leave its process."""
    kinds = exceptions()

    assert {NotMigrated, errors.Skip, errors.TaskTimeout} <= kinds

    for kind in kinds:
        error = kind.__new__(kind, "said")
        error.args = ("said",)
        error.__dict__["more"] = [1]
        copied = made_of(error)
        assert (type(copied), copied.args, copied.__dict__) == (kind, ("said",), {"more": [1]}), (
            kind
        )


@WAYS
def test_a_copy_of_not_migrated_contains_the_migrate_command(made_of: Callable[[Any], Any]) -> None:
    error = NotMigrated("queue", "no such table")

    assert str(made_of(error)) == str(error)
    assert "migrate --database=queue" in str(error)


def test_a_lazy_text_is_refused_as_an_argument() -> None:
    """A lazy text is refused with a remedy, and an async task counts as an async function."""
    with pytest.raises(
        errors.TaskSendError, match=r"expected str, got a lazy text, .*: pass str\(\) of it"
    ):
        tasks.echo.send(gettext_lazy("Yes"))  # type: ignore[arg-type]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async_to_sync(tasks.anoop)()


def a_row_of_every_model() -> Any:
    """Write a row of every model, with JSON's null in columns that are not NULL.

    Return the handle of a waiting task.
    """
    flow = Workflow("asks")
    flow.add(flows.number, 1, after=flow.signal("go"))
    run = flow.send()
    run.signal("go", None)

    schedules.create("nightly", {"task": tasks.noop.name, "pattern": "daily at 04:30"}, actor="ada")
    schedules.change("nightly", {"enabled": False}, actor="ada")
    queues.pause("mail", actor="ada", reason="a dump")

    waits = tasks.add.with_options(key="evt_1").send(1)
    factories.TaskAttemptFactory(
        task_id=waits.task_id, attempt=9, error_code="X", error_message="it went wrong"
    )
    models.TaskStep.objects.bulk_create(
        [models.TaskStep(task_id=waits.task_id, name="asked", digest="0", result=None)]
    )

    worker = factories.WorkerFactory()
    factories.HeartbeatFactory(worker_id=worker.pk, role="claimer", died_at=factories.now())
    factories.WorkerStateFactory(worker_id=worker.pk)
    factories.ScheduleTickFactory(task_id=waits.task_id)

    models.Pruning.objects.create(key="all")
    models.Waiter.objects.create(id=worker.pk, expires_at=factories.now())

    counted = {"result": "COMPLETED", "n": 1, "seconds": 0.5, "buckets": [1] * 16}
    minute = {
        "width": 60,
        "at": factories.now().replace(microsecond=0),
        "queue": "mail",
        "task": tasks.noop.name,
    }
    models.History.objects.bulk_create([models.History(**minute, **counted)])

    models.LostRecord.objects.create(
        kind="audit", at=factories.now(), what="queue.pause mail", error="refused"
    )

    return waits


def dump(place: Path) -> list[Any]:
    call_command("dumpdata", "horsies", output=str(place), verbosity=0)
    # A dump cuts times to milliseconds; a dump of the loaded rows cuts nothing more.
    text = re.sub(r'\.000(Z?")', r"\1", place.read_text())
    found: list[Any] = json.loads(text)
    return sorted(found, key=lambda one: (one["model"], str(one["pk"])))


@pytest.mark.django_db(transaction=True)
def test_a_dump_of_every_table_is_loaded_into_an_empty_database(tmp_path: Path) -> None:
    handle = a_row_of_every_model()
    before = dump(tmp_path / "before.json")

    tables = {model._meta.label_lower for model in apps.get_app_config("horsies").get_models()}
    assert {one["model"] for one in before} == tables

    call_command("flush", interactive=False, verbosity=0)
    models.AuditEntry.objects.all().delete()  # the queues were declared again
    call_command("loaddata", str(tmp_path / "before.json"), verbosity=0)

    assert dump(tmp_path / "after.json") == before
    assert models.Schedule.objects.get().definition["enabled"] is False
    assert models.WorkflowSignal.objects.filter(data=None).count() == 1

    # The dump can be loaded again over the existing rows.
    call_command("loaddata", str(tmp_path / "before.json"), verbosity=0)
    assert dump(tmp_path / "after.json") == before

    assert drain() == 2
    assert get_handle(handle.task_id).get(0).ok_value == 1
