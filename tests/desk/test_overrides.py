"""Overrides stand beside what is declared, and end when removed, when their time is over, or when nobody serves the queue."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from horsies_django import queues
from horsies_django.conf import Recovery
from horsies_django.models import AuditEntry, Queue, QueueLimits
from horsies_django.monitoring import overview
from horsies_django.worker.maintenance.reaper import Reaper
from tests.conftest import Claimer, put, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
Claimers = Callable[..., Claimer]


def soon(**delta: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(**delta)


def in_force(name: str) -> int | None:
    return QueueLimits.objects.get(pk=name).max_concurrency


@pytest.mark.promise("S4.18")
def test_an_override_stands_beside_the_declared_limits_until_it_is_removed(claimer: Claimers) -> None:
    queues.change("default", {"max_concurrency": 2, "local_limit": 9}, actor="ann")
    queues.override("default", {"max_concurrency": 4}, actor="bob", reason="sale")
    put(10)
    worker = claimer()
    assert len(worker.run_pass(sync=10).claims) == 4
    (shown,) = overview.queues(["default"])
    assert (shown.declared["max_concurrency"], shown.effective["max_concurrency"]) == (2, 4)
    assert (shown.effective["local_limit"], shown.override_by, shown.override_reason) == (9, "bob", "sale")
    assert set(queues.clear("default", actor="bob", reason="over")) >= {"override", "override_by", "override_reason"}
    assert in_force("default") == 2
    assert worker.run_pass(sync=10).claims == []


def test_an_override_replaces_an_earlier_one_as_a_whole_and_may_lift_a_limit() -> None:
    queues.change("mail", {"max_concurrency": 2}, actor="ann")
    queues.override("mail", {"max_concurrency": None, "local_limit": 1}, actor="ann", reason="sale")
    assert in_force("mail") is None
    queues.override("mail", {"local_limit": 5}, actor="ann", reason="sale")
    limits = QueueLimits.objects.get(pk="mail")
    assert (limits.max_concurrency, limits.local_limit) == (2, 5)


def reaper(forget_after: dt.timedelta | None, *served: str) -> Reaper:
    return Reaper(Recovery(), forget_after, served, may_judge=lambda seconds: False)


def overridden(name: str) -> bool:
    return Queue.objects.get(pk=name).override is not None


@pytest.mark.promise("S4.19")
def test_an_override_ends_when_its_time_is_over(connect: Connect) -> None:
    queues.override("mail", {"max_concurrency": 3}, actor="ann", reason="sale", until=soon(milliseconds=500))
    queues.override("bulk", {"max_concurrency": 3}, actor="ann", reason="sale", until=soon(hours=1))
    conn, reaping = connect(), reaper(None)
    wait_until(lambda: reaping.tick(conn) or not overridden("mail"), "the override ends")
    assert (in_force("mail"), in_force("bulk")) == (None, 3)
    entry = AuditEntry.objects.get(action="queue.expire")
    assert (entry.actor, entry.subject, entry.reason) == ("reaper", "mail", "its time was over")
    assert entry.before["override"] == {"max_concurrency": 3}
    assert entry.before["override_by"] == "ann"


@pytest.mark.promise("S4.19")
def test_an_override_ends_when_no_worker_has_served_its_queue_for_long(connect: Connect) -> None:
    for name in ("mail", "bulk", "twin"):
        queues.override(name, {"max_concurrency": 3}, actor="ann", reason="sale")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE horsies_queues SET override_at = now() - interval '8 days' WHERE name IN ('mail', 'bulk')"
        )
    conn, own = connect(), reaper(dt.timedelta(days=7), "mail")
    own.note_served(conn)
    own.tick(conn)
    assert (overridden("mail"), overridden("bulk"), overridden("twin")) == (True, False, True)
    assert AuditEntry.objects.get(action="queue.expire").reason == "no worker served the queue for 7 days, 0:00:00"


@pytest.mark.promise("S4.19")
def test_an_override_persists_for_ever_where_the_settings_say_so(connect: Connect) -> None:
    queues.override("bulk", {"max_concurrency": 3}, actor="ann", reason="sale")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_queues SET override_at = now() - interval '9 years' WHERE override IS NOT NULL")
    reaper(None, "mail").tick(connect())
    assert overridden("bulk")
