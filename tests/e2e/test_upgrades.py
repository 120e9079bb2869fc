"""Databases and workers of earlier releases.

Their tasks are run, and the last release works beside this one.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies_django.models import Task, TaskAttempt
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.everything import EVERYTHING
from tests.support.factories import now
from tests.support.sites import fresh_database, printed
from tests.support.workers import ROOT, Start, apps

pytestmark = pytest.mark.django_db(transaction=True)

HERE = ROOT / "tests" / "upgrades"
DUMPS = sorted(HERE.glob("*.sql"))
(WHEEL,) = HERE.glob("*.whl")
SITE = {"DJANGO_SETTINGS_MODULE": "tests.upgrades.site.settings", "REPAIRED": "1"}

ANSWER = """
from horsies_django import get_workflow
from horsies_django.models import WorkflowNode, WorkflowRun
from tests.support.deadlines import wait_until

for run in WorkflowRun.objects.filter(name__in=["asked", "paused", "begun"]):
    handle = get_workflow(run.pk)
    if run.status == "PAUSED":
        handle.resume()
    handle.signal("told", 5)
    gates = WorkflowNode.objects.filter(workflow_id=run.pk, kind="gate", status="WAITING")
    wait_until(gates.exists, run.name)
    handle.approve("agreed", actor="a test")
    print(run.name, handle.get(timeout_ms=30_000).unwrap())
"""
SEND = """
from tests.upgrades.site import tasks

sent = [
    tasks.add.with_options(queue=queue).send(1, number)
    for number in range(20)
    for queue in ("former", "latter")
]
runs = [tasks.rally(number).send() for number in range(10)]
sums = [1 + number for number in range(20) for _ in "12"]
assert [handle.get(timeout_ms=60_000).unwrap() for handle in sent] == sums
assert [handle.get(timeout_ms=60_000).unwrap() for handle in runs] == [12] * 10
"""
ORDER = """
from django.db import connection
from horsies_django.store.queues import QueueStore

# Also workers with a buffer keep the order.
changes = {"partition_by_args": ["a"], "partition_policy": "stop"}
QueueStore(connection).configure("former", changes, action="queue.set", actor="a test")
"""
# Tasks of one key that ran at once, or not in the order of their sends. Tasks of workflows are
# compared separately, because overlapping transactions send them.
OVERLAPS = """
SELECT FROM (
  SELECT t.workflow_id, a.started_at,
         lag(a.finished_at) OVER (PARTITION BY t.partition_key ORDER BY a.started_at) AS ended,
         lag(a.finished_at) OVER (
           PARTITION BY t.partition_key, t.workflow_id IS NULL ORDER BY t.sent_at, t.id
         ) AS sent_before
  FROM horsies_tasks t JOIN horsies_task_attempts a ON a.task_id = t.id
  WHERE t.queue_name = 'former'
) AS run
WHERE run.started_at < run.ended OR (run.workflow_id IS NULL AND run.started_at < run.sent_before)
"""
SCHEDULE = """
from horsies_django import schedules

