"""The pytest plugin, found by its entry point, in projects with and without Django."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects import Project

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
import datetime as dt
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from horsies_django.testing import Kit
from shop.tasks import note, refuse

HOUR = dt.timedelta(hours=1)

@pytest.fixture
def noted(db):
    note.send("before the fixture")

def test_the_kit_begins_where_it_is_set_up(noted, horsies: Kit):
    note.send("one")
    assert horsies.assert_sent(note, count=1)[0].kwargs == {"name": "one"}
    assert horsies.drain() == 2
    with horsies.fail_next(note, "BUSY"), horsies.immediate(raise_errors=False), horsies.captured_tasks() as sent:
        note.send("two")
    assert [task.handle.info().error_code for task in sent] == ["BUSY"]
    assert len(horsies.sent) == 2

def test_the_kit_requests_the_database(horsies):
    with horsies.travel(-HOUR) as then:
        note.send("one")
    assert horsies.sent[0].handle.info().sent_at == then
    assert connection.in_atomic_block

def test_the_kit_in_a_test_that_commits(transactional_db, horsies):
    with transaction.atomic():
        note.send("one")
    assert not connection.in_atomic_block
    assert horsies.drain() == 1

def test_the_fixture_runs_at_once(db, horsies_immediate):
    note.send("one")
    assert Group.objects.count() == 1

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
def test_fixtures_and_marker_do_what_they_say(tmp_path: Path) -> None:
    """Naive: a failed task is an error of the teardown; the marker of one parameter is on all; a fixture is set up too late."""
    files = {
        "shop/tasks.py": TASKS,
        "test_fixtures.py": FIXTURES,
        "test_marked.py": MARKED,
        "test_one_of_two.py": ONE_OF_TWO,
    }
    done = Project(tmp_path, files).run_pytest()
    not_passed = {name: outcome for name, outcome in done.outcomes if outcome != "passed"}
    assert not_passed == {
        "test_a_failed_task_fails_the_test": "failure",
        "test_a_failed_task_in_a_case": "failure",
        "test_with_wrong_arguments": "error",
        "test_on_an_event_loop": "error",
    }, done.output
    assert len(done.outcomes) == 17, done.output
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


def test_a_project_without_django_pays_nothing_and_is_told_what_is_missing(tmp_path: Path) -> None:
    """Naive: every run of pytest in the environment imports Django, or breaks for want of settings."""
    project = Project(tmp_path, {"test_without.py": WITHOUT, "pytest.ini": "[pytest]\naddopts = --strict-markers\n"})
    done = project.run_pytest("-p", "no:django")
    assert dict(done.outcomes) == {
        "test_nothing_of_django_is_imported": "passed",
        "test_the_marker_is_registered": "passed",
        "test_the_kit": "error",
        "test_at_once": "error",
    }, done.output
    assert "install pytest-django and set DJANGO_SETTINGS_MODULE" in done.output


def test_a_project_without_the_app_is_told_so(tmp_path: Path) -> None:
    project = Project(tmp_path, {"test_app.py": "def test_the_kit(horsies): pass"})
    settings = (tmp_path / "settings.py").read_text()
    project.write({"settings.py": settings.replace('"horsies_django", "shop"', '"shop"')})
    done = project.run_pytest()
    assert dict(done.outcomes) == {"test_the_kit": "error"}
    assert "'horsies_django' in INSTALLED_APPS" in done.output
