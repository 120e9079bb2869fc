"""travel(): the time of the queue, at which tasks are sent and run."""

from __future__ import annotations

import datetime as dt

import pytest
from django.conf import settings
from django.test import TestCase
from django.utils import timezone

from horsies_django import RetryPolicy, Workflow
from horsies_django.testing import adrain, drain, travel
from tests.apps.project import flows, tasks

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)
MOMENT = dt.datetime(2031, 5, 1, 12, tzinfo=dt.UTC)


def stored(moment: dt.datetime) -> dt.datetime:
    """Return a moment as rows have it: naive with USE_TZ off."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def test_what_is_sent_there_is_sent_at_that_time_and_runs_at_it() -> None:
    with travel(MOMENT) as now:
        assert now == MOMENT
        handle, later = tasks.add.send(1), tasks.add.schedule(HOUR, 2)
        assert drain() == 1
    info = handle.info()
    assert info is not None
    assert info.sent_at == info.enqueued_at == info.started_at == stored(MOMENT)
    assert later.info().enqueued_at == stored(MOMENT + HOUR)  # type: ignore[union-attr]


def test_what_is_due_by_then_runs_there_as_if_no_worker_had_run_since() -> None:
    """Naive: tasks run at their own times on the way, as by drain(until=...), and none can expire."""
    policy = RetryPolicy.fixed([60], jitter=False)
    late, retried = tasks.add.schedule(HOUR, 1), tasks.mails.with_options(retry_policy=policy).send(1)
    expired = tasks.add.with_options(good_until=HOUR).send(1)
    future = tasks.add.schedule(HOUR * 3, 1)
    with travel(HOUR * 2) as now:
        assert drain() == 2
        assert expired.info().status == "EXPIRED"  # type: ignore[union-attr]
        assert late.info().started_at == stored(now)  # type: ignore[union-attr]
        assert retried.info().next_retry_at == stored(now + dt.timedelta(minutes=1))  # type: ignore[union-attr]
        assert drain() == 0, "time stands still"
        assert drain(until=dt.timedelta(minutes=2)) == 1
    assert retried.get(0).ok_value == 2
    assert future.info().status == "PENDING"  # type: ignore[union-attr]


def test_drain_until_moves_on_from_there_and_not_from_now() -> None:
    expired = tasks.add.with_options(good_until=HOUR).send(1)
    with travel(HOUR * 2):
        assert drain(until=HOUR) == 0
    assert expired.info().status == "EXPIRED"  # type: ignore[union-attr]


def test_blocks_add_up_and_end_where_they_began() -> None:
    with travel(MOMENT), travel(HOUR) as now, travel(-HOUR * 3) as before:
        assert (now, before) == (MOMENT + HOUR, MOMENT - HOUR * 2)
        handle = tasks.add.send(1)
    assert handle.info().sent_at == stored(before)  # type: ignore[union-attr]
    info = tasks.add.send(1).info()
    assert abs(info.sent_at - timezone.now()) < HOUR  # type: ignore[union-attr]
    with pytest.raises(KeyError), travel(MOMENT):
        raise KeyError
    assert abs(tasks.add.send(1).info().sent_at - info.sent_at) < HOUR  # type: ignore[union-attr]


def test_what_was_finished_long_ago_can_be_made() -> None:
    with travel(dt.timedelta(days=-40)) as then:
        handle = tasks.add.send(1)
        drain()
    assert handle.info().finished_at == stored(then)  # type: ignore[union-attr]


def test_waits_of_workflows_end_there() -> None:
    flow = Workflow("patient")
    flow.add(flows.number, 1, after=flow.sleep(dt.timedelta(days=30)))
    handle = flow.send()
    drain()
    with travel(dt.timedelta(days=29)):
        drain()
        assert handle.status() == "RUNNING"
    with travel(dt.timedelta(days=31)):
        drain()
        assert handle.status() == "COMPLETED"


def test_a_time_that_cannot_be_is_refused() -> None:
    for to, words in [(dt.datetime(2031, 5, 1), "to=.* has no time zone"), (60, "to takes an aware datetime")]:
        with pytest.raises((ValueError, TypeError), match=words), travel(to):  # type: ignore[arg-type]
            pass


class InAsyncTests(TestCase):
    async def test_async_code_travels_too(self) -> None:
        """Naive: the time is set in the thread that entered the block, and async code does not see it."""
        async with travel(MOMENT):
            handle = await tasks.add.asend(1)
            assert await adrain() == 1
        assert (await handle.ainfo()).finished_at == stored(MOMENT)  # type: ignore[union-attr]
        after = await tasks.add.asend(1)
        assert (await after.ainfo()).sent_at < stored(MOMENT)  # type: ignore[union-attr]

    async def test_a_plain_with_does_as_well(self) -> None:
        with travel(MOMENT):
            handle = await tasks.add.asend(1)
        assert (await handle.ainfo()).sent_at == stored(MOMENT)  # type: ignore[union-attr]

    @travel(MOMENT)
    async def test_it_decorates_tests(self) -> None:
        handle = await tasks.add.asend(1)
        assert (await handle.ainfo()).sent_at == stored(MOMENT)  # type: ignore[union-attr]
