"""Uploads, the documents made from them, and their announcements and fingerprints."""

from __future__ import annotations

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.translation import gettext_lazy as _


class Document(models.Model):
    """A text of the library, which visitors find after it is published.

    The counts and the search vector are empty until it is indexed.
    """

    folder = models.CharField(_("folder"), max_length=200, blank=True)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=10)
    text = models.TextField(_("text"), blank=True)
    size = models.IntegerField(_("bytes"))
    digest = models.CharField(_("SHA-256"), max_length=64)
    created_at = models.DateTimeField(_("imported"), db_default=Now())
    is_published = models.BooleanField(_("published"), default=True)
    lines = models.IntegerField(_("lines"), null=True)
    words = models.IntegerField(_("words"), null=True)
    search = SearchVectorField(_("search vector"), null=True, editable=False)
    index_task = models.UUIDField(_("indexing task"), null=True, editable=False, db_index=True)
    indexed_at = models.DateTimeField(_("indexed"), null=True)
    verify_task = models.UUIDField(_("checking task"), null=True, editable=False, db_index=True)
    verified_at = models.DateTimeField(_("checked"), null=True)

    class Meta:
        verbose_name = _("document")
        verbose_name_plural = _("documents")
        ordering = ("folder", "name", "pk")
        indexes = (GinIndex(fields=["search"], name="library_document_search"),)
        constraints = (
            models.UniqueConstraint(
                fields=["folder", "name", "digest"], name="library_document_once"
            ),
        )

    def __str__(self) -> str:
        return self.path

    def get_absolute_url(self) -> str:
        return reverse("library:document", args=[self.pk])

    @property
    def path(self) -> str:
        """The folder and the name, as in ``json/decoder.py``."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


class Upload(models.Model):
    """An uploaded file of any content, and the workflow run that imports it.

    The bytes are in the database, so that they are committed together with the run, and every
    worker can read them. ``submission`` is created with the form, so that the files of a form that
    is sent twice are stored once.
    """

    folder = models.CharField(_("folder"), max_length=200, blank=True)
    name = models.CharField(_("name"), max_length=200)
    content = models.BinaryField(_("content"))
    digest = models.CharField(_("SHA-256"), max_length=64)
    submission = models.UUIDField(_("submission"), editable=False)
    review = models.BooleanField(_("reviewed before it is published"), default=False)
    uploaded_at = models.DateTimeField(_("uploaded"), db_default=Now())
    import_run = models.UUIDField(_("import"), null=True, editable=False, unique=True)
    document = models.ForeignKey(
        Document, verbose_name=_("document"), null=True, on_delete=models.SET_NULL
    )

    class Meta:
        verbose_name = _("upload")
        verbose_name_plural = _("uploads")
        ordering = ("-pk",)
        constraints = (
            models.UniqueConstraint(
                fields=["submission", "folder", "name", "digest"], name="library_upload_once"
            ),
        )

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """The folder and the name."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


class Announcement(models.Model):
    """The announcement of a new document to visitors."""

    document = models.ForeignKey(Document, verbose_name=_("document"), on_delete=models.CASCADE)
    at = models.DateTimeField(_("at"), db_default=Now())
    text = models.CharField(_("text"), max_length=500)

    class Meta:
        verbose_name = _("announcement")
        verbose_name_plural = _("announcements")
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.text


class Fingerprint(models.Model):
    """One of the fingerprints of a document.

    The primary key is also the index that finds other documents with the same fingerprint.
    """

    pk = models.CompositePrimaryKey("value", "document_id")
    value = models.BigIntegerField(_("value"))
    document = models.ForeignKey(Document, verbose_name=_("document"), on_delete=models.CASCADE)

    class Meta:
        verbose_name = _("fingerprint")
        verbose_name_plural = _("fingerprints")

    def __str__(self) -> str:
        return f"{self.document_id}: {self.value}"
