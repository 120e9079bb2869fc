"""Workers and schedulers that a script starts by a call: ``horsies_django.worker.run()`` and ``run_scheduler()``."""

from __future__ import annotations

import os
import signal

import pytest

from horsies_django.models import Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.e2e.test_scheduler import create
from tests.support.workers import Start, held_by
from tests.worker.test_scheduler import fire_times

RUN = """
from horsies_django import worker
print("code", worker.run({options}), flush=True)
print("it goes on", flush=True)
"""


def run(options: str) -> str:
    return RUN.replace("{options}", options)


@pytest.mark.promise("S0.11", "S3.11")
def test_a_script_of_a_few_lines_runs_a_worker_as_it_says_and_hears_how_it_ended(script: Start) -> None:
    process = script(run("processes=1, threads=2, async_concurrency=7, queues=['bulk', 'mail']")).ready()
    row = Worker.objects.get()
    assert (row.processes, row.threads, row.async_concurrency, row.queues) == (1, 2, 7, ["bulk", "mail"])
    assert tasks.mail.send("a@example.org").get(timeout_ms=60_000).ok_value == "sent to a@example.org"
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.log.splitlines()[-2:] == ["code 0", "it goes on"]


@pytest.mark.promise("S0.10", "S1.7")
def test_a_worker_without_options_has_as_many_children_as_it_may_use_cpus(script: Start) -> None:
    process = script(run("")).ready()
    assert Worker.objects.get().processes == len(os.sched_getaffinity(0))
    assert process.stop() == 0


def test_a_worker_that_ended_tasks_tells_its_script_so(script: Start) -> None:
    process = script(run("processes=1, shutdown_timeout=0.2")).ready()
    handle = tasks.hold.send("endless")
    held_by("endless")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert handle.get(0).err_value.error_code == "WORKER_CRASHED"
    assert "code 1" in process.log


def test_a_signal_while_it_starts_is_no_error_for_the_script(script: Start) -> None:
    process = script(run("processes=1"), DJANGO_SETTINGS_MODULE="tests.settings.slow_import", SLOW_IMPORT="worker")
    wait_until(lambda: "importing in the worker" in process.log, "it imports")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Stopped before it started" in process.log
    assert "code 0" in process.log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("queues='mail'", "WorkerStartError: queues must be a list of names, not the str 'mail'"),
        ("queues=['mial']", "WorkerStartError: --queues: 'mial' not declared"),
    ],
)
def test_a_mistake_in_the_call_is_an_exception_that_names_it(script: Start, options: str, words: str) -> None:
    process = script(run(options))
    assert process.wait() == 1
    assert words in process.log.splitlines()[-1]


def test_another_thread_than_the_main_one_is_refused_because_of_the_signals(script: Start) -> None:
    text = """
import threading
from horsies_django import worker
def start():
    try:
        worker.run(processes=1)
    except worker.WorkerStartError as error:
        print("refused:", error, flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
"""
    process = script(text)
    assert process.wait() == 0
    assert "refused: it handles the signals of its process, so it must run in the main thread" in process.log


@pytest.mark.promise("S3.11")
def test_a_script_of_a_few_lines_runs_a_scheduler(script: Start) -> None:
    create("from code", pattern="every 1 second")
    process = script("from horsies_django import worker\nprint('code', worker.run_scheduler())")
    wait_until(lambda: fire_times("from code"), "it sends a task")
    assert process.stop() == 0
    assert "Scheduler stopped" in process.log
    assert "code 0" in process.log
