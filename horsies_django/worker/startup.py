"""Startup: what needs the database before there is anything to lose is tried until it succeeds, or a signal comes.

A machine that boots starts its worker before its database as often as after it. So a worker or scheduler that cannot reach the
database is patient at its start too, as RESILIENCE says. A database that answers, and has not what it needs, is refused at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

import psycopg
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.db.migrations.executor import MigrationExecutor

from horsies_django.conf import Config, Resilience
from horsies_django.core.errors import WorkerStartError
from horsies_django.store.schema import unpublished
from horsies_django.tasks import registry
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.process.backoff import Backoff
from horsies_django.worker.process.shutdown import Shutdown

logger = logging.getLogger("horsies.worker")

AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OperationalError, InterfaceError)


class Link(Protocol):
    """What starts over a connection: a worker's ledger, a scheduler's timetable."""

    alias: str
    connection: psycopg.Connection[Any] | None

    def connect(self) -> object: ...
    def disconnect(self) -> None: ...


class Start:
    """The patience of a process that starts; ``stopping`` interrupts it (``Shutdown.interruptible``)."""

    def __init__(self, link: Link, resilience: Resilience, stopping: Shutdown) -> None:
        self.link = link
        self.resilience = resilience
        self.stopping = stopping

    def persist(self, action: Callable[[], None], *, connected: bool = True) -> None:
        """Do something that needs the database, as often as it takes; with the link ``connected``, if it needs that.

        Raises DatabaseGaveUp when RESILIENCE allows no further try, WorkerStartError when the database refuses it.
        """
        backoff = Backoff(self.resilience)
        while not self._done(action, connected, backoff):
            pass

    def _done(self, action: Callable[[], None], connected: bool, backoff: Backoff) -> bool:
        try:
            if connected and self.link.connection is None:
                self.link.connect()
            action()
        except AWAY as error:
            self.link.disconnect()
            message = str(error).strip()
            if backoff.exhausted:
                raise DatabaseGaveUp(
                    f"the database {self.link.alias!r} cannot be reached and RESILIENCE allows no further try: {message}"
                ) from error
            wait = backoff.failed()
            logger.warning("the database %r cannot be reached, next try in %.1f s: %s", self.link.alias, wait, message)
            self.stopping.pause(wait)
        except psycopg.Error as error:
            raise WorkerStartError(
                f"the database {self.link.alias!r} refuses this process: {str(error).strip()}"
            ) from error
        else:
            return True
        return False


def refuse_settings_without_module() -> None:
    """Raise WorkerStartError when the settings were made by ``settings.configure()``: children, which start anew, have none."""
    if getattr(settings, "SETTINGS_MODULE") is None and not os.environ.get("DJANGO_SETTINGS_MODULE"):  # noqa: B009 - stubs say str
        raise WorkerStartError(
            "the settings were made by settings.configure() in this process, and its children, which are processes of their "
            "own, cannot load them: put the settings into a module and name it in DJANGO_SETTINGS_MODULE, or run tasks in this "
            "process with --processes=0"
        )


def refuse_main_module() -> None:
    """Raise WorkerStartError when tasks are defined in the main module of this process, which no other process imports."""
    if problem := registry.main_module_problem(registry.in_main_module()):
        raise WorkerStartError(problem)


def refuse_unready_project(config: Config) -> None:
    """Raise WorkerStartError when the database, its schema or the project's tasks are not there."""
    connection = connections[config.database]
    try:
        connection.ensure_connection()
        style = connection.connection.info.parameter_status("DateStyle") or ""
        if not style.startswith("ISO"):
            raise WorkerStartError(
                f"the DateStyle of the database {config.database!r} is {style!r}, which Django cannot read. Set it to ISO with "
                'ALTER ROLE or ALTER DATABASE, or with "options": "-c DateStyle=ISO" in the OPTIONS of that alias'
            )
        if problem := unpublished(connection):
            raise WorkerStartError(problem)
        executor = MigrationExecutor(connection)
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "horsies"]
        missing = [migration.name for migration, _ in executor.migration_plan(targets)]
    except (OperationalError, InterfaceError):
        raise  # it is away: the caller tries again
    except DatabaseError as error:
        raise WorkerStartError(f"the database {config.database!r} cannot be used: {str(error).strip()}") from error
    finally:
        connection.close()
        if getattr(connection, "pool", None):
            connection.close_pool()  # type: ignore[attr-defined]
    if missing:
        raise WorkerStartError(
            f"unapplied migrations of horsies: {', '.join(missing)}. Run 'python manage.py migrate --database={config.database}'"
        )
    if problems := registry.autodiscover():
        raise WorkerStartError("; ".join(f"importing {item.module} failed: {item.error!r}" for item in problems))
    if not registry.names():
        raise WorkerStartError(
            "no task is registered: decorate a function with @task in the tasks.py of an app in INSTALLED_APPS"
        )
