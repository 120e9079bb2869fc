"""A database of an earlier release migrates to today's schema, and its tasks run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.e2e.conftest import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

KEPT = sorted((ROOT / "tests" / "upgrades").glob("*.sql"))
STATUSES = "SELECT status FROM horsies_tasks"


@pytest.fixture
def empty_database(transactional_db: None) -> Iterator[str]:
    """Give the URL of a fresh database."""
    name, url = f"upgrade_{uuid.uuid4().hex[:8]}", database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_kept_schema_migrates_and_its_tasks_run(empty_database: str, kept: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": empty_database}

    def manage(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "django", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(kept.read_text().encode(), prepare=False)
        before = Counter(row[0] for row in conn.execute(STATUSES))
        assert before == {"PENDING": 2, "RUNNING": 1, "COMPLETED": 1, "FAILED": 1, "EXPIRED": 1}
        manage("migrate", "--verbosity=0")
        assert Counter(row[0] for row in conn.execute(STATUSES)) == before
        manage("horsies_worker", "--processes=1", "--until-empty")
        after = Counter(row[0] for row in conn.execute(STATUSES))
        assert after == {"RUNNING": 1, "COMPLETED": 3, "FAILED": 1, "EXPIRED": 1}
