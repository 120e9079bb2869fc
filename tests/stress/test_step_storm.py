"""In a storm of kills and frozen workers, each durable step writes its row exactly once.

Processes are killed at random moments, and workers are frozen until other workers run their tasks.
The frozen workers have a long threshold of their own, so their processes stay alive: they wake up
in the middle of their steps, and only the check before the record keeps them from writing. With
that threshold they would rescue no task for as long, so the oldest worker is never killed or
frozen. Each commit of a step is slow, so many kills hit one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from horsies_django.models import Task, TaskAttempt, TaskStep
from tests.apps.project import stepping
from tests.conftest import Connect, sql, wait_until
from tests.support.points import kill_machine
from tests.support.runners import kill_a_runner, runners_of
from tests.support.sizes import sized
from tests.support.workers import Start, WorkerProcess, given

pytestmark = [
    pytest.mark.stress,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(1_200),
]

KILLS = sized(25, 1_000)
FREEZES = sized(2, 100)
SEED = 16
KILLED = sized(1, 2)  # workers whose processes are killed
FROZEN = sized(1, 4)  # workers that are frozen together
MACHINES = 50  # one kill in so many kills a whole worker
BACKLOG = sized(30, 100)  # unfinished tasks at any time
MOST_MILLISECONDS = 20.0  # in a step
BREATH_SECONDS = 0.1  # at most, between two kills
SLOW_COMMITS = """
CREATE FUNCTION commits_slowly() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(random() / 100); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON horsies_task_steps DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION commits_slowly()
"""
AT_WORK = b"""
SELECT count(DISTINCT b.pid) FROM horsies_heartbeats b JOIN horsies_tasks t ON t.claimed_by = b.id
WHERE b.pid = ANY (%s) AND b.role = 'claimer' AND b.died_at IS NULL
  AND t.status = 'RUNNING' AND t.finished_at IS NULL
"""
GIVEN_UP = b"""
SELECT NOT EXISTS (
  SELECT FROM horsies_heartbeats b
  WHERE b.pid = ANY (%s) AND b.role = 'claimer' AND b.died_at IS NULL
)
"""
# Errors at the end: rows that are missing or duplicated, and results that differ from the rows.
WRONG = """
SELECT t.id, t.status, array_agg(r.step ORDER BY r.step), array_agg(r.process ORDER BY r.step),
       t.result,
       (SELECT jsonb_agg(s.result ORDER BY s.name) FROM horsies_task_steps s WHERE s.task_id = t.id)
FROM horsies_tasks t LEFT JOIN step_rows r ON r.task = t.id
GROUP BY t.id
HAVING t.status <> 'COMPLETED' OR array_agg(r.step ORDER BY r.step) <> '{0,1,2,3,4,5,6,7,8,9}'
  OR t.result::jsonb -> 'ok' <> jsonb_agg(r.process ORDER BY r.step)
  OR t.result::jsonb -> 'ok' <> (SELECT jsonb_agg(s.result ORDER BY s.name)
                                 FROM horsies_task_steps s WHERE s.task_id = t.id)
