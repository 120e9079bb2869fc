"""Arguments and results stay as they were written, and are read by conditions as jsonb."""

from __future__ import annotations

import json
import uuid
from typing import Any

import psycopg
import pytest
from django.db import DataError, connection, transaction
from django.db.models import Count, F, JSONField, TextField, Value
from django.db.models.functions import Cast

from horsies_django.models import Task
from horsies_django.store.base import run
from horsies_django.testing import captured_tasks, drain
from tests.apps.project import flows
from tests.conftest import limit, put, sql
from tests.db.conftest import Claimers
from tests.db.test_pass import done

pytestmark = pytest.mark.django_db

KEYS = {"zebra": 1, "ant": {"b": 2, "a": 3}, "b": [1e16, -0.0, 1e300, 2.0, 2**70]}
TEXT = json.dumps(KEYS)
UNREADABLE = {"NUL": '"\\u0000"', "surrogate": '"\\ud800"', "huge": "1" + "0" * 140_000}  # by jsonb


def texts() -> list[Any]:
    return sql("SELECT kwargs::text, result::text FROM horsies_tasks ORDER BY id")


def test_keys_keep_their_order_and_floats_stay_floats_from_the_send_to_the_result() -> None:
    with captured_tasks() as sent:
        handle = flows.anything.send(KEYS)
    drain()
    task = Task.objects.get()
    assert repr((handle.get(0).ok_value, sent[0].kwargs)) == repr((KEYS, {"value": KEYS}))
    assert repr((task.kwargs, task.result)) == repr(({"value": KEYS}, {"ok": KEYS}))
    assert repr(Task.objects.values_list("kwargs", "result").get()) == repr((task.kwargs, task.result))


def test_what_a_copy_and_the_orm_write_stays_as_it_is_too() -> None:
    (id_,) = put(kwargs=[TEXT])
    Task.objects.update(status="FAILED", finished_at="2027-01-01 00:00Z", error_code="X", result=KEYS)
    assert run(connection, "horsies_copy", {"id": id_, "new": uuid.uuid4()})[0][2]
    assert sorted(texts(), key=str) == [(TEXT, TEXT), (TEXT, None)]
    task = Task.objects.get(pk=id_)
    Task.objects.all().delete()
    Task.objects.bulk_create([task])
    assert texts() == [(TEXT, TEXT)]


LOOKUPS: dict[str, dict[str, Any]] = {
    "key": {"kwargs__customer_id": 42},
    "inner key": {"kwargs__order__lines__0": "x"},
    "text of a key": {"kwargs__name__startswith": "An"},
    "number": {"kwargs__customer_id__gt": 41},
    "one of": {"kwargs__customer_id__in": [1, 42]},
    "contains": {"kwargs__contains": {"order": {"lines": ["x"]}}},
    "contained": {"kwargs__contained_by": {"customer_id": 42, "name": "Ann", "order": {"lines": ["x"]}, "b": 1}},
    "has a key": {"kwargs__has_key": "order"},
    "has keys": {"kwargs__has_keys": ["name", "order"]},
    "all of it": {"kwargs": {"order": {"lines": ["x"]}, "name": "Ann", "customer_id": 42}},
    "result": {"result__ok": 1},
    "null": {"result__isnull": False},
    "no such key": {"kwargs__other__isnull": True},
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_lookups_work_as_on_any_field_of_json(lookup: dict[str, Any]) -> None:
    (right,) = put(kwargs=['{"name": "Ann", "order": {"lines": ["x"]}, "customer_id": 42}'])
    Task.objects.update(result={"ok": 1})
    put(kwargs=['{"name": "Bob", "customer_id": 7, "other": null, "more": 1}'])
    assert [task.pk for task in Task.objects.filter(**lookup)] == [right]


def test_queries_can_name_the_columns_wherever_a_field_of_json_can_stand() -> None:
    put(2, kwargs=['{"b": 2, "a": 1}', '{"a": 1, "b": 2}'])
    rows, calls = Task.objects.all(), [{"b": 2, "a": 1}, {"a": 1, "b": 2}]
    assert list(rows.values_list("kwargs__a", "kwargs__b").distinct()) == [(1, 2)]
    assert [task.kwargs for task in rows.order_by("kwargs", "id").distinct()] == calls
    assert list(rows.annotate(given=F("kwargs")).values_list("given", flat=True)) == calls
    assert {row["many"] for row in rows.values("kwargs").annotate(many=Count("id"))} == {1}
    assert rows.annotate(text=Cast("kwargs", TextField())).filter(text='{"a": 1, "b": 2}').count() == 2
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
    """Naive: json takes it, and the first pass that looks for its partition fails, and every pass after it."""
    with pytest.raises(DataError), transaction.atomic():
        put(kwargs=[f'{{"a": {value}}}'])
    (id_,) = put()
    with connection.cursor() as cursor:
        for key in ("status = 'RUNNING', claimed_by = id", "parked = false"):
            with pytest.raises(DataError), transaction.atomic():
                cursor.execute(
                    f"UPDATE horsies_tasks SET {key}, {column} = %s WHERE id = %s", [f'{{"a": {value}}}', id_]
                )
            cursor.execute(f"UPDATE horsies_tasks SET {key} WHERE id = %s", [id_])


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_a_result_that_jsonb_cannot_read_fails_its_pass(claimer: Claimers, transactional_db: None, value: str) -> None:
    put(2)
    worker = claimer()
    good, bad = worker.run_pass(sync=2).claims
    with pytest.raises(psycopg.DataError, match=r"(?i)unicode|value overflows numeric"):
        worker.run_pass(outcomes=[done(good), done(bad)._replace(result=f'{{"ok": {value}}}')])
    assert set(Task.objects.values_list("status", flat=True)) == {"RUNNING"}


@pytest.mark.parametrize("rule", [["a"], []], ids=["one", "all"])
def test_calls_that_differ_only_in_the_order_of_their_keys_are_of_one_partition(rule: list[str]) -> None:
    limit("mail", partition_by_args=rule, partition_max_concurrency=1)
    put(2, queue="mail", kwargs=['{"b": 1, "a": {"y": 1e2, "x": 1}}', '{"a": {"x": 1, "y": 100}, "b": 1}'])
    assert Task.objects.values("partition_key").distinct().count() == 1
