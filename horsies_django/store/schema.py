"""The types and functions that migrations create in the database, and checks of its schema."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from typing import Any

from horsies_django.store.base import run_statement, sql_text

SQL = resources.files(__package__).joinpath("sql")
TYPES = sorted(file.name.removesuffix(".sql") for file in SQL.joinpath("types").iterdir())
FUNCTIONS = {  # name -> the directory of its text
    file.name.removesuffix(".sql"): room.name
    for room in sorted(SQL.joinpath("functions").iterdir(), key=lambda room: room.name)
    for file in sorted(room.iterdir(), key=lambda file: file.name)
}

# Functions of release 0.1.0 that no longer exist, or have other parameters or results now. The
# Python code of that release calls only three of them: those to explain, and the open calls. It
# casts their results to text, which they are by now.
FORMER = (
    "horsies_begin_waits",
    "horsies_begun_total",
    "horsies_candidates",
    "horsies_claimed",
    "horsies_eligible_workers",
    "horsies_explain",
    "horsies_explain_node",
    "horsies_fits",
    "horsies_has_failed_upstream",
    "horsies_join_verdict",
    "horsies_open_calls",
    "horsies_part",
    "horsies_propagate",
    "horsies_replace_tasks",
    "horsies_retry_children",
    "horsies_retry_undo",
    "horsies_take_signal",
    "horsies_undo_result",
)


def dropping(functions: Iterable[str], types: Iterable[str] = ()) -> str:
    """Return a statement that drops all functions and types of these names.

    CASCADE also drops the triggers of the functions, and the CHECK of release 0.1.0 with the
    function that it calls. Only the current schema is affected, because other schemas may have such
    functions for their own tables.
    """
    return f"""
DO $$
DECLARE
  v_one text;
BEGIN
  FOR v_one IN
    SELECT 'FUNCTION ' || p.oid::regprocedure
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = current_schema() AND p.proname = ANY ('{{{",".join(functions)}}}')
    UNION ALL
    SELECT 'TYPE ' || t.oid::regtype
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = current_schema() AND t.typname = ANY ('{{{",".join(types)}}}')
  LOOP
    EXECUTE 'DROP ' || v_one || ' CASCADE';
  END LOOP;
END
$$
"""


CLEAR = dropping((*FUNCTIONS, *FORMER), TYPES)


def types() -> list[str]:
    """Return the statements that create the types."""
    return [sql_text(f"types/{name}") for name in TYPES]


def functions() -> list[str]:
    """Return the statements that drop former functions and create those of this release.

    They also create the triggers. PostgreSQL does not check the bodies, because a body may call a
    later function, or read a column of a later migration.
    """
    unseen = "SELECT set_config('check_function_bodies', 'off', true)"
    return [
        unseen,
        dropping(FORMER),
        *(sql_text(f"functions/{room}/{name}") for name, room in FUNCTIONS.items()),
    ]


def has_function(connection: Any, name: str) -> bool:
    return bool(run_statement(connection, "sessions/has_function", {"name": name})[0][0])


def open_schema(connection: Any) -> str | None:
    """Return the schema of the tables if every role may create objects in it, else None."""
    return next((row[0] for row in run_statement(connection, "sessions/open_schema")), None)
