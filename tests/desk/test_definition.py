"""``@task``: its attributes, its errors, and tasks in modules that workers may not import."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import subprocess
import sys
from code import InteractiveConsole
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import override_settings
from django.urls import clear_url_caches, get_resolver

import horsies_django
from horsies_django import TaskDefinitionError, task
from horsies_django.conf import config
from horsies_django.core.errors import TaskSendError
from horsies_django.models import Task, WorkflowRun
from horsies_django.tasks import registry
from horsies_django.testing import drain
from horsies_django.worker.startup import refuse_unready_tasks
from tests.apps.project import tasks
from tests.conftest import put
from tests.desk.conftest import AddApp

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry")]


@pytest.mark.promise("S3.11")
def test_a_task_is_named_by_its_dotted_path() -> None:
    """A task has its dotted path as its name, and the attributes of its function."""
    assert tasks.add.name == "tests.apps.project.tasks.add"
    assert registry.find("tests.apps.project.tasks.add") is tasks.add.definition
    assert tasks.add.__name__ == "add"
    assert tasks.hold.__doc__ is not None
    assert inspect.unwrap(tasks.add) is tasks.add.definition.function

    assert tasks.add(1, b=2) == 3
    assert repr(tasks.add) == "<task tests.apps.project.tasks.add>"

    for one, kept in ((tasks.mail, ("mail", 7, "sync")), (tasks.anoop, (None, 100, "async"))):
        assert (one.definition.queue, one.definition.priority, one.definition.lane) == kept

    again = task(tasks.add.definition.function)  # as a reload does
    assert (
        registry.find("tests.apps.project.tasks.add")
        is again.definition
        is not tasks.add.definition
    )


def nothing() -> None: ...


def stream() -> Iterator[int]:
    yield 1


def model(user: User) -> None: ...


NO_NAMES = ("", "x" * 10_000, "tab\tname", 7)


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda: task(model), r"'user' is a model \(User\).*user\.pk"),
        (lambda: task(functools.partial(nothing)), "def"),
        (lambda: task(task(nothing)), "twice"),
        (lambda: task(stream), "generator"),
        *[
            (lambda wrong=wrong: task(priority=wrong)(nothing), "priority")
            for wrong in (0, 101, True)
        ],
        *[(lambda wrong=wrong: task(queue=wrong)(nothing), "queue") for wrong in ("", 1)],
        *[
            (lambda wrong=wrong: task(name=wrong)(nothing), "1 to 255 printable characters")
            for wrong in NO_NAMES
        ],
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_defined(
    define: Callable[[], Any], said: str
) -> None:
    with pytest.raises(TaskDefinitionError, match=said) as caught:
        define()

    assert len(str(caught.value)) < 500, "without repeating all of a long name"


VERBS = {
    "delay": r"use send\(...\)",
    "apply_async": r"with_options\(.*delay=...\).send",
    "s": "no sig",
}
OPTIONS = {
    "bind": r"current_task\(\) has its id",
    "base": "decorator of your own",
    "retry_polcy": r"did you mean retry_policy=\?",
}


def test_a_verb_of_another_queue_raises_with_the_name_used_here() -> None:
    """A verb or an option of another task queue raises an error with its name in this one."""
    for verb, said in VERBS.items():
        for sender in (tasks.add, tasks.add.with_options(priority=1)):
            with pytest.raises(AttributeError, match=f"object has no attribute '{verb}': .*{said}"):
                getattr(sender, verb)(1)

    with pytest.raises(AttributeError, match="'TaskFunction' object has no attribute 'dealy'$"):
        tasks.add.dealy  # type: ignore[attr-defined]  # noqa: B018

    for option, said in OPTIONS.items():
        for takes, name in ((task, "task"), (tasks.add.with_options, "with_options")):
            with pytest.raises(
                TypeError,
                match=rf"{name}\(\) got an unexpected keyword argument '{option}': .*{said}",
            ):
                takes(**{option: 1})


def test_the_public_names_can_be_imported_before_django_setup() -> None:
    """The public names can be imported before Django is set up, without importing Django.

    A settings module, or an app's ``__init__``, may import them, so no model may be imported with
    them.
    """
    program = (
        "import horsies_django as front, sys; print([m for m in sys.modules if "
        "m.startswith(('django.', 'psycopg'))]);"
        "print([name for name in front.__all__ if getattr(front, name).__name__ != name])"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("[]\n[]\n", "", 0)

    with pytest.raises(AttributeError, match="tsak"):
        horsies_django.tsak  # noqa: B018


FLOW = """
from horsies_django import Workflow
flow = Workflow("one")
flow.add(welcome)
flow.send()
"""


def own(name: str, options: str = "") -> str:
    return f"\nfrom horsies_django import task\n@task{options}\ndef {name}() -> None: ...\n"


def plain(name: str) -> str:
    return f"\nfrom tests.apps.errands.api import task\n@task()\ndef {name}(): ...\n"


FORMS = {
    "send": own("welcome") + "welcome.send()",
    "send_many": own("welcome") + "welcome.send_many([{}])",
    "workflow": own("welcome") + FLOW,
    "enqueue": plain("welcome") + "welcome.enqueue()",
}


def shell(code: str) -> None:
    """Run code as ``manage.py shell -c`` does."""
    call_command("shell", command=code, verbosity=0)


def script(code: str) -> None:
    """Run code as the main module of a process."""
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", [shell, script])
def test_a_task_that_no_worker_can_import_is_refused_when_sent(
    run: Callable[[str], None], form: str
) -> None:
    """A task that no worker can import is refused when it is sent."""
    with pytest.raises(
        TaskSendError, match=r"welcome: defined in .*define tasks in the tasks\.py of an app"
    ):
        run(FORMS[form])

    assert not Task.objects.exists()
    assert not WorkflowRun.objects.exists()


def test_a_task_of_a_script_needs_a_name_of_its_own() -> None:
    """A task of a script with a name of its own can be sent, for a worker in this process.

    A task of a shell cannot be sent even with such a name.
    """
    code = own("welcome", "(name='shop.welcome')") + "welcome.send()"

    with pytest.raises(TaskSendError, match=r"shell\.welcome: defined in a shell"):
        shell(code)

    registry._tasks.pop("shop.welcome")
    script(code)
    assert Task.objects.get().task_name == "shop.welcome"


def test_the_module_of_a_console_is_none_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    # As manage.py shell does.
    InteractiveConsole(locals={}).runcode(compile(FORMS["send"], "<console>", "exec"))

    assert (
        "TaskSendError: [VALIDATION_FAILED] None.welcome: defined in a shell"
        in capsys.readouterr().err
    )
    assert not Task.objects.exists()


Site = Callable[..., None]
BACKEND = "horsies_django.backends.HorsiesBackend"
URLS = "from depot import views\nurlpatterns = []"


@pytest.fixture
def depot(add_app: AddApp, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Site]:
    """Yield a function that writes the modules of an installed app ``depot``, by their names."""

    def write(**modules: str) -> None:
        add_app("depot", **modules)
        settings.ROOT_URLCONF = "depot.urls"
        clear_url_caches()

    # Otherwise the tasks of the test project would be forgotten with those of the site.
    registry.autodiscover()
    for name in ("_tasks", "sure"):
        monkeypatch.setattr(registry, name, type(getattr(registry, name))(getattr(registry, name)))
    monkeypatch.setattr(registry, "_sent", set())

    yield write
    clear_url_caches()


def warned(first: str = "") -> list[tuple[str, str, Any]]:
    """Return message, hint and place of each warning of the check.

    The URLconf is imported first if ``first`` requires that.
    """
    if first == "the urlconf":
        assert get_resolver().url_patterns == []

    found = [message for message in run_checks(tags=["horsies"]) if message.id == "horsies.W005"]
    return [(message.msg, str(message.hint), message.obj) for message in found]


FIRST = pytest.mark.parametrize("first", ["the urlconf", "the modules of tasks"])


@FIRST
def test_tasks_that_only_the_urlconf_imports_are_named(depot: Site, first: str) -> None:
    """Tasks that only the URLconf imports are named, with a remedy.

    Fails if: the result depends on which check Django happens to run first.
    """
    depot(urls=URLS, views=f"from depot import jobs{own('remind')}", jobs=plain("tidy"))

    ((message, hint, where),) = warned(first)

    assert message == (
        "Workers do not necessarily import depot.jobs (depot.jobs.tidy); depot.views "
        "(depot.views.remind)."
    )
    assert '"MODULES": ["depot.jobs", "depot.views"]' in hint
    assert hint.startswith(
        "Move the tasks to the tasks.py of an app in INSTALLED_APPS, import the modules there, or "
    )
    assert where == "depot.jobs, depot.views"

    with override_settings(
        TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"MODULES": where.split(", ")}}}
    ):
        assert warned() == []


IMPORTS = {
    "a task of django.tasks": ("from .jobs import tidy", plain),
    "a task of ours": ("from .jobs import tidy", own),
    "the module": ("from . import jobs", plain),
    "the module by its whole name": ("import depot.jobs", plain),
    "a class, by way of another module": ("from .between import Between", plain),
}


@pytest.mark.parametrize("form", IMPORTS)
@FIRST
def test_tasks_that_a_module_of_tasks_imports_are_not_named(
    depot: Site, form: str, first: str
) -> None:
    """Tasks that a module of tasks imports are not named.

    Fails if: a task that is defined beside ``tasks.py`` and imported there counts as unknown to
    workers.
    """
    line, kind = IMPORTS[form]
    between = "from .jobs import tidy\nclass Between: ..."
    depot(urls=URLS, views="from . import jobs", jobs=kind("tidy"), tasks=line, between=between)

    assert warned(first) == []
    assert "depot.jobs.tidy" in registry.names()


def test_tasks_that_django_imports_when_it_starts_are_not_named(
    depot: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a module that ``AppConfig.ready()`` imports are not named.

    Fails if: they are named although each process imports them.
    """
    depot(urls="urlpatterns = []", jobs=own("tidy"))

    with monkeypatch.context() as starting:
        starting.setattr(apps, "ready", False)
        import_module("depot.jobs")

    assert "depot.jobs.tidy" in registry.names()
    assert warned() == []


