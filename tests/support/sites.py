"""A Django project in a directory, with a database of its own, whose commands run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from tests.support.pages import ROOT
from tests.support.workers import database_url


class Site:
    """A project whose settings are the module ``settings`` in the directory."""

    def __init__(self, directory: Path, settings: str, url: str, **environment: str) -> None:
        self.directory = directory
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "HORSIES"))
        }
        self.environment |= {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            **environment,
        }

    def run(self, *words: str, code: int = 0, **environment: str) -> str:
        """Run Python with these words; return what it printed. Its exit code has to be ``code``."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def manage(self, *words: str, code: int = 0) -> str:
        """Run a command of Django."""
        return self.run("-m", "django", *words, code=code)


@contextmanager
def new_databases(prefix: str) -> Iterator[Callable[[], str]]:
    """Give a function that creates an empty database and returns its URL; all of them are dropped in the end."""
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
