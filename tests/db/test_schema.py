"""The schema: it goes forward and back, and holds what must always hold.

It comes out the same however it is made: over leftovers, without migrations, printed, in a schema of a tenant.
"""

from __future__ import annotations

import datetime as dt
import io
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import Tags, run_checks
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django.checks import check_schema
from horsies_django.models import Queue, Task, TaskAttempt
from horsies_django.testing import drain
from tests.apps.project import tasks
from tests.conftest import put, sql
from tests.support.everything import EVERYTHING

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_models_need_no_further_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


ANYBODY = uuid.uuid4()
FINISHED = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("constraint", "columns"),
    [
        *(("priority", {"priority": priority}) for priority in (0, 202, -1)),
        ("lane", {"lane": "slow"}),
        ("status", {"status": "RUNNING"}),
        ("status", {"status": "COMPLETED"}),
        ("status", {"claimed_by": ANYBODY}),
        ("status", {"status": "RESTING", "error_code": "X"}),
        ("error_code", {"status": "FAILED", "finished_at": FINISHED}),
        ("error_code", {"status": "COMPLETED", "error_code": "X", "finished_at": FINISHED}),
    ],
)
def test_a_task_whose_columns_contradict_each_other_is_refused(constraint: str, columns: dict[str, Any]) -> None:
    (id_,) = put()
    with pytest.raises(IntegrityError, match=f"horsies_tasks_{constraint}"):
        Task.objects.filter(pk=id_).update(**columns)


@pytest.mark.parametrize("model", [Task, TaskAttempt])
def test_save_and_delete_refuse_on_rows_that_only_statements_write(model: type[Task]) -> None:
    with pytest.raises(TypeError, match=r"never through save\(\)"):
        model().save()
    with pytest.raises(TypeError, match=r"never through delete\(\)"):
        model().delete()


def test_the_declared_queues_are_rows_after_migrate() -> None:
    rows = dict(Queue.objects.values_list("name", "priority"))
    assert rows == {"*": 100, "default": 100, "mail": 1, "bulk": 50, "twin": 50}


INDEXES = """
    tasks_claim tasks_copies tasks_deadline tasks_finished tasks_holding tasks_merged tasks_node tasks_order tasks_parked
    tasks_stopped tasks_unadvanced tasks_unsuccessful audit_subject schedules_next schedule_ticks_sent workers_started
    worker_states_worker
    heartbeats_parents heartbeats_worker send_keys_sent send_keys_task signals_keyed signals_run signals_unseen signals_unused
    workflow_edges_up workflow_nodes_added workflow_nodes_due workflow_nodes_grown workflow_nodes_named
    workflow_nodes_open workflow_nodes_signal workflow_nodes_waits workflows_finished workflows_halted workflows_key
    workflows_name workflows_owed workflows_parent workflows_sent workflows_unfinished workflows_untold
"""


def test_every_index_has_a_name_of_ours_and_no_number_of_rows_can_run_out() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "WHERE c.relname LIKE 'horsies%%' AND NOT i.indisprimary"
        )
        names = {row[0] for row in cursor.fetchall()}
        cursor.execute("SELECT DISTINCT data_type::text FROM pg_sequences WHERE sequencename LIKE 'horsies%%'")
        assert cursor.fetchall() == [("bigint",)]
    assert {name for name in names if not name.endswith("_like")} == {f"horsies_{name}" for name in INDEXES.split()}


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


TABLES = {model._meta.db_table for model in apps.get_app_config("horsies").get_models()}

# What a release before could have left: other arguments, another result, another type, a function on a type of its own.
OLDER = """
DROP TYPE IF EXISTS horsies_candidate CASCADE;
CREATE TYPE horsies_candidate AS (one int);
CREATE FUNCTION horsies_lock_caps(p_caps horsies_candidate) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION horsies_send(p_one int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION horsies_fits(p_one int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE FUNCTION horsies_announce() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''an older one''; END';
"""


def made() -> set[Any]:
    """Return all that the app has in the current schema, a line for each."""
    return set(sql(EVERYTHING))


def drop_tables() -> None:
    """Drop all tables, and forget that they were migrated; their functions, types and sequences stay."""
    for table in TABLES:
        sql(f"DROP TABLE IF EXISTS {table} CASCADE")
    sql("DELETE FROM django_migrations WHERE app = 'horsies'")


