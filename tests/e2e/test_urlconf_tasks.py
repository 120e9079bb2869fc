"""Tasks in modules that only the URLconf imports: ``manage.py`` checks it, so the worker knows them, and so do its children."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from horsies_django import get_handle
from tests.conftest import put, wait_until
from tests.support.changing_project import Project
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
URLS = """
    from django.urls import path

    from shop import {module}

    urlpatterns = [path("", {module}.page)]
"""
VIEWS = """
    import os

    from django.contrib.auth.models import Group
    from django.db.models.signals import post_save
    from django.dispatch import receiver
    from django.http import HttpResponse
    from horsies_django import task

    SAVED = []


    def page(request):
        return HttpResponse("a page of the site")


    @receiver(post_save, sender=Group)
    def note(instance, **kwargs):
        SAVED.append(instance.name)


    @task
    def remind(name: str) -> tuple[list[str], int]:
        Group.objects.create(name=name)
        return SAVED, os.getpid()
"""
FRAGILE = """
    import os
    import sys

    from horsies_django import task

    if "IMPORTED_ONCE" in os.environ:
        sys.exit("only one process may import this")
    os.environ["IMPORTED_ONCE"] = "yes"


    def page(request): ...


    @task
    def remind() -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def start(worker: Start, project: Project) -> Start:
    """Give a function that starts a worker of the project by its manage.py."""
    return lambda *options: worker(*options, program=("manage.py", "horsies_worker"), **project.environment).ready()


def result(name: str, /, **kwargs: Any) -> Any:
    (id_,) = put(name=name, kwargs=[json.dumps(kwargs)])
    return get_handle(id_).get(timeout_ms=60_000)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_task_in_a_module_of_views_runs_in_a_child_in_which_the_receivers_of_the_module_are_called(
    project: Project, start: Start, method: str
) -> None:
    """Naive: the worker claims it, and its child, which imports the modules of tasks only, fails it at the first attempt."""
    project.write("shop/views.py", VIEWS)
    project.write("conf/urls.py", URLS.format(module="views"))
    process = start("--processes=1", f"--start-method={method}")
    saved, pid = result("shop.views.remind", name="a reader").unwrap()
    assert saved == ["a reader"]
    assert pid not in (process.process.pid, os.getpid())
    assert process.stop() == 0


def test_a_module_that_the_children_cannot_import_is_named_and_only_its_tasks_fail(
    project: Project, start: Start
) -> None:
    project.write("shop/fragile.py", FRAGILE)
    project.write("conf/urls.py", URLS.format(module="fragile"))
    process = start("--processes=1")
    assert result("shop.fragile.remind").err_value.error_code == "WORKER_RESOLUTION_ERROR"
    assert result("shop.tasks.version").unwrap() == "the first"
    wait_until(lambda: "the module shop.fragile cannot be imported by this child" in process.log, "it is named")
    assert "SystemExit('only one process may import this')" in process.log
    assert process.stop() == 0
