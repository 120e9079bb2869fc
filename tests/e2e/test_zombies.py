"""Workers that were given up and come back: others have run their tasks to the end, and nothing of theirs lands."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies_django.models import Heartbeat, Task, TaskAttempt
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from tests.conftest import wait_until
from tests.e2e.conftest import WorkerProcess, database_url
from tests.e2e.forwarder import Forwarder
from tests.e2e.points import Fate, Walker, replies_in_the_pipe
from tests.project import points, tasks

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
    assert "generation 1: what came of it is dropped" in zombie.log


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
    assert "generation 1: what came of it is dropped" in zombie.log


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


def test_ten_thousand_running_tasks_cost_one_row_per_process_and_beat(
    worker: Start, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    worker("--processes=1", "--async-concurrency=10000", "--max-tasks-per-child=0").ready()
    points.stays.send_many([{}] * 10_000)
    wait_until(lambda: Task.objects.filter(status="RUNNING").count() == 10_000, "all of them run")
    observer = connect()

    def updates(table: str) -> int:
        query = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = %s"
        return int((observer.execute(query, [table]).fetchone() or (0,))[0])

    wait_until(lambda: updates("horsies_tasks") >= 10_000, "the server has counted the starts")
    tasks_before, before = updates("horsies_tasks"), updates("horsies_heartbeats")
    beats: set[Any] = set()

    def beaten() -> bool:
        beats.update(Heartbeat.objects.values_list("sent_at", flat=True))
        return updates("horsies_heartbeats") >= before + 10

    wait_until(beaten, "five beats of two processes")
    assert Heartbeat.objects.count() == 2
    assert updates("horsies_heartbeats") - before <= len(beats)
    assert updates("horsies_tasks") == tasks_before
    assert Task.objects.filter(status="RUNNING").count() == 10_000
