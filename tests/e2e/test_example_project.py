"""The example project's own tests pass: views, signals, tasks and pages of a project that uses the queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 100


def test_the_example_projects_own_tests_pass() -> None:
    server, _, query = os.environ["DATABASE_URL"].partition("?")
    # A name of its own: Django's test database is called after it, and other tests run on the same server.
    url = f"{server.rpartition('/')[0]}/library_{uuid.uuid4().hex[:12]}" + (f"?{query}" if query else "")
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "example_project", "--noinput"],
        cwd=ROOT, env={**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": url},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran
    assert int(ran[1]) >= 40
