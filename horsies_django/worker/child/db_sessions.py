"""Database sessions: Django's connections around a task. Changes that a task makes to a session do
not reach the next task.

Django keeps a connection if ``CONN_MAX_AGE`` is not 0, and returns it to its pool if
``OPTIONS["pool"]`` is set. When a request ends, Django checks a kept connection, but misses a
``BEGIN`` sent by hand, an ``atomic`` that was entered by hand and never left (which makes the
wrapper unusable), and session state: ``SET``, advisory locks, temporary tables, LISTEN. So after
each task:

- A connection in a transaction, or with changed autocommit, is closed, and Django's wrapper is
  discarded.
- A connection that would be kept is sent ``DISCARD ALL`` and set up as Django sets up a new one.
  ``connection_created`` is sent too, because projects set ``search_path`` or a tenant in its
  receivers. This takes one or two round trips, a hundredth of the time of a new connection. Looking
  for changes first would cost as much and miss some: PostgreSQL has no list of custom settings,
  which row-level security often uses.
- A backend of django-tenants is set to the public schema. Its wrapper keeps the tenant, also
  without a connection.
- With ``CONN_MAX_AGE`` 0 and ``CHILD_CONN_MAX_AGE`` 0, Django closes the connection.

Children keep connections by default: Django's default is made for requests, and a new connection
takes longer than many tasks.

Whether a thread holds a connection is read from Django's wrappers. The signal
``connection_created`` is not sufficient: Django stores a new connection, sets it up, and sends the
signal last. If the server dies in between, or a receiver raises, a wrapper holds a connection for
which no signal was sent.

The thread in which Django runs the ORM calls of async code. All async tasks of a process share its
connection.

The calls run one after another, so calls of other tasks may run between two calls of one task. A
transaction that a call leaves open would include their writes, and a rollback would undo them
although those tasks are COMPLETED. So after each call:

- A transaction that it left open is rolled back, and the call raises TransactionManagementError,
  unless it raised already.
- A closed connection is dropped, and so is one that a failing call opened, because Django may not
  have set it up.
- The schema of a tenant is left, because another task may make the next call.

Other changes of the session last until an async task of the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from asgiref.sync import SyncToAsync
from django.conf import settings
from django.db import connections, reset_queries
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from horsies_django.store.base import discard
from horsies_django.worker.child.run_task import describe

logger = logging.getLogger("horsies.worker")

Wrappers = Mapping[str, Any]
# if unknown, assume a connection
UNKNOWN: Wrappers = MappingProxyType({"": SimpleNamespace(connection=True)})
LEFT_OPEN = (
    "a transaction cannot stay open between two awaits, as all async tasks of a process share one "
    "connection; it was rolled "
    "back: put the whole transaction into one function, and call that by sync_to_async"
)


def wrappers_here() -> Wrappers:
    """Return Django's own dict of the wrappers of the calling thread by alias; it changes as
    connections are used.

    ``connections.all(initialized_only=True)`` returns the same wrappers, but only in the thread
    itself, and two calls per task would add a tenth to the time of an empty task. It is used with
    an asgiref that keeps its dict elsewhere.
    """
    try:
        return vars(connections._connections._storage)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return UNKNOWN


def may_be_open(wrappers: Iterable[Any]) -> bool:
    """Whether a wrapper holds a connection (open, broken or not fully set up) or has an unfinished
    ``atomic``.
    """
    for wrapper in wrappers:
        try:
            if wrapper.connection is not None or wrapper.in_atomic_block:
                return True
        except AttributeError:  # not a wrapper: asgiref keeps other values there for coroutines
            continue

    return False


def keep_connections(seconds: int) -> None:
    """Let Django keep connections to PostgreSQL for ``seconds``, or a longer ``CONN_MAX_AGE``, and
    check them before use.
    """
    for wrapper in connections.all():
        options = wrapper.settings_dict
        if (
            wrapper.vendor != "postgresql"
            or options["OPTIONS"].get("pool")
            or options["CONN_MAX_AGE"] is None
        ):
            continue

        if options["CONN_MAX_AGE"] < seconds:
            options.update(CONN_MAX_AGE=seconds, CONN_HEALTH_CHECKS=True)


def tidy_all(*, again: bool) -> None:
    """Close connections of this thread that are broken or past their age, or, ``again``, close or
    reset all. Never raises.
    """
    if again:
        leave_tenants()

    if may_be_open(wrappers_here().values()):
        for wrapper in connections.all(initialized_only=True):
            tidy(wrapper, again=again)
        if settings.DEBUG:
            reset_queries()


before_task = partial(tidy_all, again=False)  # as Django does before a request
after_task = partial(tidy_all, again=True)


def leave_tenants() -> None:
    """Set the wrappers of this thread to the public schema, if they have schemas of tenants.

    Never raises.
    """
    wrappers = wrappers_here()
    for wrapper in (
        connections.all(initialized_only=True) if wrappers is UNKNOWN else list(wrappers.values())
    ):
        if hasattr(wrapper, "set_schema_to_public"):
            try:
                wrapper.set_schema_to_public()
            except BaseException as error:  # user code: EXTRA_SET_TENANT_METHOD_PATH
                logger.info(
                    "discarding a connection to the database %r: %s",
                    wrapper.alias,
                    describe(error)["repr"],
                )
                drop(wrapper)


def drop_unfit(opened_beside: Sequence[Any] | None = None) -> bool:
    """Drop connections of this thread that are closed or in a transaction; return whether one was
    in a transaction.

    ``opened_beside`` lists the connections from before a call that failed: others are dropped too,
    because the call may have failed while Django set them up. With the setting ``AUTOCOMMIT:
    False``, an open transaction is normal. Never raises.
    """
    left_open = False
    if may_be_open(wrappers_here().values()):
        for wrapper in connections.all(initialized_only=True):
            if wrapper.settings_dict["AUTOCOMMIT"] and is_left_open(wrapper):
                left_open = True
                roll_back(wrapper)
            elif wrapper.connection is not None and (
                is_closed(wrapper)
                or (opened_beside is not None and wrapper.connection not in opened_beside)
            ):
                drop(wrapper)

    return left_open


def tidy(wrapper: Any, *, again: bool) -> None:
    """Close a connection that the next task cannot use; with ``again``, reset the session of one
    that is kept.
    """
    try:
        wrapper.validate_thread_sharing()

        if is_left_open(wrapper):
            roll_back(wrapper)
        elif wrapper.connection is not None:
            if is_closed(wrapper):
                drop(wrapper)
            else:
                close_or_clean(wrapper, again=again)
    except BaseException as error:  # user code: receivers of connection_created
        logger.info(
            "discarding a connection to the database %r: %s", wrapper.alias, describe(error)["repr"]
        )
        drop(wrapper)


def is_left_open(wrapper: Any) -> bool:
    """Whether a task left a transaction open. Does not query the server."""
    if wrapper.in_atomic_block or wrapper.closed_in_transaction:
        return True

    raw = wrapper.connection
    if raw is None or wrapper.vendor != "postgresql" or raw.closed:
        return False

    broken_off = raw.info.transaction_status not in (
        TransactionStatus.IDLE,
        TransactionStatus.UNKNOWN,
    )
    return bool(broken_off or wrapper.autocommit != wrapper.settings_dict["AUTOCOMMIT"])


def is_closed(wrapper: Any) -> bool:
    """Whether a wrapper holds a closed connection, perhaps lost before Django had set it up."""
    return wrapper.vendor == "postgresql" and bool(wrapper.connection.closed)


def close_or_clean(wrapper: Any, *, again: bool) -> None:
    """Do what Django does after a request, and reset a connection that is kept.

    Raises database errors.
    """
    pool = getattr(wrapper, "pool", None)
    if not (pool and again):
        wrapper.close_if_unusable_or_obsolete()

    if not again or wrapper.connection is None or wrapper.vendor != "postgresql":
        return

    discard(wrapper.connection)
    if pool:
        # the pool calls this for each new connection
        wrapper._configure_connection(wrapper.connection)
        wrapper.close_if_unusable_or_obsolete()
    else:
        wrapper.init_connection_state()
        connection_created.send(sender=type(wrapper), connection=wrapper)


def roll_back(wrapper: Any) -> None:
    """Drop a connection on which a task left a transaction open, and log it."""
    logger.warning(
        "a task left a transaction open on the database %r; rolling it back", wrapper.alias
    )
    drop(wrapper)


def drop(wrapper: Any) -> None:
    """Close a connection and discard its wrapper, whose transaction state may be wrong; Django
    creates another.

    A pool accepts a closed connection and replaces it.
    """
    try:
        # raises for a connection of another thread, which must not be closed here
        wrapper.validate_thread_sharing()
        wrapper.in_atomic_block = wrapper.closed_in_transaction = False
        if wrapper.connection is not None:
            wrapper.connection.close()
        wrapper.close()
    except Exception:
        logger.warning(
            "closing a connection to the database %r failed", wrapper.alias, exc_info=True
        )

    with suppress(AttributeError):  # the task deleted it
        del connections[wrapper.alias]


class OneThread(ThreadPoolExecutor):
    """Replaces asgiref's executor, which runs the sync calls of async code."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.connected = False  # whether it held a connection when the last call ended

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._look_after, call, *args, **kwargs)

    def _look_after(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        before = [getattr(wrapper, "connection", None) for wrapper in wrappers_here().values()]
        try:
            result = call(*args, **kwargs)
        except BaseException:
            drop_unfit(opened_beside=before)
            raise
        else:
            left_open = drop_unfit()
        finally:
            leave_tenants()
            self.connected = may_be_open(wrappers_here().values())

        if left_open:
            raise TransactionManagementError(LEFT_OPEN)
        return result

    def look_after(self) -> None:
        """Clean up the connections of the thread after a sync task that ran async code in its own
        loop.
        """
        with suppress(RuntimeError):  # a task has shut it down
            self.submit(before_task)

    def close(self) -> None:
        """Close the connections of the thread, without waiting for a call that does not end."""
        if self.connected:
            with suppress(RuntimeError):
                wait([self.submit(connections.close_all)], 2.0)


def executor() -> OneThread:
    """Return the executor, and install it first if necessary."""
    if not isinstance(SyncToAsync.single_thread_executor, OneThread):
        SyncToAsync.single_thread_executor = OneThread()
    return SyncToAsync.single_thread_executor
