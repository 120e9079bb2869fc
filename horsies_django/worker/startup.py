"""The startup of a worker or a scheduler: checks of the project and the database, and retries.

After a boot, the worker may start before its database. So steps that need the database are retried
by the rules of RESILIENCE, until they succeed or a signal stops the process. If the database can be
reached but is not usable, the process ends at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import psycopg
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from horsies_django.conf import Config, Resilience
from horsies_django.conf.section import path_problems
from horsies_django.core.errors import WorkerStartError
from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import printable_name
from horsies_django.queues import declared
from horsies_django.store.base import error_text
from horsies_django.store.notify import through_pooler
from horsies_django.store.opening import AWAY_ERRORS, drivers, naming_receivers
from horsies_django.store.queues import QueueStore
from horsies_django.tasks import registry
from horsies_django.worker.engine.engine import Engine
from horsies_django.worker.engine.outage import DatabaseGaveUp
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.process.backoff import Backoff, Link
from horsies_django.worker.process.shutdown import Shutdown

logger = logging.getLogger("horsies.worker")


class Start:
    """The retries of the steps of a start, which ``stopping`` interrupts."""

    def __init__(self, link: Link, resilience: Resilience, stopping: Shutdown) -> None:
        self.link = link
        self.resilience = resilience
        self.stopping = stopping

    def retry(self, action: Callable[[], None], *, connected: bool = True) -> None:
        """Call ``action`` again until the database can be reached.

        With ``connected``, the link is connected first. Raises DatabaseGaveUp if RESILIENCE allows
        no further try, and WorkerStartError for other errors of the driver.
        """
        backoff = Backoff(self.resilience)
        alias = self.link.alias

        while True:
            try:
                if connected and self.link.connection is None:
                    self.link.connect()
                return action()
            except AWAY_ERRORS as error:
                self.link.disconnect()
                message = error_text(error)
                if backoff.exhausted:
                    raise DatabaseGaveUp(
                        f"the database {alias!r} cannot be reached, and RESILIENCE allows no "
                        f"further try: {message}"
                    ) from error
            except psycopg.Error as error:
                raise WorkerStartError(
                    f"the database {alias!r} refused this process: {error_text(error)}"
                ) from error

            wait = backoff.failed()
            logger.warning(
                "the database %r cannot be reached, next try in %.1f s: %s", alias, wait, message
            )
            self.stopping.wait(wait)


def insert_missing_queues(outbox: Outbox, config: Config, actor: str) -> None:
    """Add missing queues to the database, and log where existing ones differ from the settings.

    The existing rows are not changed, and their values apply. Otherwise a worker that was started
    with old settings would undo a change.
    """
    store = QueueStore(outbox.connection_or_raise())
    wanted = declared(config)
    names = [*outbox.served.queues, CLUSTER]
    there = store.declared(names)

    for name in names:
        if name not in there:
            store.configure(name, wanted[name], action="queue.declare", actor=actor, create=True)
        elif differing := [key for key, value in wanted[name].items() if there[name][key] != value]:
            logger.warning(
                "%s: the settings and the table differ in %s. The values of the table apply. Run "
                "'manage.py horsies_queue sync' to write the settings into the table",
                "the cluster" if name == CLUSTER else f"queue {printable_name(name)}",
                ", ".join(
                    f"{key} ({wanted[name][key]}, table {there[name][key]})" for key in differing
                ),
            )


def durable_behind_pooler(engine: Engine) -> None:
    """Make claims durable if the database is reached through a pooler.

    A pooler hides a crash of the server, so the worker would not check for lost claims after it.
    """
    outbox = engine.outbox
    if not engine.capacity.durable and through_pooler(outbox.connection_or_raise()):
        engine.capacity = replace(engine.capacity, durable=True)
        logger.warning(
            "the database %r is reached through a connection pooler, so claims are durable in "
            "spite of "
            "HORSIES['DURABLE_CLAIMS'] = False",
            outbox.alias,
        )


def refuse_main_module() -> None:
    """Raise WorkerStartError if tasks are defined in the main module of this process.

    No other process imports that module.
    """
    if problem := registry.unimportable(registry.registered_tasks()):
        raise WorkerStartError(problem)


def refuse_paths(key: str, paths: Iterable[str]) -> None:
    """Raise WorkerStartError if a dotted path of a setting is not that of a callable."""
    if problems := path_problems(paths):
        raise WorkerStartError(f"HORSIES[{key!r}]: {'; '.join(problems)}")


def refuse_unready_database(config: Config) -> None:
    """Raise WorkerStartError if the database or its schema is not usable.

    Raises one of AWAY_ERRORS if the database cannot be reached.
    """
    connection = connections[config.database]
    try:
        with naming_receivers(config.database):
            connection.ensure_connection()

        style = drivers(connection.connection).info.parameter_status("DateStyle") or ""
        if not style.startswith("ISO"):
            raise WorkerStartError(
                f"the DateStyle of the database {config.database!r} is {style!r}, which Django "
                "cannot read. Set it to ISO with "
                'ALTER ROLE or ALTER DATABASE, or with "options": "-c DateStyle=ISO" in the '
                "OPTIONS of that alias"
            )

        executor = MigrationExecutor(connection)
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "horsies"]
        missing = [migration.name for migration, _ in executor.migration_plan(targets)]
    except AWAY_ERRORS:
        raise  # the database cannot be reached; the caller tries again
    except DatabaseError as error:
        raise WorkerStartError(
            f"the database {config.database!r} cannot be used: {error_text(error)}"
        ) from error
    finally:
        connection.close()
        if getattr(connection, "pool", None):
            connection.close_pool()  # type: ignore[attr-defined]

    if missing:
        raise WorkerStartError(
            f"unapplied migrations of horsies: {', '.join(missing)}. Run 'python manage.py migrate "
            f"--database={config.database}'"
        )


def refuse_unready_tasks(config: Config) -> None:
    """Raise WorkerStartError if the tasks of the project are not usable.

    A warning is logged for tasks that other processes may not import. No connection is opened.
    """
    if problems := registry.autodiscover():
        raise WorkerStartError(
            "; ".join(f"importing {item.module} failed: {item.error!r}" for item in problems)
        )

    refuse_paths("MIDDLEWARE", config.middleware)
    refuse_paths("METADATA", config.metadata)

    if not registry.names():
        raise WorkerStartError(
            "no task is registered: decorate a function with @task in the tasks.py of an app in "
            "INSTALLED_APPS"
        )

    if found := registry.unreached_modules():
        logger.warning("%s: %s", registry.unsure_problem(found), registry.unsure_advice(found))
