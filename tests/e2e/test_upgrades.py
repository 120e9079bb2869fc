"""A database of an earlier release migrates to today's schema, and its tasks run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.conftest import wait_until
from tests.e2e.conftest import ROOT, WorkerProcess, database_url

pytestmark = pytest.mark.django_db(transaction=True)

KEPT = sorted((ROOT / "tests" / "upgrades").glob("*.sql"))
STATUSES = "SELECT status FROM horsies_tasks"
# What a worker of that release held when it was ended, and a task that was cancelled: states that the kept rows do not have.
MORE = """
INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs, status, claimed_by, claim_generation, claimed_at, finished_at,
                           result, error_code)
SELECT gen_random_uuid(), 'tests.project.tasks.noop', 'default', 'sync', '{}', more.status, w.id, 1, more.claimed_at,
       more.finished_at, more.result, more.error_code
FROM (VALUES ('CLAIMED', now() - interval '1 hour', NULL::timestamptz, NULL::jsonb, NULL),
             ('CANCELLED', NULL, now(), '{"err": {"error_code": "TASK_CANCELLED"}}', 'TASK_CANCELLED'))
     AS more (status, claimed_at, finished_at, result, error_code)
LEFT JOIN horsies_workers w ON more.status = 'CLAIMED'
"""


@pytest.fixture
def empty_database(transactional_db: None) -> Iterator[str]:
    """Give the URL of a fresh database."""
    name, url = f"upgrade_{uuid.uuid4().hex[:8]}", database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_the_kept_schema_migrates_and_its_tasks_run(
    empty_database: str, worker: Callable[..., WorkerProcess], kept: Path
) -> None:
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
        conn.execute("SET search_path = public")  # the dump emptied it
        conn.execute(MORE.encode())
        before = Counter(row[0] for row in conn.execute(STATUSES))
        ended = {"CANCELLED": 1, "EXPIRED": 1}
        assert before == {"PENDING": 2, "CLAIMED": 1, "RUNNING": 1, "COMPLETED": 1, "FAILED": 1, **ended}
        manage("migrate", "--verbosity=0")
        assert Counter(row[0] for row in conn.execute(STATUSES)) == before
        manage("horsies_worker", "--processes=1", "--until-empty")
        after = Counter(row[0] for row in conn.execute(STATUSES))
        assert after == {"CLAIMED": 1, "RUNNING": 1, "COMPLETED": 3, "FAILED": 1, **ended}
        process = worker("--processes=1", DATABASE_URL=empty_database).ready()
        last = {"COMPLETED": 4, "FAILED": 2, **ended}
        wait_until(
            lambda: Counter(row[0] for row in conn.execute(STATUSES)) == last, "what a dead worker held is rescued"
        )
        assert process.stop() == 0
        codes = conn.execute(
            "SELECT DISTINCT error_code FROM horsies_tasks WHERE status = 'FAILED' ORDER BY 1"
        ).fetchall()
        assert codes == [("UNHANDLED_ERROR",), ("WORKER_CRASHED",)]
