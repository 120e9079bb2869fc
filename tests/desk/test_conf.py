"""The settings: one dict in, one frozen value or all its problems out."""

from __future__ import annotations

import enum
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies_django.conf import RANGES, Config, Problem, QueueConfig, Recovery, Resilience, Retention, config, parse

ALIASES = ("default", "direct")
INNER = {"RECOVERY": Recovery, "RESILIENCE": Resilience, "RETENTION": Retention}


class OwnCode(enum.StrEnum):
    LOST = "LOST"


def parsed(raw: object) -> Config:
    found, problems = parse(raw, databases=ALIASES)
    assert problems == []
    return found


def problems_of(raw: object) -> list[Problem]:
    return parse(raw, databases=ALIASES)[1]


def only_problem(raw: object) -> Problem:
    [problem] = problems_of(raw)
    assert problem.message
    assert problem.hint
    return problem


def test_every_setting_may_be_left_out() -> None:
    assert parsed({}) == Config()
    assert Config().queues == {"default": QueueConfig("default", 100)}


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *((None, field.name.upper()) for field in fields(Config)),
        *((name, field.name.upper()) for name, owner in INNER.items() for field in fields(owner)),
    ],
)
def test_no_setting_is_accepted_and_ignored(section: str | None, key: str) -> None:
    unfit: dict[str, Any] = {key: object()}
    problems = problems_of({section: unfit} if section else unfit)
    assert any(key in problem.where for problem in problems), "nobody looked at its value"


@pytest.mark.promise("S0.12", "S1.33")
def test_declared_queues_have_their_priority_and_limit_and_the_default_queue_stays() -> None:
    found = parsed({"QUEUES": {"mail": {"priority": 1, "max_concurrency": 5}, "bulk": {}}})
    assert found.queue_mode == "CUSTOM"
    assert found.queues == {
        "mail": QueueConfig("mail", 1, max_concurrency=5),
        "bulk": QueueConfig("bulk", 100, max_concurrency=None),
        "default": QueueConfig("default", 100),
    }


def test_the_default_queue_can_be_given_another_priority() -> None:
    assert parsed({"QUEUES": {"default": {"priority": 7}}}).queues == {"default": QueueConfig("default", 7)}


def test_the_settings_cannot_be_changed_once_they_are_read() -> None:
    found = parsed({})
    with pytest.raises(TypeError):
        found.queues["mail"] = QueueConfig("mail")  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        found.database = "other"  # type: ignore[misc]


def test_both_modes_can_be_written_out() -> None:
    assert parsed({"QUEUE_MODE": "DEFAULT"}).queue_mode == "DEFAULT"
    assert parsed({"QUEUE_MODE": "CUSTOM", "QUEUES": {"mail": {}}}).queue_mode == "CUSTOM"


@pytest.mark.promise("S2.16", "S2.17", "S2.18", "S2.19")
@pytest.mark.parametrize("key", [field.name.upper() for field in fields(Resilience)])
def test_each_resilience_setting_takes_its_range_and_nothing_beyond(key: str) -> None:
    low, high = RANGES[key]
    assert high is not None
    room = {"DB_RETRY_INITIAL_MS": 100, "DB_RETRY_MAX_MS": 300_000}  # the two are compared with each other
    for value in (low, high):
        assert getattr(parsed({"RESILIENCE": room | {key: value}}).resilience, key.lower()) == value
    for value in (low - 1, high + 1):
        problem = only_problem({"RESILIENCE": room | {key: value}})
        assert (problem.id, problem.where) == ("E003", f"HORSIES['RESILIENCE']['{key}']")


@pytest.mark.promise("S2.16", "S2.17", "S2.18", "S2.19", "S3.10")
def test_the_resilience_defaults_and_ranges_are_the_promised_ones() -> None:
    assert Resilience() == Resilience(500, 30_000, 0, 5_000, 10_000)
    assert [RANGES[field.name.upper()] for field in fields(Resilience)] == [
        (100, 60_000),
        (500, 300_000),
        (0, 10_000),
        (1_000, 300_000),
        (100, 1_000_000),
    ]


def test_what_happens_to_tasks_that_are_cut_off_is_one_of_two_words() -> None:
    assert parsed({}).recovery.on_cut_off == "wait"
    assert parsed({"RECOVERY": {"ON_CUT_OFF": "kill", "CHECK_INTERVAL_MS": 2_000}}).recovery.on_cut_off == "kill"
    for value, id_ in (("KILL", "E003"), (None, "E001"), (True, "E001"), (["kill"], "E001")):
        problem = only_problem({"RECOVERY": {"ON_CUT_OFF": value}})
        assert (problem.id, problem.where) == (id_, "HORSIES['RECOVERY']['ON_CUT_OFF']")
        assert "'wait'" in problem.hint


