"""What a real worker's log says of tasks: a line when one ends, what follows from a failure, and the project's own records."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django import RetryPolicy, TaskHandle
from horsies_django.models import Task
from tests.apps.project import tasks, traps
from tests.conftest import put, wait_until
from tests.support.workers import Start, WorkerProcess, held_by

CLOCK = r"\[\d\d:\d\d:\d\d\]"
SHAPES = [("--processes=1", "--threads=2"), ("--processes=0",)]


def with_logging(logging: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a worker whose project has this LOGGING."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings.logging",
        "HORSIES_TEST_LOGGING": json.dumps({"version": 1, **logging}),
    }


def line(process: WorkerProcess, pattern: str) -> str:
    """Wait for a line of the log that the whole of a pattern fits, and return it."""
    whole = re.compile(pattern)
    found: list[str] = wait_until(
        lambda: [each for each in process.log.splitlines() if whole.fullmatch(each)], f"a line {pattern}"
    )
    assert len(found) == 1
    return found[0]


def named(handle: TaskHandle[Any], attempt: int = 1) -> str:
    """Return how lines name a task, as a pattern."""
    name = re.escape(Task.objects.get(pk=handle.task_id).task_name)
    return rf"{name} {handle.task_id} \(attempt {attempt}\)"


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
def test_a_task_has_its_lines_and_what_the_project_logs_says_which_task_it_was(
    worker: Start, options: tuple[str, ...]
) -> None:
    process = worker(*options, "--loglevel=DEBUG").ready()
    for handle in (tasks.echo.send("a-secret"), tasks.anoop.send()):
        handle.get()
        line(process, rf"{CLOCK} \[task\] \[INFO\] {named(handle)} completed in \d+\.\d\d\d s")
        name = Task.objects.get(pk=handle.task_id).task_name
        line(process, rf"{CLOCK} \[task\] \[DEBUG\] {name} {handle.task_id} starts, attempt 1")
    for handle in (tasks.says.send("parcel 7 is packed"), tasks.asays.send("parcel 7 is packed")):
        line(process, rf"{CLOCK} \[shop\.orders\] \[INFO\] {named(handle)}: parcel 7 is packed")
    assert "a-secret" not in process.log  # neither arguments nor results


def test_what_the_project_logs_shows_from_info_on_by_default(shared_worker: WorkerProcess) -> None:
    handle = tasks.says.send("parcel 7 is packed")
    line(shared_worker, rf"{CLOCK} \[shop\.orders\] \[INFO\] {named(handle)}: parcel 7 is packed")
    assert tasks.says.send("not this", "DEBUG").get().is_ok()
    assert "not this" not in shared_worker.log


def test_a_failure_that_is_tried_again_is_one_line_and_only_the_last_one_has_a_traceback(
    shared_worker: WorkerProcess,
) -> None:
    policy = RetryPolicy.fixed([0.1, 0.1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    handle = tasks.mails.with_options(retry_policy=policy).send(9)
    assert handle.get().is_err()
    why = r"MAIL_DOWN: MailDown: no answer"
    for retry in (1, 2):
        again = rf"retry {retry} of 2 at \d\d:\d\d:\d\d"
        line(shared_worker, rf"{CLOCK} \[task\] \[INFO\] {named(handle, retry)} failed in \d\.\d\d\d s: {why}; {again}")
    line(shared_worker, rf"{CLOCK} \[task\] \[ERROR\] {named(handle, 3)} failed in \d\.\d\d\d s: {why}")
    wait_until(lambda: "raise MailDown" in shared_worker.log, "the traceback is there")
    assert shared_worker.log.count("Traceback (most recent call last)") == 1


def test_an_error_that_was_returned_is_a_warning_without_its_data_and_a_cancelled_task_has_its_line_too(
    shared_worker: WorkerProcess,
) -> None:
    process = shared_worker
    handle = tasks.blames.send("it was the weather")
    assert handle.get().is_err()
    returned = rf"{named(handle)} returned an error in .* s: BLAMED: it was the weather"
    line(process, rf"{CLOCK} \[task\] \[WARNING\] {returned}")
    assert "secret" not in process.log
    other = tasks.stops_when_asked.send("stops")
    held_by("stops")
    other.cancel()
    line(process, rf"{CLOCK} \[task\] \[INFO\] {named(other)} was cancelled after \d+\.\d\d\d s")
    assert "ERROR" not in process.log


def test_a_process_that_dies_names_the_tasks_that_crashed_with_it_up_to_ten(shared_worker: WorkerProcess) -> None:
    handles = [tasks.ahold.send("crowd") for _ in range(12)]
    wait_until(lambda: Group.objects.filter(name__startswith="crowd:").count() == 12, "all run")
    os.kill(held_by("crowd"), signal.SIGKILL)
    report = wait_until(lambda: re.search(r"child \d+ was killed.*", shared_worker.log), "it is reported")[0]
    assert "12 task(s) crashed (tests.apps.project.tasks.ahold " in report
    assert ", and 2 more), 0 given back; starting another" in report
    assert sum(f"tests.apps.project.tasks.ahold {handle.task_id} (attempt 1)" in report for handle in handles) == 10
    killed = "failed in .*: WORKER_CRASHED: the process .* was killed by SIGKILL.*"
    for handle in handles:
        line(shared_worker, rf".*\[ERROR\] {named(handle)} {killed}")


def test_a_task_whose_process_is_killed_for_its_timeout_is_named(shared_worker: WorkerProcess) -> None:
    process = shared_worker
    handle = tasks.ignores_its_timeout.send()
    assert handle.get().is_err()
    line(process, rf".*\[ERROR\] {named(handle)} did not end \(timeout\); killing process \d+")
    line(process, rf".*\[ERROR\] {named(handle)} failed in .*: TASK_TIMEOUT: .*")
    assert "0 task(s) crashed, 0 given back" in process.log


@pytest.mark.parametrize("settings", ["tests.settings", "tests.settings.soft"])
def test_tasks_that_expired_are_named_up_to_ten(worker: Start, settings: str) -> None:
    ids = put(40, name="tests.apps.project.tasks.noop", good_until=dt.datetime.now(dt.UTC))
    process = worker("--processes=1", DJANGO_SETTINGS_MODULE=settings).ready()

    def lines() -> list[tuple[int, str]] | None:
        """Two passes may each have found some of them."""
        found = re.findall(r"\[WARNING\] (\d+) task\(s\) expired before they started(.*)", process.log)
        return sorted((int(many), text) for many, text in found) if sum(int(many) for many, _ in found) == 40 else None

    many, text = wait_until(lines, "all of them are told")[-1]
    assert sum(str(id_) in text for id_ in ids) == 10
    assert text.endswith(f", and {many - 10} more)")


def test_many_short_tasks_have_one_line_a_second_and_none_is_left_out_of_it(worker: Start) -> None:
    tasks.anoop.send_many([{} for _ in range(2_000)])
    failing = tasks.raises.send("among the many")
    process = worker("--processes=1", "--async-concurrency=500", "--until-empty")
    assert process.wait() == 0
    own = len(re.findall(r"tasks\.anoop [-0-9a-f]{36} \(attempt 1\) completed in", process.log))
    summary = r"\[INFO\] ([\d,]+) tasks completed in \d+\.\d s: tests\.apps\.project\.tasks\.anoop ([\d,]+)"
    counted = re.findall(summary, process.log)
    assert own + sum(int(number.replace(",", "")) for number, _ in counted) == 2_000
    assert 0 < own < 2_000
    assert all(number == of_name for number, of_name in counted)
    assert f"[ERROR] tests.apps.project.tasks.raises {failing.task_id} (attempt 1) failed" in process.log


@pytest.mark.promise("S2.11")
def test_the_option_rules_what_shows_of_the_worker_s_and_of_the_project_s_records(worker: Start) -> None:
    process = worker("--processes=1", "--loglevel=warning")
    assert tasks.says.send("too quiet").get().is_ok()
    handle = tasks.says.send("loud enough", "WARNING")
    line(process, rf"{CLOCK} \[shop\.orders\] \[WARNING\] {named(handle)}: loud enough")
    assert tasks.dies.send("kill").get().err_value.error_code == "WORKER_CRASHED"
    assert process.stop() == 0
    assert "killed by SIGKILL" in process.log  # an error
    for quiet in ("too quiet", "completed", "Worker started", "Stopping"):
        assert quiet not in process.log


CONSOLE = {"class": "logging.StreamHandler", "formatter": "own"}
OWN = {"formatters": {"own": {"format": "OWN %(name)s %(levelname)s %(message)s"}}, "handlers": {"console": CONSOLE}}


def test_what_the_project_configured_stays_as_it_is(worker: Start) -> None:
    """The root logger is the project's: its level, its handler, its format; and one logger has a handler of its own."""
    chosen = {**OWN, "root": {"handlers": ["console"], "level": "WARNING"}}
    process = worker("--processes=1", **with_logging(chosen))
    assert tasks.says.send("hidden").get().is_ok()
    assert tasks.says.send("shown", "WARNING").get().is_ok()
    wait_until(lambda: "OWN shop.orders WARNING shown\n" in process.log, "the project's handler writes it")
    wait_until(lambda: "OWN horsies.task INFO tests.apps.project.tasks.says " in process.log, "and our lines")
    assert process.log.count("shown") == 1
    assert "hidden" not in process.log
    assert "[task]" not in process.log


