"""Runs that continue as others, with real workers."""

from __future__ import annotations

import os
import signal

from horsies_django.models import Task, WorkflowRun
from tests.apps.project import flows
from tests.conftest import wait_until
from tests.support.workers import Start


def test_a_loop_goes_on_over_the_death_of_workers_and_never_twice(worker: Start) -> None:
    first = worker("--processes=1", HORSIES_TEST_STALE_MS="2500").ready()
    handle = flows.loop(0, 60, key="k").send()
    wait_until(lambda: WorkflowRun.objects.count() > 5, "it has continued some times")
    os.kill(first.process.pid, signal.SIGKILL)
    for _ in range(2):
        worker("--processes=1", HORSIES_TEST_STALE_MS="2500").ready()
    wait_until(
        lambda: (last := handle.latest()).status() != "RUNNING" and last.successor() is None, "the loop has ended"
    )
    places = Task.objects.filter(status="COMPLETED").order_by("finished_at").values_list("kwargs__place", flat=True)
    failed = Task.objects.filter(status="FAILED").count()  # the task that the worker was running has no retries
    assert list(places) == list(range(61 if not failed else len(places)))
    assert WorkflowRun.objects.count() == len(places) + failed
    assert WorkflowRun.objects.get(key="k").pk == handle.latest().workflow_id
