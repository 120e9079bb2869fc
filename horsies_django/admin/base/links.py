"""Ids in addresses and searches, and links to the pages of workflow runs, their nodes, and workers."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from horsies_django.admin.base.html import NOTHING
from horsies_django.conf import config
from horsies_django.models import Worker, WorkflowRun

NODE_PAGE = "horsies_workflowrun_node"

Row = TypeVar("Row")


def parse_id(term: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(term.strip())
    except ValueError:
        return None


def node_link(page: Any, request: HttpRequest, run: uuid.UUID, number: int, text: str) -> SafeString | str:
    """Return ``text`` as a link to the page of a node, or as plain text if the site or user has no such page."""
    if not page.admin_site.is_registered(WorkflowRun) or not request.user.has_perm("horsies.view_workflowrun"):
        return text
    return format_html('<a href="{}">{}</a>', node_url(page, run, number), text)


def node_url(page: Any, run: uuid.UUID, number: int) -> str:
    return reverse(f"admin:{NODE_PAGE}", args=(quote(run), number), current_app=page.admin_site.name)


def with_workers(page: Any, request: HttpRequest, rows: list[Row], column: str) -> list[Row]:
    """Set ``shown_worker`` of each row: host and process of the worker whose id is in ``column``."""
    ids = {getattr(row, column) for row in rows} - {None}
    workers = Worker.objects.using(config().database).only("hostname", "pid").in_bulk(ids) if ids else {}
    for row in rows:
        id_ = getattr(row, column)
        setattr(row, "shown_worker", _shown(page, request, id_, workers.get(id_)))  # noqa: B010 - rows of any model
    return rows


def _shown(page: Any, request: HttpRequest, id_: uuid.UUID | None, worker: Worker | None) -> SafeString | str:
    if id_ is None:
        return NOTHING
    if worker is None:
        return str(id_)  # its row was deleted
    shown: SafeString | str = page.link(request, Worker, id_, str(worker))
    return shown