def test_claims_are_durable_unless_somebody_says_otherwise() -> None:
    assert parsed({}).durable_claims is True
    assert parsed({"DURABLE_CLAIMS": False}).durable_claims is False


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    problem = only_problem({"RESILIENCE": {"DB_RETRY_INITIAL_MS": 5_000, "DB_RETRY_MAX_MS": 4_999}})
    assert (problem.id, problem.where) == ("E003", "HORSIES['RESILIENCE']['DB_RETRY_MAX_MS']")
    assert parsed({"RESILIENCE": {"DB_RETRY_INITIAL_MS": 5_000, "DB_RETRY_MAX_MS": 5_000}})


def test_milliseconds_may_be_a_timedelta() -> None:
    found = parsed({"RESILIENCE": {"NOTIFY_POLL_INTERVAL_MS": timedelta(seconds=2)}})
    assert found.resilience.notify_poll_interval_ms == 2_000
    assert only_problem({"RESILIENCE": {"NOTIFY_POLL_INTERVAL_MS": timedelta(hours=1)}}).id == "E003"
    assert only_problem({"RESILIENCE": {"NOTIFY_POLL_INTERVAL_MS": timedelta(seconds=2, microseconds=1)}}).id == "E003"
    assert only_problem({"MAX_PAYLOAD_BYTES": timedelta(seconds=2)}).id == "E001"


@pytest.mark.promise("S3.15")
@pytest.mark.parametrize(
    ("raw", "id_", "where"),
    [
        (None, "E001", "HORSIES"),
        ([], "E001", "HORSIES"),
        ({"DATABASE": None}, "E001", "HORSIES['DATABASE']"),
        ({"LISTEN_DATABASE": 5}, "E001", "HORSIES['LISTEN_DATABASE']"),
        ({"QUEUES": ["mail"]}, "E001", "HORSIES['QUEUES']"),
        ({"QUEUES": "mail"}, "E001", "HORSIES['QUEUES']"),
        ({"QUEUES": None}, "E001", "HORSIES['QUEUES']"),
        ({"QUEUES": {"mail": 1}}, "E001", "HORSIES['QUEUES']['mail']"),
        ({"QUEUES": {"mail": {"priority": True}}}, "E001", "HORSIES['QUEUES']['mail']['priority']"),
        ({"QUEUES": {"mail": {"priority": "1"}}}, "E001", "HORSIES['QUEUES']['mail']['priority']"),
        ({"RESILIENCE": None}, "E001", "HORSIES['RESILIENCE']"),
        ({"RESILIENCE": {"DB_RETRY_MAX_MS": 5e3}}, "E001", "HORSIES['RESILIENCE']['DB_RETRY_MAX_MS']"),
        ({"MAX_PAYLOAD_BYTES": None}, "E001", "HORSIES['MAX_PAYLOAD_BYTES']"),
        ({"DURABLE_CLAIMS": None}, "E001", "HORSIES['DURABLE_CLAIMS']"),
        ({"DURABLE_CLAIMS": 0}, "E001", "HORSIES['DURABLE_CLAIMS']"),
        ({"QUEUES": {"mail": {"priority": 0}}}, "E003", "HORSIES['QUEUES']['mail']['priority']"),
        ({"QUEUES": {"mail": {"priority": 101}}}, "E003", "HORSIES['QUEUES']['mail']['priority']"),
        ({"MAX_PAYLOAD_BYTES": 1023}, "E003", "HORSIES['MAX_PAYLOAD_BYTES']"),
        ({"DATABASE": "replica"}, "E004", "HORSIES['DATABASE']"),
        ({"LISTEN_DATABASE": ""}, "E004", "HORSIES['LISTEN_DATABASE']"),
        ({"QUEUE_MODE": "custom", "QUEUES": {"mail": {}}}, "E005", "HORSIES['QUEUE_MODE']"),
        ({"QUEUE_MODE": None}, "E005", "HORSIES['QUEUE_MODE']"),
        ({"QUEUE_MODE": "DEFAULT", "QUEUES": {"mail": {}}}, "E005", "HORSIES['QUEUE_MODE']"),
        ({"QUEUE_MODE": "CUSTOM"}, "E005", "HORSIES['QUEUE_MODE']"),
        ({"QUEUES": {}}, "E005", "HORSIES['QUEUES']"),
        ({"QUEUES": {"": {}}}, "E006", "HORSIES['QUEUES']['']"),
        ({"QUEUES": {1: {}}}, "E006", "HORSIES['QUEUES'][1]"),
        ({"QUEUES": {"two words": {}}}, "E006", "HORSIES['QUEUES']['two words']"),
        ({"QUEUES": {"a,b": {}}}, "E006", "HORSIES['QUEUES']['a,b']"),
        ({"QUEUES": {"*": {}}}, "E006", "HORSIES['QUEUES']['*']"),
        ({"QUEUES": {"a\x00": {}}}, "E006", "HORSIES['QUEUES']['a\\x00']"),
        ({"QUEUES": {"\ud800": {}}}, "E006", "HORSIES['QUEUES']['\\ud800']"),
        ({"DEFAULT_UNHANDLED_ERROR_CODE": None}, "E007", "HORSIES['DEFAULT_UNHANDLED_ERROR_CODE']"),
        ({"DEFAULT_UNHANDLED_ERROR_CODE": "lost"}, "E007", "HORSIES['DEFAULT_UNHANDLED_ERROR_CODE']"),
        ({"DEFAULT_UNHANDLED_ERROR_CODE": "WORKER_CRASHED"}, "E007", "HORSIES['DEFAULT_UNHANDLED_ERROR_CODE']"),
    ],
)
def test_each_bad_value_is_one_problem_at_its_place(raw: object, id_: str, where: str) -> None:
    problem = only_problem(raw)
    assert (problem.id, problem.where) == (id_, where)


