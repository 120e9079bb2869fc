"""A page whose text Wagtail indexes, and which refers to another page."""

from __future__ import annotations

from django.db import models
from wagtail.models import Page
from wagtail.search import index


class Essay(Page):
    """A page of the site."""

    body = models.TextField()
    about = models.ForeignKey(
        Page, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    search_fields = [*Page.search_fields, index.SearchField("body")]
