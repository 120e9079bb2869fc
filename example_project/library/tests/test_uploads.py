"""Tests of files that are uploaded by the page and become documents."""

from __future__ import annotations

import uuid

from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.test import TestCase
from django.urls import reverse

from example_project.library.models import Document, Upload
from example_project.library.results import Imported, Kind
from example_project.library.tasks import reindex
from example_project.library.tests.visitors import logged_in, upload
from example_project.library.views import take_in
from horsies_django import WorkflowHandle, get_handle, get_workflow
from horsies_django.models import Task, WorkflowRun
from horsies_django.schedules import declare, run_now
from horsies_django.testing import drain

LATIN_1 = "Grüße".encode("latin-1")


def import_of(upload: Upload) -> WorkflowHandle:
    """Return the run that imports an upload."""
    return get_workflow(upload.import_run)


class UploadTests(TestCase):
    """Tests of uploads, one transaction each, in which ``drain`` runs the tasks."""

    def test_an_uploaded_file_becomes_a_document_that_is_indexed(self) -> None:
        response = upload(logged_in(self.client), ("fox.py", b"print('fox')\n"))
        sent = Upload.objects.get()

        self.assertRedirects(response, reverse("library:import", args=[sent.import_run]))
        assert drain() == 5  # read, split, one chapter, index, publish

        document = Document.objects.get()
        assert (document.path, document.lines, document.words) == ("shelf/fox.py", 1, 2)
        assert document.indexed_at is not None
        assert document.is_published

    def test_what_was_indexed_long_ago_is_indexed_anew_by_schedule(self) -> None:
        upload(logged_in(self.client), ("fox.py", b"print('fox')\n"), ("owl.py", b"print('owl')\n"))
        drain()

        # The fox is not indexed yet, which is the work of another task.
        Document.objects.filter(name="fox.py").update(words=0, indexed_at=None)
        Document.objects.filter(name="owl.py").update(words=0)

        declare(actor="a test")
        handle = get_handle(run_now(reindex.name, actor="a test"))
        drain()

        assert handle.get(timeout_ms=0).ok_value == 1
        assert list(Document.objects.order_by("name").values_list("words", flat=True)) == [0, 2]

    def test_a_result_comes_back_as_the_type_that_the_task_declares(self) -> None:
        upload(logged_in(self.client), ("LICENSE", b"Do what you like."))
        drain()

        result = import_of(Upload.objects.get()).results()["read_file"]
        document = Document.objects.get()
        expected = Imported(
            document.pk, "shelf/LICENSE", Kind.LICENSE, 17, document.digest, is_new=True
        )

        assert result.ok_value == expected

    def test_an_upload_that_is_rolled_back_leaves_neither_a_file_nor_a_task(self) -> None:
        with transaction.atomic():
            handles = take_in(uuid.uuid4(), "shelf", [SimpleUploadedFile("fox.txt", b"fox")])
            assert (len(handles), Task.objects.count(), Upload.objects.count()) == (1, 1, 1)
            assert WorkflowRun.objects.count() == 1
            transaction.set_rollback(True)

        assert (Task.objects.count(), Upload.objects.count(), WorkflowRun.objects.count()) == (
            0,
            0,
            0,
        )

    def test_a_file_that_is_not_utf8_ends_failed_and_its_page_gives_the_reason(self) -> None:
        upload(logged_in(self.client), ("old.txt", LATIN_1))
        drain(raise_errors=False)

        run = Upload.objects.get().import_run
        assert WorkflowRun.objects.values_list("status", "error_code").get(pk=run) == (
            "FAILED",
            "NOT_TEXT",
        )

        task = Task.objects.get()
        assert (task.status, task.error_code) == ("FAILED", "NOT_TEXT")

        for address in (
            reverse("library:import", args=[run]),
            reverse("library:result", args=[task.pk]),
        ):
            page = self.client.get(address)
            self.assertContains(page, "NOT_TEXT")
            self.assertContains(page, "shelf/old.txt: byte 0xfc at position 2 is not UTF-8")

        assert not Document.objects.exists()

    def test_a_file_with_a_nul_byte_is_not_text_either(self) -> None:
        upload(logged_in(self.client), ("nul.txt", b"a\x00b"))
        drain(raise_errors=False)

        error = import_of(Upload.objects.get()).results()["read_file"].err_value
        assert (error.error_code, error.data) == (
            "NOT_TEXT",
            {"path": "shelf/nul.txt", "position": 1},
        )

    def test_an_empty_file_is_a_document_with_no_words(self) -> None:
        upload(logged_in(self.client), ("empty.py", b""))
        drain()

        assert (Document.objects.get().words, Document.objects.get().size) == (0, 0)

    def test_the_same_file_again_is_the_same_document(self) -> None:
        logged_in(self.client)
        upload(self.client, ("fox.txt", b"fox"))
        upload(self.client, ("fox.txt", b"fox"))
        drain(queues=["imports"])

        assert drain() > 0
        assert Document.objects.count() == 1

        upload(self.client, ("fox.txt", b"fox"))

        assert drain() == 1  # the library has the file, so it is only read
        assert Document.objects.count() == 1
        assert Upload.objects.filter(document=Document.objects.get()).count() == 3

        runs = [import_of(one) for one in Upload.objects.order_by("pk")]
        assert [run.results()["read_file"].ok_value.is_new for run in runs] == [True, True, False]
        assert [run.status() for run in runs] == ["COMPLETED"] * 3
        assert [run.progress().skipped for run in runs] == [0, 0, 4]

        page = self.client.get(reverse("library:import", args=[runs[-1].workflow_id]))
        self.assertContains(page, "skipped")
        self.assertContains(page, "<dt>is new</dt><dd>no</dd>")

    def test_a_form_that_is_sent_twice_imports_its_files_once(self) -> None:
        logged_in(self.client)
        form = str(self.client.get(reverse("library:upload")).context["form"]["submission"].value())

        first, second = (
            upload(self.client, ("fox.txt", b"fox"), submission=form) for _ in range(2)
        )

        assert first.url == second.url
        assert (Upload.objects.count(), WorkflowRun.objects.count(), Task.objects.count()) == (
            1,
            1,
            1,
        )

        drain()

        assert upload(self.client, ("fox.txt", b"fox"), submission=form).url == first.url
        assert drain() == 0

    def test_another_file_in_a_form_that_was_sent_before_is_not_taken_for_the_first(self) -> None:
        form = uuid.uuid4()
        for content in (b"fox", b"owl"):
            upload(logged_in(self.client), ("same.txt", content), submission=form)
        drain()

        assert sorted(Document.objects.values_list("text", flat=True)) == ["fox", "owl"]

    def test_several_files_lead_to_the_list_that_shows_what_became_of_each(self) -> None:
        response = upload(logged_in(self.client), ("a.txt", b"a"), ("b.txt", LATIN_1))
        self.assertRedirects(response, reverse("library:uploads"))

        drain(raise_errors=False)
        page = self.client.get(reverse("library:uploads"))

        self.assertContains(page, "completed")
        self.assertContains(page, "NOT_TEXT")

    def test_a_file_that_is_too_large_is_refused_and_nothing_is_sent(self) -> None:
        response = upload(
            logged_in(self.client), ("ok.txt", b"fine"), ("big.txt", b"x" * (2 * 2**20 + 1))
        )

        self.assertContains(response, "big.txt has 2,097,153 bytes", status_code=400)
        assert not (Task.objects.exists())
        assert not (Upload.objects.exists())

    def test_a_form_without_a_file_says_so(self) -> None:
        response = logged_in(self.client).post(reverse("library:upload"), {"folder": "shelf"})
        self.assertContains(response, "This field is required", status_code=400)

    def test_a_visitor_who_is_not_logged_in_is_led_to_the_login(self) -> None:
        response = upload(self.client, ("fox.txt", b"fox"))

        self.assertRedirects(response, f"{reverse('admin:login')}?next={reverse('library:upload')}")
        assert not Upload.objects.exists()

    def test_an_upload_that_was_deleted_before_its_task_ran_fails_with_a_code(self) -> None:
        upload(logged_in(self.client), ("fox.txt", b"fox"))
        run = import_of(Upload.objects.get())

        Upload.objects.all().delete()
        drain(raise_errors=False)

        assert run.results()["read_file"].err_value.error_code == "UPLOAD_GONE"
        assert run.get(timeout_ms=0).err_value.data == {
            "node": "read_file",
            "error_code": "UPLOAD_GONE",
        }
