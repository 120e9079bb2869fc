"""The tutorial page, done from its first command to its last: ``startproject``, its files, its tests, its worker."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.conftest import wait_until
from tests.support.workers import ROOT, database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

PAGE = (ROOT / "docs" / "tutorial" / "first-task.md").read_text()
# In the order of the page: a file to write, or a command to run
STEPS = [
    (code.splitlines()[0].removeprefix("# "), code) if language == "python" else ("", line)
    for language, code in re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
    for line in (code.splitlines() if language == "sh" else [code])
]
# What the fixture has done already, and what a machine cannot type
ELSEWHERE = ("python3 -m venv", ". ../shop-env", "pip install", "createdb", "cd ")


@pytest.fixture
def environment(transactional_db: None) -> Iterator[dict[str, str]]:
    """Give an environment whose PostgreSQL is the test server, with a fresh database."""
    name, url = f"shop_{uuid.uuid4().hex[:8]}", database_url()
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "HORSIES"))},
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PGDATABASE": name,
            "PGHOST": parts.hostname or "",
            "PGPORT": str(parts.port or 5432),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
            "DJANGO_SUPERUSER_USERNAME": "ada",
            "DJANGO_SUPERUSER_PASSWORD": uuid.uuid4().hex,
            "DJANGO_SUPERUSER_EMAIL": "ada@example.org",
        }
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory, self.environment = directory, environment
        self.project = directory / "shop"
        self.printed: dict[str, str] = {}
        self.worker: subprocess.Popen[str] | None = None

    def follow(self) -> None:
        for name, text in STEPS:
            if name:
                self.write(name, text)
            elif text.startswith("django-admin"):
                self.run(["-m", "django", *shlex.split(text)[1:]], self.directory)
            elif not text.startswith((*ELSEWHERE, "python manage.py runserver")):
                self.manage(text)

    def write(self, name: str, text: str) -> None:
        target = self.project / name
        if name == "shop/settings.py":
            text = target.read_text() + text  # "Add to", says the page
        target.write_text(text)

    def manage(self, command: str) -> None:
        words = shlex.split(command)[1:]
        if words[1] == "horsies_worker" and "--until-empty" not in words:
            self.worker = subprocess.Popen(
                [sys.executable, *words], cwd=self.project, env=self.environment, stderr=subprocess.PIPE, text=True
            )
            return
        if words[1] == "createsuperuser":
            words.append("--noinput")
        self.printed[command] = self.run(words, self.project)

    def run(self, words: list[str], cwd: Path) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def said(self, part: str) -> str:
        """Return what the one command with ``part`` in it printed."""
        (printed,) = [printed for command, printed in self.printed.items() if part in command]
        return printed


def test_the_tutorial_works_as_it_is_printed(environment: dict[str, str], tmp_path: Path) -> None:
    reader = Reader(tmp_path, environment)
    try:
        reader.follow()
        assert "no issues" in reader.said("manage.py check")
        assert uuid.UUID(reader.said("confirm.send").strip().splitlines()[-1])
        assert "Worker stopped" in reader.said("--until-empty")
        assert "('orders.tasks.confirm', 'COMPLETED')" in reader.said("values_list")
        assert "Ran 3 tests" in reader.said("manage.py test")
        assert "OK" in reader.said("manage.py test")
        assert uuid.UUID(reader.said("count_orders").strip().splitlines()[-1])
        assert "orders.reports.count_orders" in reader.said("horsies_task list")
        assert reader.worker is not None
        (send,) = [command for command in reader.printed if "confirm.send" in command]
        reader.manage(send)
        with psycopg.connect("", autocommit=True, **connection_of(environment)) as conn:
            done = "SELECT count(*) = 3 FROM horsies_tasks WHERE status = 'COMPLETED'"
            wait_until(lambda: conn.execute(done).fetchone() == (True,), "the second worker ran the second task")
        reader.worker.send_signal(signal.SIGINT)
        assert reader.worker.wait(60) == 0
    finally:
        if reader.worker is not None:
            reader.worker.kill()
            reader.worker.communicate()


def connection_of(environment: dict[str, str]) -> dict[str, str]:
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
    return {key: environment[name] for key, name in names.items() if environment[name]}
