"""The statements, functions and types of the store, by name."""

from __future__ import annotations

from pathlib import Path

SQL = Path(__file__).parents[2] / "horsies_django" / "store" / "sql"
FUNCTIONS = {path.stem: path for path in sorted((SQL / "functions").rglob("*.sql"))}
TYPES = {path.stem: path for path in sorted((SQL / "types").glob("*.sql"))}
# The names are those that ``run`` takes: "tasks/send".
STATEMENTS = {
    path.relative_to(SQL).with_suffix("").as_posix(): path
    for path in sorted(SQL.rglob("*.sql"))
    if path.stem not in {**FUNCTIONS, **TYPES}
}
