"""Tasks that a worker does not know: given back once, left out afterwards, and run when they are old, which is how they fail."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from horsies_django.core.records import Claim, Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.tasks import Served
from horsies_django.tasks import registry
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.engine.pass_runner import PassRunner
from horsies_django.worker.engine.unknown_tasks import UnknownTasks
from tests.conftest import put
from tests.support.factories import WorkerFactory, now

pytestmark = pytest.mark.django_db(transaction=True)

GRACE = timedelta(minutes=5)
KNOWN, STRANGE = "tests.apps.project.tasks.noop", "shop.tasks.new"
TEN = Wanted(10)
SLOTS = {"sync": 10, "async": 0}


@pytest.fixture
def passes(transactional_db: None) -> Iterator[PassRunner]:
    yield from connected(GRACE)


@pytest.fixture
def strict(transactional_db: None) -> Iterator[PassRunner]:
    yield from connected(timedelta(0))


def connected(grace: timedelta) -> Iterator[PassRunner]:
    registry.autodiscover()
    outbox = Outbox("default", uuid.uuid4(), Served(["default"]), prepare=True)
    outbox.connect()
    WorkerFactory(id=outbox.worker, queues=["default"], task_names=registry.names(), wire=2)
    yield PassRunner(outbox, ["default"], 5.0, UnknownTasks(grace))
    outbox.disconnect()


def ids(claims: list[Claim]) -> list[uuid.UUID]:
    return [claim.id for claim in claims]


def test_what_the_worker_does_not_know_goes_back_and_is_not_met_again(
    passes: PassRunner, caplog: pytest.LogCaptureFixture
) -> None:
    put(3, name=STRANGE)
    known = put(2, name=KNOWN)
    with caplog.at_level(logging.WARNING, logger="horsies.worker"):
        passed = passes.run(TEN, SLOTS)
    assert ids(passed.claims) == known
    assert passed.again, "the engine comes round at once and writes what it gives back"
    assert len(passes.outbox.releases) == 3
    assert "releasing 3 task(s) unknown to this worker: shop.tasks.new." in caplog.text
    for _ in range(3):
        passed = passes.run(TEN, SLOTS)
        assert (passed.claims, passed.again, passes.outbox.owes) == ([], False, False)
        assert passes.wakeups.due_at == passes.unknown_tasks.until, "it looks again when they are old"
    unknown_tasks = Task.objects.filter(task_name=STRANGE)
    assert set(unknown_tasks.values_list("status", "claim_generation", "retry_count")) == {("PENDING", 1, 0)}
    assert not TaskAttempt.objects.exists()


def test_many_unknown_names_are_one_line_of_a_bounded_length(
    passes: PassRunner, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(15):
        put(name=f"{number:02}\n[CRITICAL] {'x' * 230}")
    with caplog.at_level(logging.WARNING, logger="horsies.worker"):
        passes.run(Wanted(20), SLOTS | {"sync": 20})
    (line,) = [message for message in caplog.messages if "unknown to this worker" in message]
    assert line.isprintable()
    assert line.startswith("releasing 15 task(s) unknown to this worker: 00\\n[CRITICAL] xxx")
    assert "and 5 more names. Other" in line
    assert len(line) < 2_500


def test_what_is_taken_ahead_goes_back_too(passes: PassRunner) -> None:
    put(3, name=STRANGE)
    (known,) = put(name=KNOWN)
    passed = passes.run(Wanted(prefetch=10, lease=timedelta(minutes=1)), SLOTS)
    assert ids(passed.prefetched) == [known]
    passes.outbox.run_pass()
    assert sorted(Task.objects.values_list("status", flat=True)) == ["CLAIMED", "PENDING", "PENDING", "PENDING"]


def test_another_name_costs_no_second_round(passes: PassRunner) -> None:
    put(name=STRANGE)
    passes.run(TEN, SLOTS)
    put(name="shop.tasks.newer")
    assert passes.run(TEN, SLOTS).claims == []
    assert Task.objects.get(task_name="shop.tasks.newer").claim_generation == 0


@pytest.mark.promise("S2.21")
def test_what_is_old_is_run_once_the_worker_knows_that_it_is_old(passes: PassRunner) -> None:
    (id_,) = put(name=STRANGE)
    Task.objects.update(enqueued_at=now() - GRACE)
    assert passes.run(TEN, SLOTS).claims == []
    assert ids(passes.run(TEN, SLOTS).claims) == [id_]


def test_without_a_grace_nothing_goes_back(strict: PassRunner) -> None:
    (id_,) = put(name=STRANGE)
    passed = strict.run(TEN, SLOTS)
    assert ids(passed.claims) == [id_]
    assert not passed.again


def test_a_worker_that_met_no_stranger_for_as_long_as_the_grace_asks_for_nothing_special(passes: PassRunner) -> None:
    unknown_tasks = passes.unknown_tasks
    assert unknown_tasks.grace_at(time.monotonic()) is None
    put(name=STRANGE)
    passes.run(TEN, SLOTS)
    met = time.monotonic()
    assert unknown_tasks.grace_at(met) == GRACE
    assert unknown_tasks.grace_at(met + GRACE.total_seconds() + 1) is None


def test_what_a_newer_release_sent_goes_back_and_fails_once_it_is_old(passes: PassRunner) -> None:
    (id_,) = put(name=KNOWN, options='{"wire": 3}')
    assert passes.run(TEN, SLOTS).claims == []
    Task.objects.update(enqueued_at=now() - GRACE)
    (claim,) = passes.run(TEN, SLOTS).claims
    assert passes.outbox.started([claim]) == []
    passes.outbox.run_pass()
    task = Task.objects.get(pk=id_)
    assert (task.status, task.error_code, task.claim_generation) == ("FAILED", "WORKER_RESOLUTION_ERROR", 2)
    assert "version 3 of the task format, and this worker reads version 2" in task.result["err"]["message"]


def test_what_this_release_reads_is_handed_over_as_it_is(passes: PassRunner) -> None:
    put(name=KNOWN, options='{"wire": 1, "timeout_ms": 1000}')
    put(name=KNOWN)
    claims = passes.run(TEN, SLOTS).claims
    assert len(claims) == 2
    assert passes.outbox.started(claims) == claims
    assert not passes.outbox.outcomes
