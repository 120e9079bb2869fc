"""The result listener: what it looks at, and when, whether it is told, told nothing, or told nonsense."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.conf import config
from horsies_django.core.records import Outcome
from horsies_django.models import Waiter
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import Found
from horsies_django.tasks import result_listener
from horsies_django.tasks.result_listener import ResultListener, Update
from tests.conftest import Claimer, put, wait_until
from tests.support.payloads import HOSTILE, sendable

pytestmark = pytest.mark.django_db(transaction=True)

Claimers = Callable[..., Claimer]
FOR_EVER = 3_600.0


@pytest.fixture(autouse=True)
def _no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal looks at every task as well: none comes to help."""
    monkeypatch.setattr(result_listener, "RENEW_SECONDS", FOR_EVER)


def listening(poll_seconds: float) -> ResultListener:
    resilience = replace(config().resilience, notify_poll_interval_ms=int(poll_seconds * 1000))
    return ResultListener(replace(config(), resilience=resilience))


def finish(worker: Claimer, id_: uuid.UUID) -> None:
    (claim,) = (claim for claim in worker.run_pass(sync=1_000).claims if claim.id == id_)
    worker.run_pass(outcomes=[Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": 3}')])


def has_looked_twice(news: list[Update]) -> None:
    wait_until(lambda: len(news) >= 2, "it looks when somebody comes, and shortly after")
    assert [item.status for item in news if isinstance(item, Found)] == ["PENDING"] * len(news)


def has_an_answer(news: list[Update]) -> bool:
    wait_until(lambda: isinstance(news[-1], Exception) or news[-1].status != "PENDING", "there is an answer")
    return isinstance(news[-1], Found) and news[-1].status == "COMPLETED"


@pytest.mark.promise("S3.9", "S3.13")
def test_what_ends_after_the_second_look_is_heard_of_and_not_polled_for(claimer: Claimers) -> None:
    (id_,), news = put(), list[Update]()
    with listening(FOR_EVER).expecting(id_, news.append):
        has_looked_twice(news)
        finish(claimer(), id_)
        assert has_an_answer(news)


@pytest.mark.promise("S3.13")
def test_what_nobody_announced_is_found_by_the_poll_and_not_by_a_renewal(claimer: Claimers) -> None:
    (id_,), news = put(), list[Update]()
    with listening(0.2).expecting(id_, news.append):
        has_looked_twice(news)
        Waiter.objects.all().delete()  # no worker announces anything now
        finish(claimer(), id_)
        assert has_an_answer(news)


def say(connection: Any, *payloads: str) -> None:
    for payload in payloads:
        connection.execute("SELECT pg_notify(%s, %s)", [channel_prefix(connection) + "_done", payload])


def test_a_payload_that_is_no_id_ends_nobody_s_wait(
    claimer: Claimers, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    (id_,), news = put(), list[Update]()
    with listening(FOR_EVER).expecting(id_, news.append):
        has_looked_twice(news)
        say(connect(), *(text for text in HOSTILE if text.isprintable()))
        finish(claimer(), id_)
        assert has_an_answer(news)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sendable, min_size=1, max_size=5))
def test_whatever_is_said_of_finished_tasks_true_words_are_heard(claimer: Claimers, said: list[str]) -> None:
    worker = claimer()
    (id_,), news = put(), list[Update]()
    with listening(FOR_EVER).expecting(id_, news.append):
        has_looked_twice(news)
        say(worker.conn, *said)
        finish(worker, id_)
        assert has_an_answer(news)
    worker.conn.close()
