"""Write the schema of this release, with some rows, as SQL: ``python -m tests.upgrades.keep > tests/upgrades/VERSION.sql``.

Run it at a release, never later: it keeps what the release's own migrations made. It needs pg_dump, which comes with the server
binaries that the tests use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid

from example_project.postgres import private_postgres
from example_project.postgres_binaries import binaries_directory

OWN_ROWS = """
INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs, status, claimed_by, claim_generation, claimed_at, started_at,
                           finished_at, result, error_code, good_until)
VALUES
  ({ids[0]}, 'tests.project.tasks.noop', 'default', 'sync', '{{}}', 'PENDING', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  ({ids[1]}, 'tests.project.tasks.add', 'default', 'sync', '{{"a": 1}}', 'PENDING', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  ({ids[2]}, 'tests.project.tasks.noop', 'mail', 'sync', '{{}}', 'RUNNING', {ids[9]}, 1, now(), now(), NULL, NULL, NULL, NULL),
  ({ids[3]}, 'tests.project.tasks.anoop', 'default', 'async', '{{}}', 'COMPLETED', {ids[9]}, 1, now(), now(), now(),
   '{{"ok": null}}', NULL, NULL),
  ({ids[4]}, 'tests.project.tasks.raises', 'default', 'sync', '{{"message": "x"}}', 'FAILED', {ids[9]}, 1, now(), now(), now(),
   '{{"err": {{"error_code": "UNHANDLED_ERROR", "message": "x", "data": null, "exception": null}}}}', 'UNHANDLED_ERROR', NULL),
  ({ids[5]}, 'tests.project.tasks.noop', 'default', 'sync', '{{}}', 'EXPIRED', NULL, 0, NULL, NULL, now(),
   '{{"err": {{"error_code": "TASK_EXPIRED"}}}}', 'TASK_EXPIRED', now());
INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, started_at, finished_at, error_code, worker_id)
VALUES ({ids[3]}, 1, 1, 'COMPLETED', now(), now(), NULL, {ids[9]}),
       ({ids[4]}, 1, 1, 'FAILED', now(), now(), 'UNHANDLED_ERROR', {ids[9]});
INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, threads, async_concurrency)
VALUES ({ids[9]}, 'kept', 1, '0.1.0', '["default", "mail"]', 2, 1, 100);
INSERT INTO horsies_heartbeats (id, worker_id, role, pid) VALUES ({ids[9]}, {ids[9]}, 'claimer', 1);
"""


def main() -> None:
    """Migrate a private database with this release, add rows, and print all of it."""
    with private_postgres("kept", durable=False) as url:
        os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.settings")
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        ids = [f"'{uuid.UUID(int=(0x0193_0000_0000_7000 << 64) | (2 << 62) | number)}'" for number in range(10)]
        with connection.cursor() as cursor:
            cursor.execute(OWN_ROWS.format(ids=ids).replace("%", "%%"))
        dump = [str(binaries_directory() / "pg_dump"), "--no-owner", "--no-privileges", "--inserts", "--schema=public"]
        tables = ["--table=horsies_*", "--table=django_migrations"]
        schema = subprocess.run([*dump, *tables, url], capture_output=True, text=True, check=True).stdout
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_functiondef(oid) || ';' FROM pg_proc WHERE proname LIKE 'horsies%%' ORDER BY proname"
            )
            functions = "\n".join(row[0] for row in cursor.fetchall())
    # psql's own commands, settings of the session and the server's version are no part of a schema
    lines = [line for line in schema.splitlines() if not re.match(r"\\|SET |SELECT pg_catalog.set_config|--|$", line)]
    others = re.compile(r"INSERT INTO public\.django_migrations VALUES \(\d+, '(?!horsies')")
    kept = [line for line in lines if not others.match(line)]
    sys.stdout.write("\n".join([functions, *kept]) + "\n")


if __name__ == "__main__":
    main()
