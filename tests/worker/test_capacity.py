"""What a worker asks of a pass, and the buffer it fills in soft mode."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from horsies_django.conf import Config
from horsies_django.core.records import Claim, Wanted
from horsies_django.worker.engine.capacity import Capacity, Prefetched, capacity
from horsies_django.worker.process.options import WorkerOptions

SOFT = Config(prefetch_buffer=4, claim_lease_ms=5_000)
LEASE = timedelta(seconds=5)
OPTIONS = WorkerOptions(("default",), processes=2, threads=3, async_concurrency=7)


def claims(*lanes: str) -> list[Claim]:
    return [Claim(uuid.uuid4(), 1, lane, "tests.nothing", "{}") for lane in lanes]


@pytest.mark.promise("S0.33", "S1.41", "S2.11")
def test_a_worker_may_have_as_many_tasks_as_slots_and_in_soft_mode_its_buffer_too() -> None:
    assert capacity(Config(), OPTIONS) == Capacity(max_claim_per_worker=20)
    assert capacity(SOFT, OPTIONS) == Capacity(max_claim_per_worker=24, prefetch=4, lease=LEASE)


def test_claims_need_not_be_durable_if_the_settings_say_so_and_their_tasks_can_be_ended() -> None:
    config, free = Config(durable_claims=False), {"sync": 1, "async": 0}
    wanted = {
        processes: capacity(config, WorkerOptions(("default",), processes=processes))
        .wanted(free, standing=0, ahead=0, prefetched=0, starting=0)
        .durable
        for processes in (0, 1)
    }
    assert wanted == {0: True, 1: False}


@pytest.mark.promise("S0.31", "S0.32", "S1.40", "S2.11")
def test_the_two_options_bound_what_is_claimed_and_not_started_and_what_a_pass_claims_of_a_queue() -> None:
    options = WorkerOptions(("default",), processes=2, max_claim_batch=2, max_claim_per_worker=10)
    hungry = capacity(Config(), options)
    wanted = hungry.wanted({"sync": 2, "async": 100}, standing=0, ahead=0, prefetched=0, starting=0)
    assert wanted == Wanted(2, 100, total=10, batch=2)
    assert hungry.wanted({"sync": 1, "async": 91}, standing=3, ahead=9, prefetched=8, starting=2).total == 1
    assert hungry.wanted({"sync": 1, "async": 91}, standing=2, ahead=9, prefetched=8, starting=0).total == 0


@pytest.mark.promise("S0.38", "S1.2", "S1.38", "S1.43")
def test_in_soft_mode_what_runs_and_what_waits_counts_against_slots_and_buffer() -> None:
    soft = Capacity(max_claim_per_worker=6, prefetch=4, lease=LEASE)
    assert soft.wanted({"sync": 2, "async": 0}, standing=0, ahead=0, prefetched=0, starting=0) == Wanted(
        2, 0, 4, 6, 0, LEASE
    )
    assert soft.wanted({"sync": 1, "async": 0}, standing=0, ahead=0, prefetched=3, starting=0) == Wanted(
        1, 0, 1, 3, 0, LEASE
    )
    refilled = soft.wanted({"sync": 0, "async": 0}, standing=0, ahead=0, prefetched=4, starting=1)
    assert refilled == Wanted(0, 0, 1, 3, 0, LEASE)


@pytest.mark.promise("S0.21")
def test_in_hard_mode_nothing_is_asked_beyond_the_free_slots() -> None:
    hard = capacity(Config(), OPTIONS)
    assert hard.wanted({"sync": 2, "async": 0}, standing=0, ahead=0, prefetched=0, starting=0) == Wanted(2, 0, 0, 20)


def test_a_full_buffer_asks_for_nothing_while_no_slot_is_free() -> None:
    soft = Capacity(max_claim_per_worker=6, prefetch=4, lease=LEASE)
    wanted = soft.wanted({"sync": 0, "async": 0}, standing=0, ahead=0, prefetched=2, starting=0)
    assert (wanted.sync, wanted.async_, wanted.prefetch) == (0, 0, 0)


def test_the_first_that_came_fill_the_free_slots_of_their_lanes() -> None:
    buffer = Prefetched()
    first, second, third, fourth = some = claims("sync", "sync", "async", "sync")
    buffer.add(some)
    assert buffer.first({"sync": 2, "async": 0}) == [first, second]
    assert buffer.first({"sync": 1, "async": 5}) == [first, third]
    assert len(buffer) == 4
    assert buffer.take([third.id, uuid.uuid4(), first.id]) == [third, first]
    assert list(buffer.snapshot()) == [second, fourth]
    assert buffer.clear() == [second, fourth]
    assert len(buffer) == 0
