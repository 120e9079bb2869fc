"""Helpers of the library's tests: a login, an upload, a document."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from example_project.library import reading
from example_project.library.models import Document

PROSE = (
    "The quick brown fox jumps over the lazy dog while seven wizards quietly prepare another "
    "remarkable journey. "
)


def logged_in(client: Client) -> Client:
    """Log in a user who may upload, and return the client."""
    users = get_user_model().objects
    client.force_login(
        users.filter(username="librarian").first() or users.create_superuser("librarian")
    )
    return client


def upload(
    client: Client,
    *files: tuple[str, bytes],
    folder: str = "shelf",
    submission: object = None,
    review: bool = False,
) -> Any:
    """Upload files by the form and return the response.

    The same ``submission`` is the same form, sent again.
    """
    chosen = [SimpleUploadedFile(name, content) for name, content in files]
    data = {"submission": submission or uuid.uuid4(), "folder": folder, "files": chosen}
    if review:
        data["review"] = "on"
    return client.post(reverse("library:upload"), data)


def make_document(text: str = PROSE, name: str = "fox.txt") -> Document:
    """Save a document as an import does, and return it."""
    content = text.encode()
    return Document.objects.create(
        name=name, text=text, kind="text", size=len(content), digest=reading.digest(content)
    )
