"""Random workflows and sagas, driven in random order by engines that die and forget, end as the pure model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import Connect
from tests.db.conftest import Parts
from tests.db.drives import LIMIT, Drive
from tests.db.sagas import Saga
from tests.support.sizes import examples

SEEDS = examples(40, 3_000)
SAGAS = examples(60, 3_000)
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(max(240, 2 * SAGAS)),
    pytest.mark.thorough,
    pytest.mark.parametrize("part", [1_000, 2]),
]


@pytest.fixture(autouse=True)
def limit(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": LIMIT}


@pytest.fixture(autouse=True)
def in_parts(parts: Parts, part: int) -> None:
    parts(part)


@contextmanager
def noted(drive: Drive | Saga, seed: int, size: int) -> Iterator[None]:
    """Note in an error with which seed the drive began, and what it has done."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {seed}, {size} nodes, {len(drive.done)} steps: {drive.done}")
        raise


def step(drive: Drive | Saga, *many: int) -> None:
    """Take one of so many steps."""
    for _ in range(drive.dice.choice(many)):
        drive.step()


@pytest.mark.promise("S3.1", "S4.24")
def test_workflows_end_as_the_model_says_whatever_the_order_and_whoever_dies(connect: Connect) -> None:
    """Naive, in parts of 2: a node is decided about before all that it waits for is to run again, or stays skipped."""
    drive = Drive(connect)
    for seed in range(SEEDS):
        size = 1 + seed % 60
        with noted(drive, seed, size):
            drive.begin(seed, size)
            step(drive, 0, 10, 40, 40 + 2 * size)
            drive.finish()
            drive.judge()
            if drive.handle.status() == "FAILED" and seed % 2:
                drive.retry()
                step(drive, 0, 10, 40)
                drive.finish()
                drive.judge()


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_what_is_stopped_or_cancelled_leaves_nothing_open_whatever_the_order_and_whoever_dies(
    connect: Connect, how: str
) -> None:
    drive = Drive(connect)
    for seed in range(SEEDS // 2):
        size = 1 + seed % 60
        with noted(drive, seed, size):
            drive.begin(seed, size, on_error="stop" if how == "stop" else None)
            step(drive, 3, 10, 40, size)
            if how == "cancel":
                drive.cancel()
                step(drive, 10)
            drive.finish()
            drive.judge_broken_off()
            assert drive.handle.status() in ("FAILED" if how == "stop" else "CANCELLED", drive.run.status())


def test_what_began_is_undone_once_and_after_what_depends_on_it_whoever_dies(connect: Connect) -> None:
    saga, ends = Saga(connect), Counter[str]()
    for seed in range(SAGAS):
        size = 1 + seed % 25
        with noted(saga, seed, size):
            saga.begin(seed, size)
            step(saga, 0, 10, 40, 40 + 2 * size)
            if saga.dice.chance(0.2):
                saga.cancel(saga.engines[0])
            saga.finish()
            saga.judge()
            ends[saga.handle.status()] += 1
            while any(saga.undone.values()) and saga.dice.chance(0.7):
                ends["retried"] += 1
                saga.retry_undos()
                step(saga, 0, 10)
                saga.finish()
                saga.judge()
    assert min(ends[each] for each in ("COMPLETED", "FAILED", "CANCELLED", "retried")) > 0, ends
