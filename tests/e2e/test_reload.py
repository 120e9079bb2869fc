"""``horsies_worker --reload``: changed code runs after an ordinary restart.

Broken code does not end the command, and Ctrl-C ends all its processes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies_django import TaskResult, get_handle
from tests.conftest import put, wait_until
from tests.support.sites import MANAGE
from tests.support.workers import ROOT, Start, WorkerProcess, gone

SETTINGS = """
    from tests.settings import *

    INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
    ROOT_URLCONF = "conf.urls"
"""
SITE_URLS = """
    from django.http import HttpResponse
    from django.urls import path

    urlpatterns = [path("", lambda request: HttpResponse("a page of the site"))]
"""
TASKS = """
    import os
    import time

    from horsies_django import task


    @task
    def version() -> str:
        return "{version}"


    @task
    def price() -> int:
        from shop.prices import PRICE

        return PRICE


    @task
    def waits(begun: str, gate: str) -> str:
        open(begun, "w").close()
        while not os.path.exists(gate):
            time.sleep(0.02)
        return "{version}"
"""


class Project:
    """A project with the app ``shop`` and the settings of the tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

        self.write("manage.py", MANAGE)
        self.write("conf/__init__.py", "")
        self.write("conf/settings.py", SETTINGS)
        self.write("conf/urls.py", SITE_URLS)
        self.write("shop/__init__.py", "")
        self.write("shop/prices.py", "PRICE = 7")
        self.tasks("the first")

    def tasks(self, version: str) -> Path:
        """Write the tasks of a version."""
        return self.write("shop/tasks.py", TASKS.format(version=version))

    def write(self, name: str, text: str) -> Path:
        """Write a file in one step, as editors do, so that no process sees half of it."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)

        new = path.with_suffix(".new")
        new.write_text(textwrap.dedent(text))
        new.replace(path)
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process of the project."""
        return {
            "CWD": str(self.directory),
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "conf.settings",
        }


