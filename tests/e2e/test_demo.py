"""``manage.py demo`` shows all that it promises, reports failures and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_until
from tests.support.sites import new_databases, python
from tests.support.workers import WorkerProcess, all_ended, gone

NO_DATABASE = "postgresql://nobody@127.0.0.1:1/nothing"
END_SECONDS = 200
MADE = re.compile(r"site at http://127\.0\.0\.1:(\d+)/, worker (\d+) with")


class Demo(WorkerProcess):
    """A running demo, its output and the processes that it started."""

    command = "demo"

    def __init__(self, log: Path, *options: str) -> None:
        # The environment must not matter, because it may name a stranger's database.
        elsewhere = {
            "DATABASE_URL": NO_DATABASE,
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
        }
        super().__init__(log, *options, program=("manage.py", "demo"), **elsewhere)

    def says(self, words: str) -> None:
        wait_until(
            lambda: words in self.log or self.process.poll() is not None, f"the demo says {words!r}"
        )
        assert words in self.log, self.log

    def started(self) -> tuple[list[psutil.Process], int]:
        """Wait until the site and the worker run.

        Return all processes of the demo, and the port of the site.
        """
        wait_until(
            lambda: MADE.search(self.log) or self.process.poll() is not None, "site and worker run"
        )
        found = MADE.search(self.log)
        assert found, self.log
        return self.family(), int(found[1])

    def wait(self) -> int:
        return self.process.wait(END_SECONDS)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.wait()
        super().end()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Yield a function that starts demos, and end them all after the test."""
    with all_ended(Demo, tmp_path) as start:
        yield start


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


SHOWN = (  # in this order
    r"runs on 127\.0\.0\.1, for this demo only",
    r"first result, [1-9]\d* files still to be uploaded",
    r"2 files uploaded that somebody has to review",
    r"killed worker \d+ with all its processes \(kill -9\) while they ran (1[2-9]|[2-9]\d) tasks",
    r"40 of 40 imported",
    r"2 imports wait for a person",
)
SHOWN_TOO = (
    r"40 files sent: 3[0-9] COMPLETED, [1-9] FAILED",
    r"FAILED NOT_TEXT: \S+: byte 0x[0-9a-f]{2} at position",
    r"read_file, split_document, .*, publish: (\d) of \d tasks completed",
    r"largest: \S+, [1-9]\d* chapters, (\d+) of \1 tasks completed",
    r"(?s)killed process (\d+).*WORKER_CRASHED: .*SIGKILL.*process \d+ has taken the place of \1\n",
    r"(?s)while they ran (\d+) tasks.*\1 tasks came back in [\d.]+ s\n",
    r"workflow 'come back': COMPLETED, the attempts that completed are \[2\]",
    (
        r"reviewed/letter\.txt: It waits for the decision of a person who has the permission "
        r"library\.change_document"
    ),
    r"reviewed/letter\.txt: approved by demo, announced [\d.]+ s later",
    r"reviewed/draft\.txt: rejected by demo: not ready",
    r"undo read_file: COMPLETED; the document is gone",
    (
        r"letter\.txt approved, published and announced 1 time; "
        r"reviewed/draft\.txt rejected, removed by the undo"
    ),
    r"(\d+) documents, \1 indexed, \1 fetched back and equal",
    r"[1-9]\d* documents indexed anew by schedule",
    r"\d+ tasks in [\d.]+ s: \d+ tasks/s",
    r'Search: "[A-Za-z ]+" finds \S+',
    r"Login +demo  \S{12}\n",
)


def test_the_demo_shows_everything_it_promises(
    demo: Callable[..., Demo],
) -> None:
    """The demo shows everything that it promises, and leaves no process behind."""
    one = demo("--exit", "--files=40")
    processes, port = one.started()
    assert is_open(port)
    assert one.wait() == 0, one.log

    places = [re.search(pattern, one.log) for pattern in SHOWN]
    assert None not in places, list(zip(SHOWN, places, strict=True))
    assert sorted(places, key=lambda found: found.start()) == places  # type: ignore[union-attr]

    assert [pattern for pattern in SHOWN_TOO if not re.search(pattern, one.log)] == []
    assert re.search(rf"Admin +http://127\.0\.0\.1:{port}/admin/", one.log)
    assert not re.search("Traceback|Warning", one.log)

    gone(processes)
    assert not is_open(port)


def test_a_second_run_on_the_same_database_works_as_the_first(demo: Callable[..., Demo]) -> None:
    passwords = set()
    with new_databases("demo") as create:
        url = create()
        for _ in range(2):
            one = demo("--exit", "--files=12", f"--database-url={url}")
            assert one.wait() == 0, one.log
            assert "as given by --database-url" in one.log
            passwords.add(re.search(r"Login +demo  (\S+)", one.log)[1])

    assert len(passwords) == 2


def test_a_worker_that_dies_ends_the_demo_with_code_1(
    demo: Callable[..., Demo],
) -> None:
    """The demo ends with code 1 and the reason if its worker dies."""
    one = demo("--exit")
    processes, _ = one.started()

    os.kill(int(MADE.search(one.log)[2]), signal.SIGKILL)

    assert one.wait() == 1
    assert "The demo failed: the worker was killed by SIGKILL" in one.log
    assert "Traceback" not in one.log
    gone(processes)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 0),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        pytest.param(
            signal.SIGKILL,
            -signal.SIGKILL,
            marks=pytest.mark.skipif(
                sys.platform != "linux", reason="only Linux ends processes with their parent"
            ),
        ),
    ],
)
def test_a_signal_stops_the_demo_and_everything_it_started(
    demo: Callable[..., Demo], number: signal.Signals, code: int
) -> None:
    one = demo("--files=4")
    processes, port = one.started()
    assert len(processes) > 5

    if number == signal.SIGINT:
        one.says("Press Ctrl-C to stop everything.")
        assert is_open(port)

    one.process.send_signal(number)

    assert one.wait() == code
    assert "Traceback" not in one.log
    gone(processes)
    assert not is_open(port)


def test_a_database_that_cannot_be_used_is_named_in_one_line(demo: Callable[..., Demo]) -> None:
    for url, words in (
        (NO_DATABASE, "the database does not answer"),
        ("sqlite:///x", "is not PostgreSQL's"),
    ):
        one = demo("--exit", f"--database-url={url}")

        assert one.wait() == 1
        assert one.log.startswith("The demo failed: ")
        assert words in one.log
        assert "Traceback" not in one.log


def test_the_example_projects_own_tests_pass() -> None:
    server, _, query = os.environ["DATABASE_URL"].partition("?")
    # The name is unique, because Django's test database is named after it, and other tests run on
    # the same server.
    url = f"{server.rpartition('/')[0]}/library_{uuid.uuid4().hex[:12]}" + (
        f"?{query}" if query else ""
    )
    where = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": url}

    done = python("manage.py", "test", "example_project", "--noinput", **where)

    assert done.returncode == 0, done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran
    assert int(ran[1]) >= 40
