"""``HorsiesBackend`` in a site: what ``enqueue`` writes and refuses, and what the checks report."""

from __future__ import annotations

import datetime as dt
import functools
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from horsies_django import TaskSendError, Workflow, backends, get_handle
from horsies_django.backends import HorsiesTask
from horsies_django.core.errors import StopRequested
from horsies_django.models import Task
from horsies_django.tasks import registry
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultStatus,
    api,
    task,
    task_backends,
)
from tests.apps.project import tasks as ours
from tests.desk.conftest import AddApp

pytestmark = pytest.mark.django_db

READY = TaskResultStatus.READY
BACKEND = "horsies_django.backends.HorsiesBackend"


def row(result: Any) -> Task:
    return Task.objects.get(pk=result.id)


def test_a_task_is_one_row_that_workers_find() -> None:
    """``enqueue`` writes one row that workers find, and the result agrees with the row.

    Fails if: ``enqueued_at`` is Python's clock, the arguments are those of ``@task``, or the id is
    longer than 64 characters.
    """
    result = tasks.note.using(priority=30, queue_name="mail").enqueue(1, ("two",), three={"f": 4})

    found = row(result)
    assert (found.task_name, found.queue_name, found.priority, found.lane) == (
        "tests.apps.errands.tasks.note",
        "mail",
        71,
        "sync",
    )
    assert (found.codec, found.kwargs) == (
        "plain",
        {"args": [1, ["two"]], "kwargs": {"three": {"f": 4}}},
    )
    assert get_handle(result.id).info().codec == "plain"  # type: ignore[union-attr]

    assert (result.status, result.is_finished, result.attempts, result.errors) == (
        READY,
        False,
        0,
        [],
    )
    assert (result.enqueued_at, result.started_at, result.finished_at) == (
        found.sent_at,
        None,
        None,
    )
    assert (result.args, result.kwargs, result.backend) == (
        [1, ["two"]],
        {"three": {"f": 4}},
        "default",
    )
    assert str(uuid.UUID(result.id)) == result.id

    with pytest.raises(ValueError, match="has not finished yet"):
        _ = result.return_value

    for priority, stored in ((100, 1), (0, 101), (-100, 201), (3.0, 98)):
        result = tasks.note.using(priority=priority).enqueue()
        assert row(result).priority == stored
        assert task_backends["default"].get_result(result.id).task.priority == priority


def test_a_task_belongs_to_the_transaction_of_its_caller() -> None:
    """A task is sent inside the transaction of its caller.

    Fails if: it is sent after the commit (``on_commit``), and is lost if the process dies in
    between.
    """
    with pytest.raises(LookupError), transaction.atomic():
        # The row exists inside the transaction already.
        assert row(tasks.note.enqueue("lost")).task_name.endswith("note")
        assert connection.run_on_commit == []
        raise LookupError

    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_async_code_sends_and_reads_without_blocking_its_loop() -> None:
    async def view() -> tuple[Any, Any]:
        sent = await tasks.later.aenqueue(6)
        with pytest.raises(TaskSendError, match="aenqueue"):
            tasks.later.enqueue(6)

        found = await tasks.later.aget_result(sent.id)
        await sent.arefresh()
        return sent, found

    sent, found = async_to_sync(view)()

    assert sent == found
    assert row(sent).lane == "async"

    drain()
    sent.refresh()
    assert (sent.status, sent.return_value) == (TaskResultStatus.SUCCESSFUL, 7)


def test_run_after_takes_a_moment_or_a_timedelta(
    settings: Any,
) -> None:
    """``run_after`` may be a moment or a timedelta.

    A naive moment is valid only without time zones.

    Fails if: a timedelta raises AttributeError in the validation, or counts from Python's clock.
    """
    moment = timezone.now() + dt.timedelta(hours=3)
    at = tasks.note.using(run_after=moment).enqueue()
    assert row(at).enqueued_at == moment
    assert at.task.run_after == moment

    span = dt.timedelta(minutes=5)
    after = tasks.note.using(run_after=span).enqueue()
    assert row(after).enqueued_at - row(after).sent_at == span
    assert after.task.run_after == row(after).enqueued_at

    now = tasks.note.enqueue()
    for result in (at, after, now):
        assert tasks.note.get_result(result.id) == result
    assert drain() == 1

    naive = dt.datetime(2040, 1, 1, 12)  # noqa: DTZ001
    if settings.USE_TZ:
        with pytest.raises(InvalidTask, match="aware"):
            tasks.note.using(run_after=naive)
    else:
        result = tasks.note.using(run_after=naive).enqueue()
        assert row(result).enqueued_at == result.task.run_after == naive
        assert tasks.note.get_result(result.id) == result


