"""The states of tasks and imports, in the words of the pages.

They are read by id, through handles and models.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from django.urls import reverse

from example_project.library import tasks
from example_project.library.models import Document, Upload
from horsies_django import TaskResult, WorkflowHandle, get_handle
from horsies_django.core.records import TaskInfo
from horsies_django.models import Task, WorkflowNode, WorkflowRun

# Only these tasks have a page. Other tasks of the site are not shown to visitors.
TASKS = {
    task.name: task
    for task in (
        *(
            tasks.read_file,
            tasks.split_document,
            tasks.measure_chapter,
            tasks.index_chapters,
            tasks.publish,
        ),
        *(tasks.remove_document, tasks.index_document, tasks.verify_document),
    )
}
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Step:
    """One step of the way of a file into the library: an import or a task.

    ``address`` is that of its page, or None if it was not sent.
    """

    label: str
    address: str | None
    status: str
    error_code: str | None = None


def look_up(task_id: uuid.UUID | str) -> tuple[TaskInfo, TaskResult[Any] | None] | None:
    """Return the row of a task and its result, which is None until the task is final.

    None is returned if the library has no such task. Raises ValueError if the id is not a UUID.
    """
    info = get_handle(task_id).info()
    if info is None or info.task_name not in TASKS:
        return None

    # The handle of the task itself decodes its result: the ok value is an Imported, not a dict.
    handle = TASKS[info.task_name].handle(info.task_id)
    return info, (handle.get(timeout_ms=0) if info.finished_at else None)


def steps_around(task_id: uuid.UUID) -> list[Step]:
    """Return all steps of the file that the task belongs to."""
    uploads = Upload.objects.defer("content")
    documents = Document.objects.only("index_task", "verify_task")
    document = (
        documents.filter(index_task=task_id).first()
        or documents.filter(verify_task=task_id).first()
    )

    if document:
        return steps_of(uploads.filter(document=document).first(), document)

    upload = uploads.filter(import_run=Task.objects.get(pk=task_id).workflow_id).first()
    return steps_of(upload, documents.filter(pk=upload.document_id).first() if upload else None)


def steps_of(upload: Upload | None, document: Document | None) -> list[Step]:
    """Return the steps of a file: its import, and the tasks that index and check its document."""
    run = upload.import_run if upload else None
    index, check = (document.index_task, document.verify_task) if document else (None, None)
    known = run_statuses([run]) | statuses([index, check])

    found = (
        ("Import", "library:import", run),
        ("Index", "library:result", index),
        ("Check", "library:result", check),
    )
    return [
        Step(label, reverse(page, args=[pk]) if pk else None, *known.get(pk, ("not sent", None)))
        for label, page, pk in found
    ]


def statuses(task_ids: list[uuid.UUID | None]) -> dict[uuid.UUID | None, tuple[str, str | None]]:
    """Return the status and the error code of each of these tasks that exists."""
    rows = Task.objects.filter(pk__in=[task_id for task_id in task_ids if task_id])
    return {row[0]: (row[1], row[2]) for row in rows.values_list("pk", "status", "error_code")}


def run_statuses(ids: list[uuid.UUID | None]) -> dict[uuid.UUID | None, tuple[str, str | None]]:
    """Return the status and the error code of each of these workflow runs that exists.

    The error code is that of the node that failed.
    """
    rows = WorkflowRun.objects.filter(pk__in=[run for run in ids if run])
    return {row[0]: (row[1], row[2]) for row in rows.values_list("pk", "status", "error_code")}


def nodes_of(run: WorkflowHandle) -> list[WorkflowNode]:
    """Return the nodes of a run in the order in which they were added.

    ``task_id`` is the id in the address of a task's page, and None for a wait.
    """
    nodes = WorkflowNode.objects.filter(workflow_id=run.workflow_id).order_by("number")
    return list(
        nodes.only("number", "name", "kind", "status", "error_code", "task_id", "total", "items_ok")
    )


def told(value: Any, label: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a result as pairs of label and text.

    A record inside another one yields a pair for each of its own fields.
    """
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}

    if isinstance(value, dict):
        for name, inner in value.items():
            yield from told(inner, name.replace("_", " "))
    elif isinstance(value, list | tuple):
        yield (
            label,
            ", ".join(
                " ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
                for item in value
            ),
        )
    else:
        yield label, shown(value)


def shown(value: Any) -> str:
    """Return a value as text for a person."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"

    return str(value)
