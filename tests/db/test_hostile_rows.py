"""Rows as any client may write them: rows that a statement could not handle are refused, and
accepted odd rows stop no others.

Arguments and results stay as they were written; conditions read them as jsonb.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import Count, F, JSONField, TextField, Value
from django.db.models.functions import Cast
from django.test import Client
from django.urls import reverse

from horsies_django import WorkflowError, explain
from horsies_django.conf import Recovery
from horsies_django.core.records import Wanted
from horsies_django.models import Task, TaskAttempt
from horsies_django.store.base import run_statement
from horsies_django.store.tasks import TaskStore
from horsies_django.testing import captured_tasks, drain
from horsies_django.worker.maintenance.reaper import Reaper
from tests.apps.project import flows
from tests.conftest import limit, put, sql
from tests.db.conftest import Claimers, Connect
from tests.db.test_pass import done
from tests.support import runs
from tests.support.factories import TaskAttemptFactory, TaskFactory
from tests.support.refusing import refused

LAST = 2**31 - 1
DEEP = '{{"x": {}{}}}'.format("[" * 3_000, "]" * 3_000)
GRACE = dt.timedelta(minutes=5)


def change(id_: uuid.UUID, **columns: Any) -> None:
    """Write columns of a task's row as they are."""
    changes = ", ".join(f"{name} = %s" for name in columns)
    sql(f"UPDATE horsies_tasks SET {changes} WHERE id = %s", [*columns.values(), id_])


END = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
MERGED = {"status": "CANCELLED", "finished_at": END, "error_code": "MERGED"}
FAILED = {"status": "FAILED", "finished_at": END, "error_code": "X"}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("options", {"options": "[]"}),
    ("options", {"options": "5"}),
    ("kwargs", {"kwargs": "[1]"}),
    ("kwargs", {"kwargs": "null"}),
    ("size", {"kwargs": f'{{"x": "{"z" * 2**26}"}}'}),
    ("partition_key", {"partition_key": "x" * 201}),
    ("numbers", {"claim_generation": -1}),
    *(
        ("numbers", {name: number})
        for name in ("retry_count", "max_retries", "snooze_count", "attempts_before")
        for number in (32_767, -1)
    ),
    *(("moments", {name: "infinity"}) for name in ("enqueued_at", "good_until", "claimed_at")),
    *(("moments", {name: "-infinity"}) for name in ("enqueued_at", "good_until", "claimed_at")),
    ("moments", {"redacted_at": "10000-01-01"}),
    ("moments", {"sent_at": "0001-06-01"}),
    ("moments", {"advanced_at": "infinity"}),
    ("sent_at", {"sent_at": "2200-01-01"}),
    *(("priority", {"priority": priority}) for priority in (0, 202, -1)),
    ("lane", {"lane": "slow"}),
    ("status", {"status": "RUNNING"}),
    ("status", {"status": "COMPLETED"}),
    ("status", {"claimed_by": uuid.uuid4()}),
    ("status", {"status": "RESTING", "error_code": "X"}),
    ("error_code", {"status": "FAILED", "finished_at": END}),
    ("error_code", {"status": "COMPLETED", "error_code": "X", "finished_at": END}),
    ("merged_into", {"merged_into": uuid.uuid4()}),
    ("merged_into", {**MERGED, "error_code": "X", "merged_into": uuid.uuid4()}),
    ("order_stop", {"order_stop": "stop"}),
    ("order_stop", {**FAILED, "order_stop": "stop"}),
    ("order_stop", {**FAILED, "ordered": True, "order_stop": "coalesce"}),
    ("order_stop", {**MERGED, "ordered": True, "order_stop": "cancel"}),
]


@pytest.mark.parametrize(("rule", "columns"), REFUSED)
def test_a_contradictory_row_violates_a_check(rule: str, columns: dict[str, Any]) -> None:
    """A row that contradicts itself, or that a statement could not handle, is refused."""
    (id_,) = put()

    with (
        pytest.raises(IntegrityError, match=f'violates "horsies_tasks_{rule}": '),
        transaction.atomic(),
    ):
        change(id_, **columns)


