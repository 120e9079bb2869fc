"""The listener: finds out that nothing arrives, and leaves a connection alone on which something does."""

from __future__ import annotations

import logging
import selectors
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.conf import Resilience
from horsies_django.store.notify import Listener, channel_prefix
from horsies_django.worker.engine.listener import ANSWER_SECONDS, QUIET_SECONDS, NotificationListener
from tests.conftest import Connect, put, wait_until
from tests.db.sighted import Sighted
from tests.support.payloads import HOSTILE

pytestmark = pytest.mark.django_db(transaction=True)


class Listening:
    """A listener, the engine's connection that calls it, and what it told: words with their moments, and runs to advance."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.prefix = channel_prefix(connection)
        self.woken: list[str] = []
        self.moments: list[float] = []
        self.runs: list[uuid.UUID] = []
        self.selector = selectors.DefaultSelector()
        listener = Listener("default", "_new", application_name="horsies test")
        words = {word: partial(self.wake, word) for word in ("default", "sync default", "now sync default")}
        resilience, anew = Resilience(db_retry_initial_ms=100), partial(self.wake, "anew")
        self.notifications = NotificationListener(listener, self.selector, resilience, words, anew, self.runs.append)

    def wake(self, word: str, moment: float = 0.0) -> None:
        self.woken.append(word)
        self.moments.append(moment)

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
    assert made.woken == ["anew"]  # what was sent before made no noise here
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
    assert listening.woken == ["anew"]
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
    assert listening.woken == ["anew"]


def test_due_tasks_are_told_from_others_and_queues_that_are_not_served_wake_nobody(listening: Listening) -> None:
    for sent in ({"queue": "mail"}, {}, {"due_at": timezone.now() + timedelta(minutes=1)}):
        put(**sent)
        listening.hears()
    assert listening.woken == ["anew", "sync default", "default"]


def test_a_worker_that_is_not_elected_hears_only_what_it_is_told_alone(listening: Listening) -> None:
    own = listening.prefix + listening.notifications.listener.own
    listening.notifications.hear(wanted=False)
    assert (listening.notifications.healthy, listening.notifications.hears) == (True, False)
    put()
    listening.connection.execute("SELECT pg_notify(%s, 'now sync default')", [own])
    listening.hears()
    listening.notifications.hear(wanted=True)
    put()
    listening.hears()
    assert listening.woken == ["anew", "now sync default", "anew", "sync default"], "what was sent first was not heard"
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
        assert listening.woken == ["anew", "anew"]
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


@pytest.fixture
def sighted(connect: Connect) -> Iterator[Sighted]:
    worker = Sighted(connect(), default=100)
    yield worker
    worker.close()


def test_after_whatever_payloads_a_task_is_heard_of_and_found_by_the_pass(sighted: Sighted) -> None:
    said = [text for text in HOSTILE if text.isprintable() and len(text) < 8_000]
    for payload in (*said, "Infinity default", "999999999999 behind default", "-Infinity sync default", "0 default"):
        sighted.store.connection.execute("SELECT pg_notify(%s, %s)", [f"{sighted.channel}_new", payload])
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
