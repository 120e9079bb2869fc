"""Whatever becomes of the workers that are told of new tasks, no task waits for a poll while another worker is idle."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group

from horsies_django.models import Heartbeat, Task
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess, let_go

Start = Callable[..., WorkerProcess]
pytestmark = pytest.mark.django_db(transaction=True)

NO_POLL = {"HORSIES_TEST_POLL_MS": "300000", "HORSIES_TEST_STALE_MS": "600000"}


def team(worker: Start, count: int) -> list[WorkerProcess]:
    """Start workers with one slot each, and return them in the order of their election, once each knows its place."""
    started = [worker("--processes=0", "--threads=1", "--queues=default", **NO_POLL) for _ in range(count)]
    for each in started:
        each.ready()
    parents = Heartbeat.objects.filter(role="claimer")
    wait_until(lambda: parents.filter(listens=True).count() == count, "all of them listen")
    latest = max(parents.values_list("sent_at", flat=True))
    wait_until(lambda: parents.filter(sent_at__gt=latest).count() == count, "each has asked for its place since")
    by_pid = {each.process.pid: each for each in started}
    return [by_pid[pid] for pid in parents.order_by("id").values_list("pid", flat=True)]


def held() -> int:
    """Return how many tasks have begun and wait to be let go."""
    return Group.objects.filter(name__startswith="held:").count()


def run_some() -> None:
    """Send tasks one by one, and see each of them run."""
    for _ in range(5):
        assert tasks.noop.send().get(30_000).is_ok()


@pytest.mark.promise("S3.9")
@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("gone", [[0], [0, 1], [1, 2]])
def test_tasks_start_while_elected_workers_are_stopped_or_dead(
    worker: Start, fate: signal.Signals, gone: list[int]
) -> None:
    workers = team(worker, 3)
    for place in gone:
        workers[place].signal(fate)
    run_some()


def test_tasks_start_when_all_elected_workers_have_stopped_one_by_one(worker: Start) -> None:
    first, second, third, _last = team(worker, 4)
    for each in (second, first, third):
        assert each.stop() == 0
        run_some()


def test_a_burst_reaches_as_many_workers_as_it_needs(worker: Start) -> None:
    team(worker, 5)
    tasks.hold.send_many([{"name": "held"}] * 5)
    wait_until(lambda: held() == 5, "each worker has one")
    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")


def test_lone_tasks_reach_those_that_are_not_elected_while_the_others_are_full(worker: Start) -> None:
    team(worker, 5)
    for count in range(1, 6):
        tasks.hold.send("held")
        wait_until(lambda count=count: held() == count, "it runs")
    let_go("held")
    wait_until(lambda: not Task.objects.exclude(status="COMPLETED").exists(), "all of them end")


def test_a_full_worker_whose_others_are_stopped_finds_the_one_that_is_not(worker: Start) -> None:
    first, second, third, fourth, _last = team(worker, 5)
    for each in (second, third, fourth):
        each.signal(signal.SIGSTOP)
    tasks.hold.send("held")
    wait_until(lambda: held() == 1, "the first runs it")
    tasks.hold.send("held")
    wait_until(lambda: held() == 2, "the last runs it")
    let_go("held")
    assert first.process.poll() is None
