"""The pytest plugin, found by its entry point, in projects with and without Django."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.sites import MANAGE, ROOT, python

# A project of its own with one app, in which pytest runs

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

INI = """
[pytest]
DJANGO_SETTINGS_MODULE = settings
django_find_project = false
pythonpath = .
addopts = --strict-markers -p no:cacheprovider
"""


class Finished(NamedTuple):
    """A run of pytest: its exit code, the outcome and name of each test, and its output."""

    code: int
    outcomes: list[tuple[str, str]]
    output: str


def run_pytest(root: Path, files: dict[str, str], *options: str) -> Finished:
    """Run pytest in a project of these files, with horsies_django of this checkout.

    The tests of the project get their own database.
    """
    for name, text in {
        "settings.py": SETTINGS,
        "pytest.ini": INI,
        "shop/__init__.py": "",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "DJANGO"))
    }
    variables = {
        "PYTHONPATH": str(ROOT),
        "TEST_DATABASE_NAME": f"test_project_{uuid.uuid4().hex[:8]}",
    }

    done = python("-m", "pytest", "-rA", *options, cwd=root, environment=kept, **variables)
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) \S+::(\S+)", done.stdout, re.MULTILINE)
    return Finished(done.returncode, outcomes, done.stdout + done.stderr)


# The plugin


TASKS = """
from django.contrib.auth.models import Group
from horsies_django import task

@task
def note(name: str) -> None:
    Group.objects.create(name=name)

@task
def refuse() -> None:
    raise LookupError("no such thing")
"""

FIXTURES = """
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from horsies_django.testing import Kit
from shop.tasks import note, refuse

@pytest.fixture
def noted(db):
    note.send("before the fixture")

def test_the_kit_begins_where_it_is_set_up_and_requests_the_database(noted, horsies: Kit):
    note.send("one")
    assert horsies.assert_sent(note, count=1)[0].kwargs == {"name": "one"}
    assert horsies.drain() == 2
    assert connection.in_atomic_block

def test_the_kit_in_a_test_that_commits(transactional_db, horsies):
    with transaction.atomic():
        note.send("one")
    assert not connection.in_atomic_block
    assert horsies.drain() == 1

def test_the_fixture_before_the_database(horsies_immediate, db):
    note.send("one")
    assert Group.objects.count() == 1

@pytest.fixture
def made(db, horsies_immediate):
    note.send("made")

def test_the_fixture_in_fixtures(made):
    assert Group.objects.get().name == "made"

def test_a_failed_task_fails_the_test(db, horsies_immediate):
    refuse.send()

def test_nothing_is_left_of_it(db):
    note.send("one")
    assert Group.objects.count() == 0
    assert connection.execute_wrappers == []
"""

MARKED = """
import pytest
from django.contrib.auth.models import Group
from django.test import TestCase
from shop.tasks import note, refuse

pytestmark = [pytest.mark.django_db, pytest.mark.horsies_immediate]

def test_a_marked_module():
    note.send("one")
    assert Group.objects.count() == 1

class Marked(TestCase):
    def setUp(self):
        note.send("set up")

    def test_a_case_of_a_marked_module(self):
        assert Group.objects.count() == 1

    def test_a_failed_task_in_a_case(self):
        refuse.send()

@pytest.mark.horsies_immediate(raise_errors=False)
def test_with_arguments():
    refuse.send()

@pytest.mark.horsies_immediate(raise_error=False)
def test_with_wrong_arguments():
    pass

async def test_on_an_event_loop():
    pass

class Async(TestCase):
    async def test_an_async_case(self):
        await note.asend("async")
        assert await Group.objects.acount() == 1
"""

ONE_OF_TWO = """
import pytest
from django.contrib.auth.models import Group
from shop.tasks import note

@pytest.mark.django_db
@pytest.mark.parametrize("many", [0, pytest.param(1, marks=pytest.mark.horsies_immediate)])
def test_one_of_two(many):
    note.send("one")
    assert Group.objects.count() == many
