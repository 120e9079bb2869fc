"""Database sessions: the cleanup of Django's connections after each task.

Changes that a task makes to a session must not affect the next task. Django keeps a connection if
``CONN_MAX_AGE`` is not 0, and returns it to its pool if ``OPTIONS["pool"]`` is set. When a request
ends, Django checks a kept connection, but misses a ``BEGIN`` sent by hand, an ``atomic`` that was
entered by hand and never left (which makes the wrapper unusable), and session state: ``SET``,
advisory locks, temporary tables, LISTEN. So after each task:

- A connection in a transaction, or with changed autocommit, is closed, and Django's wrapper is
  discarded.
- A connection that would be kept is reset with ``DISCARD ALL`` and set up as Django sets up a new
  one. ``connection_created`` is sent too, because projects set ``search_path`` or a tenant in its
  receivers. This takes one or two round trips, a hundredth of the time of a new connection. A check
  for changes would cost as much and miss some: PostgreSQL has no list of custom settings, which
  row-level security often uses.
- A backend of django-tenants is set to the public schema. Its wrapper keeps the tenant, also
  without a connection.
- With ``CONN_MAX_AGE`` 0 and ``CHILD_CONN_MAX_AGE`` 0, Django closes the connection.

Children keep connections by default: Django's default is made for requests, and a new connection
takes longer than many tasks.

Whether a thread holds a connection is read from Django's wrappers. The signal
``connection_created`` is not sufficient: Django stores a new connection, sets it up, and sends the
signal last. If the server dies in between, or a receiver raises, a wrapper holds a connection for
which no signal was sent.

Django runs the ORM calls of async code in one thread, so all async tasks of a process share its
connection. The calls run one after another, so calls of other tasks may run between two calls of
one task. A transaction that a call leaves open would include their writes, and a rollback would
undo them although those tasks are COMPLETED. So after each call:

- A transaction that the call left open is rolled back, and the call raises
  TransactionManagementError, unless it raised another exception.
- A closed connection is dropped. So is a connection that a failing call opened, because Django may
  not have set it up.
- The connection is set to the public schema, because another task may make the next call.

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
from horsies_django.worker.child.run_task import describe_exception

logger = logging.getLogger("horsies.worker")

Wrappers = Mapping[str, Any]
# if the wrappers cannot be read, one of them may hold a connection
UNKNOWN_WRAPPERS: Wrappers = MappingProxyType({"": SimpleNamespace(connection=True)})
LEFT_OPEN = (
    "the transaction was rolled back: all async tasks of a process share one connection, so a "
    "transaction cannot stay open between two awaits. Put the whole transaction into one function, "
    "and call the function by sync_to_async"
)


def wrappers_here() -> Wrappers:
    """Return Django's own dict of the wrappers of the calling thread, by alias.

    Its content changes as connections are used. ``connections.all(initialized_only=True)`` returns
    the same wrappers, but only in the thread itself, and two calls per task would add a tenth to
    the time of an empty task. With a version of asgiref that keeps the dict elsewhere,
    UNKNOWN_WRAPPERS is returned, and ``connections.all`` is called.
    """
    try:
        return vars(connections._connections._storage)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return UNKNOWN_WRAPPERS


def may_be_open(wrappers: Iterable[Any]) -> bool:
    """Return whether a wrapper holds a connection, or has an unfinished ``atomic``.

    The connection may be open, broken or not fully set up.
    """
    for wrapper in wrappers:
        try:
            if wrapper.connection is not None or wrapper.in_atomic_block:
                return True
        except AttributeError:  # not a wrapper; asgiref keeps other values there for coroutines
            continue

    return False


def keep_connections(seconds: int) -> None:
    """Change Django's settings to keep connections to PostgreSQL for at least ``seconds``.

    Django checks them before use. A longer ``CONN_MAX_AGE`` is not changed.
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
    """Close connections of this thread that are broken or too old; with ``again``, reset others.

    Never raises.
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

    Never raises. A wrapper for which that fails is discarded.
    """
    wrappers = wrappers_here()
    for wrapper in (
        connections.all(initialized_only=True)
        if wrappers is UNKNOWN_WRAPPERS
        else list(wrappers.values())
    ):
        if hasattr(wrapper, "set_schema_to_public"):
            try:
                wrapper.set_schema_to_public()
            except BaseException as error:  # user code: EXTRA_SET_TENANT_METHOD_PATH
                logger.info(
                    "discarding a connection to the database %r: %s",
                    wrapper.alias,
                    describe_exception(error)["repr"],
                )
                drop(wrapper)


def drop_unfit(opened_beside: Sequence[Any] | None = None) -> bool:
    """Drop connections of this thread that are closed or in a transaction.

    Return whether one was in a transaction. After a call that failed, ``opened_beside`` contains
    the connections from before it. All others are dropped too, because the call may have failed
    while Django set them up. With the setting ``AUTOCOMMIT: False``, an open transaction is normal.
    Never raises.
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
    """Close a connection that the next task cannot use; with ``again``, reset one that is kept.

    Never raises.
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
            "discarding a connection to the database %r: %s",
            wrapper.alias,
            describe_exception(error)["repr"],
        )
        drop(wrapper)


def is_left_open(wrapper: Any) -> bool:
    """Return whether a task left a transaction open, without a query to the server."""
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
    """Return whether a wrapper holds a closed connection, perhaps lost before it was set up."""
    return wrapper.vendor == "postgresql" and bool(wrapper.connection.closed)


def close_or_clean(wrapper: Any, *, again: bool) -> None:
    """Close an old or broken connection, as Django does after a request, or reset its session.

    The session is reset only with ``again``. Raises database errors, and any exception of a
    receiver of ``connection_created``.
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
    """Close a connection and discard its wrapper, whose transaction state may be wrong.

    Django creates another wrapper when it needs one. A pool accepts a closed connection and
    replaces it. Never raises.
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

    with suppress(AttributeError):  # the task has deleted it
        del connections[wrapper.alias]


class OneThread(ThreadPoolExecutor):
    """The replacement of asgiref's executor, which runs the sync calls of async code."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.connected = False  # whether it held a connection when the last call ended

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._run, call, *args, **kwargs)

    def _run(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
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

    def clean_up(self) -> None:
        """Clean up the connections of the thread after a sync task.

        The task may have run async code in a loop of its own.
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
