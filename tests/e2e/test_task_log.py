"""The log of a real worker about tasks.

A line when a task ends, the project's own records, and colors on a terminal only.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import re
from typing import Any

import pytest

from horsies_django import RetryPolicy, TaskHandle
from horsies_django.models import Task
from tests.apps.project import tasks, traps
from tests.conftest import put, wait_until
from tests.e2e.test_traps import drained
from tests.support.workers import ROOT, Start, WorkerProcess

CLOCK = r"\[\d\d:\d\d:\d\d\]"
SHAPES = [("--processes=1", "--threads=2"), ("--processes=0",)]


def with_logging(logging: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a worker whose project has this LOGGING."""
    return {"HORSIES_TEST_LOGGING": json.dumps({"version": 1, **logging})}


def line(process: WorkerProcess, pattern: str) -> str:
    """Wait for a line of the log that matches a whole pattern, and return it."""
    whole = re.compile(pattern)
    found: list[str] = wait_until(
        lambda: [each for each in process.log.splitlines() if whole.fullmatch(each)],
        f"a line {pattern}",
    )
    assert len(found) == 1
    return found[0]


def named(handle: TaskHandle[Any], attempt: int = 1) -> str:
    """Return the pattern with which lines name a task."""
    name = re.escape(Task.objects.get(pk=handle.task_id).task_name)
    return rf"{name} {handle.task_id} \(attempt {attempt}\)"


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
def test_log_records_of_the_project_name_their_task(
    worker: Start, options: tuple[str, ...]
) -> None:
    """A task has its own lines, and records of the project name their task."""
    process = worker(*options, "--loglevel=DEBUG").ready()

    for handle in (tasks.echo.send("a-secret"), tasks.anoop.send()):
        handle.get()
        line(process, rf"{CLOCK} \[task\] \[INFO\] {named(handle)} completed in \d+\.\d\d\d s")
        name = Task.objects.get(pk=handle.task_id).task_name
        line(process, rf"{CLOCK} \[task\] \[DEBUG\] {name} {handle.task_id} starts, attempt 1")

    for handle in (tasks.says.send("parcel 7 is packed"), tasks.asays.send("parcel 7 is packed")):
        line(process, rf"{CLOCK} \[shop\.orders\] \[INFO\] {named(handle)}: parcel 7 is packed")

    assert "a-secret" not in process.log  # neither arguments nor results


