"""The cost of the admin's pages does not depend on the number of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Workflow, schedules
from horsies_django.admin.base import readonly
from horsies_django.admin.tasks import sections
from horsies_django.core.status import Status
from horsies_django.models import Queue
from horsies_django.store import overviews
from tests.apps.project import flows, tasks
from tests.conftest import Connect, limit, sql
from tests.desk.test_admin import TASKS, body, listed, says
from tests.desk.test_admin_overview import counted
from tests.support.factories import (
    HeartbeatFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    now,
)
from tests.support.runs import sent

pytestmark = pytest.mark.django_db

PAYLOAD = ("kwargs", "options", "result", "partition_key")
FILTERS = [{}, {"queue": "mail"}, {"q": "shop."}, *({"status": status.value} for status in Status)]

INDEX = {
    "PENDING": {"horsies_tasks_claim", "horsies_tasks_parked"},
    "CLAIMED": {"horsies_tasks_holding"},
    "RUNNING": {"horsies_tasks_holding"},
    "COMPLETED": {"horsies_tasks_finished"},
    **dict.fromkeys(("FAILED", "CANCELLED", "EXPIRED"), {"horsies_tasks_unsuccessful"}),
}


def queries(client: Client, address: str, **query: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address, query).status_code == 200
    return [item["sql"] for item in captured.captured_queries]


def about_tasks(ran: list[str]) -> list[str]:
    return [text for text in ran if 'FROM "horsies_tasks"' in text]


def test_a_list_costs_the_same_queries_for_many_rows_as_for_one(
    boss: Client,
) -> None:
    """A list needs the same few queries for many rows as for one, and loads no payload."""

    def fill_up(count: int) -> None:
        for status in Status:
            for worker in WorkerFactory.create_batch(count):
                claimed_by = None if status is Status.PENDING else worker.pk
                TaskFactory(status=status.value, queue_name="mail", claimed_by=claimed_by)

    def cost(query: dict[str, str]) -> int:
        ran = queries(boss, reverse(TASKS), **query)
        assert about_tasks(ran)

        for text in about_tasks(ran):
            assert "count(" not in text.lower()
            assert "distinct" not in text.lower()
            assert "LIMIT" in text
            assert not [
                column for column in PAYLOAD if f'"{column}"' in text.partition(" FROM ")[0]
            ]

        return len(ran)

    fill_up(1)
    few = [cost(query) for query in FILTERS]
    assert max(few) <= 11

    fill_up(52)
    assert [cost(query) for query in FILTERS] == few


READ = (
    "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_all_tables WHERE "
    "relname = ANY (%s)"
)


def rows_read(client: Client, address: str, *tables: str) -> int:
    """Return how many rows of tables, by default of ``horsies_tasks``, a page read.

    The transaction of the test counts them.
    """
    names = [list(tables or ["horsies_tasks"])]
    ((before,),) = sql(READ, names)
    assert client.get(address).status_code == 200
    ((after,),) = sql(READ, names)
    return int(after - before)


def test_pages_count_tasks_in_flight_or_up_to_a_bound(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 100
    monkeypatch.setattr(overviews, "PENDING_BOUND", bound)
    fill(pending=1_000, finished=1_000)
    # As autovacuum does: statistics that earlier tests left may mislead the planner.
    sql("ANALYZE horsies_tasks")

    worker = WorkerFactory()
    HeartbeatFactory(worker_id=worker.pk)
    task = TaskFactory(status="RUNNING", claimed_by=worker.pk)
    TaskAttemptFactory(task_id=task.pk)

    pages = [reverse("admin:index"), reverse("admin:app_list", args=("horsies",))]
    for row in (task, worker, Queue.objects.get(name="bulk")):
        name = row._meta.model_name
        pages += [
            reverse(f"admin:horsies_{name}_changelist"),
            reverse(f"admin:horsies_{name}_change", args=(row.pk,)),
        ]

    read = {page: rows_read(boss, page) for page in pages}

    # The tasks of each queue and of the cluster are counted.
    assert {page: count for page, count in read.items() if count > 4 * (bound + 1)} == {}

    queues = reverse("admin:horsies_queue_changelist")
    assert read[queues] > bound, "it does count"
    assert f"{bound}+" in boss.get(queues).content.decode()


def plan_of(query: str) -> list[str]:
    """Return the indexes and tables that a statement reads, as its plan lists them."""
    sql("SELECT set_config('enable_seqscan', 'off', true)")
    ((found,),) = sql(f"EXPLAIN (FORMAT JSON) {query.replace('%', '%%')}")
    plan = json.loads(found) if isinstance(found, str) else found

    def walk(node: dict[str, Any]) -> Iterator[str]:
        if node["Node Type"].endswith("Scan") and "Index Name" in node:
            yield node["Index Name"]
        elif "Relation Name" in node and "Bitmap" not in node["Node Type"]:
            yield f"all of {node['Relation Name']}"

        for child in node.get("Plans", ()):
            yield from walk(child)

    return list(walk(plan[0]["Plan"]))


def fill(pending: int = 0, finished: int = 0) -> None:
    sql(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, lane, kwargs, status, finished_at, "
        "claimed_by, sent_at)"
        " SELECT lpad(to_hex(n), 32, '0')::uuid, 'shop.noise', 'bulk', 'sync', '{}',"
        "  CASE WHEN n <= %(finished)s THEN 'COMPLETED' ELSE 'PENDING' END,"
        "  CASE WHEN n <= %(finished)s THEN now() - interval '1 day' + n * interval '1 ms' END,"
        "  CASE WHEN n <= %(finished)s THEN gen_random_uuid() END, now() - interval '1 day' + n * "
        "interval '1 ms'"
        " FROM generate_series(1, %(all)s) AS n",
        {"finished": finished, "all": finished + pending},
    )


@pytest.mark.parametrize(
    "statistics", ["none", "of an empty table", "of a backlog", "of a history", "true"]
)
def test_a_rare_status_is_read_through_its_index(boss: Client, statistics: str) -> None:
    """A rare status is read through its index, whatever the statistics are."""
    if statistics == "of an empty table":
        sql("ANALYZE horsies_tasks")
    if statistics == "of a backlog":
        fill(pending=5_000)
        sql("ANALYZE horsies_tasks")
        sql("DELETE FROM horsies_tasks")

    fill(finished=5_000)
    if statistics == "of a history":
        sql("ANALYZE horsies_tasks")

    rare = {status: TaskFactory(status=status) for status in INDEX}
    if statistics == "true":
        sql("ANALYZE horsies_tasks")

    for status, indexes in INDEX.items():
        assert rare[status].pk in listed(boss, status=status)
        for text in about_tasks(queries(boss, reverse(TASKS), status=status)):
            assert set(plan_of(text)) == indexes, text


def test_the_newest_tasks_are_read_down_the_primary_key(boss: Client) -> None:
    fill(finished=5_000)
    sql("ANALYZE horsies_tasks")

    for query in ({}, {"queue": "mail"}, {"q": "shop.wanted"}):
        for text in about_tasks(queries(boss, reverse(TASKS), **query)):
            assert set(plan_of(text)) == {"horsies_tasks_pkey"}, text


def test_waiting_tasks_are_listed_in_the_order_of_their_start(
    boss: Client,
) -> None:
    """Waiting tasks are listed in the order in which they will start; parked tasks are last.

    Fails if: all of 200,000 waiting tasks are read and sorted for a page of fifty.
    """
    moment = now()
    kinds: list[dict[str, Any]] = [
        {"parked": True, "partition_key": "x"},
        {"priority": 150},
        {},
        {"priority": 1},
    ]

    parked, late, usual, first = (
        TaskFactory(queue_name="mail", sent_at=moment, **kind).pk for kind in kinds
    )
    bulk = TaskFactory(queue_name="bulk").pk

    assert listed(boss, status="PENDING") == [bulk, first, usual, late, parked]
    assert listed(boss, status="PENDING", queue="mail") == [first, usual, late, parked]

    fill(pending=5_000)
    assert rows_read(boss, f"{reverse(TASKS)}?status=PENDING") < 200


def test_a_list_that_times_out_restores_the_session_settings(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "STATEMENT_TIMEOUT_MS", 1)
    fill(finished=50_000)
    held = "SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')"
    before = sql(held)

    assert "took longer than three seconds and was not loaded" in body(
        boss, reverse(TASKS), q="shop.no_such_task"
    )
    assert sql(held) == before
    assert boss.get(reverse("admin:horsies_queue_changelist")).status_code == 200


COUNTS = "The counts are missing, because counting took longer than three seconds."
SLOW = {  # a page, the table that is locked, and the texts on the page
    "queue_changelist": ("tasks", [COUNTS]),
    "queue_change": (
        "tasks",
        [COUNTS, "Reading this took longer than three seconds and was stopped."],
    ),
    "task_change": (
        "workers",
        ["Finding the reasons took longer than a second", "still here", "horsies-reasons"],
    ),
    "task_failures": ("history", ["took longer than three seconds"]),
    "workflowrun_changelist": (
        "workflow_nodes",
        ["took longer than three seconds and was not loaded"],
    ),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", SLOW)
def test_a_part_that_times_out_is_left_out_with_a_message(
    boss: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """A part that takes too long to read is left out of the page, which shows a message.

    Fails if: a page of the queues cannot be opened while a table is locked; or a list appears to be
    empty.
    """
    monkeypatch.setattr(readonly, "STATEMENT_TIMEOUT_MS", 100)
    monkeypatch.setattr(sections, "PATIENCE_MS", 100)
    task = TaskFactory(queue_name="mail", kwargs={"note": "still here"})
    row = {"queue_change": ["mail"], "task_change": [task.pk]}.get(page)
    address = reverse(f"admin:horsies_{page}", args=row)
    (table, said) = SLOW[page]
    keeper = connect()

    with keeper.transaction():
        keeper.execute(f"LOCK TABLE horsies_{table} IN ACCESS EXCLUSIVE MODE".encode())
        html = body(boss, address, **{"needs": "1"} if "workflowrun" in page else {})

    says(html, *said)
    assert "Nothing to show" not in html


MOST = {  # the greatest number of queries of each page
    reverse("admin:horsies_queue_changelist"): 13,
    reverse("admin:horsies_schedule_changelist"): 14,
    reverse("admin:horsies_workflowrun_changelist"): 18,
    reverse("admin:horsies_task_failures") + "?task=shop.pay&code=OH_NO": 14,
    "change": 30,  # of a run
    "picture": 25,
}


def test_pages_cost_the_same_few_queries_for_many_rows(boss: Client) -> None:
    """Pages need the same few queries for many rows as for few."""

    def make(many: int) -> dict[str, int]:
        for number in range(many):
            name = f"{number} of {many}, {Queue.objects.count()}"
            limit(name, partition_by_task=True, partition_max_concurrency=1)
            sent()
            schedules.create(
                name, {"task": tasks.noop.name, "pattern": "daily at 04:30"}, actor="ada"
            )
            task = TaskFactory(status="FAILED", error_code="OH_NO", task_name="shop.pay")
            ScheduleTickFactory(schedule_name=name, task_id=task.pk)
            TaskAttemptFactory(task_id=task.pk, error_code="OH_NO", exception_class=name, site=name)
            counted((name, name, "OH_NO", 1))

        child = Workflow(f"child {many}")
        flow = Workflow("wide")
        child.add(flows.number, 1)
        flow.add(flows.total, [flow.add(flows.number, n) for n in range(many)])
        flow.map(flows.plus, a=list(range(many)))
        flow.add(child)
        run = flow.send().workflow_id

        of_run = {
            page: reverse(f"admin:horsies_workflowrun_{page}", args=(run,))
            for page in ("change", "picture")
        }

        return {page: len(queries(boss, of_run.get(page, page))) for page in MOST}

    make(2)  # the first page of a process reads more
    few = make(2)

    assert {page: cost for page, cost in few.items() if cost > MOST[page]} == {}
    assert make(20) == few


def test_an_error_that_is_no_timeout_is_not_hidden() -> None:
    def fail() -> None:
        sql("DO $$ BEGIN RAISE EXCEPTION 'out of it' USING ERRCODE = '57P03'; END $$")

    with pytest.raises(OperationalError, match="out of it"), transaction.atomic():
        readonly.read_bounded("default", fail)
