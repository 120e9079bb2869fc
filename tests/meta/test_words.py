"""Words that do not belong here: unfinished business in the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("horsies_django", "example_project", "benchmarks", "docs", "tests")
KINDS = {".py", ".sql", ".html", ".css", ".md"}
FILES = sorted(path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in KINDS)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert len(FILES) > 200
    found = [str(path.relative_to(ROOT)) for path in FILES if UNFINISHED.search(path.read_text())]
    assert found == []
