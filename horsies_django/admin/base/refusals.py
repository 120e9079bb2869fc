"""Explains database errors to the user: no admin page or action ends in a bare server error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.conf import config
from horsies_django.store.base import UNDEFINED, run, said

logger = logging.getLogger("horsies.admin")

LOCK_PATIENCE = "3s"

# SQLSTATE -> what it means here and what to do
REMEDIES: dict[str, str | Promise] = {
    "25006": gettext_lazy("The database is read-only. Use the site that is connected to the primary."),
    "42501": gettext_lazy(
        "The site's database role lacks a privilege. The page “Give the database roles no more than they need” of the"
        " documentation lists the privileges that each page and action requires."
    ),
    **dict.fromkeys(UNDEFINED, gettext_lazy("Check that “migrate” has been run.")),
    "55P03": gettext_lazy("Another open transaction has locked one of these rows. Try again when it has ended."),
    "57014": gettext_lazy(
        "This took longer than the statement timeout of the database role. Another transaction may have locked one of these"
        " rows. Try again."
    ),
}


def refusal(error: DatabaseError) -> str:
    told = said(error).partition("\n")[0] or type(error).__name__
    remedy = REMEDIES.get(getattr(error.__cause__, "sqlstate", None) or "", "")
    return _("The database refused: %(error)s. %(remedy)s") % {"error": told, "remedy": remedy}


@contextmanager
def patiently() -> Iterator[None]:
    """Make a change atomically, and give up after ``LOCK_PATIENCE`` if rows are locked by others."""
    alias = config().database
    with transaction.atomic(using=alias):
        before = _wait_for_locks(alias, LOCK_PATIENCE)
        yield
        _wait_for_locks(alias, before)  # the transaction around it may go on


def _wait_for_locks(alias: str, timeout: str) -> str:
    """Set the lock timeout of this transaction, and return the previous one."""
    ((before, _now),) = run(connections[alias], "sessions/lock_timeout", {"timeout": timeout})
    return str(before)


def answered(page: Any, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
    """Return the response of a view, or a page that explains why the database refused."""
    try:
        return view()
    except DatabaseError as error:
        logger.warning("the database refused to answer %.200r: %s", request.path, said(error))
        shown: HttpResponse = page.shown(
            request, "refused", _("This page cannot be shown"), {"text": refusal(error)}, 503
        )
        return shown
