"""The listener: finds out that nothing arrives, and leaves a connection alone on which something does."""

from __future__ import annotations

import logging
import selectors
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from horsies_django import Workflow
from horsies_django.conf import Resilience
from horsies_django.store.notify import Listener, channel_prefix
from horsies_django.worker.engine.listener import ANSWER_SECONDS, QUIET_SECONDS, NotificationListener
from tests.conftest import Connect, put, wait_until
from tests.db.sighted import Sighted
from tests.support.payloads import HOSTILE, sendable

pytestmark = pytest.mark.django_db(transaction=True)


class Listening:
    """An listener, the engine's connection that calls it, and how often it woke somebody."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.prefix = channel_prefix(connection)
        self.moments: list[float] = []  # what it told at each time it woke somebody
        self.due: list[float] = []  # those of them at which it said that all is due, and in the sync lane
        self.runs: list[uuid.UUID] = []  # of workflows, that it was to advance
        self.alone: list[float] = []  # when it was told alone to look
        self.selector = selectors.DefaultSelector()
        listener = Listener("default", "_new", application_name="horsies test")
        words = {"default": self.wake, "sync default": self.wake_for_due, "now sync default": self.alone.append}
        self.notifications = NotificationListener(
            listener, self.selector, Resilience(db_retry_initial_ms=100), words, self.wake, self.runs.append
        )

    def wake(self, moment: float = 0.0) -> None:
        self.moments.append(moment)

    def wake_for_due(self, moment: float) -> None:
        self.due.append(moment)
        self.wake(moment)

    @property
    def woken(self) -> int:
        return len(self.moments)

    def tick(self, after: float = 0.0) -> None:
        """Let it do what it would do so many seconds from now."""
        self.notifications.tick(time.monotonic() + after, self.connection, self.prefix)

    def hears(self) -> None:
        """Wait until something arrives, and let it take that."""
        wait_until(lambda: self.selector.select(0), "something arrives")
        self.notifications.receive()


@pytest.fixture
def listening(connect: Connect) -> Iterator[Listening]:
    made = Listening(connect())
    made.tick()
    assert made.woken == 1  # what was sent before made no noise here
    yield made
    made.notifications.close()
    made.selector.close()


def test_a_call_that_arrives_or_a_task_proves_the_connection_and_a_call_wakes_nobody(listening: Listening) -> None:
    backend = listening.notifications.listener.connection
    listening.tick()
    assert listening.notifications.testing
    listening.hears()
    assert not listening.notifications.testing
    listening.tick(ANSWER_SECONDS + 1)
    listening.tick(QUIET_SECONDS + 1)
    assert listening.notifications.testing  # again, after a while without any news
    listening.hears()
    assert listening.woken == 1
    put()
    listening.hears()
    listening.tick(QUIET_SECONDS + 1)
    assert not listening.notifications.testing
    assert listening.notifications.listener.connection is backend


@pytest.mark.parametrize("unread", [True, False], ids=["unread", "no call"])
def test_an_answer_that_lies_unread_or_was_not_asked_for_is_not_missed(listening: Listening, unread: bool) -> None:
    listening.tick()
    if unread:
        wait_until(lambda: listening.selector.select(0), "the answer is there")
        listening.tick(ANSWER_SECONDS + 1)
    else:
        listening.notifications.tick(time.monotonic() + ANSWER_SECONDS + 1, None, "")
    assert listening.notifications.listener.connection is not None
    assert not listening.notifications.unreachable
    assert not listening.notifications.testing


def test_a_signal_to_a_workflow_names_its_run_and_looks_for_no_tasks(listening: Listening) -> None:
    flow = Workflow("waits")
    flow.signal("go")
    handle = flow.send()
    for number in range(2):
        handle.signal("go", number)
        listening.hears()
    assert listening.runs == [handle.workflow_id] * 2
    assert listening.woken == 1


def test_due_tasks_are_told_from_others_and_queues_that_are_not_served_wake_nobody(listening: Listening) -> None:
    put(queue="mail")
    listening.hears()
    assert (listening.woken, len(listening.due)) == (1, 0)
    put()
    listening.hears()
    assert (listening.woken, len(listening.due)) == (2, 1)
    put(due_at=timezone.now() + timedelta(minutes=1))
    listening.hears()
    assert (listening.woken, len(listening.due)) == (3, 1)


def test_a_worker_that_is_not_elected_hears_only_what_it_is_told_alone(listening: Listening) -> None:
    own = listening.prefix + listening.notifications.listener.own
    listening.notifications.hear(wanted=False)
    assert (listening.notifications.healthy, listening.notifications.hears) == (True, False)
    put()
    listening.connection.execute("SELECT pg_notify(%s, 'now sync default')", [own])
    listening.hears()
    assert (listening.woken, len(listening.alone)) == (1, 1)
    listening.notifications.hear(wanted=True)
    assert listening.woken == 2, "what was sent meanwhile was not heard"
    put()
    listening.hears()
    assert listening.woken == 3
    listening.notifications.hear(wanted=False)
    backend = listening.notifications.listener.connection
    listening.connection.execute("SELECT pg_terminate_backend(%s)", [backend.info.backend_pid])
    wait_until(lambda: listening.selector.select(0), "the server says so")
    listening.notifications.hear(wanted=True)
    assert not listening.notifications.healthy, "a lost connection is found when the worker is elected"
    listening.notifications.hear(wanted=True)
    listening.tick()
    assert listening.notifications.hears


def test_a_silent_connection_is_replaced_and_told(listening: Listening, caplog: pytest.LogCaptureFixture) -> None:
    silent = listening.notifications.listener.connection
    assert silent is not None
    silent.execute("UNLISTEN *")  # as a pooler that lends the session to somebody else
    listening.tick()
    with caplog.at_level(logging.INFO, "horsies"):
        listening.tick(ANSWER_SECONDS + 1)
        assert silent.closed
        assert "the LISTEN connection is silent" in caplog.text
        listening.tick(60)  # it listens anew
        assert listening.woken == 2
        assert listening.notifications.unreachable
        listening.tick()
        listening.hears()
    assert not listening.notifications.unreachable
    assert caplog.messages[-1] == "notifications arrive again"


@pytest.mark.promise("S2.11")
def test_all_that_was_said_of_a_queue_at_once_is_heard(listening: Listening) -> None:
    moments = [1763748000.5, 1763747999.5, 1763748002.5]
    with listening.connection.transaction():  # what one commit says arrives together
        for moment in moments:
            listening.connection.execute("SELECT pg_notify(%s, %s)", [listening.prefix + "_new", f"{moment} default"])
    listening.hears()
    assert listening.moments[1:] == moments


def say(connection: psycopg.Connection[Any], suffix: str, *payloads: str) -> None:
    for payload in payloads:
        connection.execute("SELECT pg_notify(%s, %s)", [channel_prefix(connection) + suffix, payload])


@pytest.fixture
def sighted(connect: Connect) -> Iterator[Sighted]:
    worker = Sighted(connect(), default=100)
    yield worker
    worker.close()


@settings(
    max_examples=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@example([text for text in HOSTILE if text.isprintable()])
@given(st.lists(sendable, max_size=10))
def test_after_whatever_payloads_a_task_is_heard_of_and_found_by_the_pass(sighted: Sighted, said: list[str]) -> None:
    say(sighted.store.connection, "_new", *said, "0 default")
    sighted.settle_in()  # its cursors lie where the payloads left them
    (id_,) = put()
    sighted.hears()
    assert [claim.id for claim in sighted.run_pass(sync=1).claims] == [id_]


def test_the_news_of_another_channel_on_the_same_connection_are_not_ours(sighted: Sighted, connect: Connect) -> None:
    """Behind a pooler the server's connection may be one on which another client has listened."""
    listener = sighted.notifications
    listener.listener.connection.execute("LISTEN somebody_elses")
    sighted.settle_in()
    woken, listener.listener.received = sighted.woken, False
    connect().execute("SELECT pg_notify('somebody_elses', '0 default')")
    wait_until(lambda: sighted.selector.select(0), "it arrives")
    listener.receive()
    assert sighted.woken == woken
    assert not listener.listener.received, "it proves nothing about our own channels"
