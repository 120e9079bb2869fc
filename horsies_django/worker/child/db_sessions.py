"""Database sessions: Django's connections around a task; what one task does to a connection, the next does not see.

Django keeps a connection when ``CONN_MAX_AGE`` is not 0, and puts it back into its pool when ``OPTIONS["pool"]`` is set. It looks
at a kept connection when a request ends, but not closely: a ``BEGIN`` sent by hand goes unnoticed, an ``atomic`` that was
entered by hand and never left makes the wrapper useless for good, and what a session remembers (``SET``, advisory locks,
temporary tables, LISTEN) is nobody's business. For tasks it is ours:

- A connection that is in a transaction, or whose autocommit was changed, is closed, and Django's wrapper with it.
- A connection that would be kept is sent ``DISCARD ALL``, and set up again as Django sets up a new one. ``connection_created`` is
  sent again as well: projects set ``search_path`` or a tenant there, and find the session as new. That is a
  round trip or two, a hundredth of what a new connection costs. Looking for changes first would cost as much and miss some:
  PostgreSQL shows no list of custom settings, which row-level security is often built on.
- Without ``CONN_MAX_AGE``, the default, Django closes the connection, and nothing is left to look at.

Whether a thread holds a connection is read from Django's wrappers themselves. The signal ``connection_created`` cannot tell:
Django stores a new connection first, sets it up, and sends the signal last. When the server dies in between, or a receiver of
the project raises, a wrapper is left with a connection that no signal spoke of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, SimpleNamespace
from typing import Any

from django.conf import settings
from django.db import connections, reset_queries
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

from horsies_django.store.sessions import discard
from horsies_django.worker.child.run_task import describe

logger = logging.getLogger("horsies.worker")

Wrappers = Mapping[str, Any]
UNKNOWN: Wrappers = MappingProxyType({"": SimpleNamespace(connection=True)})  # where nobody can tell, there may be one


def wrappers_here() -> Wrappers:
    """Return the wrappers of the calling thread by alias: the very dict that Django keeps, which goes on changing.

    ``connections.all(initialized_only=True)`` says the same, but only on the thread itself, and twice for each task it would cost
    a tenth of a task that does nothing. With an asgiref that keeps its dict elsewhere it has to do.
    """
    try:
        return vars(connections._connections._storage)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return UNKNOWN


class Thread(threading.local):
    """What is known of the calling thread."""

    def __init__(self) -> None:
        self.wrappers = wrappers_here()


thread = Thread()


def may_be_open(wrappers: Iterable[Any]) -> bool:
    """Whether one of these wrappers holds a connection, be it open, broken or half made, or believes itself in a transaction."""
    for wrapper in wrappers:
        try:
            if wrapper.connection is not None or wrapper.in_atomic_block:
                return True
        except AttributeError:  # no wrapper: what asgiref keeps there for coroutines
            continue
    return False


def before_task() -> None:
    """Do on this thread what Django does before a request: drop connections that are broken or past their age. Never raises."""
    if may_be_open(thread.wrappers.values()):
        for wrapper in connections.all(initialized_only=True):
            tidy(wrapper, again=False)
        if settings.DEBUG:
            reset_queries()


def after_task() -> None:
    """Leave no connection of this thread as a task changed it. Never raises."""
    if may_be_open(thread.wrappers.values()):
        for wrapper in connections.all(initialized_only=True):
            tidy(wrapper, again=True)
        if settings.DEBUG:
            reset_queries()


def drop_unfit(opened_beside: Sequence[Any] | None = None) -> bool:
    """Drop connections of this thread that are closed or in a transaction, and return whether one was in a transaction.

    With ``opened_beside``, those that a call has opened beside these are dropped as well: it failed, perhaps while Django set
    them up. Where the settings say ``AUTOCOMMIT: False``, a transaction is always open. Never raises.
    """
    left_open = False
    if may_be_open(thread.wrappers.values()):
        for wrapper in connections.all(initialized_only=True):
            if wrapper.settings_dict["AUTOCOMMIT"] and is_left_open(wrapper):
                left_open = True
                roll_back(wrapper)
            elif wrapper.connection is not None and (
                is_closed(wrapper) or (opened_beside is not None and wrapper.connection not in opened_beside)
            ):
                drop(wrapper)
    return left_open


def tidy(wrapper: Any, *, again: bool) -> None:
    """Close or drop what cannot be used by the next task; ``again`` makes the session of a connection that is kept as new."""
    try:
        wrapper.validate_thread_sharing()
        if is_left_open(wrapper):
            roll_back(wrapper)
        elif wrapper.connection is not None:
            if is_closed(wrapper):
                drop(wrapper)
            else:
                close_or_clean(wrapper, again=again)
    except BaseException as error:  # receivers of the signal are the project's
        logger.info("discarding a connection to the database %r: %s", wrapper.alias, describe(error)["repr"])
        drop(wrapper)


def is_left_open(wrapper: Any) -> bool:
    """Whether a task went away in the middle of a transaction; asks no server."""
    if wrapper.in_atomic_block or wrapper.closed_in_transaction:
        return True
    raw = wrapper.connection
    if raw is None or wrapper.vendor != "postgresql" or raw.closed:
        return False
    broken_off = raw.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    return bool(broken_off or wrapper.autocommit != wrapper.settings_dict["AUTOCOMMIT"])


def is_closed(wrapper: Any) -> bool:
    """Whether a wrapper holds a closed connection: its server went away, perhaps before Django had set it up."""
    return wrapper.vendor == "postgresql" and bool(wrapper.connection.closed)


def close_or_clean(wrapper: Any, *, again: bool) -> None:
    """Do as Django does after a request; a connection that is used again is made as new first. Raises what the server says."""
    pool = getattr(wrapper, "pool", None)
    if not (pool and again):
        wrapper.close_if_unusable_or_obsolete()
    if not again or wrapper.connection is None or wrapper.vendor != "postgresql":
        return
    discard(wrapper.connection)
    if pool:
        wrapper._configure_connection(wrapper.connection)  # what Django gives the pool to call for a new connection
        wrapper.close_if_unusable_or_obsolete()
    else:
        wrapper.init_connection_state()
        connection_created.send(sender=type(wrapper), connection=wrapper)


def roll_back(wrapper: Any) -> None:
    """Drop a connection whose transaction a task left open, and say so."""
    logger.warning("a task left a transaction open on the database %r; rolling it back", wrapper.alias)
    drop(wrapper)


def drop(wrapper: Any) -> None:
    """Close a connection for good, and let Django make another wrapper: this one may believe itself in a transaction.

    A pool takes a closed connection back, and replaces it.
    """
    try:
        wrapper.validate_thread_sharing()  # one that a task took from another thread is not ours to close
        wrapper.in_atomic_block = wrapper.closed_in_transaction = False
        if wrapper.connection is not None:
            wrapper.connection.close()
        wrapper.close()
    except Exception:
        logger.warning("closing a connection to the database %r failed", wrapper.alias, exc_info=True)
    with suppress(AttributeError):  # the task deleted it
        del connections[wrapper.alias]