WRONG: dict[str, tuple[str, tuple[Any, ...]]] = {
    "run_after": (
        "run_after must be",
        (dt.timedelta(seconds=-1), dt.timedelta(days=40_000), 60, "tomorrow"),
    ),
    "priority": ("a whole number between -100 and 100", (True, "5", 101, -101, 3.5, None)),
    "max_attempts": ("max_attempts must be an int from 1 to 101", (0, 102, True)),
    "backoff": ("backoff must be seconds", (-1, [], "soon")),
    "retry_on": (
        "cannot be imported|neither an error code|not iterable",
        (["no.such.Error"], [int], 5),
    ),
    "timeout_ms": ("timeout_ms must be milliseconds", (0,)),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_that_cannot_be_is_refused_where_it_is_written(name: str) -> None:
    names = ("func", "priority", "backend", "queue_name", "run_after", "takes_context")
    known = {field: getattr(tasks.add, field) for field in names}
    said, values = WRONG[name]

    for value in values:
        with pytest.raises(InvalidTask, match=said):
            HorsiesTask(**known | {name: value})


def test_what_cannot_be_sent_breaks_no_transaction() -> None:
    """A call that cannot be sent raises before anything is written.

    Fails if: the database refuses it, and the transaction of the caller breaks; or the worker
    fails.
    """
    for task_, args, error, said in (
        (tasks.note, ["a\x00b"], TaskSendError, "tests.apps.errands.tasks.note: .*NUL byte"),
        (tasks.note, [dt.date(2030, 1, 1)], TypeError, "Unsupported type"),
        (tasks.add, [1, 2, 3], TaskSendError, "too many positional arguments"),
        (
            tasks.note.using(queue_name="nowhere"),
            [],
            TaskSendError,
            "queue 'nowhere' is not declared",
        ),
    ):
        with pytest.raises(error, match=said):
            task_.enqueue(*args)
        assert Task.objects.count() == 0


def test_an_argument_that_contains_itself_is_named() -> None:
    """Fails if: it ends as a RecursionError, whose long traceback does not name the argument."""
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    for send in (
        lambda: tasks.note.enqueue(cycle),
        lambda: tasks.note.enqueue(deep),
        lambda: async_to_sync(tasks.note.aenqueue)(cycle),
        lambda: tasks.note.enqueue(text=cycle),
    ):
        with pytest.raises(
            TaskSendError,
            match=r"argument '(\*args|text)\[.{,300}nested more than 200 levels deep, "
            r"or contains itself",
        ):
            send()

    assert Task.objects.count() == 0


def counts():  # type: ignore[no-untyped-def]
    yield 1


def test_functions_that_cannot_be_tasks_are_refused() -> None:
    """Functions that cannot be tasks are refused.

    No task is sent while modules of tasks are imported.

    Fails if: a wrapper has the name of the function that it wraps, so that the worker runs the
    wrapped function, or the one that was defined last.
    """

    @functools.wraps(tasks.add.func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return tasks.add.func(*args, **kwargs)

    for function, said in [
        (counts, "generator"),
        (lambda: None, "module level"),
        (wrapper, "Two functions are tasks named tests.apps.errands.tasks.add"),
        (ours.add, "module level"),
        (
            ours.add.definition.function,
            "Two functions are tasks named tests.apps.project.tasks.add",
        ),
    ]:
        with pytest.raises(InvalidTask, match=said):
            task()(function)

    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(tasks.add.func)

    assert task()(tasks.add.func) == tasks.add  # the same function is no second one
    with registry.suppressed_sends(), pytest.raises(TaskSendError, match="SEND_SUPPRESSED"):
        tasks.note.enqueue()


def test_the_queues_in_tasks_are_validated_at_the_send() -> None:
    """The queues in the setting ``TASKS`` are validated at the send.

    Without such a list, each declared queue is valid.

    Fails if: only the construction of the task is validated; or Django's default applies, which
    allows no queue of an app's own.
    """
    elsewhere = tasks.note.using(queue_name="bulk")

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["mail"]}}):
        for send in (elsewhere.enqueue, async_to_sync(elsewhere.aenqueue)):
            with pytest.raises(InvalidTask, match="Queue 'bulk' is not valid for backend"):
                send()

    for backend in (
        BACKEND,
        "horsies_django.testing.ImmediateBackend",
        "horsies_django.testing.DummyBackend",
    ):
        with override_settings(TASKS={"default": {"BACKEND": backend}}):
            assert tasks.note.using(queue_name="bulk").enqueue().task.queue_name == "bulk"


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks are pickled since Django 6.1")
def test_a_task_and_its_result_can_be_pickled() -> None:
    chosen = tasks.tried.using(priority=5)
    assert pickle.loads(pickle.dumps(chosen)) == chosen

    result = chosen.enqueue(0)
    assert pickle.loads(pickle.dumps(result)) == result


