"""The ear: finds out that nothing arrives, and leaves a connection alone on which something does."""

from __future__ import annotations

import logging
import selectors
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.conf import Resilience
from horsies_django.store.notify import Listener, channel_prefix
from horsies_django.tasks.notify_throttle import AGAIN_SECONDS
from horsies_django.worker.engine.listener import ANSWER_SECONDS, QUIET_SECONDS, NotificationListener
from tests.conftest import put, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Listening:
    """An ear, the engine's connection that calls it, and how often it woke somebody."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.prefix = channel_prefix(connection)
        self.moments: list[float] = []  # what it told at each time it woke somebody
        self.due: list[float] = []  # those of them at which it said that all is due, and in the sync lane
        self.runs: list[uuid.UUID] = []  # of workflows, that it was to advance
        self.selector = selectors.DefaultSelector()
        listener = Listener("default", "_new", application_name="horsies test")
        words = {"default": self.wake, "sync default": self.wake_for_due}
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
def listening(connect: Callable[[], psycopg.Connection[Any]]) -> Iterator[Listening]:
    made = Listening(connect())
    made.tick()
    assert made.woken == 1  # what was sent before made no noise here
    made.notifications.again.clear()  # a test of its own
    made.notifications.acts.clear()
    yield made
    made.notifications.close()
    made.selector.close()


def test_a_call_that_arrives_proves_the_connection_and_wakes_nobody(listening: Listening) -> None:
    backend = listening.notifications.listener.connection
    listening.tick()
    assert listening.notifications.testing
    listening.hears()
    assert not listening.notifications.testing
    listening.tick(ANSWER_SECONDS + 1)
    listening.tick(QUIET_SECONDS + 1)
    assert listening.notifications.testing  # again, after a while without any news
    listening.hears()
    assert listening.notifications.listener.connection is backend
    assert listening.woken == 1


def test_a_notification_of_a_task_is_proof_enough(listening: Listening) -> None:
    listening.tick()
    listening.hears()
    put()
    listening.hears()
    assert listening.woken == 2
    listening.tick(QUIET_SECONDS + 1)
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
    assert not listening.notifications.again


def wakes_again(listening: Listening) -> list[float]:
    """Let time pass, and return how long after the first moment at which it woke somebody each of them came."""
    found = []
    for moment in sorted(listening.notifications.again):
        before = listening.woken
        listening.notifications.tick(moment - 0.000_1, listening.connection, listening.prefix)
        assert listening.woken == before
        listening.notifications.tick(moment, listening.connection, listening.prefix)
        assert listening.woken == before + 1
        found.append(moment)
    listening.notifications.tick(time.monotonic() + 1, listening.connection, listening.prefix)
    return [moment - found[0] for moment in found]


THREE_TIMES = pytest.approx([seconds - AGAIN_SECONDS[0] for seconds in AGAIN_SECONDS])


def test_after_a_send_that_others_may_follow_without_a_word_it_wakes_again_three_times(listening: Listening) -> None:
    listening.connection.execute("SELECT pg_notify(%s, '1763748000.5+ default')", [listening.prefix + "_new"])
    listening.hears()
    assert listening.woken == 2
    assert listening.notifications.next_try(connected=False) <= time.monotonic() + AGAIN_SECONDS[0]
    assert wakes_again(listening) == THREE_TIMES
    assert listening.woken == 5
    earlier = pytest.approx(1763748000.5 - 2 * AGAIN_SECONDS[-1])
    assert listening.moments[1:] == [earlier] * 4  # each look reaches back to the announcement before this one
    assert listening.notifications.acts == {}


def test_after_any_other_send_it_does_not(listening: Listening) -> None:
    put()
    listening.hears()
    assert (listening.woken, listening.notifications.again) == (2, [])


def test_it_tells_tasks_that_are_all_due_from_others(listening: Listening) -> None:
    put()
    listening.hears()
    assert (listening.woken, len(listening.due)) == (2, 1)
    put(due_at=timezone.now() + timedelta(minutes=1))
    listening.hears()
    assert (listening.woken, len(listening.due)) == (3, 1)


def test_tasks_of_queues_that_are_not_served_wake_nobody(listening: Listening) -> None:
    listening.connection.execute("SELECT pg_notify(%s, '1763748000.5+ mail')", [listening.prefix + "_new"])
    listening.hears()
    assert (listening.woken, listening.notifications.again) == (1, [])


def test_after_each_listen_it_wakes_again_for_those_who_were_quiet_behind_one_that_it_missed(
    connect: Callable[[], psycopg.Connection[Any]],
) -> None:
    made = Listening(connect())
    made.tick()
    assert made.woken == 1
    assert wakes_again(made) == THREE_TIMES
    assert made.woken == 4
    made.notifications.close()
    made.selector.close()


def test_an_answer_that_lay_unread_while_the_engine_was_busy_counts(listening: Listening) -> None:
    listening.tick()
    wait_until(lambda: listening.selector.select(0), "the answer is there")
    listening.tick(ANSWER_SECONDS + 1)
    assert listening.notifications.listener.connection is not None
    assert not listening.notifications.unreachable


def test_a_call_that_does_not_arrive_demotes_the_ear_until_one_does(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_nobody_is_suspected_while_the_engine_cannot_call(listening: Listening) -> None:
    listening.tick()
    listening.notifications.tick(time.monotonic() + ANSWER_SECONDS + 1, None, "")
    assert listening.notifications.listener.connection is not None
    assert not listening.notifications.testing


@pytest.mark.promise("S2.11")
def test_all_that_was_said_of_a_queue_at_once_wakes_once_with_the_earliest_moment(listening: Listening) -> None:
    moments = [1763748000.5, 1763747999.5, 1763748002.5]
    with listening.connection.transaction():  # what one commit says arrives together
        for moment in moments:
            listening.connection.execute("SELECT pg_notify(%s, %s)", [listening.prefix + "_new", f"{moment} default"])
    listening.hears()
    assert listening.moments[1:] == [min(moments)]