def test_a_queue_name_has_at_most_100_characters() -> None:
    assert "q" * 100 in parsed({"QUEUES": {"q" * 100: {}}}).queues
    problem = only_problem({"QUEUES": {"q" * 101: {}}})
    assert problem.id == "E006"
    assert "101 characters" in problem.message


def test_the_code_of_unhandled_errors_can_be_the_projects_own() -> None:
    assert parsed({"DEFAULT_UNHANDLED_ERROR_CODE": "LOST"}).default_unhandled_error_code == "LOST"
    assert parsed({"DEFAULT_UNHANDLED_ERROR_CODE": "UNHANDLED_ERROR"}) == Config()
    plain = parsed({"DEFAULT_UNHANDLED_ERROR_CODE": OwnCode.LOST}).default_unhandled_error_code
    assert (plain, type(plain)) == ("LOST", str)


@pytest.mark.parametrize(
    ("raw", "where", "hint"),
    [
        ({"DATABSE": "default"}, "HORSIES['DATABSE']", "Did you mean 'DATABASE'?"),
        ({"queues": {"mail": {}}}, "HORSIES['queues']", "Did you mean 'QUEUES'?"),
        ({"QUEUES": {"mail": {"PRIORTY": 1}}}, "HORSIES['QUEUES']['mail']['PRIORTY']", "Did you mean 'priority'?"),
        (
            {"QUEUES": {"mail": {"maxconcurrency": 1}}},
            "HORSIES['QUEUES']['mail']['maxconcurrency']",
            "'max_concurrency'",
        ),
        ({"QUEUES": {"mail": {"name": "post"}}}, "HORSIES['QUEUES']['mail']['name']", "priority, max_concurrency"),
        (
            {"QUEUES": {"mail": {"partition": {"by_arg": [], "by_task": True, "local_limit": 1}}}},
            "HORSIES['QUEUES']['mail']['partition']['by_arg']",
            "Did you mean 'by_args'?",
        ),
        (
            {"RESILIENCE": {"DB_RETRY_MAX": 5_000}},
            "HORSIES['RESILIENCE']['DB_RETRY_MAX']",
            "Did you mean 'DB_RETRY_MAX_MS'?",
        ),
        ({"RECOVERY": {"CHECK_INTERVAL": 1}}, "HORSIES['RECOVERY']['CHECK_INTERVAL']", "'CHECK_INTERVAL_MS'"),
        ({"CLUSTER_CAP": 1}, "HORSIES['CLUSTER_CAP']", "Did you mean 'CLUSTER_WIDE_CAP'?"),
        ({7: 1}, "HORSIES[7]", "QUEUES"),
    ],
)
def test_an_unknown_key_at_any_level_is_a_problem_with_a_suggestion(raw: object, where: str, hint: str) -> None:
    problem = only_problem(raw)
    assert (problem.id, problem.where) == ("E002", where)
    assert hint in problem.hint


def test_all_problems_are_found_at_once() -> None:
    raw: dict[str, Any] = {
        "DATABASE": "nowhere",
        "QUEUES": {"mail": {"priority": 0, "limit": 3}, "": {}},
        "RESILIENCE": {"DB_RETRY_INITIAL_MS": 1},
        "MAX_PAYLOAD": 5,
    }
    assert sorted(problem.id for problem in problems_of(raw)) == ["E002", "E002", "E003", "E003", "E004", "E006"]


def test_a_long_value_is_cut_in_the_message() -> None:
    problem = only_problem({"DATABASE": "x" * 10_000})
    assert len(str(problem)) < 400


def test_config_names_every_problem(settings: Any) -> None:
    settings.HORSIES = {"DATABSE": "default", "MAX_PAYLOAD_BYTES": 1}
    with pytest.raises(ImproperlyConfigured) as caught:
        config()
    assert "2 problems" in str(caught.value)
    assert "HORSIES['DATABSE']" in str(caught.value)
    assert "HORSIES['MAX_PAYLOAD_BYTES']" in str(caught.value)
    assert "horsies.E003" in str(caught.value)


def test_config_follows_a_change_of_the_settings_in_tests(settings: Any) -> None:
    settings.HORSIES = {"MAX_PAYLOAD_BYTES": 2_000}
    assert config().max_payload_bytes == 2_000
    settings.HORSIES = {"MAX_PAYLOAD_BYTES": 3_000}
    assert config().max_payload_bytes == 3_000
    assert config() is config()


def test_a_project_without_the_setting_has_the_defaults(settings: Any) -> None:
    del settings.HORSIES
    assert config() == Config()
