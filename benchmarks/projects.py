"""Projects: the start and the memory of a worker, and the cost of connections kept or closed.

- *start*: from the start of the command to the result of a task that waits; and *memory*: of all
  processes, as PSS (see ``benchmarks.memory``), after a thousand tasks. The worker has two
  processes, in a project that consists of the queue, and in one with an app of 200 modules.
- *one query*: a task that counts a table through Django's ORM, with connections that are kept as by
  default, and with ``CHILD_CONN_MAX_AGE`` 0. The median time from a send to its result, and the
  rate of sends one by one to the last result.

If the environment has BENCH_REDIS_URL, a database of Redis that is the benchmark's own, Celery does
the same with ``--concurrency=2``, and with ``CONN_MAX_AGE`` at 0 and at 60.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import Case, Goal, Reading
from benchmarks.load import tasks
from benchmarks.machine import empty_tables, running, worker
from benchmarks.memory import steady

MODULES = 200
CLASSES = 15
WARM = 1_000
LONE = 200
MANY = 2_000
# A module of a project has some kilobytes of code and of constants.
CLASS = """
@dataclasses.dataclass
class Thing{n}:
    number: int
    text: str = "{module}.{n}"
    anything: typing.Any = None

    def several(self, count):
        if count > {n}:
            return [self.number * each for each in range(count)]
        return {{"number": self.number, "text": self.text, "count": {n}}}


def pairs{n}(count, start=({module}, {n})):
    found = []
    for each in range(count):
        found.append((each, start, "text {module} {n}", {{"key {n}": each}}))
    return found


TABLE{n} = {{str(each): [each, each * {n}, "value %d" % each] for each in range(30)}}
"""
GOALS: tuple[Goal, ...] = ()


class Horsies:
    """Workers of Horsies, and a client of theirs."""

    tasks: Any = tasks
    name = "projects"
    closing = {"BENCH_CHILD_CONN_MAX_AGE": "0"}
    keeping = dict[str, str]()

    def empty(self) -> None:
        """Begin with no task."""
        empty_tables()

    def working(self, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a worker during the block."""
        return worker(
            "--processes=2", DJANGO_SETTINGS_MODULE="benchmarks.settings_projects", **environment
        )

    def send(self, task: Any) -> Any:
        """Send a task that takes a number."""
        return task.send(0)

    def get(self, sent: Any) -> None:
        """Wait for its result."""
        sent.get(60_000).unwrap()


class Celery:
    """The same for Celery."""

    name = "projects Celery"
    closing = {"BENCH_CONN_MAX_AGE": "0"}
    keeping = {"BENCH_CONN_MAX_AGE": "60"}

    def __init__(self) -> None:
        from benchmarks import celery_app

        self.tasks = celery_app

    def empty(self) -> None:
        """Begin with no task."""
        self.tasks.app.control.purge()

    def working(self, **environment: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a worker during the block."""
        environment |= {
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings_projects",
            "BENCH_CELERY": "1",
            "C_FORCE_ROOT": "1",
        }
        command = ("--app=benchmarks.celery_app", "worker", "--concurrency=2", "--loglevel=ERROR")
        return running(*command, program="celery", **environment)

    def send(self, task: Any) -> Any:
        """Send a task that takes a number."""
        return task.delay(0)

    def get(self, sent: Any) -> None:
        """Wait for its result."""
        sent.get(timeout=60)


def cases(scale: float) -> Sequence[Case]:
    """Return a case per size of a project, and one per life of a connection, for each queue."""
    queues = [Horsies(), Celery()] if "BENCH_REDIS_URL" in os.environ else [Horsies()]
    return [
        Case(f"{queue.name}, {name}", partial(measure, queue, f"{queue.name}, {name}", scale, *of))
        for queue in queues
        for name, measure, of in (
            ("the queue only", starts, (0,)),
            (f"{MODULES} modules", starts, (MODULES,)),
            ("one query, connections kept", queries, (queue.keeping,)),
            ("one query, connections closed", queries, (queue.closing,)),
        )
    ]


def starts(queue: Any, name: str, scale: float, modules: int) -> Sequence[Reading]:
    """Start a worker for a waiting task, run more tasks, and read the memory."""
    queue.empty()
    with written(modules) as environment:
        first = queue.send(queue.tasks.noop)
        began = time.perf_counter()
        with queue.working(**environment) as process:
            queue.get(first)
            seconds = time.perf_counter() - began

            run(queue, queue.tasks.noop, max(20, round(WARM * scale)))
            family = [
                process.pid,
                *(child.pid for child in psutil.Process(process.pid).children(recursive=True)),
            ]
            found = steady(family)

    return [
        Reading(f"{name}, start", seconds, "s"),
        Reading(f"{name}, memory", found, "MB", {"processes": len(family)}),
    ]


@contextmanager
def written(modules: int) -> Iterator[dict[str, str]]:
    """Write an app that loads so many modules with its models; yield an environment with it."""
    if not modules:
        yield {}
        return

    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory, "bench_site")
        site.mkdir()

        for module in range(modules):
            classes = (CLASS.format(module=module, n=n) for n in range(CLASSES))
            (site / f"module{module}.py").write_text(
                "\n".join(["import dataclasses\nimport typing\n", *classes])
            )

        imports = (f"from bench_site import module{module}" for module in range(modules))
        (site / "__init__.py").touch()
        (site / "models.py").write_text("\n".join(imports))
        yield {"PYTHONPATH": directory, "BENCH_APPS": "bench_site"}


def queries(queue: Any, name: str, scale: float, environment: dict[str, str]) -> Sequence[Reading]:
    """Send tasks one after another, each after the result of the one before; then many at once."""
    queue.empty()
    waits = []
    many = max(20, round(MANY * scale))

    with queue.working(**environment):
        run(queue, queue.tasks.users, 20)

        for _ in range(max(20, round(LONE * scale))):
            began = time.perf_counter()
            queue.get(queue.send(queue.tasks.users))
            waits.append(time.perf_counter() - began)

        began = time.perf_counter()
        run(queue, queue.tasks.users, many)
        rate = many / (time.perf_counter() - began)

    lone = Reading(f"{name}, send to result, p50", statistics.median(waits) * 1000, "ms")
    return [lone, Reading(f"{name}, sent and run", rate, "tasks/s")]


def run(queue: Any, task: Any, count: int) -> None:
    """Send so many tasks one by one, and wait for all their results."""
    for sent in [queue.send(task) for _ in range(count)]:
        queue.get(sent)