@pytest.mark.parametrize(("rule", "columns"), REFUSED)
def test_no_setting_turns_the_check_of_an_insert_off(rule: str, columns: dict[str, Any]) -> None:
    """Fails if: the trigger obeys, for an INSERT, the setting with which a pass turns it off."""
    put()
    sql("CREATE TEMP TABLE another AS SELECT * FROM horsies_tasks")
    changes = ", ".join(f"{name} = %s" for name in columns)

    with (
        pytest.raises(IntegrityError, match=f'violates "horsies_tasks_{rule}": '),
        transaction.atomic(),
    ):
        sql("SET LOCAL horsies.pass = 'on'")
        sql(f"UPDATE another SET id = gen_random_uuid(), {changes}", [*columns.values()])
        sql("INSERT INTO horsies_tasks SELECT * FROM another")

    sql("DROP TABLE another")


UNWRITTEN = ("options", "kwargs", "size", "priority", "lane", "sent_at")


@pytest.mark.parametrize(("rule", "columns"), [one for one in REFUSED if one[0] in UNWRITTEN])
def test_no_setting_disables_checks_of_values_no_pass_writes(
    rule: str, columns: dict[str, Any]
) -> None:
    (id_,) = put()

    with (
        pytest.raises(IntegrityError, match=f'violates "horsies_tasks_{rule}": '),
        transaction.atomic(),
    ):
        sql("SET LOCAL horsies.pass = 'on'")
        change(id_, **columns)


@pytest.mark.parametrize("time", ["-infinity", "infinity"])
@pytest.mark.parametrize("column", ["enqueued_at", "claimed_at"])
def test_a_claim_is_formed_of_an_infinite_time(column: str, time: str) -> None:
    """Fails if: the claim subtracts timestamps, which raises for infinite ones on PostgreSQL 16 and
    earlier.
    """
    put()
    sql("CREATE TEMP TABLE odd AS SELECT * FROM horsies_tasks")
    sql("UPDATE odd SET claimed_at = now()")
    sql(f"UPDATE odd SET {column} = %s", [time])

    (found,) = sql(
        "SELECT (horsies_claimed('start', row)).due_in FROM odd, "
        "jsonb_populate_record(NULL::horsies_tasks, to_jsonb(odd)) AS row"
    )

    assert found == (0,)
    sql("DROP TABLE odd")


def test_the_outcome_of_a_task_with_the_most_attempts_is_stored(claimer: Claimers) -> None:
    """Fails if: the number of its attempt exceeds the range of the column."""
    put(2, max_retries=32_766, options='{"retry": {"codes": ["C"], "intervals": [0]}}')
    Task.objects.update(attempts_before=32_766, retry_count=32_765, snooze_count=32_766)
    worker = claimer()

    for _ in range(2):
        claims = worker.run_pass(sync=2).claims
        outcomes = [done(claim, "FAILED", error_code="C", error_message="m") for claim in claims]
        assert len(worker.run_pass(outcomes=outcomes).landed) == 2

    assert set(Task.objects.values_list("status", flat=True)) == {"FAILED"}
    assert set(TaskAttempt.objects.values_list("attempt", flat=True)) == {32_767}


@pytest.mark.parametrize("codec", [None, "plain"])
def test_tasks_that_are_merged_in_a_circle_keep_nobody_waiting(codec: str | None) -> None:
    """Fails if: the search for the task that ran for them never ends."""
    first, second = put(2)
    change(first, **MERGED, merged_into=second, result='{"err": {}}', codec=codec)
    change(second, **MERGED, merged_into=first, result='{"err": {}}', codec=codec)
    store = TaskStore(connection)
    sql("SET statement_timeout = '5s'")

    assert store.find([first])[first].status == "CANCELLED"
    assert (store.with_attempts(first) is None) == (codec is None)
    sql("RESET statement_timeout")