"""
LATER = (
    "SELECT count(*) FROM step_rows r JOIN horsies_tasks t ON t.id = r.task WHERE r.attempt <= "
    "t.retry_count"
)


@pytest.fixture
def rows(transactional_db: None, worker: Start) -> Iterator[None]:
    """Create the table of the tasks, and make commits slow."""
    sql(stepping.TABLE)
    sql(SLOW_COMMITS)
    yield
    sql("DROP FUNCTION commits_slowly CASCADE")
    sql("DROP TABLE step_rows")


class Storm:
    """The workers, their tasks, and the kills and freezes."""

    def __init__(self, start: Start, watcher: psycopg.Connection[Any], notes: Path) -> None:
        self.start = start
        self.watcher = watcher
        self.notes = notes

        self.random = random.Random(SEED)
        self.moment = threading.Event()
        self.happened: Counter[str] = Counter()

        # Never killed or frozen: it is one of the three oldest workers, which rescue tasks for all.
        self.oldest = self.fresh(2_000).ready()
        self.killed = [self.fresh(2_000) for _ in range(KILLED)]
        self.frozen = [self.fresh(600_000) for _ in range(FROZEN)]
        self.pids = [each.process.pid for each in self.frozen]

        self.send()
        for each in (*self.killed, *self.frozen):
            each.ready()

    def fresh(self, threshold: int) -> WorkerProcess:
        """Start a worker with this threshold."""
        options = ("--processes=2", "--async-concurrency=2", "--max-tasks-per-child=0")
        return self.start(
            *options, **given(RECOVERY={"RUNNING_STALE_THRESHOLD_MS": threshold, "MAX_CRASHES": 0})
        )

    def send(self) -> None:
        """Send as many tasks as have finished."""
        missing = BACKLOG - Task.objects.filter(finished_at=None).count()
        for kind in (stepping.ten_steps, stepping.ten_steps, stepping.aten_steps):
            kind.send_many(
                {
                    "milliseconds": self.random.uniform(0, MOST_MILLISECONDS),
                    "notes": str(self.notes),
                }
                for _ in range(missing // 3)
            )

    def kill_all_the_time(self, others: Future[None]) -> None:
        """Kill processes that run tasks, and sometimes a whole worker.

        It ends after enough kills, when the freezes are over, too.
        """
        while self.happened["kills"] < KILLS or not others.done():
            self.send()
            place = self.random.randrange(KILLED)

            if self.happened["kills"] % MACHINES == MACHINES - 1:
                kill_machine(self.killed[place])
                self.killed[place] = self.fresh(2_000).ready()
                self.happened["kills"] += 1
            else:
                self.happened["kills"] += kill_a_runner(self.killed[place].process.pid, self.random)

            self.moment.wait(self.random.uniform(0, BREATH_SECONDS))

    def freeze_all_the_time(self) -> None:
        """Freeze workers at work, and wake them after a while, their child processes first.

        They stay frozen until other workers have declared them dead.
        """
        while self.happened["freezes"] < FREEZES:
            wait_until(lambda: self.asked(AT_WORK) == FROZEN, "all of them are at work")
            runners = [runner for pid in self.pids for runner in runners_of(pid)]

            for pid in self.pids:
                os.killpg(pid, signal.SIGSTOP)
            wait_until(lambda: self.asked(GIVEN_UP), "others have given them up")

            for runner in runners:
                with suppress(psutil.NoSuchProcess):
                    runner.resume()
            self.moment.wait(BREATH_SECONDS)

            for pid in self.pids:
                os.killpg(pid, signal.SIGCONT)
            self.happened["freezes"] += FROZEN

    def asked(self, query: bytes) -> Any:
        """Return the answer to a query about the frozen workers."""
        (found,) = self.watcher.execute(query, [self.pids]).fetchone() or (None,)
        return found


def test_every_row_of_every_step_is_written_exactly_once(
    worker: Start, rows: None, connect: Connect, tmp_path: Path
) -> None:
    storm = Storm(worker, connect(), tmp_path / "notes")

    with ThreadPoolExecutor(1) as aside:
        freezing = aside.submit(storm.freeze_all_the_time)
        storm.kill_all_the_time(freezing)
        freezing.result()

    wait_until(lambda: not Task.objects.filter(finished_at=None).exists(), "all tasks have ended")
    for each in (storm.oldest, *storm.killed, *storm.frozen):
        each.stop()

    assert sql(WRONG) == []
    assert TaskStep.objects.count() == 10 * Task.objects.count()

    # The storm did happen.
    assert TaskAttempt.objects.filter(outcome="WORKER_FAILURE").count() > KILLS // 4
    assert sql(LATER)[0][0] > 0, "no attempt found a step of an earlier one"
    assert storm.notes.exists() or FREEZES < 10, "no worker woke up in a step"
