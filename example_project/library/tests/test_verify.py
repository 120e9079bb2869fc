"""Tests of documents that are fetched back over HTTP from a running site."""

from __future__ import annotations

from typing import Any

from django.test import Client, LiveServerTestCase
from django.urls import reverse

from example_project.library.models import Document
from example_project.library.tasks import verify_document
from example_project.library.tests.visitors import PROSE, logged_in, make_document
from horsies_django.testing import drain


class VerifyTests(LiveServerTestCase):
    """Tests of the button, the async task that it sends, and the site that serves the document."""

    def press(self) -> Any:
        """Press the button on the running site."""
        host = self.live_server_url.removeprefix("http://")
        return logged_in(Client(headers={"host": host})).post(reverse("library:verify"))

    def test_a_document_that_the_site_serves_unchanged_is_noted_as_equal(self) -> None:
        make_document(f"{PROSE} ünïcode\r\n")
        drain()

        self.assertRedirects(
            self.press(), reverse("library:documents"), fetch_redirect_response=False
        )
        assert drain() == 1

        document = Document.objects.get()
        assert document.verified_at is not None
        assert (
            verify_document.handle(document.verify_task).get(timeout_ms=0).ok_value.digest
            == document.digest
        )

    def test_a_document_that_was_checked_is_not_checked_again(self) -> None:
        make_document()
        drain()
        self.press()
        drain()

        self.press()

        assert drain() == 0

    def test_a_text_that_was_changed_ends_with_a_code(self) -> None:
        make_document()
        drain()
        Document.objects.update(text="something else")

        self.press()
        drain(raise_errors=False)

        document = Document.objects.get()
        error = verify_document.handle(document.verify_task).get(timeout_ms=0).err_value
        assert (error.error_code, error.data["stored"]) == ("CHECKSUM_DIFFERS", document.digest)
        assert document.verified_at is None

    def test_an_address_that_serves_nothing_ends_with_a_code(self) -> None:
        handle = verify_document.send(0, f"{self.live_server_url}/documents/0/raw/", "0" * 64)
        drain(raise_errors=False)

        error = handle.get(timeout_ms=0).err_value
        assert (error.error_code, "status 404" in error.message) == ("NOT_SERVED", True)
