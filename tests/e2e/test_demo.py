"""``manage.py demo`` shows what it promises, says when it cannot, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.conftest import wait_until
from tests.support.sites import new_databases

ROOT = Path(__file__).parents[2]
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/nothing"
END_SECONDS = 100
MADE = re.compile(r"site at http://127\.0\.0\.1:(\d+)/, worker (\d+) with")


class Demo:
    """A running demo, what it says, and the processes that it started."""

    def __init__(self, home: Path, *options: str) -> None:
        self.out, self.err = home / "out", home / "err"
        # What is in the environment must not matter: it may be a stranger's database.
        environment = {**os.environ, "DATABASE_URL": NO_DATABASE, "PYTHONFAULTHANDLER": "1"}
        environment["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "demo", *options],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.out.read_text()

    def says(self, words: str) -> str:
        """Wait until it has said that and return everything said."""
        wait_until(lambda: words in self.said or self.process.poll() is not None, f"the demo says {words!r}")
        assert words in self.said, self.said + self.err.read_text()
        return self.said

    def started(self) -> tuple[list[psutil.Process], int]:
        """Wait until site and worker run, and return all processes of the demo and the port of the site."""
        self.says("worker ")
        found = MADE.search(self.said)
        assert found
        return psutil.Process(self.process.pid).children(recursive=True), int(found[1])

    def end(self) -> int:
        """Wait for the end and return the exit code; a demo that does not end has to say what it is doing."""
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(END_SECONDS)
            pytest.fail(f"the demo did not end:\n{self.said[-2_000:]}\n{self.err.read_text()[-8_000:]}")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Give a function that starts demos; none of them outlives the test."""
    running: list[Demo] = []

    def start(*options: str) -> Demo:
        home = tmp_path / str(len(running))
        home.mkdir()
        running.append(Demo(home, *options))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(END_SECONDS)


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of these runs any more; a process that waits to be buried does not."""
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_demo_shows_everything_it_promises_and_leaves_nothing_running(demo: Callable[..., Demo]) -> None:
    one = demo("--exit", "--files=40")
    processes, port = one.started()
    assert is_open(port)
    assert one.end() == 0, one.said + one.err.read_text()
    told = one.said
    assert "runs on 127.0.0.1, for this demo only" in told
    assert re.search(r"40 files sent: 3[0-9] COMPLETED, [1-9] FAILED", told)
    assert re.search(r"FAILED NOT_TEXT: \S+: byte 0x[0-9a-f]{2} at position", told)
    still_to_come = re.search(r"first result, (\d+) files still to be uploaded", told)
    assert still_to_come
    assert int(still_to_come[1]) > 0
    assert re.search(r"read_file, split_document, .*, publish: (\d) of \d tasks completed", told)
    assert told.index("first result") < told.index("40 of 40 imported")
    assert re.search(r"largest: \S+, [1-9]\d* chapters, (\d+) of \1 tasks completed", told)
    killed = re.search(r"killed process (\d+).*\n +WORKER_CRASHED: .*SIGKILL", told)
    assert killed
    assert re.search(rf"process \d+ has taken the place of {killed[1]}\n", told)
    fallen = re.search(r"killed worker (\d+) with all its processes \(kill -9\) while they ran (\d+) tasks", told)
    assert fallen
    assert int(fallen[2]) >= 12
    assert re.search(rf"{fallen[2]} tasks came back in [\d.]+ s\n", told)
    assert "workflow 'come back': COMPLETED, the attempts that completed are [2]" in told
    assert told.index("2 files uploaded that somebody has to review") < told.index("killed worker")
    assert told.index("40 of 40 imported") < told.index("2 imports wait for a person")
    who = "It waits for the decision of a person who has the permission library.change_document"
    assert f"reviewed/letter.txt: {who}" in told
    assert f"reviewed/draft.txt: {who}" in told
    assert re.search(r"reviewed/letter\.txt: approved by demo, announced [\d.]+ s later", told)
    assert "reviewed/draft.txt: rejected by demo: not ready" in told
    assert "undo read_file: COMPLETED; the document is gone" in told
    assert (
        "letter.txt approved, published and announced 1 time; reviewed/draft.txt rejected, removed by the undo" in told
    )
    assert re.search(r"(\d+) documents, \1 indexed, \1 fetched back and equal", told)
    assert re.search(r"[1-9]\d* documents indexed anew by schedule", told)
    assert re.search(r"\d+ tasks in [\d.]+ s: \d+ tasks/s", told)
    assert len(re.findall(r"^ +\d+ %  \S+  \S+$", told, re.MULTILINE)) == 3
    assert re.search(r'Search: "[A-Za-z ]+" finds \S+', told)
    assert re.search(rf"Admin +http://127\.0\.0\.1:{port}/admin/", told)
    assert re.search(rf"http://127\.0\.0\.1:{port}/admin/horsies/schedule/", told)
    assert re.search(r"Login +demo  \S{12}\n", told)
    assert one.err.read_text() == ""
    assert all_gone(processes)
    assert not is_open(port)


@pytest.mark.timeout(240)
def test_a_second_run_on_the_same_database_works_as_the_first_and_a_third_names_what_is_not_as_promised(
    demo: Callable[..., Demo],
) -> None:
    passwords = set()
    with new_databases("demo") as create:
        url = create()
        for _ in range(2):
            one = demo("--exit", "--files=12", f"--database-url={url}")
            assert one.end() == 0, one.said + one.err.read_text()
            assert "as given by --database-url" in one.said
            passwords.add(re.search(r"Login +demo  (\S+)", one.said)[1])
        assert len(passwords) == 2
        # Every document loses its text after its checksum was taken: no site can serve it as it was.
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE library_document CASCADE")
            connection.execute(
                "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN NEW.text := 'spoiled'; RETURN NEW; END $$"
            )
            connection.execute(
                "CREATE TRIGGER spoil BEFORE INSERT ON library_document FOR EACH ROW EXECUTE FUNCTION spoil()"
            )
        one = demo("--exit", "--files=12", f"--database-url={url}")
        assert one.end() == 1
    problems = one.err.read_text()
    assert re.search(
        r"Not as promised: \d+ documents were imported, but 0 came back from the site as they were stored", problems
    )
    assert "Not as promised: no imported file had a phrase to search for" in problems


def test_a_worker_that_dies_ends_the_demo_with_the_reason_and_code_1(demo: Callable[..., Demo]) -> None:
    one = demo("--exit")
    processes, _ = one.started()
    os.kill(int(MADE.search(one.said)[2]), signal.SIGKILL)
    assert one.end() == 1
    assert "The demo failed: the worker was killed by SIGKILL" in one.err.read_text()
    assert "Traceback" not in one.err.read_text()
    assert all_gone(processes)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 0),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        pytest.param(
            signal.SIGKILL, -signal.SIGKILL,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent"),
        ),
    ],
)  # fmt: skip
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
    assert one.end() == code
    assert "Traceback" not in one.err.read_text()
    if number == signal.SIGKILL:
        wait_until(lambda: all_gone(processes), "nothing of the demo runs")
    assert all_gone(processes)
    assert not is_open(port)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (NO_DATABASE, "the database does not answer"),
        ("sqlite:///x", "is not PostgreSQL's"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_in_one_line(demo: Callable[..., Demo], url: str, words: str) -> None:
    one = demo("--exit", f"--database-url={url}")
    assert one.end() == 1
    assert one.err.read_text().startswith("The demo failed: ")
    assert words in one.err.read_text()
    assert "Traceback" not in one.err.read_text()
