"""Databases of a test's own, and commands of the tests' project as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from tests.support.workers import ROOT, database_url


@contextmanager
def fresh_database(prefix: str) -> Iterator[str]:
    """Make an empty database beside that of the tests, give its URL, and drop it afterwards."""
    name, url = f"{prefix}_{uuid.uuid4().hex[:8]}", database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def libpq_variables(url: str) -> dict[str, str]:
    """Return the variables by which libpq finds a database, and with it a project that names none."""
    parts = urlsplit(url)
    return {
        "PGDATABASE": parts.path.removeprefix("/"),
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or 5432),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
    }


def manage(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own, as a shell or a service manager would."""
    variables = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url(), **environment}
    command = [sys.executable, "-m", "django", *words]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False
    )
