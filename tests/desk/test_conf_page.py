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
from tests.desk.test_conf import parsed, problems_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
NOT_SIMPLE = {"QUEUE_MODE", "QUEUES", "RECOVERY", "RESILIENCE", "RETENTION"}


def table_of_the_page(heading: str) -> dict[str, list[str]]:
    [(_, section)] = re.findall(rf"^(##+) {heading}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    return {key: [cell.strip(" `") for cell in cells.split("|")] for key, cells in rows}


def range_as_written(range_key: str, nullable: bool) -> str:
    low, high = RANGES[range_key]
    span = f"at least {low:_}" if high is None else f"{low:_} to {high:_}"
    return f"{span}, or `None" if nullable else span


def test_the_page_lists_every_setting_with_its_default_and_range() -> None:
    default = Config()
    rows = table_of_the_page("HORSIES")
    assert list(rows) == [field.name.upper() for field in fields(Config)]
    for key, cells in rows.items():
        if key in NOT_SIMPLE:
            continue
        assert ast.literal_eval(cells[0]) == getattr(default, key.lower()), key
        assert parsed({key: ast.literal_eval(cells[0])}) == default
        if key in RANGES:
            assert cells[1] == range_as_written(key, nullable=not problems_of({key: None})), key


@pytest.mark.parametrize("owner", [Recovery, Resilience])
def test_the_page_lists_every_time_and_count_with_its_default_and_range(owner: type[Any]) -> None:
    rows = table_of_the_page(owner.__name__.upper())
    assert list(rows) == [field.name.upper() for field in fields(owner)]
    for key, cells in rows.items():
        assert ast.literal_eval(cells[0]) == getattr(owner(), key.lower()), key
        if key in RANGES:
            assert cells[1] == range_as_written(key, nullable=False), key
        else:
            assert all(f'"{choice}"' in cells[1] for choice in CUT_OFF), key


def test_the_page_lists_how_long_each_kind_of_rows_is_kept() -> None:
    rows = table_of_the_page("RETENTION")
    assert list(rows) == [field.name.upper() for field in fields(Retention)]
    for key, cells in rows.items():
        assert ast.literal_eval(cells[0]) == getattr(Retention(), key.lower()), key
        if key == "QUEUE_RETENTION_HOURS":
            low, high = RANGES[key]
            assert f"{low:_} to {high:_}" in cells[1]
        else:
            assert cells[1] == range_as_written(key, nullable=key.endswith("_HOURS")), key


def test_the_page_lists_every_key_of_a_queue_and_of_a_partition() -> None:
    for heading, owner, prefix in (
        ("QUEUES", QueueConfig("mail"), ""),
        ("partition", PartitionConfig(), "partition."),
    ):
        rows = table_of_the_page(heading)
        assert list(rows) == [field.name for field in fields(owner) if field.name != "name"]
        for key, cells in rows.items():
            assert ast.literal_eval(cells[0]) == getattr(owner, key), key
            if prefix + key in RANGES:
                assert cells[1] == range_as_written(prefix + key, nullable=key != "priority"), key


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_of_the_page_is_right(example: str) -> None:
    names: dict[str, Any] = {}
    exec(example, names)  # our own page
    assert parsed(names["HORSIES"]) != Config()


def test_the_examples_of_the_page_show_every_key_of_a_queue_and_of_a_partition() -> None:
    shown: set[str] = set()
    for example in EXAMPLES:
        names: dict[str, Any] = {}
        exec(example, names)
        for queue in names["HORSIES"].get("QUEUES", {}).values():
            shown |= queue.keys() | {f"partition.{key}" for key in queue.get("partition", {})}
    assert shown == {field.name for field in fields(QueueConfig)} - {"name"} | {
        f"partition.{field.name}" for field in fields(PartitionConfig)
    }
