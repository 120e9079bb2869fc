"""The house keeps its habits: small rooms, floors that import downwards, SQL in one place, nothing left for later."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.statements import FUNCTIONS, STATEMENTS, TYPES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "horsies_django"
CONTRIB = PACKAGE / "contrib"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "0001_initial.py")

LONGEST_FILE = 500
LONGEST_FUNCTION = 50


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}::{node.name}", node


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its docstring."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def test_files_and_functions_stay_small() -> None:
    long = [str(path) for path in MODULES if len(path.read_text().splitlines()) > LONGEST_FILE]
    long += [name for path in MODULES for name, node in functions(path) if code_lines(node) > LONGEST_FUNCTION]
    assert long == []


@pytest.mark.promise("S3.4")
def test_nothing_is_imported_that_speaks_to_another_service_than_postgresql() -> None:
    """But in contrib, whose modules nothing else imports: each is for those who use the service, and has an extra."""
    nodes = [node for path in MODULES if CONTRIB not in path.parents for node in ast.walk(tree(path))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not any(module.startswith("horsies_django.contrib") for module in modules)
    own = {
        "horsies_django", "django", "django_tasks", "asgiref", "typing_extensions", "pydantic", "croniter", "cron_descriptor",
        "prometheus_client", "psutil", "pytest",
    }  # fmt: skip
    roots = {module.partition(".")[0] for module in modules} - {"annotationlib"}  # new in Python 3.14
    assert roots - own - set(sys.stdlib_module_names) == {"psycopg"}


def test_only_the_store_opens_cursors() -> None:
    found = {path.relative_to(PACKAGE).parts[0] for path in MODULES if re.search(r"\.cursor\(", path.read_text())}
    assert found == {"store"}


def test_only_statements_of_the_store_write_a_status() -> None:
    pattern = re.compile(r"objects[^\n]*\.update\(|queryset\.update\(|\.save\(|bulk_update|SET\s+status")
    assert [str(path) for path in MODULES if pattern.search(path.read_text())] == []


def test_every_statement_has_exactly_one_caller_and_every_function_at_least_one() -> None:
    place = {"run": 1, "execute": 1, "executed": 1, "self.run": 0, "self.execute": 0}
    called = [
        argument.value
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and (at := place.get(ast.unparse(node.func))) is not None
        for argument in node.args[at : at + 1]
        if isinstance(argument, ast.Constant)
    ]
    assert sorted(name for name in called if not name.startswith("horsies_")) == sorted(STATEMENTS)
    texts = {path: path.read_text() for path in (*STATEMENTS.values(), *FUNCTIONS.values(), *MODULES)}
    for name, own in FUNCTIONS.items():
        of_trigger = f"EXECUTE FUNCTION {name}();" in texts[own]
        assert of_trigger or any(re.search(rf"\b{name}\b", text) for path, text in texts.items() if path != own), name
    assert {name for name in called if name.startswith("horsies_")} <= FUNCTIONS.keys()


def test_a_function_and_a_type_are_named_as_their_files() -> None:
    for path in FUNCTIONS.values():
        assert f"CREATE OR REPLACE FUNCTION {path.stem}(" in path.read_text()
    for path in TYPES.values():
        assert f"CREATE TYPE {path.stem} " in path.read_text()


def test_the_version_is_one() -> None:
    import horsies_django

    assert f'version = "{horsies_django.__version__}"' in (ROOT / "pyproject.toml").read_text()
    released, _, more = horsies_django.__version__.partition(".dev")
    assert f"## {'Unreleased' if more else released}" in (ROOT / "CHANGELOG.md").read_text()


PLACES = ("horsies_django", "example_project", "benchmarks", "docs", "tests")
KINDS = {".py", ".sql", ".html", ".css", ".md"}
FILES = sorted(path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in KINDS)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert len(FILES) > 200
    found = [str(path.relative_to(ROOT)) for path in FILES if UNFINISHED.search(path.read_text())]
    assert found == []
