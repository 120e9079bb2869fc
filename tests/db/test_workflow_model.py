"""Random workflows, driven in random order by engines that die and forget, end as the pure model says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.db.conftest import Parts
from tests.db.drives import LIMIT, Drive
from tests.support.sizes import examples

SEEDS = examples(40, 3_000)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(max(240, 2 * SEEDS))]


@pytest.fixture(autouse=True)
def limit(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "MAX_PAYLOAD_BYTES": LIMIT}


@pytest.mark.promise("S3.1", "S4.24")
@pytest.mark.thorough
@pytest.mark.parametrize("part", [1_000, 2])
def test_workflows_end_as_the_model_says_whatever_the_order_and_whoever_dies(
    connect: Callable[[], psycopg.Connection[Any]], parts: Parts, part: int
) -> None:
    """Naive, in parts of 2: a node is decided about before all that it waits for is to run again, or stays skipped."""
    parts(part)
    drive = Drive(connect)
    for seed in range(SEEDS):
        size = 1 + seed % 60
        try:
            drive.begin(seed, size)
            for _ in range(drive.dice.choice([0, 10, 40, 40 + 2 * size])):
                drive.step()
            drive.finish()
            drive.judge()
            if drive.handle.status() == "FAILED" and seed % 2:
                drive.retry()
                for _ in range(drive.dice.choice([0, 10, 40])):
                    drive.step()
                drive.finish()
                drive.judge()
        except Exception as error:
            error.add_note(f"seed {seed}, {size} nodes, {len(drive.done)} steps: {drive.done}")
            raise


@pytest.mark.thorough
@pytest.mark.parametrize("part", [1_000, 2])
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_what_is_stopped_or_cancelled_leaves_nothing_open_whatever_the_order_and_whoever_dies(
    connect: Callable[[], psycopg.Connection[Any]], parts: Parts, how: str, part: int
) -> None:
    parts(part)
    drive = Drive(connect)
    for seed in range(SEEDS // 2):
        size = 1 + seed % 60
        try:
            drive.begin(seed, size, on_error="stop" if how == "stop" else None)
            for _ in range(drive.dice.choice([3, 10, 40, size])):
                drive.step()
            if how == "cancel":
                drive.cancel()
                for _ in range(10):
                    drive.step()
            drive.finish()
            drive.judge_broken_off()
            assert drive.handle.status() in ("FAILED" if how == "stop" else "CANCELLED", drive.run.status())
        except Exception as error:
            error.add_note(f"seed {seed}, {size} nodes, {len(drive.done)} steps: {drive.done}")
            raise
