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
from horsies_django.worker.engine.pass_delay import (
    ENOUGH,
    LONGEST_SECONDS,
    TRY_EVERY,
    PassDelay,
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


def test_a_pass_waits_a_moment_after_the_last_one_while_tasks_run() -> None:
    pass_delay = PassDelay()
    assert not pass_delay.puts_off(100.0, 1, running=True)
    pass_delay.passed(100.0, 100.0005)
    assert pass_delay.puts_off(100.001, 1, running=True)
    assert pass_delay.waiting
    assert pass_delay.until == pytest.approx(100.0015)
    assert not pass_delay.puts_off(100.001, ENOUGH, running=True)
    assert not pass_delay.puts_off(100.001, 1, running=False)
    assert not pass_delay.puts_off(pass_delay.until, 1, running=True)
    pass_delay.passed(100.002, 100.902)  # a slow one: nobody waits for so long
    assert not pass_delay.waiting
    assert pass_delay.until == pytest.approx(100.902 + LONGEST_SECONDS)


def test_moments_that_bring_nothing_are_given_up_and_tried_again_now_and_then() -> None:
    pass_delay, now = PassDelay(), 0.0

    def wait(turns: int) -> bool:
        """Have a pass, and a moment in which so many turns of the loop put the next one off; return whether there was one."""
        nonlocal now
        pass_delay.passed(now, now := now + 0.001)
        for _ in range(turns):
            pass_delay.puts_off(now, 1, running=True)
        waited = pass_delay.waiting
        now += 1.0
        return waited

    waited = sum(wait(1) for _ in range(1_000))
    assert 10 <= waited <= 20
    sum(wait(2) for _ in range(TRY_EVERY * 20))
    assert all(wait(2) for _ in range(10))


def test_a_moment_paid_off_when_it_ended_because_no_task_was_left_to_run() -> None:
    pass_delay, now = PassDelay(), 0.0
    for _ in range(100):
        pass_delay.passed(now, now := now + 0.001)
        assert pass_delay.puts_off(now, 1, running=True)
        now += 0.0001


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
