"""Eight senders, and workers that are killed: every signal is taken once, and those of a key in the order of sending."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.models import WorkflowNode, WorkflowRun, WorkflowSignal
from tests.apps.project import flows
from tests.conftest import wait_until
from tests.support.sizes import sized
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.stress, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

RUNS, SENDERS, LENGTH, KILLS = 10, 8, sized(5, 125), sized(2, 20)


def chains() -> Any:
    """Send a run with a chain of waits for each sender, whose values a task takes in the end."""
    flow = Workflow("signals")
    for sender in range(SENDERS):
        nodes = [flow.signal("go", key=str(sender))]
        for _ in range(LENGTH - 1):
            nodes.append(flow.signal("go", key=str(sender), after=nodes[-1]))
        flow.add(flows.total_list, nodes)
    return flow.send()


def test_signals_are_taken_once_and_in_order_in_a_storm(worker: Callable[..., WorkerProcess]) -> None:
    how = {"HORSIES_TEST_STALE_MS": "2500"}
    workers = [worker("--processes=1", **how) for _ in range(2)]
    handles = [chains() for _ in range(RUNS)]

    def send(sender: int) -> None:
        try:
            for number in range(LENGTH):
                for handle in handles:
                    handle.signal("go", number, key=str(sender))
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        for kill in range(KILLS):
            share = RUNS * SENDERS * LENGTH * (kill + 1) // (KILLS + 2)
            wait_until(lambda share=share: WorkflowSignal.objects.count() >= share, "some more signals are sent")
            place = kill % 2
            os.kill(workers[place].process.pid, signal.SIGKILL)
            workers[place].process.wait()
            workers[place] = worker("--processes=1", **how)
    finally:
        for thread in threads:
            thread.join()
    wait_until(lambda: not WorkflowRun.objects.filter(finished_at=None).exists(), "all runs have ended")
    assert WorkflowSignal.objects.count() == RUNS * SENDERS * LENGTH
    assert not WorkflowSignal.objects.filter(used_at=None).exists()
    taken = WorkflowSignal.objects.order_by("sent_at", "pk").values_list("workflow_id", "node")
    assert len({*taken}) == RUNS * SENDERS * LENGTH, "a node took two"
    values: dict[Any, list[int]] = {}
    waits = WorkflowNode.objects.filter(kind="signal").order_by("number")
    for run, key, value in waits.values_list("workflow_id", "signal_key", "value"):
        values.setdefault((run, key), []).append(value)
    assert all(each == list(range(LENGTH)) for each in values.values())
    assert {run.status for run in WorkflowRun.objects.all()} == {"COMPLETED"}