def test_lazy_objects_of_a_module_of_tasks_are_not_evaluated(depot: Site) -> None:
    """Lazy objects in a module of tasks are not evaluated.

    Fails if: ``isinstance()`` evaluates them, with a query during ``manage.py check``.
    """
    lazy = (
        "from django.utils.functional import SimpleLazyObject\nLAZY = SimpleLazyObject(lambda: 1 / "
        "0)"
    )
    depot(urls=URLS, views=own("remind"), tasks=lazy)

    assert len(warned()) == 1


def test_tasks_of_tests_are_not_named(depot: Site) -> None:
    """Tasks that are defined in tests are not named.

    Fails if: a test runner runs the checks, and each project with tasks in its tests gets a
    warning.
    """
    for place in (
        "shop.tests.test_mail",
        "shop.tests",
        "tests.helpers",
        "shop.conftest",
        "test_mail",
    ):
        assert registry.TESTS.search(place)
    assert not registry.TESTS.search("shop.contests.latest")

    depot(urls="from depot import tests\nurlpatterns = []", tests=own("tidy"))
    assert warned() == []
    assert "depot.tests.tidy" in registry.names()


@pytest.mark.parametrize(("imports", "lines"), [("", 1), ("from .jobs import tidy", 0)])
def test_a_task_that_workers_may_not_import_is_logged_once(
    depot: Site, caplog: pytest.LogCaptureFixture, imports: str, lines: int
) -> None:
    """The first send of a task that workers may not import is logged.

    The message contains the line for the settings.

    Fails if: a site imports no module of tasks, and so cannot find what these modules import.
    """
    depot(jobs=plain("tidy"), tasks=imports)
    tidy = import_module("depot.jobs").tidy

    for _ in range(2):
        tidy.enqueue()

    said = [record.getMessage() for record in caplog.records if record.name == "horsies.send"]
    assert len(said) == lines

    for line in said:
        assert line.startswith(
            "depot.jobs.tidy was sent, but workers do not necessarily import depot.jobs"
        )
        assert '"MODULES": ["depot.jobs"]' in line


@pytest.mark.django_db(transaction=True)
def test_the_start_of_a_worker_names_them(depot: Site, caplog: pytest.LogCaptureFixture) -> None:
    depot(views=own("remind"))
    import_module("depot.views")

    with caplog.at_level(logging.WARNING, logger="horsies.worker"):
        refuse_unready_tasks(config())

    assert "do not necessarily import depot.views (depot.views.remind): move the" in caplog.text
    assert '"MODULES": ["depot.views"]' in caplog.text


def test_the_error_of_an_unknown_task_names_the_remedy() -> None:
    """The error of an unknown task contains the setting that makes workers import its module."""
    put(name="depot.jobs.tidy")
    drain(raise_errors=False)

    error = Task.objects.get().result["err"]
    assert error["error_code"] == "WORKER_RESOLUTION_ERROR"
    assert (
        '"MODULES": ["depot.jobs"] to the OPTIONS of a HorsiesBackend in TASKS' in error["message"]
    )
