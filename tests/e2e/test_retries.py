"""Retries with real workers: when they are due, wherever there is room, and after crashes only where that was asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django import RetryPolicy
from horsies_django.models import Task, TaskAttempt, Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import WorkerProcess, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SHORT = {"HORSIES_TEST_STALE_MS": "2500"}


def test_a_retry_runs_when_it_is_due_though_nobody_polls_so_soon(worker: Start) -> None:
    worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    policy = RetryPolicy.fixed([0.5, 1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    assert tasks.mails.with_options(retry_policy=policy).send(2).get(timeout_ms=30_000).ok_value == 3


def test_a_retry_that_is_due_runs_on_another_worker_while_its_own_is_busy(worker: Start) -> None:
    first = worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    policy = RetryPolicy.fixed([1], auto_retry_for=["MAIL_DOWN"], jitter=False)
    handle = tasks.mails.with_options(retry_policy=policy).send(1)
    wait_until(lambda: TaskAttempt.objects.filter(task_id=handle.task_id).exists(), "it failed once")
    busy = tasks.hold.send("busy")
    held_by("busy")
    second = worker("--processes=1", HORSIES_TEST_POLL_MS="60000").ready()
    assert handle.get(timeout_ms=30_000).ok_value == 2
    workers = dict(Worker.objects.values_list("id", "pid"))
    attempts = TaskAttempt.objects.filter(task_id=handle.task_id).order_by("attempt")
    assert [workers[one.worker_id] for one in attempts] == [first.process.pid, second.process.pid]
    let_go("busy")
    assert busy.get(timeout_ms=30_000).is_ok()


@pytest.mark.parametrize("how", ["exit", "kill", "segv"])
def test_a_task_that_lists_crashes_survives_the_death_of_its_process(worker: Start, how: str) -> None:
    worker("--processes=1").ready()
    handle = tasks.dies_once.send(how)
    survivor = handle.get(timeout_ms=30_000).ok_value
    first, second = TaskAttempt.objects.filter(task_id=handle.task_id).order_by("attempt")
    assert (first.outcome, first.error_code, first.will_retry) == ("WORKER_FAILURE", "WORKER_CRASHED", True)
    assert (second.outcome, second.child_pid) == ("COMPLETED", survivor)
    assert first.child_pid != survivor


@pytest.mark.parametrize("task", [tasks.dies_once, tasks.too_long_the_first_time], ids=["crash", "timeout"])
def test_a_policy_without_a_list_survives(worker: Start, task: Any) -> None:
    worker("--processes=1").ready()
    sender = task.with_options(retry_policy=RetryPolicy.fixed([0]))
    handle = sender.send("kill") if task is tasks.dies_once else sender.send()
    assert handle.get(timeout_ms=30_000).is_ok()
    codes = TaskAttempt.objects.filter(task_id=handle.task_id).order_by("attempt").values_list("error_code", flat=True)
    assert list(codes) == ["WORKER_CRASHED" if task is tasks.dies_once else "TASK_TIMEOUT", None]


def test_a_policy_without_a_list_tries_exceptions_of_both_lanes_again(worker: Start) -> None:
    worker("--processes=1").ready()
    policy = RetryPolicy.fixed([0])
    handles = [tasks.raises.with_options(retry_policy=policy).send("no")]
    handles.append(tasks.araises.with_options(retry_policy=policy).send())
    assert [handle.get(timeout_ms=30_000).err_value.error_code for handle in handles] == ["UNHANDLED_ERROR"] * 2
    assert [len(handle.info().attempts) for handle in handles] == [2, 2]  # type: ignore[union-attr]


def test_a_task_that_lists_crashes_comes_back_from_a_machine_that_died(worker: Start) -> None:
    dead = worker("--processes=2", **SHORT).ready()
    handle, other = tasks.holds_again.send("both"), tasks.hold.send("lost")
    held_by("both")
    held_by("lost")
    os.killpg(dead.process.pid, signal.SIGKILL)
    Group.objects.filter(name__startswith="both:").delete()
    worker("--processes=2", **SHORT).ready()
    child = held_by("both")
    let_go("both")
    assert handle.get(timeout_ms=30_000).ok_value == child
    assert other.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
    assert [one.will_retry for one in TaskAttempt.objects.filter(task_id=handle.task_id).order_by("attempt")] == [
        True,
        False,
    ]


def test_a_task_that_kills_whatever_runs_it_ends_as_poison(worker: Start) -> None:
    process = worker("--processes=1").ready()
    policy = RetryPolicy.fixed([0] * 20, auto_retry_for=["WORKER_CRASHED"])
    handle = tasks.dies.with_options(retry_policy=policy).send("kill")
    assert handle.get(timeout_ms=60_000).err_value.error_code == "POISON"
    assert Task.objects.get(pk=handle.task_id).retry_count == 4
    assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert process.process.poll() is None
