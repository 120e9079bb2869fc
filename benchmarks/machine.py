"""What a measurement runs on: a fresh database, real worker processes, and the versions to write beside the figures."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import psycopg
from django.core.management import call_command
from django.db import connection

ROOT = Path(__file__).parents[1]


def prepare(url: str) -> None:
    """Set Django up on ``url`` and migrate."""
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    call_command("migrate", verbosity=0)


def empty_tables() -> None:
    """Begin a measurement with no task, no dead row and fresh statistics."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_workers, horsies_heartbeats")
        cursor.execute("CHECKPOINT")


@contextmanager
def worker(*options: str, wait: bool = False, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker meanwhile; with ``wait`` until it ends by itself. Raises RuntimeError with its log when it fails.

    Its children live as long as it does, unless ``options`` say otherwise: what replacing them costs is a measurement of its own.
    """
    command = [
        sys.executable,
        "-m",
        "django",
        "horsies_worker",
        "--loglevel=WARNING",
        "--max-tasks-per-child=0",
        *options,
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            yield process
            if wait and process.wait(600):
                log.seek(0)
                raise RuntimeError(f"the worker failed: {log.read().decode(errors='replace')}")
        finally:
            process.terminate()
            process.wait(60)


def raise_storm(module: str, *options: str) -> dict[str, Any]:
    """Run a storm as a program of its own, with settings of its own, and return what it printed.

    Raises RuntimeError when it comes to no verdict.
    """
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"the storm ended with exit code {done.returncode} and no verdict")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def versions() -> dict[str, str]:
    """Return what the figures depend on."""
    import horsies_django

    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        server = cursor.fetchone()[0].split(" ")[0]
        cursor.execute("SHOW synchronous_commit")
        synchronous = cursor.fetchone()[0]
    return {
        "horsies_django": horsies_django.__version__,
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "postgresql": f"{server}, synchronous_commit {synchronous}",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs",
    }


def report(name: str, n: int, seconds: float, configuration: str, samples: Sequence[float] = ()) -> dict[str, Any]:
    """Print one measurement; ``samples`` are seconds per item and become p50 and p99 in milliseconds."""
    line: dict[str, Any] = {"name": name, "n": n, "seconds": round(seconds, 6), "rate": round(n / seconds, 1)}
    if samples:
        cuts = statistics.quantiles(samples, n=100)
        line |= {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}
    line |= {"configuration": configuration, "versions": versions()}
    print(json.dumps(line), flush=True)
    return line
