"""Modules of tasks that no worker is sure to import: who says so, what to do, and that nobody says it of one that is imported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.test import override_settings
from django.urls import clear_url_caches, get_resolver

from horsies_django.conf import config
from horsies_django.core.records import Reply
from horsies_django.tasks import registry, unsure
from horsies_django.tasks.context import CurrentTask
from horsies_django.worker.child.run_task import Refused, resolve
from horsies_django.worker.startup import refuse_unready_project

Site = Callable[..., None]
BACKEND = "horsies_django.backends.HorsiesBackend"
URLS = "from depot import views\nurlpatterns = []"
OWN = """
from horsies_django import task
@task
def {name}() -> None: ...
"""
PLAIN = """
from tests.apps.errands.api import task
@task()
def {name}(): ...
"""


@pytest.fixture
def depot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Site]:
    """Give a function that writes the modules of an installed app ``depot``, by their names."""
    root = tmp_path / "site"

    def write(**modules: str) -> None:
        (root / "depot").mkdir(parents=True)
        for name in ("__init__", *modules):
            (root / "depot" / f"{name}.py").write_text(modules.get(name, ""))
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "depot"]
        settings.ROOT_URLCONF = "depot.urls"
        clear_url_caches()

    registry.autodiscover()  # else the tasks of the test project would be forgotten with those of the site
    for name in ("_tasks", "sure"):
        monkeypatch.setattr(registry, name, type(getattr(registry, name))(getattr(registry, name)))
    monkeypatch.setattr(unsure, "_sent", set())
    monkeypatch.syspath_prepend(root)
    yield write
    clear_url_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "depot"]:
        del sys.modules[name]


def warned() -> list[tuple[str, str, Any]]:
    """Return message, hint and place of each warning of the check."""
    found = [message for message in run_checks(tags=["horsies"]) if message.id == "horsies.W005"]
    return [(message.msg, str(message.hint), message.obj) for message in found]


@pytest.mark.parametrize("first", ["the urlconf", "the modules of tasks"])
def test_tasks_that_only_the_urlconf_imports_are_named_with_what_to_do(depot: Site, first: str) -> None:
    """Naive: whether the check knows them depends on which check Django happens to run first."""
    depot(urls=URLS, views=f"from depot import jobs{OWN.format(name='remind')}", jobs=PLAIN.format(name="tidy"))
    if first == "the urlconf":
        assert get_resolver().url_patterns == []
    ((message, hint, where),) = warned()
    assert message == ("No worker is sure to import depot.jobs (depot.jobs.tidy); depot.views (depot.views.remind).")
    assert '"MODULES": ["depot.jobs", "depot.views"]' in hint
    assert hint.startswith("Move them to the tasks.py of an app in INSTALLED_APPS, import them there, or add ")
    assert where == "depot.jobs, depot.views"


IMPORTS = {
    "a task of django.tasks": ("from .jobs import tidy", PLAIN),
    "a task of ours": ("from .jobs import tidy", OWN),
    "the module": ("from . import jobs", PLAIN),
    "the module by its whole name": ("import depot.jobs", PLAIN),
    "a class, by way of another module": ("from .between import Between", PLAIN),
}


@pytest.mark.parametrize("form", IMPORTS)
@pytest.mark.parametrize("first", ["the urlconf", "the modules of tasks"])
def test_tasks_that_a_module_of_tasks_imports_are_not_named(depot: Site, form: str, first: str) -> None:
    """Naive: a task that is defined beside tasks.py and imported there counts as one that no worker knows."""
    line, kind = IMPORTS[form]
    between = "from .jobs import tidy\nclass Between: ..."
    depot(urls=URLS, views="from . import jobs", jobs=kind.format(name="tidy"), tasks=line, between=between)
    if first == "the urlconf":
        assert get_resolver().url_patterns == []
    assert warned() == []
    assert "depot.jobs.tidy" in registry.names()


def test_a_module_of_the_options_is_not_named(depot: Site) -> None:
    depot(urls="from depot import jobs\nurlpatterns = []", jobs=PLAIN.format(name="tidy"))
    assert get_resolver().url_patterns == []
    assert len(warned()) == 1
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"MODULES": ["depot.jobs"]}}}):
        assert warned() == []


def test_tasks_that_django_imports_when_it_starts_are_not_named(depot: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: the tasks of a module that AppConfig.ready() imports are named, though each process knows them."""
    depot(urls="urlpatterns = []", jobs=OWN.format(name="tidy"))
    with monkeypatch.context() as starting:
        starting.setattr(apps, "ready", False)
        import_module("depot.jobs")
    assert "depot.jobs.tidy" in registry.names()
    assert warned() == []