def test_our_decorator_makes_a_task_of_the_backend_that_it_names() -> None:
    """Options of ours are ignored by Django's own backends, as in tests.

    Fails if: they break the import of the module.
    """
    assert isinstance(tasks.tried, HorsiesTask)
    assert (tasks.tried.max_attempts, tasks.tried.retry_on) == (3, (ValueError,))

    immediate = f"{api.__name__}.backends.immediate.ImmediateBackend"
    with override_settings(TASKS={"default": {"BACKEND": immediate, "QUEUES": []}}):
        made = backends.task(max_attempts=3, backoff=[1], retry_on=ValueError)(tasks.add.func)
        assert not isinstance(made, HorsiesTask)
        assert made.enqueue(1, 2).return_value == 3
        assert tasks.add.enqueue(2, 2).return_value == 4  # made for the other backend

    with pytest.raises(InvalidTaskBackend, match="doesn't exist"):
        tasks.add.using(backend="unknown")


def test_a_task_may_be_a_node_of_a_workflow_with_its_own_options() -> None:
    flow = Workflow("sums")
    first = flow.add(tasks.add, 2, b=3)
    flow.add(tasks.tried.using(priority=50, queue_name="mail"), 0)
    last = flow.add(tasks.add, first, b=10)

    handle = flow.send()
    drain()

    assert handle.results()[last.name].ok_value == 15
    found = Task.objects.get(task_name=tasks.tried.module_path)
    assert (found.queue_name, found.priority, found.max_retries) == ("mail", 51, 2)
    assert tasks.add.get_result(
        str(Task.objects.filter(task_name=tasks.add.module_path)[0].pk)
    ).return_value in (5, 15)


ROOT = Path(__file__).parents[2]
FAR = "tests.apps.errands.elsewhere.far_away"


def configured(**params: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], **params}})


def said() -> list[tuple[str, str, Any]]:
    return [
        (str(message.id), message.msg, message.obj) for message in task_backends["default"].check()
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"MAX_ATTEMTS": 3}, ["'MAX_ATTEMTS'", "did you mean 'MAX_ATTEMPTS'?"]),
        ({"BACKOFF": "no.such.function"}, ["BACKOFF", "cannot be imported"]),
        ({"BACKOFF": [1, -1]}, ["backoff must be seconds"]),
        ({"RETRY_ON": 7}, ["must be a list of exception classes"]),
        ({"RETRY_ON": ["shop.errors.Gone"]}, ["RETRY_ON", "'shop.errors.Gone' cannot be imported"]),
        ({"TIMEOUT_MS": "1s"}, ["timeout_ms must be milliseconds"]),
        ({"MODULES": ["shop/jobs.py"]}, ["must be a list of dotted names"]),
        ([], ["TASKS['default']['OPTIONS'] must be a dict, not list"]),
    ],
)
def test_an_option_that_is_wrong_is_reported_and_nothing_is_sent(
    options: Any, words: list[str]
) -> None:
    with configured(OPTIONS=options):
        ((id_, message, where),) = said()
        assert (id_, where) == ("horsies.E025", "TASKS['default']")
        assert [word for word in words if word not in message] == []

        with pytest.raises(InvalidTaskBackend):
            tasks.note.enqueue()

        backend: Any = task_backends["default"]
        assert backend.horsies_options is not backend.horsies_options, (
            "a class may be there once all apps are loaded"
        )


