"""Many processes that have to be killed, or kill themselves, one after the other: the worker outlives them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from horsies_django.models import TaskAttempt
from tests.e2e.conftest import WorkerProcess
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]


def test_a_backlog_of_tasks_that_have_to_be_killed_is_worked_off_though_children_are_still_starting(
    worker: Start,
) -> None:
    process = worker("--processes=4", HORSIES_TEST_KILL_GRACE_MS="1")
    handles = tasks.ignores_its_timeout.send_many([{}] * 24)
    assert Counter(handle.get(timeout_ms=60_000).err_value.error_code for handle in handles) == {"TASK_TIMEOUT": 24}
    assert len(set(TaskAttempt.objects.values_list("child_pid", flat=True))) == 24
    assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert process.stop() == 0


def test_a_storm_of_tasks_that_kill_their_process_leaves_the_worker_standing(worker: Start) -> None:
    process = worker("--processes=4").ready()
    handles = tasks.dies.send_many([{"how": how} for how in ("exit", "kill", "segv") * 4])
    assert Counter(handle.get(timeout_ms=60_000).err_value.error_code for handle in handles) == {"WORKER_CRASHED": 12}
    assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert process.stop() == 0
