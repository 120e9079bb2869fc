"""The settings of caps: limits of the cluster, of queues and of partitions, and the combinations that are refused."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies_django.conf import PartitionConfig, QueueConfig, config
from tests.desk.test_conf import only_problem, parsed, problems_of

EQUAL = {"by_task": True, "by_args": "all", "coalesce": True}
MAIL = "HORSIES['QUEUES']['mail']"
RULE = f"{MAIL}['partition']"


class Argument(enum.StrEnum):
    CUSTOMER = "customer_id"


def queue(**options: Any) -> dict[str, Any]:
    return {"QUEUES": {"mail": options}}


def mail(**options: Any) -> QueueConfig:
    return parsed(queue(**options)).queues["mail"]


def partition(**options: Any) -> dict[str, Any]:
    return queue(partition=options)


@pytest.mark.promise("S0.6", "S0.18", "S1.36", "S3.15", "S4.3", "S4.5", "S4.6")
def test_nothing_is_limited_and_nothing_is_prefetched_unless_set_and_one_entry_holds_all_limits_of_a_queue() -> None:
    found = parsed({"QUEUES": {"mail": {}}})
    assert (found.cluster_wide_cap, found.prefetch_buffer, found.claim_lease_ms) == (None, 0, None)
    assert found.queues["mail"] == QueueConfig("mail", 100, max_concurrency=None, local_limit=None, partition=None)
    assert mail(partition=None, max_concurrency=None, local_limit=None) == found.queues["mail"]
    rule = {"by_args": ["customer_id"], "by_task": True, "max_concurrency": 2, "local_limit": 1}
    assert mail(priority=7, max_concurrency=20, local_limit=10, partition=rule) == QueueConfig(
        "mail", 7, 20, 10, PartitionConfig(("customer_id",), by_task=True, max_concurrency=2, local_limit=1)
    )


@pytest.mark.promise("S4.11", "S4.16")
@pytest.mark.parametrize(
    ("rule", "by_args", "by_task"),
    [
        ({"by_args": ["customer_id"]}, ("customer_id",), False),
        ({"by_args": ("region", "customer_id")}, ("region", "customer_id"), False),
        ({"by_args": [Argument.CUSTOMER]}, ("customer_id",), False),
        ({"by_args": []}, (), False),
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
    assert mail(partition={**rule, "local_limit": 3}).partition == PartitionConfig(by_args, by_task, local_limit=3)


@pytest.mark.promise("S4.24")
@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        ({"by_args": ["account_id"], "ordered": True}, "stop"),
        ({"by_args": ["account_id"], "ordered": True, "on_failure": "stop"}, "stop"),
        ({"by_args": ["account_id"], "ordered": True, "on_failure": "continue"}, "continue"),
        ({"by_task": True, "ordered": True, "on_failure": "cancel", "max_concurrency": 1}, "cancel"),
        ({"by_args": "all", "ordered": True}, "stop"),
        (EQUAL, "coalesce"),
        ({"by_task": True, "by_args": [], "coalesce": True, "max_concurrency": 1}, "coalesce"),
        ({"by_task": True, "max_concurrency": 1}, None),
    ],
)
def test_tasks_of_a_partition_are_ordered_or_coalesced_without_a_limit_of_their_own(
    rule: dict[str, Any], policy: str | None
) -> None:
    found = mail(partition=rule)
    assert (found.policy, found.partition.policy, found.ordered) == (policy, policy, bool(rule.get("ordered")))
    assert found.partition.by_args == (
        () if rule.get("by_args") == "all" else tuple(rule.get("by_args", [])) or found.partition.by_args
    )
    assert (mail().policy, mail().ordered) == (None, False)


@pytest.mark.parametrize(
    ("key", "rule", "said", "hint"),
    [
        (
            "on_failure",
            {"ordered": True, "on_failure": "halt"},
            "'halt' is not what a failed task can do",
            "'continue'",
        ),
        ("on_failure", {"ordered": True, "on_failure": None}, "None is not what a failed task can do", "'stop'"),
        ("on_failure", {"on_failure": "cancel", "max_concurrency": 1}, "of an ordered queue", "'ordered': True"),
        ("max_concurrency", {"ordered": True, "max_concurrency": 2}, "run one at a time", "limit the queue instead"),
        ("local_limit", {"ordered": True, "local_limit": 1}, "run one at a time", "limit the queue instead"),
        ("coalesce", {"coalesce": True}, "Only equal tasks can be merged", "'by_task': True and 'by_args': 'all'"),
        ("coalesce", {"coalesce": True, "by_task": True}, "Only equal tasks can be merged", "leave out arguments"),
        ("coalesce", {"coalesce": True, "by_args": "all"}, "Only equal tasks can be merged", "'by_task': True"),
        ("coalesce", {**EQUAL, "ordered": True}, "merged have no order", "either 'ordered' or 'coalesce'"),
    ],
)
def test_each_contradiction_of_a_policy_says_the_way_out(key: str, rule: dict[str, Any], said: str, hint: str) -> None:
    problem = only_problem(partition(**{"by_args": ["account_id"], **rule}))
    assert (problem.id, problem.where) == ("E018", f"{RULE}[{key!r}]")
    assert said in problem.message
    assert hint in problem.hint


def test_a_policy_needs_a_rule_and_flags_that_are_flags() -> None:
    for rule, id_, where in (
        ({"ordered": True}, "E018", RULE),
        ({"by_args": "all", "ordered": "yes", "max_concurrency": 1}, "E001", f"{RULE}['ordered']"),
        ({**EQUAL, "by_args": "everything"}, "E001", f"{RULE}['by_args']"),
    ):
        problem = only_problem(partition(**rule))
        assert (problem.id, problem.where) == (id_, where)


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ({"by_args": ["account_id"], "ordered": True}, True),
        (EQUAL, True),
        ({"by_args": ["account_id"], "max_concurrency": 1}, False),
    ],
)
def test_a_prefetch_buffer_is_refused_with_a_queue_that_has_a_policy(rule: dict[str, Any], refused: bool) -> None:
    found = problems_of({**partition(**rule), "PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 10_000})
    assert [(one.id, one.where) for one in found] == [("E018", "HORSIES['PREFETCH_BUFFER']")] * refused
    for one in found:
        assert "neither ordered nor coalesced, as HORSIES['QUEUES'] says of 'mail'" in one.message
        assert "Remove PREFETCH_BUFFER" in one.hint


@pytest.mark.parametrize(
    ("raw", "id_", "where", "said"),
    [
        ({"CLUSTER_WIDE_CAP": "15"}, "E001", "HORSIES['CLUSTER_WIDE_CAP']", "must be an int, or None"),
        ({"RECOVERY": {"CHECK_INTERVAL_MS": None}}, "E001", "HORSIES['RECOVERY']['CHECK_INTERVAL_MS']", "timedelta"),
        (queue(max_concurrency="5"), "E001", f"{MAIL}['max_concurrency']", "'5' is of type str"),
        (queue(local_limit=timedelta(seconds=5)), "E001", f"{MAIL}['local_limit']", "must be an int, or None"),
        (queue(partition="customer_id"), "E001", RULE, "must be a dict"),
        (partition(by_task=1, local_limit=1), "E001", f"{RULE}['by_task']", "must be True or False"),
        (partition(by_args={"a"}, local_limit=1), "E001", f"{RULE}['by_args']", "of type set"),
        (partition(by_args=["a", 1], local_limit=1), "E001", f"{RULE}['by_args']", "1 is of type int"),
        (partition(by_args=["a", "b", "a"], local_limit=1), "E018", f"{RULE}['by_args']", "'a' is listed twice"),
        (partition(by_args=["a\x00"], local_limit=1), "E018", f"{RULE}['by_args']", "is not a valid argument name"),
        (partition(by_args=None, by_task=False, local_limit=2), "E018", RULE, "requires by_args or by_task"),
        (partition(by_task=True, max_concurrency=None, local_limit=None), "E018", RULE, "requires a limit"),
        ({"QUEUES": {"*": {"max_concurrency": 5}}}, "E006", "HORSIES['QUEUES']['*']", "CLUSTER_WIDE_CAP"),
    ],
)
def test_each_bad_limit_is_one_problem_at_its_place(raw: object, id_: str, where: str, said: str) -> None:
    problem = only_problem(raw)
    assert (problem.id, problem.where) == (id_, where)
    assert said in problem.message


def test_a_partition_that_neither_splits_nor_limits_has_both_problems() -> None:
    lone = only_problem(partition(by_args="customer_id", max_concurrency=2))
    assert (lone.id, lone.where) == ("E001", f"{RULE}['by_args']")
    assert "'customer_id' is a str, but must be a list" in lone.message
    assert "['customer_id']" in lone.hint
    assert [(one.id, one.where) for one in problems_of(partition())] == [("E018", RULE)] * 2
    wrong = problems_of(partition(by_args="a", max_concurrency=0))
    assert [one.where for one in wrong] == [f"{RULE}['by_args']", f"{RULE}['max_concurrency']"]


@pytest.mark.promise("S0.16", "S0.27", "S1.39")
def test_a_cluster_wide_cap_refuses_a_prefetch_buffer() -> None:
    problem = only_problem({"CLUSTER_WIDE_CAP": 15, "PREFETCH_BUFFER": 1, "CLAIM_LEASE_MS": 10_000})
    assert (problem.id, problem.where) == ("E014", "HORSIES['PREFETCH_BUFFER']")
    assert "CLUSTER_WIDE_CAP, which is 15" in problem.message
    assert parsed({"CLUSTER_WIDE_CAP": 15}).prefetch_buffer == 0


@pytest.mark.promise("S0.24", "S0.28", "S1.39")
def test_a_prefetch_buffer_needs_a_lease() -> None:
    problem = only_problem({"PREFETCH_BUFFER": 4})
    assert (problem.id, problem.where) == ("E015", "HORSIES['CLAIM_LEASE_MS']")
    assert "PREFETCH_BUFFER is 4" in problem.message
    found = parsed({"PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 5_000})
    assert (found.prefetch_buffer, found.claim_lease_ms) == (4, 5_000)


@pytest.mark.promise("S1.39")
@pytest.mark.parametrize("buffer", [0, 4])
def test_a_lease_outlives_one_late_heartbeat(buffer: int) -> None:
    base = {"PREFETCH_BUFFER": buffer, "RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_000}}
    assert parsed({**base, "CLAIM_LEASE_MS": 10_000}).claim_lease_ms == 10_000
    problem = only_problem({**base, "CLAIM_LEASE_MS": 9_999})
    assert (problem.id, problem.where) == ("E016", "HORSIES['CLAIM_LEASE_MS']")
    assert "9_999 is less than twice CLAIMER_HEARTBEAT_INTERVAL_MS, which is 5_000" in problem.message
    assert "at least 10_000" in problem.hint


def test_a_worker_is_not_dead_for_one_late_heartbeat() -> None:
    times = {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_000, "RUNNING_STALE_THRESHOLD_MS": 10_000}
    assert parsed({"RECOVERY": times}).recovery.running_stale_threshold_ms == 10_000
    problem = only_problem({"RECOVERY": {**times, "RUNNING_STALE_THRESHOLD_MS": 9_999}})
    assert (problem.id, problem.where) == ("E017", "HORSIES['RECOVERY']['RUNNING_STALE_THRESHOLD_MS']")
    assert "at least 10_000" in problem.hint
    assert only_problem({"RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 5_001}}).id == "E017"  # against the default


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
def test_config_raises_and_names_every_refused_combination_at_once(settings: Any) -> None:
    settings.HORSIES = {
        "CLUSTER_WIDE_CAP": 15,
        "PREFETCH_BUFFER": 4,
        "RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 6_000},
        **partition(by_args="customer_id", max_concurrency=0),
    }
    with pytest.raises(ImproperlyConfigured, match="5 problems") as caught:
        config()
    ours = ("['PREFETCH_BUFFER']", "['CLAIM_LEASE_MS']", "['RECOVERY']['RUNNING_STALE_THRESHOLD_MS']")
    for place in (*(f"HORSIES{key}" for key in ours), f"{RULE}['by_args']", f"{RULE}['max_concurrency']"):
        assert f"- {place}: " in str(caught.value)
    assert "(horsies.E014)" in str(caught.value)
