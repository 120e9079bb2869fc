"""The page about tests is a project: its files are put together, and pytest runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.projects import ROOT, Project

PAGE = ROOT / "docs" / "howto" / "test-your-tasks.md"
pytestmark = pytest.mark.django_db


def files_of_the_page() -> dict[str, str]:
    """Return the blocks of code, by the path in the first line of each."""
    found = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        first, _, rest = code.partition("\n")
        assert re.fullmatch(r"# (shop|tests)/\w+\.py", first), f"a block that is no file: {first}"
        found[first.removeprefix("# ")] = rest
    return found


def test_every_block_of_the_page_about_tests_does_what_the_page_says(tmp_path: Path) -> None:
    files = files_of_the_page()
    done = Project(tmp_path, files).run_pytest("tests")
    assert done.code == 0, done.output
    written = [name for text in files.values() for name in re.findall(r"def (test_\w+)", text)]
    assert len(written) > 15
    assert sorted(done.outcomes) == [(name, "passed") for name in sorted(written)]
