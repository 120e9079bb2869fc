"""A bulk retry of very many failed tasks is exact although its command is killed and run again.

Meanwhile workers run the tasks, and another thread cancels some of them.
"""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from horsies_django import queues
from horsies_django.models import AuditEntry, Task, TaskAttempt
from horsies_django.tasks import operations
from tests.conftest import sql, wait_until
from tests.support.factories import now
from tests.support.sizes import sized
from tests.support.workers import Start, WorkerProcess

pytestmark = [
    pytest.mark.stress,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(3_600),
]

TASKS = sized(5_000, 300_000)
KILLS = 5
SEED = 38
OF_ACT = AuditEntry.objects.filter(action="task.retry")

# One in ten fails again. All failed within the last hour.
FILL = """
    WITH task AS (
        INSERT INTO horsies_tasks (
            id, task_name,
            queue_name, lane, status,
            kwargs,
            claim_generation, claimed_by, claimed_at, started_at, sent_at, enqueued_at, finished_at,
            error_code, result)
        SELECT
            gen_random_uuid(),
            'tests.apps.project.tasks.' || CASE WHEN n %% 10 = 0 THEN 'raises' ELSE 'noop' END,
            'default', 'sync', 'FAILED',
            CASE WHEN n %% 10 = 0 THEN '{"message": "again"}' ELSE '{}' END::jsonb,
            1, gen_random_uuid(), at, at, at, at, at,
            'OH_NO', '{}'
        FROM generate_series(1, %(many)s) AS n
        CROSS JOIN LATERAL (SELECT now() - n * interval '1 hour' / (%(many)s + 1)) AS moment (at)
        RETURNING id, claimed_by, finished_at)
    INSERT INTO horsies_task_attempts (
        task_id, attempt, claim_generation, outcome, started_at, finished_at, worker_id, child_pid,
        error_code, will_retry)
    SELECT id, 1, 1, 'FAILED', finished_at, finished_at, claimed_by, 1, 'OH_NO', false FROM task"""


class Command(WorkerProcess):
    """A running ``horsies_task retry`` and its output."""

    command = "horsies_task"


def grows_to(goal: int, count: Callable[[], int]) -> None:
    """Wait until the count is reached, as long as it keeps growing."""
    while (before := count()) < goal:
        wait_until(lambda before=before: count() > before, "there are more")


def cancel(over: threading.Event) -> Counter[str]:
    """Cancel random tasks until the event is set, and return the counts of the verdicts."""
    dice = random.Random(SEED)
    verdicts = Counter[str]()
    ids = list(Task.objects.values_list("pk", flat=True))

    try:
        while not over.is_set():
            verdicts.update(operations.cancel(dice.sample(ids, 20), actor="somebody").values())
        return verdicts
    finally:
        connection.close()


def test_a_repeated_act_retries_each_task_once(worker: Start, tmp_path: Path) -> None:
    """A bulk retry that is killed and run again retries each task once."""
    sql(FILL, {"many": TASKS})
    queues.override("default", {"max_concurrency": 3}, actor="a test", reason="so that tasks wait")

    began = now()
    for one in [worker("--processes=2") for _ in range(2)]:
        one.ready()

    over = threading.Event()
    options = ("retry", "--queue=default", f"--until={began.isoformat()}", "--no-input", "--json")

    with ThreadPoolExecutor(1) as aside:
        somebody = aside.submit(cancel, over)
        try:
            for kill in range(KILLS):
                command = Command(tmp_path / f"act-{kill}.log", *options)
                grows_to(TASKS // 500 * (kill + 1) // (KILLS + 1), OF_ACT.count)
                command.signal(signal.SIGKILL)
                assert command.wait() == -signal.SIGKILL

            last = Command(tmp_path / "act.log", *options)
            assert last.process.wait(1_200) == 0, last.log
        finally:
            over.set()

    rest = Command(tmp_path / "rest.log", *options)
    assert rest.process.wait(300) == 0, rest.log
    grows_to(TASKS, Task.objects.filter(finished_at__isnull=False).count)

    # Each task was retried once, although one in ten has failed again since.
    attempts = Counter(TaskAttempt.objects.values_list("task_id", flat=True))
    assert Counter(attempts.values()).keys() <= {1, 2}
    assert Task.objects.filter(enqueued_at__gt=began).count() == TASKS
    ran = Task.objects.exclude(status="CANCELLED")
    assert {*ran.values_list("task_name", "status")} == {
        ("tests.apps.project.tasks.noop", "COMPLETED"),
        ("tests.apps.project.tasks.raises", "FAILED"),
    }

    # The counts of the audit and of the command are right.
    counts = [
        (entry.after["act"], Counter(json.loads(entry.after["verdicts"]))) for entry in OF_ACT
    ]
    assert sum((one for _act, one in counts), Counter())["RETRIED"] == TASKS
    assert len({act for act, _one in counts}) in (KILLS + 1, KILLS + 2)

    said = Counter(json.loads(last.log[last.log.index("{") :])["verdicts"])
    assert said in [
        sum((one for of, one in counts if of == act), Counter())
        for act in {of for of, _one in counts}
    ]

    assert Task.objects.filter(status="CANCELLED").count() == somebody.result()["CANCELLED"] > 0