definition = {
    "task": "tests.upgrades.site.tasks.add",
    "pattern": "every day",
    "kwargs": {"a": 1, "b": 2},
}
schedules.create("daily", definition, actor="a test")
"""


def run(url: str, *words: str, **environment: str) -> str:
    """Run a command of Django in its own process.

    It uses the code of this release unless PYTHONPATH names another one.
    """
    variables = {**SITE, "PYTHONPATH": str(ROOT), "DATABASE_URL": url, **environment}
    return printed("-m", "django", *words, cwd=HERE, **variables)


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def left(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[str]:
    """Yield the URL of a database as a release left it."""
    with fresh_database("left") as url:
        with psycopg.connect(url) as conn:
            conn.execute(request.param.read_bytes())
        yield url


def made(url: str) -> set[Any]:
    """Return the objects of the app in a database.

    The server adds casts and brackets to a CHECK that is loaded from a dump.
    """
    return {
        tuple(re.sub(r"::[a-z ]+(\[\])?|[()]", "", column or "") for column in row)
        for row in rows(url, EVERYTHING)
    }


# Only the commands of the last release call these functions. The next release drops them.
FOR_THE_LAST_RELEASE = {"horsies_purge", "horsies_purgeable"}


def rows(url: str, query: str) -> list[Any]:
    with psycopg.connect(url) as conn:
        return conn.execute(query.encode()).fetchall()


def test_a_migrated_database_of_a_release_has_what_a_new_one_has(left: str) -> None:
    run(left, "migrate")
    with fresh_database("new") as new:
        run(new, "migrate")
        older = {
            one for one in made(left) if one[0] == "function" and one[1] in FOR_THE_LAST_RELEASE
        }

        assert {one[1] for one in older} == FOR_THE_LAST_RELEASE
        assert made(left) - older == made(new)


def test_partitions_of_a_release_are_keyed_anew(left: str) -> None:
    """Fails if: a waiting task has the partition 1.0, and the next task with the same value has the
    partition 1.
    """
    ((name, (argument, *_)),) = rows(
        left,
        "SELECT name, partition_by_args FROM horsies_queues WHERE partition_by_args IS NOT NULL "
        "ORDER BY name LIMIT 1",
    )

    kwargs = f'{{"{argument}": 1.0}}'
    send = f"""
    INSERT INTO horsies_tasks
      (id, task_name, queue_name, lane, kwargs, partition_version, partition_key)
    SELECT gen_random_uuid(), 'tests.rekeyed', q.name, 'sync', k.kwargs, q.partition_version,
           horsies_partition_key(
             q.partition_by_args, q.partition_by_task, k.kwargs, 'tests.rekeyed', NULL)
    FROM horsies_queues q, (SELECT '{kwargs}'::json AS kwargs) AS k
    WHERE q.name = '{name}' RETURNING partition_key
    """

    ((before,),) = rows(left, send)
    assert "1.0" in before

    run(left, "migrate")
    ((now,),) = rows(left, send)
    while rows(left, f"SELECT horsies_sweep('{name}', 1000, 'c')") == [(True,)]:
        pass

    assert now == before.replace("1.0", "1")
    keys = rows(
        left, "SELECT DISTINCT partition_key FROM horsies_tasks WHERE task_name = 'tests.rekeyed'"
    )
    assert keys == [(now,)]


def test_what_a_release_left_is_done_by_this_one(left: str, worker: Start) -> None:
    before = Counter(rows(left, "SELECT status FROM horsies_tasks"))
    assert {status for (status,) in before} == {
        "PENDING",
        "RUNNING",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
    }

    run(left, "migrate")
    worker("--processes=2", DATABASE_URL=left, **SITE).ready()

    assert run(left, "shell", "--no-imports", "-c", ANSWER).split("\n") == [
        "asked 10",
        "paused 10",
        "begun 10",
        "",
    ]

    wait_until(
        lambda: not rows(left, "SELECT FROM horsies_tasks WHERE finished_at IS NULL"),
        "all tasks end",
    )

    ended = rows(
        left, "SELECT split_part(task_name, '.', 5), status, result ->> 'ok' FROM horsies_tasks"
    )
    assert Counter((name, status) for name, status, _ in ended if status != "COMPLETED") == {
        ("fails", "FAILED"): 1,
        ("add", "CANCELLED"): 1,
        ("add", "EXPIRED"): 1,
    }

    assert sorted(ok for name, _, ok in ended if name == "hangs") == list("01234")
    assert [ok for name, _, ok in ended if name == "steps"] == ["[2,3]"]
    assert sorted(ok for name, _, ok in ended if name == "of_tenant") == ["a", "a", "b"]

    assert Counter(rows(left, "SELECT name::text, status::text FROM horsies_workflows")) == {
        ("rally", "COMPLETED"): 2,
        **{(name, "COMPLETED"): 1 for name in ("asked", "paused", "begun")},
    }


def test_a_worker_of_the_last_release_runs_beside_a_new_one(
    worker: Start, tmp_path: Path, transactional_db: None
) -> None:
    """Workers and sites of the last release work beside those of this one."""
    zipfile.ZipFile(WHEEL).extractall(tmp_path / "last")
    last = {"PYTHONPATH": f"{tmp_path / 'last'}:{ROOT}"}

    where = run(
        "postgresql:///none",
        "shell",
        "--no-imports",
        "-c",
        "import horsies_django as h; print(h.__file__)",
        **last,
    )
    assert where.startswith(str(tmp_path))

    with fresh_database("both") as url:
        run(url, "migrate", **last)
        process = worker(
            "--processes=1", "--queues=former", DATABASE_URL=url, CWD=str(tmp_path), **last, **SITE
        ).ready()
        run(url, "migrate")
        worker("--processes=1", "--queues=latter", DATABASE_URL=url, **SITE).ready()

        run(url, "shell", "--no-imports", "-c", ORDER)
        run(url, "shell", "--no-imports", "-c", SEND)
        run(url, "shell", "--no-imports", "-c", SEND, **last)

        assert rows(url, "SELECT FROM horsies_tasks WHERE ordered AND queue_name = 'former'")
        assert rows(url, OVERLAPS) == [], (
            "the database keeps the order, also for workers that do not know it"
        )

        run(url, "shell", "--no-imports", "-c", SCHEDULE)
        (listed,) = json.loads(run(url, "horsies_schedule", "list", "--json", **last))
        assert (listed["state"], listed["error"]) == ("on", None)

        assert process.stop() == 0
        assert rows(url, "SELECT DISTINCT status::text FROM horsies_tasks") == [("COMPLETED",)]


def test_new_tasks_wait_for_a_worker_of_the_new_code(
    worker: Start,
) -> None:
    """A new task waits for a worker of the new code, and the old worker runs the others.

    As in a rolling deploy, the old worker ends when it has nothing left to do. The waiting new
    tasks do not keep it.
    """
    new_tasks = [tasks.add.send(number) for number in range(8)]
    known = tasks.noop.send()
    aged = tasks.add.send(2)
    Task.objects.filter(pk=aged.task_id).update(enqueued_at=now() - dt.timedelta(minutes=10))

    old = worker("--processes=1", "--until-empty", **apps("elder"))
    assert old.wait() == 0

    assert (known.info().status, aged.info().error_code) == ("COMPLETED", "WORKER_RESOLUTION_ERROR")
    assert Task.objects.filter(status="PENDING", retry_count=0).count() == 8
    assert old.log.count("unknown to this worker") == 1

    worker("--processes=1").ready()
    assert [handle.get(timeout_ms=30_000).ok_value for handle in new_tasks] == list(range(8))
    attempts = TaskAttempt.objects.filter(task_id__in=[handle.task_id for handle in new_tasks])
    assert [attempt.attempt for attempt in attempts] == [1] * 8
