"""Notifications that somebody else sends: none of them ends a listener, and what is told truly is heard all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.store.notify import channel_prefix
from tests.conftest import put, wait_until
from tests.db.sighted import Sighted
from tests.support.payloads import HOSTILE, sendable

pytestmark = pytest.mark.django_db(transaction=True)

Connect = Callable[[], psycopg.Connection[Any]]
FUZZ = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def say(connection: psycopg.Connection[Any], suffix: str, *payloads: str) -> None:
    for payload in payloads:
        connection.execute("SELECT pg_notify(%s, %s)", [channel_prefix(connection) + suffix, payload])


@pytest.fixture
def sighted(connect: Connect) -> Iterator[Sighted]:
    worker = Sighted(connect(), default=100)
    yield worker
    worker.close()


@FUZZ
@given(st.lists(sendable, max_size=10))
def test_after_whatever_payloads_a_task_is_heard_of_and_found_by_the_pass(
    sighted: Sighted, connect: Connect, said: list[str]
) -> None:
    stranger = sighted.store.connection
    say(stranger, "_new", *said, "0 default")
    sighted.settle_in()  # its cursors lie where the payloads left them
    (id_,) = put()
    sighted.hears()
    assert [claim.id for claim in sighted.run_pass(sync=1).claims] == [id_]


def test_a_payload_with_no_number_ends_no_worker(sighted: Sighted, connect: Connect) -> None:
    say(connect(), "_new", *(text for text in HOSTILE if text.isprintable()))
    sighted.settle_in()
    put()
    sighted.hears()
    assert len(sighted.run_pass(sync=1).claims) == 1


def test_a_moment_before_1970_makes_the_next_scan_begin_at_the_beginning(sighted: Sighted, connect: Connect) -> None:
    other = connect()
    put()
    assert len(sighted.run_pass(sync=2).claims) == 1
    sighted.settle_in()
    assert list(sighted.cursors.waiting["default", "sync"]) == [100], "there is a mark to lower"
    with other.transaction():
        other.execute("SET LOCAL session_replication_role = replica")  # no announcement but ours
        other.execute(
            "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs, enqueued_at) "
            "VALUES (gen_random_uuid(), 'tests.nothing', 'default', 'sync', '{}', '1960-01-01')"
        )
    say(other, "_new", "-315619200.000000 default")
    sighted.hears()
    assert len(sighted.run_pass(sync=1).claims) == 1


def test_the_news_of_another_channel_on_the_same_connection_are_not_ours(sighted: Sighted, connect: Connect) -> None:
    """Behind a pooler the server's connection may be one on which another client has listened."""
    listener, other = sighted.notifications, connect()
    assert listener.listener.connection is not None
    listener.listener.connection.execute("LISTEN somebody_elses")
    sighted.settle_in()
    woken, listener.listener.received = sighted.woken, False
    other.execute("SELECT pg_notify('somebody_elses', '0 default')")
    wait_until(lambda: sighted.selector.select(0), "it arrives")
    listener.receive()
    assert sighted.woken == woken
    assert not listener.listener.received, "it proves nothing about our own channels"