def test_runs_continued_in_a_circle_keep_no_reader_waiting() -> None:
    """A reader of runs that continue one another in a circle gets an answer.

    Fails if: the search for the last of them never ends.
    """
    first = runs.sent()
    second = runs.sent()

    for one, other in ((first, second), (second, first)):
        sql(
            "UPDATE horsies_workflows SET status = 'COMPLETED', finished_at = now(), continued_as "
            "= %s WHERE id = %s",
            [other.workflow_id, one.workflow_id],
        )
    sql("SET statement_timeout = '5s'")

    (last,) = {handle.latest().workflow_id for handle in (first, second)}
    assert last in (first.workflow_id, second.workflow_id)
    assert not first.cancel()
    assert first.get(timeout_ms=5_000).is_err()
    sql("RESET statement_timeout")


def test_runs_inside_one_another_are_cancelled_and_retried_once() -> None:
    """Fails if: a change of the runs inside a run never ends."""
    first = runs.sent()
    second = runs.sent()

    for one, other in ((first, second), (second, first)):
        sql(
            "UPDATE horsies_workflows SET parent_id = %s WHERE id = %s",
            [other.workflow_id, one.workflow_id],
        )
    sql("SET statement_timeout = '5s'")

    assert first.pause()
    assert first.status() == second.status() == "PAUSED"
    with pytest.raises(WorkflowError, match="none of its nodes has failed"):
        first.retry()

    assert first.cancel()
    drain()
    assert first.status() == second.status() == "CANCELLED"
    sql("RESET statement_timeout")


def test_the_retry_of_a_failed_run_inside_itself_ends() -> None:
    """Fails if: the search for open runs inside it never ends."""
    first = runs.sent()
    second = runs.sent()

    for one, other in ((first, second), (second, first)):
        sql(
            "UPDATE horsies_workflows SET status = 'FAILED', parent_id = %s WHERE id = %s",
            [other.workflow_id, one.workflow_id],
        )
    sql("SET statement_timeout = '5s'")

    first.retry()

    assert first.status() == "RUNNING"
    sql("RESET statement_timeout")


@pytest.mark.parametrize(("cap", "news"), [(None, "default"), (None, None), (1, None)])
def test_tasks_of_an_odd_status_at_the_head_of_a_queue_start_too(
    claimer: Claimers, cap: int | None, news: str | None
) -> None:
    """Fails if: a pass finds the same rows again and again without claiming them, and never reaches
    the tasks behind them.
    """
    limit("default", max_concurrency=cap)
    odd = put(3)

    with transaction.atomic():
        sql("SET LOCAL horsies.pass = 'on'")
        sql("UPDATE horsies_tasks SET status = 'ODD' WHERE id = ANY (%s)", [odd])

    (good,) = put()
    worker = claimer()

    ran = []
    for _ in range(4):
        (claim,) = worker.run_pass(sync=1, news=news).claims
        worker.run_pass(outcomes=[done(claim)])
        ran.append(claim.id)

    assert ran == [*odd, good]


def test_a_task_sent_in_the_far_future_stops_no_key(claimer: Claimers) -> None:
    """Fails if: later tasks get their places after it, at a time that is invalid."""
    limit("default", partition_by_task=True, partition_policy="stop")
    (odd,) = put()
    change(odd, sent_at=sql("SELECT now() + interval '99 years'")[0][0])

    first = put()
    second = put()

    sent = Task.objects.in_bulk([*first, *second, odd])
    assert sent[first[0]].sent_at < sent[second[0]].sent_at < sent[odd].sent_at

    worker = claimer()
    for id_ in (*first, *second, odd):
        (claim,) = worker.run_pass(sync=1).claims
        assert claim.id == id_
        worker.run_pass(outcomes=[done(claim)])


def test_the_longest_key_of_a_partition_fits_into_its_indexes(claimer: Claimers) -> None:
    (id_,) = put()
    change(
        id_, partition_key="".join(chr(0x10000 + 7 * number) for number in range(200)), parked=True
    )
    change(id_, parked=False)

    assert len(claimer().run_pass(sync=1).claims) == 1


