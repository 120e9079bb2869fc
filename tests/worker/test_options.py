"""The options of a worker: one set of names and defaults for the command line, for ``run()``, and for what reaches the pool."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import Any

import pytest

from horsies_django.core.errors import WorkerStartError
from horsies_django.management.commands.horsies_scheduler import Command as SchedulerCommand
from horsies_django.management.commands.horsies_worker import Command
from horsies_django.worker import run, run_scheduler
from horsies_django.worker.process.options import WorkerOptions, refuse_impossible


def defaults(function: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def parsed(command: Any, *given: str) -> dict[str, Any]:
    """Return the options of our own that a command line comes to."""
    known = {"verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks", "version"}
    options = vars(command.create_parser("manage.py", "horsies").parse_args(given))
    return {name: value for name, value in options.items() if name not in known}


@pytest.mark.promise("S3.11")
def test_run_takes_the_options_of_the_command_with_the_same_names_and_defaults() -> None:
    assert {**defaults(run), "reload": False} == parsed(Command())  # which runs the command line again
    assert defaults(run_scheduler) == parsed(SchedulerCommand())


def test_what_the_command_line_leaves_out_is_what_the_record_has_by_default() -> None:
    record = {field.name: field.default for field in fields(WorkerOptions) if field.default is not MISSING}
    assert {name: value for name, value in parsed(Command()).items() if name in record} == record


@pytest.mark.promise("S1.20")
def test_without_the_option_a_child_has_no_memory_limit() -> None:
    assert parsed(Command())["max_memory_per_child_mb"] is None
    assert WorkerOptions(queues=(), processes=1).max_memory_per_child_mb is None
    assert parsed(Command(), "--max-memory-per-child-mb=0.5")["max_memory_per_child_mb"] == 0.5


def test_the_usable_cpus_are_those_that_this_process_may_use_and_not_those_of_the_machine() -> None:
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}}); "
        "from horsies_django.worker.process.options import usable_cpus; print(usable_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"processes": -1}, "--processes: -1 is not a whole number of at least 0"),
        ({"threads": 0}, "--threads: 0 is not a whole number of at least 1"),
        ({"async_concurrency": 1.5}, "--async-concurrency: 1.5 is not"),
        ({"max_claim_batch": None}, "--max-claim-batch: None is not"),
        ({"max_tasks_per_child": True}, "--max-tasks-per-child: True is not"),
        ({"shutdown_timeout": -1}, "--shutdown-timeout: -1 is not a number of seconds"),
        ({"max_memory_per_child_mb": 0}, "--max-memory-per-child-mb: 0 is not a number of megabytes"),
        ({"start_method": "fork"}, "--start-method: 'fork' is not one of forkserver, spawn"),
        ({"loglevel": "LOUD"}, "--loglevel: 'LOUD' is not one of DEBUG"),
        ({"health_port": 70_000}, "--health-port: 70000 is not a port"),
        ({"processes": 0, "max_memory_per_child_mb": 500}, "--processes=0 has no children"),
        ({"processes": 0, "max_tasks_per_child": 5}, "--processes=0 has no children"),
    ],
)
def test_values_that_the_command_line_would_not_take_are_refused_from_code_too(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(WorkerStartError) as caught:
        refuse_impossible(WorkerOptions(**{"queues": ("default",), "processes": 1, **wrong}))
    assert words in str(caught.value)