def test_lazy_objects_of_a_module_of_tasks_are_not_asked_what_they_are(depot: Site) -> None:
    """Naive: isinstance() evaluates them, with a query while manage.py checks."""
    lazy = "from django.utils.functional import SimpleLazyObject\nLAZY = SimpleLazyObject(lambda: 1 / 0)"
    depot(urls=URLS, views=OWN.format(name="remind"), tasks=lazy)
    assert len(warned()) == 1


@pytest.mark.parametrize("place", ["shop.tests.test_mail", "shop.tests", "tests.helpers", "shop.conftest", "test_mail"])
def test_tasks_of_tests_are_not_named(place: str) -> None:
    assert unsure.TESTS.search(place)
    assert not unsure.TESTS.search("shop.contests.latest")


def test_tasks_of_tests_that_were_imported_are_not_named(depot: Site) -> None:
    """Naive: test runners run the checks, too, and then each project with tasks in its tests is warned."""
    depot(urls="from depot import tests\nurlpatterns = []", tests=OWN.format(name="tidy"))
    assert warned() == []
    assert "depot.tests.tidy" in registry.names()


@pytest.mark.django_db
def test_the_first_send_of_such_a_task_is_logged_once_with_the_line_for_the_settings(
    depot: Site, caplog: pytest.LogCaptureFixture
) -> None:
    depot(jobs=PLAIN.format(name="tidy"), tasks="")
    tidy = import_module("depot.jobs").tidy
    with caplog.at_level(logging.WARNING, logger="horsies.send"):
        for _ in range(2):
            tidy.enqueue()
    (line,) = [record.getMessage() for record in caplog.records if "sure to import" in record.getMessage()]
    assert line.startswith("depot.jobs.tidy is sent, but no worker is sure to import depot.jobs")
    assert '"MODULES": ["depot.jobs"]' in line


@pytest.mark.django_db
def test_the_first_send_of_a_task_that_a_module_of_tasks_imports_logs_nothing(
    depot: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Naive: a site imports no module of tasks, so it does not know what they import."""
    depot(jobs=PLAIN.format(name="tidy"), tasks="from .jobs import tidy")
    tidy = import_module("depot.jobs").tidy
    with caplog.at_level(logging.WARNING, logger="horsies.send"):
        tidy.enqueue()
    assert "sure to import" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_the_start_of_a_worker_names_them(depot: Site, caplog: pytest.LogCaptureFixture) -> None:
    depot(views=OWN.format(name="remind"))
    import_module("depot.views")
    with caplog.at_level(logging.WARNING, logger="horsies.worker"):
        refuse_unready_project(config())
    assert "no worker is sure to import depot.views (depot.views.remind): move them" in caplog.text
    assert '"MODULES": ["depot.views"]' in caplog.text


def test_the_error_of_an_unknown_task_says_what_makes_workers_import_it() -> None:
    with pytest.raises(Refused) as caught:
        resolve(CurrentTask(name="depot.jobs.tidy"), "{}")
    reply: Reply = caught.value.reply
    assert reply.error_code == "WORKER_RESOLUTION_ERROR"
    assert '"MODULES": ["depot.jobs"] to the OPTIONS of a HorsiesBackend in TASKS' in str(reply.error_message)
