"""The environment of a measurement: a fresh database, real worker processes, and the versions."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import django
import psycopg
from django.core.management import call_command
from django.db import connection

from example_project.postgres import private_postgres
from example_project.postgres_binaries import binaries_directory

ROOT = Path(__file__).parents[1]
CHUNK = 20_000
PATIENCE_SECONDS = 600
# Soft mode (workers in hard mode, the default, claim only tasks that start at once), as variables
# of settings.py.
SOFT = {"BENCH_PREFETCH_BUFFER": "500", "BENCH_CLAIM_LEASE_MS": "30000"}
# Of tasks in a backlog, the one sent last ends among the last: until it has, the unfinished tasks
# are not counted.
LAST_ENDED = "SELECT finished_at IS NOT NULL FROM horsies_tasks WHERE id = %s"
DRAINED = (
    "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at)) FROM horsies_tasks "
    "WHERE status = 'COMPLETED'"
)
MIDDLE = """
SELECT count(*), extract(epoch FROM percentile_disc(0.9) WITHIN GROUP (ORDER BY finished_at)
                                  - percentile_disc(0.1) WITHIN GROUP (ORDER BY finished_at))
FROM horsies_tasks WHERE status = 'COMPLETED'
"""
ALL_ENDED = "SELECT NOT EXISTS (SELECT FROM horsies_tasks WHERE finished_at IS NULL)"


@contextmanager
def own_server() -> Iterator[str]:
    """Run a private server with the durability of the defaults; yield its URL.

    It counts statements if its binaries can.
    """
    counts = any((binaries_directory().parent / "lib").rglob("pg_stat_statements.*"))
    settings: dict[str, object] = {"max_connections": 300}  # three for each of 64 workers
    if counts:
        settings["shared_preload_libraries"] = "pg_stat_statements"

    with private_postgres("benchmarks", None, durable=True, **settings) as url:
        if counts:
            with psycopg.connect(url) as direct:
                direct.execute("CREATE EXTENSION pg_stat_statements")

        yield url


def prepare(url: str) -> None:
    """Set Django up on ``url`` and migrate."""
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    call_command("migrate", verbosity=0)


def empty_tables() -> None:
    """Begin a measurement with no task, no dead row and fresh statistics."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE horsies_tasks, horsies_task_attempts, horsies_task_steps, horsies_workers, "
            "horsies_heartbeats, "
            "horsies_workflows, horsies_workflow_nodes, horsies_workflow_edges, "
            "horsies_workflow_signals"
        )
        cursor.execute("CHECKPOINT")


def backlog(task: Any, n: int) -> uuid.UUID:
    """Send ``n`` tasks that take a number, in chunks; return the last one's id.

    Vacuum the tables afterwards, as autovacuum would.
    """
    for start in range(0, n, CHUNK):
        handles = task.send_many([{"n": number} for number in range(start, min(start + CHUNK, n))])

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks")

    last: uuid.UUID = handles[-1].task_id
    return last


def wait_for(condition: str, *params: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a query returns true.

    Raises RuntimeError after ten minutes, or at once if ``process`` has ended.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS

    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(condition, params)
            if cursor.fetchone()[0]:
                return

            if process is not None and process.poll() is not None:
                raise RuntimeError(
                    f"the worker ended with exit code {process.returncode} before: {condition}"
                )
            time.sleep(0.1)

    raise RuntimeError(f"not within {PATIENCE_SECONDS} seconds: {condition}")


def drained(n: int) -> float:
    """Return the seconds from the first start to the last settle.

    Raises RuntimeError if not every task completed.
    """
    return completed(n, DRAINED)


def middle(n: int) -> float:
    """Return the seconds of the middle eight tenths, without the first claims and the last ends.

    Raises RuntimeError if not every task completed.
    """
    return completed(n, MIDDLE)


def completed(n: int, query: str) -> float:
    """Return the seconds that a query returns beside the count of completed tasks.

    Raises RuntimeError if that is not ``n``.
    """
    with connection.cursor() as cursor:
        cursor.execute(query)
        count, seconds = cursor.fetchone()

    if count != n:
        raise RuntimeError(f"{count} of {n} tasks completed")
    return max(float(seconds), 1e-6)


def worker(
    *options: str, wait: bool = False, **environment: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a worker during the block, as ``running`` does; other ``options`` have their defaults."""
    return running("horsies_worker", *options, wait=wait, **environment)


@contextmanager
def running(
    *command: str, wait: bool = False, program: str = "django", **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command during the block; with ``wait`` until it ends by itself.

    Raises RuntimeError if it fails, and adds its log to any error.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", program, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )

        try:
            yield process
            if wait and process.wait(PATIENCE_SECONDS):
                raise RuntimeError(f"{command[0]} failed")
        except RuntimeError as error:
            log.seek(0)
            error.add_note(f"The log of {command[0]}: {log.read().decode(errors='replace')}")
            raise
        finally:
            process.terminate()
            process.wait(60)


def raise_storm(module: str, *options: str) -> dict[str, Any]:
    """Run a storm as a program with settings of its own, and return its output.

    Raises RuntimeError if it prints no verdict.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    command = [sys.executable, "-m", module, *options]

    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if not done.stdout:
        raise RuntimeError(f"the storm ended with exit code {done.returncode} and no verdict")

    found: dict[str, Any] = json.loads(done.stdout)
    return found


def versions() -> dict[str, str]:
    """Return the versions that the figures depend on."""
    import horsies_django

    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        server = cursor.fetchone()[0].split(" ")[0]
        cursor.execute("SHOW synchronous_commit")
        synchronous = cursor.fetchone()[0]
        cursor.execute("SHOW fsync")
        fsync = cursor.fetchone()[0]

    return {
        "horsies_django": horsies_django.__version__,
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "postgresql": f"{server}, synchronous_commit {synchronous}, fsync {fsync}",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs",
    }


def report(
    name: str, n: int, seconds: float, configuration: str, samples: Sequence[float] = ()
) -> dict[str, Any]:
    """Print one measurement.

    ``samples`` are seconds per item and become p50 and p99 in milliseconds.
    """
    line: dict[str, Any] = {
        "name": name,
        "n": n,
        "seconds": round(seconds, 6),
        "rate": round(n / seconds, 1),
    }

    if samples:
        cuts = statistics.quantiles(samples, n=100)
        line |= {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}

    line |= {"configuration": configuration, "versions": versions()}
    print(json.dumps(line), flush=True)
    return line
