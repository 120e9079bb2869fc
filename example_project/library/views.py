"""The pages of the library, which send all slow work as tasks."""

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

from example_project.library import progress, reading
from example_project.library.forms import UploadForm
from example_project.library.models import Announcement, Document, Upload
from example_project.library.searching import marked, near_duplicates, search
from example_project.library.tasks import verify_document
from example_project.library.workflows import import_file
from horsies_django import WorkflowHandle, get_workflow

PAGE = 50
PAIRS = 50
PREVIEW_CHARACTERS = 3_000
ANNOUNCED = 5


@require_GET
def documents(request: HttpRequest) -> HttpResponse:
    """Show the documents and the latest announcements."""
    published = Document.objects.filter(is_published=True)
    page = Paginator(published.defer("text", "search"), PAGE).get_page(request.GET.get("page"))
    counts = published.aggregate(
        all=Count("pk"), indexed=Count("indexed_at"), verified=Count("verified_at")
    )

    context = {
        "page": page,
        "counts": counts,
        "announcements": Announcement.objects.all()[:ANNOUNCED],
    }

    return render(request, "library/documents.html", context)


@require_GET
def document(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one document and the results of its tasks."""
    found = get_object_or_404(Document.objects.defer("search"), pk=pk)
    context = {
        "document": found,
        "preview": found.text[:PREVIEW_CHARACTERS],
        "is_cut": len(found.text) > PREVIEW_CHARACTERS,
        "steps": progress.steps_of(found.upload_set.defer("content").first(), found),
    }
    return render(request, "library/document.html", context)


@require_GET
def raw(request: HttpRequest, pk: int) -> HttpResponse:
    """Return a document as it was uploaded, byte for byte."""
    text = get_object_or_404(Document.objects.only("text"), pk=pk).text
    return HttpResponse(text.encode(), content_type="text/plain; charset=utf-8")


@login_required
@require_http_methods(["GET", "POST"])
def upload(request: HttpRequest) -> HttpResponse:
    """Show the upload form, or store the files and send their imports."""
    form = UploadForm(request.POST or None, request.FILES or None)

    if request.method == "POST" and form.is_valid():
        handles = take_in(**form.cleaned_data)
        if len(handles) == 1:
            return redirect("library:import", handles[0].workflow_id)
        return redirect("library:uploads")

    return render(
        request, "library/upload.html", {"form": form}, status=400 if form.errors else 200
    )


@transaction.atomic
def take_in(
    submission: uuid.UUID, folder: str, files: list[UploadedFile], review: bool = False
) -> list[WorkflowHandle]:
    """Store the files and send an import for each, in one transaction.

    So there is no file without its import, and no import without its file. If a form is sent twice,
    the second request finds the uploads and the runs of the first one.
    """
    handles = []
    for file in files:
        content = file.read()
        upload, _ = Upload.objects.defer("content").get_or_create(
            submission=submission,
            folder=folder,
            name=file.name,
            digest=reading.digest(content),
            defaults={"content": content, "review": review},
        )

        handle = import_file(upload.pk, upload.review).send()
        Upload.objects.filter(pk=upload.pk).update(import_run=handle.workflow_id)
        handles.append(handle)

    return handles


@require_GET
def uploads(request: HttpRequest) -> HttpResponse:
    """Show the uploads, latest first, with the states of their imports."""
    page = Paginator(Upload.objects.defer("content"), PAGE).get_page(request.GET.get("page"))
    known = progress.run_statuses([item.import_run for item in page])
    rows = [(item, *known.get(item.import_run, ("not sent", None))) for item in page]
    return render(request, "library/uploads.html", {"page": page, "rows": rows})


@require_GET
def import_run(request: HttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Show the nodes of an import, how far it is, and its result."""
    found = get_object_or_404(Upload.objects.defer("content"), import_run=workflow_id)
    run = get_workflow(workflow_id)

    try:
        status = run.status()
        counts = run.progress()
    except LookupError as gone:  # finished and then deleted, by HORSIES["RETENTION"]
        raise Http404(str(gone)) from gone

    result = run.get(timeout_ms=0) if status in progress.ENDED else None
    context = {
        "upload": found,
        "status": status,
        "progress": counts,
        "nodes": progress.nodes_of(run),
        "ended": result is not None,
        "error": result.err if result is not None else None,
        "values": list(progress.told(result.ok)) if result is not None and result.is_ok() else [],
    }

    return render(request, "library/import.html", context)


@require_GET
def find_result(request: HttpRequest) -> HttpResponse:
    """Show the form for the id of a task, or redirect to the page of that task."""
    given = request.GET.get("id", "").strip()
    problem = ""

    if given:
        try:
            found = progress.look_up(given)
        except ValueError as error:
            found = None
            problem = str(error)

        if found:
            return redirect("library:result", found[0].task_id)
        problem = problem or f"There is no task {given} here."

    context = {"given": given, "problem": problem}
    return render(request, "library/find_result.html", context, status=404 if problem else 200)


@require_GET
def result(request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show how far a task is, or its result."""
    found = progress.look_up(task_id)
    if found is None:
        raise Http404(f"There is no task {task_id} here.")

    info, outcome = found
    context = {
        "info": info,
        "name": info.task_name.rpartition(".")[2],
        "error": outcome.err if outcome is not None else None,
        "values": list(progress.told(outcome.ok))
        if outcome is not None and outcome.is_ok()
        else [],
        "seconds": (info.finished_at - info.started_at).total_seconds()
        if outcome is not None and info.started_at
        else None,
        "steps": progress.steps_around(task_id),
    }

    return render(request, "library/result.html", context)


@require_GET
def search_page(request: HttpRequest) -> HttpResponse:
    """Show the form of the search and its hits."""
    # An address can contain a NUL byte, but PostgreSQL's text cannot.
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
    """Send a check for each published document that was not checked yet.

    The task fetches the document from this site and compares it with its checksum.
    """
    with transaction.atomic():
        waiting = list(
            Document.objects.filter(verified_at=None, is_published=True).only("pk", "digest")
        )
        handles = verify_document.send_many(
            {"document_id": item.pk, "url": address_of(request, item), "digest": item.digest}
            for item in waiting
        )

        for item, handle in zip(waiting, handles, strict=True):
            item.verify_task = handle.task_id
        Document.objects.bulk_update(waiting, ["verify_task"], batch_size=500)

    messages.success(request, f"{len(handles):,} documents will be fetched back and compared.")
    return redirect("library:documents")


def address_of(request: HttpRequest, found: Document) -> str:
    """Return the address at which this site serves the document as it was uploaded."""
    return request.build_absolute_uri(reverse("library:raw", args=[found.pk]))
