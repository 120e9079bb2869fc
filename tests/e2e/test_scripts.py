"""Workers that are started by all kinds of scripts: no child ever runs the script again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from horsies_django import worker
from horsies_django.models import Worker
from tests.apps.project import tasks, traps
from tests.conftest import wait_until
from tests.e2e.test_scheduler import create
from tests.support.workers import Start, held_by
from tests.worker.test_scheduler import fire_times

SCRIPTS = {
    "manage.py without a guard": """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "horsies_worker", *sys.argv[1:]])
""",
    "call_command": """
import sys, django
django.setup()
from django.core.management import call_command
call_command("horsies_worker", *sys.argv[1:])
""",
    "run": """
from horsies_django import worker
raise SystemExit(worker.run(processes={processes}, start_method="{start_method}"))
""",
}


@pytest.mark.parametrize(
    ("name", "method"),
    [("manage.py without a guard", "forkserver"), ("call_command", "spawn"), ("run", "spawn")],
)
def test_a_script_without_a_main_guard_runs_once(
    script: Start, tmp_path: Path, name: str, method: str
) -> None:
    """A script without a main guard runs only once, even if children and tasks start processes."""
    options = ("--processes=2", f"--start-method={method}")
    text = SCRIPTS[name].replace("{processes}", "2").replace("{start_method}", method)
    process = script(text, *(() if name == "run" else options)).ready()

    assert tasks.add.send(1, b=2).get(timeout_ms=60_000).ok_value == 3
    assert tasks.dies.send("kill").get(timeout_ms=60_000).err_value.error_code == "WORKER_CRASHED"
    assert [
        handle.get(timeout_ms=60_000).ok_value
        for handle in tasks.add.send_many([{"a": 1}, {"a": 2}])
    ] == [1, 2]

    for how in ("fork", "spawn", "forkserver", "executor"):
        assert traps.computes.send(how).get(timeout_ms=60_000).ok_value == [6, 24], how

    assert process.stop() == 0
    assert (tmp_path / "runs").read_text().split() == [str(process.process.pid)]


CHANGED = {
    "gevent": "import gevent.monkey\ngevent.monkey.patch_all()\n",
    "uvloop": "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n",
}


@pytest.mark.parametrize("library", CHANGED)
def test_a_process_changed_by_gevent_or_uvloop_is_forked(script: Start, library: str) -> None:
    """A process that gevent or uvloop changed is forked, and runs tasks of both lanes."""
    process = script(
        CHANGED[library] + SCRIPTS["manage.py without a guard"], "--processes=2"
    ).ready()

    assert "cannot be forked" not in process.log
    assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
    assert tasks.anoop.send().get(timeout_ms=60_000).is_ok()
    assert process.stop() == 0


IN_MAIN = """
import sys, django
django.setup()
from horsies_django import task
@task
def welcome(user_id: int) -> None: ...
"""


def test_a_worker_with_tasks_in_its_main_module_refuses_children(
    script: Start,
) -> None:
    """A worker whose main module defines tasks refuses to start children, which would lack them."""
    text = (
        IN_MAIN
        + "from django.core.management import call_command\n"
        + "call_command('horsies_worker', *sys.argv[1:])"
    )
    refused = script(text, "--processes=1")

    assert refused.wait() == 1
    assert "__main__.welcome: defined in the main module (" in refused.log
    assert "tasks.py of an app in INSTALLED_APPS" in refused.log

    assert script(text, "--processes=0").ready().stop() == 0


BY_HAND = """
import os, sys, django
from django.conf import settings
name = os.environ.pop("DJANGO_SETTINGS_MODULE")
module = __import__(name, fromlist=["*"])
settings.configure(
    **{key: getattr(module, key) for key in dir(module) if key.isupper() and key != "DIRECT"}
)
django.setup()
from django.core.management import call_command
call_command("horsies_worker", *sys.argv[1:])
"""


def test_settings_without_a_module_reach_forks_only(
    script: Start,
) -> None:
    """Settings without a module exist in forks only.

    A fresh interpreter fails because its settings are not configured.
    """
    for options in (("--processes=1",), ("--processes=0",)):
        process = script(BY_HAND, *options).ready()
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
        assert process.stop() == 0

    refused = script(BY_HAND, "--processes=1", "--start-method=spawn")
    assert refused.wait() == 1
    assert (
        "settings are not configured. You must either define the environment variable"
        in refused.log
    )


# Workers and schedulers that a script starts with a call

RUN = """
from horsies_django import worker
print("code", worker.run({options}), flush=True)
print("it goes on", flush=True)
"""


def run(options: str) -> str:
    return RUN.replace("{options}", options)


@pytest.mark.promise("S0.11", "S3.11")
def test_a_script_of_a_few_lines_runs_a_worker(
    script: Start,
) -> None:
    """A script of a few lines runs a worker with its options, and gets the exit code."""
    options = (
        "processes=1, threads=2, async_concurrency=7, queues=['bulk', 'mail'], shutdown_timeout=0.2"
    )
    process = script(run(options)).ready()

    row = Worker.objects.get()
    assert (row.processes, row.threads, row.async_concurrency, row.queues) == (
        1,
        2,
        7,
        ["bulk", "mail"],
    )

    assert (
        tasks.mail.send("a@example.org").get(timeout_ms=60_000).ok_value == "sent to a@example.org"
    )

    handle = tasks.hold.with_options(queue="mail").send("endless")
    held_by("endless")
    process.signal(signal.SIGTERM)

    assert process.wait() == 0
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"
    assert process.log.splitlines()[-2:] == ["code 1", "it goes on"]


@pytest.mark.promise("S0.10", "S1.7")
def test_a_worker_has_one_child_per_usable_cpu_by_default(script: Start) -> None:
    """A worker without options has as many children as there are CPUs that it may use."""
    process = script(run("")).ready()

    assert Worker.objects.get().processes == len(os.sched_getaffinity(0))
    assert process.stop() == 0
    assert "code 0" in process.log


def test_a_thread_other_than_the_main_one_is_refused() -> None:
    """A call in another thread than the main thread is refused, because of the signals."""
    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(worker.WorkerStartError, match="must run in the main thread"),
    ):
        thread.submit(worker.run, processes=1).result()


@pytest.mark.promise("S3.11")
def test_a_script_of_a_few_lines_runs_a_scheduler(script: Start) -> None:
    create("from code", pattern="every 1 second")
    process = script("from horsies_django import worker\nprint('code', worker.run_scheduler())")
    wait_until(lambda: fire_times("from code"), "it sends a task")

    assert process.stop() == 0
    assert "Scheduler stopped" in process.log
    assert "code 0" in process.log


# Processes with more than 1,024 open files, which ``select`` cannot handle

SETTINGS = "tests.settings.many_files"
GETS = """
import asyncio
import django
django.setup()
from tests.apps.project import tasks

async def view():
    return await (await tasks.add.asend(1, 20)).aget(60_000)

print("sync", tasks.add.send(1, 10).get(60_000), flush=True)
print("async", asyncio.run(view()), flush=True)
"""


def test_a_worker_works_with_two_thousand_open_files(worker: Start, script: Start) -> None:
    """A worker and a waiting caller work with two thousand open files."""
    process = worker("--processes=1", DJANGO_SETTINGS_MODULE=SETTINGS).ready()
    waiting = script(GETS, DJANGO_SETTINGS_MODULE=SETTINGS)

    assert waiting.wait() == 0
    assert waiting.log.splitlines() == ["sync TaskResult(ok=11)", "async TaskResult(ok=21)"]
    assert process.stop() == 0
    assert "Traceback" not in process.log