def test_a_claim_generation_at_its_maximum_blocks_no_pass(
    claimer: Claimers,
) -> None:
    """A claim generation at its maximum blocks neither a whole pass nor a short one nor a
    prefetch.
    """
    worn, before, good, shortly, ahead = put(5)
    change(before, claim_generation=LAST - 1)
    for id_ in (worn, shortly, ahead):
        change(id_, claim_generation=LAST)
    worker = claimer()

    claims = worker.run_pass(sync=3).claims
    assert {claim.id: claim.generation for claim in claims} == {worn: 1, before: LAST, good: 1}
    assert len(worker.run_pass(outcomes=[*map(done, claims)]).landed) == 3

    short = worker.run_pass(sync=1, news="default")
    prefetched = worker.run_pass(
        wanted=Wanted(prefetch=1, lease=dt.timedelta(seconds=60))
    ).prefetched

    assert short.short
    assert [(claim.id, claim.generation) for claim in short.claims + prefetched] == [
        (shortly, 1),
        (ahead, 1),
    ]


@pytest.mark.parametrize("wire", ['"x"', "null", "99999999999", "1.5", '{"a": 1}', "1e400"])
def test_a_version_that_is_no_number_of_ours_stops_no_pass(claimer: Claimers, wire: str) -> None:
    (odd,) = put(options=f'{{"wire": {wire}}}')
    (good,) = put()

    claims = claimer().run_pass(sync=2, grace=GRACE).claims

    assert good in [claim.id for claim in claims]
    assert explain(odd).reasons


POLICIES = [
    {},
    "x",
    {"intervals": 5},
    {"intervals": []},
    {"intervals": ["soon"], "strategy": "fixed"},
    {"intervals": [{}], "jitter": "perhaps"},
    {"intervals": [None], "most": "x"},
]


@pytest.mark.parametrize("policy", POLICIES, ids=map(json.dumps, POLICIES))
def test_a_task_with_an_unreadable_retry_policy_fails(claimer: Claimers, policy: Any) -> None:
    codes = {"codes": ["UNHANDLED_ERROR", "WORKER_SERIALIZATION_ERROR"]}
    retry = {**policy, **codes} if isinstance(policy, dict) else policy
    put(2, options=json.dumps({"wire": 1, "retry": retry}), max_retries=5)
    worker = claimer()

    plain, asks = worker.run_pass(sync=2).claims
    failed = {"status": "FAILED", "error_code": "UNHANDLED_ERROR", "error_message": "m"}
    assert (
        len(
            worker.run_pass(
                outcomes=[done(plain, **failed), done(asks, **failed, retry=True)]
            ).landed
        )
        == 2
    )

    assert set(Task.objects.values_list("status", "error_code")) == {("FAILED", "UNHANDLED_ERROR")}


@pytest.mark.parametrize("most", ["1e400", "-5", "9" * 1_000])
def test_a_pause_beyond_all_bounds_is_brought_within_ours(claimer: Claimers, most: str) -> None:
    pauses = '{{"codes": ["C"], "strategy": "exponential", "intervals": [{}], "most": {}}}'.format(
        "9" * 100_000, most
    )
    put(options=f'{{"retry": {pauses}}}', max_retries=5)

    worker = claimer()
    (claim,) = worker.run_pass(sync=1).claims
    worker.run_pass(outcomes=[done(claim, "FAILED", error_code="C", error_message="m")])

    task = Task.objects.get()
    assert (task.status, task.next_retry_at is None) == ("PENDING", False)
    assert task.next_retry_at <= task.sent_at + dt.timedelta(days=31)


@pytest.fixture
def rescue(connect: Connect) -> Callable[[], None]:
    """Return a function that runs one round of a reaper."""
    reaper = Reaper(
        Recovery(), None, ["default"], uuid.uuid4(), may_declare_dead=lambda seconds: False
    )
    conn = connect()
    return lambda: reaper.rescue(conn)