def test_only_a_final_failure_logs_a_traceback(
    shared_worker: WorkerProcess,
) -> None:
    """Each outcome has its line, and only a final failure has a traceback."""
    policy = RetryPolicy.fixed([0.1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    (expired,) = put(name=tasks.noop.name, good_until=dt.datetime.now(dt.UTC))
    fails = tasks.mails.with_options(retry_policy=policy).send(9)
    blames = tasks.blames.send("it was the weather")
    died = tasks.dies.send("kill")
    late = tasks.ignores_its_timeout.send()

    for handle in (fails, blames, died, late, tasks.says.send("not this", "DEBUG")):
        handle.get()

    why = r"failed in \d\.\d\d\d s: MAIL_DOWN: MailDown: no answer"
    killed = (
        rf"child \d+ was killed by SIGKILL: 1 task\(s\) crashed \({named(died)}\), "
        r".* starting another"
    )

    for pattern in (
        rf"{CLOCK} \[task\] \[INFO\] {named(fails)} {why}; retry 1 of 1 at \d\d:\d\d:\d\d",
        rf".*\[WARNING\] {named(blames)} returned an error in .* s: BLAMED: it was the weather",
        rf".*{killed}",
        rf".*\[ERROR\] {named(died)} failed in .*: WORKER_CRASHED: the process .* by SIGKILL.*",
        rf".*\[ERROR\] {named(late)} did not end \(timeout\); killing process \d+",
        rf".*\[ERROR\] {named(late)} failed in .*: TASK_TIMEOUT: .*",
        (
            r".*\[WARNING\] 1 task\(s\) expired before they started "
            rf"\({tasks.noop.name} {expired} \(attempt 1\)\)"
        ),
    ):
        line(shared_worker, pattern)

    wait_until(lambda: "raise MailDown" in shared_worker.log, "the traceback is there")
    assert shared_worker.log.count("Traceback (most recent call last)") == 1
    assert not re.search("secret|not this|\x1b", shared_worker.log)


@pytest.mark.promise("S2.11")
def test_the_option_sets_the_level_of_worker_and_project_records(
    worker: Start,
) -> None:
    """``--loglevel`` is the level of the records of the worker and the project."""
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
OWN = {
    "formatters": {"own": {"format": "OWN %(name)s %(levelname)s %(message)s"}},
    "handlers": {"console": CONSOLE},
}


def test_the_logging_of_the_project_shows_no_line_twice(worker: Start) -> None:
    """The logging of the project is not changed, and each record is shown once.

    The project configures the root logger with its own level, handler and format, or one logger
    with its own handler.
    """
    chosen = {**OWN, "root": {"handlers": ["console"], "level": "WARNING"}}
    process = worker("--processes=1", **with_logging(chosen))

    for text, level in (("hidden", "INFO"), ("shown", "WARNING")):
        assert tasks.says.send(text, level).get().is_ok()

    for text in (
        "OWN shop.orders WARNING shown\n",
        "OWN horsies.task INFO tests.apps.project.tasks.says ",
    ):
        wait_until(
            lambda text=text: text in process.log, "the project's handler writes it, and our lines"
        )

    assert (
        process.log.count("shown"),
        process.log.count("hidden"),
        process.log.count("[task]"),
    ) == (1, 0, 0)
    assert process.stop() == 0

    process = worker(
        "--processes=1", **with_logging({**OWN, "loggers": {"shop": {"handlers": ["console"]}}})
    )

    handle = tasks.says.send("once")
    line(process, rf"{CLOCK} \[task\] \[INFO\] {named(handle)} completed in .*")
    assert process.log.count("OWN shop.orders INFO once\n") == process.log.count("once") == 1


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_disabled_loggers_do_not_silence_the_children(worker: Start, start_method: str) -> None:
    """A project that disables existing loggers does not silence the children of the worker."""
    chosen = {
        **OWN,
        "disable_existing_loggers": True,
        "root": {"handlers": ["console"], "level": "INFO"},
    }

    process = worker(
        "--processes=1",
        f"--start-method={start_method}",
        "--loglevel=DEBUG",
        **with_logging(chosen),
    )

    handle = traps.wreck.send("directory")
    assert handle.get().is_ok()

    name = f"tests.apps.project.traps.wreck {handle.task_id}"
    for said in (
        f"OWN horsies.task DEBUG {name} starts",
        f"OWN horsies.worker WARNING {name} changed process state",
        f"OWN horsies.task INFO {name} (attempt 1) completed",
    ):
        wait_until(lambda said=said: said in process.log, said)


def test_the_example_of_the_page_gives_every_record_its_task(worker: Start) -> None:
    page = ROOT / "docs" / "howto" / "log.md"
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


def test_outcomes_have_colors_on_a_terminal(worker: Start) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)

    tasks.add.send(1)
    terminal = ("sh", "-c", f'exec "$@" 2>{os.ttyname(theirs)}', "sh")
    usual = {"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": "", "DJANGO_COLORS": ""}
    process = worker("--processes=1", "--until-empty", prefix=terminal, **usual)

    shown: list[bytes] = []
    wait_until(
        lambda: shown.append(drained(ours)) or b"Worker stopped" in b"".join(shown),
        "it shows its last line",
    )

    assert process.wait() == 0
    assert b"\x1b[32;1mcompleted\x1b[0m in" in b"".join(shown)

    for end in (ours, theirs):
        os.close(end)