def test_options_that_are_right_are_no_problem_and_read_once(settings: Any) -> None:
    options = {
        "MAX_ATTEMPTS": 3,
        "BACKOFF": [1, 2],
        "RETRY_ON": OSError,
        "MODULES": ["tests.apps.errands"],
    }

    with configured(OPTIONS=options):
        assert said() == []
        backend: Any = task_backends["default"]
        assert backend.horsies_options is backend.horsies_options

    with configured(QUEUES=["mail", "nowhere", "anywhere"]):
        ((id_, message, _),) = said()
        assert id_ == "horsies.E026"
        assert message.endswith("names queues that are not declared: anywhere, nowhere.")

    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "horsies_django"]
    assert [id_ for id_, _, _ in said()] == ["horsies.E027"]


@pytest.mark.skipif(
    django.VERSION < (6, 0), reason="the app of the backport registers its own check"
)
def test_django_runs_the_check_without_an_import_of_django_tasks() -> None:
    """Django runs the check even if no module imports ``django.tasks``.

    Fails if: Django's check of TASKS is registered only when ``django.tasks`` is imported, which no
    module of the site has to do.
    """
    with configured(OPTIONS={"MAX_ATTEMPTS": 0}):
        assert "horsies.E025" in [message.id for message in run_checks()]

    names = "'django.tasks' in sys.modules, 'horsies_django.backends.native' in sys.modules"
    code = f"import sys, django; django.setup(); print({names})"

    assert output(code) == "True False"


def output(code: str, **settings: str) -> str:
    """Run code in a fresh interpreter, with the settings of the tests; return its output."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "HORSIES_TEST_SITE": "0",
        **settings,
    }

    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_decorating_while_apps_load_imports_no_model() -> None:
    """Fails if: the backend, which Django makes at the first ``@task``, imports models."""
    code = (
        "import django\nfrom django.conf import settings\n"
        "settings.INSTALLED_APPS += ['tests.apps.errands.early.Early']\n"
        "django.setup()\n"
        "from horsies_django.tasks import "
        "registry\nprint(registry.find('tests.apps.errands.elsewhere.far_away').codec)"
    )

    assert output(code) == "plain"


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the module that only workers import, as if this process had not imported it."""
    monkeypatch.setattr(
        registry, "_tasks", {name: task for name, task in registry._tasks.items() if name != FAR}
    )
    monkeypatch.delitem(sys.modules, "tests.apps.errands.elsewhere", raising=False)


# The second module exits.
@pytest.mark.parametrize("module", ["no.such.module", "tests.apps.errands.leaves"])
def test_a_check_reports_an_options_module_that_fails_to_import(module: str) -> None:
    with configured(OPTIONS={"MODULES": [module]}):
        assert [problem.module for problem in registry.autodiscover()] == [module]
        (message,) = [message for message in run_checks(tags=["horsies"]) if message.obj == module]

    assert message.id == "horsies.E011"
    assert ("SystemExit: 3" in message.msg) is (module != "no.such.module")


@pytest.mark.parametrize("name", [FAR, "tests.apps.errands.leaves.no_task", "os.system"])
def test_a_name_imports_nothing_and_so_ends_nobody(
    forgotten: None, settings: Any, name: str
) -> None:
    """Fails if: a row makes workers import any module of an installed app, even one that exits."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.apps.errands"]
    before = set(sys.modules)

    assert registry.find(name) is None
    assert registry.find_or_import(name) is None
    assert set(sys.modules) - before <= {"tests.apps.errands.tasks"}


@pytest.mark.parametrize("meant", [StopRequested, KeyboardInterrupt])
def test_what_stops_this_process_is_no_problem_of_the_module(
    add_app: AddApp, meant: type[BaseException]
) -> None:
    add_app(
        "interrupted",
        jobs=f"from horsies_django.core.errors import StopRequested\nraise {meant.__name__}",
    )

    with pytest.raises(meant):
        registry.import_all(["interrupted.jobs"])


@pytest.mark.django_db
def test_a_result_has_the_task_of_a_module_only_workers_import(
    forgotten: None,
) -> None:
    """The result of a task has its task, even if only workers import the module of the task."""
    from tests.apps.errands.elsewhere import far_away

    result = far_away.enqueue(4)

    with configured(OPTIONS={"MODULES": ["tests.apps.errands.elsewhere"]}):
        for name in (FAR, "tests.apps.errands.elsewhere"):
            registry._tasks.pop(name, None)
            sys.modules.pop(name, None)

        assert task_backends["default"].get_result(result.id).task.func(4) == 40
        drain()
        result.refresh()

    assert result.return_value == 40
