"""When a task is to run, and until when: given in any form, counted from the send on, refused by name when it cannot be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from horsies_django import TaskSendError
from horsies_django.models import Task
from horsies_django.tasks.handle import TaskHandle
from tests.apps.project import tasks
from tests.conftest import Claimer

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = dt.timedelta(hours=1)


def row(handle: TaskHandle[Any]) -> Task:
    return Task.objects.get(pk=handle.task_id)


def clock() -> dt.datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: dt.datetime = cursor.fetchone()[0]
    return found


@contextmanager
def late_in_a_transaction() -> Iterator[None]:
    """Run in a transaction that is older than what is done in it."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.05)")
        yield


def test_a_delay_counts_from_the_send_and_not_from_the_start_of_its_transaction() -> None:
    with late_in_a_transaction():
        before = clock()
        handles = [tasks.add.schedule(1, 1), tasks.add.with_options(delay=1).send(1)]
        after = clock()
    for handle in handles:
        assert before <= row(handle).enqueued_at - dt.timedelta(seconds=1) <= after


def test_a_good_until_counts_from_the_send_and_not_from_the_start_of_its_transaction() -> None:
    with late_in_a_transaction():
        before = clock()
        sender = tasks.add.with_options(good_until=HOUR)
        handles = [sender.send(1), sender.schedule(60, 1), *sender.send_many([{"a": 1}, {"a": 2}])]
        after = clock()
    for handle in handles:
        good_until = row(handle).good_until
        assert good_until is not None
        assert before <= good_until - HOUR <= after


def test_a_task_whose_time_until_it_is_good_is_over_expires(claimer: Callable[..., Claimer]) -> None:
    short = tasks.add.with_options(good_until=dt.timedelta(microseconds=1)).send(1)
    long = tasks.add.with_options(good_until=HOUR).send(1)
    claims = claimer().run_pass(sync=2).claims
    assert [claim.id for claim in claims] == [long.task_id]
    assert row(short).status == "EXPIRED"


MOMENT = dt.datetime(2100, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize("delay", [3_600, 3_600.0, HOUR, MOMENT], ids=["int", "float", "timedelta", "datetime"])
def test_a_delay_among_the_options_is_what_schedule_takes_for_every_verb(delay: Any) -> None:
    sender = tasks.add.with_options(delay=delay)

    async def later() -> list[TaskHandle[int]]:
        return [await sender.asend(1, b=2), *await sender.asend_many([{"a": 3}, {"a": 4}])]

    handles = [sender.send(1, b=2), *sender.send_many([{"a": 3}, {"a": 4}]), *async_to_sync(later)()]
    expected = row(tasks.add.schedule(delay, 1))
    for handle in handles:
        found = row(handle)
        if isinstance(delay, dt.datetime):
            assert found.enqueued_at == expected.enqueued_at == MOMENT
        else:
            assert found.enqueued_at - found.sent_at == expected.enqueued_at - expected.sent_at == HOUR
    assert row(handles[0]).kwargs == {"a": 1, "b": 2}


def test_a_delay_of_nothing_is_due_at_once_and_options_add_up(claimer: Callable[..., Claimer]) -> None:
    tasks.add.with_options(delay=60, priority=7).with_options(delay=0).send(1)
    (claim,) = claimer().run_pass(sync=1).claims
    assert Task.objects.get(pk=claim.id).priority == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": -1}, "delay=-1 day, 23:59:59 must be from 0 seconds to 100 years"),
        ({"delay": dt.timedelta(days=40_000)}, "100 years in the future"),
        ({"delay": 1e300}, "delay=1e\\+300 is not a valid number of seconds"),
        ({"delay": float("nan")}, "delay=nan is not a valid number of seconds"),
        ({"delay": float("inf")}, "delay=inf is not a valid number of seconds"),
        ({"delay": True}, "delay must be seconds, a timedelta or an aware datetime, not bool"),
        ({"delay": "soon"}, "delay must be seconds, a timedelta or an aware datetime, not str"),
        ({"delay": dt.datetime(2030, 1, 1)}, "delay=2030-01-01T00:00:00 has no time zone"),
        ({"good_until": dt.timedelta(0)}, "good_until=0:00:00 must be more than 0 seconds"),
        ({"good_until": dt.timedelta(seconds=-5)}, "good_until=-1 day, 23:59:55 must be more than 0 seconds"),
        ({"good_until": dt.timedelta.max}, "at most 100 years from now"),
        ({"good_until": 60}, "good_until must be an aware datetime or a timedelta, not int"),
        ({"good_until": dt.datetime(2030, 1, 1)}, "good_until=2030-01-01T00:00:00 has no time zone"),
    ],
)
def test_a_moment_among_the_options_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    sender = tasks.add.with_options(**options)

    async def later() -> None:
        await sender.asend(1)

    for send in (lambda: sender.send(1), lambda: sender.send_many([{"a": 1}]), async_to_sync(later)):
        with pytest.raises(TaskSendError, match=f"tests.apps.project.tasks.add: .*{words}") as caught:
            send()
        assert (caught.value.code, caught.value.retryable) == ("VALIDATION_FAILED", False)
    assert not Task.objects.exists()


def test_a_moment_that_is_given_twice_is_refused() -> None:
    with pytest.raises(TaskSendError, match="the time is given twice"):
        tasks.add.with_options(delay=60).schedule(60, 1)
    assert not Task.objects.exists()
