"""Real problems of the system, and how the command and the URL report them."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as project
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, queues, schedules
from horsies_django.admin.overview import summaries
from horsies_django.models import Pruning, Schedule, Task, WorkflowNode, WorkflowRun
from horsies_django.monitoring.health import ProblemCode, examine, problems
from horsies_django.store.health import HealthStore
from horsies_django.store.retention import Kept
from horsies_django.tasks import registry
from horsies_django.testing import drain, travel
from horsies_django.views import cached_responses
from horsies_django.worker.scheduler import Scheduler
from tests.apps.project import flows
from tests.conftest import Claimers, Connect, limit, put, sql, wait_until
from tests.desk.test_admin_overview import counted
from tests.support.commands import ran
from tests.support.factories import (
    ScheduleTickFactory,
    TaskFactory,
    WorkerFactory,
    living_worker,
    now,
)

pytestmark = pytest.mark.django_db(transaction=True)

EVERYTHING = Kept((), others=True, age=dt.timedelta(days=30))
Told = Callable[..., list[dict[str, Any]]]
SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
NOOP = "tests.apps.project.tasks.noop"


@pytest.fixture
def told(boss: Client) -> Told:
    """Return a function that reads the problems from the command and the URL, and compares both."""

    def both(*words: str, failing: bool | None = None) -> list[dict[str, Any]]:
        cached_responses.kept.clear()
        code, out, _ = ran("horsies_status", "--json", *words)
        printed = json.loads(out)
        answer = boss.get(reverse("horsies:status"))
        found: list[dict[str, Any]] = printed["problems"]

        keys = ("code", "severity", "subject", "advice")
        assert [[one[key] for key in keys] for one in json.loads(answer.content)["problems"]] == [
            [one[key] for key in keys] for one in found
        ]

        critical = any(one["severity"] == "critical" for one in found)
        assert (answer.status_code, printed["healthy"]) == (
            (503, False) if critical else (200, True)
        )
        assert code == (critical if failing is None else failing)
        assert all(
            dt.datetime.fromisoformat(one["since"]).utcoffset() is not None
            for one in found
            if one["since"]
        )

        return found

    return both


def codes(found: list[dict[str, Any]]) -> list[str]:
    return [one["code"] for one in found]


def only(found: list[dict[str, Any]], code: str, subject: str, *words: str) -> dict[str, Any]:
    """Assert that this is the only problem, and that its text has these words; return it."""
    assert [(one["code"], one["subject"]) for one in found] == [(code, subject)], found
    for word in words:
        assert word in found[0]["text"]
    return found[0]


def age(found: dict[str, Any]) -> dt.timedelta:
    return dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(found["since"])


# The report as a whole


def test_a_busy_system_without_faults_has_no_problem(told: Told, claimer: Claimers) -> None:
    living_worker(
        "default",
        "mail",
        "bulk",
        task_names=[NOOP, "tests.nothing", "tests.apps.project.flows.number"],
    )

    limit("mail", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(20, queue="mail", kwargs=[f'{{"tenant": {n % 2}}}' for n in range(20)])

    busy = claimer(mail=1)
    assert len(busy.run_pass(sync=4).claims) == 2
    busy.run_pass(sync=4)

    put(20, queue="bulk")
    count(NOOP, COMPLETED=10_000, RETRIED=900, RETURNED=500, UNHANDLED_ERROR=5, CRASHED=2)

    flow = Workflow("waits")
    flow.add(flows.anything, flow.gate("legal", timeout=HOUR))
    flow.add(flows.number, 1)
    flow.send()
    drain(queues=["default"])
    schedules.create("hourly", {"task": NOOP, "pattern": "every hour"}, actor="a test")

    assert Task.objects.filter(parked=True).exists()
    assert told() == []


def test_warnings_fail_the_command_only_with_fail_on_warning(told: Told) -> None:
    living_worker("default")
    TaskFactory(sent_at=now() - 14 * MINUTE)

    assert told("--fail-on=warning", failing=False) == []

    TaskFactory(sent_at=now() - 16 * MINUTE)
    said = "waiting for 16 min, longer than 15 min"
    found = only(told("--fail-on=warning", failing=True), "WAITS_TOO_LONG", "queue default", said)

    assert found["severity"] == "warning"
    assert 16 * MINUTE <= age(found) < 17 * MINUTE
    assert codes(told("--fail-on=critical", failing=False)) == ["WAITS_TOO_LONG"]


def test_critical_problems_come_first_then_worse_then_older_ones(told: Told) -> None:
    """Critical problems come first, then worse ones, then older ones."""
    for name, minutes in (("default", 40), ("mail", 20), ("bulk", 30)):
        TaskFactory(queue_name=name, sent_at=now() - minutes * MINUTE)

    found = [(one["code"], one["subject"]) for one in told()]
    by_age = ["queue default", "queue bulk", "queue mail"]

    assert found == [
        (code, name) for code in ("NO_LIVING_WORKER", "WAITS_TOO_LONG") for name in by_age
    ]

    page = (Path(__file__).parents[2] / "docs" / "reference" / "status.md").read_text()
    assert {code: code.severity for code in ProblemCode} == dict(
        re.findall(r"^\| `([A-Z_]+)` \| (\w+) \|", page, re.M)
    )


# The database


def blockers(**older: Any) -> list[tuple[Any, ...]]:
    return [tuple(one[:5]) for one in HealthStore(connection).blockers(older.get("older"))]


def test_a_lock_that_conflicts_with_writing_to_a_table_blocks_it(
    connect: Connect,
) -> None:
    """A lock that conflicts with writes to a table of the queue is reported as a blocker."""
    conn = connect()
    harmless = ("ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE")

    for mode in (*harmless, "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"):
        with conn.transaction():
            conn.execute("SET LOCAL application_name = 'a script'")
            conn.execute(f"LOCK TABLE auth_group, horsies_audit IN {mode} MODE".encode())

            name = f"{mode.title().replace(' ', '')}Lock"
            blocks = (conn.info.backend_pid, "a script", name, "horsies_audit", True)
            assert blockers() == ([] if mode in harmless else [blocks]), mode
            assert blockers(older=HOUR) == [], "it is younger"
        assert blockers() == []


def test_a_vacuum_that_truncates_a_table_blocks_no_transaction(connect: Connect) -> None:
    """A vacuum that holds a lock to shorten a table is not reported as a blocker.

    A vacuum holds such a lock only for moments, which a test cannot catch; so a view of this
    session lists a running vacuum.
    """
    conn = connect()

    with conn.transaction(), transaction.atomic(), connection.cursor() as cursor:
        conn.execute("LOCK TABLE horsies_audit IN ACCESS EXCLUSIVE MODE")
        assert [one[0] for one in blockers()] == [conn.info.backend_pid]

        cursor.execute(
            f"CREATE TEMPORARY VIEW pg_stat_progress_vacuum AS SELECT {conn.info.backend_pid} AS "
            "pid"
        )
        cursor.execute(
            "SELECT set_config('search_path', 'pg_temp, ' || current_schema() || ', pg_catalog', "
            "true)"
        )

        assert blockers() == []
        transaction.set_rollback(True)


def test_status_reports_a_table_locked_for_five_seconds(told: Told, connect: Connect) -> None:
    """A transaction that has locked a table for five seconds is reported by both."""
    conn = connect()

    with conn.transaction():
        conn.execute("SET LOCAL application_name = 'psql'")
        conn.execute("LOCK TABLE horsies_queues IN SHARE MODE")
        wait_until(lambda: problems(examine(connection)), "it is old enough")

        who = f"process {conn.info.backend_pid} ('psql')"
        said = "holds the lock ShareLock on horsies_queues"
        found = only(told(), "BLOCKED", "table horsies_queues", who, said)
        assert f"pg_terminate_backend({conn.info.backend_pid})" in found["advice"]
        assert 5 * SECOND <= age(found) < MINUTE

    assert told() == []


def test_a_transaction_that_waits_for_a_lock_blocks_later_ones(connect: Connect) -> None:
    """A transaction that waits for a lock is reported, because it blocks later transactions.

    Fails if: only the holder of a lock is named, and an ALTER TABLE behind a long query stops every
    worker without being named.
    """
    reader = connect()
    waiting = connect()

    with ThreadPoolExecutor(1) as pool, reader.transaction():
        reader.execute("SELECT FROM horsies_audit")
        ended = pool.submit(waiting.execute, "DO 'BEGIN LOCK TABLE horsies_audit; END'")
        pid = waiting.info.backend_pid
        expected = [(pid, "horsies test", "AccessExclusiveLock", "horsies_audit", False)]
        wait_until(lambda: blockers() == expected, "it waits")

        health = examine(connection)
        told = problems(health._replace(blockers=HealthStore(connection).blockers(None)))
        assert "waits for the lock AccessExclusiveLock" in told[0].text

        waiting.cancel()
        with suppress(psycopg.Error):
            ended.result()


# Tasks, by their counted results


def count(task: str, queue: str = "default", timed: bool = True, **results: int) -> None:
    """Add results of a task to the history, as a worker does.

    Each result has a duration unless ``timed`` is False.
    """
    counted(
        *((queue, task, result, n) for result, n in results.items()), seconds=0 if timed else -1
    )


def earlier(span: dt.timedelta, width: int) -> None:
    """Move the rows of one width in the history into the past."""
    sql("UPDATE horsies_history SET at = at - %s WHERE width = %s", [span, width])


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (
            {"UNHANDLED_ERROR": 20, "COMPLETED": 180},
            "20 tasks shop.pay failed in the last 15 minutes, of 200",
        ),
        ({"UNHANDLED_ERROR": 20, "COMPLETED": 181}, None),
        ({"UNHANDLED_ERROR": 19, "COMPLETED": 1}, None),
        (
            {"TASK_TIMEOUT": 15, "MY_CODE": 5, "RETURNED": 60, "CANCELLED": 60, "EXPIRED": 60},
            "20 tasks shop.pay",
        ),
        ({"MY_CODE": 20, "RETURNED": 60, "CANCELLED": 60, "EXPIRED": 61}, None),
        ({"UNHANDLED_ERROR": 20, "COMPLETED": 180, "RETRIED": 5_000}, "20 tasks shop.pay"),
        ({"RETURNED": 5_000}, None),
        ({"UNHANDLED_ERROR": 3}, "all 3 tasks shop.pay of the last 24 hours failed"),
        ({"UNHANDLED_ERROR": 2}, None),
        ({"UNHANDLED_ERROR": 3, "COMPLETED": 1}, None),
        ({"UNHANDLED_ERROR": 3, "RETURNED": 1}, None),
        ({"UNHANDLED_ERROR": 3, "RETRIED": 9}, "all 3 tasks"),
    ],
)
def test_status_reports_a_task_that_fails_often(told: Told, results: Any, said: str | None) -> None:
    count("shop.pay", **results)
    count("shop.other", COMPLETED=9_000)

    found = told()

    if said is None:
        assert found == []
    else:
        only(found, "FAILURES", "task shop.pay", said)


def test_failures_of_a_task_count_for_15_minutes_or_a_day(
    told: Told,
) -> None:
    """Failures of a task count for 15 minutes, or for a day if the task has no other results."""
    for queue in ("default", "mail"):
        count("shop.pay", queue=queue, UNHANDLED_ERROR=10, COMPLETED=50)
    count("shop.worse", UNHANDLED_ERROR=50, COMPLETED=50)

    assert [one["subject"] for one in told()] == ["task shop.worse", "task shop.pay"], (
        "over all queues"
    )

    earlier(16 * MINUTE, 60)
    assert told() == []

    count("shop.tidy", UNHANDLED_ERROR=3)
    earlier(16 * MINUTE, 60)
    only(told(), "FAILURES", "task shop.tidy")

    earlier(25 * HOUR, 3_600)
    assert told() == []


@pytest.mark.parametrize(
    ("results", "more", "crashes"),
    [
        ({"CRASHED": 1, "WORKER_CRASHED": 1, "POISON": 1, "COMPLETED": 900}, {}, True),
        ({"CRASHED": 2, "COMPLETED": 900}, {"WORKER_CRASHED": 9}, False),
        ({"CRASHED": 2, "TASK_TIMEOUT": 9, "COMPLETED": 900}, {}, False),
    ],
)
def test_status_reports_a_task_that_ends_three_children(
    told: Told, boss: Client, results: dict[str, int], more: dict[str, int], crashes: bool
) -> None:
    """A task that ends three children is reported by both; a task whose worker died is not."""
    count("shop.resize", **results)
    count("shop.resize", timed=False, **more)  # as the reaper counts what a dead worker held

    if crashes:
        only(told(), "CRASHES", "task shop.resize", "ended 3 child processes")

        retried = TaskFactory(task_name="shop.resize", retry_count=1)
        summaries.kept.clear()
        page = boss.get(reverse("admin:app_list", args=("horsies",))).content.decode()
        (link,) = set(re.findall(r'href="([^"]*)">These tasks<', page))
        assert str(retried.pk) in boss.get(link.replace("&amp;", "&")).content.decode(), (
            "it waits for its retry"
        )

        Task.objects.all().delete()
        earlier(16 * MINUTE, 60)

    assert told() == []


# Tasks that wait


def test_status_reports_a_partition_that_waits_at_a_limit(told: Told) -> None:
    """A partition that waits at a limit is reported by both, without its value."""
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    limit("mail", partition_by_args=["tenant"], partition_policy="continue")
    living_worker("default", "mail")

    for name in ("default", "mail"):
        TaskFactory(
            queue_name=name,
            parked=True,
            partition_key='{"tenant": "acme"}',
            sent_at=now() - 14 * MINUTE,
        )

    assert told() == []

    Task.objects.update(enqueued_at=now() - 39 * MINUTE)
    # The order of the queue "mail" is no limit.
    found = only(told(), "PARTITION_WAITS", "queue default", "waiting for 39 min")
    assert 39 * MINUTE <= age(found) < 40 * MINUTE
    assert "acme" not in json.dumps(found)

    queues.pause("default", actor="a test")
    assert told() == []


def test_the_oldest_partition_counts_in_any_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest of the partitions that are read counts, whatever its lane is."""
    for place, (lane, priority, minutes) in enumerate(
        (("async", 1, 1), ("async", 9, 5), ("sync", 5, 3))
    ):
        waiting = {
            "parked": True,
            "partition_key": str(place // 2),
            "sent_at": now() - minutes * MINUTE,
        }
        TaskFactory(lane=lane, priority=priority, **waiting)

    TaskFactory(status="RUNNING", sent_at=now() - HOUR)
    TaskFactory(queue_name="mail", sent_at=now() - HOUR)

    def waits() -> dict[str, float]:
        found = HealthStore(connection).parked_waits(["default", "mail"])
        return {name: seconds // 60 for name, seconds in found.items()}

    assert waits() == {"default": 5}
    monkeypatch.setattr("horsies_django.store.health.BOUND", 1)
    assert waits() == {"default": 1}, "of the first"


@pytest.mark.parametrize("reason", ["unknown", "known", "young", "elsewhere", "silent", "newer"])
def test_status_reports_tasks_that_no_living_worker_can_run(told: Told, reason: str) -> None:
    """Tasks that no living worker of their queue can run are reported by both."""
    living_worker("default", task_names=["shop.pay"], wire=1)
    living_worker("mail", task_names=["shop.gone"])
    if reason == "silent":
        living_worker(task_names=["shop.gone"], beat={"sent_at": now() - HOUR})

    sent_at = now() - (2 if reason == "young" else 4) * MINUTE
    name = "shop.pay" if reason in ("known", "newer") else "shop.gone"
    options = {"wire": 99} if reason == "newer" else None
    queue = "mail" if reason == "elsewhere" else "default"
    columns = {"task_name": name, "queue_name": queue, "options": options}

    TaskFactory.create_batch(2, sent_at=sent_at, **columns)
    TaskFactory(lane="async", priority=3, sent_at=sent_at + 30 * SECOND, **columns)
    TaskFactory(task_name="shop.pay", sent_at=sent_at)

    if reason in ("unknown", "silent", "newer"):
        found = only(
            told(), "UNKNOWN_TASK", f"task {name}", f"3 due tasks {name} of queue default wait"
        )
        assert 4 * MINUTE <= age(found) < 5 * MINUTE
    else:
        assert told() == []


def test_status_reports_failures_of_unknown_tasks(told: Told) -> None:
    """Fails if: idle workers fail such tasks just before their waiting would be reported."""
    count("shop.gone", WORKER_RESOLUTION_ERROR=2, COMPLETED=900)
    count("shop.pay", UNHANDLED_ERROR=2, COMPLETED=900)

    only(
        told(), "UNKNOWN_TASK", "task shop.gone", "2 tasks shop.gone failed in the last 15 minutes"
    )


def test_status_reports_an_unknown_waiting_task_only_once(told: Told) -> None:
    """An unknown task that waits and has failed before is reported once."""
    living_worker("default", task_names=["shop.pay"])
    TaskFactory(task_name="shop.gone", sent_at=now() - 4 * MINUTE)
    count("shop.gone", WORKER_RESOLUTION_ERROR=2, COMPLETED=900)

    only(told(), "UNKNOWN_TASK", "task shop.gone", "1 due task shop.gone of queue default wait")


# Schedules


Tick = Callable[[dt.datetime], None]


@pytest.fixture
def tick(connect: Connect) -> Tick:
    """Return a function that makes a scheduler run the schedule ``nightly`` at a moment.

    Afterwards no schedule is due.
    """
    conn = connect()
    scheduler = Scheduler(dt.timedelta(0))

    def at(moment: dt.datetime) -> None:
        Schedule.objects.filter(name="nightly").update(next_at=moment)
        scheduler.left.clear()
        scheduler.now = moment
        scheduler.tick(conn)
        Schedule.objects.update(next_at=now() + HOUR)

    return at


def make(name: str, since: dt.datetime, **definition: Any) -> None:
    """Make a schedule that is in force since a moment."""
    schedules.create(name, {"task": NOOP, "pattern": "every hour", **definition}, actor="a test")
    Schedule.objects.filter(pk=name).update(since=since, next_at=since)


def test_status_reports_schedules_without_a_scheduler(told: Told, settings: Any) -> None:
    """Both report schedules that no scheduler has loaded, or has no more in its code."""
    nightly = {"task": NOOP, "pattern": "daily at 04:30", "zone": "UTC"}
    settings.HORSIES = {
        **project.HORSIES,
        "SCHEDULES": {"nightly": nightly, "off": {**nightly, "enabled": False}},
    }

    said = "the code declares 1 schedule, but no scheduler has loaded them"
    found = only(told(), "NO_SCHEDULER", "schedules", said)
    assert found["since"] is None
    assert "manage.py horsies_scheduler" in found["advice"]

    schedules.declare(actor="a test")
    assert told() == []

    Schedule.objects.update(declared_at=now() - 170 * SECOND)
    assert told() == []

    Schedule.objects.update(declared_at=now() - 190 * SECOND)
    found = only(told(), "NO_SCHEDULER", "schedules", "has had them in its code for 3 min")
    assert 190 * SECOND <= age(found) < 250 * SECOND

    schedules.create("other", {"task": NOOP, "pattern": "every hour"}, actor="a test")
    Schedule.objects.filter(name="other").update(declared_at=now())
    assert codes(told()) == ["NO_SCHEDULER"], "it is none of the code"

    schedules.disable("nightly", actor="a test")
    assert told() == [], "somebody wanted it so"


def test_a_schedule_that_nobody_has_imported_counts(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule of a task counts even if its module is not imported yet.

    Fails if: no module of tasks is imported where no task is sent, and their schedules are missing.
    """
    text = (
        'from horsies_django import task\n@task(name="shop.late", schedule="every hour")\ndef '
        "late() -> None: ...\n"
    )

    (tmp_path / "late_tasks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(registry, "more_modules", lambda: ["late_tasks"])

    only(told(), "NO_SCHEDULER", "schedules", "the code declares 1 schedule,")


def test_status_reports_a_schedule_whose_last_two_tasks_failed(told: Told, tick: Tick) -> None:
    begin = (now() - 9 * HOUR).replace(minute=0, second=0, microsecond=0)
    make("nightly", begin)
    make("others", now() + HOUR)

    def fire(hour: int, status: str) -> None:
        tick(begin + hour * HOUR)
        Task.objects.filter(status="PENDING").update(
            status=status,
            error_code=None if status == "COMPLETED" else "MY_CODE",
            started_at=now() - 10 * HOUR,
            finished_at=now() - (9 - hour) * HOUR,
            claimed_by=WorkerFactory(stopped_at=now()).id,
        )

    fire(1, "FAILED")
    assert told() == [], "once is not often"

    fire(2, "COMPLETED")
    fire(3, "FAILED")
    assert told() == []

    fire(4, "EXPIRED")
    found = only(told(), "SCHEDULED_TASKS_FAIL", "schedule nightly", f"the last two tasks {NOOP}")
    assert 6 * HOUR <= age(found) < 7 * HOUR

    tick(begin + 5 * HOUR)
    living_worker("default")
    assert codes(told()) == ["SCHEDULED_TASKS_FAIL"], "the next one has not ended yet"

    fire(5, "CANCELLED")
    assert told() == []

    fire(6, "FAILED")
    fire(7, "FAILED")
    ScheduleTickFactory(task_id=None, skipped_for=Task.objects.first().pk)
    assert codes(told()) == ["SCHEDULED_TASKS_FAIL"], "one that was skipped does not count"

    Schedule.objects.update(gone_at=now())
    assert told() == []


@pytest.mark.parametrize("how", ["late", "all", "cannot", "punctual"])
def test_status_reports_missed_fire_times_for_a_day(told: Told, tick: Tick, how: str) -> None:
    """Fire times that were missed are reported by both for a day."""
    begin = (now() - 9 * HOUR).replace(minute=0, second=0, microsecond=0)
    make("nightly", begin, catch_up="all" if how == "all" else "latest")
    if how == "cannot":
        Schedule.objects.update(changes={"task": "shop.gone", "pattern": "every hour"})

    tick(begin + (1 if how in ("cannot", "punctual") else 3) * HOUR)
    living_worker("default")
    if how == "cannot":
        Schedule.objects.update(changes={"task": NOOP, "pattern": "every hour"}, error=None)

    if how in ("all", "punctual"):
        assert told() == []
    else:
        assert age(only(told(), "FIRE_TIMES_MISSED", "schedule nightly")) < MINUTE
        tick(begin + 4 * HOUR)
        assert codes(told()) == ["FIRE_TIMES_MISSED"], "the next ones do not undo it"

        Schedule.objects.update(missed_at=now() - 25 * HOUR)
        assert told() == []
        Schedule.objects.update(error="something else")
        assert codes(told()) == ["SCHEDULE_FAILS"]


# Workflows


def test_status_reports_a_run_paused_by_an_error(
    told: Told,
) -> None:
    """A run that an error paused is reported by both; a run that a person paused is not."""
    wanted = Workflow("wanted")
    flow = Workflow("order", on_error="pause")
    wanted.add(flows.number, 1)
    flow.add(flows.broken)

    assert wanted.send().pause()
    assert told() == []

    with travel(-HOUR):
        first = flow.send()
        drain(raise_errors=False)

    flow.send()
    drain(raise_errors=False)
    WorkflowRun.objects.update(sent_at=now() - 3 * HOUR)  # it failed long after it was sent

    said = f"2 runs of workflow order were paused by a failure, first {first.workflow_id}"
    found = only(told(), "RUNS_STAND_STILL", "workflow order", said)
    assert f"horsies_workflow show {first.workflow_id}" in found["advice"]
    assert HOUR <= age(found) < HOUR + MINUTE


def test_status_reports_a_failed_undo_until_its_retry(told: Told) -> None:
    """A run with a failed undo is reported by both until it is retried."""
    flow = Workflow("order")
    flow.add(flows.broken, after=flow.add(flows.charge, 1, undo=flows.broken_undo))
    handle = flow.send()
    drain(raise_errors=False)

    # The undo took an hour.
    WorkflowNode.objects.filter(finished_at__isnull=False).update(finished_at=now() - HOUR)
    WorkflowRun.objects.update(sent_at=now() - 3 * HOUR)

    said = f"1 run of workflow order was not undone completely, first {handle.workflow_id}"
    assert age(only(told(), "RUNS_STAND_STILL", "workflow order", said)) < MINUTE

    living_worker("default")
    handle.retry()
    assert told() == []


def test_status_reports_a_gate_in_the_last_tenth_of_its_timeout(told: Told) -> None:
    for name, timeout in (("contract", HOUR), ("others", None)):
        flow = Workflow(name)
        flow.add(flows.anything, flow.gate("legal", timeout=timeout))
        flow.sleep(HOUR)
        flow.send()
    drain()

    waits = WorkflowNode.objects.filter(status="WAITING")
    waits.filter(due_at__isnull=False).update(due_at=now() + 7 * MINUTE)
    assert told() == []

    waits.filter(due_at__isnull=False).update(due_at=now() + 5 * MINUTE)
    said = "1 run of workflow contract has a gate that will soon time out, the next at"
    found = only(told(), "RUNS_STAND_STILL", "workflow contract", said)
    assert 55 * MINUTE <= age(found) < 56 * MINUTE


def retention(key: str, done: dt.timedelta) -> None:
    """Record that the retention of a kind last finished so long ago."""
    Pruning.objects.create(key=key, done_at=now() - done)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (EVERYTHING.key, "finished tasks for 1 d 6 h"),
        ("keep: 86400000", "the tasks kept for 1 d"),
        ("keep: false", "the tasks with keep_result=False"),
        ("runs", "workflow runs"),
    ],
    ids=["all", "a day", "dropped", "runs"],
)
def test_status_reports_retention_that_does_not_finish(told: Told, key: str, words: str) -> None:
    living_worker("default")
    retention(key, 30 * HOUR)

    found = only(told(), "RETENTION_BEHIND", f"retention {key}", words)

    assert found["severity"] == "warning"
    assert 30 * HOUR <= age(found) < 31 * HOUR


def test_retention_that_ended_lately_is_not_behind(told: Told) -> None:
    """Retention is not reported if it finished lately or if it is in no setting."""
    living_worker("default")
    retention(EVERYTHING.key, 23 * HOUR)
    retention("only: gone 0123", 300 * HOUR)
    retention("own: 60000", 300 * HOUR)

    assert told() == []


def test_status_omits_late_retention_without_living_workers(told: Told) -> None:
    retention(EVERYTHING.key, 30 * HOUR)

    assert told() == []
