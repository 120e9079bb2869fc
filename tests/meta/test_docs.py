"""The pages are right: their code runs, their links lead somewhere, all public names are there.

So are references to tests: docs/promises.md for every promise, the page on failures in every row,
``make mutants`` for every edit.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.db import connection
from django.test import override_settings

import horsies_django
from horsies_django import signals
from horsies_django.conf import config
from horsies_django.core.errors import FAMILIES
from horsies_django.management.commands.horsies_status import Command as StatusCommand
from horsies_django.management.commands.horsies_worker import Command as WorkerCommand
from horsies_django.models import Task
from horsies_django.tasks import registry
from horsies_django.worker.process.options import MAX_TASKS_PER_CHILD
from tests.mutants.__main__ import problems
from tests.mutants.edits import EDITS, Edit
from tests.support.factories import TaskFactory
from tests.support.pages import DOCS, PAGES, ROOT, blocks


def ids(page: Path) -> str:
    return page.stem


def code_that_runs(page: Path, language: str) -> list[str]:
    return [
        block.code for block in blocks(page) if (block.kind, block.language) == ("runs", language)
    ]


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the tasks that a page defines, and the receivers that it connects."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    for name in signals.__all__:
        monkeypatch.setattr(getattr(signals, name), "receivers", [])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_that_runs(page, "python")], ids=ids
)
def test_the_python_of_a_page_runs_and_its_asserts_hold(
    page: Path, own_registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marked blocks of a page run as one module, and its asserts are true."""
    module = ModuleType(f"docs.{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # so that dotted paths lead into it

    names = vars(module)
    for code in code_that_runs(page, "python"):
        exec(compile(code, str(page), "exec", dont_inherit=True), names)

    assert any("assert" in code for code in code_that_runs(page, "python"))


@pytest.mark.django_db
def test_the_sql_of_the_worker_page_counts_waiting_tasks() -> None:
    (statement,) = code_that_runs(DOCS / "howto" / "run-a-worker.md", "sql")
    TaskFactory.create_batch(3)
    TaskFactory(status="RUNNING")
    TaskFactory(status="COMPLETED")

    with connection.cursor() as cursor:
        cursor.execute(statement)
        ((queue, count, _),) = cursor.fetchall()

    assert (queue, count) == ("default", 3)


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Each link of a page leads to an existing file and heading.

    ``make docs`` refuses a page without a link from the index.
    """
    for target, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text()
    ):
        linked = page.parent / target if target else page

        assert linked.exists(), target
        assert not anchor or anchor in slugs(linked), f"{target}#{anchor}"


def test_the_files_that_contributing_names_exist() -> None:
    """Fails if: a file is moved, and a new maintainer searches for it at the old place."""
    places = (ROOT, ROOT / "horsies_django", ROOT / "horsies_django/store/sql/functions")
    named = re.findall(
        r"`(\w+/[\w/]+\.(?:py|sql|html|md))`", (ROOT / "CONTRIBUTING.md").read_text()
    )

    missing = [name for name in named if not any((place / name).exists() for place in places)]

    assert len(named) > 40
    assert missing == []


def test_every_column_of_every_table_has_its_place() -> None:
    text = (DOCS / "reference" / "tables.md").read_text()

    for model in apps.get_app_config("horsies").get_models():
        (section,) = re.findall(
            rf"^## {model._meta.db_table}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
        )

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


# The defaults in the pages of options whose value in the parser is None.
WITHOUT_VALUE = {
    "--processes": "the CPUs this process may use",
    "--queues": "all declared",
    "--max-tasks-per-child": str(MAX_TASKS_PER_CHILD),
    "--max-memory-per-child-mb": "never",
    "--health-port": "none",
    "--max-wait": "none",
}


@pytest.mark.parametrize(
    ("page", "command"), [("worker", WorkerCommand()), ("status", StatusCommand())]
)
def test_every_option_has_its_place_with_its_default(page: str, command: BaseCommand) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text()
    rows = dict(re.findall(r"^\| `(--[^`]+)` \| ([^|]*) \|", text, re.MULTILINE))

    of_django = {action.dest for action in BaseCommand().create_parser("manage.py", page)._actions}
    own = [
        one
        for one in command.create_parser("manage.py", page)._actions
        if one.dest not in of_django
    ]
    written = {f"{one.option_strings[-1]} {one.metavar or ''}".strip(): one for one in own}

    assert {row.split()[0] for row in rows} == {option.split()[0] for option in written}

    for option, action in written.items():
        (row,) = [row for row in rows if row.split()[0] == option.split()[0]]

        if action.metavar:
            assert row == option
        if isinstance(action.default, bool):
            assert rows[row] == "off", option
        elif action.default is None:
            assert rows[row].startswith(WITHOUT_VALUE[option.split()[0]]), option
        else:
            assert rows[row] == str(action.default).removesuffix(".0"), option


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_page_names_no_other_version_than_this_one(page: Path) -> None:
    """A page shows logs and records of this release only; the changelog names earlier ones."""
    ours = horsies_django.__version__.partition(".dev")[0]
    text = page.read_text()
    shown = re.findall(
        r'"version": "([^"]+)"|^web-1:\d+ .* ago +(\S+)|horsies_django-(\d[\w.]*)-py3',
        text,
        re.MULTILINE,
    )

    assert {version for row in shown for version in row if version} <= {ours}
    assert (
        re.findall(
            r"\b(?:workers|release|from) (?:of )?(?:release )?\d+\.\d+[\d.]*", text, re.IGNORECASE
        )
        == []
    )


def test_the_public_names_are_listed_where_they_belong() -> None:
    text = (DOCS / "reference" / "public-names.md").read_text()
    (section,) = re.findall(r"^## horsies_django\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)

    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(horsies_django.__all__)


def elsewhere() -> list[tuple[str, str]]:
    """Return the rows of the second table: the places of public names, and their descriptions."""
    _, _, section = (DOCS / "reference" / "public-names.md").read_text().partition("## Elsewhere")
    return re.findall(r"^\| `(horsies_django[\w.]*)` \| (.*) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(("place", "text"), elsewhere(), ids=[place for place, _ in elsewhere()])
def test_every_public_name_elsewhere_can_be_imported(place: str, text: str) -> None:
    module, _, name = place.rpartition(".")
    if hasattr(import_module(module), name) and not isinstance(
        getattr(import_module(module), name), ModuleType
    ):
        return

    found = import_module(place)
    for name in re.findall(r"`([A-Za-z]\w*)`", text.partition("; see")[0]):
        assert name.startswith("horsies_") or hasattr(found, name), f"{place} has no {name}"


# Pages whose blocks are files of a project; tests/e2e/test_pytest_plugin.py runs it.
PROJECTS = {"test-your-tasks"}
GUIDES = sorted(page for page in (DOCS / "howto").glob("*.md") if page.stem not in PROJECTS)
COMMANDS = re.compile(r"(?:python )?manage\.py (horsies_\w+)(.*)")
FILLED_IN = {"ID": "01986f4e-5a3c-7b1e-9c55-0d3f1f0c9a10"}


def imported(code: str) -> list[tuple[str, str]]:
    """Return the names that a block imports from horsies_django, with their modules."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.partition(".")[0] == "horsies_django"
        for alias in node.names
    ]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_what_the_code_of_a_page_imports_exists(page: Path) -> None:
    """Fails if: a name is renamed, the page still compiles, and its reader gets an ImportError."""
    for block in blocks(page):
        for module, name in imported(block.code) if block.language == "python" else []:
            found = import_module(module)
            assert hasattr(found, name) or import_module(f"{module}.{name}"), f"{module}.{name}"


