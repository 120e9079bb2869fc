"""When the next pass may begin, and when only a pass looks again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from horsies_django.core.records import Outcome, Wanted
from horsies_django.store.tasks import Served
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.pass_runner import ENOUGH, GATHER_SECONDS, PassRunner
from horsies_django.worker.engine.scan_cursors import SLOW_OFTEN
from tests.conftest import put


@pytest.fixture
def passes(transactional_db: None) -> Iterator[PassRunner]:
    outbox = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    outbox.connect()
    yield PassRunner(outbox, ["default"], 5.0)
    outbox.disconnect()


def test_a_pass_waits_2_ms_at_most_until_as_many_tasks_have_ended_as_the_last_one_started(passes: PassRunner) -> None:
    outbox = passes.outbox
    assert passes.not_before == 0.0
    put(3)
    claims = passes.run(Wanted(10), {"sync": 10, "async": 0}).claims
    assert passes.not_before == passes.ended + GATHER_SECONDS
    outcomes = [Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": null}') for claim in claims]
    outbox.outcomes = outcomes[:2]
    assert passes.not_before == passes.ended + GATHER_SECONDS
    outbox.outcomes = outcomes
    assert passes.not_before == passes.ended
    passes.run(Wanted(10), {"sync": 10, "async": 0})
    assert passes.not_before == passes.ended, "it started none"


def test_once_scans_are_slow_only_a_pass_looks_again_because_a_look_reads_all_dead_entries(passes: PassRunner) -> None:
    passes.run(Wanted(10), {"sync": 10, "async": 10})
    for slow, lanes in ((0, set[str]()), (SLOW_OFTEN + 1, {"sync"})):
        passes.cursors.slow = slow
        passes.wakeups.later, passes.wakeups.later_at = {("sync", "default"): 0.0}, 0.0
        passes.follow_up(time.monotonic(), lambda lane: 10)
        assert passes.wakeups.lanes_with_work == lanes


def test_a_pass_does_not_wait_for_more_than_twenty_outcomes() -> None:
    outbox = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    passes = PassRunner(outbox, ["default"], 5.0)
    passes.started = 200
    outbox.outcomes = [Outcome(uuid.uuid4(), 1, "COMPLETED", '{"ok": null}')] * ENOUGH
    assert passes.not_before == passes.ended
