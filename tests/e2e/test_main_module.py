"""Workers that were started by all kinds of scripts: no child ever runs the script again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.project import tasks, traps
from tests.support.workers import Start

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
def test_a_script_without_a_main_guard_is_run_once_however_many_processes_its_children_and_tasks_start(
    script: Start, tmp_path: Path, name: str, method: str
) -> None:
    options = ("--processes=2", f"--start-method={method}")
    text = SCRIPTS[name].replace("{processes}", "2").replace("{start_method}", method)
    process = script(text, *(() if name == "run" else options)).ready()
    assert tasks.add.send(1, b=2).get(timeout_ms=60_000).ok_value == 3
    assert tasks.dies.send("kill").get(timeout_ms=60_000).err_value.error_code == "WORKER_CRASHED"
    assert [handle.get(timeout_ms=60_000).ok_value for handle in tasks.add.send_many([{"a": 1}, {"a": 2}])] == [1, 2]
    for how in ("fork", "spawn", "forkserver", "executor"):
        assert traps.computes.send(how).get(timeout_ms=60_000).ok_value == [6, 24], how
    assert process.stop() == 0
    assert (tmp_path / "runs").read_text().split() == [str(process.process.pid)]


CHANGED = {
    "gevent": "import gevent.monkey\ngevent.monkey.patch_all()\n",
    "uvloop": "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n",
}


@pytest.mark.parametrize("library", CHANGED)
def test_a_process_that_gevent_or_uvloop_changed_is_forked_and_runs_tasks_of_both_kinds(
    script: Start, library: str
) -> None:
    process = script(CHANGED[library] + SCRIPTS["manage.py without a guard"], "--processes=2").ready()
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


def test_a_task_of_the_main_module_is_refused_when_it_is_sent_and_the_message_says_where_it_belongs(
    script: Start,
) -> None:
    process = script(IN_MAIN + "welcome(1)\nprint('ran here', flush=True)\nwelcome.send(1)")
    assert process.wait() == 1
    assert "ran here" in process.log
    (line,) = [line for line in process.log.splitlines() if "TaskSendError" in line]
    assert "__main__.welcome: defined in the main module (" in line
    assert "script.py)" in line
    assert "tasks.py of an app in INSTALLED_APPS" in line


def test_a_worker_whose_main_module_defines_tasks_refuses_to_start_children_that_would_not_know_them(
    script: Start,
) -> None:
    text = IN_MAIN + "from django.core.management import call_command\ncall_command('horsies_worker', *sys.argv[1:])"
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
settings.configure(**{key: getattr(module, key) for key in dir(module) if key.isupper() and key != "DIRECT"})
django.setup()
from django.core.management import call_command
call_command("horsies_worker", *sys.argv[1:])
"""


def test_settings_without_a_module_are_those_of_forks_and_a_fresh_interpreter_says_that_it_has_none(
    script: Start,
) -> None:
    for options in (("--processes=1",), ("--processes=0",)):
        process = script(BY_HAND, *options).ready()
        assert tasks.add.send(1).get(timeout_ms=60_000).ok_value == 1
        assert process.stop() == 0
    refused = script(BY_HAND, "--processes=1", "--start-method=spawn")
    assert refused.wait() == 1
    assert "settings are not configured. You must either define the environment variable" in refused.log
