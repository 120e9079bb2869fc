"""Rows of every table with odd values in every column, written as a role with the documented grants
may write them.

The database refuses such a row, or everything works with it: passes, the reaper, workflows,
retention, status, explanations, overviews and the pages of the admin. The cases are the same in
every run.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import Error, transaction
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, explain, schedules
from horsies_django.conf import Recovery, Retention
from horsies_django.core.records import Wanted
from horsies_django.models import AuditEntry, Queue, Schedule, Task, Worker, WorkflowRun
from horsies_django.monitoring import overview
from horsies_django.monitoring.health import problems
from horsies_django.monitoring.health.state import examine
from horsies_django.monitoring.workflows import overviews
from horsies_django.worker.maintenance.pruner import Pruner
from horsies_django.worker.maintenance.reaper import OverdueWorkflows, Reaper
from horsies_django.worker.scheduler import Scheduler
from horsies_django.workflows.advancer import Advancer
from tests.apps.project import flows, tasks
from tests.conftest import Claimer, Claimers, Connect, limit, put, sql
from tests.db.conftest import register
from tests.db.test_pass import done, failed
from tests.support.factories import (
    AuditEntryFactory,
    HeartbeatFactory,
    ScheduleTickFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    WorkerStateFactory,
    living_worker,
    now,
)

TABLES = sorted(model._meta.db_table for model in apps.get_app_config("horsies").get_models())
TEXTS = ("''", "E'\\x1b[31m\\u202e'", "repeat('x', 90)", "repeat('x', 10000)")
DEEP = "[" * 3_000 + "]" * 3_000
ODD_JSON = (
    "null",
    "-1",
    "1e400",
    '""',
    "[]",
    "{}",
    "[null]",
    '{"": [1e400]}',
    '["x"]',
    DEEP,
    f'{{"a": {DEEP}}}',
)
WHOLE = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
ODD: dict[str, tuple[str, ...]] = {
    "timestamp with time zone": tuple(
        f"'{moment}'"
        for moment in (
            "-infinity",
            "infinity",
            "0001-01-01 BC",
            "9999-12-31 23:59:59+00",
            "2000-01-01",
        )
    ),
    "double precision": tuple(
        f"'{number}'" for number in ("NaN", "Infinity", "-Infinity", "1e308", "-1", "0")
    ),
    "boolean": ("true", "false"),
    "interval": ("'-1 day'", "'100000000 days'", "'0'"),
    "uuid": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "bytea": ("''", "'\\xff'"),
    "ARRAY": ("'{}'", "'{NULL}'", "'{2147483647}'", "'{-1,2147483647,2147483647}'"),
    **{name: tuple(map(str, (-most, most - 1, -1, 0, 1))) for name, most in WHOLE.items()},
    **dict.fromkeys(("text", "character varying"), TEXTS),
    **dict.fromkeys(("jsonb", "json"), tuple(f"'{value}'" for value in ODD_JSON)),
}
COLUMNS = """
SELECT c.column_name, c.data_type, coalesce(k.position, 0)
FROM information_schema.columns c
LEFT JOIN (
  SELECT a.attname, p.position
  FROM pg_index i
  CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS p (number, position)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.number
  WHERE i.indrelid = %s::regclass AND i.indisprimary
) AS k ON k.attname = c.column_name
WHERE c.table_schema = current_schema() AND c.table_name = %s
ORDER BY c.ordinal_position"""
NEW = {  # another value of a key, from the number of the row
    "uuid": "gen_random_uuid()",
    "bytea": "int8send({number})",
    "timestamp with time zone": "now() + interval '{number} seconds'",
    "character varying": "'odd {number}'",
    "text": "'odd {number}'",
    "bigint": "{number}",
    "integer": "{number}",
    "smallint": "{number}",
    "interval": "'1 second'",
}


class World:
    """A working system with rows in each table."""

    def __init__(self, worker: Claimer) -> None:
        self.worker = worker
        self.accepted = 0
        self.build()

    def build(self) -> None:
        """Write some rows of each kind."""
        limit("default")
        limit(
            "mail", partition_by_args=["to"], partition_max_concurrency=2, partition_local_limit=1
        )
        limit("orders", partition_by_task=True, partition_policy="stop")
        limit("same", partition_by_task=True, partition_policy="coalesce")

        register(self.worker)
        for columns in ({}, {"died_at": now()}, {"sent_at": now() - dt.timedelta(days=2)}):
            living_worker(beat=columns)
        HeartbeatFactory(worker_id=self.worker.id)
        WorkerFactory(stopped_at=now())
        WorkerStateFactory(worker_id=self.worker.id)
        ScheduleTickFactory()
        AuditEntryFactory()

        schedules.create(
            "nightly", {"task": tasks.noop.name, "pattern": "every second"}, actor="somebody"
        )
        self.tasks()

        flow = Workflow("flow", key="a key")
        first = flow.add(flows.plus, flow.add(flows.number, 1), b=1)
        flow.map(flows.plus, a=[1, 2], b=first)
        flow.gate("approve", timeout=60)
        flow.signal("go", key="k", timeout=60)
        flow.sleep(0)
        handle = flow.send()
        handle.signal("go", 1, key="k")

        for table, columns in {
            "send_keys": (
                "digest, task_id, arguments, sent_at) VALUES ('x', gen_random_uuid(), 'y', now()"
            ),
            "task_steps": "task_id, name, digest, result) VALUES (gen_random_uuid(), 'a', 'b', '1'",
            "waiters": "id, expires_at) VALUES (gen_random_uuid(), now() + interval '1 hour'",
            "prunings": "key, began_at, pruned_at) VALUES ('own: 1000', now(), now()",
            "lost_records": "kind, at, what, error) VALUES ('audit', now(), 'x', 'y'",
            "history": "width, at, queue, task, result, n, seconds, buckets) "
            "VALUES (60, now(), 'default', 't', '', 1, 1, array_fill(0, '{16}')",
        }.items():
            sql(f"INSERT INTO horsies_{table} ({columns}) ON CONFLICT DO NOTHING")

    def tasks(self) -> None:
        """Write tasks in every status."""
        for queue in ("mail", "orders"):
            put(queue=queue, kwargs=['{"to": 1}'])

        TaskFactory(status="RUNNING", claimed_by=self.worker.id)
        TaskFactory(status="RUNNING", sent_at=now() - dt.timedelta(days=1))
        TaskFactory(status="CLAIMED", sent_at=now() - dt.timedelta(days=1))
        TaskFactory(status="COMPLETED", sent_at=now() - dt.timedelta(days=400))

        ended = TaskFactory(status="FAILED")
        TaskAttemptFactory(task_id=ended.pk, error_code="X", error_message="m")
        TaskFactory(status="CANCELLED", error_code="MERGED", merged_into=ended.pk)
        TaskFactory(
            status="FAILED",
            queue_name="orders",
            partition_key="k",
            ordered=True,
            order_stop="stop",
            partition_version=1,
        )

    def attack(self, table: str, by: str) -> None:
        """Write each odd value of each column into a row of its own, one for each row of the table;
        skip refused values.
        """
        columns = sql(COLUMNS, [table, table])
        places = [place for (place,) in sql(f"SELECT ctid::text FROM {table} ORDER BY ctid")]
        del places[10 if table == "horsies_tasks" else 3 :]
        key = max(columns, key=lambda column: column[2])[0]
        number = 1_000

        for name, kind, _ in columns:
            for value in ("NULL", *ODD[kind if kind != "USER-DEFINED" else "text"]):
                for place in places:
                    number += 1
                    self.write(table, columns, key, place, number, name, value, by)

    def write(
        self,
        table: str,
        columns: Any,
        key: str,
        place: str,
        number: int,
        name: str,
        value: str,
        by: str,
    ) -> None:
        kinds = {column: kind for column, kind, _ in columns}
        values = {column: column for column in kinds}
        values[key] = NEW[kinds[key]].format(number=number)
        if by == "insert":
            values[name] = value

        names = ", ".join(values)
        copy = (
            f"INSERT INTO {table} ({names}) SELECT {', '.join(values.values())} FROM {table} WHERE "
            f"ctid = '{place}'"
        )

        refusal = None
        try:
            with transaction.atomic():
                sql("SET LOCAL horsies.pass = 'on'")
                if by == "insert":
                    sql(copy)
                else:
                    ((new,),) = sql(f"{copy} RETURNING ctid::text")
                    sql(f"UPDATE {table} SET {name} = {value} WHERE ctid = '{new}'")
        except Error as error:
            refusal = error.__cause__

        if refusal is None:
            self.accepted += 1
        elif isinstance(refusal, psycopg.errors.CheckViolation):
            assert re.search("The row is |Failing row contains", str(refusal)), (table, name, value)


class Observers:
    """Everything that reads the tables."""

    def __init__(self, world: World, table: str, conn: Any, client: Client) -> None:
        self.world = world
        self.table = table
        self.conn = conn
        self.client = client

    def go_on(self) -> None:
        """Run each part once, and check that a good task runs."""
        good = put(2)
        orphan = TaskFactory(status="RUNNING", sent_at=now() - dt.timedelta(days=1))
        old = TaskFactory(status="COMPLETED", sent_at=now() - dt.timedelta(days=400))

        ran = self.passes(good)
        assert ran >= set(good)

        self.maintenance()
        assert Task.objects.get(pk=orphan.pk).status == "FAILED"
        assert not Task.objects.filter(pk=old.pk).exists()

        self.reads()
        self.pages()

    def passes(self, good: list[uuid.UUID]) -> set[uuid.UUID]:
        """Run passes of every kind until nothing is claimed."""
        worker = self.world.worker
        ran = set()

        for news in (None, "default", None, None):
            passed = worker.run_pass(sync=5_000, async_=5_000, news=news)
            claims = passed.claims
            ran.update(claim.id for claim in claims)

            outcomes = [
                done(claim) if claim.id in good or index % 2 else failed(claim)
                for index, claim in enumerate(claims)
            ]
            worker.run_pass(outcomes=outcomes, expired_leases=True, news="default")

        ahead = worker.run_pass(
            wanted=Wanted(prefetch=9, lease=dt.timedelta(seconds=60))
        ).prefetched
        worker.run_pass(starts=ahead)
        worker.run_pass(releases=ahead)
        return ran

    def maintenance(self) -> None:
        """Rescue, sweep, advance, schedule and delete."""
        reaper = Reaper(
            Recovery(),
            dt.timedelta(days=1),
            ["default", "mail"],
            self.world.worker.id,
            may_declare_dead=lambda seconds: True,
        )
        reaper.request_sweep_at = 0.0
        reaper.tick(self.conn)

        overdue = OverdueWorkflows(Advancer(1_000_000))
        overdue.tick(self.conn)
        Scheduler(dt.timedelta(0)).tick(self.conn)

        pruner = Pruner(Retention())
        while pruner.tick(self.conn) is None:
            pass

    def reads(self) -> None:
        """Explain tasks, examine the system, and read the lists."""
        for id_ in Task.objects.values_list("pk", flat=True)[:40]:
            explain(id_)
        problems(examine(self.conn))

        for queue in overview.queues():
            overview.permits(queue.name)
            overview.partitions(queue.name)
            overview.keys(queue.name)
            overview.keys(queue.name, stopped=False)

        overview.schedules()
        overviews(WorkflowRun.objects.all(), 100)

    def pages(self) -> None:
        """Request the lists and the pages of single rows, more of them for the attacked table."""
        addresses = [reverse("admin:index"), reverse("admin:app_list", args=["horsies"])]

        for model in (Task, Queue, Schedule, WorkflowRun, Worker, AuditEntry):
            name = model._meta.model_name
            addresses.append(reverse(f"admin:horsies_{name}_changelist"))
            pks = [*model.objects.order_by("pk").values_list("pk", flat=True)]
            many = 8 if model._meta.db_table == self.table else 2
            for pk in pks[:: max(len(pks) // many, 1)]:
                addresses.append(reverse(f"admin:horsies_{name}_change", args=[quote(pk)]))

        for address in addresses:
            answer = self.client.get(address)
            assert answer.status_code == 200, (address, answer.status_code, answer.content[:600])


@pytest.mark.parametrize("table", TABLES)
def test_odd_values_of_a_table_stop_nothing(
    table: str,
    claimer: Claimers,
    connect: Connect,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if: a statement or a page fails because of a row that the database has accepted."""
    client.force_login(User.objects.create_superuser("boss"))
    world = World(claimer(default=100, mail=100, orders=100, same=100))

    for by in ("insert", "update"):
        world.attack(table, by)
    Observers(world, table, connect(), client).go_on()

    assert world.accepted > 0
    assert "cannot be deleted" not in caplog.text