WAITING = "waiting for a change of the code"
SHAPES = [("--processes=1",), ("--processes=0",)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def reloaded(worker: Start, project: Project) -> Start:
    """Return a function that starts a worker of the project with ``--reload``."""

    def start(*options: str) -> WorkerProcess:
        options = options or ("--processes=1",)
        return worker(
            "--reload", *options, program=("manage.py", "horsies_worker"), **project.environment
        )

    return start


def outcome(name: str, /, *, module: str = "tasks", **kwargs: Any) -> TaskResult[Any]:
    """Send a task of the project, and wait for its result."""
    (id_,) = put(name=f"shop.{module}.{name}", kwargs=[json.dumps(kwargs)])
    return get_handle(id_).get(timeout_ms=60_000)


def result(name: str, /, **kwargs: Any) -> Any:
    return outcome(name, **kwargs).unwrap()


def starts(process: WorkerProcess) -> int:
    return process.log.count("Worker started")


def started_again(process: WorkerProcess, times: int = 2) -> None:
    wait_until(
        lambda: starts(process) >= times or process.process.poll() is not None,
        "it has started again",
    )
    assert process.process.poll() is None


def busy(tmp_path: Path) -> tuple[Any, Path]:
    """Run a task until a file exists. Return its handle and that file."""
    begun = tmp_path / "begun"
    gate = tmp_path / "gate"
    (id_,) = put(
        name="shop.tasks.waits", kwargs=[json.dumps({"begun": str(begun), "gate": str(gate)})]
    )
    wait_until(begun.exists, "the task runs")
    return get_handle(id_), gate


def ctrl_c(process: WorkerProcess) -> None:
    """Send the signal to every process of the group, as a terminal does."""
    os.killpg(process.process.pid, signal.SIGINT)


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
def test_changed_code_runs_after_a_restart(
    reloaded: Start, project: Project, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Changed code runs after a restart, and the log names the changed file.

    The restart ends tasks that exceed the shutdown timeout.

    Fails if: Django's autoreload runs the worker in a thread, which cannot handle signals, and
    exits in the middle of tasks.
    """
    process = reloaded(*options, "--shutdown-timeout=0.5").ready()
    assert result("version") == "the first"
    (first,) = psutil.Process(process.process.pid).children()

    path = project.tasks("the second one")
    started_again(process)
    assert (result("version"), result("price")) == ("the second one", 7)
    assert process.log.count(f"{path} changed: restarting the worker") == 1
    gone([first])

    # Only tasks import this module, so only children load it.
    project.write("shop/prices.py", "PRICE = 1_000")
    started_again(process, 3)
    assert result("price") == 1_000

    handle, _gate = busy(tmp_path)
    project.tasks("the third one")
    started_again(process, 4)
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"
    assert result("version") == "the third one"

    processes = process.family()
    assert process.stop() == 0
    gone(processes)
    assert (starts(process), WAITING in process.log) == (4, False)


def test_code_that_cannot_be_imported_waits_for_the_next_change(
    reloaded: Start, project: Project
) -> None:
    """Code that cannot be imported is logged, and the next change starts the worker.

    Fails if: the command exits, or starts the broken code again and again.
    """
    project.write("shop/models.py", "")
    process = reloaded().ready()

    for times, name in enumerate(("shop/tasks.py", "conf/settings.py", "shop/models.py"), 1):
        good = (project.directory / name).read_text()
        project.write(name, f"def broken_{times}(:")
        wait_until(
            lambda most=2 * times - 1: process.log.count(WAITING) == most,
            "it waits for the next change",
        )

        assert process.log.count("SyntaxError") >= times
        assert process.process.poll() is None
        assert not psutil.Process(process.process.pid).children()

        project.write(name, "def still_broken(:")
        wait_until(
            lambda most=2 * times: process.log.count(WAITING) == most, "it has tried that, too"
        )

        project.write(name, f"{good}\n# repaired")
        started_again(process, times + 1)
        assert result("version") == "the first"
        assert process.log.count(WAITING) == 2 * times

    assert process.stop() == 0


def test_options_that_are_wrong_end_it_at_once(reloaded: Start) -> None:
    assert reloaded("--processes=many").wait() == 2

    process = reloaded("--until-empty")
    assert process.wait() == 1
    assert "cannot be combined with --until-empty" in process.log


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["everybody", "the outer process"])
def test_a_second_ctrl_c_ends_running_tasks(
    reloaded: Start, tmp_path: Path, send: Callable[[int, int], None], times: int
) -> None:
    """The first Ctrl-C lets running tasks finish, and a second one ends them.

    It does not matter which processes get the signals.

    Fails if: a terminal sends the signal to both processes, the outer process passes it on, and the
    inner one counts two signals and kills the tasks.
    """
    process = reloaded().ready()
    handle, gate = busy(tmp_path)
    processes = process.family()

    send(process.process.pid, signal.SIGINT)
    wait_until(lambda: "no more tasks are claimed" in process.log, "the signal is taken")
    assert handle.info().status == "RUNNING"

    if times == 2:
        send(process.process.pid, signal.SIGINT)
    else:
        gate.touch()

    assert process.wait() == times - 1
    assert handle.get(0).is_ok() == (times == 1)
    gone(processes)
    assert starts(process) == 1


def test_a_busy_task_finishes_before_the_restart(
    reloaded: Start, project: Project, tmp_path: Path
) -> None:
    """A busy task finishes before the restart, and Ctrl-C during the restart is a first Ctrl-C.

    Fails if: the reloader sends SIGTERM, so Ctrl-C during the restart is the second signal and
    kills the task.
    """
    process = reloaded().ready()
    handle, gate = busy(tmp_path)

    project.tasks("the second one")
    wait_until(lambda: "no more tasks are claimed" in process.log, "the worker stops in order")
    project.tasks("the third one, which is longer")
    assert handle.info().status == "RUNNING"

    ctrl_c(process)
    gate.touch()

    assert process.wait() == 0
    assert handle.get(0).ok_value == "the first"
    assert starts(process) == 1


def test_a_worker_whose_outer_process_was_killed_stops_in_order(
    reloaded: Start, tmp_path: Path
) -> None:
    """Fails if: the worker runs on with old code, and no process restarts it or sends it Ctrl-C."""
    process = reloaded().ready()
    handle, gate = busy(tmp_path)
    processes = process.family()

    process.process.kill()
    wait_until(lambda: "no more tasks are claimed" in process.log, "the worker notices")
    gate.touch()

    gone(processes)
    assert handle.get(0).ok_value == "the first"


# Tasks in modules that only the URLconf imports. ``manage.py`` checks the URLconf, so the worker
# has these tasks, and its children have them, too.


URLS = """
    from django.urls import path

    from shop import fragile, views

    urlpatterns = [path("", views.page)]
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


    @task
    def remind() -> None: ...
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_task_in_a_module_of_views_runs_in_a_child(
    project: Project, worker: Start, method: str
) -> None:
    """A task in a module of views runs in a child, which calls the receivers of the module, too.

    A module that fresh interpreters cannot import is named, and only its tasks fail.

    Fails if: the worker claims the task, and its child, which imports the modules of tasks only,
    fails it at the first attempt.
    """
    for name, text in (
        ("shop/views.py", VIEWS),
        ("shop/fragile.py", FRAGILE),
        ("conf/urls.py", URLS),
    ):
        project.write(name, text)

    how = {"program": ("manage.py", "horsies_worker"), **project.environment}
    process = worker("--processes=1", f"--start-method={method}", **how).ready()

    saved, pid = result("remind", module="views", name="a reader")
    assert saved == ["a reader"]
    assert pid not in (process.process.pid, os.getpid())

    if method == "spawn":
        assert outcome("remind", module="fragile").err_value.error_code == "WORKER_RESOLUTION_ERROR"
        assert result("version") == "the first"
        wait_until(
            lambda: "this child cannot import the module shop.fragile" in process.log,
            "it is named",
        )
        assert "SystemExit('only one process may import this')" in process.log

    assert process.stop() == 0


# ``horsies_dev``: the site and a worker in one terminal, which end together


class Desk:
    """A ``horsies_dev`` with its address."""

    def __init__(
        self, worker: Start, project: Project, *options: str, port: int | None = None
    ) -> None:
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]

        self.address = f"127.0.0.1:{port}"
        program = ("manage.py", "horsies_dev", self.address, "--processes=1")
        self.process = worker(
            *options, program=program, PYTHONUNBUFFERED="1", **project.environment
        )

    @property
    def log(self) -> str:
        return self.process.log

    def page(self) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self.address}/", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return None

    def ready(self) -> Desk:
        self.process.ready()
        wait_until(self.page, "the site answers")
        return self


