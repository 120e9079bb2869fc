"""The pages of the library in the admin, whose lists never load the texts."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from example_project.library.models import Document, Upload


class LookOnly(admin.ModelAdmin):
    """Rows that only tasks write, but that users can delete."""

    heavy: tuple[str, ...] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self.heavy)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False, because files come in by the upload page, which sends their import."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False, because a changed text would no longer fit its checksum and its index."""
        return False


@admin.register(Document)
class DocumentAdmin(LookOnly):
    """Documents, with the values that the tasks have found."""

    heavy = ("text", "search")
    list_display = ("path", "kind", "size", "lines", "words", "indexed_at", "verified_at")
    list_filter = ("kind",)
    search_fields = ("folder", "name")


@admin.register(Upload)
class UploadAdmin(LookOnly):
    """Files as they were uploaded."""

    heavy = ("content", "document__text", "document__search")
    list_display = ("path", "uploaded_at", "document")
    list_select_related = ("document",)
    search_fields = ("folder", "name")
    fields = ("folder", "name", "uploaded_at", "review", "import_run", "document")
