"""``horsies_dev``: the site and a worker in one terminal, which end together."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_until
from tests.e2e.test_reload import busy, gone, result
from tests.support.changing_project import Project
from tests.support.workers import Start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


class Desk:
    """A ``horsies_dev`` with its address."""

    def __init__(self, worker: Start, project: Project, *options: str, port: int | None = None) -> None:
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        program = ("manage.py", "horsies_dev", self.address, "--processes=1")
        self.process = worker(*options, program=program, PYTHONUNBUFFERED="1", **project.environment)

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

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.process.pid).children(recursive=True)

    def part(self, command: str) -> psutil.Process:
        """Return the process of a command that horsies_dev has started."""
        children = psutil.Process(self.process.process.pid).children()
        (found,) = [child for child in children if command in child.cmdline()]
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_the_site_and_the_worker_run_side_by_side_and_one_ctrl_c_ends_both(worker: Start, project: Project) -> None:
    desk = Desk(worker, project).ready()
    assert desk.page() == "a page of the site"
    assert result("version") == "the first"
    wait_until(
        lambda: re.search(r"^worker \| .*shop\.tasks\.version .* completed in", desk.log, re.MULTILINE), "its line"
    )
    wait_until(lambda: re.search(r'^site   \| .*"GET / HTTP/1\.1" 200', desk.log, re.MULTILINE), "the line of the site")
    assert {line[:9] for line in desk.log.splitlines()} <= {"site   | ", "worker | ", "site   |", "worker |"}
    processes = desk.family()
    os.killpg(desk.process.process.pid, signal.SIGINT)
    assert desk.process.wait() == 0
    assert gone(processes)
    assert "Worker stopped" in desk.log
    assert desk.page() is None
    assert "\x1b" not in desk.log


def test_both_restart_when_code_changes_and_a_second_ctrl_c_reaches_the_worker_and_ends_its_tasks(
    worker: Start, project: Project, tmp_path: Path
) -> None:
    desk = Desk(worker, project, "--force-color", "--queues=default,mail").ready()
    project.tasks("the second one")
    project.write("conf/urls.py", (project.directory / "conf/urls.py").read_text().replace("a page", "a new page"))
    wait_until(lambda: desk.log.count("Worker started") == 2, "the worker has started again")
    assert result("version") == "the second one"
    wait_until(lambda: desk.page() == "a new page of the site", "the site has started again")
    wait_until(lambda: "\x1b[32;1mcompleted\x1b[0m" in desk.log, "the outcome is green")
    assert "\x1b[36msite   |\x1b[0m" in desk.log
    assert "\x1b[35mworker |\x1b[0m" in desk.log
    assert "queues: default, mail" in desk.log
    handle, _gate = busy(tmp_path)
    os.killpg(desk.process.process.pid, signal.SIGINT)
    wait_until(lambda: "no more tasks are claimed" in desk.log, "the worker takes the first one")
    assert handle.info().status == "RUNNING"
    os.killpg(desk.process.process.pid, signal.SIGINT)
    assert desk.process.wait() == 1
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"


def test_if_the_worker_dies_it_says_so_and_ends_the_site(worker: Start, project: Project) -> None:
    desk = Desk(worker, project).ready()
    processes = desk.family()
    desk.part("horsies_worker").kill()
    assert desk.process.wait() == 1
    assert "dev    | the worker was killed by SIGKILL; ending the site" in desk.log
    assert gone(processes)


def test_a_site_that_cannot_have_its_port_ends_the_worker_too(worker: Start, project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        desk = Desk(worker, project, port=int(taken.getsockname()[1]))
        assert desk.process.wait() == 1
    assert "already in use" in desk.log
    assert re.search(r"^dev    \| the site ended with exit code \d+; ending the worker$", desk.log, re.MULTILINE)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_nothing_is_left_of_it_when_it_is_killed(worker: Start, project: Project) -> None:
    """Naive: the next ``horsies_dev`` finds its port taken, and two workers run."""
    desk = Desk(worker, project).ready()
    processes = desk.family()
    desk.process.process.kill()
    assert gone(processes)
