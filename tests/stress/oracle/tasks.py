"""The tasks that only this storm has: they return the version of a page that they saw."""

from __future__ import annotations

from horsies_django import task
from tests.stress.chaos.evidence import rows
from tests.stress.chaos.notes import noted

PAGES = """
CREATE TABLE oracle_pages (page int PRIMARY KEY, version int NOT NULL);
INSERT INTO oracle_pages SELECT page, 0 FROM generate_series(0, 9) AS page
"""


@task(name="rebuild", queue="same")
def rebuild(page: int) -> int:
    with noted():
        return seen_version(page)


@task(name="single", unique=True)
def single(page: int) -> int:
    with noted():
        return seen_version(page)


def seen_version(page: int) -> int:
    """Return the committed version of a page."""
    return int(rows("SELECT version FROM oracle_pages WHERE page = %s", page)[0][0])