@pytest.mark.parametrize("page", GUIDES, ids=ids)
def test_every_python_block_of_a_guide_has_a_test_comment(page: Path) -> None:
    """Fails if: a new example has no comment, so no test runs it, and it becomes wrong."""
    for block in blocks(page):
        if block.language == "python":
            assert block.kind in ("runs", "settings", "before", "after", "shown"), block.code
            assert bool(block.detail) == (block.kind in ("before", "after", "shown")), block.code


@pytest.mark.parametrize(
    "page", [page for page in GUIDES if "<!-- settings -->" in page.read_text()], ids=ids
)
def test_settings_that_a_page_shows_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "settings":
            names: dict[str, Any] = {}
            exec(compile(block.code, str(page), "exec", dont_inherit=True), names)
            shown = {key: value for key, value in names.items() if key.isupper()}

            with override_settings(**shown):
                assert set(config().queues) >= set(shown["HORSIES"].get("QUEUES", ()))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_that_a_page_shows_have_these_verbs_and_options(page: Path) -> None:
    """Fails if: an option is renamed, and the page's command prints a usage message."""
    for line in page.read_text().splitlines():
        if not line.startswith(("    python manage.py", "python manage.py")):
            continue

        for name, rest in COMMANDS.findall(re.sub(r" \[.*\]", "", line)):
            words = [FILLED_IN.get(word, word) for word in shlex.split(rest, comments=True)]
            parser = load_command_class("horsies_django", name).create_parser("manage.py", name)

            assert vars(parser.parse_args(words)), line  # it raises CommandError for a wrong one


