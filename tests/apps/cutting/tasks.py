"""Tasks that write one row each, in one of the ways in which tasks use the database."""

from __future__ import annotations

import asyncio

from django.contrib.auth.models import Group

from horsies_django import task


@task(queue="mail")
def note(name: str) -> None:
    Group.objects.create(name=name)


@task(queue="bulk")
def note_on_threads(name: str) -> None:
    Group.objects.create(name=name)


@task(queue="twin")
async def anote(name: str) -> None:
    await Group.objects.acreate(name=name)


@task(queue="mail")
def note_by_a_loop(name: str) -> None:
    """Use the async ORM in a sync task, on an event loop of its own."""
    asyncio.run(Group.objects.acreate(name=name))
