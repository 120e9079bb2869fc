"""Databases of a single test, and processes of Python and Django commands.

The processes run in the tests' project or in the project of a directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from tests.support.pages import ROOT
from tests.support.workers import database_url

MANAGE = """
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""


def python(
    *words: str,
    cwd: Path = ROOT,
    timeout: float = 120,
    environment: dict[str, str] | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments.

    The environment is that of the tests, unless another one is given, plus these variables.
    """
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**(environment or os.environ), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def printed(*words: str, code: int = 0, **how: Any) -> str:
    """Run Python in the same way and return its output. The exit code has to be ``code``."""
    done = python(*words, **how)
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def manage(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the tests' project on the test database, as a shell would."""
    project = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()}
    return python("-m", "django", *words, **{**project, **variables})


class Site:
    """A project whose settings are the module ``settings`` in the directory."""

    def __init__(self, directory: Path, settings: str, url: str, **environment: str) -> None:
        self.directory = directory
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("DJANGO", "HORSIES"))
        }
        self.environment |= {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            **environment,
        }

    def run(self, *words: str, code: int = 0, **environment: str) -> str:
        return printed(
            *words, code=code, cwd=self.directory, environment=self.environment, **environment
        )

    def manage(self, *words: str, code: int = 0) -> str:
        return self.run("-m", "django", *words, code=code)


@contextmanager
def new_databases(prefix: str) -> Iterator[Callable[[], str]]:
    """Return a function that creates an empty database and returns its URL; drop all at the end."""
    made: list[str] = []
    base = database_url()

    with psycopg.connect(base, autocommit=True) as admin:

        def create() -> str:
            made.append(f"{prefix}_{uuid.uuid4().hex[:8]}")
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made[-1])))
            return f"{base.rpartition('/')[0]}/{made[-1]}"

        try:
            yield create
        finally:
            for name in made:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def fresh_database(prefix: str) -> Iterator[str]:
    """Create an empty database beside the tests' own, yield its URL, and drop it afterwards."""
    with new_databases(prefix) as create:
        yield create()


def libpq_variables(url: str) -> dict[str, str]:
    """Return the variables by which libpq, and a project without a URL, finds a database."""
    parts = urlsplit(url)
    return {
        "PGDATABASE": parts.path.removeprefix("/"),
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or 5432),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
    }
