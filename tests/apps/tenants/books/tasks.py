"""Tasks that choose a tenant, and tasks that return the tenant of their connection."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import connection
from django_tenants.utils import schema_context

from horsies_django import task
from tests.apps.tenants.books.models import Book


@task
def leave(schema: str) -> str:
    """Choose a tenant and keep it after the end of the task."""
    connection.set_schema(schema)
    return Book.objects.get().name


@task
def choose(schema: str) -> None:
    """Choose a tenant without a query."""
    connection.set_schema(schema)


@task
def fail(schema: str) -> None:
    """Choose a tenant and fail."""
    connection.set_schema(schema)
    raise LookupError(Book.objects.get().name)


@task
async def aleave(schema: str) -> str:
    """Choose a tenant in async code and keep it after the end of the task."""
    return await sync_to_async(leave)(schema)


def here() -> list[str]:
    """Return the schema of Django's connection and the search path of its session."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW search_path")
        return [connection.schema_name, *cursor.fetchone()]


@task
def where() -> list[str]:
    """Return the schema and the search path that sync tasks have."""
    return here()


@task
async def awhere() -> list[str]:
    """Return the schema and the search path that async tasks have."""
    return await sync_to_async(here)()


@task
def inside(schema: str) -> str:
    """Choose a tenant for a block, and return the name of its book."""
    with schema_context(schema):
        return Book.objects.get().name


@task
def sent_there() -> str:
    """Return the book of the tenant in whose schema the middleware runs this task."""
    return Book.objects.get().name
