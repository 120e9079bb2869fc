"""The page of the settings: every key with its default and its range, and examples that are right."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from horsies_django.conf import RANGES, Config, PartitionConfig, QueueConfig, Recovery, Resilience, Retention
from horsies_django.conf.values import CUT_OFF
from tests.desk.test_conf import MAY_BE_NONE, parsed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
NOT_SIMPLE = {"QUEUE_MODE", "QUEUES", "RECOVERY", "RESILIENCE", "RETENTION"}


def table_of_the_page(heading: str) -> dict[str, list[str]]:
    [(_, section)] = re.findall(rf"^(##+) {heading}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    return {key: [cell.strip(" `") for cell in cells.split("|")] for key, cells in rows}


@pytest.mark.parametrize(
    ("heading", "default", "prefix"),
    [
        ("HORSIES", Config(), ""),
        ("RECOVERY", Recovery(), ""),
        ("RESILIENCE", Resilience(), ""),
        ("RETENTION", Retention(), ""),
        ("QUEUES", QueueConfig("mail"), ""),
        ("partition", PartitionConfig(), "partition."),
    ],
)
def test_the_page_lists_every_key_with_its_default_and_range(heading: str, default: Any, prefix: str) -> None:
    rows = table_of_the_page(heading)
    names = [field.name for field in fields(default) if field.name != "name"]
    assert list(rows) == (names if heading in ("QUEUES", "partition") else [name.upper() for name in names])
    for key, (usual, span, *_) in rows.items():
        if key in NOT_SIMPLE:
            continue
        assert ast.literal_eval(usual) == getattr(default, key.lower()), key
        if heading == "HORSIES":
            assert parsed({key: ast.literal_eval(usual)}) == default
        if key == "ON_CUT_OFF":
            assert all(f'"{choice}"' in span for choice in CUT_OFF)
        if prefix + key in RANGES:
            low, high = RANGES[prefix + key]
            written = f"at least {low:_}" if high is None else f"{low:_} to {high:_}"
            if key == "QUEUE_RETENTION_HOURS":
                assert written in span
            else:
                assert span == (f"{written}, or `None" if prefix + key in MAY_BE_NONE else written), key


def test_the_examples_of_the_page_are_right_and_show_every_key_of_a_queue_and_of_a_partition() -> None:
    shown: set[str] = set()
    for example in EXAMPLES:
        names: dict[str, Any] = {}
        exec(example, names)  # our own page
        assert parsed(names["HORSIES"]) != Config(), example
        for queue in names["HORSIES"].get("QUEUES", {}).values():
            shown |= queue.keys() | {f"partition.{key}" for key in queue.get("partition", {})}
    assert shown == {field.name for field in fields(QueueConfig)} - {"name"} | {
        f"partition.{field.name}" for field in fields(PartitionConfig)
    }
