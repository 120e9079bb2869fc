"""The benchmark of workflows runs, reads what it promises, and sees waits for locks; its figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from benchmarks import workflow
from tests.conftest import wait_until
from tests.support.factories import TaskFactory
from tests.support.workers import ROOT

pytestmark = pytest.mark.stress

UNITS = {
    "workflow 1 to 100 to 1": "tasks/s",
    "workflow 1 to 100 to 1, baseline": "tasks/s",
    "workflow 10 nodes": "tasks/s",
    "workflow 10 nodes, lines about locks": "lines",
    "workflow 10 nodes, baseline": "tasks/s",
    "workflow 100 to 100": "tasks/s",
    "workflow 100 to 100, baseline": "tasks/s",
    "workflow map": "tasks/s",
    "workflow map, first half": "tasks/s",
    "workflow map, second half": "tasks/s",
    "workflow map, slowest statement": "ms",
    "workflow map, baseline": "tasks/s",
    "workflow 10 nodes, 2 workers x 2 processes": "tasks/s",
    "workflow 10 nodes, 2 workers x 2 processes, lines about locks": "lines",
    "workflow plain send to result": "ms",
    "workflow chain, hop": "ms",
    "workflow chain, hop with xmin pinned": "ms",
    "workflow send of 10,000 nodes": "s",
    "workflow wake of 10,000 runs": "s",
    "workflow wake of 10,000 runs, longest pass": "ms",
    "workflow idle tick with 10,000 sleeping runs": "buffers",
    "workflow idle tick with none": "buffers",
    "workflow signals": "signals/s",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a private server: it has a log that can be read, and counts statements."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_every_shape_its_baseline_the_chain_and_the_send_are_measured_and_judged() -> None:
    done = run("benchmarks", "workflow", "--scale=0.001", "--repeats=1")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["name"]: line["unit"] for line in lines} == UNITS
    assert all(line["value"] > 0 for line in lines if line["unit"] != "lines")
    judged = [line for line in done.stderr.splitlines() if line.startswith(("workflow reached: ", "workflow MISSED: "))]
    assert len(judged) == len(workflow.GOALS)


@pytest.mark.django_db(transaction=True)
def test_a_wait_for_a_lock_is_counted_in_the_log_of_a_private_server_and_only_while_it_is_watched() -> None:
    if workflow.server_log() is None:
        pytest.skip("the test database is on a server whose log cannot be read")
    task = TaskFactory()
    with workflow.locks_logged() as lines:
        before = lines()
        wait_for_a_lock(task.pk, lambda: lines() != before)
        assert lines() >= before + 2  # "still waiting" and "acquired"
    (level,) = workflow.asked("SELECT current_setting('deadlock_timeout')")
    assert level != workflow.WATCHED["deadlock_timeout"]


def wait_for_a_lock(task: object, logged: Callable[[], bool]) -> None:
    """Let one session wait for a row that another one has locked, until the server has logged it."""
    update = "UPDATE horsies_tasks SET priority = priority WHERE id = %s"

    def other() -> None:
        with connection.cursor() as cursor:
            cursor.execute(update, [task])
        connection.close()

    thread = threading.Thread(target=other)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(update, [task])
        thread.start()
        wait_until(logged, "the wait is logged")
    thread.join()