def orphan(**columns: Any) -> Task:
    """Make a task of a worker that is gone."""
    columns = {"sent_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "status": "RUNNING", **columns}
    return TaskFactory(**columns)  # type: ignore[no-any-return]


def test_a_row_that_cannot_be_rescued_fails_alone(rescue: Callable[[], None]) -> None:
    limit("default", partition_by_task=True, partition_policy="stop")
    attempted = orphan()
    worker = uuid.uuid4()
    TaskAttemptFactory(task_id=attempted.pk)
    together = orphan(claimed_by=attempted.claimed_by)

    others = [
        orphan(started_at=None),
        orphan(claimed_at=None, started_at=None),
        orphan(claimed_by=worker),
    ]

    policy = {"retry": {"codes": ["WORKER_CRASHED"], "intervals": "x"}}
    others.append(orphan(options=policy, max_retries=3, claimed_by=worker))

    rescue()

    assert set(Task.objects.values_list("status", "error_code")) == {("FAILED", "WORKER_CRASHED")}
    failed = Task.objects.get(pk=attempted.pk)
    assert (
        failed.result["err"]["message"].count("its attempt could not be written"),
        failed.order_stop,
    ) == (1, "stop")

    written = TaskAttempt.objects.filter(outcome="WORKER_FAILURE").values_list("task_id", flat=True)
    assert set(written) == {task.pk for task in (together, *others)}


def test_a_row_that_cannot_be_rescued_is_logged_once(
    rescue: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A row that cannot even be failed is logged once, and the other rows are rescued."""
    stuck = orphan()
    good = orphan(claimed_by=stuck.claimed_by)

    with (
        refused("horsies_tasks", f"new.id = '{stuck.pk}'"),
        caplog.at_level(logging.ERROR, "horsies"),
    ):
        rescue()
        rescue()

    assert Task.objects.get(pk=good.pk).error_code == "WORKER_CRASHED"
    assert Task.objects.get(pk=stuck.pk).status == "RUNNING"
    assert caplog.text.count(f"{stuck.pk} (attempt 1) of a dead worker cannot be rescued") == 1


def test_the_admin_shows_rows_with_json_that_python_cannot_read(client: Client) -> None:
    """The admin lists and shows rows whose JSON Python cannot read."""
    client.force_login(User.objects.create_superuser("boss"))
    deep, digits = put(2)
    change(deep, options=DEEP, kwargs=DEEP)
    change(digits, options='{"timeout_ms": %s}' % ("9" * 5_000))

    assert client.get(reverse("admin:horsies_task_changelist")).status_code == 200

    for id_, shown in ((deep, "[[[["), (digits, "99999")):
        page = client.get(reverse("admin:horsies_task_change", args=[id_]))
        assert page.status_code == 200
        assert shown in page.content.decode() or "nested too deep" in page.content.decode()


KEYS = {"zebra": 1, "ant": {"b": 2, "a": 3}, "b": [1e16, -0.0, 1e300, 2.0, 2**70]}
TEXT = json.dumps(KEYS)
UNREADABLE = {"NUL": '"\\u0000"', "surrogate": '"\\ud800"', "huge": "1" + "0" * 140_000}  # by jsonb


def texts() -> list[Any]:
    return sql("SELECT kwargs::text, result::text FROM horsies_tasks ORDER BY id")


def test_keys_keep_their_order_from_the_send_to_the_result() -> None:
    """Keys keep their order, and floats stay floats, from the send to the result."""
    with captured_tasks() as sent:
        handle = flows.anything.send(KEYS)
    drain()
    task = Task.objects.get()

    assert repr((handle.get(0).ok_value, sent[0].kwargs)) == repr((KEYS, {"value": KEYS}))
    assert repr((task.kwargs, task.result)) == repr(({"value": KEYS}, {"ok": KEYS}))
    assert repr(Task.objects.values_list("kwargs", "result").get()) == repr(
        (task.kwargs, task.result)
    )


def test_what_a_copy_and_the_orm_write_stays_as_it_is_too() -> None:
    (id_,) = put(kwargs=[TEXT])
    Task.objects.update(
        status="FAILED", finished_at="2027-01-01 00:00Z", error_code="X", result=KEYS
    )

    assert run_statement(connection, "horsies_copy", {"id": id_, "new": uuid.uuid4()})[0][2]
    assert sorted(texts(), key=str) == [(TEXT, TEXT), (TEXT, None)]

    task = Task.objects.get(pk=id_)
    Task.objects.all().delete()
    Task.objects.bulk_create([task])
    assert texts() == [(TEXT, TEXT)]


LOOKUPS: dict[str, dict[str, Any]] = {
    "key": {"kwargs__customer_id": 42},
    "inner key": {"kwargs__order__lines__0": "x"},
    "text of a key": {"kwargs__name__startswith": "An"},
    "contains": {"kwargs__contains": {"order": {"lines": ["x"]}}},
    "has a key": {"kwargs__has_key": "order"},
    "all of it": {"kwargs": {"order": {"lines": ["x"]}, "name": "Ann", "customer_id": 42}},
    "result": {"result__ok": 1},
    "no such key": {"kwargs__other__isnull": True},
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_lookups_work_as_on_any_field_of_json(lookup: dict[str, Any]) -> None:
    (right,) = put(kwargs=['{"name": "Ann", "order": {"lines": ["x"]}, "customer_id": 42}'])
    Task.objects.update(result={"ok": 1})
    put(kwargs=['{"name": "Bob", "customer_id": 7, "other": null, "more": 1}'])

    assert [task.pk for task in Task.objects.filter(**lookup)] == [right]


def test_queries_can_name_columns_in_place_of_json_fields() -> None:
    """Queries can name the columns wherever a JSON field can stand."""
    put(2, kwargs=['{"b": 2, "a": 1}', '{"a": 1, "b": 2}'])
    rows = Task.objects.all()
    calls = [{"b": 2, "a": 1}, {"a": 1, "b": 2}]

    assert list(rows.values_list("kwargs__a", "kwargs__b").distinct()) == [(1, 2)]
    assert [task.kwargs for task in rows.order_by("kwargs", "id").distinct()] == calls
    assert list(rows.annotate(given=F("kwargs")).values_list("given", flat=True)) == calls
    assert {row["many"] for row in rows.values("kwargs").annotate(many=Count("id"))} == {1}
    assert (
        rows.annotate(text=Cast("kwargs", TextField())).filter(text='{"a": 1, "b": 2}').count() == 2
    )

    assert rows.update(result=F("kwargs")) == 2
    assert rows.filter(result=F("kwargs")).count() == 2
    assert rows.update(result=Value(None, JSONField())) == 2
    assert [task.result for task in rows.union(rows)] == [None, None]

    raw = Task.objects.raw("SELECT * FROM horsies_tasks ORDER BY id")
    assert [list(task.kwargs) for task in raw] == [["b", "a"], ["a", "b"]]
    assert rows.defer("kwargs").first().kwargs == calls[0]


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("column", ["kwargs", "result"])
def test_what_jsonb_cannot_read_is_refused_when_it_is_written(column: str, value: str) -> None:
    """Fails if: the column of type json accepts it, and then every pass that computes its partition
    fails.
    """
    with pytest.raises(DataError), transaction.atomic():
        put(kwargs=[f'{{"a": {value}}}'])

    (id_,) = put()
    with connection.cursor() as cursor:
        for key in ("status = 'RUNNING', claimed_by = id", "parked = false"):
            update = f"UPDATE horsies_tasks SET {key}"
            with pytest.raises(DataError), transaction.atomic():
                cursor.execute(f"{update}, {column} = %s WHERE id = %s", [f'{{"a": {value}}}', id_])
            cursor.execute(f"{update} WHERE id = %s", [id_])


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_a_result_that_jsonb_cannot_read_fails_its_pass(claimer: Claimers, value: str) -> None:
    put(2)
    worker = claimer()
    good, bad = worker.run_pass(sync=2).claims

    with pytest.raises(psycopg.DataError, match=r"(?i)unicode|value overflows numeric"):
        worker.run_pass(outcomes=[done(good), done(bad)._replace(result=f'{{"ok": {value}}}')])

    assert set(Task.objects.values_list("status", flat=True)) == {"RUNNING"}


@pytest.mark.parametrize("rule", [["a"], []], ids=["one", "all"])
def test_calls_with_keys_in_another_order_share_a_partition(
    rule: list[str],
) -> None:
    """Calls that differ only in the order of their keys share a partition."""
    limit("mail", partition_by_args=rule, partition_max_concurrency=1)
    put(
        2,
        queue="mail",
        kwargs=['{"b": 1, "a": {"y": 1e2, "x": 1}}', '{"a": {"x": 1, "y": 100}, "b": 1}'],
    )

    assert Task.objects.values("partition_key").distinct().count() == 1
