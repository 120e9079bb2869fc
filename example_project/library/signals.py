"""A document that is saved is indexed, whoever saves it: the admin, a shell, another app.

Imports index theirs themselves.
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
    """Send ``index_document``, in the transaction that saves the document: both come to be, or
    neither.

    The queue merges those that wait, so each save is followed by a run that sees it, and many saves
    by few runs. Fixtures (``raw``) bring what they want to bring, and an import indexes its
    document before it publishes it. A document on another database would not share a transaction
    with its task, and workers would look for it on this one, so it is left alone.
    """
    if raw or not instance.is_published or using != config().database:
        return
    handle = index_document.send(instance.pk)
    Document.objects.using(using).filter(pk=instance.pk).update(index_task=handle.task_id)
