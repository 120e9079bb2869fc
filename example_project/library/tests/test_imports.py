"""Tests of imports.

An import is a workflow whose nodes run one after the other, with all chapters at the same time. Its
page shows how far it is.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from example_project.library import reading
from example_project.library.models import Document, Upload
from example_project.library.tasks import index_document, measure_chapter
from example_project.library.tests.visitors import PROSE, logged_in, upload
from example_project.library.views import take_in
from example_project.library.workflows import import_file
from horsies_django import WorkflowHandle, get_workflow
from horsies_django.models import Task, WorkflowRun
from horsies_django.testing import drain

BOOK = (
    "".join(f"{number} {PROSE}\n" for number in range(500)).encode()
    + b"The end: a zebra crosses.\n"
)


class ImportTests(TestCase):
    """Tests of imports in which ``drain`` runs the tasks and advances the runs."""

    def import_book(self, content: bytes = BOOK) -> str:
        """Upload a book and return the address of its import."""
        return str(upload(logged_in(self.client), ("book.txt", content)).url)

    def test_each_chapter_is_measured_by_a_task_of_its_own_and_all_are_in_the_index(self) -> None:
        self.import_book()
        drain()

        document = Document.objects.get()
        assert Task.objects.filter(task_name=measure_chapter.name).count() == 3
        assert (document.lines, document.words) == (501, 500 * 18 + 5)
        assert document.fingerprint_set.count() == reading.FINGERPRINTS

        page = self.client.get(reverse("library:search"), {"q": '"the end: a zebra crosses"'})
        self.assertContains(page, document.get_absolute_url())

    def test_an_import_and_the_task_that_indexes_a_document_alone_write_the_same_index(
        self,
    ) -> None:
        self.import_book()
        drain()

        def index() -> list[object]:
            counted = Document.objects.values_list("lines", "words", "search").get()
            return [
                counted,
                sorted(Document.objects.get().fingerprint_set.values_list("value", flat=True)),
            ]

        before = index()
        index_document.send(Document.objects.get().pk)
        drain()

        assert index() == before

    def test_a_document_is_found_by_visitors_once_its_import_has_published_it(self) -> None:
        self.import_book()
        drain(queues=["imports"])
        drain(queues=["indexing"])

        document = Document.objects.get()
        assert document.indexed_at is not None
        assert not document.is_published

        pages = (reverse("library:documents"), f"{reverse('library:search')}?q=fox")
        for address in pages:
            self.assertNotContains(self.client.get(address), "book.txt")

        drain()
        for address in pages:
            self.assertContains(self.client.get(address), "book.txt")

    def test_the_page_tells_how_far_an_import_is(self) -> None:
        address = self.import_book()
        page = self.client.get(address)

        self.assertContains(page, "0 of 5 completed")
        self.assertContains(page, 'http-equiv="refresh"')

        drain(queues=["imports"])  # read and split, so the number of chapters is known
        page = self.client.get(address)

        self.assertContains(page, "2 of 7 completed")
        self.assertContains(page, "0 of 3")

        drain()
        page = self.client.get(address)

        self.assertContains(page, "7 of 7 completed")
        self.assertContains(page, "3 of 3")
        self.assertContains(page, Document.objects.get().digest)
        self.assertContains(page, Document.objects.get().get_absolute_url())
        self.assertNotContains(page, 'http-equiv="refresh"')

        for task in Task.objects.exclude(task_name=measure_chapter.name):
            self.assertContains(page, reverse("library:result", args=[task.pk]))
            self.assertContains(self.client.get(reverse("library:result", args=[task.pk])), address)

    def test_a_document_that_is_deleted_in_between_fails_the_import_with_a_code(self) -> None:
        address = self.import_book()
        drain(queues=["imports"])

        Document.objects.all().delete()
        drain(raise_errors=False)

        page = self.client.get(address)
        self.assertContains(page, "WORKFLOW_FAILED")
        self.assertContains(page, "MAP_FAILED")
        self.assertContains(page, "undo read_file")
        self.assertContains(page, "3 of 8 completed, 3 failed, 2 skipped")
        assert not Document.objects.exists()

    def test_a_paused_import_says_so_and_goes_on_when_it_is_resumed(self) -> None:
        address = self.import_book()
        run = get_workflow(Upload.objects.get().import_run)
        run.pause(actor="a test")

        assert drain() == 0
        self.assertContains(self.client.get(address), "Somebody has paused this import")

        run.resume(actor="a test")
        drain()

        assert Document.objects.get().is_published

    def test_sending_an_import_again_returns_the_run_that_there_is(self) -> None:
        self.import_book()
        sent = Upload.objects.get()

        assert import_file(sent.pk).send().workflow_id == sent.import_run
        assert WorkflowRun.objects.count() == 1

    def test_an_import_that_does_not_exist_or_was_deleted_is_not_found(self) -> None:
        assert self.client.get(reverse("library:import", args=[uuid.uuid4()])).status_code == 404

        gone = Upload.objects.create(
            name="a", content=b"", submission=uuid.uuid4(), import_run=uuid.uuid4()
        )

        assert self.client.get(reverse("library:import", args=[gone.import_run])).status_code == 404


class DoubleSubmitTests(TransactionTestCase):
    """Tests of two requests at the same time, which have two connections."""

    def test_a_form_that_is_sent_twice_at_the_same_time_gives_one_run_to_both(self) -> None:
        form = uuid.uuid4()

        def submit() -> list[WorkflowHandle]:
            try:
                return take_in(form, "shelf", [SimpleUploadedFile("fox.txt", b"fox")])
            finally:
                connection.close()

        with ThreadPoolExecutor(1) as other:
            with transaction.atomic():
                first = take_in(form, "shelf", [SimpleUploadedFile("fox.txt", b"fox")])
                second = other.submit(submit)
                self.wait_until_somebody_waits_for_this_transaction()

                assert not second.done()
            assert second.result(timeout=30) == first

        assert (Upload.objects.count(), WorkflowRun.objects.count(), Task.objects.count()) == (
            1,
            1,
            1,
        )

    def wait_until_somebody_waits_for_this_transaction(self) -> None:
        """Wait until the other request is blocked by the upload of the first one."""
        for _ in range(600):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_locks WHERE pg_backend_pid() = ANY "
                    "(pg_blocking_pids(pid))"
                )
                if cursor.fetchone()[0]:
                    return

            threading.Event().wait(0.05)

        self.fail("nobody waits")
