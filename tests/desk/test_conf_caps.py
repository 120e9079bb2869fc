"""The settings of caps: limits of the cluster, queues and partitions, and refused combinations."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies_django.conf import PartitionConfig, QueueConfig, config
from tests.desk.test_conf import OwnCode, parsed, problems_of, refused

BY_ACCOUNT: dict[str, Any] = {"by_args": ["account_id"]}
EQUAL: dict[str, Any] = {"by_task": True, "by_args": "all", "coalesce": True}
RULE = "['QUEUES']['mail']['partition']"


def queue(**options: Any) -> dict[str, Any]:
    return {"QUEUES": {"mail": options}}


def mail(**options: Any) -> QueueConfig:
    return parsed(queue(**options)).queues["mail"]


def partition(**options: Any) -> dict[str, Any]:
    return queue(partition=options)


@pytest.mark.promise("S0.6", "S0.18", "S1.36", "S3.15", "S4.3", "S4.5", "S4.6")
def test_nothing_is_limited_or_prefetched_by_default() -> None:
    """By default nothing is limited and nothing is prefetched.

    One entry holds all limits of a queue.
    """
    found = parsed({"QUEUES": {"mail": {}}})

    assert (found.cluster_wide_cap, found.prefetch_buffer, found.claim_lease_ms) == (None, 0, None)
    assert found.queues["mail"] == QueueConfig(
        "mail", 100, max_concurrency=None, local_limit=None, partition=None
    )
    assert mail(partition=None, max_concurrency=None, local_limit=None) == found.queues["mail"]

    rule = {"by_args": ["customer_id"], "by_task": True, "max_concurrency": 2, "local_limit": 1}
    assert mail(priority=7, max_concurrency=20, local_limit=10, partition=rule) == QueueConfig(
        "mail",
        7,
        20,
        10,
        PartitionConfig(("customer_id",), by_task=True, max_concurrency=2, local_limit=1),
    )


@pytest.mark.promise("S4.11", "S4.16")
@pytest.mark.parametrize(
    ("rule", "by_args", "by_task"),
    [
        ({"by_args": ["customer_id"]}, ("customer_id",), False),
        ({"by_args": ("region", "customer_id")}, ("region", "customer_id"), False),
        ({"by_args": [OwnCode.LOST]}, ("LOST",), False),
        ({"by_args": []}, (), False),
        ({"by_args": "all"}, (), False),
        ({"by_args": [], "by_task": True}, (), True),
        ({"by_task": True}, None, True),
        ({"by_args": None, "by_task": True}, None, True),
    ],
)
def test_partitions_are_made_by_arguments_by_task_or_by_both(
    rule: dict[str, Any], by_args: tuple[str, ...] | None, by_task: bool
) -> None:
    found = mail(partition={**rule, "max_concurrency": 2}).partition

    assert found == PartitionConfig(by_args, by_task, max_concurrency=2)
    assert all(type(name) is str for name in found.by_args or ())
    assert mail(partition={**rule, "local_limit": 3}).partition == PartitionConfig(
        by_args, by_task, local_limit=3
    )


@pytest.mark.promise("S4.24")
@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        (BY_ACCOUNT | {"ordered": True}, "stop"),
        (BY_ACCOUNT | {"ordered": True, "on_failure": "continue"}, "continue"),
        (
            {"by_task": True, "ordered": True, "on_failure": "cancel", "max_concurrency": 1},
            "cancel",
        ),
        ({"by_args": "all", "ordered": True}, "stop"),
        (EQUAL, "coalesce"),
        ({"by_task": True, "by_args": [], "coalesce": True, "max_concurrency": 1}, "coalesce"),
        ({"by_task": True, "max_concurrency": 1}, None),
    ],
)
def test_tasks_of_a_partition_are_ordered_without_a_limit(
    rule: dict[str, Any], policy: str | None
) -> None:
    """Tasks of a partition can be ordered or coalesced without a limit of their own."""
    found = mail(partition=rule)

    assert (found.policy, found.partition.policy, found.ordered) == (
        policy,
        policy,
        bool(rule.get("ordered")),
    )
    assert (mail().policy, mail().ordered) == (None, False)


@pytest.mark.parametrize(
    ("rule", "id_", "key", "said", "hint"),
    [
        (
            BY_ACCOUNT | {"ordered": True, "on_failure": "halt"},
            "E018",
            "on_failure",
            "'halt' is not a valid choice",
            "'continue'",
        ),
        (
            BY_ACCOUNT | {"ordered": True, "on_failure": None},
            "E018",
            "on_failure",
            "None is not a valid choice",
            "'stop'",
        ),
        (
            BY_ACCOUNT | {"on_failure": "cancel", "local_limit": 1},
            "E018",
            "on_failure",
            "applies only to ordered queues",
            "'ordered': True",
        ),
        (
            BY_ACCOUNT | {"ordered": True, "max_concurrency": 2},
            "E018",
            "max_concurrency",
            "one at a time",
            "the queue instead",
        ),
        (
            BY_ACCOUNT | {"ordered": True, "local_limit": 1},
            "E018",
            "local_limit",
            "one at a time",
            "the queue instead",
        ),
        (
            BY_ACCOUNT | {"coalesce": True},
            "E018",
            "coalesce",
            "merges only equal tasks",
            "'by_task': True and 'by_args': 'all'",
        ),
        (
            BY_ACCOUNT | {"coalesce": True, "by_task": True},
            "E018",
            "coalesce",
            "merges only equal tasks",
            "remove arguments",
        ),
        (
            {"by_args": "all", "coalesce": True},
            "E018",
            "coalesce",
            "coalesce merges only equal tasks",
            "'by_task': True",
        ),
        (
            EQUAL | {"ordered": True},
            "E018",
            "coalesce",
            "merged tasks have no order",
            "Remove 'ordered' or 'coalesce'",
        ),
        (EQUAL | {"by_args": "everything"}, "E001", "by_args", "'everything'", "['everything']"),
        (
            {"by_args": "customer_id", "max_concurrency": 2},
            "E001",
            "by_args",
            "is a str, but must be a list",
            "['customer_id']",
        ),
        ({"by_args": {"a"}, "local_limit": 1}, "E001", "by_args", "of type set", ""),
        ({"by_args": ["a", 1], "local_limit": 1}, "E001", "by_args", "1 is of type int", ""),
        (
            {"by_args": ["a", "b", "a"], "local_limit": 1},
            "E018",
            "by_args",
            "'a' is listed twice",
            "",
        ),
        (
            {"by_args": ["a\x00"], "local_limit": 1},
            "E018",
            "by_args",
            "is not a valid argument name",
            "",
        ),
        ({"by_task": 1, "local_limit": 1}, "E001", "by_task", "must be True or False", ""),
        (
            BY_ACCOUNT | {"ordered": "yes", "local_limit": 1},
            "E001",
            "ordered",
            "must be True or False",
            "",
        ),
        ({"ordered": True}, "E018", None, "by_args", ""),
        (
            {"by_args": None, "by_task": False, "local_limit": 2},
            "E018",
            None,
            "requires by_args or by_task",
            "",
        ),
        (
            {"by_task": True, "max_concurrency": None, "local_limit": None},
            "E018",
            None,
            "requires a limit",
            "",
        ),
    ],
)
def test_each_impossible_rule_is_one_problem_at_its_place(
    rule: dict[str, Any], id_: str, key: str | None, said: str, hint: str
) -> None:
    """Each invalid rule is one problem at its place, with a remedy."""
    refused(partition(**rule), id_, f"{RULE}[{key!r}]" if key else RULE, said, hint)


def test_a_partition_without_split_and_limit_has_two_problems() -> None:
    """A partition that neither splits nor limits has two problems."""
    assert [(one.id, one.where) for one in problems_of(partition())] == [
        ("E018", f"HORSIES{RULE}")
    ] * 2

    wrong = problems_of(partition(by_args="a", max_concurrency=0))
    assert [one.where for one in wrong] == [
        f"HORSIES{RULE}['by_args']",
        f"HORSIES{RULE}['max_concurrency']",
    ]


LATE = {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_000}
STALE = "RUNNING_STALE_THRESHOLD_MS"


@pytest.mark.promise("S0.16", "S0.24", "S0.27", "S0.28", "S1.39")
@pytest.mark.parametrize(
    ("base", "sound", "wrong", "id_", "where", "said"),
    [
        (
            {"CLUSTER_WIDE_CAP": 15},
            {},
            {"PREFETCH_BUFFER": 1, "CLAIM_LEASE_MS": 10_000},
            "E014",
            "['PREFETCH_BUFFER']",
            "CLUSTER_WIDE_CAP, which is 15",
        ),
        *(
            (
                partition(**rule),
                {},
                {"PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 10_000},
                "E018",
                "['PREFETCH_BUFFER']",
                "neither ordered nor coalesced, and HORSIES['QUEUES'] has such queues: 'mail'",
            )
            for rule in (BY_ACCOUNT | {"ordered": True}, EQUAL)
        ),
        (
            partition(**BY_ACCOUNT, max_concurrency=1) | {"PREFETCH_BUFFER": 4},
            {"CLAIM_LEASE_MS": 5_000},
            {},
            "E015",
            "['CLAIM_LEASE_MS']",
            "PREFETCH_BUFFER is 4",
        ),
        *(
            (
                {"PREFETCH_BUFFER": buffer, "RECOVERY": LATE},
                {"CLAIM_LEASE_MS": 10_000},
                {"CLAIM_LEASE_MS": 9_999},
                "E016",
                "['CLAIM_LEASE_MS']",
                "9_999 is less than twice CLAIMER_HEARTBEAT_INTERVAL_MS, which is 5_000",
            )
            for buffer in (0, 4)
        ),
        (
            {},
            {"RECOVERY": LATE | {STALE: 10_000}},
            {"RECOVERY": LATE | {STALE: 9_999}},
            "E017",
            f"['RECOVERY']['{STALE}']",
            "at least 10_000",
        ),
        (
            {},
            {"RECOVERY": LATE},
            {"RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_001}},
            "E017",
            f"['RECOVERY']['{STALE}']",
            "10_000 is less than twice",  # the default
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    base: dict[str, Any],
    sound: dict[str, Any],
    wrong: dict[str, Any],
    id_: str,
    where: str,
    said: str,
) -> None:
    """Settings that contradict each other are refused, and settings that just fit are accepted."""
    parsed(base | sound)
    refused(base | wrong, id_, where, said)


@pytest.mark.parametrize(
    ("raw", "ids"),
    [
        ({"PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": "10s"}, ["E001"]),
        ({"PREFETCH_BUFFER": -1, "CLUSTER_WIDE_CAP": 5}, ["E003"]),
        ({"PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 10_000, "CLUSTER_WIDE_CAP": 0}, ["E003"]),
        ({"CLAIM_LEASE_MS": 1_000, "RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 1}}, ["E003"]),
        ({"CLAIM_LEASE_MS": 1_000, "RECOVERY": 5}, ["E001"]),
        ({"RESILIENCE": {"DB_RETRY_INITIAL_MS": 60_000, "DB_RETRY_MAX_MS": None}}, ["E001"]),
    ],
)
def test_a_bad_value_is_not_compared_with_others_as_well(raw: object, ids: list[str]) -> None:
    assert [one.id for one in problems_of(raw)] == ids


@pytest.mark.promise("S0.27", "S0.28", "S1.39")
def test_config_names_every_refused_combination_at_once(settings: Any) -> None:
    """``config()`` raises an error that names every refused combination."""
    late = {"CLAIMER_HEARTBEAT_INTERVAL_MS": 6_000}
    settings.HORSIES = {"CLUSTER_WIDE_CAP": 15, "PREFETCH_BUFFER": 4, "RECOVERY": late}

    with pytest.raises(ImproperlyConfigured, match="3 problems") as caught:
        config()

    for key in (
        "['PREFETCH_BUFFER']",
        "['CLAIM_LEASE_MS']",
        "['RECOVERY']['RUNNING_STALE_THRESHOLD_MS']",
    ):
        assert f"- HORSIES{key}: " in str(caught.value)
    assert "(horsies.E014)" in str(caught.value)