@pytest.fixture
def before() -> Iterator[set[Any]]:
    """Give what the migrations made, and make it again."""
    found = made()
    assert {kind for kind, *_ in found} == {
        "column", "type", "index", "constraint", "storage", "function", "trigger", "sequence",
    }  # fmt: skip
    yield found
    sql("RESET search_path")
    drop_tables()
    call_command("migrate", verbosity=0)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Have a schema that is empty but for a table of its migrations, before the other one on the search path."""
    sql("CREATE SCHEMA elsewhere")
    sql("CREATE TABLE elsewhere.django_migrations (LIKE public.django_migrations INCLUDING ALL)")
    sql("SET search_path = elsewhere, public")
    yield
    sql("RESET search_path")
    sql("DROP SCHEMA elsewhere CASCADE")


def runs_a_task() -> bool:
    handle = tasks.add.send(1, 2)
    return drain() == 1 and handle.get(0).ok_value == 3


def test_migrations_run_back_to_their_tables_and_to_zero_and_forward_again(before: set[Any]) -> None:
    for target, left in (("0001", TABLES - {"horsies_send_keys", "horsies_history"}), ("zero", set())):
        call_command("migrate", "horsies", target, verbosity=0)
        assert {name for kind, name, *_ in made() if kind in ("storage", "function", "trigger")} == left
        call_command("migrate", "horsies", verbosity=0)
        assert made() == before


@pytest.mark.parametrize("left", ["", OLDER], ids=["today's", "older"])
def test_tables_that_were_dropped_are_migrated_over_what_they_left_behind(before: set[Any], left: str) -> None:
    drop_tables()
    sql(f"{left};")
    call_command("migrate", "horsies", verbosity=0)
    assert made() == before
    assert runs_a_task()


def test_what_dropped_tables_left_behind_is_gone_after_migrating_back(before: set[Any]) -> None:
    for table in TABLES:
        sql(f"DROP TABLE IF EXISTS {table} CASCADE")
    sql("DELETE FROM django_migrations WHERE app = 'horsies' AND name > '0003'")  # what these do, they do to the tables
    call_command("migrate", "horsies", "0001", verbosity=0)
    assert {kind for kind, *_ in made()} == {"sequence", "constraint"}  # that of the domain


def test_tables_made_without_migrations_are_those_of_the_migrations(before: set[Any], settings: Any) -> None:
    call_command("migrate", "horsies", "zero", verbosity=0)
    settings.MIGRATION_MODULES = {"horsies": None}
    call_command("migrate", run_syncdb=True, verbosity=0)
    assert made() == before
    assert runs_a_task()


def test_without_migrations_too_the_functions_are_made_again_but_not_for_a_flush(
    before: set[Any], settings: Any
) -> None:
    settings.MIGRATION_MODULES = {"horsies": None}
    sql(OLDER)
    sql("CREATE VIEW of_the_project AS SELECT kwargs, result FROM horsies_tasks")
    call_command("migrate", run_syncdb=True, verbosity=0)
    assert made() == before
    with CaptureQueriesContext(connection) as queries:
        call_command("flush", interactive=False, verbosity=0)
    assert not [one for one in queries if " FUNCTION horsies_" in one["sql"]]
    assert made() == before


def test_functions_of_another_schema_on_the_search_path_are_left_alone(before: set[Any], elsewhere: None) -> None:
    call_command("migrate", "horsies", verbosity=0)
    assert {tuple(line[:3]) for line in made()} == {tuple(line[:3]) for line in before}
    call_command("migrate", "horsies", "zero", verbosity=0)
    assert made() == set()
    sql("SET search_path = public")
    assert made() == before


def test_the_printed_sql_of_the_migrations_makes_the_same_and_takes_it_back(before: set[Any], elsewhere: None) -> None:
    def printed(name: str, **how: Any) -> str:
        text = io.StringIO()
        call_command("sqlmigrate", "horsies", name, stdout=text, no_color=True, **how)
        return text.getvalue()

    def one_by_one(text: str) -> None:  # as psql runs them, so that indexes can be built concurrently
        for statement in text.split(";\n"):
            if "CONCURRENTLY" in statement or "ALTER TABLE" in statement:
                sql(statement)

    names = ("0001", "0002", "0003")
    sql("".join(printed(name) for name in names))
    one_by_one(printed("0004"))
    assert made() == before
    one_by_one(printed("0004", backwards=True))
    sql("".join(printed(name, backwards=True) for name in reversed(names)))
    assert made() == set()


class Router:
    """A project's router that knows the tables of the queue by the names of their models."""

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        models = {model._meta.model_name for model in apps.get_app_config("horsies").get_models()}
        return False if model_name in models else None


def test_no_functions_are_made_where_a_router_refuses_the_tables(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.Router"]
    for name in ("0001", "0002", "0003", "0004"):
        text = io.StringIO()
        call_command("sqlmigrate", "horsies", name, stdout=text, no_color=True)
        statements = [line for line in text.getvalue().splitlines() if not line.startswith("--")]
        assert set(statements) <= {"BEGIN;", "COMMIT;"}
