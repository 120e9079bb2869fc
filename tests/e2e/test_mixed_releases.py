"""A worker of release 0.1.0 goes on beside today's on today's schema, until it is replaced.

Its code comes from the repository's history: the last commit before the first migration that 0.1.0 did not have.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from horsies_django import RetryPolicy, get_handle
from horsies_django.core.options import options_text
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from tests.conftest import put, wait_until
from tests.e2e.conftest import ROOT, WorkerProcess, database_url, held_by, let_go
from tests.factories import now
from tests.project import tasks

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("HORSIES_TEST_DIRECT" in os.environ, reason="the settings of 0.1.0 know no pooler"),
]

Start = Callable[..., WorkerProcess]
FIRST_MIGRATION_SINCE = "horsies_django/migrations/0003_limits.py"
NEEDED = ["horsies_django", "tests"]


def git(*command: str) -> bytes:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this tree cannot be read: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with the code of 0.1.0 and its own test project."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, and the code of 0.1.0 is in the history")
    commits = git("log", "--diff-filter=A", "--format=%P", "--", FIRST_MIGRATION_SINCE).split()
    if not commits:
        pytest.skip("the history does not reach back to 0.1.0: it is a shallow clone")
    directory = tmp_path_factory.mktemp("release")
    subprocess.run(["tar", "-x"], cwd=directory, input=git("archive", commits[-1].decode(), *NEEDED), check=True)
    assert not (directory / FIRST_MIGRATION_SINCE).exists()
    return directory


@pytest.fixture
def old(worker: Start, release: Path) -> Callable[..., WorkerProcess]:
    """Give a function that starts workers of 0.1.0."""
    return lambda *options: worker(*options, CWD=str(release))


def test_both_run_what_new_code_sends_and_nothing_runs_twice(worker: Start, old: Start) -> None:
    former, today = old("--processes=1").ready(), worker("--processes=1").ready()
    names = ["one", "two"]
    held = [tasks.hold.send(name) for name in names]
    for name in names:
        held_by(name)
    running = Task.objects.filter(status="RUNNING")
    assert len(set(running.values_list("claimed_by", flat=True))) == 2, "each of them has one"
    for name in names:
        let_go(name)
    handles = [tasks.add.send(number, b=1) for number in range(60)]
    handles += [tasks.add.with_options(queue="mail", priority=3).send(number, b=1) for number in range(60, 100)]
    anoops = [tasks.anoop.send() for _ in range(20)]
    assert [handle.get(timeout_ms=30_000).ok_value for handle in handles] == list(range(1, 101))
    assert all(handle.get(timeout_ms=30_000).is_ok() for handle in (*held, *anoops))
    assert TaskAttempt.objects.count() == 122
    assert set(Task.objects.values_list("status", "claim_generation")) == {("COMPLETED", 1)}
    assert (former.stop(), today.stop()) == (0, 0)
    assert Worker.objects.filter(stopped_at=None).count() == 0


def test_retries_and_timeouts_do_not_hold_in_a_worker_of_the_former_release(old: Start) -> None:
    former = old("--processes=1").ready()
    policy = options_text(RetryPolicy.fixed([1, 1], auto_retry_for=["UNHANDLED_ERROR"]), 100)
    (id_,) = put(name="tests.project.tasks.raises", kwargs=['{"message": "no"}'], options=policy, max_retries=2)
    assert get_handle(id_).get(timeout_ms=30_000).err_value.error_code == "UNHANDLED_ERROR"
    (long,) = put(name="tests.project.tasks.hold", kwargs=['{"name": "long"}'], options=policy)
    held_by("long")
    assert tasks.anoop.send().get(timeout_ms=30_000).is_ok()
    began = Task.objects.get(pk=long).started_at
    wait_until(lambda: now() > began + dt.timedelta(seconds=1), "ten times its timeout passes")
    let_go("long")
    assert get_handle(long).get(timeout_ms=30_000).is_ok()
    assert set(TaskAttempt.objects.values_list("attempt", flat=True)) == {1}
    assert former.stop() == 0


def test_what_code_of_the_former_release_sends_a_worker_of_today_runs(worker: Start, release: Path) -> None:
    worker("--processes=1").ready()
    code = "from tests.project import tasks; print(tasks.add.send(2, b=3).get(timeout_ms=30_000).ok_value)"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()}
    done = subprocess.run(
        [sys.executable, "-m", "django", "shell", "-c", code],
        cwd=release,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["5"], done.stderr


def test_a_living_worker_of_the_former_release_is_not_taken_for_dead_and_a_killed_one_is(
    worker: Start, old: Start
) -> None:
    former = old("--processes=1").ready()
    worker("--processes=1", "--queues=mail").ready()
    id_ = Worker.objects.get(pid=former.process.pid).id
    handle = tasks.hold.send("held")
    held_by("held")
    began = Heartbeat.objects.get(pk=id_).sent_at
    beyond = dt.timedelta(seconds=12)  # the threshold is ten
    wait_until(lambda: Heartbeat.objects.get(pk=id_).sent_at > began + beyond, "it beats for longer than the threshold")
    assert Heartbeat.objects.get(pk=id_).died_at is None
    let_go("held")
    assert handle.get(timeout_ms=30_000).is_ok()
    lost = tasks.hold.send("lost")
    held_by("lost")
    former.signal(signal.SIGKILL)
    assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    let_go("lost")
