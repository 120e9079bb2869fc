"""The tasks of the library, which import, index and check documents.

Each task may run twice without harm, because a worker can be killed between the last write of a
task and the record of its end. So each is tried again if its process or its whole worker dies.
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
    """Create a document from an uploaded file.

    The error is NOT_TEXT if the file is not a UTF-8 text, and UPLOAD_GONE if it was deleted.
    """
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
        # The row is locked, because the undo of another import of the same file may be about to
        # delete it.
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
    """Undo ``read_file`` by deleting its document, and return whether it was deleted.

    The document is kept if it is published or if another upload has it. Without a result, it is not
    known how the reading ended. Then the upload contains the id of the document, because both are
    committed together.
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
    """Return the chapters of a document."""
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
    """Return the counts and the fingerprints of a chapter."""
    text = text_of(chapter.document_id, chapter.start, chapter.length)
    if text is None:
        return TaskResult(err=document_gone(chapter.document_id))
    return TaskResult(ok=reading.measure(text))


@task(queue="indexing", retry_policy=REPEATABLE)
def index_chapters(
    imported: Imported, measured: Results[reading.Measured]
) -> TaskResult[Indexed, TaskError]:
    """Index a document whose chapters have been measured.

    The results are read one after the other, however many there are.
    """
    Document.objects.filter(pk=imported.document_id).update(index_task=current_task().task_id)
    return write_index(imported.document_id, reading.combine(measured))


@task(queue="imports", retry_policy=REPEATABLE)
def publish(imported: Imported) -> TaskResult[str, TaskError]:
    """Publish a document, announce it once, and return the address of its page."""
    if not Document.objects.filter(pk=imported.document_id).update(is_published=True):
        return TaskResult(err=document_gone(imported.document_id))
    current_task().step("announce", announce, imported.document_id, imported.path)
    return TaskResult(ok=reverse("library:document", args=[imported.document_id]))


def announce(document_id: int, path: str) -> None:
    """Create the announcement of a new document."""
    Announcement.objects.create(document_id=document_id, text=f"New in the library: {path}")


@task(queue="search", retry_policy=REPEATABLE)
def index_document(document_id: int) -> TaskResult[Indexed, TaskError]:
    """Measure and index a document in one task, and store the id of the task in the document.

    Other waiting tasks for the same document were merged into this one.
    """
    Document.objects.filter(pk=document_id).update(index_task=current_task().task_id)
    return index_whole(document_id)


def index_whole(document_id: int) -> TaskResult[Indexed, TaskError]:
    """Measure all chapters of a document and index it."""
    text = text_of(document_id)
    if text is None:
        return TaskResult(err=document_gone(document_id))
    return write_index(document_id, reading.combine(map(reading.measure, reading.chapters(text))))


# The interval is so short because the demo does not run for a day.
@task(queue="search", priority=100, retry_policy=REPEATABLE, schedule=Every(seconds=15))
def reindex() -> int:
    """Index the documents with the oldest index again, and return how many there were."""
    indexed = Document.objects.filter(indexed_at__isnull=False).order_by("indexed_at")
    return sum(index_whole(pk).is_ok() for pk in indexed.values_list("pk", flat=True)[:REINDEXED])


@task(queue="verify", retry_policy=REPEATABLE)
async def verify_document(
    document_id: int, url: str, digest: str
) -> TaskResult[Verified, TaskError]:
    """Fetch a document from the running site and compare it with the stored checksum."""
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
    """Return the text of a document or a part of it, or None if the document was deleted."""
    part = Substr("text", start + 1, length)
    return Document.objects.filter(pk=document_id).values_list(part, flat=True).first()


def write_index(document_id: int, measured: reading.Measured) -> TaskResult[Indexed, TaskError]:
    """Store the counts, the fingerprints and the search vector of a document."""
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

        # The path has a greater weight than the text, so that a search for a name finds the file
        # itself first. Its words are separated, because PostgreSQL reads "zebra.txt" as the name of
        # a host.
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
    """Return the error of a task whose document was deleted before it ran."""
    return TaskError("DOCUMENT_GONE", f"document {document_id} has been deleted")
