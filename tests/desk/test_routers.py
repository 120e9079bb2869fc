"""The router keeps the queue on its alias and does not concern other models."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import connections, router

from horsies_django.models import Queue, Task
from horsies_django.routers import HorsiesRouter


@pytest.fixture(autouse=True)
def queue_on_second(second_alias: dict[str, Any], settings: Any) -> None:
    """The queue is on the alias ``second``; nothing connects to it."""
    settings.HORSIES = {"DATABASE": "second"}
    settings.DATABASE_ROUTERS = ["horsies_django.routers.HorsiesRouter"]


def test_the_queue_uses_its_alias_only(
    settings: Any,
) -> None:
    """The queue is read, written and migrated only on its alias, even with invalid settings."""
    for model in apps.get_app_config("horsies").get_models():
        assert router.db_for_read(model) == router.db_for_write(model) == "second"

    assert HorsiesRouter().allow_relation(Queue(), Task()) is True
    # A migration with raw SQL has no model among its hints.
    for hints in ({"model_name": "task"}, {"some_hint": 1}):
        assert router.allow_migrate("second", "horsies", **hints) is True
        assert router.allow_migrate("default", "horsies", **hints) is False

    settings.HORSIES = {"QUEUES": [], "DATABASE": "default"}  # which the checks report
    assert HorsiesRouter().db_for_read(Task) == "default"
    assert HorsiesRouter().allow_migrate("default", "horsies") is True


def test_other_apps_may_share_the_alias() -> None:
    """Other apps may use the same alias; the router leaves their models to other routers."""
    own = HorsiesRouter()

    assert own.db_for_read(User) is own.db_for_write(User) is None
    assert (
        own.allow_migrate("second", "auth", model_name="user")
        is own.allow_migrate("default", "auth")
        is None
    )
    assert own.allow_relation(User(), Group()) is own.allow_relation(User(), Queue()) is None


def test_on_an_alias_with_tenants_their_router_decides(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an alias with tenants, the router leaves migrations to the router of the tenants.

    Fails if: the tables of the queue are made in the schema of each tenant, where no worker reads
    tasks.
    """
    monkeypatch.setattr(connections["second"], "set_schema_to_public", lambda: None, raising=False)

    assert HorsiesRouter().allow_migrate("second", "horsies", model_name="task") is None
    assert HorsiesRouter().allow_migrate("default", "horsies", model_name="task") is False
