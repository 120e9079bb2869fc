"""The pages keep their word: what they show runs, what they link to is there, and nothing public is without its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from horsies_django import registry
from horsies_django.checks import IDS
from horsies_django.conf import Config, QueueConfig, Resilience, Retention
from horsies_django.core.errors import FAMILIES
from horsies_django.models import Task
from tests.factories import TaskFactory

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUNS = re.compile(r"<!-- runs -->\n```(\w+)\n(.*?)```", re.DOTALL)


def code_that_runs(page: Path, language: str) -> list[str]:
    return [code for found, code in RUNS.findall(page.read_text()) if found == language]


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tasks that a page defines."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


@pytest.mark.django_db
@pytest.mark.parametrize("page", [page for page in PAGES if code_that_runs(page, "python")], ids=lambda page: page.stem)
def test_the_python_of_a_page_does_what_the_page_says(page: Path, own_registry: None) -> None:
    """All marked blocks of a page are one program; the asserts in them are the page's claims."""
    names: dict[str, Any] = {"__name__": f"docs.{page.stem.replace('-', '_')}"}
    for code in code_that_runs(page, "python"):
        exec(compile(code, str(page), "exec", dont_inherit=True), names)
    assert any("assert" in code for code in code_that_runs(page, "python"))


@pytest.mark.django_db
def test_the_sql_of_the_worker_page_counts_what_waits() -> None:
    (statement,) = code_that_runs(DOCS / "howto" / "run-a-worker.md", "sql")
    TaskFactory.create_batch(3)
    TaskFactory(status="RUNNING")
    TaskFactory(status="COMPLETED")
    with connection.cursor() as cursor:
        cursor.execute(statement)
        ((queue, count, _),) = cursor.fetchall()
    assert (queue, count) == ("default", 3)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([\w-]+)\)", page.read_text()):
        assert anchor in slugs(page.parent / target if target else page), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, open_ = set(), {DOCS / "index.md"}
    while open_:
        page = open_.pop()
        reached.add(page)
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", page.read_text()):
            if (linked := (page.parent / target).resolve()) not in reached:
                open_.add(linked)
    assert set(PAGES) <= reached


def test_every_column_of_every_table_has_its_place() -> None:
    text = (DOCS / "reference" / "tables.md").read_text()
    for model in apps.get_app_config("horsies").get_models():
        (section,) = re.findall(rf"^## {model._meta.db_table}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        columns = {field.column for field in model._meta.concrete_fields if field.column}
        assert columns - set(re.findall(r"`(\w+)`", section)) == set(), model._meta.db_table
        for index in model._meta.indexes:
            if model is Task:
                assert f"`{index.name}`" in section


def test_every_error_code_has_its_place_under_its_family() -> None:
    text = (DOCS / "reference" / "tasks.md").read_text()
    for family in FAMILIES:
        for code in family:
            assert len(re.findall(rf"^\| `{code.value}` \|", text, re.MULTILINE)) == 1, code


def test_every_setting_and_every_check_has_its_place() -> None:
    settings, checks = (DOCS / "reference" / f"{name}.md" for name in ("settings", "checks"))
    keys = [*Config.__dataclass_fields__, *Resilience.__dataclass_fields__, *Retention.__dataclass_fields__]
    assert [key for key in keys if f"| `{key.upper()}` |" not in settings.read_text()] == []
    assert [
        key for key in QueueConfig.__dataclass_fields__ if key != "name" and f"| `{key}` |" not in settings.read_text()
    ] == []
    assert [id_ for id_, title in IDS.items() if f"### horsies.{id_}: {title}\n" not in checks.read_text()] == []


def test_the_public_names_are_listed_where_they_belong() -> None:
    import horsies_django

    text = (DOCS / "reference" / "public-names.md").read_text()
    (section,) = re.findall(r"^## horsies_django\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(horsies_django.__all__)
