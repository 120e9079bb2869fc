"""When the next pass may begin."""

from __future__ import annotations

import uuid

import pytest

from horsies_django.core.records import Outcome, Wanted
from horsies_django.store.tasks import Served
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.pass_runner import ENOUGH, GATHER_SECONDS, PassRunner
from tests.conftest import put


@pytest.mark.django_db(transaction=True)
def test_a_pass_waits_2_ms_at_most_until_as_many_tasks_have_ended_as_the_last_one_started() -> None:
    outbox = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    passes = PassRunner(outbox, ["default"], 5.0)
    assert passes.not_before == 0.0
    put(3)
    outbox.connect()
    claims = passes.run(Wanted(10), {"sync": 10, "async": 0}).claims
    assert passes.not_before == passes.ended + GATHER_SECONDS
    outcomes = [Outcome(claim.id, claim.generation, "COMPLETED", '{"ok": null}') for claim in claims]
    outbox.outcomes = outcomes[:2]
    assert passes.not_before == passes.ended + GATHER_SECONDS
    outbox.outcomes = outcomes
    assert passes.not_before == passes.ended
    passes.run(Wanted(10), {"sync": 10, "async": 0})
    assert passes.not_before == passes.ended, "it started none"
    outbox.disconnect()


def test_a_pass_does_not_wait_for_more_than_twenty_outcomes() -> None:
    outbox = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    passes = PassRunner(outbox, ["default"], 5.0)
    passes.started = 200
    outbox.outcomes = [Outcome(uuid.uuid4(), 1, "COMPLETED", '{"ok": null}')] * ENOUGH
    assert passes.not_before == passes.ended
