"""The code blocks of the pages, and the comments above them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (\w+)(?:: (.+?))? -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A block of code: ``kind`` is its comment's first word, or "", and ``detail`` the rest."""

    kind: str
    detail: str
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def files(page: Path, kind: str) -> dict[str, str]:
    """Return the files that blocks of ``kind`` are parts of, in the order of the page."""
    found: dict[str, str] = {}
    for block in blocks(page):
        if block.kind == kind:
            found[block.detail] = found.get(block.detail, "") + block.code + "\n"
    return found
