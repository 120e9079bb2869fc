"""Workers that were given up and come back: others have run their tasks to the end, and nothing of theirs lands."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies_django.models import Heartbeat, Task, TaskAttempt
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from tests.apps.project import points, tasks
from tests.conftest import wait_until
from tests.support.forwarder import Forwarder
from tests.support.points import Fate, Walker, replies_in_the_pipe
from tests.support.workers import WorkerProcess, database_url

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., WorkerProcess]
SHORT = {"HORSIES_TEST_STALE_MS": "2500"}


def run_by_another(walker: Walker, worker: Start) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Let another worker rescue the task and run it to its end; return its row and its attempts."""
    begun = len(walker.wrote("began"))
    worker("--processes=1", **SHORT).ready()
    wait_until(lambda: len(walker.wrote("began")) > begun, "another worker runs it")
    walker.may("go", "out")
    walker.handle.get(timeout_ms=30_000)
    return written(walker)


def written(walker: Walker) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a task's row and its attempts."""
    id_ = walker.handle.task_id
    return Task.objects.filter(pk=id_).values().get(), list(TaskAttempt.objects.filter(task_id=id_).values())


@pytest.mark.parametrize("reply", [False, True], ids=["in the middle of its code", "with the reply in the pipe"])
def test_a_stopped_worker_comes_back_when_another_has_run_its_task_to_the_end(
    worker: Start, tmp_path: Path, reply: bool
) -> None:
    zombie = worker("--processes=1", "--queues=default", **SHORT).ready()
    walker = Walker(tmp_path / "walker", points.walks_again.send(str(tmp_path / "walker")))
    child = walker.stands("began")
    if reply:
        zombie.signal(signal.SIGSTOP)
        walker.may("go", "out")
        wait_until(lambda: replies_in_the_pipe(zombie), "its reply lies in the pipe")
    else:
        os.killpg(zombie.process.pid, signal.SIGSTOP)
    task, attempts = run_by_another(walker, worker)
    assert task["claim_generation"] == 2
    assert [one["child_pid"] for one in attempts] != [child]
    wrote = walker.path.read_text()
    os.killpg(zombie.process.pid, signal.SIGCONT)
    wait_until(lambda: zombie.log.count("Worker started") == 2, "it starts anew")
    assert written(walker) == (task, attempts)
    assert walker.path.read_text() == wrote
    assert "was declared dead" in zombie.log
    assert f"task {task['id']} no longer belongs to worker" in zombie.log
    assert "generation 1; dropping its outcome" in zombie.log


def test_a_worker_that_was_cut_off_comes_back_with_an_outcome_that_nobody_wants_any_more(
    worker: Start, link: Forwarder, tmp_path: Path
) -> None:
    """By default its task goes on, and may run twice: it cannot know that others reach the database."""
    zombie = worker("--processes=1", "--queues=default", **link.way(database_url()), **SHORT).ready()
    walker = Walker(tmp_path / "walker", points.walks_again.send(str(tmp_path / "walker")))
    child = walker.stands("began")
    link.apart = True
    link.cut()
    task, attempts = run_by_another(walker, worker)
    assert (task["status"], task["claim_generation"]) == ("COMPLETED", 2)
    wait_until(lambda: child in walker.wrote("ended"), "it went on here, too")
    link.apart = False
    wait_until(lambda: zombie.log.count("Worker started") == 2, "it starts anew")
    assert written(walker) == (task, attempts)
    assert f"task {task['id']} no longer belongs to worker" in zombie.log
    assert "generation 1; dropping its outcome" in zombie.log


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_cancel_left_open_in_somebody_s_transaction_stops_no_worker_and_loses_no_outcome(
    worker: Start, connect: Callable[[], psycopg.Connection[Any]], tmp_path: Path, decision: str
) -> None:
    worker("--processes=1").ready()
    walker = Walker(tmp_path / "walker", points.walks.send(str(tmp_path / "walker")))
    walker.stands("began")
    somebody = connect()
    somebody.execute("BEGIN")
    verdicts = TaskStore(somebody).cancel([walker.handle.task_id], channel_prefix(somebody), terminate=False)
    assert verdicts == {walker.handle.task_id: "REQUESTED"}
    walker.may("go", "out")
    for _ in range(3):  # the only slot is used again and again, though the first outcome cannot be written
        assert tasks.add.send(1, b=1).get(timeout_ms=30_000).ok_value == 2
    assert walker.handle.info().status == "RUNNING"
    somebody.execute(decision.upper())
    assert walker.fate() == Fate("COMPLETED", None, ["COMPLETED"], 0, began=1, ended=1)


WRITES = (
    "CREATE TABLE writes (process uuid, transaction xid8, at timestamptz DEFAULT clock_timestamp())",
    """CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO writes VALUES (CASE TG_TABLE_NAME WHEN 'horsies_heartbeats' THEN NEW.id END, pg_current_xact_id());
  RETURN NULL;
END $$""",
    "CREATE TRIGGER writes AFTER INSERT OR UPDATE ON horsies_heartbeats FOR EACH ROW EXECUTE FUNCTION note_write()",
    "CREATE TRIGGER writes AFTER UPDATE ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION note_write()",
)


@pytest.fixture
def writes(connect: Callable[[], psycopg.Connection[Any]]) -> Iterator[Callable[[], list[Any]]]:
    """Note every row of tasks and heartbeats that is written; give a function that tells them, the first first."""
    observer = connect()
    for statement in WRITES:
        observer.execute(statement)
    yield lambda: observer.execute("SELECT process, transaction, at FROM writes ORDER BY at").fetchall()
    observer.execute("DROP FUNCTION note_write CASCADE")
    observer.execute("DROP TABLE writes")


def test_ten_thousand_running_tasks_cost_one_row_per_process_and_beat(
    worker: Start, writes: Callable[[], list[Any]]
) -> None:
    worker(
        "--processes=1", "--async-concurrency=10000", "--max-tasks-per-child=0", HORSIES_TEST_SNAPSHOT_MS="3000"
    ).ready()
    points.stays.send_many([{}] * 10_000)
    wait_until(lambda: Task.objects.filter(status="RUNNING").count() == 10_000, "all of them run")
    before = len(writes())
    wait_until(lambda: len(writes()) >= before + 10, "beats of both processes")
    beats = writes()[before:]
    assert {process for process, _, _ in beats} == set(Heartbeat.objects.values_list("id", flat=True))  # and no task
    assert Heartbeat.objects.count() == 2
    assert len({(process, transaction) for process, transaction, _ in beats}) == len(beats)
    assert (beats[-1][2] - beats[0][2]).total_seconds() >= 3  # not more often than every second, its interval
    assert Task.objects.filter(status="RUNNING").count() == 10_000
