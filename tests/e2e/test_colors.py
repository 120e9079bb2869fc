"""Colors of a real worker: on a terminal, and nowhere else unless somebody wants them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.apps.project import tasks
from tests.support.workers import FLAGS, ROOT, Start, database_url

pytestmark = pytest.mark.django_db(transaction=True)

GREEN, YELLOW, RED = "\x1b[32;1m", "\x1b[33;1m", "\x1b[31;1m"


def on_a_terminal(*options: str) -> str:
    """Run a worker on a terminal until there is nothing to do, and return what it showed."""
    ours, theirs = pty.openpty()
    colors = ("NO_COLOR", "FORCE_COLOR", "DJANGO_COLORS")
    variables = {key: value for key, value in os.environ.items() if key not in colors}
    variables |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url(), "HORSIES_TEST_SITE": "0"}
    variables["TERM"] = "xterm"
    command = [sys.executable, *FLAGS, "-m", "django", "horsies_worker", "--processes=1", "--until-empty", *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            while part := terminal.read(4096):
                shown += part
        except OSError:
            pass  # EIO: everybody has closed the other end
    assert process.wait(60) == 0
    return shown.decode()


def send() -> None:
    tasks.add.send(1)
    tasks.raises.send("no")
    tasks.blames.send("no")
    tasks.mails.send(1)


def test_on_a_terminal_completed_failed_and_retried_tasks_differ() -> None:
    send()
    shown = on_a_terminal()
    assert f"{GREEN}completed\x1b[0m in" in shown
    assert f"{RED}failed\x1b[0m in" in shown
    assert f"{RED}returned an error\x1b[0m in" in shown
    assert f"{YELLOW}failed\x1b[0m in" in shown
    assert f"{YELLOW}retry 1 of " in shown


def test_whoever_wants_no_colors_gets_none() -> None:
    send()
    shown = on_a_terminal("--no-color")
    assert " completed in" in shown
    assert "\x1b" not in shown


def test_in_a_file_there_are_none_unless_they_are_forced(worker: Start) -> None:
    for options, colored in ([], False), (["--force-color"], True):
        send()
        process = worker("--processes=1", "--until-empty", *options)
        assert process.wait() == 0
        assert "completed" in process.log
        assert ("\x1b" in process.log) == colored
