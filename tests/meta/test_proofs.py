"""What names tests: docs/promises.md for every promise, the page on failures in every row, ``make mutants`` for every edit."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.meta.test_docs import slugs
from tests.mutants.__main__ import problems
from tests.mutants.edits import EDITS, Edit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "failure-model.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
REASON = re.compile(r"does not apply: \w.{10,}")


def section(title: str) -> str:
    """Return the part of the page under a heading of the second level."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def rows(title: str) -> list[list[str]]:
    """Return the cells of the rows of a section whose tables end in a column of proofs."""
    found: list[list[str]] = []
    proofs = False
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
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
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(TEST.findall(PAGE.read_text()))
    assert len(named) > 100
    missing = [f"{path}::{name}" for path, name in sorted(named) if name not in defined(ROOT / path)]
    assert missing == []


@pytest.mark.parametrize(
    ("title", "least"),
    [("What happens to a task", 25), ("Zombies", 4), ("Fault and race scenarios", 88), ("Defects of the past", 33)],
)
def test_every_row_has_tests_or_a_reason(title: str, least: int) -> None:
    found = rows(title)
    assert len(found) >= least
    for cells in found:
        for part in cells[-1].split("<br>"):
            assert TEST.fullmatch(part) or REASON.fullmatch(part), f"{title}: {cells[0]} {cells[1]}: {part}"


def test_what_happens_to_a_task_is_told_for_every_moment() -> None:
    moments = re.findall(
        r"^\| (\w[\w ]+) \| (?:PENDING|CLAIMED|RUNNING|final)", section("What happens to a task"), re.M
    )
    headers = set(re.findall(r"^\| what \| (.+) \| proof \|$", section("What happens to a task"), re.MULTILINE))
    assert headers == {" | ".join(moment for moment in moments if moment != "written")}
    assert all(len(cells) == len(moments) + 1 for cells in rows("What happens to a task"))


def test_no_scenario_is_left_out() -> None:
    assert [cells[0] for cells in rows("Fault and race scenarios")] == [str(number) for number in range(1, 89)]
    assert [cells[0] for cells in rows("Defects of the past")] == [str(number) for number in range(1, 34)]


def test_the_crash_points_are_all_named() -> None:
    path = ROOT / "tests" / "e2e" / "test_crash_points.py"
    tests = {name for name in defined(path) if name.startswith("test_")}
    assert tests <= {
        name for found, name in TEST.findall(section("What happens to a task")) if found.endswith(path.name)
    }


PROMISES = ROOT / "docs" / "promises.md"
COUNTS = {0: 46, 1: 52, 2: 23, 3: 15, 4: 24}
IDS = [f"S{seed}.{line}" for seed, last in COUNTS.items() for line in range(1, last + 1)]
ROW = re.compile(r"^\| (S\d\.\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def promises() -> dict[str, str]:
    """Return what settles each promise, by the page."""
    return {id_: settled for id_, _, settled in ROW.findall(PROMISES.read_text())}


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
    counted = Counter(id_ for id_, _, _ in ROW.findall(PROMISES.read_text()))
    assert len(IDS) == 160
    assert counted == Counter(IDS)


def test_every_row_says_how_the_promise_stands() -> None:
    ways = re.compile(r"`tests/[\w/]+\.py::test_\w+`|[\w/-]+\.md#[\w-]+|replaced by B\d+|does not apply: .+|open: .+")
    for id_, settled in promises().items():
        for part in settled.split("<br>"):
            assert ways.match(part), f"{id_}: {part}"


def test_the_tests_that_are_named_are_those_that_carry_the_id() -> None:
    named = {id_: set(re.findall(r"`(tests/[^`]+)`", settled)) for id_, settled in promises().items()}
    assert {id_: tests for id_, tests in named.items() if tests} == dict(marked())


def test_the_headings_that_are_named_exist() -> None:
    for id_, settled in promises().items():
        for page, anchor in re.findall(r"([\w/-]+\.md)#([\w-]+)", settled):
            assert anchor in slugs(ROOT / "docs" / page), f"{id_}: {page}#{anchor}"


def test_what_replaces_a_promise_is_explained() -> None:
    explained = set(re.findall(r"^\| (B\d+) \|", PROMISES.read_text(), re.MULTILINE))
    used = {name for settled in promises().values() for name in re.findall(r"replaced by (B\d+)", settled)}
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
def test_an_edit_finds_its_place_in_the_code_and_the_tests_that_have_to_notice_it_exist(edit: Edit) -> None:
    assert edit.problem(ROOT) is None
    for test in edit.tests:
        path, _, name = test.partition("::")
        assert name in defined(ROOT / path), test


def test_a_lost_anchor_is_named(tmp_path: Path) -> None:
    lost = Edit(7, "nothing is done", "code.py", "do_it()", "pass")
    assert "no code.py" in str(lost.problem(tmp_path))
    (tmp_path / "code.py").write_text("done()")
    assert "edit 7 (nothing is done)" in str(lost.problem(tmp_path))
    (tmp_path / "code.py").write_text("do_it() or do_it()")
    assert "stands 2 times in code.py" in str(lost.problem(tmp_path))
    (tmp_path / "code.py").write_text("do_it()")
    assert lost.problem(tmp_path) is None
    lost.apply(tmp_path)
    assert (tmp_path / "code.py").read_text() == "pass"


def test_only_an_assertion_that_fails_counts(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(ENDS)
    command = [
        sys.executable, "-m", "pytest", str(tmp_path), "-c", "/dev/null", f"--rootdir={tmp_path}", "-p", "no:django",
        "-p", "tests.mutants.verdicts", f"--verdicts={tmp_path / 'verdicts'}",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    found = json.loads((tmp_path / "verdicts").read_text())
    passes, asserts, *_ = found

    def caught(test: str, before: str = passes) -> bool:
        edit = Edit(1, "", "", "", "", (test,))
        return not list(problems(edit, {test: found[before]}, found))

    assert [caught(test) for test in found] == [False, True, True, True, False, False]
    assert not caught(asserts, before=asserts)
    assert list(problems(Edit(1, "", "", "", ""), {}, {})) == ["no test named yet"]
