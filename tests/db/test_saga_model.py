"""Random sagas, driven in random order by engines that die and forget, are undone in the right order, all or told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.db.conftest import Parts
from tests.db.sagas import Saga
from tests.support.sizes import examples

SEEDS = examples(60, 3_000)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(max(240, 2 * SEEDS))]


@pytest.mark.thorough
@pytest.mark.parametrize("part", [1_000, 2])
def test_what_began_is_undone_once_and_after_what_depends_on_it_whoever_dies(
    connect: Callable[[], psycopg.Connection[Any]], parts: Parts, part: int
) -> None:
    parts(part)
    saga, ends = Saga(connect), Counter[str]()
    for seed in range(SEEDS):
        size = 1 + seed % 25
        try:
            saga.begin(seed, size)
            for _ in range(saga.dice.choice([0, 10, 40, 40 + 2 * size])):
                saga.step()
            if saga.dice.chance(0.2):
                saga.cancel(saga.engines[0])
            saga.finish()
            saga.judge()
            ends[saga.handle.status()] += 1
            while any(saga.undone.values()) and saga.dice.chance(0.7):
                ends["retried"] += 1
                saga.retry_undos()
                for _ in range(saga.dice.choice([0, 10])):
                    saga.step()
                saga.finish()
                saga.judge()
        except Exception as error:
            error.add_note(f"seed {seed}, {size} nodes, {len(saga.done)} steps: {saga.done}")
            raise
    assert min(ends[each] for each in ("COMPLETED", "FAILED", "CANCELLED", "retried")) > 0, ends
