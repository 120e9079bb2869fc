"""The pages: files come in here, and everything slow is sent."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.files.uploadedfile import UploadedFile
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from example_project.library import progress
from example_project.library.forms import UploadForm
from example_project.library.models import Document, Upload
from example_project.library.searching import marked, near_duplicates, search
from example_project.library.tasks import import_file, verify_document
from horsies_django import TaskHandle

PAGE = 50
PAIRS = 50
PREVIEW_CHARACTERS = 3_000


@require_GET
def documents(request: HttpRequest) -> HttpResponse:
    """List the documents."""
    page = Paginator(Document.objects.defer("text", "search"), PAGE).get_page(request.GET.get("page"))
    counts = Document.objects.aggregate(all=Count("pk"), indexed=Count("indexed_at"), verified=Count("verified_at"))
    return render(request, "library/documents.html", {"page": page, "counts": counts})


@require_GET
def document(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one document and what the tasks found out about it."""
    found = get_object_or_404(Document.objects.defer("search"), pk=pk)
    known = progress.statuses([found.index_task, found.verify_task])
    context = {
        "document": found,
        "preview": found.text[:PREVIEW_CHARACTERS],
        "is_cut": len(found.text) > PREVIEW_CHARACTERS,
        "steps": [
            progress.Step(label, task_id, *known.get(task_id, ("not sent", None)))
            for label, task_id in (("Index", found.index_task), ("Check", found.verify_task))
        ],
    }
    return render(request, "library/document.html", context)


@require_GET
def raw(request: HttpRequest, pk: int) -> HttpResponse:
    """Serve a document as it came in, byte for byte."""
    text = get_object_or_404(Document.objects.only("text"), pk=pk).text
    return HttpResponse(text.encode(), content_type="text/plain; charset=utf-8")


@login_required
@require_http_methods(["GET", "POST"])
def upload(request: HttpRequest) -> HttpResponse:
    """Take files in and have them imported."""
    form = UploadForm(request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        handles = take_in(form.cleaned_data["folder"], form.cleaned_data["files"])
        if len(handles) == 1:
            return redirect("library:result", handles[0].task_id)
        return redirect("library:uploads")
    return render(request, "library/upload.html", {"form": form}, status=400 if form.errors else 200)


def take_in(folder: str, files: list[UploadedFile]) -> list[TaskHandle]:
    """Keep the files and send a task for each, in one transaction: no file without its task, no task without its file."""
    with transaction.atomic():
        kept = Upload.objects.bulk_create(Upload(folder=folder, name=file.name, content=file.read()) for file in files)
        handles = import_file.send_many({"upload_id": item.pk} for item in kept)
        for item, handle in zip(kept, handles, strict=True):
            item.import_task = handle.task_id
        Upload.objects.bulk_update(kept, ["import_task"])
    return handles


@require_GET
def uploads(request: HttpRequest) -> HttpResponse:
    """List what was uploaded, latest first, with what became of it."""
    page = Paginator(Upload.objects.defer("content"), PAGE).get_page(request.GET.get("page"))
    known = progress.statuses([item.import_task for item in page])
    rows = [(item, *known.get(item.import_task, ("not sent", None))) for item in page]
    return render(request, "library/uploads.html", {"page": page, "rows": rows})


@require_GET
def find_result(request: HttpRequest) -> HttpResponse:
    """Ask for the id of a task, and lead to its page."""
    given = request.GET.get("id", "").strip()
    problem = ""
    if given:
        try:
            found = progress.look_up(given)
        except ValueError as error:
            found, problem = None, str(error)
        if found:
            return redirect("library:result", found[0].task_id)
        problem = problem or f"There is no task {given} here."
    context = {"given": given, "problem": problem}
    return render(request, "library/find_result.html", context, status=404 if problem else 200)


@require_GET
def result(request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Find a task by its id and show how far it is, or what came of it."""
    found = progress.look_up(task_id)
    if found is None:
        raise Http404(f"There is no task {task_id} here.")
    info, outcome = found
    context = {
        "info": info,
        "name": info.task_name.rpartition(".")[2],
        "error": outcome.err if outcome is not None else None,
        "values": list(progress.told(outcome.ok)) if outcome is not None and outcome.is_ok() else [],
        "seconds": (info.finished_at - info.started_at).total_seconds()
        if outcome is not None and info.started_at
        else None,
        "steps": progress.steps_around(task_id),
    }
    return render(request, "library/result.html", context)


@require_GET
def search_page(request: HttpRequest) -> HttpResponse:
    """Search the texts."""
    # PostgreSQL's text cannot hold a NUL byte, which an address can.
    words = request.GET.get("q", "").replace("\x00", "").strip()[:200]
    hits = [(hit, marked(hit.headline)) for hit in search(words)] if words else []
    return render(request, "library/search.html", {"words": words, "hits": hits})


@require_GET
def near_duplicates_page(request: HttpRequest) -> HttpResponse:
    """Show the pairs of documents that are most alike."""
    return render(request, "library/near_duplicates.html", {"pairs": near_duplicates(PAIRS)})


@login_required
@require_POST
def verify(request: HttpRequest) -> HttpResponse:
    """Have every document that was not checked yet fetched back from this site and compared with its checksum."""
    with transaction.atomic():
        waiting = list(Document.objects.filter(verified_at=None).only("pk", "digest"))
        handles = verify_document.send_many(
            {"document_id": item.pk, "url": address_of(request, item), "digest": item.digest} for item in waiting
        )
        for item, handle in zip(waiting, handles, strict=True):
            item.verify_task = handle.task_id
        Document.objects.bulk_update(waiting, ["verify_task"], batch_size=500)
    messages.success(request, f"{len(handles):,} documents will be fetched back and compared.")
    return redirect("library:documents")


def address_of(request: HttpRequest, found: Document) -> str:
    """Return where this site serves the document as it came in."""
    return request.build_absolute_uri(reverse("library:raw", args=[found.pk]))
