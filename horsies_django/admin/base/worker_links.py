"""Links from rows to their workers, found with one query for a whole page."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from django.http import HttpRequest
from django.utils.safestring import SafeString

from horsies_django.admin.base.html import NOTHING
from horsies_django.conf import config
from horsies_django.models import Worker

Row = TypeVar("Row")


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