def test_every_public_name_shows_its_docstring() -> None:
    """Fails if: a new public name is listed, and the site does not document its parameters."""
    text = (DOCS / "reference" / "api.md").read_text()
    shown = set(re.findall(r"^\.\. auto\w+:: (\w+)", text, re.MULTILINE))

    assert set(horsies_django.__all__) - shown == set()

    modules = set(re.findall(r"^\.\. \w+:: (horsies_django[\w.]+)", text, re.MULTILINE)) | {
        "horsies_django.models"
    }
    places = {
        place for module in modules for place in (module, *(f"{module}.{name}" for name in shown))
    }

    assert {place for place, _ in elsewhere()} - places == set()


PAGE = DOCS / "explanation" / "failure-model.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
REASON = re.compile(r"does not apply: \w.{10,}")


def section(title: str) -> str:
    """Return the part of the page under a heading of the second level."""
    (found,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


def rows(title: str) -> list[list[str]]:
    """Return the cells of the rows of a section whose tables end in a column of proofs."""
    found: list[list[str]] = []
    proofs = False

    for line in section(title).splitlines():
        cells = (
            [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        )

        if not cells or set("".join(cells)) <= set("-:"):
            proofs = proofs and bool(cells)
        elif not proofs:
            proofs = cells[-1] == "proof"
        else:
            found.append(cells)

    return found


@functools.cache
def defined(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)
    }


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(TEST.findall(PAGE.read_text()))
    assert len(named) > 100

    missing = [
        f"{path}::{name}" for path, name in sorted(named) if name not in defined(ROOT / path)
    ]

    assert missing == []


@pytest.mark.parametrize(
    ("title", "least"),
    [
        ("What happens to a task", 25),
        ("Zombies", 4),
        ("Fault and race scenarios", 88),
        ("Defects of the past", 33),
    ],
)
def test_every_row_has_tests_or_a_reason(title: str, least: int) -> None:
    found = rows(title)

    assert len(found) >= least
    for cells in found:
        for part in cells[-1].split("<br>"):
            assert TEST.fullmatch(part) or REASON.fullmatch(part), (
                f"{title}: {cells[0]} {cells[1]}: {part}"
            )


def test_every_moment_of_a_task_has_a_column_in_its_tables() -> None:
    moments = re.findall(
        r"^\| (\w[\w ]+) \| (?:PENDING|CLAIMED|RUNNING|final)",
        section("What happens to a task"),
        re.M,
    )
    headers = set(
        re.findall(
            r"^\| what \| (.+) \| proof \|$", section("What happens to a task"), re.MULTILINE
        )
    )

    assert headers == {" | ".join(moment for moment in moments if moment != "written")}
    assert all(len(cells) == len(moments) + 1 for cells in rows("What happens to a task"))


def test_no_scenario_is_left_out() -> None:
    assert [cells[0] for cells in rows("Fault and race scenarios")] == [
        str(number) for number in range(1, 89)
    ]
    assert [cells[0] for cells in rows("Defects of the past")] == [
        str(number) for number in range(1, 34)
    ]


def test_the_crash_points_are_all_named() -> None:
    path = ROOT / "tests" / "e2e" / "test_crash_points.py"
    tests = {name for name in defined(path) if name.startswith("test_")}

    assert tests <= {
        name
        for found, name in TEST.findall(section("What happens to a task"))
        if found.endswith(path.name)
    }


PROMISES = DOCS / "promises.md"
COUNTS = {0: 46, 1: 52, 2: 23, 3: 15, 4: 24}
IDS = [f"S{seed}.{line}" for seed, last in COUNTS.items() for line in range(1, last + 1)]
ROW = re.compile(r"^\| (S\d\.\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def promises() -> dict[str, str]:
    """Return the page's entry for each promise: its tests, or the reason for none."""
    return {id_: settled for id_, _, settled in ROW.findall(PROMISES.read_text())}


def marked() -> dict[str, set[str]]:
    """Return the tests that carry each promise's id."""
    found: dict[str, set[str]] = defaultdict(set)

    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    if (
                        isinstance(mark, ast.Call)
                        and ast.unparse(mark.func) == "pytest.mark.promise"
                    ):
                        for argument in mark.args:
                            found[ast.literal_eval(argument)].add(
                                f"{path.relative_to(ROOT)}::{node.name}"
                            )

    return found


def test_every_promise_has_one_row_with_its_state() -> None:
    counted = Counter(id_ for id_, _, _ in ROW.findall(PROMISES.read_text()))

    assert len(IDS) == 160
    assert counted == Counter(IDS)

    ways = re.compile(
        r"`tests/[\w/]+\.py::test_\w+`|[\w/-]+\.md#[\w-]+"
        r"|replaced by B\d+|does not apply: .+|open: .+"
    )

    for id_, settled in promises().items():
        for part in settled.split("<br>"):
            assert ways.match(part), f"{id_}: {part}"

        for page, anchor in re.findall(r"([\w/-]+\.md)#([\w-]+)", settled):
            assert anchor in slugs(DOCS / page), f"{id_}: {page}#{anchor}"


def test_the_tests_that_are_named_are_those_that_carry_the_id() -> None:
    named = {
        id_: set(re.findall(r"`(tests/[^`]+)`", settled)) for id_, settled in promises().items()
    }

    assert {id_: tests for id_, tests in named.items() if tests} == dict(marked())


def test_what_replaces_a_promise_is_explained() -> None:
    explained = set(re.findall(r"^\| (B\d+) \|", PROMISES.read_text(), re.MULTILINE))
    used = {
        name
        for settled in promises().values()
        for name in re.findall(r"replaced by (B\d+)", settled)
    }

    assert used == explained


ENDS = """
import pytest

def test_passes(): pass
def test_fails_by_an_assertion(): assert 1 == 2
def test_asserts_what_cannot_be_read():
    assert {}["no such key"] == 1
def test_raises_nothing_where_it_has_to():
    with pytest.raises(ValueError): pass
def test_fails_by_an_import(): import there_is_no_such_module
@pytest.fixture
def broken(): assert False
def test_has_a_broken_fixture(broken): pass
"""


def test_the_edits_are_numbered() -> None:
    assert [edit.number for edit in EDITS] == list(range(1, 19))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: str(edit.number))
def test_each_edit_names_existing_code_and_existing_tests(
    edit: Edit,
) -> None:
    """The code of an edit exists in the tree, and so do the tests that have to detect the edit."""
    assert edit.problem(ROOT) is None
    for test in edit.tests:
        path, _, name = test.partition("::")
        assert name in defined(ROOT / path), test


def test_only_an_assertion_that_fails_counts(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(ENDS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(tmp_path),
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        "-p",
        "no:django",
        "-p",
        "tests.mutants.verdicts",
        f"--verdicts={tmp_path / 'verdicts'}",
    ]

    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    found = json.loads((tmp_path / "verdicts").read_text())
    passes, asserts, *_ = found

    def caught(test: str, before: str = passes) -> bool:
        edit = Edit(1, "", "", "", "", (test,))
        return not list(problems(edit, {test: found[before]}, found))

    assert [caught(test) for test in found] == [False, True, True, True, False, False]
    assert not caught(asserts, before=asserts)
    assert list(problems(Edit(1, "", "", "", ""), {}, {})) == ["no test named yet"]