"""


@pytest.mark.django_db
def test_the_fixtures_and_the_marker_work_as_documented(tmp_path: Path) -> None:
    """Fails if: a failed task is an error of the teardown, the marker of one parameter applies to
    all parameters, or a fixture is set up too late.
    """
    files = {
        "shop/tasks.py": TASKS,
        "test_fixtures.py": FIXTURES,
        "test_marked.py": MARKED,
        "test_one_of_two.py": ONE_OF_TWO,
    }

    done = run_pytest(tmp_path, files)

    assert {(outcome, name) for outcome, name in done.outcomes if outcome != "PASSED"} == {
        ("FAILED", "test_a_failed_task_fails_the_test"),
        ("FAILED", "test_a_failed_task_in_a_case"),
        ("ERROR", "test_with_wrong_arguments"),
        ("ERROR", "test_on_an_event_loop"),
    }, done.output
    assert len(done.outcomes) == 15, done.output
    assert "UNHANDLED_ERROR: LookupError: no such thing" in done.output
    assert "unexpected keyword argument 'raise_error'" in done.output
    assert "write 'async with immediate():' in the test" in done.output


WITHOUT = """
import sys

def test_nothing_of_django_is_imported():
    assert "horsies_django.testing.pytest_plugin" in sys.modules
    roots = {name.partition(".")[0] for name in sys.modules}
    assert not roots & {"django", "psycopg", "asgiref", "croniter"}
    assert {name for name in sys.modules if name.startswith("horsies_django")} == {
        "horsies_django", "horsies_django.core", "horsies_django.core.lazy",
        "horsies_django.testing", "horsies_django.testing.pytest_plugin",
    }

def test_the_marker_is_registered(request):
    (line,) = [line for line in request.config.getini("markers") if line.startswith("horsies")]
    assert line.startswith("horsies_immediate(*, queues=None, raise_errors=True)")

def test_the_kit(horsies):
    pass

def test_at_once(horsies_immediate):
    pass
"""


def test_a_project_without_django_does_not_import_django(tmp_path: Path) -> None:
    """A project without Django imports nothing of it, and an error names the missing parts.

    Fails if: every pytest run in the environment imports Django, or fails because settings are
    missing.
    """
    files = {"test_without.py": WITHOUT, "pytest.ini": "[pytest]\naddopts = --strict-markers\n"}

    done = run_pytest(tmp_path, files, "-p", "no:django")

    assert set(done.outcomes) == {
        ("PASSED", "test_nothing_of_django_is_imported"),
        ("PASSED", "test_the_marker_is_registered"),
        ("ERROR", "test_the_kit"),
        ("ERROR", "test_at_once"),
    }, done.output
    assert "install pytest-django and set DJANGO_SETTINGS_MODULE" in done.output


def test_the_fixture_reports_a_project_without_the_app(tmp_path: Path) -> None:
    settings = SETTINGS.replace('"horsies_django", "shop"', '"shop"')

    done = run_pytest(
        tmp_path, {"settings.py": settings, "test_app.py": "def test_the_kit(horsies): pass"}
    )

    assert done.outcomes == [("ERROR", "test_the_kit")]
    assert "'horsies_django' in INSTALLED_APPS" in done.output


# The page about tests is a project: the tests collect its files and run pytest on them

PAGE = ROOT / "docs" / "howto" / "test-your-tasks.md"


def files_of_the_page() -> dict[str, str]:
    """Return the blocks of code by the path in the first line of each."""
    found = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        first, _, rest = code.partition("\n")
        assert re.fullmatch(r"# (shop|tests)/\w+\.py", first), f"a block that is no file: {first}"
        found[first.removeprefix("# ")] = rest
    return found


@pytest.mark.django_db
def test_every_block_of_the_page_about_tests_works_as_described(tmp_path: Path) -> None:
    """Every block of the page about tests works as the page describes."""
    files = files_of_the_page()

    done = run_pytest(tmp_path, {"manage.py": MANAGE, **files}, "tests")

    assert done.code == 0, done.output
    written = [name for text in files.values() for name in re.findall(r"def (test_\w+)", text)]
    assert len(written) > 15
    assert sorted(done.outcomes) == [("PASSED", name) for name in sorted(written)]
