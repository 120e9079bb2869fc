"""What ``manage.py check`` says about a HorsiesBackend, and which modules of tasks are imported by whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.checks import run_checks
from django.test import override_settings

from horsies_django.backends.options import read
from horsies_django.core.errors import StopRequested
from horsies_django.tasks import registry
from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import InvalidTaskBackend, api, task_backends

BACKEND = "horsies_django.backends.HorsiesBackend"
ROOT = Path(__file__).parents[2]
FAR = "tests.apps.errands.elsewhere.far_away"


def configured(**params: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], **params}})


def said() -> list[tuple[str, str, Any]]:
    return [(str(message.id), message.msg, message.obj) for message in task_backends["default"].check()]


def test_a_backend_that_is_right_reports_nothing() -> None:
    with configured(
        OPTIONS={"MAX_ATTEMPTS": 3, "BACKOFF": [1, 2], "RETRY_ON": OSError, "MODULES": ["tests.apps.errands"]}
    ):
        assert said() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"MAX_ATTEMTS": 3}, ["'MAX_ATTEMTS'", "did you mean 'MAX_ATTEMPTS'?"]),
        ({"prefix": 3}, ["there are MAX_ATTEMPTS, BACKOFF"]),
        ({"MAX_ATTEMPTS": "3"}, ["max_attempts must be an int"]),
        ({"BACKOFF": "no.such.function"}, ["BACKOFF", "cannot be imported"]),
        ({"BACKOFF": [1, -1]}, ["backoff must be seconds"]),
        ({"RETRY_ON": ["shop.errors.Gone"]}, ["RETRY_ON", "'shop.errors.Gone' cannot be imported"]),
        ({"RETRY_ON": 7}, ["must be a list of exception classes"]),
        ({"TIMEOUT_MS": "1s"}, ["timeout_ms must be milliseconds"]),
        ({"MODULES": "shop.jobs"}, ["must be a list of dotted names"]),
        ({"MODULES": ["shop/jobs.py"]}, ["must be a list of dotted names"]),
        ([], ["TASKS['default']['OPTIONS'] must be a dict, not list"]),
    ],
)
def test_an_option_that_is_wrong_is_reported_and_nothing_is_sent(options: Any, words: list[str]) -> None:
    """Naive: the option is ignored, or the backend cannot be made and the check cannot run."""
    with configured(OPTIONS=options):
        ((id_, message, where),) = said()
        assert (id_, where) == ("horsies.E025", "TASKS['default']")
        assert [word for word in words if word not in message] == []
        with pytest.raises(InvalidTaskBackend):
            tasks.note.enqueue()


def test_a_queue_that_horsies_does_not_declare_is_reported() -> None:
    with configured(QUEUES=["mail", "nowhere", "anywhere"]):
        ((id_, message, _),) = said()
        assert id_ == "horsies.E026"
        assert message.endswith("names queues that are not declared: anywhere, nowhere.")


def test_a_site_without_the_app_is_told_to_add_it(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "horsies_django"]
    assert [id_ for id_, _, _ in said()] == ["horsies.E027"]


@pytest.mark.skipif(django.VERSION < (6, 0), reason="the app of the backport registers its own check")
def test_django_runs_the_check_though_nothing_imports_django_tasks() -> None:
    """Naive: Django's check of TASKS is registered when django.tasks is imported, which no module of the site may do."""
    with configured(OPTIONS={"MAX_ATTEMPTS": 0}):
        assert "horsies.E025" in [message.id for message in run_checks()]
    names = "'django.tasks' in sys.modules, 'horsies_django.backends.native' in sys.modules"
    code = f"import sys, django; django.setup(); print({names})"
    assert output(code) == "True False"


def output(code: str, **settings: str) -> str:
    """Run code in a fresh interpreter with the settings of the tests, and return what it prints."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "HORSIES_TEST_SITE": "0", **settings}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_decorating_while_apps_load_imports_no_model() -> None:
    """Naive: AppRegistryNotReady, because the backend imports models, and Django makes it at the first @task."""
    code = (
        "import django\nfrom django.conf import settings\n"
        "settings.INSTALLED_APPS += ['tests.apps.errands.early.Early']\n"
        "django.setup()\n"
        "from horsies_django.tasks import registry\nprint(registry.find('tests.apps.errands.elsewhere.far_away').codec)"
    )
    assert output(code) == "plain"


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the module outside of the tasks modules, as a process does that never imported it."""
    monkeypatch.setattr(registry, "_tasks", {name: task for name, task in registry._tasks.items() if name != FAR})
    monkeypatch.delitem(sys.modules, "tests.apps.errands.elsewhere", raising=False)


def test_a_module_of_the_options_is_imported_like_the_tasks_of_apps(forgotten: None) -> None:
    with configured(OPTIONS={"MODULES": ["tests.apps.errands.elsewhere"]}):
        assert registry.autodiscover() == []
        assert FAR in registry.names()
    with configured(OPTIONS={"MODULES": ["no.such.module"]}):
        (problem,) = registry.autodiscover()
        assert problem.module == "no.such.module"


@pytest.mark.parametrize("name", [FAR, "tests.apps.errands.leaves.no_task", "os.system"])
def test_a_name_imports_nothing_and_so_ends_nobody(forgotten: None, settings: Any, name: str) -> None:
    """Naive: whoever can write a row makes workers import any module of an installed app, one that calls sys.exit as well."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.apps.errands"]
    before = set(sys.modules)
    assert registry.find(name) is None
    assert registry.find_or_import(name) is None
    assert set(sys.modules) - before <= {"tests.apps.errands.tasks"}


def test_a_module_of_tasks_that_exits_is_a_problem_that_names_it() -> None:
    with configured(OPTIONS={"MODULES": ["tests.apps.errands.leaves"]}):
        (problem,) = registry.autodiscover()
        assert problem.module == "tests.apps.errands.leaves"
        (message,) = [message for message in run_checks(tags=["horsies"]) if message.obj == problem.module]
    assert message.id == "horsies.E011"
    assert "SystemExit: 3" in message.msg


@pytest.mark.parametrize("meant", [StopRequested, KeyboardInterrupt])
def test_what_stops_this_process_is_no_problem_of_the_module_that_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meant: type[BaseException]
) -> None:
    (tmp_path / "interrupted_jobs.py").write_text(
        f"from horsies_django.core.errors import StopRequested\nraise {meant.__name__}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(meant):
        registry.import_all(["interrupted_jobs"])


@pytest.mark.django_db
def test_the_result_of_a_task_whose_module_only_workers_import_has_its_task(forgotten: None) -> None:
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


def test_options_are_read_again_after_a_problem_that_may_pass() -> None:
    """Naive: RETRY_ON names a class of a module that cannot be imported while apps load, and the failure is kept for ever."""
    backend = task_backends["default"]
    with configured(OPTIONS={"MAX_ATTEMPTS": 2}):
        backend = task_backends["default"]
        assert backend.horsies_options is backend.horsies_options
    with configured(OPTIONS={"RETRY_ON": ["no.such.Error"]}):
        backend = task_backends["default"]
        assert backend.horsies_options is not backend.horsies_options
    assert read({}).problems == ()
    assert api.__name__ in ("django.tasks", "django_tasks")
