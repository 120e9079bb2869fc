"""``horsies_task send --wait`` beside a real worker: the id, the result, and an exit code that scripts can use."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.fresh import manage
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


def send(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return manage("horsies_task", "send", f"tests.apps.project.tasks.{name}", "--wait", *words)


def test_with_wait_it_prints_the_result_and_fails_if_the_task_did(shared_worker: WorkerProcess) -> None:
    """Naive: it waits in the transaction in which it has sent, where no worker sees the task."""
    done = send("add", "--kwargs", '{"a": 4, "b": 5}')
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["9"])
    done = send("add", "--kwargs", '{"a": 4}', "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, 4)
    done = send("raises", "--kwargs", '{"message": "no mail"}')
    assert done.returncode == 1
    assert "UNHANDLED_ERROR: " in done.stderr
    assert "no mail" in done.stderr


def test_it_waits_no_longer_than_it_may() -> None:
    done = send("noop", "--timeout=0.2")
    assert (done.returncode, len(done.stdout.split())) == (1, 1)
    assert "WAIT_TIMEOUT" in done.stderr
