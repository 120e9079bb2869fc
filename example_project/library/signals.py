"""The receiver that sends ``index_document`` for each saved document.

It does not matter whether the admin, a shell or another app saves the document. Imports index their
documents themselves.
"""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from example_project.library.models import Document
from example_project.library.tasks import index_document
from horsies_django.conf import config


@receiver(post_save, sender=Document, dispatch_uid="library_index_saved_document")
def index_saved_document(*, instance: Document, raw: bool, using: str, **kwargs: Any) -> None:
    """Send ``index_document`` in the transaction that saves the document.

    Both are committed, or neither is. The queue merges waiting tasks, so that each save is followed
    by an attempt that reads it, and many saves need few attempts.

    No task is sent for a fixture (``raw``), which is loaded unchanged, or for an unpublished
    document, which its import indexes. No task is sent for a document on another database either.
    They would not share a transaction, and workers would look for the document on this database.
    """
    if raw or not instance.is_published or using != config().database:
        return
    handle = index_document.send(instance.pk)
    Document.objects.using(using).filter(pk=instance.pk).update(index_task=handle.task_id)
