"""``make mutants`` can do its work: each edit finds its place in the code, and the tests that have to notice it exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.test_proofs import defined
from tests.mutants.__main__ import problems
from tests.mutants.edits import EDITS, Edit

ROOT = Path(__file__).parents[2]

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
def test_an_edit_finds_its_place_in_the_code(edit: Edit) -> None:
    assert edit.problem(ROOT) is None


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: str(edit.number))
def test_the_tests_that_have_to_notice_an_edit_exist(edit: Edit) -> None:
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
