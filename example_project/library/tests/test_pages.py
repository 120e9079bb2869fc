"""Tests of the pages that show the results of the tasks."""

from __future__ import annotations

import uuid

from django.test import TestCase
from django.urls import reverse

from example_project.library.models import Document, Upload
from example_project.library.tasks import read_file
from example_project.library.tests.visitors import PROSE, logged_in, make_document, upload
from horsies_django.models import Task
from horsies_django.testing import drain

HOSTILE = "<script>alert(1)</script>"


class SearchTests(TestCase):
    """Tests of the search page."""

    def test_a_phrase_finds_its_document_and_marks_what_was_found(self) -> None:
        document = make_document(PROSE)
        make_document("The lazy fox, brown and quick, jumps.", "other.txt")
        drain()

        page = self.client.get(reverse("library:search"), {"q": '"quick brown fox jumps"'})

        self.assertContains(page, document.get_absolute_url())
        self.assertContains(page, "<mark>fox</mark>")
        self.assertNotContains(page, "other.txt")

    def test_a_name_is_found_as_well(self) -> None:
        document = make_document("nothing of interest", "zebra.txt")
        drain()

        self.assertContains(
            self.client.get(reverse("library:search"), {"q": "zebra"}), document.get_absolute_url()
        )

    def test_words_that_are_nowhere_are_said_to_be_nowhere(self) -> None:
        page = self.client.get(reverse("library:search"), {"q": f"{HOSTILE}\x00"})

        self.assertContains(page, "Nothing was found")
        self.assertNotContains(page, HOSTILE)

    def test_html_in_a_document_is_shown_and_not_obeyed(self) -> None:
        make_document(f"A fox {HOSTILE} in a hole", f"{HOSTILE}.txt")
        drain()

        for address in (
            reverse("library:search") + "?q=fox",
            reverse("library:documents"),
            Document.objects.get().get_absolute_url(),
        ):
            page = self.client.get(address)
            self.assertContains(page, "&lt;script&gt;")
            self.assertNotContains(page, HOSTILE)


class NearDuplicatesTests(TestCase):
    """Tests of the page of near-duplicates."""

    def test_texts_that_differ_in_few_words_are_a_pair_and_others_are_not(self) -> None:
        words = [f"word{number}" for number in range(400)]
        one = make_document(" ".join(words), "one.txt")
        words[200] = "changed"
        other = make_document(" ".join(words), "other.txt")
        stranger = make_document(" ".join(f"else{number}" for number in range(400)), "stranger.txt")
        drain()

        page = self.client.get(reverse("library:near_duplicates"))

        self.assertContains(page, one.get_absolute_url())
        self.assertContains(page, other.get_absolute_url())
        self.assertNotContains(page, stranger.get_absolute_url())

    def test_equal_texts_are_no_near_duplicates(self) -> None:
        make_document(PROSE * 5, "one.txt")
        make_document(PROSE * 5, "copy.txt")
        drain()

        self.assertContains(self.client.get(reverse("library:near_duplicates")), "No two documents")


class ResultTests(TestCase):
    """Tests of the page of one task."""

    def test_a_task_that_has_not_run_says_so_and_the_page_looks_again(self) -> None:
        upload(logged_in(self.client), ("fox.txt", b"fox"))
        page = self.client.get(reverse("library:result", args=[Task.objects.get().pk]))

        self.assertContains(page, "pending")
        self.assertContains(page, 'http-equiv="refresh"')

    def test_a_finished_task_shows_its_result_and_the_next_steps(self) -> None:
        upload(logged_in(self.client), ("fox.txt", PROSE.encode()))
        drain()

        document = Document.objects.get()
        run = Upload.objects.get().import_run
        page = self.client.get(
            reverse("library:result", args=[Task.objects.get(task_name=read_file.name).pk])
        )

        self.assertContains(page, reverse("library:import", args=[run]))
        self.assertContains(page, document.digest)
        self.assertContains(page, reverse("library:result", args=[document.index_task]))
        self.assertNotContains(page, 'http-equiv="refresh"')
        self.assertContains(
            self.client.get(reverse("library:result", args=[document.index_task])), "quick 1"
        )

    def test_an_id_that_does_not_exist_is_not_found(self) -> None:
        assert self.client.get(reverse("library:result", args=[uuid.uuid4()])).status_code == 404

    def test_an_id_leads_to_its_page_and_anything_else_is_explained(self) -> None:
        task_id = Document.objects.get(pk=make_document().pk).index_task
        found = self.client.get(reverse("library:find_result"), {"id": str(task_id)})

        self.assertRedirects(found, reverse("library:result", args=[task_id]))

        for wrong, words in (("abc", "is not a task id"), (str(uuid.uuid4()), "There is no task")):
            page = self.client.get(reverse("library:find_result"), {"id": wrong})
            self.assertContains(page, words, status_code=404)


class DocumentTests(TestCase):
    """Tests of the list of documents, a document, and the file as it was uploaded."""

    def test_a_file_is_served_as_it_came_in(self) -> None:
        content = "\ufeffline\r\nünïcode\ttab\n".encode()
        upload(logged_in(self.client), ("bom.txt", content))
        drain()

        served = self.client.get(reverse("library:raw", args=[Document.objects.get().pk]))

        assert served.content == content
        assert served["Content-Type"] == "text/plain; charset=utf-8"

    def test_every_page_works_in_an_empty_library(self) -> None:
        for name in ("documents", "uploads", "search", "near_duplicates", "find_result"):
            assert self.client.get(reverse(f"library:{name}")).status_code == 200, name

    def test_the_admin_lists_and_shows_documents_and_uploads(self) -> None:
        upload(logged_in(self.client), ("fox.txt", b"fox"))
        drain()

        for model in ("document", "upload"):
            address = reverse(f"admin:library_{model}_changelist")
            self.assertContains(self.client.get(address), "shelf/fox.txt")

            pk = (
                Document.objects.get().pk
                if model == "document"
                else Document.objects.get().upload_set.get().pk
            )
            self.assertContains(
                self.client.get(reverse(f"admin:library_{model}_change", args=[pk])), "fox.txt"
            )
