"""What became of tasks, in the words of the pages: read by id, through the handles that the tasks' functions give."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from example_project.library.models import Document, Upload
from example_project.library.tasks import import_file, index_document, verify_document
from horsies_django import TaskResult, get_handle
from horsies_django.core.records import TaskInfo
from horsies_django.models import Task

# Only these tasks have a page: whatever else runs on this queue is not the visitors' business.
TASKS = {task.name: task for task in (import_file, index_document, verify_document)}


@dataclass(frozen=True)
class Step:
    """A task on the way of a file into the library."""

    label: str
    task_id: uuid.UUID | None
    status: str
    error_code: str | None = None


def look_up(task_id: uuid.UUID | str) -> tuple[TaskInfo, TaskResult[Any] | None] | None:
    """Return a task's row and, once it is final, its result; None where this library has no such task. Raises ValueError."""
    info = get_handle(task_id).info()
    if info is None or info.task_name not in TASKS:
        return None
    # The function's own handle knows the type: its ok value is an Imported again, not a dict.
    handle = TASKS[info.task_name].handle(info.task_id)
    return info, (handle.get(timeout_ms=0) if info.finished_at else None)


def steps_around(task_id: uuid.UUID) -> list[Step]:
    """Return all steps of the file that the task belongs to."""
    uploads = Upload.objects.only("import_task", "document_id")
    documents = Document.objects.only("index_task", "verify_task")
    document = documents.filter(index_task=task_id).first() or documents.filter(verify_task=task_id).first()
    upload = uploads.filter(document=document).first() if document else uploads.filter(import_task=task_id).first()
    if upload and not document and upload.document_id:
        document = documents.get(pk=upload.document_id)
    found = [("Import", upload.import_task if upload else None)]
    found += [
        ("Index", document.index_task if document else None),
        ("Check", document.verify_task if document else None),
    ]
    known = statuses([task_id for _, task_id in found])
    return [Step(label, task_id, *known.get(task_id, ("not sent", None))) for label, task_id in found]


def statuses(task_ids: list[uuid.UUID | None]) -> dict[uuid.UUID | None, tuple[str, str | None]]:
    """Return the status and the error code of each of these tasks that exists."""
    rows = Task.objects.filter(pk__in=[task_id for task_id in task_ids if task_id])
    return {row[0]: (row[1], row[2]) for row in rows.values_list("pk", "status", "error_code")}


def told(value: Any, label: str = "") -> Iterator[tuple[str, str]]:
    """Give the values of a result as pairs of texts, those of records inside records on their own lines."""
    if is_dataclass(value):
        for field in fields(value):
            yield from told(getattr(value, field.name), field.name.replace("_", " "))
    elif isinstance(value, list | tuple):
        yield (
            label,
            ", ".join(" ".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value),
        )
    else:
        yield label, shown(value)


def shown(value: Any) -> str:
    """Return one value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return str(value)
