"""The schema: it goes forward and back, and holds what must always hold."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import Tags, run_checks
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from horsies_django.checks import check_schema
from horsies_django.models import Queue, Task, TaskAttempt
from tests.conftest import put

pytestmark = pytest.mark.django_db(transaction=True)


TABLES = {model._meta.db_table for model in apps.get_app_config("horsies").get_models()}


def ours() -> set[str]:
    """Return the names of all tables, functions and triggers of the app."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'horsies%%' AND relkind = 'r' UNION "
            "SELECT proname FROM pg_proc WHERE proname LIKE 'horsies%%' UNION "
            "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'horsies%%'"
        )
        return {row[0] for row in cursor.fetchall()}


def test_migrations_run_back_to_zero_and_forward_again() -> None:
    before = ours()
    assert len(before) > 10
    try:
        call_command("migrate", "horsies", "zero", verbosity=0)
        assert ours() == set()
    finally:
        call_command("migrate", "horsies", verbosity=0)
    assert ours() == before


def test_a_database_migrated_back_to_its_tables_goes_forward_again() -> None:
    before = ours()
    try:
        call_command("migrate", "horsies", "0001", verbosity=0)
        assert ours() == TABLES
    finally:
        call_command("migrate", "horsies", verbosity=0)
    assert ours() == before


def test_the_models_need_no_further_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_no_number_of_rows_can_run_out() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT data_type::text FROM pg_sequences WHERE sequencename LIKE 'horsies%%'")
        assert cursor.fetchall() == [("bigint",)]


@pytest.mark.parametrize("priority", [0, 202, -1])
def test_a_priority_outside_1_to_201_is_refused(priority: int) -> None:
    with pytest.raises(IntegrityError, match="horsies_tasks_priority"):
        put(priority=priority)


def test_a_lane_that_no_worker_serves_is_refused() -> None:
    with pytest.raises(IntegrityError, match="horsies_tasks_lane"):
        put(lane="slow")


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "RUNNING"},
        {"status": "COMPLETED"},
        {"status": "PENDING", "claimed_by": uuid.uuid4()},
        {"status": "RESTING", "error_code": "X"},
        {"claimed_by": uuid.uuid4()},
    ],
)
def test_a_status_that_contradicts_owner_and_end_is_refused(columns: dict[str, Any]) -> None:
    (id_,) = put()
    with pytest.raises(IntegrityError, match="horsies_tasks_status"), transaction.atomic():
        Task.objects.filter(pk=id_).update(**columns)


def test_an_end_without_success_has_an_error_code_and_a_success_has_none() -> None:
    now = timezone.now()
    for columns in ({"status": "FAILED"}, {"status": "COMPLETED", "error_code": "X"}):
        (id_,) = put()
        with pytest.raises(IntegrityError, match="horsies_tasks_error_code"), transaction.atomic():
            Task.objects.filter(pk=id_).update(finished_at=now, **columns)


@pytest.mark.parametrize("model", [Task, TaskAttempt])
def test_save_and_delete_refuse_on_rows_that_only_statements_write(model: type[Task]) -> None:
    with pytest.raises(TypeError, match=r"never through save\(\)"):
        model().save()
    with pytest.raises(TypeError, match=r"never through delete\(\)"):
        model().delete()


def test_the_declared_queues_are_rows_after_migrate() -> None:
    rows = dict(Queue.objects.values_list("name", "priority"))
    assert rows == {"*": 100, "default": 100, "mail": 1, "bulk": 50, "twin": 50}


def test_every_constraint_and_index_has_a_name_of_ours() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "WHERE c.relname LIKE 'horsies%%' AND NOT i.indisprimary"
        )
        names = {row[0] for row in cursor.fetchall()}
    assert {name for name in names if not name.endswith("_like")} == {
        "horsies_tasks_claim",
        "horsies_tasks_copies",
        "horsies_audit_subject",
        "horsies_schedule_ticks_sent",
        "horsies_schedules_next",
        "horsies_tasks_deadline",
        "horsies_tasks_holding",
        "horsies_tasks_parked",
        "horsies_tasks_finished",
        "horsies_tasks_unsuccessful",
        "horsies_workers_started",
        "horsies_worker_states_worker",
        "horsies_heartbeats_parents",
        "horsies_heartbeats_worker",
        "horsies_tasks_node",
        "horsies_tasks_unadvanced",
        "horsies_workflow_edges_down",
        "horsies_workflow_nodes_added",
        "horsies_workflow_nodes_grown",
        "horsies_workflow_nodes_due",
        "horsies_workflow_nodes_name",
        "horsies_workflow_nodes_open",
        "horsies_workflow_nodes_signal",
        "horsies_workflow_nodes_waits",
        "horsies_signals_keyed",
        "horsies_signals_run",
        "horsies_signals_unseen",
        "horsies_signals_unused",
        "horsies_workflows_finished",
        "horsies_workflows_key",
        "horsies_workflows_name",
        "horsies_workflows_owed",
        "horsies_workflows_parent",
        "horsies_workflows_sent",
        "horsies_workflows_unfinished",
        "horsies_workflows_untold",
    }


@pytest.mark.parametrize("schema", ["public", "queue"])
def test_a_schema_in_which_every_role_may_create_functions_is_a_warning(schema: str) -> None:
    """Naive: PostgreSQL up to 14 grants that, and any role can have the workers call its own function."""
    with transaction.atomic(), connection.cursor() as cursor:
        if schema != "public":
            cursor.execute(
                "CREATE SCHEMA queue; ALTER TABLE horsies_tasks SET SCHEMA queue; SET LOCAL search_path = public, queue"
            )
        cursor.execute(f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")
        assert check_schema(databases=["default"]) == []
        cursor.execute(f"GRANT CREATE ON SCHEMA {schema} TO PUBLIC")
        (message,) = run_checks(tags=[Tags.database], databases=["default"])
        assert (message.id, f"the schema '{schema}'" in message.msg) == ("horsies.W006", True)
        assert check_schema() == check_schema(databases=["other"]) == []
        assert message.hint is not None
        cursor.execute(message.hint.partition(": ")[2])
        assert run_checks(tags=[Tags.database], databases=["default"]) == []
        transaction.set_rollback(True)
