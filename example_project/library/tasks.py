"""The library's tasks: the parts of an import and its undo, index documents, check that the site
serves them unchanged.

Each may run twice without harm: a worker can be killed between the last write of a task and the
note that it is done. So each is tried again when its process or its whole worker died.
"""

from __future__ import annotations

from django.contrib.postgres.search import SearchVector
from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Substr
from django.urls import reverse
from django.utils import timezone

from example_project.library import reading
from example_project.library.fetching import fetch
from example_project.library.models import Announcement, Document, Fingerprint, Upload
from example_project.library.results import Chapter, Counts, Imported, Indexed, Kind, Verified
from example_project.library.searching import CONFIG
from horsies_django import Results, RetryPolicy, TaskError, TaskResult, current_task, task
from horsies_django.schedules import Every

REINDEXED = 25  # documents at a time
UNDO = RetryPolicy.exponential(base_seconds=1, max_retries=10)
REPEATABLE = RetryPolicy.exponential(
    base_seconds=1, max_retries=3, auto_retry_for=["WORKER_CRASHED"]
)


@task(queue="imports", retry_policy=REPEATABLE)
def read_file(upload_id: int) -> TaskResult[Imported, TaskError]:
    """Make a document of an uploaded file; the error is NOT_TEXT for one that is no UTF-8 text."""
    upload = Upload.objects.filter(pk=upload_id).first()
    if upload is None:
        return TaskResult(err=TaskError("UPLOAD_GONE", f"upload {upload_id} has been deleted"))

    content = bytes(upload.content)
    try:
        text = reading.decode(content)
    except reading.NotText as problem:
        place = {"path": upload.path, "position": problem.position}
        return TaskResult(err=TaskError("NOT_TEXT", f"{upload.path}: {problem}", data=place))

    kind = Kind.of(upload.name)
    with transaction.atomic():
        # Locked: the undo of another import of the same file may be about to remove it.
        document, _ = Document.objects.select_for_update().get_or_create(
            folder=upload.folder,
            name=upload.name,
            digest=upload.digest,
            defaults={
                "text": text,
                "size": len(content),
                "kind": kind.value,
                "is_published": False,
            },
        )
        Upload.objects.filter(pk=upload_id).update(document=document)

    is_new = not document.is_published
    return TaskResult(
        ok=Imported(document.pk, document.path, kind, len(content), document.digest, is_new)
    )


@task(queue="imports", retry_policy=UNDO)
def remove_document(upload_id: int, result: Imported | None) -> bool:
    """Undo ``read_file``: delete its document, unless it is published or another upload has it;
    return whether it did.

    Without a result, it is not known how the reading ended: the upload knows its document, because
    both commit together.
    """
    upload = Upload.objects.filter(pk=upload_id)
    document_id = (
        result.document_id if result else upload.values_list("document_id", flat=True).first()
    )

    with transaction.atomic():
        document = (
            Document.objects.select_for_update()
            .only("pk")
            .filter(pk=document_id, is_published=False)
            .first()
        )
        if document is None:
            return False

        upload.update(document=None)
        if Upload.objects.filter(document=document).exists():
            return False
        document.delete()

    return True


@task(queue="imports", retry_policy=REPEATABLE)
def split_document(imported: Imported) -> TaskResult[list[Chapter], TaskError]:
    """Find the chapters of a document."""
    text = text_of(imported.document_id)
    if text is None:
        return TaskResult(err=document_gone(imported.document_id))

    found = []
    start = 0
    for chapter in reading.chapters(text):
        found.append(Chapter(imported.document_id, start, len(chapter)))
        start += len(chapter)

    return TaskResult(ok=found)


@task(queue="indexing", retry_policy=REPEATABLE)
def measure_chapter(chapter: Chapter) -> TaskResult[reading.Measured, TaskError]:
    """Count and fingerprint a chapter."""
    text = text_of(chapter.document_id, chapter.start, chapter.length)
    if text is None:
        return TaskResult(err=document_gone(chapter.document_id))
    return TaskResult(ok=reading.measure(text))


@task(queue="indexing", retry_policy=REPEATABLE)
def index_chapters(
    imported: Imported, measured: Results[reading.Measured]
) -> TaskResult[Indexed, TaskError]:
    """Index a document whose chapters have been measured; they are read one after the other,
    however many there are.
    """
    Document.objects.filter(pk=imported.document_id).update(index_task=current_task().task_id)
    return write_index(imported.document_id, reading.combine(measured))