def test_one_ctrl_c_ends_the_site_and_the_worker(worker: Start, project: Project) -> None:
    """The site and the worker run side by side, and one Ctrl-C ends both."""
    desk = Desk(worker, project).ready()
    assert desk.page() == "a page of the site"
    assert result("version") == "the first"

    wait_until(
        lambda: re.search(
            r"^worker \| .*shop\.tasks\.version .* completed in", desk.log, re.MULTILINE
        ),
        "its line",
    )

    wait_until(
        lambda: re.search(r'^site   \| .*"GET / HTTP/1\.1" 200', desk.log, re.MULTILINE),
        "the line of the site",
    )

    assert {line[:9] for line in desk.log.splitlines()} <= {
        "site   | ",
        "worker | ",
        "site   |",
        "worker |",
    }

    processes = desk.process.family()
    ctrl_c(desk.process)
    assert desk.process.wait() == 0
    gone(processes)

    assert "Worker stopped" in desk.log
    assert desk.page() is None
    assert "\x1b" not in desk.log


def test_a_code_change_restarts_the_site_and_the_worker(
    worker: Start, project: Project, tmp_path: Path
) -> None:
    """The site and the worker restart when code changes.

    A second Ctrl-C reaches the worker and ends its tasks.
    """
    desk = Desk(worker, project, "--force-color", "--queues=default,mail").ready()

    project.tasks("the second one")
    project.write(
        "conf/urls.py",
        (project.directory / "conf/urls.py").read_text().replace("a page", "a new page"),
    )

    wait_until(lambda: desk.log.count("Worker started") == 2, "the worker has started again")
    assert result("version") == "the second one"
    wait_until(lambda: desk.page() == "a new page of the site", "the site has started again")

    wait_until(lambda: "\x1b[32;1mcompleted\x1b[0m" in desk.log, "the outcome is green")
    assert "\x1b[36msite   |\x1b[0m" in desk.log
    assert "\x1b[35mworker |\x1b[0m" in desk.log
    assert "queues: default, mail" in desk.log

    handle, _gate = busy(tmp_path)
    ctrl_c(desk.process)
    wait_until(
        lambda: desk.log.count("no more tasks are claimed") == 2,
        "the worker takes the first one, as once before",
    )
    assert handle.info().status == "RUNNING"

    ctrl_c(desk.process)
    assert desk.process.wait() == 1
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"


def test_a_site_that_cannot_have_its_port_ends_the_worker_too(
    worker: Start, project: Project
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        desk = Desk(worker, project, port=int(taken.getsockname()[1]))
        assert desk.process.wait() == 1

    assert "already in use" in desk.log
    assert re.search(
        r"^dev    \| the site ended with exit code \d+; ending the worker$", desk.log, re.MULTILINE
    )


ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process that its parent has died"
)


@pytest.mark.parametrize("killed", ["horsies_worker", pytest.param("horsies_dev", marks=ON_LINUX)])
def test_nothing_is_left_of_it_when_it_or_its_worker_is_killed(
    worker: Start, project: Project, killed: str
) -> None:
    """Fails if: the next ``horsies_dev`` finds its port taken, and two workers run."""
    desk = Desk(worker, project).ready()
    outer = psutil.Process(desk.process.process.pid)
    processes = desk.process.family()
    (victim,) = [one for one in (outer, *outer.children()) if killed in one.cmdline()]

    victim.kill()

    assert desk.process.wait() == (1 if killed == "horsies_worker" else -signal.SIGKILL)
    assert ("dev    | the worker was killed by SIGKILL; ending the site" in desk.log) == (
        killed == "horsies_worker"
    )
    gone(processes)
