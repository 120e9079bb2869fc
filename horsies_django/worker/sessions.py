"""Django's database connections around a task: what one task does to a connection, the next does not see.

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
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.conf import settings
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

from horsies_django.store.sessions import discard

logger = logging.getLogger("horsies.worker")


class Thread(threading.local):
    """What is known of the calling thread: whether it may hold a connection. Asking Django costs more than many a task."""

    connected = True


thread = Thread()


def note_connection(**kwargs: Any) -> None:
    """This thread has opened a connection."""
    thread.connected = True


connection_created.connect(note_connection)


def before_task() -> None:
    """Do on this thread what Django does before a request: drop connections that are broken or past their age."""
    if thread.connected:
        close_old_connections()
        if settings.DEBUG:
            reset_queries()


def after_task() -> None:
    """Leave no connection of this thread as a task changed it."""
    if not thread.connected:
        return
    for wrapper in connections.all(initialized_only=True):
        if is_left_open(wrapper):
            drop(wrapper)
        elif wrapper.connection is not None:
            close_or_clean(wrapper)
    if settings.DEBUG:
        reset_queries()
    thread.connected = any(wrapper.connection is not None for wrapper in connections.all(initialized_only=True))


def is_left_open(wrapper: Any) -> bool:
    """Whether a task went away in the middle of a transaction; asks no server."""
    if wrapper.in_atomic_block or wrapper.closed_in_transaction:
        return True
    raw = wrapper.connection
    if raw is None or wrapper.vendor != "postgresql":
        return False
    broken_off = raw.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    return bool(broken_off or wrapper.autocommit != wrapper.settings_dict["AUTOCOMMIT"])


def drop(wrapper: Any) -> None:
    """Close a connection for good, and let Django make another wrapper: this one believes itself in a transaction.

    A pool takes a closed connection back, and replaces it.
    """
    logger.warning("a task left a transaction open on the database %r: it is rolled back", wrapper.alias)
    wrapper.in_atomic_block = wrapper.closed_in_transaction = False
    try:
        if wrapper.connection is not None:
            wrapper.connection.close()
        wrapper.close()
    except Exception:
        logger.warning("closing a connection to the database %r failed", wrapper.alias, exc_info=True)
    del connections[wrapper.alias]


def close_or_clean(wrapper: Any) -> None:
    """Do as Django does after a request; a connection that is used again is made as new first."""
    pool = getattr(wrapper, "pool", None)
    if not pool:
        wrapper.close_if_unusable_or_obsolete()
    if wrapper.connection is None or wrapper.vendor != "postgresql":
        return
    try:
        discard(wrapper.connection)
        if pool:
            wrapper._configure_connection(wrapper.connection)  # what Django gives the pool to call for a new connection
            wrapper.close_if_unusable_or_obsolete()
        else:
            wrapper.init_connection_state()
            connection_created.send(sender=type(wrapper), connection=wrapper)
    except Exception as error:
        logger.info("a connection to the database %r is not used again: %s", wrapper.alias, error)
        drop_quietly(wrapper)


def drop_quietly(wrapper: Any) -> None:
    """Close a connection that is broken; closing may fail as well."""
    try:
        wrapper.connection.close()
        wrapper.close()
    except Exception:
        del connections[wrapper.alias]
