"""The page of the settings: the range of each number, and examples that are right. Keys and defaults: tests/meta/test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from horsies_django.conf import RANGES, Config
from horsies_django.conf.values import CUT_OFF
from tests.desk.test_conf import MAY_BE_NONE, parsed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TABLES = ("HORSIES", "RECOVERY", "RESILIENCE", "RETENTION", "QUEUES", "partition")


def table_of_the_page(heading: str) -> dict[str, list[str]]:
    [(_, section)] = re.findall(rf"^(##+) {heading}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    return {key: [cell.strip(" `") for cell in cells.split("|")] for key, cells in rows}


def test_the_page_gives_each_number_its_range_and_says_where_none_will_do() -> None:
    spans: dict[str, str] = {}
    for heading in TABLES:
        prefix = "partition." * (heading == "partition")
        spans |= {prefix + key: cells[1] for key, cells in table_of_the_page(heading).items()}
    assert all(f'"{choice}"' in spans["ON_CUT_OFF"] for choice in CUT_OFF)
    for key, (low, high) in RANGES.items():
        written = f"at least {low:_}" if high is None else f"{low:_} to {high:_}"
        if key == "QUEUE_RETENTION_HOURS":
            assert written in spans[key]
        else:
            assert spans[key] == (f"{written}, or `None" if key in MAY_BE_NONE else written), key


def test_the_examples_of_the_page_are_right() -> None:
    for example in EXAMPLES:
        names: dict[str, Any] = {}
        exec(example, names)  # our own page
        assert parsed(names["HORSIES"]) != Config(), example