@task(queue="imports", retry_policy=REPEATABLE)
def publish(imported: Imported) -> TaskResult[str, TaskError]:
    """Show a document to visitors, announce it once, and return the address of its page."""
    if not Document.objects.filter(pk=imported.document_id).update(is_published=True):
        return TaskResult(err=document_gone(imported.document_id))
    current_task().step("announce", announce, imported.document_id, imported.path)
    return TaskResult(ok=reverse("library:document", args=[imported.document_id]))


def announce(document_id: int, path: str) -> None:
    """Tell visitors of a new document."""
    Announcement.objects.create(document_id=document_id, text=f"New in the library: {path}")


@task(queue="search", retry_policy=REPEATABLE)
def index_document(document_id: int) -> TaskResult[Indexed, TaskError]:
    """Measure and index a document in one task, which the document remembers: others that waited
    were merged into it.
    """
    Document.objects.filter(pk=document_id).update(index_task=current_task().task_id)
    return index_whole(document_id)


def index_whole(document_id: int) -> TaskResult[Indexed, TaskError]:
    """Measure and index a document."""
    text = text_of(document_id)
    if text is None:
        return TaskResult(err=document_gone(document_id))
    return write_index(document_id, reading.combine(map(reading.measure, reading.chapters(text))))


# So often because nobody watches a demo for a day.
@task(queue="search", priority=100, retry_policy=REPEATABLE, schedule=Every(seconds=15))
def reindex() -> int:
    """Index the documents anew whose index is the oldest, and return how many."""
    indexed = Document.objects.filter(indexed_at__isnull=False).order_by("indexed_at")
    return sum(index_whole(pk).is_ok() for pk in indexed.values_list("pk", flat=True)[:REINDEXED])


@task(queue="verify", retry_policy=REPEATABLE)
async def verify_document(
    document_id: int, url: str, digest: str
) -> TaskResult[Verified, TaskError]:
    """Fetch a document from the running site and compare what comes with the checksum of what was
    stored.
    """
    response = await fetch(url)
    if response.status != 200:
        return TaskResult(
            err=TaskError("NOT_SERVED", f"{url} answered with status {response.status}")
        )

    found = reading.digest(response.body)
    if found != digest:
        message = f"{url} gave other bytes than were stored: SHA-256 {found}, not {digest}"
        return TaskResult(
            err=TaskError("CHECKSUM_DIFFERS", message, data={"found": found, "stored": digest})
        )

    now = timezone.now()
    if not await Document.objects.filter(pk=document_id).aupdate(verified_at=now):
        return TaskResult(err=document_gone(document_id))
    return TaskResult(ok=Verified(document_id, url, len(response.body), digest, now))


def text_of(document_id: int, start: int = 0, length: int | None = None) -> str | None:
    """Return the text of a document, or a part of it; None when the document was deleted."""
    part = Substr("text", start + 1, length)
    return Document.objects.filter(pk=document_id).values_list(part, flat=True).first()


def write_index(document_id: int, measured: reading.Measured) -> TaskResult[Indexed, TaskError]:
    """Keep the counts and fingerprints of a document, and put it into the full-text index."""
    now = timezone.now()

    with transaction.atomic():
        # Two tasks that index the same document at the same time take turns.
        document = (
            Document.objects.select_for_update()
            .only("folder", "name")
            .filter(pk=document_id)
            .first()
        )
        if document is None:
            return TaskResult(err=document_gone(document_id))

        # The name weighs more than the text, so that a search for it finds the file itself first.
        # Its words stand apart: as they are, PostgreSQL takes "zebra.txt" for the name of a host.
        vector = SearchVector(
            Value(" ".join(reading.WORD.findall(document.path))), weight="A", config=CONFIG
        )
        vector += SearchVector("text", weight="C", config=CONFIG)

        Fingerprint.objects.filter(document=document).delete()
        Fingerprint.objects.bulk_create(
            Fingerprint(document=document, value=value) for value in measured.fingerprints
        )
        Document.objects.filter(pk=document_id).update(
            lines=measured.lines, words=measured.words, search=vector, indexed_at=now
        )

    counts = Counts(measured.lines, measured.words, measured.characters)
    return TaskResult(
        ok=Indexed(document_id, counts, measured.common, len(measured.fingerprints), now)
    )


def document_gone(document_id: int) -> TaskError:
    """Make the error of a task whose document was deleted before it ran."""
    return TaskError("DOCUMENT_GONE", f"document {document_id} has been deleted")
