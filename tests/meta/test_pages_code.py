"""The code of the pages is tested: each block says how, its imports exist, and its commands have the options that it shows."""

from __future__ import annotations

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class
from django.test import override_settings

import horsies_django
from horsies_django.conf import config
from tests.meta.test_docs import elsewhere
from tests.support.pages import DOCS, PAGES, blocks

PROJECTS = {"test-your-tasks"}  # pages whose blocks are files of a project, which tests/e2e/test_testing_page.py runs
GUIDES = sorted(page for page in (DOCS / "howto").glob("*.md") if page.stem not in PROJECTS)
COMMANDS = re.compile(r"(?:python )?manage\.py (horsies_\w+)(.*)")
FILLED_IN = {"ID": "01986f4e-5a3c-7b1e-9c55-0d3f1f0c9a10"}


def ids(page: Path) -> str:
    return page.stem


def imported(code: str) -> list[tuple[str, str]]:
    """Return the names that a block imports from horsies_django, with their modules."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "horsies_django"
        for alias in node.names
    ]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_what_the_code_of_a_page_imports_exists(page: Path) -> None:
    """Naive: a name is renamed, the page still compiles, and its reader gets an ImportError."""
    for block in blocks(page):
        for module, name in imported(block.code) if block.language == "python" else []:
            found = import_module(module)
            assert hasattr(found, name) or import_module(f"{module}.{name}"), f"{module}.{name}"


@pytest.mark.parametrize("page", GUIDES, ids=ids)
def test_every_block_of_a_guide_says_what_the_tests_do_with_it(page: Path) -> None:
    """Naive: a new example is added without a comment, no test runs it, and it is wrong a year later."""
    for block in blocks(page):
        if block.language == "python":
            assert block.kind in ("runs", "settings", "before", "after", "shown"), block.code
            assert bool(block.detail) == (block.kind in ("before", "after", "shown")), block.code


@pytest.mark.parametrize("page", [page for page in GUIDES if "<!-- settings -->" in page.read_text()], ids=ids)
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
    """Naive: an option is renamed, and the page sends its reader into a usage message."""
    for line in page.read_text().splitlines():
        if not line.startswith(("    python manage.py", "python manage.py")):
            continue
        for name, rest in COMMANDS.findall(re.sub(r" \[.*\]", "", line)):
            words = [FILLED_IN.get(word, word) for word in shlex.split(rest, comments=True)]
            parser = load_command_class("horsies_django", name).create_parser("manage.py", name)
            assert vars(parser.parse_args(words)), line  # it raises CommandError for a wrong one


def test_every_public_name_shows_its_docstring() -> None:
    """Naive: a public name is added to the list, and the site does not document its parameters."""
    text = (DOCS / "reference" / "api.md").read_text()
    shown = set(re.findall(r"^\.\. auto\w+:: (\w+)", text, re.MULTILINE))
    assert set(horsies_django.__all__) - shown == set()
    modules = set(re.findall(r"^\.\. \w+:: (horsies_django[\w.]+)", text, re.MULTILINE)) | {"horsies_django.models"}
    places = {place for module in modules for place in (module, *(f"{module}.{name}" for name in shown))}
    assert {place for place, _ in elsewhere()} - places == set()
