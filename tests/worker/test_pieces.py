"""The small rules of the worker, each alone."""

from __future__ import annotations

import psycopg
import pytest

from horsies_django.conf import Resilience
from horsies_django.store.tasks import Served
from horsies_django.worker.engine.outage import (
    UNFIT,
    UNFIT_TRIES,
    DatabaseGaveUp,
    Outage,
)
from horsies_django.worker.process.backoff import Backoff
from horsies_django.worker.process.options import WorkerOptions


@pytest.mark.promise("S2.20")
def test_the_pause_doubles_up_to_its_cap_and_starts_over_after_a_success() -> None:
    backoff = Backoff(Resilience(db_retry_initial_ms=100, db_retry_max_ms=1_000))
    pauses = [backoff.failed() for _ in range(8)]
    for pause, middle in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert middle * 0.75 <= pause <= middle * 1.25
    backoff.succeeded()
    assert backoff.failed() <= 0.125


@pytest.mark.promise("S2.20")
def test_workers_that_fail_together_do_not_return_together() -> None:
    pauses = {Backoff(Resilience(db_retry_initial_ms=100)).failed() for _ in range(20)}
    assert len(pauses) > 10
    assert max(pauses) - min(pauses) > 0.005


@pytest.mark.promise("S2.18")
def test_zero_attempts_means_for_ever_and_a_number_means_that_many() -> None:
    forever, thrice = Backoff(Resilience()), Backoff(Resilience(db_retry_max_attempts=3))
    for _ in range(3):
        assert not thrice.exhausted
        thrice.failed()
        forever.failed()
    assert thrice.exhausted
    assert not forever.exhausted


def test_the_names_of_queues_survive_the_array() -> None:
    served = Served(["b", 'odd"\\{name}', "a"])
    assert served.queues == ["a", "b", 'odd"\\{name}']
    assert served.queues_array == '{"a","b","odd\\"\\\\{name}"}'


@pytest.mark.promise("S0.8", "S2.3")
def test_slots_are_processes_times_threads_and_times_coroutines() -> None:
    options = WorkerOptions(queues=("default",), processes=3, threads=2, async_concurrency=10)
    assert (options.sync_slots, options.async_slots) == (6, 30)
    inside = WorkerOptions(queues=("default",), processes=0, threads=2, async_concurrency=10)
    assert (inside.sync_slots, inside.async_slots) == (2, 10)


def test_every_error_that_the_database_knows_is_tried_again_but_for_those_that_cannot_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage(Resilience())
    for error in {
        cls for cls in vars(psycopg.errors).values() if isinstance(cls, type) and issubclass(cls, psycopg.Error)
    }:
        for _ in range(UNFIT_TRIES - 1):
            outage.begin(error("a message"), 3)
        if (error.sqlstate or "")[:2] in UNFIT:
            with pytest.raises(DatabaseGaveUp, match="the outcomes of 3 task"):
                outage.begin(error("a message"), 3)
        else:
            outage.begin(error("a message"), 3)
        outage.over()
    assert outage.backoff.failures == 0
