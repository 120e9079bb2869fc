"""Processes with more than 1,024 open files, which ``select`` cannot handle."""

from __future__ import annotations

import signal

import psutil

from tests.conftest import wait_until
from tests.support.workers import Start

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


def test_a_worker_and_those_who_wait_for_its_results_have_two_thousand_files_open(worker: Start, script: Start) -> None:
    process = worker("--processes=1", DJANGO_SETTINGS_MODULE=SETTINGS).ready()
    waiting = script(GETS, DJANGO_SETTINGS_MODULE=SETTINGS)
    assert waiting.wait() == 0
    assert waiting.log.splitlines() == ["sync TaskResult(ok=11)", "async TaskResult(ok=21)"]
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_a_worker_that_restarts_with_its_code_has_two_thousand_files_open(worker: Start) -> None:
    process = worker(
        "--reload", "--processes=1", program=("-m", "django", "horsies_worker"), DJANGO_SETTINGS_MODULE=SETTINGS
    ).ready()
    (inner,) = psutil.Process(process.process.pid).children()
    inner.send_signal(signal.SIGKILL)
    wait_until(lambda: "waiting for a change of the code" in process.log, "it waits for a change")
    assert process.stop() == 0
    assert "Traceback" not in process.log
