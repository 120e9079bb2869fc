"""A Django project of its own, with one app, whose tests pytest runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]

SETTINGS = """
import os

import environ

SECRET_KEY = "for tests only"
USE_TZ = True
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
DATABASES["default"]["NAME"] = os.environ.get("DATABASE_NAME", DATABASES["default"]["NAME"])
DATABASES["default"]["TEST"] = {"NAME": os.environ["TEST_DATABASE_NAME"]}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "horsies_django", "shop"]
HORSIES = {"QUEUES": {"mail": {}}}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
"""

MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""

INI = """
[pytest]
DJANGO_SETTINGS_MODULE = settings
django_find_project = false
pythonpath = .
addopts = --strict-markers -p no:cacheprovider
"""


class Finished(NamedTuple):
    """A run of pytest: its exit code, each test with its outcome, and what it printed."""

    code: int
    outcomes: list[tuple[str, str]]
    output: str


class Project:
    """A project in a directory; its tests get a database of their own."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root = root
        self.write({"settings.py": SETTINGS, "manage.py": MANAGE, "pytest.ini": INI, "shop/__init__.py": ""})
        self.write(files)

    def write(self, files: dict[str, str]) -> None:
        """Write files, by their paths in the project."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run_pytest(self, *options: str) -> Finished:
        """Run pytest in the project, with horsies_django of this checkout."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DJANGO"))}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"--junitxml={report}", *options],
            cwd=self.root,
            env={**kept, "PYTHONPATH": str(ROOT), "TEST_DATABASE_NAME": f"test_project_{uuid.uuid4().hex[:8]}"},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        return Finished(done.returncode, outcomes_in(report), done.stdout + done.stderr)


def outcomes_in(report: Path) -> list[tuple[str, str]]:
    """Return the tests of a JUnit report, and the outcome of each: passed, failure, error or skipped."""
    if not report.exists():
        return []
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return [(case.attrib["name"], outcome_of(case)) for case in cases]


def outcome_of(case: ElementTree.Element) -> str:
    """Return the outcome of a test."""
    return next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
