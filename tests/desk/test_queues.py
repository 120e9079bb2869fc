"""Changes and overrides of queues: writes, refusals, effects on claims, and their end."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from horsies_django import queues
from horsies_django.conf import Recovery
from horsies_django.core.errors import QueueError
from horsies_django.models import AuditEntry, Queue, QueueLimits
from horsies_django.monitoring import overview
from horsies_django.store.notify import channel_prefix
from horsies_django.worker.maintenance.reaper import Reaper
from tests.conftest import Claimers, Connect, put, sql
from tests.settings import HORSIES

pytestmark = pytest.mark.django_db(transaction=True)

ORDERED = {"partition_by_args": ["account_id"], "partition_policy": "stop"}


@pytest.fixture(autouse=True)
def no_audit(transactional_db: None) -> None:
    """Start with an empty audit, without the declarations of the settings."""
    AuditEntry.objects.all().delete()


def in_force(name: str) -> int | None:
    return QueueLimits.objects.get(pk=name).max_concurrency


def test_a_change_applies_at_once_and_is_audited(
    connect: Connect,
) -> None:
    """A change applies at once, wakes workers and is audited with the values before and after."""
    listener = connect()
    listener.execute(f"LISTEN {channel_prefix(listener)}_new")

    changed = queues.change(
        "mail", {"max_concurrency": 3, "priority": 7}, actor="ann", reason="slow partner"
    )

    assert changed == ["max_concurrency", "priority"]
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    assert heard.payload.split(" ")[1] == "mail"
    assert (in_force("mail"), Queue.objects.get(pk="mail").priority) == (3, 7)

    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.subject, entry.reason) == (
        "ann",
        "queue.set",
        "mail",
        "slow partner",
    )
    assert entry.before == {"max_concurrency": None, "priority": 1}
    assert entry.after == {"max_concurrency": 3, "priority": 7}

    assert queues.change("mail", {"max_concurrency": 3, "local_limit": 2}, actor="ann") == [
        "local_limit"
    ]
    assert AuditEntry.objects.latest("id").after == {"local_limit": 2}


AGAIN: dict[str, Callable[[], list[str]]] = {
    "set": lambda: queues.change("mail", {"priority": 1, "max_concurrency": None}, actor="ann"),
    "resume": lambda: queues.resume("mail", actor="ann"),
    "clear": lambda: queues.clear("mail", actor="ann"),
    "pause": lambda: queues.pause("bulk", actor="ann", reason="full disk"),
    "override": lambda: queues.override("bulk", {"local_limit": 2}, actor="ann", reason="sale"),
    "sync": lambda: queues.sync(actor="ann").get("mail", []),
}


@pytest.mark.parametrize("verb", AGAIN)
def test_a_change_that_changes_nothing_locks_and_audits_nothing(
    connect: Connect, verb: str
) -> None:
    queues.pause("bulk", actor="ann", reason="full disk")
    queues.override("bulk", {"local_limit": 2}, actor="ann", reason="sale")
    entries = AuditEntry.objects.count()

    pass_ = connect()
    with pass_.transaction():
        pass_.execute("SELECT FROM horsies_limits")
        assert AGAIN[verb]() == []

    assert AuditEntry.objects.count() == entries
    assert "paused_by" in queues.pause("bulk", actor="bob", reason="full disk"), (
        "by somebody else it is a change"
    )

    later = {
        "actor": "ann",
        "reason": "another sale",
        "until": dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    }
    assert {"override_reason", "override_until"} <= set(
        queues.override("bulk", {"local_limit": 2}, **later)
    )


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in the caller's transaction"])
def test_limits_that_are_kept_locked_are_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    monkeypatch.setattr(queues, "LOCK_TRIES", 2)
    pass_ = connect()
    said = "queue 'mail' was not changed: another transaction keeps the limits locked"

    with pass_.transaction():
        pass_.execute("SELECT FROM horsies_limits")
        with (
            pytest.raises(QueueError, match=said),
            transaction.atomic() if inside else nullcontext(),
        ):
            queues.change("mail", {"max_concurrency": 3}, actor="ann")

    assert (in_force("mail"), AuditEntry.objects.count()) == (None, 0)


@pytest.mark.parametrize(
    "verb", [queues.change, queues.pause, queues.resume, queues.override, queues.clear]
)
def test_an_unknown_queue_is_refused_with_advice(verb: Callable[..., Any]) -> None:
    limits = [{"max_concurrency": 3}] if verb in (queues.change, queues.override) else []

    with pytest.raises(
        QueueError, match=r"no queue 'nowhere' in the database; declare it in HORSIES\['QUEUES'\]"
    ):
        verb("nowhere", *limits, actor="ann", reason="sale")

    assert not Queue.objects.filter(pk="nowhere").exists()


FROM_ONE = ("local_limit", "partition_max_concurrency", "partition_local_limit", "priority")
NO_NAMES = ("tenant", [1], [""], ["a\x00"])
NOT_OF_ALL = {
    "local_limit": 3,
    "priority": 3,
    "partition_by_task": True,
    "partition_policy": "stop",
}


@pytest.mark.parametrize(
    ("name", "columns", "words"),
    [
        ("mail", {}, "no value was given"),
        (
            "mail",
            {"max_concurrency": -1},
            r"a whole number from 0 to 1_000_000 \(with 0, no task starts\)",
        ),
        *(
            ("mail", {"max_concurrency": wrong}, f"not {wrong!r}")
            for wrong in (1_000_001, "3", 3.0, True)
        ),
        *(("mail", {key: 0}, f"{key} must be a whole number from 1") for key in FROM_ONE),
        *(("mail", {"priority": wrong}, f"not {wrong}") for wrong in (101, None)),
        *(
            ("mail", {"partition_by_args": wrong}, "must be a list of argument names")
            for wrong in NO_NAMES
        ),
        ("mail", {"partition_by_args": ["a", "a"]}, "name each argument once"),
        ("mail", {"partition_by_task": 1}, "partition_by_task must be True or False"),
        (
            "mail",
            {"partition_policy": "halt"},
            "one of stop, continue, cancel, coalesce, or None, not 'halt'",
        ),
        ("mail", {"partition_policy": True}, "or None, not True"),
        (
            "mail",
            {"partition_policy": "stop"},
            "'stop' requires partition_by_args or partition_by_task",
        ),
        (
            "mail",
            {"partition_policy": "coalesce", "partition_by_args": []},
            "merges only equal tasks",
        ),
        (
            "mail",
            {"partition_policy": "coalesce", "partition_by_task": True},
            "merges only equal tasks",
        ),
        (
            "mail",
            {**ORDERED, "partition_max_concurrency": 2},
            "requires partition_max_concurrency=None: the tasks of",
        ),
        (
            "mail",
            {**ORDERED, "partition_local_limit": 1},
            "requires partition_local_limit=None: the tasks of one",
        ),
        ("mail", {"max_concurency": 1}, "queue 'mail' has no setting 'max_concurency'"),
        ("mail", {"name": "other"}, "queue 'mail' has no setting 'name'"),
        *(
            ("*", {key: value}, "the cluster supports only max_concurrency")
            for key, value in NOT_OF_ALL.items()
        ),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused_and_nothing_changes(
    name: str, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(QueueError, match=words):
        queues.change(name, columns, actor="ann")

    assert not AuditEntry.objects.exists()


def test_an_invalid_override_is_refused_and_changes_nothing() -> None:
    """An invalid override is refused and changes nothing."""
    for given, words in (
        ({"limits": {}}, "an override needs at least one of max_concurrency"),
        ({"reason": "  "}, "an override needs a reason"),
        ({"limits": {"priority": 1}}, "unknown limit 'priority'"),
        ({"limits": {"max_concurrency": -1}}, "max_concurrency must be"),
        ({"until": dt.datetime(2100, 1, 1)}, "has no time zone"),
        ({"until": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "is in the past"),
        ({"until": dt.datetime(9999, 12, 31, tzinfo=dt.UTC)}, "is too far in the future"),
    ):
        asked: dict[str, Any] = {
            "limits": {"max_concurrency": 3},
            "actor": "ann",
            "reason": "sale",
            **given,
        }
        with pytest.raises(QueueError, match=words):
            queues.override("mail", asked.pop("limits"), **asked)

    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"partition_by_args": None},
            "partition_policy='stop' requires partition_by_args or partition_by_task",
        ),
        ({"partition_policy": "coalesce"}, r"it requires partition_by_args=\[\] \(all arguments\)"),
        ({"partition_max_concurrency": 3}, "requires partition_max_concurrency=None"),
        ({"partition_local_limit": 1}, "requires partition_local_limit=None"),
    ],
    ids=str,
)
def test_a_change_is_checked_against_the_columns_of_the_queue(
    columns: dict[str, Any], words: str
) -> None:
    """Fails if: each column is valid by itself, but the queue has a policy without a rule."""
    queues.change("mail", ORDERED, actor="ann")

    with pytest.raises(QueueError, match=words):
        queues.change("mail", columns, actor="ann")
    assert AuditEntry.objects.count() == 1

    for key in ("partition_max_concurrency", "partition_local_limit"):
        said = f"{key} cannot be overridden, because the tasks of one partition run one at a time"
        with pytest.raises(QueueError, match=said):
            queues.override("mail", {key: 5, "max_concurrency": 9}, actor="ann", reason="sale")

    assert queues.override("mail", {"max_concurrency": 9}, actor="ann", reason="sale")
    cleared = {"partition_policy": None, "partition_by_args": None}
    assert queues.change("mail", cleared, actor="ann") == sorted(cleared)


def test_soft_mode_refuses_a_policy_and_a_cap_of_the_cluster() -> None:
    """In soft mode no queue can have a policy and the cluster no cap, but it can be paused."""
    with override_settings(HORSIES={**HORSIES, "PREFETCH_BUFFER": 4, "CLAIM_LEASE_MS": 5_000}):
        with pytest.raises(
            QueueError, match=r"not possible while HORSIES\['PREFETCH_BUFFER'\] is set"
        ):
            queues.change("mail", ORDERED, actor="ann")
        assert queues.change("mail", {"partition_by_task": True}, actor="ann")

        for verb in (queues.change, queues.override):
            with pytest.raises(QueueError, match="the cluster cannot have a cap while HORSIES"):
                verb("*", {"max_concurrency": 3}, actor="ann", reason="sale")
        assert queues.pause("*", actor="ann")

    assert in_force("*") == 0


@pytest.mark.promise("S1.35")
def test_a_pause_starts_no_task_and_keeps_the_limits(
    claimer: Claimers,
) -> None:
    """During a pause no task starts, whatever the limits are, and all limits are kept."""
    queues.change("default", {"max_concurrency": 3}, actor="ann")
    queues.override("default", {"max_concurrency": 5}, actor="ann", reason="sale")
    queues.pause("default", actor="bob", reason="full disk")
    put(2)
    worker = claimer()

    assert worker.run_pass(sync=9).claims == []

    (shown,) = overview.queues(["default"])
    assert (shown.effective["max_concurrency"], shown.paused_by, shown.paused_reason) == (
        0,
        "bob",
        "full disk",
    )

    assert queues.resume("default", actor="bob") == ["paused_at", "paused_by", "paused_reason"]
    assert in_force("default") == 5

    queues.clear("default", actor="bob")
    queues.change("default", {"max_concurrency": 0}, actor="ann")
    assert worker.run_pass(sync=9).claims == [], "a cap of zero is a pause"

    queues.change("default", {"max_concurrency": 3}, actor="ann")
    assert len(worker.run_pass(sync=9).claims) == 2


def test_a_sync_keeps_overrides_and_pauses() -> None:
    """``sync()`` writes the settings and keeps overrides and pauses."""
    queues.change("mail", {"max_concurrency": 3}, actor="ann")
    queues.override("mail", {"max_concurrency": 9}, actor="ann", reason="sale")
    queues.pause("bulk", actor="ann")

    partition = {"by_args": ["tenant"], "max_concurrency": 2}
    declared = {"mail": {"priority": 1, "max_concurrency": 5}, "bulk": {"partition": partition}}

    with override_settings(HORSIES={**HORSIES, "QUEUES": declared}):
        of_bulk = ["partition_by_args", "partition_max_concurrency", "priority"]
        assert queues.sync(actor="deploy") == {"mail": ["max_concurrency"], "bulk": of_bulk}

    mail = Queue.objects.get(pk="mail")
    bulk = Queue.objects.get(pk="bulk")
    assert (mail.max_concurrency, mail.override, in_force("mail")) == (5, {"max_concurrency": 9}, 9)
    assert (bulk.partition_by_args, bulk.partition_version, bulk.paused_by) == (
        ["tenant"],
        1,
        "ann",
    )

    assert {entry.action for entry in AuditEntry.objects.filter(actor="deploy")} == {
        "queue.declare"
    }

    fresh = {"QUEUES": {"fresh": {"max_concurrency": 2}}, "CLUSTER_WIDE_CAP": 20}
    with override_settings(HORSIES={**HORSIES, **fresh}):
        changed = queues.sync(actor="deploy")

    assert "max_concurrency" in changed["fresh"]
    assert (in_force("fresh"), in_force("*")) == (2, 20)
    assert Queue.objects.filter(pk="mail").exists(), (
        "a queue that is declared no more keeps its row"
    )


# Overrides


@pytest.mark.promise("S4.18", "S4.23")
def test_an_override_stands_beside_the_declared_limits(
    claimer: Claimers,
) -> None:
    """An override applies beside the declared limits until it is removed."""
    queues.change("default", {"max_concurrency": 2, "local_limit": 9}, actor="ann")
    queues.override("default", {"max_concurrency": 4}, actor="bob", reason="sale")
    put(10)
    worker = claimer()

    assert len(worker.run_pass(sync=10).claims) == 4

    (shown,) = overview.queues(["default"])
    assert (shown.declared["max_concurrency"], shown.effective["max_concurrency"]) == (2, 4)
    assert (shown.effective["local_limit"], shown.override_by, shown.override_reason) == (
        9,
        "bob",
        "sale",
    )

    queues.override("default", {"local_limit": 5}, actor="bob", reason="sale")
    assert in_force("default") == 2, "it replaces the earlier one as a whole"

    assert set(queues.clear("default", actor="bob", reason="over")) >= {
        "override",
        "override_by",
        "override_reason",
    }
    assert QueueLimits.objects.get(pk="default").local_limit == 9
    assert worker.run_pass(sync=10).claims == []

    (shown,) = overview.queues(["default"])
    assert (shown.running, shown.pending, shown.effective["max_concurrency"]) == (4, 6, 2), (
        "beyond the cap"
    )
    assert (len(overview.permits("default")), overview.partitions("default")) == (4, [])


@pytest.mark.promise("S4.19")
def test_an_override_ends_with_its_time_or_without_a_worker(
    connect: Connect,
) -> None:
    """An override ends at its time, or when no worker has served its queue for long.

    The second end can be switched off. Which queues are concerned is tested in
    ``tests/worker/test_maintenance_thread.py``; this test is about that setting and the audit.
    """
    for name in ("mail", "bulk"):
        queues.override(name, {"max_concurrency": 3}, actor="ann", reason="sale")

    sql(
        "UPDATE horsies_queues SET override_at = now() - interval '8 days' WHERE override IS NOT "
        "NULL"
    )
    sql("UPDATE horsies_queues SET override_until = now() WHERE name = 'mail'")

    for forget_after in (None, dt.timedelta(days=7)):
        Reaper(
            Recovery(),
            forget_after,
            ("twin",),
            uuid.uuid4(),
            may_declare_dead=lambda seconds: False,
        ).tick(connect())
        assert (in_force("mail"), in_force("bulk")) == (None, None if forget_after else 3)

    first, second = AuditEntry.objects.filter(action="queue.expire").order_by("id")
    assert (first.actor, first.subject) == ("reaper", "mail")
    assert first.reason == "its end time has passed"
    assert (first.before["override"], first.before["override_by"]) == (
        {"max_concurrency": 3},
        "ann",
    )
    assert (second.subject, second.reason) == (
        "bulk",
        "no worker served the queue for 7 days, 0:00:00",
    )
