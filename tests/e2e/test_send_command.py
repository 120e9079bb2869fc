"""``horsies_task send --wait`` beside a real worker: the id, the result, and an exit code that scripts can use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.workers import FLAGS, ROOT, WorkerProcess, database_url

pytestmark = pytest.mark.django_db(transaction=True)


def command(*words: str) -> tuple[int, str, str]:
    """Run the command as a process of its own; return its exit code and what it printed."""
    variables = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()}
    done = subprocess.run(
        [sys.executable, *FLAGS, "-m", "django", "horsies_task", *words],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_with_wait_it_prints_the_result_and_fails_if_the_task_did(worker: Callable[..., WorkerProcess]) -> None:
    """Naive: it waits in the transaction in which it has sent, where no worker sees the task."""
    process = worker("--processes=1").ready()
    code, out, _err = command("send", "tests.apps.project.tasks.add", "--kwargs", '{"a": 4, "b": 5}', "--wait")
    assert (code, out.splitlines()[1:]) == (0, ["9"])
    code, out, _err = command("send", "tests.apps.project.tasks.add", "--kwargs", '{"a": 4}', "--wait", "--json")
    assert (code, json.loads(out)["ok"]) == (0, 4)
    code, out, err = command("send", "tests.apps.project.tasks.raises", "--kwargs", '{"message": "no mail"}', "--wait")
    assert code == 1
    assert "UNHANDLED_ERROR: " in err
    assert "no mail" in err
    assert process.stop() == 0


def test_it_waits_no_longer_than_it_may() -> None:
    code, out, err = command("send", "tests.apps.project.tasks.noop", "--wait", "--timeout=0.2")
    assert code == 1
    assert len(out.split()) == 1
    assert "WAIT_TIMEOUT" in err
