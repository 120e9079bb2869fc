"""``parse_settings`` reads one dict into a frozen value or a list of all its problems."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horsies_django.conf import (
    RANGES,
    Config,
    QueueConfig,
    Recovery,
    Resilience,
    Retention,
    SettingProblem,
    config,
    parse_settings,
)
from horsies_django.conf.values import CUT_OFF

ALIASES = ("default", "direct")
INNER = {"RECOVERY": Recovery, "RESILIENCE": Resilience, "RETENTION": Retention}


class OwnCode(enum.StrEnum):
    LOST = "LOST"


def parsed(raw: object) -> Config:
    found, problems = parse_settings(raw, databases=ALIASES)
    assert problems == []
    return found


def problems_of(raw: object) -> list[SettingProblem]:
    return parse_settings(raw, databases=ALIASES)[1]


def refused(raw: object, id_: str, where: str, *words: str) -> SettingProblem:
    """Assert that this is the only problem, with its id, place and words of its text.

    Return the problem.
    """
    [problem] = problems_of(raw)

    assert (problem.id, problem.where) == (id_, f"HORSIES{where}")
    assert problem.message
    assert problem.hint
    assert [word for word in words if word not in str(problem)] == []

    return problem


def place(keys: Iterable[object]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def test_every_setting_may_be_left_out_and_so_may_all_of_them(settings: Any) -> None:
    assert parsed({}) == Config()
    assert Config().queues == {"default": QueueConfig("default", 100)}
    assert (Config().durable_claims, parsed({"DURABLE_CLAIMS": False}).durable_claims) == (
        True,
        False,
    )
    assert parsed({"RECOVERY": {"ON_CUT_OFF": "kill"}}).recovery == Recovery(on_cut_off="kill")

    del settings.HORSIES
    config.cache_clear()  # Django sends no signal when a setting is deleted
    assert config() == Config()

    for size in (2_000, 3_000):
        settings.HORSIES = {"MAX_PAYLOAD_BYTES": size}
        assert config().max_payload_bytes == size, "it follows a change of the settings in tests"
    assert config() is config()


@pytest.mark.promise("S0.12", "S1.33")
def test_declared_queues_have_their_priority_and_limit() -> None:
    """Declared queues have their priority and limit, and the queue ``default`` still exists."""
    found = parsed({"QUEUES": {"mail": {"priority": 1, "max_concurrency": 5}, "bulk": {}}})

    assert found.queue_mode == "CUSTOM"
    assert parsed({"QUEUE_MODE": "CUSTOM", "QUEUES": {"mail": {}}}).queue_mode == "CUSTOM"
    assert parsed({"QUEUE_MODE": "DEFAULT"}) == Config()
    assert found.queues == {
        "mail": QueueConfig("mail", 1, max_concurrency=5),
        "bulk": QueueConfig("bulk", 100, max_concurrency=None),
        "default": QueueConfig("default", 100),
    }

    assert parsed({"QUEUES": {"default": {"priority": 7}}}).queues == {
        "default": QueueConfig("default", 7)
    }


def read_page() -> dict[str, str]:
    """Return the range of each setting as the page of the settings gives it.

    Keys and defaults are tested in ``tests/meta/test_docs.py``.
    """
    spans: dict[str, str] = {}
    for section in ("HORSIES", "RECOVERY", "RESILIENCE", "RETENTION", "QUEUES", "partition"):
        [text] = re.findall(rf"^##+ {section}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
        prefix = "partition." * (section == "partition")
        spans |= {
            prefix + key: span
            for key, span in re.findall(r"^\| `(\w+)` \|.*?\| (.*?) \|", text, re.MULTILINE)
        }
    return spans


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
SPANS = read_page()
# These must be at least twice the shortest interval of heartbeats.
LEAST = {"CLAIM_LEASE_MS": 2_000, "RUNNING_STALE_THRESHOLD_MS": 2_000}


def path_to(rule: str) -> list[str]:
    """Return the keys that lead to the number with this range."""
    if rule == "QUEUE_RETENTION_HOURS":
        return ["RETENTION", rule, "mail"]
    if rule.islower():
        return ["QUEUES", "mail", *rule.split(".")]

    sections = [
        name
        for name, owner in INNER.items()
        if rule.lower() in {field.name for field in fields(owner)}
    ]
    return [*sections, rule]


def with_number(rule: str, value: object) -> dict[str, Any]:
    """Return settings with this value, and with others that fit both ends of its range."""
    raw: dict[str, Any] = {
        "QUEUES": {
            "mail": {"partition": {"by_task": True, "max_concurrency": 1, "local_limit": 1}}
        },
        "RECOVERY": {
            "CLAIMER_HEARTBEAT_INTERVAL_MS": 1_000,
            "RUNNING_STALE_THRESHOLD_MS": 7_200_000,
        },
        "RESILIENCE": {"DB_RETRY_INITIAL_MS": 100, "DB_RETRY_MAX_MS": 300_000},
        "CLAIM_LEASE_MS": 3_600_000,
    }

    section = raw
    *sections, key = path_to(rule)
    for name in sections:
        section = section.setdefault(name, {})
    section[key] = value

    return raw


@pytest.mark.promise("S0.6", "S1.36", "S2.16", "S2.17", "S2.18", "S2.19")
@pytest.mark.parametrize("rule", RANGES)
def test_each_number_is_limited_to_its_range(
    rule: str,
) -> None:
    """Each number accepts exactly its range, and accepts None only where the page allows it."""

    def read(value: object) -> object:
        found: Any = parsed(with_number(rule, value))
        for key in path_to(rule):
            found = found[key] if isinstance(found, Mapping) else getattr(found, key.lower())
        return found

    low, high = RANGES[rule]
    span = f"from {low:_} to {high:_}" if high else f"at least {low:_}"
    written, _, nothing = SPANS[rule].removeprefix("a dict of queues; ").partition(", or ")
    assert written == span.removeprefix("from "), "the page says so"

    for value in (LEAST.get(rule, low), high or 10**9):
        assert read(value) == value
    for value in (low - 1, high + 1) if high else (low - 1,):
        problem = refused(with_number(rule, value), "E003", place(path_to(rule)), span)
        assert (", or None" in problem.hint) == bool(nothing)

    if nothing == "`None`":
        assert read(None) is None
    else:
        refused(with_number(rule, None), "E001", place(path_to(rule)))


@pytest.mark.promise("S0.6", "S1.36", "S2.16", "S2.17", "S2.18", "S2.19", "S3.10")
def test_the_promised_defaults() -> None:
    assert Resilience() == Resilience(500, 30_000, 0, 5_000, 10_000)
    assert Recovery() == Recovery(2_500, 10_000, 1_000, 30_000)
    assert Retention() == Retention(720, {}, 168, 168, 8_760, 300, 500, 720, 720)
    assert timedelta(milliseconds=Config().forget_overrides_after_ms or 0) == timedelta(days=7)


def test_a_time_may_be_a_timedelta_of_whole_units() -> None:
    kept = {
        "TERMINAL_RECORD_RETENTION_HOURS": timedelta(days=7),
        "RETENTION_SWEEP_INTERVAL_S": timedelta(minutes=1),
    }

    found = parsed({"CLAIM_LEASE_MS": timedelta(minutes=1), "RETENTION": kept})

    assert found.claim_lease_ms == 60_000
    assert (
        found.retention.terminal_record_retention_hours,
        found.retention.retention_sweep_interval_s,
    ) == (168, 60)

    for section, key, value, said in (
        (
            "RESILIENCE",
            "NOTIFY_POLL_INTERVAL_MS",
            timedelta(seconds=2, microseconds=1),
            "whole number of milliseconds",
        ),
        ("RETENTION", "AUDIT_RETENTION_HOURS", timedelta(minutes=90), "whole number of hours"),
        (
            "RETENTION",
            "RETENTION_SWEEP_INTERVAL_S",
            timedelta(milliseconds=60_500),
            "whole number of seconds",
        ),
        ("RESILIENCE", "NOTIFY_POLL_INTERVAL_MS", timedelta(hours=1), "out of range"),
    ):
        refused({section: {key: value}}, "E003", place([section, key]), said)

    refused({"MAX_PAYLOAD_BYTES": timedelta(seconds=2)}, "E001", "['MAX_PAYLOAD_BYTES']")


def test_each_queue_may_have_its_own_retention() -> None:
    """The tasks of each queue may be kept for a time of their own, or for ever."""
    hours = {"mail": timedelta(hours=1), "payments": None, "default": 43_800}
    raw = {"QUEUES": {"mail": {}, "payments": {}}, "RETENTION": {"QUEUE_RETENTION_HOURS": hours}}

    assert parsed(raw).retention.queue_retention_hours == {**hours, "mail": 1}

    hours_of = ["RETENTION", "QUEUE_RETENTION_HOURS"]
    for name in ("mial", "*", 5, None):
        raw["RETENTION"]["QUEUE_RETENTION_HOURS"] = {name: 24}
        refused(raw, "E019", place([*hours_of, name]), "default, mail, payments")

    raw["RETENTION"]["QUEUE_RETENTION_HOURS"] = {"mail": 0}
    refused(raw, "E003", place([*hours_of, "mail"]), "the default, 720")


NO_NAMES = ("", 1, "two words", "a,b", "*", "a\x00", "\ud800")
NO_PATHS = (
    "shop.tracing.middleware",  # a str is a list of letters
    ["timing"],
    ["shop.no-name"],
    [len],
    None,
)
NO_LIMITS = {
    "priority": True,
    "max_concurrency": "5",
    "local_limit": timedelta(seconds=5),
    "partition": "customer",
}
DEFAULT = "DEFAULT_UNHANDLED_ERROR_CODE"


@pytest.mark.promise("S3.15")
@pytest.mark.parametrize(
    ("raw", "id_", "where"),
    [
        (None, "E001", ""),
        ([], "E001", ""),
        ({"QUEUES": {"mail": 1}}, "E001", "['QUEUES']['mail']"),
        *(
            ({"QUEUES": {"mail": {key: value}}}, "E001", f"['QUEUES']['mail']['{key}']")
            for key, value in NO_LIMITS.items()
        ),
        *(({section: None}, "E001", f"['{section}']") for section in INNER),
        (
            {"RETENTION": {"QUEUE_RETENTION_HOURS": {"default": "24"}}},
            "E001",
            "['RETENTION']['QUEUE_RETENTION_HOURS']['default']",
        ),
        (
            {"RESILIENCE": {"DB_RETRY_INITIAL_MS": 5_000, "DB_RETRY_MAX_MS": 4_999}},
            "E003",
            "['RESILIENCE']['DB_RETRY_MAX_MS']",
        ),
        ({"RESILIENCE": {"DB_RETRY_MAX_MS": 5e3}}, "E001", "['RESILIENCE']['DB_RETRY_MAX_MS']"),
        *(
            ({"RECOVERY": {"ON_CUT_OFF": value}}, id_, "['RECOVERY']['ON_CUT_OFF']")
            for value, id_ in (("KILL", "E003"), (None, "E001"), (True, "E001"), (["kill"], "E001"))
        ),
        ({"DATABASE": "x" * 10_000}, "E004", "['DATABASE']"),
        ({"DATABASE": "replica"}, "E004", "['DATABASE']"),
        ({"LISTEN_DATABASE": ""}, "E004", "['LISTEN_DATABASE']"),
        ({"QUEUE_MODE": "custom", "QUEUES": {"mail": {}}}, "E005", "['QUEUE_MODE']"),
        ({"QUEUE_MODE": "DEFAULT", "QUEUES": {"mail": {}}}, "E005", "['QUEUE_MODE']"),
        ({"QUEUE_MODE": "CUSTOM"}, "E005", "['QUEUE_MODE']"),
        ({"QUEUES": {}}, "E005", "['QUEUES']"),
        *(
            ({key: value}, "E001", f"['{key}']")
            for key in ("MIDDLEWARE", "METADATA")
            for value in NO_PATHS
        ),
        *(({"QUEUES": {name: {}}}, "E006", f"['QUEUES'][{name!r}]") for name in NO_NAMES),
        *(({DEFAULT: code}, "E007", f"['{DEFAULT}']") for code in (None, "lost", "WORKER_CRASHED")),
    ],
)
def test_each_bad_value_is_one_problem_at_its_place(raw: object, id_: str, where: str) -> None:
    assert len(str(refused(raw, id_, where))) < 500


def test_the_code_of_unhandled_errors_can_be_set() -> None:
    """The code of unhandled errors can be one of the project.

    The name of a queue has at most 100 characters.
    """
    assert parsed({DEFAULT: "UNHANDLED_ERROR"}) == Config()

    for own in ("LOST", OwnCode.LOST):
        plain = parsed({DEFAULT: own}).default_unhandled_error_code
        assert (plain, type(plain)) == ("LOST", str)

    assert "q" * 100 in parsed({"QUEUES": {"q" * 100: {}}}).queues
    assert "101 characters" in str(problems_of({"QUEUES": {"q" * 101: {}}}))
    refused({"QUEUES": {"*": {}}}, "E006", "['QUEUES']['*']", "CLUSTER_WIDE_CAP")


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        (["DATABSE"], "Did you mean 'DATABASE'?"),
        (["QUEUES", "mail", "PRIORTY"], "Did you mean 'priority'?"),
        (["QUEUES", "mail", "name"], "priority, max_concurrency"),
        (["RECOVERY", "CHECK_INTERVAL"], "'CHECK_INTERVAL_MS'"),
        ([7], "QUEUES"),
    ],
)
def test_an_unknown_key_is_a_problem_with_a_suggestion(where: list[Any], hint: str) -> None:
    """An unknown key at any level is a problem with a suggestion."""
    raw: Any = 1
    for key in reversed(where):
        raw = {key: raw}

    refused(raw, "E002", place(where), hint)


def test_the_choices_and_the_examples_of_the_page_are_right() -> None:
    assert all(f'"{choice}"' in SPANS["ON_CUT_OFF"] for choice in CUT_OFF)

    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        names: dict[str, Any] = {}
        exec(example, names)  # our own page
        assert parsed(names["HORSIES"]) != Config(), example