def test_a_logger_with_a_handler_of_its_own_is_not_shown_twice(worker: Start) -> None:
    process = worker("--processes=1", **with_logging({**OWN, "loggers": {"shop": {"handlers": ["console"]}}}))
    handle = tasks.says.send("once")
    line(process, rf"{CLOCK} \[task\] \[INFO\] {named(handle)} completed in .*")
    assert process.log.count("OWN shop.orders INFO once\n") == process.log.count("once") == 1


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_project_that_disables_existing_loggers_does_not_silence_the_worker_s_children(
    worker: Start, start_method: str
) -> None:
    chosen = {**OWN, "disable_existing_loggers": True, "root": {"handlers": ["console"], "level": "INFO"}}
    process = worker("--processes=1", f"--start-method={start_method}", "--loglevel=DEBUG", **with_logging(chosen))
    handle = traps.wreck.send("directory")
    assert handle.get().is_ok()
    name = f"tests.apps.project.traps.wreck {handle.task_id}"
    for said in (
        f"OWN horsies.task DEBUG {name} starts",
        f"OWN horsies.worker WARNING {name} changed process state",
        f"OWN horsies.task INFO {name} (attempt 1) completed",
    ):
        wait_until(lambda said=said: said in process.log, said)


@pytest.mark.parametrize("ours", [True, False])
def test_no_message_of_an_error_and_no_name_of_a_task_can_forge_a_line(worker: Start, ours: bool) -> None:
    chosen = {} if ours else {**OWN, "root": {"handlers": ["console"], "level": "WARNING"}}
    (stranger,) = put(name=f"gone{tasks.FORGED[:60]}".replace("\x00", ""))
    process = worker("--processes=1", HORSIES_TEST_GRACE_MS="0", **with_logging(chosen))
    for how in ("exception", "error", "record"):
        assert tasks.forges.send(how).get().is_err()
    wait_until(lambda: f"{stranger} (attempt 1) failed" in process.log, "the stranger failed")
    wait_until(lambda: process.log.count("returned an error") == 2, "all have their lines")
    raw = process.log_path.read_bytes().decode()
    assert [sign for sign in "\r\x1b\x85\x00\u2028\u202e" if sign in raw] == []
    assert r"forged\r\x1b[31m\u2028[12:00:00]" in raw
    for each in raw.split("\n")[:-1]:
        assert re.match(rf"(?!\[12:00:00\]){CLOCK} \[|OWN horsies\.|    |LookupError: ", each), each


def test_the_example_of_the_page_gives_every_record_its_task(worker: Start) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "log.md"
    (example,) = re.findall(r"```python\n(LOGGING = .*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    process = worker("--processes=1", **with_logging(names["LOGGING"])).ready()
    handle = tasks.says.send("packed")
    assert handle.get().is_ok()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    about = f"tests.apps.project.tasks.says {handle.task_id} mail 1"
    line(process, rf"{stamp} INFO shop\.orders \[{about}\] packed")
    line(process, rf"{stamp} INFO horsies\.task \[{about}\] {named(handle)} completed in .* s")
    line(process, rf"{stamp} INFO horsies\.worker \[- - - 0\] Worker started")
