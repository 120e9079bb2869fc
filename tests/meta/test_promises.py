"""docs/promises.md and the tests tell the same story about every promise of the mission."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from tests.meta.test_docs import slugs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"
COUNTS = {0: 46, 1: 52, 2: 23, 3: 15, 4: 24}
IDS = [f"S{seed}.{line}" for seed, last in COUNTS.items() for line in range(1, last + 1)]
ROW = re.compile(r"^\| (S\d\.\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> dict[str, str]:
    """Return what settles each promise, by the page."""
    return {id_: settled for id_, _, settled in ROW.findall(PAGE.read_text())}


def marked() -> dict[str, set[str]]:
    """Return the tests that carry each promise's id."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                        for argument in mark.args:
                            found[ast.literal_eval(argument)].add(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def test_every_promise_has_one_row() -> None:
    counted = Counter(id_ for id_, _, _ in ROW.findall(PAGE.read_text()))
    assert len(IDS) == 160
    assert counted == Counter(IDS)


def test_every_row_says_how_the_promise_stands() -> None:
    ways = re.compile(r"`tests/[\w/]+\.py::test_\w+`|[\w/-]+\.md#[\w-]+|replaced by B\d+|does not apply: .+|open: .+")
    for id_, settled in rows().items():
        for part in settled.split("<br>"):
            assert ways.match(part), f"{id_}: {part}"


def test_the_tests_that_are_named_are_those_that_carry_the_id() -> None:
    named = {id_: set(re.findall(r"`(tests/[^`]+)`", settled)) for id_, settled in rows().items()}
    assert {id_: tests for id_, tests in named.items() if tests} == dict(marked())


def test_the_headings_that_are_named_exist() -> None:
    for id_, settled in rows().items():
        for page, anchor in re.findall(r"([\w/-]+\.md)#([\w-]+)", settled):
            assert anchor in slugs(ROOT / "docs" / page), f"{id_}: {page}#{anchor}"


def test_what_replaces_a_promise_is_explained() -> None:
    explained = set(re.findall(r"^\| (B\d+) \|", PAGE.read_text(), re.MULTILINE))
    used = {name for settled in rows().values() for name in re.findall(r"replaced by (B\d+)", settled)}
    assert used == explained
