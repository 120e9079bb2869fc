"""A schema per tenant.

The queue is in the shared schema, and the tenant of a task does not reach the next task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.sites import Site, new_databases

pytestmark = pytest.mark.django_db(transaction=True)
pytest.importorskip("django_tenants", reason="the group 'test' has django-tenants")

SETUP = """
import json
import django; django.setup()
from django_tenants.utils import schema_context
from tests.apps.tenants.books.models import Book
from tests.apps.tenants.books.tasks import *
from tests.apps.tenants.customers.models import Client
"""
CREATE = """
for name in ("acme", "beta"):
    Client.objects.create(schema_name=name)
    with schema_context(name):
        Book.objects.create(name=f"book of {name}")
"""
SEND = """
from horsies_django import get_handle
with schema_context("acme"):
    sent = [
        where.send(), leave.send("acme"), where.send(), choose.send("acme"),
        where.send(), fail.send("acme"), where.send(), aleave.send("acme"),
        awhere.send(), inside.send("beta"), inside.send("acme"), where.send(),
        sent_there.with_options(metadata={"schema": "beta"}).send(),
    ]
print(json.dumps([str(one.task_id) for one in sent]))
"""
READ = """
import sys
from horsies_django import get_handle
results = [get_handle(id_).get(0) for id_ in json.loads(sys.argv[1])]
print(json.dumps([one.ok_value if one.is_ok() else one.err_value.message for one in results]))
"""
TABLES = (
    "SELECT DISTINCT schemaname::text FROM pg_tables WHERE tablename LIKE 'horsies%' ORDER BY 1"
)

Tenants = Callable[..., Site]


@pytest.fixture
def tenants(transactional_db: None, tmp_path: Path) -> Iterator[Tenants]:
    """Yield a function that makes a project with two tenants, each with a book."""
    with new_databases("tenants") as create:

        def make(**environment: str) -> Site:
            settings = "tests.settings.tenants"
            site = Site(tmp_path, settings, create(), HORSIES_TEST_SITE="0", **environment)
            schema = environment.get("PUBLIC_SCHEMA", "public")

            with psycopg.connect(site.environment["DATABASE_URL"]) as connection:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")

            site.manage("migrate_schemas", "--shared", "--verbosity=0")
            site.run("-c", SETUP + CREATE)
            return site

        yield make


def schemas(site: Site) -> list[str]:
    """Return the schemas that have tables of the queue."""
    with psycopg.connect(site.environment["DATABASE_URL"]) as connection:
        return [name for (name,) in connection.execute(TABLES).fetchall()]


def results(site: Site, *options: str) -> list[Any]:
    """Run the tasks one after another in a worker, and return their results or messages."""
    sent = site.run("-c", SETUP + SEND)
    site.manage("horsies_worker", "--until-empty", *options)
    found: list[Any] = json.loads(site.run("-c", SETUP + READ, sent))
    return found


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {
            "PUBLIC_SCHEMA": "shared",
            "LIMIT_SET_CALLS": "1",
            "FIRST_ROUTER": "horsies_django.routers.HorsiesRouter",
        },
    ],
    ids=["usual", "other name, limited calls, our router"],
)
def test_no_tenant_reaches_the_next_task(tenants: Tenants, environment: dict[str, str]) -> None:
    """Fails if: tasks run in the schema of the last task, or are written to a table of a tenant,
    which no worker reads.
    """
    site = tenants(**environment)
    public = environment.get("PUBLIC_SCHEMA", "public")
    there = [public, public]

    assert schemas(site) == [public]
    for how in ("--processes=1", "--processes=0"):
        assert results(site, how) == [
            there,
            "book of acme",
            there,
            None,
            there,
            "LookupError: book of acme",
            there,
            "book of acme",
            there,
            "book of beta",
            "book of acme",
            there,
            "book of beta",
        ]
