"""Two attempts of a task in one step, and the deletion of steps: every row exists exactly once, and
none is from a zombie.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group

from horsies_django import CurrentTask, StaleAttempt, StepError
from horsies_django.core.options import options_text
from horsies_django.core.records import Claim, Fence, Outcome
from horsies_django.core.retry import RetryPolicy
from horsies_django.models import TaskStep
from tests.conftest import Claimer, Claimers, Connect, put
from tests.db.conftest import Aside
from tests.db.test_pass import failed
from tests.db.test_statements import explained
from tests.support.points import StepGate

AGAIN = RetryPolicy.fixed([0] * 5, auto_retry_for=["WORKER_CRASHED"], jitter=False)


def code_of(worker: Claimer, claim: Claim) -> CurrentTask:
    """Return the object that the code of a claimed task gets from ``current_task()``."""
    return CurrentTask(claim, str(worker.id))


def claimed(worker: Claimer) -> Claim:
    """Claim the only task."""
    (claim,) = worker.run_pass(1).claims
    return claim


def sent() -> None:
    """Send a task that is run again after a crash."""
    put(max_retries=AGAIN.max_retries, options=options_text(AGAIN, None))


def crash(worker: Claimer, claim: Claim) -> bool:
    """End the attempt as a crash, and return whether that was written."""
    return (
        claim.id in worker.run_pass(outcomes=[failed(claim, "WORKER_CRASHED", crashed=True)]).landed
    )


def make(name: str) -> str:
    Group.objects.create(name=name)
    return name


def names() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def refused(worker: Claimer, claim: Claim) -> None:
    with pytest.raises(StaleAttempt):
        code_of(worker, claim).step("other", make, "by the zombie")


@pytest.fixture
def gate(connect: Connect) -> Iterator[StepGate]:
    made = StepGate(connect())
    yield made
    made.remove()


@pytest.mark.parametrize("atomic", [True, False])
def test_a_step_of_an_abandoned_attempt_is_not_recorded(
    claimer: Claimers, aside: Aside, atomic: bool
) -> None:
    """A step is not recorded if its attempt was given up while the function ran.

    The zombie has run the function; the present attempt runs it and commits; then the zombie tries
    to record its step.
    """
    sent()
    zombie = claimer(default=100)
    other = claimer(default=100)
    old = claimed(zombie)
    inside = threading.Event()
    go = threading.Event()

    def slow(name: str) -> str:
        make("by the zombie")
        inside.set()
        assert go.wait(30)
        return name

    running = aside(lambda: code_of(zombie, old).step("make", slow, "a", atomic=atomic))
    assert inside.wait(30)

    assert crash(zombie, old)
    new = claimed(other)
    assert code_of(other, new).step("make", make, "a") == "a"

    go.set()
    with pytest.raises(
        StaleAttempt, match=rf"task {old.id} no longer belongs to worker {zombie.id}, generation 1"
    ):
        running.result(30)

    assert names() == (["a"] if atomic else ["a", "by the zombie"])
    assert list(TaskStep.objects.values_list("task_id", "name", "result")) == [
        (old.id, "make", "a")
    ]


def test_only_the_present_attempt_takes_a_step(
    claimer: Claimers,
) -> None:
    """Only the present attempt can take a step, even after a request to stop."""
    sent()
    zombie = claimer(default=100)
    other = claimer(default=100)
    old = claimed(zombie)

    refused(other, old)
    refused(zombie, old._replace(generation=2))

    assert crash(zombie, old)
    refused(zombie, old)
    new = claimed(other)
    refused(zombie, old)
    assert names() == []

    assert other.store.cancel([new.id], other.channel, terminate=False) == {new.id: "REQUESTED"}
    assert code_of(other, new).step("make", make, "a") == "a"
    other.run_pass(outcomes=[Outcome(new.id, new.generation, "COMPLETED", '{"ok": 1}')])
    refused(other, new)
    assert names() == ["a"]


@pytest.mark.parametrize("place", ["record", "commit"])
def test_a_task_is_not_reclaimed_while_its_step_is_committed(
    claimer: Claimers, aside: Aside, gate: StepGate, place: str
) -> None:
    """A task is not given to another worker while a step of it is being committed.

    Fails if: the next attempt searches for the step before it is committed, and takes it again.
    """
    sent()
    zombie = claimer(default=100)
    other = claimer(default=100)
    old = claimed(zombie)

    gate.close(place)
    running = aside(lambda: code_of(zombie, old).step("make", make, "a"))
    gate.held()

    assert not crash(zombie, old)
    gate.open()
    assert running.result(30) == "a"

    assert crash(zombie, old)
    assert code_of(other, claimed(other)).step("make", lambda name: make("again"), "a") == "a"
    assert names() == ["a"]


def test_the_same_name_twice_at_once_is_recorded_once(claimer: Claimers, aside: Aside) -> None:
    sent()
    worker = claimer(default=100)
    current = code_of(worker, claimed(worker))
    barrier = threading.Barrier(2)

    def both(name: str) -> str:
        barrier.wait(30)
        make(f"{name} {threading.get_ident()}")
        return name

    running = [aside(lambda: current.step("make", both, "a")) for _ in range(2)]
    errors = [one.exception(30) for one in running]

    assert sorted(type(error) for error in errors if error) == [StepError]
    assert "has been recorded meanwhile" in str(next(error for error in errors if error))
    assert len(names()) == 1


def test_a_record_of_a_step_finds_its_task_by_primary_key(claimer: Claimers) -> None:
    """The record of a step finds its task by primary key, even with statistics of a small table."""
    sent()
    worker = claimer(default=100)
    claim = claimed(worker)
    worker.conn.execute("ANALYZE horsies_tasks")

    plans = explained(worker)
    fence = Fence(claim.id, worker.id, claim.generation)
    assert all(worker.store.record_step(fence, name, "d", "1") for name in ("a", "b"))

    found = {notice.partition("plan:")[2] for notice in plans}
    (plan,) = {each for each in found if "FROM horsies_tasks t" in each}
    assert "Index Scan using horsies_tasks_pkey" in plan
    assert "Seq Scan" not in plan
