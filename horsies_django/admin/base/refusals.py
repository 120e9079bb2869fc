"""What the database refused, in words: no page and no action of ours ends in an error page without an explanation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.conf import config
from horsies_django.store.base import UNDEFINED, run

logger = logging.getLogger("horsies.admin")

LOCK_PATIENCE = "3s"
UNAVAILABLE = 503

# SQLSTATE -> what it means here and what to do
REMEDIES: dict[str, str | Promise] = {
    "25006": gettext_lazy("The database is read-only. Use the site that is connected to the primary."),
    "42501": gettext_lazy(
        "The site's database role lacks a grant; the page “Give the database roles no more than they need” of the"
        " documentation lists those that each page and action needs."
    ),
    **dict.fromkeys(UNDEFINED, gettext_lazy("Did “migrate” run?")),
    "55P03": gettext_lazy(
        "Somebody else has one of these rows locked in an open transaction. Try again when it has ended."
    ),
    "57014": gettext_lazy(
        "It took longer than the statement timeout of this database role: perhaps somebody else has one of these rows locked."
        " Try again."
    ),
}


def refusal(error: DatabaseError) -> str:
    """Return what the database said, and what to do."""
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    remedy = REMEDIES.get(getattr(error.__cause__, "sqlstate", None) or "", "")
    return _("The database refused: %(error)s. %(remedy)s") % {"error": said, "remedy": remedy}


@contextmanager
def patiently() -> Iterator[None]:
    """Make a change, all of it or nothing, that gives up on rows which others keep locked."""
    alias = config().database
    with transaction.atomic(using=alias):
        before = _wait_for_locks(alias, LOCK_PATIENCE)
        yield
        _wait_for_locks(alias, before)  # the transaction around it may go on


def _wait_for_locks(alias: str, timeout: str) -> str:
    """Let statements of this transaction wait for so long and no longer, and return for how long they did."""
    ((before, _now),) = run(connections[alias], "sessions/lock_timeout", {"timeout": timeout})
    return str(before)


def answered(page: Any, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
    """Return a view's answer, or a page that says why the database did not let it read."""
    try:
        return view()
    except DatabaseError as error:
        logger.warning("the database refused to answer %s", request.path, exc_info=True)
        return _page(page, request, refusal(error))


def _page(page: Any, request: Any, text: str) -> HttpResponse:
    context = {
        **page.admin_site.each_context(request),
        "title": _("This page cannot be shown"),
        "opts": page.opts,
        "media": page.media,
        "text": text,
    }
    request.current_app = page.admin_site.name
    return TemplateResponse(request, "admin/horsies/refused.html", context, status=UNAVAILABLE)
